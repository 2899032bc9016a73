//! Source of an export: a capture or a live trace. Both become a pipeline into the sink of one format.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::recording::{self, RecordingArgs};
use crate::cli::usage::bail_usage;
use crate::cli::way_options::HowArg;
use crate::cli::{file_or_live, target, trace, trace_run, values};
use nvcap_decode::ledger::Ledger;
use nvcap_recording::recording::TraceInfo;
use nvcap_show::output::Sink;
use nvcap_show::output::message::tell;
use nvcap_show::pipeline::Pipeline;

/// A capture, if it is one.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Target")]
#[group(skip)]
pub(in crate::cli) struct FileArgs {
    /// A recording or capture to read instead of tracing; plain or compressed by gzip, xz or zstd; - is standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "command", "all"])]
    pub file: Option<PathBuf>,

    /// More files of the same trace (nvcap record --rotate), in any order: they are read as one
    #[arg(value_name = "FILE", requires = "file")]
    pub more: Vec<PathBuf>,

    /// With FILE: its format; by default its content tells
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub from: Option<recording::Format>,

    /// With FILE: end with an error at the first thing that is missing or cannot be decoded
    #[arg(long)]
    pub strict: bool,
}

/// Options of a trace that have no meaning for an export. A format may have more.
const USELESS: [&str; 9] = [
    "quiet",
    "stats",
    "json",
    "time",
    "color",
    "full_names",
    "history",
    "gpu_time",
    "no_names",
];

/// Help texts of a trace's options in the sense that they have for all exports.
const SAYING: [(&str, &str); 2] = [
    (
        "gpu_time_cpu",
        "Use at most PERCENT of one core for reading time stamps, such as 5%; then they are read only part of the time",
    ),
    (
        "channels",
        "Take the channels from FILE (docs/channels-file.md); with a capture, from what the oracle wrote to its standard error",
    ),
];

/// Returns the command of a format for clap: without the options that have no meaning here, without those of `more`, without those of a
/// live target if there is a file, and with the help texts that fit here. `output` describes `-o`.
pub(super) fn as_is(
    command: clap::Command,
    more: &[&'static str],
    output: &'static str,
) -> clap::Command {
    // Captures have channels, too.
    let live = trace::live_options().filter(|id| id.as_str() != "channels");
    let command = file_or_live::refusing(command, "file", live);
    let command = values::without(command, &USELESS);
    let command = values::without(command, more);
    let command = values::saying(command, &SAYING);
    values::saying(command, &[("output", output)])
}

/// Facts about a trace besides its records.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    /// Readings of the clocks at one moment, ns.
    pub monotonic_ns: Option<u64>,
    pub boottime_ns: Option<u64>,
    pub realtime_ns: Option<u64>,
    /// Release of the driver.
    pub driver: Option<String>,
}

impl About {
    fn recorded(info: &TraceInfo) -> Self {
        Self {
            monotonic_ns: Some(info.monotonic_ns).filter(|ns| *ns != 0),
            boottime_ns: None,
            realtime_ns: Some(info.realtime_ns).filter(|ns| *ns != 0),
            driver: info.driver.clone(),
        }
    }

    /// Returns the Unix time at which `CLOCK_MONOTONIC` was 0, ns, if it is known.
    pub(super) fn base_ns(&self) -> Option<u64> {
        self.realtime_ns?.checked_sub(self.monotonic_ns?)
    }

    fn now() -> Self {
        use nvcap_process::clock;

        Self {
            monotonic_ns: Some(clock::now()),
            boottime_ns: clock::read(libc::CLOCK_BOOTTIME),
            realtime_ns: clock::read(libc::CLOCK_REALTIME),
            driver: target::running_driver().map(|version| version.to_string()),
        }
    }
}

/// Inputs that a format needs to make its sink.
pub(super) struct Order<'a> {
    pub args: &'a trace::Args,
    pub about: About,
    /// True if a command is traced, to which standard output belongs.
    pub command: bool,
    /// Files that are read at the same time.
    pub inputs: &'a [&'a Path],
}

