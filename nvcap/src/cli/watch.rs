//! `nvcap watch`: a wait for a hang or an error of the driver, then a dump and a command.

mod collective;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};

use nvcap_monitor::dump::xids::Xids;
use nvcap_monitor::watch::{Cause, Finding, Watch};
use nvcap_process::exit_stop;
use nvcap_show::output::dump::{self, Collective, ReportOptions, Shown, Status};
use nvcap_show::output::json::text_of;
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural_of;
use nvcap_show::output::writer::Output;

use super::pids::Pids;
use super::said::Said;
use super::target::{self, usage};
use super::values::parse_time;

pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap watch -p 4711                       a minute without movement is a hang
  sudo nvcap watch -a --hang 5m --dir /var/tmp   every process that uses a GPU
  sudo nvcap watch -a --hang 60s --exec 'mail -s \"GPU hang $NVCAP_PID\" oncall < \"$NVCAP_DUMP\"'
  sudo nvcap watch -a --fault --dir /var/tmp     errors of the driver alone: which kernel faulted
  sudo nvcap watch -p 4711 --once; echo $?       until the first one: 13 a hang, 14 an error

A process hangs when no channel of it has moved for so long, and work is unfinished. It has an error
when the driver has stopped a channel of it (its error notifier, read each time) or has written an
Xid message about it (the kernel's log). It is then dumped (nvcap dump) into
DIR/nvcap-PID-TIME.txt and .json, which the user of nvcap alone can read, and the watch goes on.
Of one that hangs in a collective it is told which of those that are watched have not come.
From the error until then nvcap traces the process (ptrace) and holds its end, five seconds at most;
where a debugger is attached it does not.

Once a second, with --fault ten times, it reads 8 to 32 bytes of every channel: no breakpoint, no
BPF, no stop.

The command runs in /bin/sh as the user, and with the rights, that nvcap runs with, with
  NVCAP_PID          the process; not set where the driver names none (an exception of its GPU)
  NVCAP_VERDICT      hang or error
  NVCAP_XID          the number of the error
  NVCAP_DUMP         the dump's path, as text; not set if there is none
  NVCAP_DUMP_JSON    the same as JSON
Nothing that the process itself can choose (its name, its memory) gets into the command.

Exit status: 0 all processes that were named have ended; with --once 13 a hang, 14 an error of the
driver's; 1 error; 2 usage.";

/// Processes to watch, and the actions on a hang or an error.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    pub pid: Pids,

    /// Every process that uses a GPU, now or later
    #[arg(short, long, conflicts_with = "pid")]
    all: bool,

    /// Only processes of USER, a name, a number or a pattern; may be given several times
    #[arg(long, value_name = "USER", requires = "all", help_heading = super::values::WHOM)]
    user: Vec<String>,

    /// Filters of the processes.
    #[command(flatten)]
    filters: super::process_filter::Filters,

    /// A process with unfinished work counts as hung when none of its channels has moved for TIME: 60s, 5m, 1.5h; 60s if not given
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    hang: Option<Duration>,

    /// Wait only for errors of the driver (faults, Xid); with --hang, for hangs, too
    #[arg(long)]
    fault: bool,

    /// The folder of the dumps
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Run this in /bin/sh when a process hangs or has an error
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,

    /// End after the first hang or error
    #[arg(long)]
    once: bool,

    /// Say each hang and error as one JSON object a line (docs/hang.md)
    #[arg(long)]
    json: bool,

    /// Dump the newest N entries of each channel
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: u32,

    /// Do not read the threads' stacks
    #[arg(long)]
    no_stacks: bool,
}

/// Time without movement that counts as a hang, if none is given.
const HANG: Duration = Duration::from_secs(60);
/// Time between two readings if errors are waited for, because a process may end a short time after one.
const FAULT_PAUSE: Duration = Duration::from_millis(100);

