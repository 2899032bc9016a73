//! Exports that make a recording from a file: their arguments, and the copying of the file into the recorder.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::recording::RecordingArgs;
use crate::cli::values::{Force, OUTPUT};
use crate::cli::{overwrite, recorder, target};
use nvcap_recording::recording::TraceInfo;
use nvcap_show::output::recorder::Recorder;
use nvcap_show::output::{Sink, ledger, message};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

/// File that is read, and file that is written.
#[derive(clap::Args, Debug)]
pub(super) struct CopyArgs {
    /// Recording that is read.
    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Write to FILE, readable by its owner alone; - is standard output
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: PathBuf,

    /// Option by which FILE is replaced.
    #[command(flatten, next_help_heading = OUTPUT)]
    pub force: Force,
}

impl CopyArgs {
    /// Returns the reason why the export must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let inputs = self.recording.inputs();
        overwrite::refusal(Some(&self.output), self.force.force, &inputs)
    }

    /// Copies the file into a recording, redacted or not, through the sink that `through` makes of the recorder.
    pub(super) fn copy(
        &self,
        redacted: bool,
        through: impl FnOnce(Recorder, Option<&TraceInfo>) -> Box<dyn Sink>,
    ) -> anyhow::Result<ExitCode> {
        let mut recording = self.recording.open_with_logs()?;
        let format = recording.format();
        let out = target::open(
            Some(&self.output),
            self.force.force,
            false,
            &self.recording.inputs(),
        )?;
        let options = PipelineOptions {
            strict: self.recording.strict,
            ..PipelineOptions::default()
        };
        let trace = recording.trace();
        let recorder = recorder::of_file(out, (format, trace), redacted, &self.output)?;
        let mut pipeline = Pipeline::new(options, vec![through(recorder, trace)]);
        recording
            .quiet_until_the_end(Some(&self.output))
            .play(&mut pipeline)?;
        let ledger = pipeline.finish()?;
        message::tell(format_args!("{}", ledger::verdict(&ledger)));
        Ok(ExitCode::from(ledger.exit_status()))
    }
}
