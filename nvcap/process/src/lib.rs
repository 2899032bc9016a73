#![doc = include_str!("../README.md")]
// An item that no other crate needs is `pub(crate)`.
#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod channels_file;
pub mod clock;
pub mod command;
pub mod confine;
pub mod descriptors;
pub mod error;
pub mod exit_hold;
pub mod exit_stop;
pub mod filtered;
pub mod host;
#[cfg(feature = "in-step")]
#[doc(hidden)]
pub mod in_step;
pub mod memory;
pub mod procfs;
pub mod rights;
pub mod rm;
pub mod signals;
pub mod stacks;
pub mod user;
pub mod xids;
