//! Live sources of records (Linux): [`trap`] by breakpoints and BPF programs, [`observe`] by reading rings often enough.
//!
//! [`how`] chooses one of the two, [`run`] runs it to its end, [`arrivals`] tells of processes that come to use a GPU (`-a`), and
//! [`enrich`] adds records that a source lacks: names of GPUs and of kernels, graphs that were made before, images of code, time stamps.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod arrivals;
pub mod enrich;
pub mod how;
pub mod observe;
pub mod run;
pub mod trap;
