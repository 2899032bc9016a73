//! Processes of a host that begin to use a GPU while it is traced (`-a`). A separate thread looks for them
//! ([`nvcap_process::host::census`]), so that the search does not delay the looks at rings. Where the kernel reports processes that map
//! memory of a GPU ([`nvcap_process::host::mmap_events`]), they are known within some milliseconds; else they are looked for in `/proc`.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use nvcap_decode::record::{At, Life, Loss, Lost, Process, Record};
use nvcap_process::host::{
    Host,
    census::{Census, Change, GpuProcess},
    choice::Choice,
    mmap_events::Told,
};
use nvcap_process::procfs;
use nvcap_process::{
    clock,
    error::{Error, Result, no_thread},
};

/// Traced processes of a host.
#[derive(Clone, Debug, Default)]
pub struct Everyone {
    /// Filters that choose the processes.
    pub choice: Choice,
    /// Root of the host's files.
    pub host_root: PathBuf,
    /// Shows the user in which way new processes are found.
    pub notice: Option<fn(&str)>,
}

/// The most processes that are named because they may not be looked into; further ones are counted.
const NAMED: usize = 8;
/// Longest wait for the first round.
const FIRST: Duration = Duration::from_secs(10);
/// Longest wait for the last look.
const LAST: Duration = Duration::from_secs(2);
/// Reason why an unknown process may be missing.
const NOT_ALL_TOLD: &str = "more memory was mapped on this machine at once than nvcap could be told of: a process that came to use a GPU \
                            meanwhile, and ended within milliseconds, may be missing";
/// Time between two looks at the kernel's reports, or at the process numbers that it has given.
const LISTENS: Duration = Duration::from_millis(5);

/// Processes that begin to use a GPU.
#[derive(Debug)]
pub(crate) struct Arrivals {
    rounds: mpsc::Receiver<Vec<Change>>,
    /// Changes of the first round.
    first: Vec<Change>,
    is_over: Arc<AtomicBool>,
}

impl Arrivals {
    /// Begins to look, and waits until all processes have been looked at once.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn begin(of: Everyone) -> Result<Self> {
        let (to, rounds) = mpsc::channel();
        let told = Told::new();
        if let Some(notice) = of.notice {
            notice(&way(told.as_ref().err()));
        }
        let mut told = told.ok();
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let look = move || {
            let begun = Instant::now();
            let mut census = Census::new(Host::new(&of.host_root), of.choice);
            census = match &told {
                Some(_) => census.asks_driver(),
                None => census.looks_alone(),
            };
            loop {
                // A round without changes is told, too: that shows whether anybody listens.
                let changes = census.round();
                if !changes.is_empty() {
                    log::debug!(
                        "{} of {} processes have changed, {:?} after the begin",
                        changes.len(),
                        census.len(),
                        begun.elapsed()
                    );
                }
                if to.send(changes).is_err() {
                    return;
                }
                let next = census.next();
                while let Some(left) = next.checked_duration_since(Instant::now()) {
                    let is_last = is_over.load(Ordering::SeqCst);
                    let now = Instant::now();
                    let mut changes = match &mut told {
                        Some(told) => {
                            let mapped = told.take();
                            census.told(&mapped.by, mapped.lost, now)
                        }
                        // The last look is at those that were born, too.
                        None if is_last => Vec::new(),
                        None => census.births(now),
                    };
                    if is_last {
                        changes.extend(census.last());
                    }
                    if !changes.is_empty() && to.send(changes).is_err() || is_last {
                        return;
                    }
                    thread::sleep(left.min(LISTENS));
                }
            }
        };
        thread::Builder::new()
            .name("nvcap-census".into())
            .spawn(look)
            .map_err(|e| no_thread(&e))?;
        let first = rounds.recv_timeout(FIRST).unwrap_or_default();
        Ok(Self {
            rounds,
            first,
            is_over: ends,
        })
    }

    /// Tells whether a chosen process used a GPU at the first round.
    pub(crate) fn any_at_first(&self) -> bool {
        self.first.iter().any(|c| matches!(c, Change::Came(_)))
    }

    /// Looks a last time when the trace ends, because nvcap may have been stopped for long before. Missing processes are reported to `to`.
    pub(crate) fn end(mut self, to: &mut Vec<Record>) -> Vec<Came> {
        self.is_over.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while let Some(left) = LAST.checked_sub(begun.elapsed()) {
            match self.rounds.recv_timeout(left) {
                Ok(changes) => self.first.extend(changes),
                Err(_) => break,
            }
        }
        self.take(to)
    }

    /// Takes the processes that have come since the last call. Their identities, and the processes that may not be looked into, are
    /// reported to `to`.
    pub(crate) fn take(&mut self, to: &mut Vec<Record>) -> Vec<Came> {
        let (mut came, mut hidden) = (Vec::new(), Vec::new());
        let mut changes = std::mem::take(&mut self.first);
        changes.extend(self.rounds.try_iter().flatten());
        for change in changes {
            match change {
                Change::Came(found) => {
                    came.push(Came {
                        pid: found.pid,
                        was_there: found.was_there,
                        can_submit: found.can_submit,
                        comm: found.identity.comm.clone(),
                    });
                    to.push(identity(*found));
                }
                Change::Differs(found) => to.push(identity(*found)),
                // The source sees that itself.
                Change::Went(pid) => log::debug!("process {pid} has ended"),
                Change::Hidden(found, _) => hidden.push(*found),
                Change::Missed(found) => to.push(untraced(found.pid, ended(&found.identity.comm))),
                Change::NotAllTold => to.push(untraced(0, NOT_ALL_TOLD.to_owned())),
                Change::NotSeen(why) => to.push(untraced(0, why)),
            }
        }
        if !hidden.is_empty() {
            to.push(untraced(0, not_looked_into(&hidden)));
        }
        came
    }
}

