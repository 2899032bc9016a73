//! `nvcap export wireshark`: a recording with what nvcap's decoder says of each packet.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::recording::RecordingArgs;
use crate::cli::values::{Force, OUTPUT};
use crate::cli::{overwrite, recorder, target};
use nvcap_show::output::wireshark::Packets;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

const EXAMPLES: &str = "\
Examples:
  nvcap wireshark install                               what Wireshark needs for it, once
  nvcap export wireshark run.pcapng -o run.ws.pcapng
  tshark -r run.ws.pcapng -Y 'nvcap.op == \"launch\"'

Users' data is in it as in FILE. Exit status: as nvcap decode.";

/// Arguments of `nvcap export wireshark`.
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
    let trace = recording.trace();
    let driver = trace.and_then(|t| t.driver.as_deref()?.parse().ok());
    let recorder = recorder::of_file(out, (format, trace), false, &args.output)?;
    let sink = Packets::new(recorder, driver, Box::new(|| true));
    let mut pipeline = Pipeline::new(options, vec![Box::new(sink)]);
    recording
        .quiet_until_the_end(Some(&args.output))
        .play(&mut pipeline)?;
    let ledger = pipeline.finish()?;
    let verdict = nvcap_show::output::ledger::verdict(&ledger);
    nvcap_show::output::message::tell(format_args!("{verdict}"));
    Ok(ExitCode::from(ledger.exit_status()))
}
