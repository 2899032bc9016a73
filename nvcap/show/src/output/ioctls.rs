//! `nvcap ioctls`: every ioctl of the driver on a line, named and with its fields, as text or JSON.
//!
//! The driver model, which the sink is lent with each record, gives the class of a handle's object, and the driver's
//! release, on which the layout of structures depends. Knows no source.

use std::{fmt::Write as _, io};

mod form;
mod show;

use serde_json::{Map, Value as Json};

use self::{
    form::{begin, device},
    show::Shown,
};
pub use form::IoctlOptions;
pub(crate) use form::device_name;
use nvcap_decode::{
    driver::{Call, Model, Subject, Version, names},
    ledger::Ledger,
    record::{At, Ioctl, Life, Lost, Mapping, Record},
};

use super::{
    Detail, Sink,
    names::pid_name,
    names::{Latest, known_name},
    plural::{plural, plural_of},
    style::{Formatter, Plain, Role},
    writer::Output,
};

/// Counts, shown at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ioctls shown.
    pub ioctls: u64,
    /// Failed ioctls among these: by the system call or by the driver's status.
    pub failed: u64,
    /// Control calls.
    pub controls: u64,
    /// Object allocations.
    pub allocations: u64,
    /// Mappings of device files.
    pub mappings: u64,
    /// Requests, commands or classes that no table names.
    pub unnamed: u64,
}

impl Totals {
    fn count(&mut self, call: &Call<'_>, version: Option<Version>) {
        self.ioctls += 1;
        self.failed += u64::from(!call.succeeded());
        let named = match call.subject {
            Subject::Control(command) => {
                self.controls += 1;
                names::known_control(command, version).is_some()
            }
            Subject::Class(class) => {
                self.allocations += 1;
                names::is_known_class(class)
            }
            Subject::None => !call.name(version).contains("0x"),
        };
        self.unnamed += u64::from(!named);
    }
}

/// The ioctl sink.
pub struct Ioctls {
    out: Output,
    options: IoctlOptions,
    format: Format,
    totals: Totals,
    /// True if the current record is already shown: a free, which is shown before the model takes it.
    shown_before: bool,
    first_ns: Option<u64>,
    latest: Latest,
    /// Number of text lines so far, which is shown where a time is not known.
    lines: u64,
    objects: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Text { color: bool },
    Json,
}

impl Ioctls {
    /// Writes lines of text to `out`.
    #[must_use]
    pub fn text(out: Output, options: IoctlOptions) -> Self {
        let color = options.color.enabled(out.is_terminal());
        Self::new(out, options, Format::Text { color })
    }

    /// Writes JSON objects to `out`.
    #[must_use]
    pub fn json(out: Output, options: IoctlOptions) -> Self {
        Self::new(out, options, Format::Json)
    }

    fn new(out: Output, options: IoctlOptions, format: Format) -> Self {
        Self {
            out,
            options,
            format,
            totals: Totals::default(),
            shown_before: false,
            first_ns: None,
            latest: Latest::default(),
            lines: 0,
            objects: 0,
        }
    }

    /// Returns the counts of what was shown so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn ioctl(&mut self, ioctl: &Ioctl, model: &Model) -> io::Result<()> {
        let version = model.version();
        let call = Call::read(ioctl, version);
        self.totals.count(&call, version);
        match self.format {
            Format::Text { color } => {
                let start = self.start(ioctl.at, model);
                let shown = Shown {
                    options: &self.options,
                    model,
                    version,
                };
                let mut f = Formatter::new(self.out.object(), color);
                shown.line(&mut f, &start, &call);
                self.out.end_object()?;
            }
            Format::Json => {
                let shown = Shown {
                    options: &self.options,
                    model,
                    version,
                };
                let object = shown.object(&call, &mut self.latest);
                self.emit(&object)?;
            }
        }
        Ok(())
    }

    fn emit(&mut self, object: &Json) -> io::Result<()> {
        let separator = match (self.options.array, self.objects) {
            (false, _) => "",
            (true, 0) => "[",
            (true, _) => ",",
        };
        self.objects += 1;
        let out = self.out.object();
        out.extend_from_slice(separator.as_bytes());
        super::json::write(out, object);
        out.push(b'\n');
        self.out.end_object()
    }

    /// Returns the first columns of a line: time, process and thread. If the source knows no time, the line's number stands in its place. A `<`
    /// behind the time says that an earlier line has a later time.
    fn start(&mut self, at: At, model: &Model) -> String {
        self.lines += 1;
        let time = match at.time() {
            Some(ns) => {
                let first = *self.first_ns.get_or_insert(ns);
                let sign = if ns < first { "-" } else { "" };
                let since = ns.abs_diff(first);
                format!(
                    "{sign}{}.{:09}",
                    since / 1_000_000_000,
                    since % 1_000_000_000
                )
            }
            None => format!("#{}", self.lines),
        };
        let mark = match self.latest.is_passed(at.time()) {
            true => '<',
            false => ' ',
        };
        let mut who = String::new();
        if let Some(name) = model.process_name(at.pid).and_then(known_name) {
            let _ = write!(who, "{}/", Plain(name));
        }
        who.push_str(&pid_name(at.pid));
        if at.tid != 0 && at.tid != at.pid {
            let _ = write!(who, ":{}", at.tid);
        }
        format!("{time:>14}{mark}{who:<16} ")
    }

    fn mapping(&mut self, mapping: &Mapping, model: &Model) -> io::Result<()> {
        self.totals.mappings += 1;
        let what = model
            .mapping_at(mapping.at.pid, mapping.start)
            .map(|m| super::channels::explain(&m));
        match self.format {
            Format::Text { color } => {
                let start = self.start(mapping.at, model);
                let mut f = Formatter::new(self.out.object(), color);
                f.line(&start, 0, None);
                f.text(format_args!("{}", device(mapping.device, mapping.fd)));
                f.role(
                    Role::Operation,
                    format_args!("{}", if mapping.found { "mapped" } else { "mmap" }),
                );
                f.text(format_args!(
                    "({}, {:#x}, {}{})",
                    mapping.start,
                    mapping.len,
                    if mapping.read { "r" } else { "-" },
                    if mapping.write { "w" } else { "-" },
                ));
                if let Some(what) = what {
                    f.text(format_args!(" {what}"));
                }
                f.end();
                self.out.end_object()
            }
            Format::Json => {
                let mut object = begin("mapping", mapping.at, &mut self.latest);
                object.insert("device".into(), device_name(mapping.device).into());
                object.insert("fd".into(), mapping.fd.into());
                object.insert("start".into(), mapping.start.0.into());
                object.insert("len".into(), mapping.len.into());
                object.insert("read".into(), mapping.read.into());
                object.insert("write".into(), mapping.write.into());
                object.insert("found".into(), mapping.found.into());
                object.insert("what".into(), what.into());
                self.emit(&object.into())
            }
        }
    }
}

