//! A file of records that is named on the command line, shared by all commands that read one. Its records go into a pipeline like those of
//! a live trace.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::names_ahead::NamesAhead;
use super::parts;
use super::progress::{self, Reading};
use anyhow::{Context as _, bail};
use clap::ValueEnum;
use nvcap_decode::record::{At, Loss, Lost, Record};
use nvcap_recording::file::ioctl_log::{self, Log, LogOptions};
use nvcap_recording::file::kind::{self, Kind};
use nvcap_recording::file::orc::{self, Channels, Orc};
use nvcap_recording::file::packed;
use nvcap_recording::recording::{self, Item, Reader, TraceInfo};
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::{plural, plural_of};
use nvcap_show::pipeline::Pipeline;

/// Recording that is read, and options for reading it.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Target")]
pub(super) struct RecordingArgs {
    /// Format of FILE; by default its content tells
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub from: Option<Format>,

    /// The recording, plain or compressed by gzip, xz or zstd; - is standard input
    pub file: PathBuf,

    /// More files of the same trace (nvcap record --rotate), in any order: they are read as one
    #[arg(value_name = "FILE")]
    pub more: Vec<PathBuf>,

    /// With an oracle capture: take the classes, rings and USERDs of channels from FILE, the oracle's standard error
    #[arg(long, value_name = "FILE")]
    pub channels: Option<PathBuf>,

    /// End with an error at the first thing that is missing or cannot be decoded
    ///
    /// By default it is reported, and reading continues behind it.
    #[arg(long)]
    pub strict: bool,
}

/// Formats of captures.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Recording of nvcap's (docs/file-format.md)
    Pcapng,
    /// Capture of the independent in-process oracle (oracle.c)
    Orc,
    /// Text log of one process's ioctls and mmaps (docs/output.md), which has no submissions: for nvcap export pcapng
    IoctlLog,
}

/// Note in the ledger about a file that was not read to its end.
pub(super) const INTERRUPTED: &str = "reading was interrupted: the rest of the file was not read";

/// Word by which a recording says that it was made from a log, of which no submissions are known.
pub(super) const OF_LOG: &str = "ioctl-log";

/// Way in which the reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Played {
    /// At the end of the file.
    ToTheEnd,
    /// By the user, which the ledger says ([`INTERRUPTED`]).
    Interrupted,
}

/// A file that was opened, and of which only the kind is known yet.
pub(super) struct Recording<'a> {
    args: &'a RecordingArgs,
    opened: Opened,
    reading: Reading,
    /// True if the user is to be told that this file is only a part of a trace.
    says_part: bool,
}

enum Opened {
    Orc(Box<Orc<Box<dyn Read>>>),
    Pcapng(Box<Reader<Box<dyn Read>>>),
    Log(Box<Log>),
}

impl RecordingArgs {
    /// Makes the arguments for one file, whose content shows its format.
    pub(super) fn of(file: &Path) -> Self {
        Self {
            from: None,
            file: file.to_owned(),
            more: Vec::new(),
            channels: None,
            strict: false,
        }
    }

    /// Returns the files that are read.
    pub(super) fn inputs(&self) -> Vec<&Path> {
        let files = self.files().chain(self.channels.as_deref());
        files.collect()
    }

    /// Returns the files of the trace.
    fn files(&self) -> impl Iterator<Item = &Path> {
        { [&self.file].into_iter().chain(&self.more) }.map(PathBuf::as_path)
    }

    /// Returns the name of the input, for messages.
    pub(super) fn name(&self) -> String {
        let first = self.file.display();
        match self.more.len() {
            0 => first.to_string(),
            more => format!("{first} and {more} more"),
        }
    }

