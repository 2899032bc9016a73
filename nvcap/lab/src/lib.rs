//! Experiments on a GPU (Linux): [`bench`] measures it without CUDA, by a client of the driver of its own; [`study`] runs CUDA programs and says
//! what a recording of them shows.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bench;
pub mod study;
