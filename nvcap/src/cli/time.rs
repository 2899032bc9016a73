//! `nvcap time`: the uses of the GPU's time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

use super::output_args::OutputArgs;
use super::profile::{self, Input, Profile};
use super::recording::{Recording, RecordingArgs};
use super::usage::bail_usage;
use super::{sums, target, trace, trace_run, values};
use nvcap_decode::driver::Version;
use nvcap_decode::hang::ProcessReport;
use nvcap_monitor::dump;
use nvcap_show::output::dump::{LAST, Shown as Look, Word, verdict};
use nvcap_show::output::gpu_time::earlier::Work;
use nvcap_show::output::gpu_time::kernel_times::KernelTimes;
use nvcap_show::output::gpu_time::{Evidence, TimeReport};
use nvcap_show::output::json;
use nvcap_show::output::message::tell;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};
use nvcap_show::profile::times as profile_times;

const EXAMPLES: &str = "\
Examples:
  sudo nvcap time -p 4711 --duration 10         what a running process uses the GPU for
  sudo nvcap time -- python train.py            a command, from its first submission
  sudo nvcap time --gpu-time-cpu 5% -p 4711     a sample: 5 % of one processor
  sudo nvcap time --sample-pc -p 4711 --duration 10    and how the time of graph replays divides
  nvcap time nvcap.pcapng                       of what nvcap record --gpu-time has written
  sudo nvcap time --json -p 4711 --duration 10  one JSON object, and the ledger
  nvcap time node.pcapng --by process           kernels of each rank, not of all together
  nvcap time rank0.json.gz                      of a trace of torch.profiler (docs/from-kineto.md)
  nvcap time run.sqlite                         of nsys export --type sqlite (docs/from-nsys.md)

The process runs at its full speed: its rings and the GPU's time stamps are read from outside
(--how observe). With --how trap each submission's doorbell is timed too, so that times in the
queue are exact, and each costs a trap.
docs/gpu-time.md says how times are known, and how well.";

/// Arguments of `nvcap time`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(super) struct Args {
    /// A recording with the GPU's time stamps (nvcap record --gpu-time), or a trace of torch.profiler or nsys (SQLite), to read instead of a live process
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "command", "all"], help_heading = "Target")]
    pub file: Option<PathBuf>,

    /// More files of the same trace (nvcap record --rotate), in any order: they are read as one
    #[arg(value_name = "FILE", requires = "file", help_heading = "Target")]
    pub more: Vec<PathBuf>,

    /// Estimate the times of graph nodes that have none here, from RECORDING: from its launches of the same kernel with the same grid and
    /// shared memory, or from its samples
    #[arg(long, value_name = "RECORDING", help_heading = values::SHOWN)]
    pub times_from: Option<PathBuf>,

    /// Rows of kernels and copies for each process, not of all together
    ///
    /// Without it a row of several processes has the least and the most that one of them took beside its total.
    #[arg(long, value_name = "WHAT", help_heading = values::SHOWN)]
    pub by: Option<By>,

    /// Target and options of the trace.
    #[command(flatten)]
    pub trace: trace::Args,
}

impl Args {
    /// Returns the reason why the command must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let file = self.file.as_deref().or(self.times_from.as_deref());
        self.trace.refusal(file)
    }
}

/// Values of `--by`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Rows of each process
    Process,
}

/// Returns the command for clap: it observes by default, and lacks the options without a meaning.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let command = command.mut_arg("gpu_time_cpu", |arg| {
        arg.help("Use at most PERCENT of one core for reading time stamps, such as 5%; then they are read only part of the time")
    });
    sums::as_is(command, "file", &[])
}

/// Shows the sums at the end.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shown = &args.trace.output;
    sums::refuse_events("nvcap time", shown)?;
    let times = args.times_from.as_deref().map(times_of).transpose()?;
    let shown = Shown {
        by: args.by,
        times: times.unwrap_or_default(),
        is_live: args.file.is_none(),
    };
    match &args.file {
        Some(file) => {
            let of = RecordingArgs {
                more: args.more,
                ..RecordingArgs::of(file)
            };
            of_file(&of, &args.trace.output, shown)
        }
        None => live(args.trace, shown),
    }
}

/// Rows that are shown, and the evidence for their estimates.
struct Shown {
    by: Option<By>,
    times: Evidence,
    is_live: bool,
}

/// Returns the times of kernels in a recording.
fn times_of(file: &Path) -> anyhow::Result<Evidence> {
    let of = RecordingArgs::of(file);
    let recording = opened(&of)?.quiet_until_the_end(None);
    let mut times = KernelTimes::default();
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut times)]);
    recording.play(&mut pipeline)?;
    pipeline.finish()?;
    let times = times.evidence();
    if times.is_empty() {
        tell(format_args!(
            "{} has no kernel with a name whose time is known: it tells nothing of graphs",
            of.name()
        ));
    }
    Ok(times)
}

