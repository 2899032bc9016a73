//! The command line: one file a command, no logic beyond wiring. What all commands share is here: the options
//! that say what is shown and where it goes, and the way a command ends.

mod channels;
mod decode;
mod doctor;
mod dump;
mod explain;
mod ioctls;
#[cfg(feature = "trap")]
mod logger;
mod maps;
mod target;
mod trace;
mod whole;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use nvcap::ledger::{Ledger, STATUS_ERROR, STATUS_USAGE};
use nvcap::output::filter::Filter;
use nvcap::output::phases::Phases;
use nvcap::output::redact::Redactor;
use nvcap::output::stats::{Form, Stats};
use nvcap::output::streams::Streams;
use nvcap::output::style::Color;
use nvcap::output::text::{Clock, Text};
use nvcap::output::writer::Output;
use nvcap::output::{Detail, Sink, json, text};
use nvcap::pipeline::{Options, Pipeline};

const EXAMPLES: &str = "\
Examples:
  sudo nvcap -- python train.py            trace a command from its first submission
  sudo nvcap -p 4711                       trace a running process until it ends, or Ctrl-C
  nvcap --how observe -- python train.py   the same without a trap: as fast as untraced, no root
  sudo nvcap -e op=launch -- ./vadd        kernel launches alone
  sudo nvcap --json -o out.jsonl -p 4711   one JSON object a line into a file
  sudo nvcap -q --duration 10 -p 4711      ten seconds; only the ledger
  sudo nvcap ioctls -- ./vadd              what a command asks of the driver
  sudo nvcap channels -p 4711              a running process's channels
  sudo nvcap dump -p 4711                  what a hung or slow process waits for, with nothing prepared
  nvcap decode --from orc run.orc.xz -s    statistics of a capture made elsewhere
  nvcap explain c8b5 0300 182              what a method write means

Exit status:
  0  complete: nothing is known to be missing
  1  error: the trace could not be made
  2  usage: the command line is not understood
  3  something was lost: the ledger says what and how much
With --exit-with-child the traced command's own status is passed on where the trace is complete.

Environment:
  NVCAP_LOG=debug      nvcap's own diagnostics on standard error (error, warn, info, debug, trace)
  NVCAP_NO_OWN_PUT=1   always read GP_PUT from video memory, never from the process's own copy of it
  NVCAP_NO_BPF_LOOP=1  the BPF programs for kernels before 5.17";

/// Shows the command streams that NVIDIA's userspace driver submits to the GPU, live and complete.
///
/// Without a subcommand it traces: a command given after `--`, or running processes named with -p.
#[derive(Parser, Debug)]
#[command(
    name = "nvcap",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_help = EXAMPLES,
    override_usage = "nvcap [OPTIONS] -- COMMAND [ARGS]...\n       nvcap [OPTIONS] -p PID\n       nvcap <SUBCOMMAND>"
)]
struct Cli {
    #[command(flatten)]
    trace: trace::Args,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Decode a capture instead of a live process
    Decode(decode::Args),
    /// Show every ioctl on the driver's files, named and with its fields
    Ioctls(ioctls::Args),
    /// Show the channels of a process: token, engine, ring, how far it is
    #[command(after_help = channels::EXAMPLES)]
    Channels(whole::Args),
    /// Look once at a hung or slow process: what its channels are at, what they wait for, their last submissions
    Dump(dump::Args),
    /// Show a process's mappings of the driver's files, explained
    #[command(after_help = maps::EXAMPLES)]
    Maps(whole::Args),
    /// Say what a method write, a QMD, a control command or a status means
    Explain(explain::Args),
    /// Say what this machine allows: discovery ways, breakpoints, rights, and why not
    Doctor(doctor::Args),
}

/// What is shown and where it goes: the same for every command that shows events.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Show method writes with their fields; twice: ring entries and raw words too
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,

    /// One JSON object a line instead of text (docs/output.md has the schema)
    #[arg(long)]
    pub json: bool,

    /// Write to FILE instead of standard output; it is made readable by its owner alone
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Show only the ledger
    #[arg(short, long)]
    pub quiet: bool,

    /// Show only events that EXPR is true for
    ///
    /// Comparisons of a field and a value, joined by && and ||, negated by !, grouped by parentheses.
    /// Operators: = != < <= > >=, and ~ !~ for patterns with * and ?. Numbers are decimal or 0x, with K, M or G
    /// for powers of 1024; `a,b` after = means either. `nvcap explain filter` lists the fields.
    ///
    /// Examples: op=launch, 'op=copy && bytes>1M', channel=0x10012, method=SEND_PCAS_A, 'grid.x>1 && kind=user'.
    /// The ledger counts everything whatever EXPR says.
    #[arg(short = 'e', long = "filter", value_name = "EXPR", value_parser = parse_filter)]
    pub filter: Option<Filter>,

    /// Show sums at the end instead of events; with -v method writes too
    #[arg(short, long, conflicts_with = "quiet")]
    pub stats: bool,

    /// When to colour: NO_COLOR is heeded by auto
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub color: When,

    /// How text shows times, in seconds
    #[arg(long, value_name = "CLOCK", value_enum, default_value_t)]
    pub time: TimeArg,

    /// Replace users' data (inline bytes, kernel arguments, fill patterns, raw words) by length and a short hash
    #[arg(long)]
    pub redact: bool,

    /// After the ledger, say which channels were shared, by whom, and what stood behind another's wait
    #[arg(long)]
    pub explain_streams: bool,

    /// Label events by the time ranges in FILE, one `PHASE name t0 t1` a line, ns of CLOCK_MONOTONIC
    #[arg(long, value_name = "FILE")]
    pub phases: Option<PathBuf>,
}

