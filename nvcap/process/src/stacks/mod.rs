//! Stacks of threads, found from outside while the threads run on.
//!
//! - [`python`]: the frames of CPython.
//!
//! Stacks of doorbells, from the bytes that the BPF programs copied to frames with names:
//!
//! - `queue`: stacks on their way from the reader thread to the one that resolves them.
//! - `modules`: which file is mapped where in a process.
//! - `elf`: a mapped file: its unwind tables, symbols and debugging information, read when they are needed.
//! - `dwarf`: source lines and inlined functions.
//! - `unwind`: from registers and bytes to return addresses.
//! - `resolve`: all of it: from a stack of the queue to frames.
//! - `merge`: the frames of Python in the place of the interpreter's.
//! - `snapshot`: the stacks of all threads at one look, for `nvcap dump`.
//! - `sample`: registers and stacks of threads that run in user mode.
//! - `api`: which function of CUDA's interface was called.
//! - `guard`: what other crates' parsers cannot do to a trace.
//! - `demangle`: names as the source has them.
//! - `left_out`: bounds of all these, and counts of what they leave out.
//!
//! Files are read, never mapped: a program that cuts a file of its own short would end nvcap by SIGBUS.

pub mod python;

mod api;
mod demangle;
mod dwarf;
mod elf;
mod guard;
pub mod left_out;
mod merge;
mod modules;
pub mod queue;
pub mod resolve;
mod sample;
pub mod snapshot;
mod unwind;
