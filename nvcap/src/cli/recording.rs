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

use super::reading::{self, Reading};
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

/// What the ledger says of a file that was not read to its end.
pub(super) const INTERRUPTED: &str = "reading was interrupted: the rest of the file was not read";

/// A file that was opened, of which nothing but its kind is read yet.
pub(super) struct Recording<'a> {
    args: &'a RecordingArgs,
    capture: Orc<Box<dyn Read>>,
    reading: Reading,
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
        let (capture, reading) = self.open_orc()?;
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
            reading,
        })
    }

    fn open_orc(&self) -> anyhow::Result<(Orc<Box<dyn Read>>, Reading)> {
        let name = self.file.display();
        let opened = reading::open(&self.file)
            .and_then(|(reader, reading)| Ok((packed::unpacked(reader)?, reading)));
        let (reader, reading) =
            opened.with_context(|| format!("cannot read the capture {name}"))?;
        let (kind, mut reader) = kind::of(reader);
        match (self.from, kind) {
            // An empty capture is one that lacks everything.
            (Some(Format::Orc), _) | (None, Kind::Orc | Kind::Empty) => {
                Ok((Orc::new(reader), reading))
            }
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
    /// The command shows nothing before all is read: progress may be shown meanwhile. `file`: what it will show goes to a file.
    pub(super) fn quiet_until_the_end(mut self, file: Option<&Path>) -> Self {
        let file = file.is_some_and(|path| path.as_os_str() != "-");
        if file || !reading::output_is_a_pipe() {
            self.reading.show();
        }
        self
    }

    /// Gives all its records to the pipeline, up to the end of the file or the user's Ctrl-C, after which the ledger says that the
    /// rest was not read.
    ///
    /// # Errors
    /// When the output cannot be written, or, with `--strict`, at the first thing that is not whole. What was read up to there has
    /// been shown.
    pub(super) fn play(mut self, pipeline: &mut Pipeline<'_>) -> anyhow::Result<()> {
        let args = self.args;
        self.reading.begin()?;
        let read = self.read(pipeline);
        self.reading.end();
        let Err(error) = read else {
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

    fn read(&mut self, pipeline: &mut Pipeline<'_>) -> io::Result<()> {
        let mut at = At::default();
        for record in self.capture.by_ref() {
            if !self.reading.goes_on() {
                break;
            }
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
        if !self.reading.is_whole() {
            let what = Lost::Untraced {
                why: INTERRUPTED.to_owned(),
            };
            pipeline.record(Record::Loss(Loss {
                at,
                channel: None,
                what,
            }))?;
        }
        Ok(())
    }
}