fn report(
    output: &OutputArgs,
    shown: Shown,
    command: bool,
    inputs: &[&Path],
    driver: Option<Version>,
) -> anyhow::Result<Pipeline<'static>> {
    let options = output.pipeline_options(false, driver)?;
    let out = target::open(output.output.as_deref(), output.force, command, inputs)?;
    let color = output.color().enabled(out.is_terminal());
    let mut sink = TimeReport::new(out, output.json, color)
        .with_times(shown.times)
        .by_process(shown.by == Some(By::Process));
    if shown.is_live {
        sink = sink.with_earlier(Box::new(earlier));
    }
    Ok(Pipeline::new(options, vec![Box::new(sink)]))
}

/// Looks at processes. Returns their work that has not ended.
fn earlier(pids: &[u32]) -> Vec<Work> {
    let options = super::usual_look::options(LAST, false);
    let look = dump::look(pids, &options);
    let shown = Look {
        report: &look.report,
        moved: None,
    };
    let sentence = |process: &ProcessReport| {
        let verdict = verdict(&shown, process);
        let is_known = !matches!(verdict.word, Word::Idle | Word::Unknown);
        let why = verdict.lines.into_iter().next().unwrap_or(verdict.head);
        let pid = process.pid;
        is_known.then(|| Work {
            pid,
            says: format!("{why}; nvcap dump -p {pid} shows all of it"),
        })
    };
    { look.report.processes.iter() }
        .filter_map(sentence)
        .collect()
}

/// Opens a recording with timestamps.
fn opened(of: &RecordingArgs) -> anyhow::Result<Recording<'_>> {
    stamped(of, of.open()?)
}

/// Returns the recording, if it has timestamps.
fn stamped<'a>(of: &RecordingArgs, mut recording: Recording<'a>) -> anyhow::Result<Recording<'a>> {
    if !recording.trace().is_some_and(|info| info.gpu_time) {
        bail!(
            "{} has no time stamps of the GPU: they are recorded with --gpu-time (nvcap record --gpu-time -p PID)",
            of.name()
        );
    }
    Ok(recording)
}

fn of_file(of: &RecordingArgs, output: &OutputArgs, shown: Shown) -> anyhow::Result<ExitCode> {
    let mut recording = match profile::open(of)? {
        Input::Recording(recording) => stamped(of, *recording)?,
        Input::Profile(profile) => return of_profile(profile, of, output, &shown),
    };
    let output = output.of_recording(recording.trace());
    let mut pipeline = report(&output, shown, false, &of.inputs(), None)?;
    recording
        .quiet_until_the_end(output.output.as_deref())
        .play(&mut pipeline)?;
    let ledger = output.conclude(pipeline)?;
    Ok(ExitCode::from(ledger.exit_status()))
}

/// Shows the sums of another profiler's file.
fn of_profile(
    profile: Profile<'_>,
    of: &RecordingArgs,
    shown: &OutputArgs,
    rows: &Shown,
) -> anyhow::Result<ExitCode> {
    let is_refused = [
        (shown.filter.is_some(), "-e"),
        (shown.phases.is_some(), "--phases"),
        (rows.by.is_some(), "--by"),
        (!rows.times.is_empty(), "--times-from"),
        (shown.exec_time, "--exec-time"),
    ];
    if let Some((_, option)) = is_refused.into_iter().find(|(is_given, _)| *is_given) {
        bail_usage!(
            "{} is another profiler's trace, in which nothing is that {option} asks for: leave it out",
            of.name()
        );
    }
    let output = shown.output.as_deref();
    let mut out = target::open(output, shown.force, false, &of.inputs())?;
    let (mut sums, about) = profile.read(output)?;
    if shown.json {
        let object = profile_times::object(&of.name(), &mut sums, &about);
        json::write(out.object(), &object);
        out.object().push(b'\n');
    } else {
        let color = shown.color().enabled(out.is_terminal());
        let width = out.width();
        profile_times::text(out.object(), color, width, &mut sums, &about);
    }
    target::written(&mut out)?;
    Ok(ExitCode::from(about.status()))
}

fn live(mut trace: trace::Args, shown: Shown) -> anyhow::Result<ExitCode> {
    trace.typed = "nvcap time".to_owned();
    trace.gpu_time = true;
    let mut output = trace.output.clone();
    output.has_gpu_time = true;
    let command = trace.leaves_standard_output();
    trace_run::run_into(
        trace,
        |args| {
            let inputs = Vec::from_iter(args.channels.as_deref());
            report(&output, shown, command, &inputs, target::running_driver())
        },
        |pipeline| output.conclude(pipeline),
    )
}
