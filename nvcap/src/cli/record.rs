//! `nvcap record`: a trace recorded into a file, to be read later.

use std::path::Path;
use std::process::ExitCode;

use super::usage::bail_usage;
use super::{trace, trace_run, values};

const EXAMPLES: &str = "\
Examples:
  sudo nvcap record -- python train.py            into nvcap.pcapng
  sudo nvcap record -p 4711 --duration 10 -o run.pcapng
  sudo nvcap record --how observe --gpu-time -p 4711    the process runs at its full speed
  sudo nvcap record -a --rotate 10m --keep 3 --tables fleet    and tables by day and hour
  nvcap decode nvcap.pcapng                       what was recorded, as the live trace shows it
  sudo nvcap --record run.pcapng -p 4711          show the trace and record it, too

The file has the raw records: all of them, whatever a filter says. It can be opened by programs
that read pcapng. docs/recordings.md has more, docs/file-format.md the layout.";

/// File that is written without `-o`.
const DEFAULT: &str = "nvcap.pcapng";

/// Arguments of `nvcap record`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(super) struct Args {
    /// Target and options of the trace.
    #[command(flatten)]
    pub trace: trace::Args,
}

/// Options of a trace that have no meaning here, because nothing is shown.
const USELESS: [&str; 14] = [
    "exec_time",
    "verbose",
    "filter",
    "quiet",
    "stats",
    "color",
    "time",
    "json",
    "explain_streams",
    "full_names",
    "history",
    "phases",
    "chip",
    "record",
];

/// Returns the command for clap, without the options that have no meaning here.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let command = values::saying(
        command,
        &[
            (
                "output",
                "Write to FILE, readable by its owner alone; by default nvcap.pcapng; - is standard output: what COMMAND writes there goes to standard error then; where there is a recording, the new one gets a number (nvcap.2.pcapng) unless --force says to write over it",
            ),
            (
                "force",
                "Write over a recording that is there; without it the new one gets a name with a number: run.2.pcapng",
            ),
        ],
    );
    values::without(command, &USELESS)
}

impl Args {
    /// Returns the reason why the recording must not begin: the file is also read, written otherwise, or named twice. If a recording exists
    /// already, the new one gets a free name.
    pub(super) fn refusal(&self) -> Option<String> {
        let path = self.trace.output.output.as_deref();
        let path = path.unwrap_or(Path::new(DEFAULT));
        let rotates = self.trace.recording.rotate.is_some();
        let files = self.trace.files_beside(None);
        files
            .records("-o", Some(path).filter(|_| !rotates))
            .refusal()
    }
}

/// Records the trace.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut trace = args.trace;
    let shown = &trace.output;
    if shown.verbose > 0
        || shown.stats
        || shown.json
        || shown.explain_streams
        || shown.filter.is_some()
    {
        bail_usage!(
            "nvcap record shows nothing and leaves nothing out: to show the trace, too, type nvcap --record FILE ...; to show it later, \
             nvcap decode FILE"
        );
    }
    if trace.record.is_some() {
        bail_usage!("nvcap record writes one file: name it with -o");
    }
    trace.typed = "nvcap record".to_owned();
    trace.output.quiet = true;
    trace.recording.alone = true;
    trace.recording.tells = true;
    trace.record = Some(trace.output.output.take().unwrap_or(DEFAULT.into()));
    trace_run::run(trace)
}
