//! `nvcap export perfetto`: of a recording, or of a live trace.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

use crate::cli::recording::{Format, RecordingArgs};
use crate::cli::{target, trace};
use crate::export::perfetto::{Clocks, Perfetto, PerfettoOptions};
use crate::output::filter::Filter;
use crate::output::message::tell;
use crate::output::redact::Redactor;
use crate::output::writer::Output;
use crate::pipeline::Pipeline;

const EXAMPLES: &str = "\
Examples:
  nvcap export perfetto nvcap.pcapng -o run.pftrace        a recording
  sudo nvcap export perfetto -o run.pftrace -- ./vadd      a command, from its first submission
  sudo nvcap export perfetto -o run.pftrace -p 4711 --duration 10
  nvcap export perfetto run.orc.xz -e op=launch | gzip > launches.pftrace.gz

Open the file at https://ui.perfetto.dev (it is read in the browser and not sent anywhere), or ask
trace processor. A live trace takes the GPU's time stamps, too, which takes one processor
(--gpu-time-cpu 5% takes less, for a part of the times).
docs/perfetto.md says what is on which track.";

/// What is exported.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(in crate::cli) struct Args {
    /// A capture to read instead of a live process, plain or compressed by gzip, xz or zstd; - is standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "command"], help_heading = "Target")]
    pub file: Option<PathBuf>,

    /// With FILE: its format; by default its content tells
    #[arg(long, value_name = "FORMAT", value_enum, help_heading = "Target")]
    pub from: Option<Format>,

    /// With FILE: end with an error at the first thing that is missing or cannot be decoded
    #[arg(long, help_heading = "Target")]
    pub strict: bool,

    /// What is traced.
    #[command(flatten)]
    pub trace: trace::Args,
}

/// Options of a trace that have no meaning here.
const USELESS: [&str; 8] = [
    "quiet",
    "stats",
    "json",
    "time",
    "color",
    "full_names",
    "gpu_time",
    "no_names",
];

/// The command as clap knows it: without options that have no meaning here, and with what others mean here.
pub(in crate::cli) fn as_is(command: clap::Command) -> clap::Command {
    let command = USELESS.into_iter().fold(command, |command, id| {
        command.mut_arg(id, |arg| arg.hide(true))
    });
    let say = |command: clap::Command, id: &'static str, help: &'static str| {
        command.mut_arg(id, |arg| arg.help(help).long_help(None))
    };
    let command = say(
        command,
        "verbose",
        "Write all operations, those of the driver's mechanics too: uploads, barriers, releases, nodes of graphs",
    );
    let command = say(
        command,
        "explain_streams",
        "With --how trap: read GP_GET at each doorbell too, for the counter of the ring's fill",
    );
    let command = say(
        command,
        "output",
        "Write to FILE, readable by its owner alone; - is standard output, which must be no terminal",
    );
    let command = say(
        command,
        "gpu_time_cpu",
        "Take PERCENT of one processor for reading time stamps, such as 5%: those of a part of the time",
    );
    say(
        command,
        "channels",
        "Take the channels from FILE (docs/channels-file.md); with a capture, from what the oracle wrote to its standard error",
    )
}

/// Exports.
pub(in crate::cli) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shown = &args.trace.output;
    if shown.json || shown.stats || shown.quiet {
        bail!(
            "nvcap export writes a file for another program; for text, JSON and sums: nvcap decode FILE, nvcap -p PID"
        );
    }
    match &args.file {
        Some(file) => of_file(file, &args),
        None if args.strict || args.from.is_some() => {
            tell(
                "--from and --strict are of a FILE: nvcap export perfetto FILE --strict -o trace.pftrace",
            );
            Ok(target::usage())
        }
        None => live(args),
    }
}

/// Opens the output, which must be no terminal.
fn open(path: Option<&Path>, command: bool, inputs: &[&Path]) -> anyhow::Result<Output> {
    const NAME_ONE: &str =
        "name a file with -o, such as -o trace.pftrace, and open it at https://ui.perfetto.dev";
    if command && path.is_none() {
        bail!("the trace has no place to go: standard output is the command's; {NAME_ONE}");
    }
    let out = target::open(path, command, inputs)?;
    if out.is_terminal() {
        bail!("the trace is no text, and standard output is a terminal; {NAME_ONE}");
    }
    Ok(out)
}

