//! Command line of nvcap, only for its main.rs and its tests: [`nvcap_decode`] is the library.

// A standard stream that is full or closed must not end a trace: `output::writer` and `output::message` handle it.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

#[doc(hidden)]
pub use cli::main;
