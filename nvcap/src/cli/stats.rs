//! `nvcap stats`: the sums of a recording.

use std::process::ExitCode;

use clap::ValueEnum;

use nvcap_show::output::stats::{By, Form, Stats};
use nvcap_show::pipeline::Pipeline;

use super::output_args::OutputArgs;
use super::recording::RecordingArgs;
use super::target;
use super::usage::bail_usage;
use super::values::{self, SHOWN};

const EXAMPLES: &str = "\
Examples:
  nvcap stats nvcap.pcapng                         of what nvcap record has written
  nvcap stats run.orc.xz                           kernels, copies, thresholds, graphs, waits
  nvcap stats run.orc.xz --phases run.phases       the same; moves by series of phases
  nvcap stats run.orc.xz --by kernel               one table, a row a kernel
  nvcap stats run.orc.xz -e 'time_ns>29300000000'  of a part of the time
  nvcap stats run.orc.xz --json | jq .thresholds   as one JSON object, and the ledger

docs/stats.md says how each number is made. Of a live trace, -s shows a part (nvcap -s -p PID).

Exit status: 0 complete, 1 error, 2 usage, 3 the recording lacks something or reading was
interrupted, 5 complete, but not all was understood (the ledger says what),
6 complete, and the GPU faulted (the verdict says where).";

/// A recording, and the way in which it is summed up.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Recording that is read.
    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Show one table, with a row for each kernel, channel, thread, phase or GPU
    #[arg(long, value_name = "WHAT", value_enum, help_heading = SHOWN)]
    pub by: Option<Rows>,

    /// Form and place of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Values of `--by`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// A kernel: its launches, and the submissions that they are in
    Kernel,
    /// A channel
    Channel,
    /// A thread; captures without threads have the process
    Thread,
    /// A phase of --phases
    Phase,
    /// A GPU
    Gpu,
}

impl From<Rows> for By {
    fn from(rows: Rows) -> Self {
        match rows {
            Rows::Kernel => Self::Kernel,
            Rows::Channel => Self::Channel,
            Rows::Thread => Self::Thread,
            Rows::Phase => Self::Phase,
            Rows::Gpu => Self::Gpu,
        }
    }
}

/// Options of a trace that have no meaning here.
const USELESS: [&str; 7] = [
    "quiet",
    "stats",
    "time",
    "redact",
    "explain_streams",
    "full_names",
    "history",
];

/// Returns the command for clap, without the options that have no meaning here.
pub(super) fn without_useless(command: clap::Command) -> clap::Command {
    let command = values::saying(command, &[("verbose", "Show method writes too")]);
    values::without(command, &USELESS)
}

/// Sums up the recording.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = &args.output;
    if shown.quiet || shown.explain_streams {
        bail_usage!(
            "nvcap stats shows sums alone: for events, the ledger alone or shared channels use nvcap decode ({})",
            nvcap_show::output::shell::quoted(&args.recording.file)
        );
    }
    if args.by == Some(Rows::Phase) && shown.phases.is_none() {
        bail_usage!("--by phase needs the phases: name their file with --phases FILE");
    }
    let mut recording = args.recording.open()?;
    let shown = shown.of_recording(recording.trace());
    let recording = recording.quiet_until_the_end(shown.output.as_deref());
    let options = shown.pipeline_options(args.recording.strict, None)?;
    let inputs: Vec<_> = args
        .recording
        .inputs()
        .into_iter()
        .chain(shown.phases.as_deref())
        .collect();
    let out = target::open(shown.output.as_deref(), shown.force, false, &inputs)?;
    let form = match shown.json {
        true => Form::Json,
        false => Form::Text {
            color: shown.color().enabled(out.is_terminal()),
        },
    };
    let sink = Stats::new(out, form, shown.detail_of_sums(), shown.filter.is_some());
    let sink = sink.with_profile(args.by.map(By::from));
    let mut pipeline = Pipeline::new(options, vec![Box::new(sink)]);
    recording.play(&mut pipeline)?;
    let ledger = shown.conclude(pipeline)?;
    Ok(ExitCode::from(ledger.exit_status()))
}
