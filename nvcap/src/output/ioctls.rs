//! `nvcap ioctls`: every ioctl of the driver on a line, named and with its fields, as text or JSON.
//!
//! Both sinks keep a driver model of their own, so that a handle can be shown with the class of the object it
//! names, and layouts follow the driver's release once an ioctl tells it. Knows no source.

use std::io;

mod show;

use serde_json::{Map, Value as Json};

use self::show::Shown;
use crate::{
    driver::{self, Call, Model, Subject, Version, names},
    ledger::Ledger,
    record::{At, Device, Ioctl, Life, Mapping, Record},
};

use super::{
    Detail, Sink,
    style::{Color, Formatter, Plain, Role},
    writer::Output,
};

/// What is shown of each ioctl.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Fields that are zero too (text; JSON has them always).
    pub zeros: bool,
    /// The raw bytes of argument and parameters too.
    pub raw: bool,
    /// Colour (text).
    pub color: Color,
    /// The driver's release, where known beforehand.
    pub driver_version: Option<Version>,
    /// One array of objects instead of an object a line (JSON).
    pub array: bool,
}

/// Counts, shown at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ioctls shown.
    pub ioctls: u64,
    /// Of these, failed: by the system call or by the driver's status.
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
    options: Options,
    format: Format,
    model: Model,
    totals: Totals,
    first_ns: Option<u64>,
    objects: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Text { color: bool },
    Json,
}

impl Ioctls {
    /// Lines of text.
    #[must_use]
    pub fn text(out: Output, options: Options) -> Self {
        let color = options.color.enabled(out.is_terminal());
        Self::new(out, options, Format::Text { color })
    }

    /// JSON objects.
    #[must_use]
    pub fn json(out: Output, options: Options) -> Self {
        Self::new(out, options, Format::Json)
    }

    fn new(out: Output, options: Options, format: Format) -> Self {
        Self {
            out,
            model: Model::new(driver::Options {
                driver_version: options.driver_version,
            }),
            options,
            format,
            totals: Totals::default(),
            first_ns: None,
            objects: 0,
        }
    }

    /// What was shown so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The model of what was seen so far.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn ioctl(&mut self, ioctl: &Ioctl, record: &Record) -> io::Result<()> {
        // A free is shown while its object is known, everything else after the model has learnt from it.
        let before = Call::read(ioctl, self.model.version());
        let frees = before.name(None).contains("FREE");
        if !frees {
            let _ = self.model.record(record);
        }
        let version = self.model.version();
        let call = Call::read(ioctl, version);
        self.totals.count(&call, version);
        match self.format {
            Format::Text { color } => {
                let start = self.start(ioctl.at);
                let shown = Shown {
                    options: &self.options,
                    model: &self.model,
                    version,
                };
                let mut f = Formatter::new(self.out.object(), color);
                shown.line(&mut f, &start, &call);
                self.out.end_object()?;
            }
            Format::Json => {
                let shown = Shown {
                    options: &self.options,
                    model: &self.model,
                    version,
                };
                let object = shown.object(&call);
                self.emit(&object)?;
            }
        }
        if frees {
            let _ = self.model.record(record);
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
        // Writing to a vector does not fail.
        let _ = serde_json::to_writer(&mut *out, object);
        out.push(b'\n');
        self.out.end_object()
    }

    /// Time, process and thread: the first columns of a line.
    fn start(&mut self, at: At) -> String {
        let first = *self.first_ns.get_or_insert(at.time_ns);
        let since = at.time_ns.saturating_sub(first);
        let name = self.model.process_name(at.pid).unwrap_or("");
        let who = match (name, at.tid == at.pid) {
            ("", true) => at.pid.to_string(),
            ("", false) => format!("{}:{}", at.pid, at.tid),
            (name, true) => format!("{}/{}", Plain(name), at.pid),
            (name, false) => format!("{}/{}:{}", Plain(name), at.pid, at.tid),
        };
        format!(
            "{:>4}.{:09} {who:<16} ",
            since / 1_000_000_000,
            since % 1_000_000_000
        )
    }

    fn mapping(&mut self, mapping: &Mapping, record: &Record) -> io::Result<()> {
        self.totals.mappings += 1;
        let _ = self.model.record(record);
        let what = self
            .model
            .mapping_at(mapping.at.pid, mapping.start)
            .map(|m| super::channels::explain(&m));
        match self.format {
            Format::Text { color } => {
                let start = self.start(mapping.at);
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
                let mut object = begin("mapping", mapping.at);
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

    fn event(&mut self, _: &crate::decode::event::Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Ioctl(ioctl) => self.ioctl(ioctl, record),
            Record::Mapping(mapping) => self.mapping(mapping, record),
            Record::Loss(loss) => {
                let text = format!("{:?}", loss.what);
                match self.format {
                    Format::Text { color } => {
                        let start = self.start(loss.at);
                        let mut f = Formatter::new(self.out.object(), color);
                        f.line(&start, 0, Some(Role::Alarm));
                        f.text(format_args!("lost: {text}"));
                        f.end();
                        self.out.end_object()
                    }
                    Format::Json => {
                        let mut object = begin("loss", loss.at);
                        object.insert("what".into(), text.into());
                        self.emit(&object.into())
                    }
                }
            }
            Record::Process(process) => {
                let _ = self.model.record(record);
                let (Life::Exec { .. } | Life::Fork { .. } | Life::Exit { process: true }) =
                    &process.life
                else {
                    return Ok(());
                };
                if let Format::Text { color } = self.format {
                    let start = self.start(process.at);
                    let mut f = Formatter::new(self.out.object(), color);
                    f.line(&start, 0, Some(Role::Dim));
                    match &process.life {
                        Life::Fork { child } => f.text(format_args!("fork: {child}")),
                        Life::Exec { name } => f.text(format_args!("exec: {}", Plain(name))),
                        _ => f.text(format_args!("exit")),
                    }
                    f.end();
                    return self.out.end_object();
                }
                Ok(())
            }
            Record::Unmapping(_) | Record::Channel(_) => {
                let _ = self.model.record(record);
                Ok(())
            }
            Record::Submission(_) => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, _: &Ledger) -> io::Result<()> {
        self.conclude()
    }
}

impl Ioctls {
    /// The end: closes a JSON array and writes out what is buffered.
    ///
    /// # Errors
    /// When the output can take no more.
    pub fn conclude(&mut self) -> io::Result<()> {
        if self.format == Format::Json && self.options.array {
            let end: &[u8] = if self.objects == 0 { b"[]\n" } else { b"]\n" };
            self.out.object().extend_from_slice(end);
            self.out.end_object()?;
        }
        self.out.flush()
    }
}

fn device_name(device: Device) -> String {
    match device {
        Device::Control => "nvidiactl".into(),
        Device::Gpu(minor) => format!("nvidia{minor}"),
        Device::Uvm => "nvidia-uvm".into(),
        Device::Other(major, minor) => format!("{major}:{minor}"),
    }
}

fn device(device: Device, fd: Option<i32>) -> String {
    match fd {
        Some(fd) => format!("{}({fd}) ", device_name(device)),
        None => format!("{} ", device_name(device)),
    }
}

fn begin(kind: &str, at: At) -> Map<String, Json> {
    let mut object = Map::new();
    object.insert("type".into(), kind.into());
    object.insert("time_ns".into(), at.time_ns.into());
    let known = |n: u32| if n == 0 { Json::Null } else { n.into() };
    object.insert("pid".into(), known(at.pid));
    object.insert("tid".into(), known(at.tid));
    object.insert("token".into(), Json::Null);
    object
}
