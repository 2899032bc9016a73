//! Targets of the commands about the driver: a command, running processes, or a log. The records of each are given in the same way
//! ([`Opened::records`]).

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use nvcap_decode::driver::{Version, newer_release};
use nvcap_decode::record::{At, Loss, Lost, Record};
use nvcap_process::rm;
use nvcap_recording::file::ioctl_log;
use nvcap_recording::recording::Reader;
use nvcap_show::output::message::tell;
use nvcap_show::output::style::plain_lines;
use nvcap_show::output::which::is_same;
use nvcap_show::output::writer::Output;

use super::file_or_live;
use super::overwrite::{another_writes, is_input, is_standard_output, read_too};
use super::pids::Pids;
use super::progress::Reading;
use super::recording;
use super::usage::{Usage, bail_usage};
use super::values::{self, CAPTURE, Discover, Force};

/// Target to look at.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Target")]
pub(super) struct Target {
    #[command(flatten)]
    pub pid: Pids,

    /// Run COMMAND as USER, a name or a number; `nvcap --help` says who it is by default
    #[arg(long, value_name = "USER", requires = "command", conflicts_with_all = ["pid", "file"])]
    pub user: Option<String>,

    /// Do not follow the children and execs of what is looked at
    #[arg(long)]
    pub no_follow: bool,

    /// Format of FILE; by default its content tells
    #[arg(long, value_name = "FORMAT", value_enum, requires = "file")]
    pub from: Option<Format>,

    /// The driver release that FILE was made with, such as 580.159.04; by default FILE tells it
    #[arg(long, value_name = "VERSION", requires = "file")]
    pub driver: Option<Version>,

    /// A recording or a log to read instead of a live process, plain or compressed by gzip, xz or zstd; - is standard input, for a log
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "command"])]
    pub file: Option<PathBuf>,

    /// The command to run and look at, with its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pid")]
    pub command: Vec<OsString>,

    /// How ioctls and mappings are found
    ///
    /// `nvcap doctor` says which ways this machine allows.
    #[arg(
        long,
        value_name = "WAY",
        value_enum,
        default_value_t,
        help_heading = CAPTURE
    )]
    pub discover: Discover,

    /// End after SECONDS, such as 10 or 0.5; the processes run on
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = values::parse_seconds,
        help_heading = CAPTURE
    )]
    pub duration: Option<std::time::Duration>,

    /// Size in bytes of the ring buffer between kernel and nvcap, a power of two such as 64M
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "16M",
        value_parser = values::parse_size,
        help_heading = CAPTURE
    )]
    pub buffer: u64,
}

/// Returns the command for clap: with a file, without the options of a live target, and the other way round.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let live = ["no_follow", "discover", "duration", "buffer"];
    let command = file_or_live::refusing(command, "file", live);
    let command = file_or_live::refusing(command, "pid", ["from", "driver"]);
    file_or_live::refusing(command, "command", ["from", "driver"])
}

/// Formats of logs.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Text log of one process's ioctls and mmaps (docs/output.md has the form)
    IoctlLog,
}

/// Form and place of the answer.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
pub(super) struct Show {
    /// Write JSON instead of text (docs/output.md)
    #[arg(long)]
    pub json: bool,

    /// Write to FILE, readable by its owner alone; - is standard output
    ///
    /// By default the answer goes to standard output; if a COMMAND is started, it goes to standard error, and its
    /// standard output stays its own.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Option by which FILE is replaced.
    #[command(flatten)]
    pub force: Force,
}

impl Show {
    /// Opens the output for the result about `target`.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn open(&self, target: &Target) -> anyhow::Result<Output> {
        let command = !target.command.is_empty();
        open(
            self.output.as_deref(),
            self.force.force,
            command,
            &target.inputs(),
        )
    }

    /// Writes an answer that is complete at once: `text`, or the objects as one array with one object on each line.
    ///
    /// # Errors
    /// When the output can take no more.
    pub(super) fn write(
        &self,
        text: &str,
        objects: &[serde_json::Value],
        target: &Target,
    ) -> anyhow::Result<()> {
        let mut out = self.open(target)?;
        let to = out.object();
        if self.json {
            for (n, object) in objects.iter().enumerate() {
                to.extend_from_slice(if n == 0 { b"[" } else { b",\n " });
                nvcap_show::output::json::write(to, object);
            }
            to.extend_from_slice(if objects.is_empty() { b"[]\n" } else { b"]\n" });
        } else {
            to.extend_from_slice(plain_lines(text).as_bytes());
        }
        written(&mut out)
    }
}

