//! `nvcap ioctls`: the calls that a process makes to the driver, one by one.

use std::cell::RefCell;
use std::process::ExitCode;

use clap::ArgAction;
use nvcap_decode::record::{Lost, Record};
use nvcap_show::output::ioctls::{IoctlOptions, Ioctls, Totals};
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural;
use nvcap_show::output::style::Color;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

use super::output_args::When;
use super::target::{Show, Target, tell_of_newer, usage};
use super::values::{OUTPUT, SHOWN};

const EXAMPLES: &str = "\
Examples:
  sudo nvcap ioctls -- ./vadd                        every ioctl of a command, and its mappings
  sudo nvcap ioctls -p 4711 --duration 10            those of a running process, for ten seconds
  sudo nvcap ioctls --json -o calls.jsonl -- ./vadd  one JSON object a line
  nvcap ioctls nvcap.pcapng                          those of a recording
  nvcap ioctls run.log.gz                            those of a log

No breakpoint is set: submissions cost what they always cost.
Exit status: 0 complete, 1 error, 2 usage, 3 something was lost (said on standard error).";

/// Arguments of `nvcap ioctls`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Target to look at.
    #[command(flatten)]
    pub target: Target,

    /// Show more: -v fields that are zero too, -vv the raw bytes of argument and parameters too
    #[arg(short, long, action = ArgAction::Count, help_heading = SHOWN)]
    pub verbose: u8,

    /// When text is coloured
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        help_heading = OUTPUT
    )]
    pub color: When,

    /// Form and place of the output.
    #[command(flatten)]
    pub show: Show,
}

/// Shows the calls.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.target.is_named("ioctls") {
        return Ok(usage());
    }
    let options = IoctlOptions {
        zeros: args.verbose > 0,
        raw: args.verbose > 1,
        color: match args.color {
            When::Auto => Color::Auto,
            When::Always => Color::Always,
            When::Never => Color::Never,
        },
        array: false,
    };
    let out = args.show.open(&args.target)?;
    let mut sink = if args.show.json {
        Ioctls::json(out, options)
    } else {
        Ioctls::text(out, options)
    };
    let mut target = args.target.open();
    let file = args.show.output.as_deref();
    if file.is_some_and(|file| file.as_os_str() != "-") {
        target = target.quiet_until_the_end(file);
    }
    let options = PipelineOptions {
        driver_version: target.version(),
        ..PipelineOptions::default()
    };
    let mut pipeline = Pipeline::new(options, vec![Box::new(&mut sink)]);
    if target.is_trace() {
        // Calls of a live process are recorded at their return, and shown by the time of their entry.
        pipeline = pipeline.in_time_order();
    }
    let pipeline = RefCell::new(pipeline);
    let traced = target.records(
        false,
        |record| match concerns_calls(&record) {
            true => pipeline.borrow_mut().record(record),
            false => Ok(()),
        },
        || pipeline.borrow_mut().flush(),
    );
    let mut pipeline = pipeline.into_inner();
    // Records before an error are shown, too.
    let flushed = pipeline.flush();
    traced?;
    flushed?;
    tell_of_newer(pipeline.model().version());
    let ledger = pipeline.finish()?;
    tell(format_args!("{}", sums(sink.totals())));
    if let Some(missing) = nvcap_show::output::ledger::missing(&ledger) {
        tell(missing);
    }
    Ok(ExitCode::from(ledger.exit_status()))
}

/// Tells whether a record matters here: ioctls, mappings, and losses of these. Lost ring entries do not make this output incomplete.
fn concerns_calls(record: &Record) -> bool {
    match record {
        Record::Submission(_)
        | Record::Channel(_)
        | Record::Gpu(_)
        | Record::QmdCopy(_)
        | Record::Kernel(_)
        | Record::Stamps(_)
        | Record::Fault(_)
        | Record::Samples(_)
        | Record::Switches(_)
        | Record::Snapshot(_) => false,
        Record::Loss(loss) => matches!(loss.what, Lost::Records { .. } | Lost::Untraced { .. }),
        _ => true,
    }
}

fn sums(t: Totals) -> String {
    format!(
        "{} ({} failed), of them {} and {}; {}",
        plural(t.ioctls, "ioctl"),
        t.failed,
        plural(t.controls, "control call"),
        plural(t.allocations, "allocation"),
        plural(t.mappings, "mapping")
    )
}
