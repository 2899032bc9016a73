//! The driver model of a whole target, for the commands that show it at the end.

use std::process::ExitCode;

use anyhow::Context as _;
use nvcap::driver::Options;
use nvcap::ledger::Ledger;
use nvcap::output::gather::Gather;
use nvcap::source::memory::look;

use super::target::{Show, Target};

/// What to look at and where it goes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where it goes.
    #[command(flatten)]
    pub show: Show,

    /// What to look at.
    #[command(flatten)]
    pub target: Target,
}

/// What was gathered.
pub struct Whole {
    /// The model.
    pub gather: Gather,
    /// Slots of which one look cannot say whether they are channels.
    pub unused: usize,
    ledger: Ledger,
}

impl Whole {
    /// The exit status; what is missing is said.
    pub fn end(&self) -> ExitCode {
        if !self.ledger.is_complete() {
            eprintln!("nvcap: {}", nvcap::output::ledger::verdict(&self.ledger));
        }
        ExitCode::from(self.ledger.exit_status())
    }
}

/// Gathers: by one look at running processes, unless a time is given; by tracing; or from a log.
///
/// # Errors
/// When the processes cannot be read, the trace cannot be made or the log cannot be read.
pub fn gather(target: &Target) -> anyhow::Result<Whole> {
    let options = Options {
        driver_version: target.version(),
    };
    if !target.pid.is_empty() && target.duration.is_none() {
        return one_look(&target.pid, options);
    }
    let mut gather = Gather::new(options, target.from.is_none());
    let mut ledger = Ledger::new();
    target.records(
        true,
        |record| {
            ledger.record(&record);
            gather.record(&record);
            Ok(())
        },
        || Ok(()),
    )?;
    Ok(Whole {
        gather,
        unused: 0,
        ledger,
    })
}

fn one_look(pids: &[u32], options: Options) -> anyhow::Result<Whole> {
    let mut gather = Gather::new(options, false);
    let (mut unused, mut next) = (0, 0);
    for pid in pids {
        let seen = look::look(*pid, next).with_context(|| cannot_look(*pid))?;
        for record in &seen.records {
            gather.record(record);
        }
        for (channel, get, put) in seen.positions {
            gather.positions(channel, get, put);
            next = channel.0 + 1;
        }
        unused += seen.unused;
    }
    Ok(Whole {
        gather,
        unused,
        ledger: Ledger::new(),
    })
}

fn cannot_look(pid: u32) -> String {
    if std::path::Path::new(&format!("/proc/{pid}")).exists() {
        format!(
            "cannot look into process {pid}: run nvcap as root (sudo nvcap ...) or as the process's owner with \
             cap_sys_ptrace"
        )
    } else {
        format!(
            "cannot look into process {pid}: there is no such process; check the process id (pgrep, nvidia-smi)"
        )
    }
}