impl Sink for Ioctls {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _: &nvcap_decode::decode::event::Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn before(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        // A free is shown before the model takes it and forgets the object; all other calls are shown after.
        if let Record::Ioctl(ioctl) = record
            && Call::read(ioctl, model.version())
                .name(None)
                .contains("FREE")
        {
            self.shown_before = true;
            self.ioctl(ioctl, model)?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        if std::mem::take(&mut self.shown_before) {
            return Ok(());
        }
        match record {
            Record::Ioctl(ioctl) => self.ioctl(ioctl, model),
            Record::Mapping(mapping) => self.mapping(mapping, model),
            Record::Loss(loss) => match self.format {
                Format::Text { color } => {
                    let start = self.start(loss.at, model);
                    let mut f = Formatter::new(self.out.object(), color);
                    f.line(&start, 0, Some(Role::Alarm));
                    f.text(format_args!("{}", lost(&loss.what)));
                    f.end();
                    self.out.end_object()
                }
                Format::Json => {
                    let mut object = begin("loss", loss.at, &mut self.latest);
                    put_loss(&mut object, &loss.what);
                    self.emit(&object.into())
                }
            },
            Record::Process(process) => {
                let (Life::Exec { .. } | Life::Fork { .. } | Life::Exit { process: true }) =
                    &process.life
                else {
                    return Ok(());
                };
                if let Format::Text { color } = self.format {
                    let start = self.start(process.at, model);
                    let mut f = Formatter::new(self.out.object(), color);
                    f.line(&start, 0, Some(Role::Dim));
                    match &process.life {
                        Life::Fork { child } => f.text(format_args!("fork: {child}")),
                        Life::Exec { name } => {
                            let name = known_name(name).unwrap_or("?");
                            f.text(format_args!("exec: {}", Plain(name)));
                        }
                        _ => f.text(format_args!("exit")),
                    }
                    f.end();
                    return self.out.end_object();
                }
                Ok(())
            }
            Record::Unmapping(_)
            | Record::Channel(_)
            | Record::Submission(_)
            | Record::Gpu(_)
            | Record::QmdCopy(_)
            | Record::Kernel(_)
            | Record::Stamps(_)
            | Record::Snapshot(_)
            | Record::Skipped(_)
            | Record::Fault(_)
            | Record::Samples(_)
            | Record::Switches(_)
            | Record::Stack(_) => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    /// Closes a JSON array and writes out what is buffered.
    fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
        if self.format == Format::Json && self.options.array {
            let end: &[u8] = if self.objects == 0 { b"[]\n" } else { b"]\n" };
            self.out.object().extend_from_slice(end);
            self.out.end_object()?;
        }
        self.out.flush()
    }
}

/// A loss as text.
fn lost(what: &Lost) -> String {
    match what {
        Lost::Records { kind, count } => {
            let records = plural_of(*count, "record", "records");
            format!("LOST {records} ({kind}): the buffer was full; try a larger --buffer")
        }
        Lost::Stacks { count } => format!("LOST {}", plural(*count, "stack")),
        Lost::Notifiers { count } => format!("NOT READ: {}", plural(*count, "error notifier")),
        Lost::Untraced { why } => format!("UNTRACED: {}", Plain(why)),
        Lost::Entries { count, .. } => {
            format!("LOST {}", plural_of(*count, "entry", "entries"))
        }
        Lost::UnknownChannel { count, .. } => {
            format!(
                "LOST {} of a channel that is not known",
                plural(*count, "doorbell")
            )
        }
    }
}

/// Adds a loss's members to a JSON object.
fn put_loss(object: &mut Map<String, Json>, what: &Lost) {
    let mut put = |name: &str, value: Json| {
        object.insert(name.into(), value);
    };
    match what {
        Lost::Records { kind, count } => {
            put("what", "records".into());
            put("kind", kind.name().into());
            put("count", (*count).into());
        }
        Lost::Stacks { count } => {
            put("what", "stacks".into());
            put("count", (*count).into());
        }
        Lost::Notifiers { count } => {
            put("what", "notifiers".into());
            put("count", (*count).into());
        }
        Lost::Untraced { why } => {
            put("what", "untraced".into());
            put("why", why.as_str().into());
        }
        Lost::Entries { position, count } => {
            put("what", "entries".into());
            put("position", (*position).into());
            put("count", (*count).into());
        }
        Lost::UnknownChannel { token, count } => {
            put("what", "unknown_channel".into());
            put("token", (*token).into());
            put("count", (*count).into());
        }
    }
}
