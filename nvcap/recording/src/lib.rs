#![doc = include_str!("../README.md")]
// An item that no other crate needs is `pub(crate)`.
#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod blocked_write;
pub mod file;
pub mod pcapng;
pub mod read_ahead;
pub mod recording;
