//! Where records come from.
//!
//! - `trap`: breakpoints and BPF programs, live (feature `trap`).
//! - `memory`: rings and pushbuffers read through `/proc/PID/mem` (Linux).
//! - `file`: captures and logs.
//! - `observe`: the live trace without a trap, over `memory` (feature `trap`, with the trap it stands in for).
//! - `exit_stop`: stops of processes at their end for a last look, for `observe`.
//! - `clock`: the clock that all their times are of.
//! - `arrivals`: processes that come to use a GPU (`-a`).
//! - `run`: running either live source to its end; `how` chooses one.
//! - `command`: the command that is started for a trace, and as which `user`.
//! - `signals`: those that end a trace; `rights`: what nvcap may do; `filtered`: what a seccomp filter refuses it; `confine`: what it gives up; `error`: errors with their remedy.
//! - `channels_file`: channels that the user names.

#[cfg(feature = "trap")]
pub(crate) mod arrivals;
#[cfg(feature = "trap")]
pub(crate) mod channels_file;
#[cfg(all(feature = "cli", target_os = "linux"))]
pub(crate) mod clock;
#[cfg(feature = "trap")]
pub(crate) mod command;
#[cfg(all(feature = "cli", target_os = "linux"))]
pub(crate) mod confine;
#[cfg(feature = "trap")]
pub(crate) mod descriptors;
#[cfg(feature = "trap")]
pub(crate) mod error;
#[cfg(feature = "trap")]
pub(crate) mod exit_hold;
#[cfg(feature = "trap")]
mod exit_stop;
pub mod file;
#[cfg(feature = "trap")]
pub(crate) mod filtered;
#[cfg(feature = "trap")]
pub(crate) mod how;
#[cfg(all(feature = "cli", target_os = "linux"))]
pub(crate) mod memory;
#[cfg(feature = "trap")]
pub(crate) mod observe;
#[cfg(feature = "trap")]
pub(crate) mod rights;
#[cfg(feature = "trap")]
pub(crate) mod run;
#[cfg(feature = "trap")]
pub(crate) mod signals;
#[cfg(feature = "trap")]
pub(crate) mod trap;
#[cfg(feature = "trap")]
pub(crate) mod user;
