//! `nvcap diff`: comparison of two recordings of one program, or of a recording with another profiler's trace (`profiles`).

mod place;
mod profiles;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nvcap_decode::ledger::{Ledger, STATUS_LOST};
use nvcap_show::diff::{self, Collect, RecordingLines, Shown, Words};
use nvcap_show::output::filter::Filter;
use nvcap_show::output::ledger;
use nvcap_show::output::message::tell;

use super::output_args::{When, parse_filter};
use super::overwrite;
use super::profile::{self, Input};
use super::recording::{Format, Recording, RecordingArgs};
use super::usage::bail_usage;
use super::values::{Force, OUTPUT, SHOWN};
use place::Place;

const EXAMPLES: &str = "\
Examples:
  nvcap diff cuda12.orc.xz cuda13.orc.xz              what another CUDA version submits
  nvcap diff -q before.orc after.orc                  counts alone
  nvcap diff -v before.orc after.orc                  all lines and counts that differ
  nvcap diff -e op=launch,copy before.orc after.orc   of some operations
  nvcap diff -U0 before.orc after.orc                 changes without the lines around them
  nvcap diff before.orc after.orc && echo same        in a script
  nvcap diff yesterday.json.gz run.pcapng             torch.profiler's trace and a recording
  nvcap diff yesterday.sqlite run.pcapng              that of nsys export --type sqlite

Channels are paired by engine, in the order of their first use, and their operations aligned.
Handles, payloads, users' data and the values of addresses are not compared; but where operations
of one recording have the same address, those of the other must, too (--any-data: need not).
Where one of the two is a trace of torch.profiler or nsys, kernels, copies and memsets are
compared by name: their number, their time, their bytes. The time alone is no difference.

Exit status, as of diff: 0 no difference, 1 differences, 2 trouble (usage, a file that cannot be
read); and 3 no difference in what is there, but one of them lacks something.";

/// Exit status if the recordings differ, as in diff(1).
const DIFFERENT: u8 = 1;
/// Exit status of every error, as in diff(1).
pub(super) const TROUBLE: u8 = 2;

/// Two recordings, and the way in which they are compared.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The first recording, or a trace of torch.profiler or nsys (SQLite), plain or compressed by gzip, xz or zstd; - is standard input
    pub first: PathBuf,

    /// The second recording or trace
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

    /// Show all counts and lines that differ, not only the greatest differences and the first lines
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

    /// Option by which FILE is replaced.
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

/// Compares the two inputs.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    compare(args).map(ExitCode::from)
}

fn compare(args: &Args) -> anyhow::Result<u8> {
    let inputs: [&Path; 2] = [&args.first, &args.second];
    if inputs.iter().all(|file| file.as_os_str() == "-") {
        bail_usage!("only one of the two can be standard input: write the other to a file first");
    }
    let files = inputs.map(|file| RecordingArgs {
        from: args.from,
        ..RecordingArgs::of(file)
    });
    let place = Place {
        inputs,
        output: args.output.as_deref(),
        force: args.force.force,
        json: args.json,
        color: args.color,
    };
    let (a, b) = match (profile::open(&files[0])?, profile::open(&files[1])?) {
        (Input::Recording(a), Input::Recording(b)) => (*a, *b),
        (a, b) => return of_profiles(args, &place, [a, b]),
    };
    let mut words = Words::default();
    let (a, ledger_a) = read(args, &place, (&args.first, a), &mut words)?;
    let (b, ledger_b) = read(args, &place, (&args.second, b), &mut words)?;
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
    let verdicts = [&ledger_a, &ledger_b].map(ledger::verdict);
    place.write(
        || diff::object(&found, shown, [&verdicts[0], &verdicts[1]]),
        |out, color| diff::text(out, color, &found, shown),
    )?;
    for ((name, ledger), verdict) in names.iter().zip([&ledger_a, &ledger_b]).zip(&verdicts) {
        if !ledger.is_complete() {
            tell(format_args!("{name}: {verdict}"));
        }
    }
    let is_whole = found.is_whole() && ledger_a.is_complete() && ledger_b.is_complete();
    Ok(status(found.differs(), is_whole))
}

/// Returns the exit status of a comparison. `is_whole` means that everything was present and was compared.
fn status(differs: bool, is_whole: bool) -> u8 {
    match (differs, is_whole) {
        (true, _) => DIFFERENT,
        (false, false) => STATUS_LOST,
        (false, true) => 0,
    }
}

/// Compares two inputs of which at least one is another profiler's trace.
fn of_profiles(args: &Args, place: &Place<'_>, inputs: [Input<'_>; 2]) -> anyhow::Result<u8> {
    if args.filter.is_some() || args.any_data {
        bail_usage!(
            "-e and --any-data are of two recordings, and one of these is another profiler's trace: leave them out"
        );
    }
    let (differs, is_whole) = profiles::compare(place, args.verbose, inputs)?;
    Ok(status(differs, is_whole))
}

/// Reads one of the two recordings: its lines, which are compared, and its ledger.
fn read(
    args: &Args,
    place: &Place<'_>,
    (file, recording): (&Path, Recording<'_>),
    words: &mut Words,
) -> anyhow::Result<(RecordingLines, Ledger)> {
    let mut collect = Collect::new(words, args.filter.is_some());
    let filter = args.filter.clone();
    let ledger = place.play(file, recording, filter, Box::new(&mut collect))?;
    Ok((collect.recording(), ledger))
}
