//! Developer commands.

mod vm;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Builds, runs and tests nvcap")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Test on other kernels, in virtual machines
    Vm(vm::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Vm(args) => vm::run(args),
    }
}
