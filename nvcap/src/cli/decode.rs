//! `nvcap decode`: a capture through the same pipeline as the live trace.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueEnum;
use nvcap::pipeline::Pipeline;
use nvcap::record::{At, Loss, Lost, Record};
use nvcap::source::file::orc::{Channels, Error, Orc};

use super::OutputArgs;

const EXAMPLES: &str = "\
Examples:
  nvcap decode --from orc run.orc.xz                        text, one line an operation
  nvcap decode --from orc run.orc.xz --json -e op=launch    launches as JSON
  nvcap decode --from orc run.orc.xz --phases run.phases -e phase=vadd_4096x256
  nvcap decode --from orc run.orc.xz -s -v                  statistics with method writes
  xz -dc run.orc.xz | nvcap decode --from orc -             from standard input

Exit status: 0 complete, 1 error, 2 usage, 3 the capture lacks something (the ledger says what).";

/// A capture and how to show it.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Format of the capture
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub from: Format,

    /// The capture, compressed by xz or not; - for standard input
    pub file: PathBuf,

    /// What the oracle printed of the channels (its standard error): their classes, rings and USERDs
    #[arg(long, value_name = "FILE")]
    pub channels: Option<PathBuf>,

    /// End with an error at the first thing that is missing or cannot be decoded; else what is whole is shown, what is not
    /// is told, and reading goes on behind it
    #[arg(long)]
    pub strict: bool,

    /// What is shown and where it goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Capture formats.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Capture of the independent in-process oracle (oracle.c)
    Orc,
}

/// Decodes.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Format::Orc = args.from;
    let capture = open(&args.file)
        .with_context(|| format!("cannot read the capture {}", args.file.display()))?;
    let capture = match &args.channels {
        None => capture,
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the channels in {}", path.display()))?;
            capture.with_channels(Channels::parse(&text))
        }
    };
    let mut pipeline = args.output.pipeline_of(args.strict)?;
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

fn read(args: &Args, capture: Orc<Box<dyn Read>>, pipeline: &mut Pipeline) -> io::Result<()> {
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
                    eprintln!("nvcap: {}: {error}", args.file.display());
                }
                let what = Lost::Blind {
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

fn open(path: &Path) -> Result<Orc<Box<dyn Read>>, Error> {
    if path.as_os_str() == "-" {
        Orc::plain_or_compressed(Box::new(std::io::stdin()))
    } else {
        Orc::open(path)
    }
}
