//! `nvcap ioctls`: what a process asks of the driver, call by call.

use std::cell::RefCell;
use std::process::ExitCode;

use clap::ArgAction;
use nvcap::ledger::Ledger;
use nvcap::output::Sink as _;
use nvcap::output::ioctls::{Ioctls, Options, Totals};
use nvcap::output::style::Color;
use nvcap::record::{Lost, Record};

use super::When;
use super::target::{Show, Target, usage};

const EXAMPLES: &str = "\
Examples:
  sudo nvcap ioctls -- ./vadd                        every ioctl of a command, and its mappings
  sudo nvcap ioctls -p 4711 --duration 10            those of a running process, for ten seconds
  sudo nvcap ioctls --json -o calls.jsonl -- ./vadd  one JSON object a line
  nvcap ioctls --from ioctl-log run.log.gz           those of a log

No breakpoint is set: submissions cost what they always cost.
Exit status: 0 complete, 1 error, 2 usage, 3 something was lost (said on standard error).";

/// What to show.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show fields that are zero too; twice: the raw bytes of argument and parameters too
    #[arg(short, long, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,

    /// When to colour: NO_COLOR is heeded by auto
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        help_heading = "Output"
    )]
    pub color: When,

    /// Where it goes.
    #[command(flatten)]
    pub show: Show,

    /// What to look at.
    #[command(flatten)]
    pub target: Target,
}

/// Shows them.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.target.is_named("ioctls") {
        return Ok(usage());
    }
    let options = Options {
        zeros: args.verbose > 0,
        raw: args.verbose > 1,
        color: match args.color {
            When::Auto => Color::Auto,
            When::Always => Color::Always,
            When::Never => Color::Never,
        },
        driver_version: args.target.version(),
        array: false,
    };
    let out = args.show.open()?;
    let sink = if args.show.json {
        Ioctls::json(out, options)
    } else {
        Ioctls::text(out, options)
    };
    let (sink, mut ledger) = (RefCell::new(sink), Ledger::new());
    args.target.records(
        false,
        |record| {
            if !concerns_calls(&record) {
                return Ok(());
            }
            ledger.record(&record);
            sink.borrow_mut().record(&record)
        },
        || sink.borrow_mut().flush(),
    )?;
    let mut sink = sink.into_inner();
    sink.conclude()?;
    ledger.add_unshown(sink.unshown());
    eprintln!("nvcap: {}", sums(sink.totals()));
    if !ledger.is_complete() {
        eprintln!("nvcap: {}", nvcap::output::ledger::verdict(&ledger));
    }
    Ok(ExitCode::from(ledger.exit_status()))
}

/// What is lost of rings is not missing here.
fn concerns_calls(record: &Record) -> bool {
    match record {
        Record::Submission(_) | Record::Channel(_) => false,
        Record::Loss(loss) => matches!(loss.what, Lost::Records { .. } | Lost::Blind { .. }),
        _ => true,
    }
}

fn sums(t: Totals) -> String {
    format!(
        "{} ioctls ({} failed), of them {} control calls and {} allocations; {} mappings",
        t.ioctls, t.failed, t.controls, t.allocations, t.mappings
    )
}
