//! Where records come from.
//!
//! - `trap`: breakpoints and BPF programs, live (feature `trap`).
//! - `memory`: rings and pushbuffers read through `/proc/PID/mem` (Linux).
//! - `file`: captures and logs.
//! - `observe`: the live trace without a trap, over `memory` (feature `trap`, with the trap it stands in for).
//! - `run`: running either live source to its end; `how` chooses one.

#[cfg(feature = "trap")]
pub mod command;
#[cfg(feature = "trap")]
pub mod error;
pub mod file;
#[cfg(feature = "trap")]
pub mod given;
#[cfg(feature = "trap")]
pub mod how;
#[cfg(target_os = "linux")]
pub mod memory;
#[cfg(feature = "trap")]
pub mod observe;
#[cfg(feature = "trap")]
pub mod run;
#[cfg(feature = "trap")]
pub mod trap;
