#![doc = include_str!("../README.md")]
// An item that no other crate needs is `pub(crate)`.
#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bench;
pub mod study;
pub mod trigger;
