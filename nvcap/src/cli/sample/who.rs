//! Processes that are sampled: those that were named, all that use a GPU, or a command with its descendants.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use nvcap_live::enrich::beside::BesideTrace;
use nvcap_process::command::Command;
use nvcap_process::exit_hold::ExitHold;
use nvcap_process::memory::maps::has_gpu_open;
use nvcap_process::{exit_stop, procfs, signals};
use nvcap_show::output::message::tell;

use crate::cli::target;

/// Time that a command is given to end after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// Choice of the processes.
pub(super) enum Who {
    Pids(Vec<u32>),
    All,
    Command(Box<Running>),
    /// Processes of a trace that runs at the same time.
    Traced(BesideTrace),
}

/// A command that nvcap has started.
pub(super) struct Running {
    command: Command,
    /// Hold of the command's end, until names are found.
    hold: Option<ExitHold>,
    /// Time at which a signal came.
    stopping: Option<Instant>,
}

impl Running {
    /// Prepares the command, which waits to be let go.
    pub(super) fn prepare(command: &[OsString], user: Option<&str>) -> anyhow::Result<Self> {
        let command = Command::prepare(&target::launch(command, user)?)?;
        exit_stop::block_sigchld();
        Ok(Self {
            hold: ExitHold::of(command.pid),
            command,
            stopping: None,
        })
    }

    fn stands_at_its_end(&self) -> bool {
        self.hold.as_ref().is_some_and(ExitHold::is_ending)
    }
}

impl Who {
    /// Lets the command go, if there is one.
    pub(super) fn go(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Command(running) => Ok(running.command.go()?),
            Self::Pids(_) | Self::All | Self::Traced(_) => Ok(()),
        }
    }

    /// Tells whether further processes and contexts may come.
    pub(super) fn grows(&self) -> bool {
        !matches!(self, Self::Pids(_))
    }

    /// Returns the processes as they are now, with the number of the driver's files that each has open; another number shows a change.
    pub(super) fn processes(&self) -> Vec<(u32, usize)> {
        let own = std::process::id();
        let all: BTreeSet<u32> = match self {
            Self::Pids(pids) => pids.iter().copied().collect(),
            Self::All => procfs::processes().into_iter().collect(),
            Self::Command(running) => with_descendants(running.command.pid),
            Self::Traced(trace) => trace.processes(),
        };
        let all = all.into_iter().filter(|pid| *pid != own);
        let all = all.filter(|pid| !self.grows() || has_gpu_open(*pid));
        all.map(|pid| (pid, files(pid))).collect()
    }

    /// Tells whether sampling is over, by a signal or because all processes have ended. A command is sent the signals that it did not get
    /// by itself, and is given time to end.
    pub(super) fn is_over(&mut self) -> bool {
        match self {
            Self::All => signals::is_one(),
            Self::Traced(trace) => trace.is_over(),
            Self::Pids(pids) => signals::is_one() || pids.iter().all(|pid| procfs::has_ended(*pid)),
            Self::Command(running) => {
                if running.stands_at_its_end() || running.command.try_wait().is_some() {
                    return true;
                }
                match (signals::take(), running.stopping) {
                    (0, since) => since.is_some_and(|since| since.elapsed() >= GRACE),
                    (_, Some(_)) => true,
                    (signal, None) => {
                        // A command in the foreground gets Ctrl-C by itself.
                        if signal != libc::SIGINT {
                            running.command.signal(signal);
                        }
                        running.stopping = Some(Instant::now());
                        false
                    }
                }
            }
        }
    }

    /// Returns the traced process that is stopped at its end until its names are found, if there is one.
    pub(super) fn is_asked(&self) -> Option<usize> {
        match self {
            Self::Traced(trace) => trace.is_asked(),
            Self::Pids(_) | Self::All | Self::Command(_) => None,
        }
    }

    /// States that the names of a process that is stopped at its end were found.
    pub(super) fn answer(&self, asked: usize) {
        if let Self::Traced(trace) = self {
            trace.answer(asked);
        }
    }

    /// Lets a command that is stopped at its end go, and reports how it has ended, or that it goes on running.
    pub(super) fn end(self) {
        let Self::Command(mut running) = self else {
            return;
        };
        let is_ending = running.stands_at_its_end();
        running.hold = None;
        let ended = match is_ending {
            true => running.command.wait(),
            false => running.command.try_wait(),
        };
        match ended {
            Some(status) if !status.success() => {
                tell(format_args!("the command ended with {status}"));
            }
            Some(_) => {}
            None => tell(format_args!(
                "the command runs on (process {})",
                running.command.pid
            )),
        }
    }
}

/// Returns a process and all processes that it has started, as far as they still exist.
fn with_descendants(pid: u32) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    let mut left = vec![pid];
    while let Some(pid) = left.pop() {
        if all.insert(pid) {
            left.extend(procfs::children(pid, &mut || ()));
        }
    }
    all
}

/// Returns the number of the driver's files that a process has open.
fn files(pid: u32) -> usize {
    let files = procfs::open_files(pid).into_iter().flatten().flatten();
    let of_driver = |entry: &std::fs::DirEntry| {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        let name = link.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b"nvidia")
    };
    files.filter(of_driver).count()
}
