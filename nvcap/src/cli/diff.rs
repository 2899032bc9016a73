//! `nvcap diff`: two recordings of one program, compared.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

use nvcap_decode::ledger::{Ledger, STATUS_LOST};
use nvcap_show::diff::{self, Collect, RecordingLines, Shown, Words};
use nvcap_show::output::filter::Filter;
use nvcap_show::output::message::tell;
use nvcap_show::output::{json, ledger};
use nvcap_show::pipeline::Pipeline;

use super::output_args::{OutputArgs, When, parse_filter};
use super::recording::{Format, INTERRUPTED, Played, RecordingArgs};
use super::usage::bail_usage;
use super::values::{Force, OUTPUT, SHOWN};
use super::{overwrite, target};

const EXAMPLES: &str = "\
Examples:
  nvcap diff cuda12.orc.xz cuda13.orc.xz              what another CUDA version submits
  nvcap diff -q before.orc after.orc                  counts alone
  nvcap diff -v before.orc after.orc                  all lines and counts that differ
  nvcap diff -e op=launch,copy before.orc after.orc   of some operations
  nvcap diff -U0 before.orc after.orc                 changes without the lines around them
  nvcap diff before.orc after.orc && echo same        in a script

Channels are paired by engine, in the order of their first use, and their operations aligned.
Handles, payloads, users' data and the values of addresses are not compared; but where operations
of one recording have the same address, those of the other must, too (--any-data: need not).

Exit status, as of diff: 0 no difference, 1 differences, 2 trouble (usage, a file that cannot be
read); and 3 no difference in what is there, but one of them lacks something.";

/// The exit status where the recordings differ, as diff(1) has it.
const DIFFERENT: u8 = 1;
/// Status of every error, as `diff` has it.
pub(super) const TROUBLE: u8 = 2;

/// Two recordings and how they are compared.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The first recording, plain or compressed by gzip, xz or zstd; - is standard input
    pub first: PathBuf,

    /// The second recording
    pub second: PathBuf,

    /// Format of both; by default their content tells
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub from: Option<Format>,

    /// Show N unchanged lines before and after a change
    #[arg(
        short = 'U',
        long = "unified",
        value_name = "N",
        default_value_t = 3,
        help_heading = SHOWN
    )]
    pub unified: usize,

    /// Show only the counts of differences, no lines
    #[arg(short = 'q', long, help_heading = SHOWN)]
    pub brief: bool,

    /// Show all counts and lines that differ, not the greatest differences and the first lines alone
    #[arg(short = 'v', long, help_heading = SHOWN)]
    pub verbose: bool,

    /// Compare only events that EXPR is true for (nvcap explain filter)
    #[arg(short = 'e', long = "filter", value_name = "EXPR", value_parser = parse_filter, help_heading = SHOWN)]
    pub filter: Option<Filter>,

    /// Ignore which of the program's buffers an operation uses
    #[arg(long, help_heading = SHOWN)]
    pub any_data: bool,

    /// Write one JSON object instead of text (docs/diff.md)
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    /// Write to FILE, readable by its owner alone; - is standard output
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,

    /// Option that has FILE replaced.
    #[command(flatten, next_help_heading = OUTPUT)]
    pub force: Force,

    /// When text is coloured
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        help_heading = OUTPUT
    )]
    pub color: When,
}

impl Args {
    /// Returns the reason why the comparison must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let inputs: [&Path; 2] = [&self.first, &self.second];
        overwrite::refusal(self.output.as_deref(), self.force.force, &inputs)
    }
}

/// Compares.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    compare(args).map(ExitCode::from)
}

fn compare(args: &Args) -> anyhow::Result<u8> {
    let inputs: [&Path; 2] = [&args.first, &args.second];
    if inputs.iter().all(|file| file.as_os_str() == "-") {
        bail_usage!("only one of the two can be standard input: write the other to a file first");
    }
    let mut words = Words::default();
    let (a, ledger_a) = read(args, &args.first, &mut words)?;
    let (b, ledger_b) = read(args, &args.second, &mut words)?;
    let options = diff::Options {
        any_data: args.any_data,
        context: args.unified,
    };
    let found = diff::compare(&a, &b, options);
    let names = inputs.map(|file| file.display().to_string());
    let shown = Shown {
        a: (&names[0], &a),
        b: (&names[1], &b),
        words: &words,
        brief: args.brief,
        all: args.verbose,
    };
    let mut out = target::open(args.output.as_deref(), args.force.force, false, &inputs)?;
    let verdicts = [&ledger_a, &ledger_b].map(ledger::verdict);
    if args.json {
        let object = diff::object(&found, shown, [&verdicts[0], &verdicts[1]]);
        json::write(out.object(), &object);
        out.object().push(b'\n');
    } else {
        let when = OutputArgs {
            color: args.color,
            ..OutputArgs::default()
        };
        let color = when.color().enabled(out.is_terminal());
        diff::text(out.object(), color, &found, shown);
    }
    match target::written(&mut out) {
        // The reader closed the pipe, as in `nvcap diff A B | head`: the exit status is still that of the comparison.
        Err(e) if e.chain().any(is_gone) => {}
        written => written?,
    }
    for ((name, ledger), verdict) in names.iter().zip([&ledger_a, &ledger_b]).zip(&verdicts) {
        if !ledger.is_complete() {
            tell(format_args!("{name}: {verdict}"));
        }
    }
    let is_whole = found.is_whole() && ledger_a.is_complete() && ledger_b.is_complete();
    Ok(match (found.differs(), is_whole) {
        (true, _) => DIFFERENT,
        (false, false) => STATUS_LOST,
        (false, true) => 0,
    })
}

/// Tells whether the reader of the output went away.
fn is_gone(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Reads one of the two recordings: its lines, which are compared, and its ledger.
fn read(args: &Args, file: &Path, words: &mut Words) -> anyhow::Result<(RecordingLines, Ledger)> {
    let recording = RecordingArgs {
        from: args.from,
        ..RecordingArgs::of(file)
    };
    let mut recording = recording.open()?;
    let shown = OutputArgs {
        filter: args.filter.clone(),
        ..OutputArgs::default()
    };
    let shown = shown.of_recording(recording.trace());
    let options = shown.pipeline_options(false, None)?;
    let mut collect = Collect::new(words, args.filter.is_some());
    let mut pipeline = Pipeline::new(options, vec![Box::new(&mut collect)]);
    let recording = recording.quiet_until_the_end(args.output.as_deref());
    let played = recording.play(&mut pipeline)?;
    let ledger = shown.finish(pipeline)?.ledger;
    if played == Played::Interrupted {
        bail!(
            "{}: {INTERRUPTED}, and nothing was compared",
            file.display()
        );
    }
    Ok((collect.recording(), ledger))
}