/// Writes out the answer that was put into `out`, now rather than later, so that a failure is an error of the command.
///
/// # Errors
/// When the output can take no more.
pub(super) fn written(out: &mut Output) -> anyhow::Result<()> {
    Ok(out.answer()?)
}

/// Opens the place that the user named; `-` is standard output. If none was named, it is standard output. If a `command` is started,
/// however, standard output is the command's, and nvcap's output goes to standard error, as strace's does. `inputs` are the files that are
/// read at the same time; `-` is standard input. Existing contents of the file are overwritten only with `force`; otherwise, if the file
/// has contents by now, the output gets a name with a number.
///
/// # Errors
/// When the file cannot be made, or is one of those.
pub(super) fn open(
    path: Option<&Path>,
    force: bool,
    command: bool,
    inputs: &[&Path],
) -> anyhow::Result<Output> {
    let path = match path {
        None if command => return Ok(Output::stderr()),
        None => return Ok(Output::stdout()),
        Some(path) if is_standard_output(path) => return Ok(Output::stdout()),
        Some(path) => path,
    };
    is_no_input(path, inputs)?;
    let out = opened(
        path,
        if force {
            Output::over(path)
        } else {
            Output::file(path)
        },
    )?;
    if let Some(place) = elsewhere(&out, path) {
        tell(format_args!(
            "another program has written to {} meanwhile: what nvcap writes goes into {}",
            path.display(),
            place.display()
        ));
    }
    Ok(out)
}

/// Opens as [`open`] does, for a recording. If one exists, the new one gets a name with a number, which is reported, unless `force` says to
/// overwrite it.
///
/// # Errors
/// As for [`open`].
pub(super) fn open_recording(path: &Path, force: bool, inputs: &[&Path]) -> anyhow::Result<Output> {
    if is_standard_output(path) {
        return Ok(Output::stdout());
    }
    is_no_input(path, inputs)?;
    let out = opened(path, Output::recording(path, force))?;
    if let Some(place) = elsewhere(&out, path) {
        tell(format_args!(
            "{} is there already: recording into {} (--force writes over it)",
            path.display(),
            place.display()
        ));
    }
    Ok(out)
}

fn opened(path: &Path, out: io::Result<Output>) -> anyhow::Result<Output> {
    match out {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            Err(Usage(another_writes(path, "-o")).into())
        }
        // The error's own words say what to do.
        Err(e) if e.raw_os_error().is_none() => {
            Err(e).with_context(|| format!("cannot write to {}", path.display()))
        }
        out => out.with_context(|| cannot_write(path)),
    }
}

/// Returns the place of an output that goes to another file than the one that was named.
fn elsewhere(out: &Output, path: &Path) -> Option<PathBuf> {
    let place = out.place()?.path;
    (place.file_name() != path.file_name() && is_used(path) && !is_same(&place, path))
        .then_some(place)
}

/// Tells whether the file has contents.
fn is_used(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file())
}

fn cannot_write(path: &Path) -> String {
    format!(
        "cannot write to {} (name a file of your own, or in a directory you may write to)",
        path.display()
    )
}

/// Checks that the file is none of those that are read.
fn is_no_input(path: &Path, inputs: &[&Path]) -> anyhow::Result<()> {
    match is_input(path, inputs) {
        true => Err(Usage(read_too(path, "-o")).into()),
        false => Ok(()),
    }
}

/// Help of `-o` if [`open_for_a_program`] opens it.
pub(super) const FILE_FOR_A_PROGRAM: &str = "Write to FILE, readable by its owner alone; - is standard output, which must be no terminal; what a COMMAND writes there goes to standard error then";

