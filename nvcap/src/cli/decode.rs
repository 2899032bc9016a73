//! `nvcap decode`: a capture through the same pipeline as the live trace.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::pipeline::Pipeline;
use crate::record::{At, Loss, Lost, Record};
use crate::source::file::kind::{self, Kind};
use crate::source::file::orc::{Channels, Error, Orc};
use crate::source::file::packed;
use anyhow::{Context as _, bail};
use clap::ValueEnum;

use super::output_args::OutputArgs;
use crate::output::message::tell;

const EXAMPLES: &str = "\
Examples:
  nvcap decode run.orc.xz                        what the program asked for, one line each
  nvcap decode run.orc.xz -v                     every operation, with all details
  nvcap decode run.orc.xz --json -e op=launch    launches as JSON
  nvcap decode run.orc.xz --phases run.phases -e phase=vadd_4096x256
  nvcap decode run.orc.xz -s -v                  statistics with method writes
  xz -dc run.orc.xz | nvcap decode -             from standard input

Exit status: 0 complete, 1 error, 2 usage, 3 the capture lacks something, 5 complete, but not all
was understood (the ledger says what).";

/// A capture and how to show it.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Format of FILE; by default its content tells
    #[arg(long, value_name = "FORMAT", value_enum, help_heading = "Target")]
    pub from: Option<Format>,

    /// The capture, plain or compressed by gzip, xz or zstd; - is standard input
    pub file: PathBuf,

    /// Take the channels' classes, rings and USERDs from FILE, which the oracle wrote to its standard error
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    pub channels: Option<PathBuf>,

    /// End with an error at the first thing that is missing or cannot be decoded
    ///
    /// By default that is said, and reading goes on behind it.
    #[arg(long, help_heading = "Target")]
    pub strict: bool,

    /// What is shown and where it goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Capture formats.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Capture of the independent in-process oracle (oracle.c)
    Orc,
}

/// Decodes.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let capture = open(args)?;
    let capture = match &args.channels {
        None => capture,
        Some(path) => {
            let text = crate::source::file::text(path)
                .with_context(|| format!("cannot read the channels in {}", path.display()))?;
            capture.with_channels(Channels::parse(&text))
        }
    };
    let inputs: Vec<&Path> = [Some(&args.file), args.channels.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut pipeline = args.output.pipeline_of(args.strict, None, false, &inputs)?;
    if let Err(error) = read(args, capture, &mut pipeline) {
        // Up to there it has been shown.
        pipeline.flush()?;
        let damaged = error.kind() == ErrorKind::InvalidData;
        return Err(anyhow::Error::new(error).context(if damaged {
            format!("{} is not whole (--strict)", args.file.display())
        } else {
            "cannot write the output".to_owned()
        }));
    }
    let ledger = args.output.conclude(pipeline)?;
    Ok(ExitCode::from(ledger.exit_status()))
}

fn read(args: &Args, capture: Orc<Box<dyn Read>>, pipeline: &mut Pipeline<'_>) -> io::Result<()> {
    let mut at = At::default();
    for record in capture {
        match record {
            Ok(record) => {
                if let Record::Submission(s) = &record {
                    at = s.at;
                }
                pipeline.record(record)?;
            }
            // The rest is read on, or is not there: what is missing makes the ledger incomplete.
            Err(error) => {
                if let Error::Io { .. } = error {
                    tell(format_args!("{}: {error}", args.file.display()));
                }
                let what = Lost::Untraced {
                    why: error.to_string(),
                };
                pipeline.record(Record::Loss(Loss {
                    at,
                    channel: None,
                    what,
                }))?;
            }
        }
    }
    Ok(())
}

/// Opens the capture, which must be one unless its format was named.
fn open(args: &Args) -> anyhow::Result<Orc<Box<dyn Read>>> {
    let name = args.file.display();
    let reader =
        packed::open(&args.file).with_context(|| format!("cannot read the capture {name}"))?;
    let (kind, mut reader) = kind::of(reader);
    match (args.from, kind) {
        // An empty capture is one that lacks everything.
        (Some(Format::Orc), _) | (None, Kind::Orc | Kind::Empty) => Ok(Orc::new(reader)),
        (None, Kind::Unreadable) => {
            let why = reader.read(&mut [0]).err();
            let why = why.map_or_else(String::new, |e| format!(" ({e})"));
            bail!(
                "cannot read the capture {name}: it was cut or damaged before the first byte that comes out of it{why}"
            )
        }
        (None, Kind::IoctlLog) => bail!(
            "{name} holds no submissions: it is {}",
            kind.seems().replace("FILE", &name.to_string())
        ),
        (None, Kind::Program | Kind::Text | Kind::Other(_)) => bail!(
            "{name} is no capture: it is {}; --from orc reads it as one all the same",
            kind.seems()
        ),
    }
}
