//! `nvcap record`: a trace into a file, to be read later.

use std::process::ExitCode;

use anyhow::bail;

use super::{recorder, trace, values};

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

/// The file that is written without `-o`, as perf does it.
const DEFAULT: &str = "nvcap.pcapng";

/// What is recorded.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(super) struct Args {
    /// What is traced.
    #[command(flatten)]
    pub trace: trace::Args,
}

/// Options of a trace that have no meaning here: nothing is shown.
const USELESS: [&str; 12] = [
    "verbose",
    "filter",
    "quiet",
    "stats",
    "color",
    "time",
    "json",
    "explain_streams",
    "full_names",
    "phases",
    "chip",
    "record",
];

/// The command as clap knows it: without options that have no meaning here.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let command = values::saying(
        command,
        &[(
            "output",
            "Write to FILE, readable by its owner alone; by default nvcap.pcapng, and what was there becomes nvcap.pcapng.old",
        )],
    );
    values::without(command, &USELESS)
}

/// Records.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut trace = args.trace;
    let shown = &trace.output;
    if shown.verbose > 0
        || shown.stats
        || shown.json
        || shown.explain_streams
        || shown.filter.is_some()
    {
        bail!(
            "nvcap record shows nothing and leaves nothing out: to show the trace, too, type nvcap --record FILE ...; to show it later, \
             nvcap decode FILE"
        );
    }
    if trace.record.is_some() {
        bail!("nvcap record writes one file: name it with -o");
    }
    trace.output.quiet = true;
    trace.recording.alone = true;
    trace.record = Some(match trace.output.output.take() {
        Some(path) => path,
        None => {
            keep_old(DEFAULT)?;
            DEFAULT.into()
        }
    });
    let path = trace.record.clone().unwrap_or_default();
    let is_one = trace.recording.rotate.is_none();
    let status = trace::run(trace)?;
    if is_one {
        recorder::tell_of(&path);
    }
    Ok(status)
}

/// Renames the file of an earlier recording to NAME.old, in the place of a still older one.
fn keep_old(name: &str) -> anyhow::Result<()> {
    let old = format!("{name}.old");
    match std::fs::rename(name, &old) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            bail!("cannot rename {name} to {old}: {e}; name another file with -o")
        }
        _ => Ok(()),
    }
}
