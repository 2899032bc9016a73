//! `nvcap decode`: a capture in the same pipeline as a live trace.

use std::process::ExitCode;

use nvcap_show::output::text::Fast;

use super::output_args::OutputArgs;
use super::recording::RecordingArgs;

const EXAMPLES: &str = "\
Examples:
  nvcap decode nvcap.pcapng                      what nvcap record has written
  nvcap decode run.orc.xz                        what the program asked for, one line each
  nvcap decode run.orc.xz -v                     every operation, with all details
  nvcap decode run.orc.xz --json -e op=launch    launches as JSON
  nvcap decode run.orc.xz --phases run.phases -e phase=vadd_4096x256
  nvcap decode run.orc.xz -s -v                  statistics with method writes
  xz -dc run.orc.xz | nvcap decode -             from standard input

Exit status: 0 complete, 1 error, 2 usage, 3 the capture lacks something, 5 complete, but not all
was understood (the ledger says what), 6 complete, and the GPU faulted (the verdict says where).";

/// A capture, and the form in which it is shown.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Recording that is decoded.
    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Form and place of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Decodes the capture.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut recording = args.recording.open()?;
    let (shown, file) = (&args.output, args.output.output.as_deref());
    if shown.stats || shown.quiet || file.is_some_and(|file| file.as_os_str() != "-") {
        recording = recording.quiet_until_the_end(file);
    }
    let strict = args.recording.strict;
    let inputs = args.recording.inputs();
    let output = args.output.of_recording(recording.trace());
    let mut pipeline = output.pipeline_of(strict, None, false, Fast::Lines, &inputs)?;
    recording.play(&mut pipeline)?;
    let ledger = output.conclude(pipeline)?;
    Ok(ExitCode::from(ledger.exit_status()))
}
