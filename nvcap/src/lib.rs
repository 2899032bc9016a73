//! The command line of nvcap, for its main.rs and its tests alone: [`nvcap_decode`] is the library.

// A standard stream that is full or closed must not end a trace: `output::writer` and `output::message` know what to do then.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

#[doc(hidden)]
pub use cli::main;