/// A format of exports.
pub(super) trait Export {
    /// Returns the name on the command line, and the possible forms of `-o`.
    fn names(&self) -> (&'static str, &'static str);

    /// Makes the sink, with its files.
    ///
    /// # Errors
    /// When the files cannot be made, or if the user named no place for them.
    fn sink(&self, order: Order<'_>) -> anyhow::Result<Box<dyn Sink>>;

    /// Tells whether the sink needs records in the order of their times, from whatever file they come.
    fn needs_order(&self) -> bool;

    /// Ends the trace, with the verdict and the next command to type.
    ///
    /// # Errors
    /// When the output could not be written.
    fn conclude(&self, args: &trace::Args, pipeline: Pipeline<'_>) -> anyhow::Result<Ledger>;
}

/// Makes the export.
///
/// # Errors
/// When something cannot be read, traced or written, or options contradict each other.
pub(super) fn run(
    export: &impl Export,
    file: &FileArgs,
    trace: trace::Args,
) -> anyhow::Result<ExitCode> {
    let shown = &trace.output;
    if shown.json || shown.stats || shown.quiet {
        bail_usage!(
            "nvcap export writes a file for another program; for text, JSON and sums: nvcap decode FILE, nvcap -p PID"
        );
    }
    match &file.file {
        Some(path) => of_file(export, path, file, trace),
        None if file.strict || file.from.is_some() => {
            let (name, example) = export.names();
            tell(format_args!(
                "--from and --strict are of a FILE: nvcap export {name} FILE --strict -o {example}"
            ));
            Ok(target::usage())
        }
        None => live(export, trace),
    }
}

fn of_file(
    export: &impl Export,
    path: &Path,
    file: &FileArgs,
    mut trace: trace::Args,
) -> anyhow::Result<ExitCode> {
    let of = RecordingArgs {
        from: file.from,
        more: file.more.clone(),
        channels: trace.channels.clone(),
        strict: file.strict,
        ..RecordingArgs::of(path)
    };
    let mut recording = of.open()?;
    trace.output = trace.output.of_recording(recording.trace());
    let about = recording.trace().map(About::recorded).unwrap_or_default();
    let recording = recording.quiet_until_the_end(trace.output.output.as_deref());
    let mut inputs = of.inputs();
    inputs.extend(trace.output.phases.as_deref());
    let options = trace.output.pipeline_options(file.strict, None)?;
    let sink = export.sink(Order {
        args: &trace,
        about,
        command: false,
        inputs: &inputs,
    })?;
    let pipeline = Pipeline::new(options, vec![sink]);
    let mut pipeline = match export.needs_order() {
        // Each submission is held back until the GPU's timestamps, which follow it in the file, have been read.
        true => pipeline.with_gpu_time().in_time_order(),
        false => pipeline,
    };
    recording.play(&mut pipeline)?;
    let ledger = export.conclude(&trace, pipeline)?;
    Ok(ExitCode::from(ledger.exit_status()))
}

fn live(export: &impl Export, mut trace: trace::Args) -> anyhow::Result<ExitCode> {
    trace.typed = format!("nvcap export {}", export.names().0);
    trace.gpu_time = true;
    trace.exports = true;
    trace.output.has_gpu_time = true;
    trace.output.has_stacks = trace.stacks.is_some() && trace.how != HowArg::Observe;
    let given = trace.clone();
    let command = !trace.command.is_empty();
    trace_run::run_into(
        trace,
        |args| {
            let mut inputs = Vec::from_iter(args.channels.as_deref());
            inputs.extend(args.output.phases.as_deref());
            let options = args
                .output
                .pipeline_options(false, target::running_driver())?;
            let sink = export.sink(Order {
                args,
                about: About::now(),
                command,
                inputs: &inputs,
            })?;
            Ok(Pipeline::new(options, vec![sink]))
        },
        |pipeline| export.conclude(&given, pipeline),
    )
}
