//! `nvcap decode`: a capture through the same pipeline as the live trace.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;

use super::OutputArgs;

const EXAMPLES: &str = "\
Examples:
  nvcap decode --from orc run.orc.xz                        text, one line an operation
  nvcap decode --from orc run.orc.xz --json -e op=launch    launches as JSON
  nvcap decode --from orc run.orc.xz --phases run.phases -e phase=vadd_4096x256
  nvcap decode --from orc run.orc.xz -s -v                  statistics with method writes
  xz -dc run.orc.xz | nvcap decode --from orc -             from standard input

Exit status: 0 complete, 1 error, 2 usage, 3 the capture lacks something (the ledger says what).";

/// A capture and how to show it.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Format of the capture
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub from: Format,

    /// The capture; compressed where it ends in .xz or begins as xz does; - for standard input
    pub file: PathBuf,

    /// What is shown and where it goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Capture formats.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Capture of the independent in-process oracle (oracle.c)
    Orc,
}

/// Decodes.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pipeline = args.output.pipeline()?;
    let _ = args.output.conclude(pipeline)?;
    bail!("not built yet: {:?} {}", args.from, args.file.display())
}