impl Args {
    /// Returns the time without movement that counts as a hang; `None` if only errors are waited for.
    fn limit(&self) -> Option<Duration> {
        self.hang.or((!self.fault).then_some(HANG))
    }

    /// Returns the time between two readings: a second, or less for short times and for errors.
    fn pause(&self) -> Duration {
        let longest = match self.fault {
            true => FAULT_PAUSE,
            false => Duration::from_secs(1),
        };
        let part = self.limit().map_or(longest, |hang| hang / 16);
        part.clamp(Duration::from_millis(20), longest)
    }
}

/// Watches the processes.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let users = args.user.iter().cloned();
    let Some(whom) = args.filters.whom("watch", &args.pid, args.all, users)? else {
        return Ok(usage());
    };
    if !args.dir.is_dir() {
        bail!(
            "cannot write dumps to {}: it is no folder; make it, or name another with --dir",
            args.dir.display()
        );
    }
    let options = super::usual_look::options(args.last, !args.no_stacks);
    let xids = Xids::open().map_err(|why| tell(format_args!("note: {why}")));
    // For the processes whose ends are held, this must come before threads are started.
    exit_stop::block_sigchld();
    let mut watch = Watch::new(whom, args.limit(), options, xids.ok());
    let mut out = Some(Output::stdout());
    let mut commands: Vec<Child> = Vec::new();
    let (mut watched, mut told) = (None, false);
    loop {
        watch.round(Instant::now()).map_err(|(pid, e)| {
            let unfit = nvcap_process::procfs::unfit::because_of(pid, &e);
            anyhow::anyhow!("cannot look into process {pid}: {unfit}")
        })?;
        if watched.replace(watch.len()) != Some(watch.len()) {
            let all = plural_of(watch.len() as u64, "process", "processes");
            let what = match args.limit() {
                Some(_) => "",
                None => " for errors of the driver",
            };
            tell(format_args!("watching {all} with channels on a GPU{what}"));
        }
        if let Some(text) =
            not_watched(watch.hidden()).filter(|_| !std::mem::replace(&mut told, true))
        {
            tell(text);
        }
        let over = watch.is_over();
        for pid in watch.take_unread() {
            tell(format_args!(
                "process {pid} has ended: an error at its end is not told, for its error notifiers were last read before, and the kernel log cannot be read"
            ));
        }
        while let Some(finding) = watch.next_finding() {
            let others = { collective::is_in_one(&finding) }.then(|| watch.others(finding.pid));
            let collective = others.and_then(|others| collective::of(&finding, &others));
            let status = report(&mut out, args, finding, collective, &mut commands);
            if args.once {
                for mut command in commands {
                    ended(command.wait());
                }
                return Ok(ExitCode::from(status.code()));
            }
        }
        commands.retain_mut(|command| match command.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended(Ok(status));
                false
            }
            Err(e) => {
                ended(Err(e));
                false
            }
        });
        if over {
            tell(format_args!("all processes that were watched have ended"));
            return Ok(ExitCode::SUCCESS);
        }
        watch.wait(args.pause());
    }
}

/// Returns the number, in words, of processes that are not watched because they may not be looked into.
fn not_watched(hidden: usize) -> Option<String> {
    let use_one = if hidden == 1 { "it uses" } else { "they use" };
    let are = if hidden == 1 { "is" } else { "are" };
    let others = plural_of(hidden as u64, "process", "processes");
    (hidden > 0).then(|| {
        format!(
            "{others} {are} not watched, whether or not {use_one} a GPU, for nvcap may not look into them: {}",
            nvcap_process::procfs::mem::remedy()
        )
    })
}

/// Reports how the command ended, if it failed.
fn ended(status: io::Result<std::process::ExitStatus>) {
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => tell(format_args!("the command of --exec failed: {status}")),
        Err(e) => tell(format_args!("the command of --exec was lost: {e}")),
    }
}

