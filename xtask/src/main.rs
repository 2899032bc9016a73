//! What a developer of nvcap types: `cargo xtask COMMAND`. Dispatch and help; each command is a module.

mod build;
mod install;
mod paths;
mod setup;
mod shell;
mod toolchain;
// PLACE for modules of their own: mod facts; mod facts_rm; mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "Builds, runs and tests nvcap",
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        cargo xtask setup              install what a build needs, or say what to type\n  \
        cargo xtask run                build, then trace the GPU process that runs here or the software GPU\n  \
        cargo xtask run -- -p 4711     build, then trace process 4711 (asks sudo for root)\n  \
        cargo xtask test               all tests, with a list of those that could not run"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install the BPF compiler and linker if they are lacking
    Setup {
        /// Only look: status 1 if something is lacking
        #[arg(long)]
        check: bool,
    },
    /// Build the BPF programs and nvcap
    #[command(
        after_help = "Examples:\n  cargo xtask build             development build: target/debug/nvcap\n  \
        cargo xtask build --release   one static file for any distribution; its path is printed last"
    )]
    Build {
        /// Optimised and, unless --dynamic is given, static
        #[arg(long)]
        release: bool,
        /// Without shared libraries, in any profile
        #[arg(long = "static", conflicts_with = "dynamic")]
        fixed: bool,
        /// Linked with this machine's glibc, in any profile
        #[arg(long)]
        dynamic: bool,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One message, outermost first; a backtrace would bury what to type.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Setup { check } => setup::run(check),
        Command::Build {
            release,
            fixed,
            dynamic,
        } => build::run(build::Profile {
            release,
            fixed: fixed || (release && !dynamic),
        }),
    }
}
