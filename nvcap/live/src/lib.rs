#![doc = include_str!("../README.md")]
// An item that no other crate needs is `pub(crate)`.
#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod arrivals;
pub mod enrich;
mod faults;
pub mod how;
pub mod observe;
mod polled;
pub mod run;
pub mod samples;
pub mod switches;
pub mod trap;