/// Writes the dumps, starts the command, and reports where they are. The command is run even if nobody reads the report.
fn report(
    out: &mut Option<Output>,
    args: &Args,
    finding: Finding,
    collective: Option<Collective>,
    commands: &mut Vec<Child>,
) -> Status {
    let status = match finding.cause {
        Cause::Hang => Status::Hang,
        Cause::Error => Status::Stopped,
    };
    let written = match finding.report.processes.is_empty() {
        true if finding.pid == 0 => Err(anyhow::anyhow!("nothing is dumped")),
        true => Err(anyhow::anyhow!("it had ended before it could be dumped")),
        false => dumped(args, &finding, collective.as_ref()),
    };
    let mut said = Said::of(&finding);
    said.collective = collective;
    // The process may end now.
    drop(finding.hold);
    let (paths, error) = match written {
        Ok(paths) => (Some(paths), None),
        Err(e) => (None, Some(e)),
    };
    let line = match (args.json, &paths) {
        (true, _) => Some(text_of(&said.json(paths.as_ref())) + "\n"),
        (false, Some(paths)) => {
            let mut text = format!(
                "{}: dumped to {} and .json\n",
                said.text(),
                paths.0.display()
            );
            for line in said
                .collective
                .as_ref()
                .map(Collective::lines)
                .unwrap_or_default()
            {
                text.push_str("  ");
                text.push_str(&line);
                text.push('\n');
            }
            Some(text)
        }
        (false, None) => { error.as_ref() }.map(|e| format!("{}; {e:#}\n", said.text())),
    };
    if let Some(e) = error.filter(|_| args.json) {
        tell(format_args!("{}; {e:#}", said.text()));
    }
    if let Some(command) = &args.exec {
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", command])
            .stdin(Stdio::null())
            .env("NVCAP_VERDICT", said.word());
        match said.pid() {
            Some(pid) => shell.env("NVCAP_PID", pid.to_string()),
            None => shell.env_remove("NVCAP_PID"),
        };
        if let Some(fault) = &said.fault {
            shell.env("NVCAP_XID", fault.code.to_string());
        }
        if let Some((text, json)) = paths {
            shell.env("NVCAP_DUMP", text).env("NVCAP_DUMP_JSON", json);
        }
        match shell.spawn() {
            Ok(child) => commands.push(child),
            Err(e) => tell(format_args!(
                "the command of --exec could not be started: {e}"
            )),
        }
    }
    if let (Some(line), Some(stdout)) = (line, &mut *out) {
        stdout.object().extend_from_slice(line.as_bytes());
        if let Err(e) = target::written(stdout) {
            tell(format_args!(
                "nothing can be told on standard output any more ({e}); the watch goes on"
            ));
            *out = None;
        }
    }
    status
}

/// Writes both forms of the dump. Returns their paths.
fn dumped(
    args: &Args,
    finding: &Finding,
    collective: Option<&Collective>,
) -> anyhow::Result<(PathBuf, PathBuf)> {
    let shown = Shown {
        report: &finding.report,
        moved: finding.moved.as_ref(),
    };
    let options = ReportOptions {
        last: Some(args.last),
        full_stacks: true,
        ..ReportOptions::default()
    };
    let (mut text, mut json) = (Vec::new(), Vec::new());
    dump::text(&mut text, &shown, &options);
    for line in collective.map(Collective::lines).unwrap_or_default() {
        text.extend_from_slice(format!("\n{line}").as_bytes());
    }
    if collective.is_some() {
        text.push(b'\n');
    }
    dump::json(&mut json, &shown, &options);
    write(&args.dir, finding.pid, &text, &json).with_context(|| {
        format!(
            "cannot write the dump to {} (name a folder that you may write to with --dir)",
            args.dir.display()
        )
    })
}