/// A process that has begun to use a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    /// Its id.
    pub pid: u32,
    /// True if it used a GPU before the trace began.
    pub was_there: bool,
    can_submit: bool,
    comm: String,
}

impl Came {
    /// Returns the loss for a process that could not be followed. A process that has ended meanwhile is no loss, unless it may have
    /// submitted since it came.
    pub(crate) fn refused(&self, why: &Error) -> Option<Record> {
        let why = match procfs::has_ended(self.pid) {
            false => format!("{}: {why}", self.comm),
            true if self.can_submit && !self.was_there => ended(&self.comm),
            true => return None,
        };
        Some(untraced(self.pid, why))
    }
}

/// Returns the reason why a process that ended too soon is not traced.
fn ended(comm: &str) -> String {
    let name = if comm.is_empty() { "a process" } else { comm };
    format!("{name}: it mapped memory of a GPU and ended before it could be followed")
}

/// Describes the way in which new processes are found. `refused`: the reason why the kernel does not report them.
fn way(refused: Option<&io::Error>) -> String {
    match refused {
        None => "the kernel tells of processes that come to use a GPU (perf events)".to_owned(),
        Some(e) => format!(
            "processes that come to use a GPU are looked for in /proc, 20 times a second, for perf events of all processes are refused \
             ({e}): those that end sooner are counted as not seen; root or cap_perfmon have them"
        ),
    }
}

fn at(pid: u32) -> At {
    At {
        time_ns: clock::now(),
        pid,
        tid: pid,
    }
}

fn identity(found: GpuProcess) -> Record {
    Record::Process(Process {
        at: at(found.pid),
        life: Life::Identity(Box::new(found.identity)),
    })
}

fn untraced(pid: u32, why: String) -> Record {
    Record::Loss(Loss {
        at: at(pid),
        channel: None,
        what: Lost::Untraced { why },
    })
}

/// Returns one line which says that these processes may not be looked into.
fn not_looked_into(hidden: &[GpuProcess]) -> String {
    let named = hidden.iter().take(NAMED).map(|f| {
        let who = &f.identity;
        match &who.user {
            Some(user) => format!("{} {} of {user}", who.comm, f.pid),
            None => format!("{} {}", who.comm, f.pid),
        }
    });
    let named: Vec<String> = named.collect();
    let more = match hidden.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let (count, who) = match hidden.len() {
        1 => ("1 process".to_owned(), "whether it uses"),
        n => (format!("{n} processes"), "which of them use"),
    };
    format!(
        "{count} may not be looked into, so that it is not known {who} a GPU: {}{more}; {}; or leave them out (--user, \
         --comm, ...)",
        named.join(", "),
        procfs::mem::remedy()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::Identity;

    fn found(pid: u32) -> GpuProcess {
        GpuProcess {
            pid,
            identity: Identity {
                comm: "bash".into(),
                user: (pid == 1).then(|| "ann".into()),
                ..Identity::default()
            },
            was_there: false,
            can_submit: true,
        }
    }

    #[test]
    fn what_may_not_be_looked_into_is_named_and_counted() {
        let one = not_looked_into(&[found(1)]);
        assert!(one.starts_with("1 process may not be looked into"), "{one}");
        assert!(one.contains(": bash 1 of ann; "), "{one}");
        let many: Vec<GpuProcess> = (1..=20).map(found).collect();
        let many = not_looked_into(&many);
        assert!(many.starts_with("20 processes may not"), "{many}");
        assert!(many.contains("bash 8 and 12 more; "), "{many}");
    }
}