/// `--color`.
#[derive(ValueEnum, Clone, Copy, Debug, Default)]
pub enum When {
    /// On a terminal
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// `--time`.
#[derive(ValueEnum, Clone, Copy, Debug, Default)]
pub enum TimeArg {
    /// Since the first line
    #[default]
    Relative,
    /// CLOCK_MONOTONIC of the traced machine
    Monotonic,
    /// Since the line before
    Delta,
}

fn parse_filter(text: &str) -> Result<Filter, String> {
    Filter::parse(text).map_err(|e| e.to_string())
}

impl OutputArgs {
    fn detail(&self) -> Detail {
        let shown = Detail::from_count(self.verbose);
        // A filter that asks for methods shows the methods it matches, -v or not.
        self.filter
            .as_ref()
            .map_or(shown, |f| shown.max(f.detail()))
    }

    fn color(&self) -> Color {
        match self.color {
            When::Auto => Color::Auto,
            When::Always => Color::Always,
            When::Never => Color::Never,
        }
    }

    fn sink(&self) -> anyhow::Result<Box<dyn Sink>> {
        let out = target::open(self.output.as_deref())?;
        let redact = self.redact.then(Redactor::default);
        Ok(match (self.stats, self.json) {
            (true, json) => {
                let form = if json {
                    Form::Json
                } else {
                    Form::Text {
                        color: self.color().enabled(out.is_terminal()),
                    }
                };
                Box::new(Stats::new(out, form, self.detail(), self.filter.is_some()))
            }
            (false, true) => Box::new(json::Json::new(
                out,
                json::Options {
                    detail: self.detail(),
                    quiet: self.quiet,
                    redact,
                },
            )),
            (false, false) => Box::new(Text::new(
                out,
                text::Options {
                    detail: self.detail(),
                    verbose: self.verbose > 0,
                    quiet: self.quiet,
                    color: self.color(),
                    clock: match self.time {
                        TimeArg::Relative => Clock::Relative,
                        TimeArg::Monotonic => Clock::Monotonic,
                        TimeArg::Delta => Clock::Delta,
                    },
                    redact,
                },
            )),
        })
    }

    /// The section of `--explain-streams`: into the same output, which its own sink has opened and, by the time of
    /// the ledger, written out.
    fn streams(&self) -> anyhow::Result<Box<dyn Sink>> {
        let out = match &self.output {
            None => Output::stdout(),
            Some(path) => {
                let file = std::fs::OpenOptions::new().append(true).open(path);
                let file =
                    file.with_context(|| format!("cannot write to {} twice", path.display()))?;
                Output::to(Box::new(file))
            }
        };
        Ok(Box::new(if self.json {
            Streams::json(out)
        } else {
            Streams::text(out)
        }))
    }

    /// The pipeline that these options ask for, its output file opened.
    ///
    /// # Errors
    /// When a file cannot be read, understood or made.
    pub fn pipeline(&self) -> anyhow::Result<Pipeline> {
        self.pipeline_of(false)
    }

    /// As [`OutputArgs::pipeline`]; `strict` ends at the first thing that is not whole.
    ///
    /// # Errors
    /// As there.
    pub fn pipeline_of(&self, strict: bool) -> anyhow::Result<Pipeline> {
        let phases = match &self.phases {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read the phases in {}", path.display()))?;
                let phases = Phases::parse(&text).with_context(|| {
                    format!("cannot understand the phases in {}", path.display())
                })?;
                Some(phases)
            }
        };
        let options = Options {
            filter: self.filter.clone(),
            phases,
            strict,
        };
        let mut sinks = vec![self.sink()?];
        if self.explain_streams {
            sinks.push(self.streams()?);
        }
        Ok(Pipeline::new(options, sinks))
    }

    /// Ends a command: every sink shows the ledger, and its exit status becomes the command's.
    ///
    /// # Errors
    /// When the output could not be written.
    pub fn conclude(&self, pipeline: Pipeline) -> anyhow::Result<Ledger> {
        let ledger = pipeline.finish()?;
        // What went to a file is not before anybody's eyes.
        if self.output.is_some() {
            eprintln!("nvcap: {}", nvcap::output::ledger::verdict(&ledger));
        }
        Ok(ledger)
    }
}

/// Whether an error is that the reader of our output went away, which ends a command quietly.
fn reader_went_away(e: &anyhow::Error) -> bool {
    e.chain()
        .filter_map(|c| c.downcast_ref::<io::Error>())
        .any(|c| c.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs the command line.
pub fn main() -> ExitCode {
    #[cfg(feature = "trap")]
    logger::init();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no errors.
            let status = if e.use_stderr() { STATUS_USAGE } else { 0 };
            let _ = e.print();
            return ExitCode::from(status);
        }
    };
    let result = match cli.command {
        None => trace::run(cli.trace),
        Some(Command::Decode(args)) => decode::run(&args),
        Some(Command::Ioctls(args)) => ioctls::run(&args),
        Some(Command::Channels(args)) => channels::run(&args),
        Some(Command::Dump(args)) => dump::run(&args),
        Some(Command::Maps(args)) => maps::run(&args),
        Some(Command::Explain(args)) => explain::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
    };
    match result {
        Ok(status) => status,
        Err(e) if reader_went_away(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nvcap: {e:#}");
            ExitCode::from(STATUS_ERROR)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
