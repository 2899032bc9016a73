//! What the commands about the driver look at: a command, running processes, or a log. One way to give its records
//! for each.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use nvcap::driver::Version;
use nvcap::output::writer::Output;
use nvcap::record::{At, Loss, Lost, Record};
use nvcap::source::file::ioctl_log;

use super::trace::{self, Discover};

/// What to look at.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Target")]
pub struct Target {
    /// The running process PID; may be given several times
    #[arg(short, long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,

    /// Read a log instead of a live process; FILE must follow
    #[arg(long, value_name = "FORMAT", value_enum, requires = "file", conflicts_with_all = ["pid", "command"])]
    pub from: Option<Format>,

    /// The log, compressed by gzip or not
    #[arg(value_name = "FILE", requires = "from")]
    pub file: Option<PathBuf>,

    /// Driver release that the log is of, where the log does not tell it (such as 580.159.04)
    #[arg(long, value_name = "VERSION", requires = "from")]
    pub driver: Option<Version>,

    /// How ioctls and mappings are found; `nvcap --help` explains the ways
    #[arg(long, value_name = "WAY", value_enum, default_value_t)]
    pub discover: Discover,

    /// Leave out the children and execs of what is traced; they are followed otherwise
    #[arg(long)]
    pub no_follow: bool,

    /// End after SECONDS (fractions allowed); the traced processes run on
    #[arg(long, value_name = "SECONDS", value_parser = trace::parse_seconds)]
    pub duration: Option<std::time::Duration>,

    /// Size of the ring buffer between kernel and nvcap, in bytes, with K, M or G; a power of two
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = trace::parse_size)]
    pub buffer: u64,

    /// The command to run and trace, with its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pid")]
    pub command: Vec<OsString>,
}

/// Formats of logs.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text log of one process's ioctls and mmaps (docs/output.md has the form)
    IoctlLog,
}

/// Where the answer goes.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub struct Show {
    /// JSON instead of text (docs/output.md has the members)
    #[arg(long)]
    pub json: bool,

    /// Write to FILE instead of standard output; it is made readable by its owner alone
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl Show {
    /// Opens the output.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn open(&self) -> anyhow::Result<Output> {
        open(self.output.as_deref())
    }

    /// Writes an answer that is there at once: `text`, or the objects as one array with an object a line.
    ///
    /// # Errors
    /// When the output can take no more.
    pub fn write(&self, text: &str, objects: &[serde_json::Value]) -> anyhow::Result<()> {
        let mut out = self.open()?;
        let to = out.object();
        if self.json {
            for (n, object) in objects.iter().enumerate() {
                to.extend_from_slice(if n == 0 { b"[" } else { b",\n " });
                serde_json::to_writer(&mut *to, object)?;
            }
            to.extend_from_slice(if objects.is_empty() { b"[]\n" } else { b"]\n" });
        } else {
            to.extend_from_slice(text.as_bytes());
        }
        out.end_object()?;
        out.flush()?;
        if out.unshown() != 0 {
            bail!("the answer could not be written: make room, or name another file with -o");
        }
        Ok(())
    }
}

/// Opens the file that the user named, or standard output.
///
/// # Errors
/// When the file cannot be made.
pub fn open(path: Option<&Path>) -> anyhow::Result<Output> {
    Ok(match path {
        Some(path) => Output::file(path).with_context(|| {
            format!(
                "cannot write to {}: name a file in a directory you may write to",
                path.display()
            )
        })?,
        None => Output::stdout(),
    })
}

impl Target {
    /// Whether anything is named; the usage error is told where nothing is.
    pub fn is_named(&self, what: &str) -> bool {
        let named = self.from.is_some() || !self.pid.is_empty() || !self.command.is_empty();
        if !named {
            eprintln!(
                "nvcap: nothing to look at: give a command after -- (nvcap {what} -- ./vadd), a process (nvcap {what} \
                 -p PID) or a log (nvcap {what} --from ioctl-log FILE)"
            );
        }
        named
    }

    /// The driver's release, where it is known beforehand.
    pub fn version(&self) -> Option<Version> {
        if self.from.is_some() {
            return self.driver;
        }
        std::fs::read_to_string("/sys/module/nvidia/version")
            .ok()
            .and_then(|text| text.trim().parse().ok())
    }

    /// Gives every record to `each`, in order, until the end. `watch`: submissions are among them (of a live trace).
    /// `idle` is called when a live trace has nothing to do. What is returned is the exit status of the traced
    /// command's own, told where it is not 0.
    ///
    /// # Errors
    /// When the log cannot be read, the trace cannot be made, or `each` can take no more.
    pub fn records(
        &self,
        watch: bool,
        each: impl FnMut(Record) -> io::Result<()>,
        idle: impl FnMut() -> io::Result<()>,
    ) -> anyhow::Result<()> {
        match (self.from, &self.file) {
            (Some(Format::IoctlLog), Some(file)) => self.log(file, each),
            _ => self.live(watch, each, idle),
        }
    }

    fn log(
        &self,
        file: &Path,
        mut each: impl FnMut(Record) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let options = ioctl_log::Options {
            pid: 0,
            driver_version: self.driver,
        };
        let log = ioctl_log::read_file(file, options).context("cannot read the log")?;
        for record in log.records {
            each(record)?;
        }
        let mut lost = |why: String| {
            eprintln!("nvcap: {}: {why}", file.display());
            each(Record::Loss(Loss {
                at: At::default(),
                channel: None,
                what: Lost::Blind { why },
            }))
        };
        if let Some(first) = log.bad_lines.first() {
            lost(format!(
                "{} lines were not understood, the first is line {first}",
                log.bad_lines.len()
            ))?;
        }
        if log.unfinished != 0 {
            lost(format!("{} ioctls have no return", log.unfinished))?;
        }
        Ok(())
    }

    #[cfg(not(feature = "trap"))]
    fn live(
        &self,
        _watch: bool,
        _each: impl FnMut(Record) -> io::Result<()>,
        _idle: impl FnMut() -> io::Result<()>,
    ) -> anyhow::Result<()> {
        bail!("live tracing is not built into this program; --from ioctl-log FILE reads logs")
    }

    #[cfg(feature = "trap")]
    fn live(
        &self,
        watch: bool,
        each: impl FnMut(Record) -> io::Result<()>,
        idle: impl FnMut() -> io::Result<()>,
    ) -> anyhow::Result<()> {
        use nvcap::source::trap::{given::Given, live, session};

        let options = session::Options {
            discover: self.discover.way(),
            follow: !self.no_follow,
            watch,
            given: Given::default(),
            buffer: u32::try_from(self.buffer).unwrap_or(1 << 31),
            no_bpf_loop: std::env::var_os("NVCAP_NO_BPF_LOOP").is_some(),
            notice: |line| eprintln!("nvcap: {line}"),
            gp_get: watch,
            no_own_put: true,
        };
        let limits = live::Limits {
            duration: self.duration,
            max_submissions: None,
        };
        let target = if self.command.is_empty() {
            live::Target::Pids(self.pid.clone())
        } else {
            live::Target::Command(self.command.clone())
        };
        let pids = self.pid.clone();
        let attached = move || {
            for pid in pids {
                eprintln!("nvcap: process {pid} attached");
            }
        };
        let outcome = live::run(options, target, limits, each, idle, attached)?;
        if let Some(child) = outcome.child.filter(|c| !c.success()) {
            eprintln!("nvcap: the command ended with {child}");
        }
        Ok(())
    }
}

/// The status of a command line that names nothing.
pub fn usage() -> ExitCode {
    ExitCode::from(nvcap::ledger::STATUS_USAGE)
}