/// Opens as [`open`] does, for output that is of no use on a terminal or among a command's messages. `is` says why, and `what_to_do` what
/// to type.
///
/// # Errors
/// As for [`open`]; also when it would go to a terminal, or has no place to go.
pub(super) fn open_for_a_program(
    (path, force): (Option<&Path>, bool),
    command: bool,
    inputs: &[&Path],
    is: &str,
    what_to_do: &str,
) -> anyhow::Result<Output> {
    if command && path.is_none() {
        bail_usage!(
            "{is}, and has no place to go, for standard output is the command's; {what_to_do}"
        );
    }
    let out = open(path, force, command, inputs)?;
    if out.is_terminal() {
        bail!("{is}, and standard output is a terminal; {what_to_do}");
    }
    Ok(out)
}

/// Returns the release of the driver that this machine runs.
pub(super) fn running_driver() -> Option<Version> {
    rm::running_version()
}

/// Reports a driver that is newer than all in the tables.
pub(super) fn tell_of_newer(version: Option<Version>) {
    if let Some(newer) = version.and_then(newer_release) {
        tell(newer);
    }
}

impl Target {
    /// Returns the files that are read.
    pub(super) fn inputs(&self) -> Vec<&Path> {
        self.file.iter().map(PathBuf::as_path).collect()
    }

    /// Tells whether the user named a target. If not, the usage error is reported.
    pub(super) fn is_named(&self, what: &str) -> bool {
        let named = self.file.is_some() || !self.pid.is_empty() || !self.command.is_empty();
        if !named {
            tell(format_args!(
                "nothing to look at: give a command after -- (nvcap {what} -- ./vadd), a process (nvcap {what} \
                 -p PID) or a log (nvcap {what} FILE)"
            ));
        }
        named
    }

    /// Opens the target's file, if it has one and the file is a recording.
    pub(super) fn open(&self) -> Opened<'_> {
        Opened {
            target: self,
            recording: self.file.as_deref().and_then(recording::watched),
        }
    }
}

/// A target. If it is a recording, its file is open.
pub(super) struct Opened<'a> {
    target: &'a Target,
    recording: Option<(Reader<Box<dyn io::Read>>, Reading)>,
}

impl Opened<'_> {
    /// Returns the driver's release, if it is known in advance.
    pub(super) fn version(&mut self) -> Option<Version> {
        if self.target.file.is_none() {
            return running_driver();
        }
        let recorded = self.recording.as_mut().and_then(|(r, _)| r.trace());
        let recorded = || recorded?.driver.as_ref()?.parse().ok();
        self.target.driver.or_else(recorded)
    }

    /// Tells whether the records are those of a live trace, which come nearly in the order of their times.
    pub(super) fn is_trace(&mut self) -> bool {
        let recorded = self.recording.as_mut();
        self.target.file.is_none()
            || recorded.is_some_and(|(r, _)| r.trace().is_none_or(|t| t.how != recording::OF_LOG))
    }

    /// States that the command shows nothing before everything is read, so that progress may be shown. `file` is the place of its output.
    pub(super) fn quiet_until_the_end(mut self, file: Option<&Path>) -> Self {
        if let Some((_, reading)) = &mut self.recording {
            reading.show_for(file);
        }
        self
    }

    /// Gives every record to `each`, in order, until the end. `watch` means that submissions are among them (of a live trace). `idle` is
    /// called when a live trace has nothing to do. How the traced command ended is reported, if its exit status is not 0.
    ///
    /// # Errors
    /// When the log cannot be read, the trace cannot be made, or `each` can take no more.
    pub(super) fn records(
        self,
        watch: bool,
        each: impl FnMut(Record) -> io::Result<()>,
        idle: impl FnMut() -> io::Result<()>,
    ) -> anyhow::Result<()> {
        match (&self.target.file, self.recording) {
            (Some(file), Some(recording)) => recording::give(recording, file, each),
            (Some(file), None) => self.target.log(file, each),
            (None, _) => self.target.live(watch, each, idle),
        }
    }
}

