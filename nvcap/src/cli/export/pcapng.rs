//! `nvcap export pcapng`: makes a recording from a capture, a log of ioctls, or another recording.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::recording::RecordingArgs;
use crate::cli::values::{Force, OUTPUT};
use crate::cli::{overwrite, recorder, target};
use nvcap_decode::ledger::Ledger;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

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
    /// Recording that is read.
    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Write to FILE, readable by its owner alone; - is standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: PathBuf,

    /// Option that has FILE replaced.
    #[command(flatten, next_help_heading = OUTPUT)]
    pub force: Force,

    /// Replace users' data (inline bytes, arguments of kernels, values of fills) by what a hash with a secret key makes of it
    #[arg(long, help_heading = "Output")]
    pub redact: bool,
}

impl Args {
    /// Returns the reason why the export must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let inputs = self.recording.inputs();
        overwrite::refusal(Some(&self.output), self.force.force, &inputs)
    }
}

/// Exports.
pub(in crate::cli) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut recording = args.recording.open_with_logs()?;
    let format = recording.format();
    let out = target::open(
        Some(&args.output),
        args.force.force,
        false,
        &args.recording.inputs(),
    )?;
    let options = PipelineOptions {
        strict: args.recording.strict,
        ..PipelineOptions::default()
    };
    let sink = recorder::of_file(out, (format, recording.trace()), args.redact, &args.output)?;
    let mut pipeline = Pipeline::new(options, vec![Box::new(sink)]);
    recording
        .quiet_until_the_end(Some(&args.output))
        .play(&mut pipeline)?;
    let ledger: Ledger = pipeline.finish()?;
    let verdict = nvcap_show::output::ledger::verdict(&ledger);
    nvcap_show::output::message::tell(format_args!("{verdict}"));
    Ok(ExitCode::from(ledger.exit_status()))
}