/// The sink that these options ask for.
fn sink(args: &trace::Args, out: Output, clocks: Option<Clocks>) -> Perfetto {
    let shown = &args.output;
    // As text does it: what a filter lets through is shown.
    let filtered = shown.filter.as_ref().is_some_and(Filter::asks_for_kind);
    let options = PerfettoOptions {
        all: shown.verbose > 0 || filtered,
        redact: shown.redact.then(Redactor::default),
        clocks,
    };
    Perfetto::new(out, options)
}

/// Ends it, with the verdict and what to do next.
fn conclude(args: &trace::Args, pipeline: Pipeline<'_>) -> anyhow::Result<crate::ledger::Ledger> {
    let file = args
        .output
        .output
        .as_deref()
        .filter(|o| *o != Path::new("-"));
    let ledger = args.output.conclude(pipeline)?;
    match file {
        // The verdict has been told.
        Some(file) if file.is_file() => tell(format_args!(
            "{}: open it at https://ui.perfetto.dev (the browser reads it; it is not sent anywhere)",
            file.display()
        )),
        Some(_) => {}
        None => tell(format_args!("{}", crate::output::ledger::verdict(&ledger))),
    }
    Ok(ledger)
}

fn of_file(file: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let of = RecordingArgs {
        from: args.from,
        channels: args.trace.channels.clone(),
        strict: args.strict,
        ..RecordingArgs::of(file)
    };
    let mut recording = of.open()?;
    let mut trace = args.trace.clone();
    trace.output = trace.output.of_recording(recording.trace());
    let known = recording.trace().filter(|info| info.monotonic_ns != 0);
    let clocks = known.map(|info| Clocks {
        monotonic: info.monotonic_ns,
        boottime: None,
        realtime: (info.realtime_ns != 0).then_some(info.realtime_ns),
    });
    let shown = &trace.output;
    let mut inputs = of.inputs();
    inputs.extend(shown.phases.as_deref());
    let options = shown.pipeline_options(args.strict, None)?;
    let out = open(shown.output.as_deref(), false, &inputs)?;
    let sink = sink(&trace, out, clocks);
    // A submission waits for the time stamps behind it, where there are any.
    let mut pipeline = Pipeline::new(options, vec![Box::new(sink)])
        .with_gpu_time()
        .in_time_order();
    recording.play(&mut pipeline)?;
    let ledger = conclude(&trace, pipeline)?;
    Ok(ExitCode::from(ledger.exit_status()))
}

#[cfg(not(feature = "trap"))]
fn live(_args: Args) -> anyhow::Result<ExitCode> {
    bail!(
        "live tracing is not built into this program; captures are read (nvcap export perfetto FILE -o trace.pftrace)"
    )
}

#[cfg(feature = "trap")]
fn live(args: Args) -> anyhow::Result<ExitCode> {
    let mut trace = args.trace;
    trace.gpu_time = true;
    trace.output.has_gpu_time = true;
    trace.output.has_stacks = trace.stacks.is_some() && trace.how != trace::HowArg::Observe;
    let given = trace.clone();
    let command = !trace.command.is_empty();
    trace::run_into(
        trace,
        |args| {
            let mut inputs = Vec::from_iter(args.channels.as_deref());
            inputs.extend(args.output.phases.as_deref());
            let options = args
                .output
                .pipeline_options(false, target::running_driver())?;
            let out = open(args.output.output.as_deref(), command, &inputs)?;
            let sink = sink(args, out, Some(clocks()));
            Ok(Pipeline::new(options, vec![Box::new(sink)]))
        },
        |pipeline| conclude(&given, pipeline),
    )
}

/// What this machine's clocks show now.
#[cfg(feature = "trap")]
fn clocks() -> Clocks {
    use crate::source::clock;

    Clocks {
        monotonic: clock::now(),
        boottime: clock::read(libc::CLOCK_BOOTTIME),
        realtime: clock::read(libc::CLOCK_REALTIME),
    }
}
