//! Stacks of threads, read from outside without stopping the threads.
//!
//! - [`python`]: the frames of CPython.
//!
//! Stacks of doorbells, whose bytes the BPF programs copied; they are turned into frames with names:
//!
//! - `queue`: stacks on their way from the reader thread to the thread that resolves them.
//! - `modules`: the files that are mapped in a process, with their addresses.
//! - `elf`: a mapped file: its unwind tables, symbols and debugging information, each read at the first need.
//! - `dwarf`: source lines and inlined functions.
//! - `unwind`: computes return addresses from registers and bytes.
//! - `resolve`: computes the frames of a stack of the queue, by means of all of the above.
//! - `merge`: puts Python frames in the place of the interpreter's.
//! - `snapshot`: the stacks of all threads at one look, for `nvcap dump`.
//! - `sample`: registers and stacks of threads that run in user mode.
//! - `api`: the function of CUDA's interface that was called.
//! - `guard`: keeps panics of other crates' parsers from ending a trace.
//! - `demangle`: names as the source writes them.
//! - `left_out`: limits of all these, and counts of omissions.
//!
//! Files are read, never mapped: a program that truncates its own mapped file would end nvcap by SIGBUS.

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