impl Target {
    fn log(
        &self,
        file: &Path,
        mut each: impl FnMut(Record) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let options = ioctl_log::LogOptions {
            pid: 0,
            driver_version: self.driver,
        };
        let log = ioctl_log::read_file(file, options).with_context(|| no_log(file))?;
        let missing = recording::missing_of(&log);
        for record in log.records {
            each(record)?;
        }
        for why in missing {
            tell(format_args!("{}: {why}", file.display()));
            each(Record::Loss(Loss {
                at: At::default(),
                channel: None,
                what: Lost::Untraced { why },
            }))?;
        }
        Ok(())
    }

    fn live(
        &self,
        watch: bool,
        each: impl FnMut(Record) -> io::Result<()>,
        idle: impl FnMut() -> io::Result<()>,
    ) -> anyhow::Result<()> {
        use nvcap_live::trap::{live, session};
        use nvcap_process::channels_file::ChannelsFile;

        let options = session::TrapOptions {
            discover: self.discover.way(),
            follow: !self.no_follow,
            watch,
            named: ChannelsFile::default(),
            buffer: u32::try_from(self.buffer).unwrap_or(1 << 31),
            no_bpf_loop: std::env::var_os("NVCAP_NO_BPF_LOOP").is_some(),
            notice: |line| tell(format_args!("{line}")),
            stacks: None,
            gp_get: watch,
            no_cached_put: true,
            precommit: false,
            mode: session::Mode::Each,
            store_cache: None,
        };
        let limits = live::Limits {
            duration: self.duration,
            max_submissions: None,
        };
        let target = if self.command.is_empty() {
            live::Target::Pids(self.pid.to_vec())
        } else {
            live::Target::Command(launch(&self.command, self.user.as_deref())?)
        };
        let pids = self.pid.to_vec();
        let attached = move || {
            for pid in pids {
                tell(format_args!("process {pid} attached"));
            }
        };
        let child = live::run(options, target, limits, each, idle, attached)?;
        if let Some(child) = child.filter(|c| !c.success()) {
            tell(format_args!("the command ended with {child}"));
        }
        Ok(())
    }
}

/// Returns the message that a log cannot be read, with what the user may have meant.
fn no_log(file: &Path) -> String {
    let name = file.display().to_string();
    if name.parse::<u32>().is_ok() && !file.exists() {
        return format!("cannot read the log (to look at process {name}: -p {name})");
    }
    "cannot read the log".to_owned()
}

/// Returns the command to start, and its user: the one that `--user` names; else, if root runs nvcap by sudo, the user who called sudo,
/// which is reported.
///
/// # Errors
/// When there is no such user, or nvcap may not become that one.
pub(super) fn launch(
    command: &[OsString],
    user: Option<&str>,
) -> anyhow::Result<nvcap_process::command::Launch> {
    use nvcap_process::command::Launch;
    use nvcap_process::user::User;

    // SAFETY: reads an id.
    let own = unsafe { libc::geteuid() };
    let chosen = match user {
        Some(name) => Some(User::find(name)?),
        None if own == 0 => User::of_sudo(|name| std::env::var_os(name))?,
        None => None,
    };
    let chosen = chosen.filter(|u| u.uid != own);
    if let (Some(other), true) = (&chosen, own != 0) {
        bail!(
            "running the command as {}: nvcap is not root; run it as root (sudo nvcap ...), or leave --user out",
            other.name
        );
    }
    if let (Some(caller), None) = (&chosen, user) {
        tell(format_args!(
            "running {} as {} (from SUDO_UID; --user root for root)",
            command.first().cloned().unwrap_or_default().display(),
            caller.name
        ));
    }
    Ok(Launch {
        argv: command.to_vec(),
        user: chosen,
    })
}

/// Returns the status of a command line that names nothing.
pub(super) fn usage() -> ExitCode {
    ExitCode::from(nvcap_decode::ledger::STATUS_USAGE)
}
