//! Where records come from.
//!
//! - `trap`: breakpoints and BPF programs, live (feature `trap`).
//! - `memory`: rings and pushbuffers read through `/proc/PID/mem` (feature `trap`).
//! - `file`: captures and logs.

pub mod file;
#[cfg(feature = "trap")]
pub mod memory;
#[cfg(feature = "trap")]
pub mod trap;
