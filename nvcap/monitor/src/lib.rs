#![doc = include_str!("../README.md")]
// An item that no other crate needs is `pub(crate)`.
#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod counts;
pub mod dump;
#[cfg(feature = "serve")]
pub mod serve;
pub mod share;
pub mod top;
pub mod watch;