    /// Opens the file. It must be a capture unless its format was named.
    ///
    /// # Errors
    /// When it cannot be read, or is no capture.
    pub(super) fn open(&self) -> anyhow::Result<Recording<'_>> {
        self.opened(false)
    }

    /// Opens as [`RecordingArgs::open`] does, and also accepts a log of ioctls.
    ///
    /// # Errors
    /// As for [`RecordingArgs::open`].
    pub(super) fn open_with_logs(&self) -> anyhow::Result<Recording<'_>> {
        self.opened(true)
    }

    fn opened(&self, logs: bool) -> anyhow::Result<Recording<'_>> {
        if !self.more.is_empty() {
            let files: Vec<&Path> = self.files().collect();
            return self.of_reader(parts::open(&files)?, logs);
        }
        let opened = progress::open(&self.file)
            .and_then(|(reader, reading)| Ok((packed::unpacked(reader)?, reading)));
        let opened = opened.map_err(|e| parts::unreadable(&self.file, &e))?;
        self.of_reader(opened, logs)
    }

    /// Opens the files once more, if they can be read twice. A pipe's bytes would be gone.
    fn again(&self) -> Vec<Box<dyn Read>> {
        let files = self.files();
        let files = files.filter(|file| file.as_os_str() != "-" && file.is_file());
        files.filter_map(|file| packed::open(file).ok()).collect()
    }

    /// Opens as [`RecordingArgs::open`] does, from the unpacked content of a file.
    ///
    /// # Errors
    /// As for [`RecordingArgs::open`].
    pub(super) fn of_reader(
        &self,
        opened: (Box<dyn Read>, Reading),
        logs: bool,
    ) -> anyhow::Result<Recording<'_>> {
        let (opened, reading) = self.of_plain(opened, logs)?;
        let opened = match (opened, &self.channels) {
            (opened, None) => opened,
            (Opened::Orc(capture), Some(path)) => {
                let text = nvcap_recording::file::text(path)
                    .with_context(|| format!("cannot read the channels in {}", path.display()))?;
                Opened::Orc(Box::new(capture.with_channels(Channels::parse(&text))))
            }
            (Opened::Pcapng(_) | Opened::Log(_), Some(path)) => bail!(
                "{} knows its channels: leave --channels {} out",
                self.file.display(),
                path.display()
            ),
        };
        Ok(Recording {
            args: self,
            opened,
            reading,
            says_part: true,
        })
    }

    fn of_plain(
        &self,
        (reader, reading): (Box<dyn Read>, Reading),
        logs: bool,
    ) -> anyhow::Result<(Opened, Reading)> {
        let name = self.file.display();
        let (kind, mut reader) = kind::of(reader);
        match (self.from, kind) {
            // An empty file whose format was named lacks everything. Otherwise nothing shows that it is a capture.
            (Some(Format::Orc), _) | (None, Kind::Orc) => {
                Ok((Opened::Orc(Box::new(Orc::new(reader))), reading))
            }
            (Some(Format::Pcapng), _) | (None, Kind::Recording) => {
                Ok((Opened::Pcapng(Box::new(Reader::new(reader))), reading))
            }
            (None, Kind::Unreadable) => {
                let why = reader.read(&mut [0]).err();
                let why = why.map_or_else(String::new, |e| format!(" ({e})"));
                bail!(
                    "cannot read the capture {name}: it was cut or damaged before the first byte that comes out of it{why}"
                )
            }
            (Some(Format::IoctlLog), _) | (None, Kind::IoctlLog) if logs => {
                let log = ioctl_log::read(reader, LogOptions::default())
                    .with_context(|| format!("cannot read the log {name}"))?;
                if log.records.is_empty() {
                    bail!("{name} has no IOCTL or MMAP line of a driver's file: it is no log");
                }
                Ok((Opened::Log(Box::new(log)), reading))
            }
            (Some(Format::IoctlLog), _) | (None, Kind::IoctlLog) => bail!(
                "{name} holds no submissions: it is {}",
                Kind::IoctlLog.seems().replace("FILE", &name.to_string())
            ),
            (
                None,
                Kind::Empty | Kind::Program | Kind::Kineto | Kind::Sqlite | Kind::Other(Some(_)),
            ) => {
                bail!("{}", no_capture(&self.file, kind))
            }
            (None, Kind::Text | Kind::Other(None)) => match kind::by_name(&self.file) {
                Some(what) => bail!("{name} is no recording: it is {what}"),
                None => bail!(
                    "{name} is no recording: it is {}; nvcap record -o FILE -- COMMAND makes one",
                    kind.seems()
                ),
            },
        }
    }
}

