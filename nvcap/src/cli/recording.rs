//! A file of records, named on the command line: what every command that reads one shares. Its records go into a pipeline as those
//! of a live trace do.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::output::message::tell;
use crate::pipeline::Pipeline;
use crate::record::{At, Loss, Lost, Record};
use crate::source::file::kind::{self, Kind};
use crate::source::file::orc::{Channels, Error, Orc};
use crate::source::file::packed;
use anyhow::{Context as _, bail};
use clap::ValueEnum;

/// Which file, and how it is read.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Target")]
pub(super) struct RecordingArgs {
    /// Format of FILE; by default its content tells
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub from: Option<Format>,

    /// The capture, plain or compressed by gzip, xz or zstd; - is standard input
    pub file: PathBuf,

    /// Take the channels' classes, rings and USERDs from FILE, which the oracle wrote to its standard error
    #[arg(long, value_name = "FILE")]
    pub channels: Option<PathBuf>,

    /// End with an error at the first thing that is missing or cannot be decoded
    ///
    /// By default that is said, and reading goes on behind it.
    #[arg(long)]
    pub strict: bool,
}

/// Capture formats.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Capture of the independent in-process oracle (oracle.c)
    Orc,
}

/// A file that was opened, of which nothing but its kind is read yet.
pub(super) struct Recording<'a> {
    args: &'a RecordingArgs,
    capture: Orc<Box<dyn Read>>,
}

impl RecordingArgs {
    /// The files that are read.
    pub(super) fn inputs(&self) -> Vec<&Path> {
        let files = [Some(&self.file), self.channels.as_ref()];
        files.into_iter().flatten().map(PathBuf::as_path).collect()
    }

    /// Opens it. It must be a capture unless its format was named.
    ///
    /// # Errors
    /// When it cannot be read, or is none.
    pub(super) fn open(&self) -> anyhow::Result<Recording<'_>> {
        let capture = self.open_orc()?;
        let capture = match &self.channels {
            None => capture,
            Some(path) => {
                let text = crate::source::file::text(path)
                    .with_context(|| format!("cannot read the channels in {}", path.display()))?;
                capture.with_channels(Channels::parse(&text))
            }
        };
        Ok(Recording {
            args: self,
            capture,
        })
    }

    fn open_orc(&self) -> anyhow::Result<Orc<Box<dyn Read>>> {
        let name = self.file.display();
        let reader =
            packed::open(&self.file).with_context(|| format!("cannot read the capture {name}"))?;
        let (kind, mut reader) = kind::of(reader);
        match (self.from, kind) {
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
}

impl Recording<'_> {
    /// Gives all its records to the pipeline.
    ///
    /// # Errors
    /// When the output cannot be written, or, with `--strict`, at the first thing that is not whole. What was read up to there has
    /// been shown.
    pub(super) fn play(self, pipeline: &mut Pipeline<'_>) -> anyhow::Result<()> {
        let args = self.args;
        let Err(error) = self.read(pipeline) else {
            return Ok(());
        };
        pipeline.flush()?;
        let damaged = error.kind() == ErrorKind::InvalidData;
        Err(anyhow::Error::new(error).context(if damaged {
            format!("{} is not whole (--strict)", args.file.display())
        } else {
            "cannot write the output".to_owned()
        }))
    }

    fn read(self, pipeline: &mut Pipeline<'_>) -> io::Result<()> {
        let mut at = At::default();
        for record in self.capture {
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
                        tell(format_args!("{}: {error}", self.args.file.display()));
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
}