/// Returns a time in the form `20261122T131500Z`.
fn stamp(now: SystemTime) -> String {
    let seconds = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Date of the day in the proleptic Gregorian calendar, by eras of 400 years that begin on a 1st of March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Writes both forms into new files that only nvcap's user can read. Returns their paths.
fn write(dir: &Path, pid: u32, text: &[u8], json: &[u8]) -> io::Result<(PathBuf, PathBuf)> {
    let stamp = stamp(SystemTime::now());
    // A file or link that exists already is somebody else's.
    let new = nvcap_show::output::file::new;
    for number in 0..100 {
        let more = match number {
            0 => String::new(),
            n => format!("-{n}"),
        };
        let path = dir.join(format!("nvcap-{pid}-{stamp}{more}.txt"));
        let other = path.with_extension("json");
        let mut file = match new(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            file => file?,
        };
        let written = new(&other).and_then(|mut other_file| {
            other_file.write_all(json)?;
            file.write_all(text)
        });
        match written {
            Ok(()) => return Ok((path, other)),
            // Neither form stays there alone.
            Err(e) => {
                std::fs::remove_file(&path)?;
                match e.kind() {
                    io::ErrorKind::AlreadyExists => {}
                    _ => {
                        let _ = std::fs::remove_file(&other);
                        return Err(e);
                    }
                }
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn dates() {
        let at = |s| stamp(SystemTime::UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "19700101T000000Z");
        assert_eq!(at(951_782_400), "20000229T000000Z");
        assert_eq!(at(1_709_251_199), "20240229T235959Z");
        assert_eq!(at(1_709_251_200), "20240301T000000Z");
        assert_eq!(at(4_102_444_799), "20991231T235959Z");
    }

    #[test]
    fn files_are_new_and_the_users_own() {
        let dir = std::env::temp_dir().join(format!("nvcap-watch-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let all: Vec<_> = (0..3)
            .map(|n| write(&dir, 7, &[b'a' + n], b"{}").unwrap())
            .collect();
        for (n, (text, json)) in all.iter().enumerate() {
            assert_eq!(std::fs::read(text).unwrap(), [b'a' + n as u8]);
            for file in [text, json] {
                let mode = file.metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{}", file.display());
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(write(&dir, 7, b"", b"").is_err());
    }

    #[test]
    fn no_text_stands_alone() {
        let dir = std::env::temp_dir().join(format!("nvcap-watch-alone-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        // The second name is taken, for this second and for those that a slow machine may need.
        let theirs: Vec<PathBuf> = (0..100)
            .map(|s| stamp(SystemTime::now() + Duration::from_secs(s)))
            .map(|stamp| dir.join(format!("nvcap-7-{stamp}.json")))
            .collect();
        theirs
            .iter()
            .for_each(|path| std::fs::write(path, "theirs").unwrap());
        let (text, json) = write(&dir, 7, b"text", b"json").unwrap();
        assert_eq!(std::fs::read(&text).unwrap(), b"text");
        assert_eq!(std::fs::read(&json).unwrap(), b"json");
        assert!(theirs.iter().all(|p| !p.with_extension("txt").exists()));
        assert!(
            theirs
                .iter()
                .all(|p| std::fs::read(p).unwrap() == b"theirs")
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn readings_are_a_second_apart() {
        let of = |words: &[&str]| {
            use clap::{Args as _, FromArgMatches as _};
            let command = super::Args::augment_args(clap::Command::new("watch"));
            let all = command.get_matches_from([&["watch", "-a"], words].concat());
            let args = super::Args::from_arg_matches(&all).unwrap();
            (args.limit(), args.pause())
        };
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        assert_eq!(of(&[]), (Some(60 * second), second));
        assert_eq!(of(&["--hang=1s"]), (Some(second), second / 16));
        assert_eq!(of(&["--fault"]), (None, ms(100)));
        assert_eq!(of(&["--fault", "--hang=1m"]), (Some(60 * second), ms(100)));
        assert_eq!(of(&["--fault", "--hang=1s"]), (Some(second), second / 16));
    }
}
