//! The `nvcap` program: see `cli`.

// A standard stream that is full or closed must not end a trace: `output::writer` and `output::tell` know what to do then.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
