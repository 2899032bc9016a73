//! `nvcap stacks`: the places in the program from which the GPU's work comes, as sums over stacks.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use nvcap_decode::ledger::{Ledger, STATUS_LOST};
use nvcap_recording::file::kind::{self, Kind};
use nvcap_recording::file::packed;
use nvcap_show::output::fold::{Folded, Folder, Weight, write_out};
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural;
use nvcap_show::output::style::Plain;
use nvcap_show::pipeline::Pipeline;

use super::progress::{self, Reading};
use super::recording::{INTERRUPTED, RecordingArgs, no_capture};
use super::usage::bail_usage;
use super::way_options::HowArg;
use super::{file_or_live, target, trace, trace_run, values};

const EXAMPLES: &str = "\
Examples:
  sudo nvcap stacks -o out.folded -- python train.py    by submissions
  sudo nvcap stacks -p 4711 --duration 10 | inferno-flamegraph > gpu.svg
  sudo nvcap stacks --by bytes -p 4711 --duration 10    by bytes that are copied
  sudo nvcap stacks --leaf -e op=launch -- ./vadd       launches alone, the kernel on top
  sudo nvcap stacks --stacks=100 -p 4711             one doorbell in 100, which costs less
  nvcap stacks nvcap.pcapng                             of what nvcap record --stacks has written
  nvcap stacks trace.jsonl                              of what nvcap --stacks --json has written

Each line is a stack and its sum, as flamegraph.pl, inferno and speedscope read them.
docs/stacks.md says what the frames are, and what it costs.";

/// Arguments of `nvcap stacks`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(super) struct Args {
    /// Quantity that is summed up
    #[arg(
        long,
        value_name = "WHAT",
        value_enum,
        default_value_t,
        help_heading = values::SHOWN
    )]
    pub by: By,

    /// End each stack with the operation (a copy, a launch with the kernel's name, ...), and count operations
    #[arg(long, help_heading = values::SHOWN)]
    pub leaf: bool,

    /// A recording with stacks, or JSON output of nvcap --stacks, to read instead of a live process; - is standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "command", "all"], help_heading = "Target")]
    pub file: Option<PathBuf>,

    /// Target and options of the trace.
    #[command(flatten)]
    pub trace: trace::Args,
}

/// Values of `--by`.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    /// Submissions, nearly the number of doorbell writes
    #[default]
    Submissions,
    /// Kernels that the program launched
    Launches,
    /// Bytes that copies, fills and inline writes move
    Bytes,
}

/// Options of a trace that determine how events are shown; here none are shown.
const SHOWS_EVENTS: [&str; 9] = [
    "history",
    "verbose",
    "json",
    "quiet",
    "stats",
    "color",
    "time",
    "redact",
    "explain_streams",
];

/// Returns the command for clap: without the options that have no meaning here and, with a file, without those of a live target.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let command = file_or_live::refusing(command, "file", trace::live_options());
    let command = values::without(command, &SHOWS_EVENTS);
    values::saying(
        command,
        &[(
            "stacks",
            "With =N: take the stack of one in N doorbells, drawn by lot, which costs less; sums are of the sample",
        )],
    )
}

/// Sums up the stacks.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shown = &args.trace.output;
    let (verbose, asked) = (shown.verbose > 0, shown.json || shown.quiet || shown.stats);
    if verbose || asked || shown.redact || shown.explain_streams {
        bail_usage!(
            "nvcap stacks shows sums over stacks alone: for events with their stacks trace with --stacks (nvcap --stacks -p PID)"
        );
    }
    let weight = match args.by {
        By::Submissions => Weight::Submissions,
        By::Launches => Weight::Launches,
        By::Bytes => Weight::Bytes,
    };
    let folder = Folder::new(weight, args.leaf).full_names(args.trace.output.full_names);
    match &args.file {
        Some(file) => of_file(file, &args, folder),
        None => live(args, folder),
    }
}

/// Sums up the stacks of a recording.
fn of_recording(
    file: &Path,
    opened: (Box<dyn Read>, Reading),
    args: &Args,
    mut folder: Folder,
) -> anyhow::Result<ExitCode> {
    let recording = RecordingArgs::of(file);
    let mut recording = recording.of_reader(opened, false)?;
    if !recording.trace().is_some_and(|info| info.stacks) {
        bail!(
            "{} has no stacks: they are recorded with --stacks (nvcap record --stacks -p PID)",
            file.display()
        );
    }
    let output = args.trace.output.of_recording(recording.trace());
    let mut out = target::open(output.output.as_deref(), output.force, false, &[file])?;
    let options = output.pipeline_options(false, None)?;
    let sink = Folded::new(&mut folder);
    let mut pipeline = Pipeline::new(options, vec![Box::new(sink)]);
    recording
        .quiet_until_the_end(output.output.as_deref())
        .play(&mut pipeline)?;
    let ledger = conclude(pipeline)?;
    write_out(&folder, &mut out)?;
    Ok(ExitCode::from(ledger.exit_status()))
}