impl Recording<'_> {
    /// Returns the description of the trace, if the file has one.
    pub(super) fn trace(&mut self) -> Option<&TraceInfo> {
        match &mut self.opened {
            Opened::Orc(_) | Opened::Log(_) => None,
            Opened::Pcapng(reader) => reader.trace(),
        }
    }

    /// Returns the way in which submissions were captured, for a file that does not say it: the name of its format.
    pub(super) fn format(&self) -> &'static str {
        match self.opened {
            Opened::Orc(_) => "orc",
            Opened::Pcapng(_) => "pcapng",
            Opened::Log(_) => OF_LOG,
        }
    }

    /// States that the command shows nothing before everything is read, so that progress may be shown. `file` is the place of the command's
    /// output.
    pub(super) fn quiet_until_the_end(mut self, file: Option<&Path>) -> Self {
        self.reading.show_for(file);
        self
    }

    /// States that the caller knows that this file is a part of a trace, so that the user is not told.
    #[cfg(feature = "parquet")]
    pub(super) fn known_as_part(self) -> Self {
        Self {
            says_part: false,
            ..self
        }
    }

    /// Gives all records to the pipeline, up to the end of the file or to the user's Ctrl-C. After Ctrl-C, the ledger says that the rest
    /// was not read. Returns whether the file was read to its end. First it sets up the pipeline as it was for the live trace: the driver's
    /// release, the GPU's times, the order of records.
    ///
    /// # Errors
    /// When the output cannot be written, or, with `--strict`, at the first item that is incomplete. The records before it have then been
    /// shown.
    pub(super) fn play(mut self, pipeline: &mut Pipeline<'_>) -> anyhow::Result<Played> {
        // Opened before rights are given up.
        let names = match self.opened {
            Opened::Pcapng(_) => self.args.again(),
            Opened::Orc(_) | Opened::Log(_) => Vec::new(),
        };
        if let Some(info) = self.trace() {
            let driver = info.driver.as_deref().and_then(|d| d.parse().ok());
            // An input that can be read again is a file.
            pipeline.as_recorded(driver, info.gpu_time, !info.in_order, !names.is_empty());
        }
        let name = self.args.name();
        self.reading.begin()?;
        confine();
        let played = match self.opened {
            Opened::Orc(capture) => play_orc(*capture, pipeline, &mut self.reading, &name),
            Opened::Pcapng(reader) => {
                // If another trace took the file's place, it has another number.
                let trace = reader.trace_number().unwrap_or_default();
                let names = names.into_iter().map(progress::UntilInterrupted);
                let of_trace = names.flat_map(|names| recording::kernels(names, trace));
                let names = NamesAhead::gather(of_trace);
                let reading = (&mut self.reading, self.says_part);
                play_pcapng((*reader, names), pipeline, reading, &name)
            }
            Opened::Log(log) => play_log(*log, pipeline, &mut self.reading),
        };
        let whole = self.reading.is_whole();
        let played = match (&played, whole) {
            (Ok(()), false) => pipeline.record(lost(At::default(), &INTERRUPTED)),
            _ => played,
        };
        self.reading.end();
        let Err(error) = played.and_then(|()| pipeline.settle()) else {
            return Ok(match whole {
                true => Played::ToTheEnd,
                false => Played::Interrupted,
            });
        };
        pipeline.cut()?;
        let damaged = error.kind() == ErrorKind::InvalidData;
        Err(anyhow::Error::new(error).context(if damaged {
            format!("{name} is not whole (--strict)")
        } else {
            "cannot write the output".to_owned()
        }))
    }
}

/// Returns the message that a file of this kind is no recording.
pub(super) fn no_capture(file: &Path, kind: Kind) -> String {
    format!("{} is no recording: it is {}", file.display(), kind.seems())
}

/// Gives up rights, because the data that is read from here on may be anybody's.
fn confine() {
    nvcap_process::confine::decoding();
}

/// Makes the record which says that a part of a file is missing. It makes the ledger incomplete.
fn lost(at: At, why: &impl ToString) -> Record {
    Record::Loss(Loss {
        at,
        channel: None,
        what: Lost::Untraced {
            why: why.to_string(),
        },
    })
}

fn play_orc(
    capture: Orc<Box<dyn Read>>,
    pipeline: &mut Pipeline<'_>,
    reading: &mut Reading,
    name: &impl Display,
) -> io::Result<()> {
    let mut at = At::default();
    for record in capture {
        if !reading.goes_on() {
            break;
        }
        match record {
            Ok(record) => {
                if let Record::Submission(s) = &record {
                    at = s.at;
                }
                pipeline.record(record)?;
            }
            // Reading continues behind the error, or the file has ended there.
            Err(error) => {
                if let orc::Error::Io { .. } = error {
                    tell(format_args!("{name}: {error}"));
                }
                pipeline.record(lost(at, &error))?;
            }
        }
    }
    Ok(())
}

fn play_log(log: Log, pipeline: &mut Pipeline<'_>, reading: &mut Reading) -> io::Result<()> {
    let missing = missing_of(&log);
    for record in log.records {
        if !reading.goes_on() {
            break;
        }
        pipeline.record(record)?;
    }
    { missing.iter() }.try_for_each(|why| pipeline.record(lost(At::default(), why)))
}

/// Lists the data that a log lacks, one sentence each.
pub(super) fn missing_of(log: &Log) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(first) = log.bad_lines.first() {
        all.push(format!(
            "{} not understood, the first is line {first}",
            plural_of(log.bad_lines.len() as u64, "line was", "lines were")
        ));
    }
    if log.unfinished != 0 {
        all.push(format!(
            "of {} what came back is missing",
            plural(log.unfinished as u64, "ioctl")
        ));
    }
    all.extend(log.cut.clone());
    all
}

