//! `nvcap doctor`: what this machine allows.

use std::process::ExitCode;

use anyhow::bail;

/// `nvcap doctor` takes no options.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Looks and reports.
pub fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    bail!("this program is built without live tracing, so there is nothing to examine")
}
