//! User stacks at doorbells: from the bytes that the BPF programs copied to frames with names.
//!
//! - `queue`: stacks on their way from the reader thread to the one that resolves them.
//! - `modules`: which file is mapped where in a process.
//! - `elf`: a mapped file: its unwind tables, symbols and debugging information, read when they are needed.
//! - `dwarf`: source lines and inlined functions.
//! - `unwind`: from registers and bytes to return addresses.
//! - `resolve`: all of it: from a stack of the queue to frames.
//! - `api`: which function of CUDA's interface was called.
//! - `demangle`: names as the source has them.
//!
//! Files are read, never mapped: a program that cuts a file of its own short would end nvcap by SIGBUS.

mod api;
mod demangle;
mod dwarf;
mod elf;
mod modules;
pub(crate) mod queue;
pub(crate) mod resolve;
mod unwind;
