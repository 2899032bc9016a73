//! Where records come from.
//!
//! - `trap`: breakpoints and BPF programs, live (feature `trap`).
//! - `memory`: rings and pushbuffers read through `/proc/PID/mem` (Linux).
//! - `file`: captures and logs.

pub mod file;
#[cfg(target_os = "linux")]
pub mod memory;
#[cfg(feature = "trap")]
pub mod trap;