fn play_pcapng(
    (reader, mut names): (Reader<Box<dyn Read>>, NamesAhead),
    pipeline: &mut Pipeline<'_>,
    (reading, says_part): (&mut Reading, bool),
    name: &impl Display,
) -> io::Result<()> {
    // State: the trace's description has come; its last file is not here.
    let (mut begun, mut goes_on) = (false, false);
    let mut is_part = false;
    for item in reader {
        if !reading.goes_on() {
            break;
        }
        match item {
            // The next of several files continues where the previous one ended.
            Ok(Item::Trace(_)) if std::mem::replace(&mut begun, true) => goes_on = false,
            Ok(Item::Trace(info)) if info.file > 0 && says_part => {
                is_part = true;
                tell_part(name, &info);
            }
            Ok(Item::Continued) => goes_on = true,
            Ok(Item::Record(record)) if names.has(&record) => {}
            Ok(Item::Record(record)) => {
                while let Some(name) = names.before(&record) {
                    pipeline.record(name)?;
                }
                pipeline.record(record)?;
            }
            Ok(Item::Idle) => pipeline.flush()?,
            Ok(Item::End(end)) => {
                if is_part && (end.observed.is_some() || end.trapped.is_some()) {
                    tell(format_args!(
                        "{name}: looks, hits of breakpoints and processor time are those of the whole trace"
                    ));
                }
                if let Some(observed) = end.observed {
                    pipeline.observed(observed);
                }
                if let Some(trapped) = end.trapped {
                    pipeline.trapped(trapped);
                }
                if let Some((every, skipped)) = end.stack_sample {
                    pipeline.stacks_sampled(every, skipped);
                }
                for (what, count) in end.left_out_of_stacks {
                    pipeline.left_out_of_stacks(&what, count);
                }
            }
            Ok(_) => {}
            Err(error) => pipeline.record(damage(&error, name))?,
        }
    }
    // Done also if the recording has no end.
    names.rest().try_for_each(|name| pipeline.record(name))?;
    if goes_on && says_part {
        tell(format_args!("{name}: the trace goes on in the next file"));
    }
    Ok(())
}

/// Reports that a file is a part of a trace, and not the first.
fn tell_part(name: &impl Display, info: &TraceInfo) {
    let lacks = match info.left_out {
        0 => String::new(),
        n => format!(
            ", and {} of what is needed of it here, for lack of room",
            plural(n, "record")
        ),
    };
    tell(format_args!(
        "{name}: file {} of a trace, counted from 0; what came before it is in earlier files{lacks}",
        info.file
    ));
}

fn damage(error: &recording::Error, name: &impl Display) -> Record {
    if error.is_of_system() {
        tell(format_args!("{name}: {error}"));
    }
    lost(At::default(), error)
}

/// Opens the recording in a file, if it has one, together with the tracking of its reading.
pub(super) fn watched(file: &Path) -> Option<(Reader<Box<dyn Read>>, Reading)> {
    // A pipe's bytes would be gone.
    let (reader, reading) = file.is_file().then(|| progress::open(file).ok())??;
    let (kind, reader) = kind::of(packed::unpacked(reader).ok()?);
    (kind == Kind::Recording).then(|| (Reader::new(reader), reading))
}

/// Gives each of [`records`] to `each`, up to the end of the file or to the user's Ctrl-C. After Ctrl-C, it also gives the record of a
/// loss, which says that the rest was not read.
///
/// # Errors
/// The errors of `each`.
pub(super) fn give(
    (reader, mut reading): (Reader<Box<dyn Read>>, Reading),
    file: &Path,
    mut each: impl FnMut(Record) -> io::Result<()>,
) -> anyhow::Result<()> {
    reading.begin()?;
    let mut given = Ok(());
    let mut records = records(reader, file);
    while given.is_ok() && reading.goes_on() {
        match records.next() {
            Some(record) => given = each(record),
            None => break,
        }
    }
    if given.is_ok() && !reading.is_whole() {
        given = each(lost(At::default(), &INTERRUPTED));
    }
    reading.end();
    Ok(given?)
}

/// Returns the records of a recording, and the losses in it.
pub(super) fn records(reader: Reader<Box<dyn Read>>, file: &Path) -> impl Iterator<Item = Record> {
    reader.filter_map(move |item| match item {
        Ok(Item::Record(record)) => Some(record),
        Ok(_) => None,
        Err(error) => Some(damage(&error, &file.display())),
    })
}