fn of_file(file: &Path, args: &Args, mut folder: Folder) -> anyhow::Result<ExitCode> {
    let name = file.display();
    let opened =
        progress::open(file).and_then(|(reader, reading)| Ok((packed::unpacked(reader)?, reading)));
    let (reader, mut reading) = opened.with_context(|| format!("cannot read {name}"))?;
    let (kind, reader) = kind::of(reader);
    if kind == Kind::Recording {
        return of_recording(file, (reader, reading), args, folder);
    }
    if kind == Kind::Empty {
        bail!("{}", no_capture(file, kind));
    }
    let mut other = 0;
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    let output = args.trace.output.output.as_deref();
    reading.show_for(output);
    reading.begin()?;
    while reading.goes_on() {
        line.clear();
        let read = lines.read_until(b'\n', &mut line);
        if read.with_context(|| format!("cannot read {name} to its end"))? == 0 {
            break;
        }
        other += u64::from(!folder.line(String::from_utf8_lossy(&line).trim()));
    }
    let whole = reading.is_whole();
    reading.end();
    if !whole {
        tell(format_args!("{name}: {INTERRUPTED}"));
    }
    if folder.stacks() == 0 {
        bail!(
            "{name} has no stacks: it must be the JSON output of a trace with them (nvcap --stacks --json -o FILE ...)"
        );
    }
    if other > 0 {
        tell(format_args!(
            "{name}: {} no JSON of nvcap's",
            match other {
                1 => "1 line is".to_owned(),
                n => format!("{n} lines are"),
            }
        ));
    }
    match folder.ledger() {
        Some((false, verdict)) => tell(format_args!("{name}: {}", Plain(verdict))),
        Some((true, _)) => {}
        None => tell(format_args!(
            "{name}: the trace has no ledger: it was cut, or goes on; the sums are of what is there"
        )),
    }
    let whole = whole && other == 0 && folder.ledger().is_some_and(|(complete, _)| complete);
    let mut out = target::open(output, args.trace.output.force, false, &[file])?;
    write_out(&folder, &mut out)?;
    Ok(ExitCode::from(if whole { 0 } else { STATUS_LOST }))
}

/// Ends the trace, and reports the verdict and the part of the submissions that the sums cover.
fn conclude(pipeline: Pipeline<'_>) -> anyhow::Result<Ledger> {
    let ledger = pipeline.finish()?;
    tell(format_args!(
        "{}",
        nvcap_show::output::ledger::verdict(&ledger)
    ));
    let (taken, lost) = ledger.stacks();
    if let Some((every, _)) = ledger.stack_sample() {
        tell(format_args!(
            "the sums are of a sample: one in {every} doorbells had its stack taken ({})",
            plural(taken, "stack")
        ));
    }
    if lost > 0 {
        tell(format_args!(
            "{lost} of {} lost: nvcap was behind",
            plural(taken + lost, "stack")
        ));
    }
    Ok(ledger)
}

fn live(args: Args, mut folder: Folder) -> anyhow::Result<ExitCode> {
    let mut trace = args.trace;
    trace.typed = "nvcap stacks".to_owned();
    trace.stacks = trace.stacks.or(Some(1));
    if trace.how == HowArg::Observe {
        bail_usage!(
            "stacks are taken in the trap: {}",
            match trace.all {
                true => "with -a add --how trap",
                false => "leave --how observe out",
            }
        );
    }
    let mut output = trace.output.clone();
    output.has_stacks = true;
    let command = trace.leaves_standard_output();
    let inputs = trace.channels.clone();
    // Opened before the command is started, so that a place that cannot be written to is reported at once.
    let mut out = target::open(
        output.output.as_deref(),
        output.force,
        command,
        &Vec::from_iter(inputs.as_deref()),
    )?;
    let status = trace_run::run_into(
        trace,
        |_| {
            let options = output.pipeline_options(false, target::running_driver())?;
            let sink = Folded::new(&mut folder);
            Ok(Pipeline::new(options, vec![Box::new(sink)]))
        },
        conclude,
    )?;
    write_out(&folder, &mut out)?;
    Ok(status)
}
