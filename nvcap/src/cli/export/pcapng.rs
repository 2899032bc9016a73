//! `nvcap export pcapng`: a recording made from a capture, a log of ioctls, or another recording.

use std::process::ExitCode;

use super::copied::CopyArgs;

const EXAMPLES: &str = "\
Examples:
  nvcap export pcapng run.orc.xz -o run.pcapng             a capture made elsewhere, as a recording
  nvcap export pcapng run.log.gz -o run.pcapng             a log of ioctls, likewise
  nvcap export pcapng run.pcapng --redact -o shared.pcapng without users' data
  nvcap export pcapng run.pcapng -o run.pcapng.zst         compressed

Exit status: as nvcap decode.";

/// Arguments of `nvcap export pcapng`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// File that is read, and file that is written.
    #[command(flatten)]
    pub(super) copy: CopyArgs,

    /// Replace users' data (inline bytes, arguments of kernels, values of fills) by what a hash with a secret key makes of it
    #[arg(long, help_heading = "Output")]
    pub redact: bool,
}

/// Makes the export.
pub(in crate::cli) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.copy
        .copy(args.redact, |recorder, _| Box::new(recorder))
}
