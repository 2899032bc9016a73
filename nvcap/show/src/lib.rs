#![doc = include_str!("../README.md")]
// An item that no other crate needs is `pub(crate)`.
#![warn(unreachable_pub)]
// A standard stream that is full or closed must not end a trace: `output::writer` and `output::message` know what to do then.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod code;
pub mod diff;
pub mod export;
pub mod output;
pub mod pipeline;
pub mod profile;
pub mod ranks;
pub mod samples;
pub mod shares;
