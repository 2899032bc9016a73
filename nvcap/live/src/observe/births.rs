//! Processes that are born anywhere on this machine. When its parent ends, a process becomes a child of another process, so
//! that the lists of observed processes' children do not show it.

use std::collections::{BTreeMap, VecDeque};

use super::process::{is_there, now};
use nvcap_process::host::fork_events::{Descent, Told};
use nvcap_process::procfs::births::Numbers;

/// Time for which a number is looked at again whose process could not be seen yet, ns. (The kernel gives the number some time
/// before the process can be seen.)
const EARLY_NS: u64 = 1_000_000_000;
/// The most of these numbers that are kept.
const EARLY: usize = 256;

/// Number of a process that cannot be seen yet, or is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    /// Number of the process.
    pub pid: u32,
    /// Time up to which it is looked at again, ns.
    until: u64,
}

/// A process that may descend from an observed one and is kept in view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suspect {
    /// The process was not seen to use a GPU.
    Idle,
    /// The process was first seen to use a GPU at this time, ns.
    Uses(u64),
    /// The process's use of a GPU was reported.
    Told,
}

/// Known births of processes.
#[derive(Debug)]
pub(super) struct Births {
    numbers: Numbers,
    /// The kernel's reports of who made which process; `None` where they are refused.
    told: Option<Told>,
    /// Processes that could not be seen yet, or are gone.
    early: VecDeque<Early>,
    /// Time at which an observed process was last found to have ended, ns.
    ended: u64,
    /// Time at which newborn processes are looked at next, ns.
    pub next: u64,
    /// Processes that may descend from an observed one and are not followed.
    pub suspects: BTreeMap<u32, Suspect>,
}

impl Births {
    /// Takes note of the processes that are born from now on. `follow`: it is asked who made them.
    pub(super) fn new(follow: bool) -> Self {
        let told = follow.then(Told::new);
        if let Some(Err(e)) = &told {
            log::debug!("the kernel does not tell who makes processes: {e}");
        }
        Self {
            numbers: Numbers::new(),
            told: told.and_then(Result::ok),
            early: VecDeque::new(),
            ended: 0,
            next: 0,
            suspects: BTreeMap::new(),
        }
    }

    /// Returns the numbers that were given since the last call.
    pub(super) fn fresh(&mut self) -> Vec<u32> {
        if let Some(told) = &mut self.told {
            told.take();
        }
        self.numbers.fresh()
    }

    /// Takes note that a process's descendants are meant, too.
    pub(super) fn is_meant(&mut self, pid: u32) {
        if let Some(told) = &mut self.told {
            told.name(pid);
        }
    }

    /// Returns the descent of a process that was born: from one of those that are meant, or not.
    pub(super) fn descent(&mut self, pid: u32) -> Descent {
        let told = self.told.as_mut();
        told.map_or(Descent::Unknown, |told| told.descent(pid))
    }

    /// Keeps the number of a process that cannot be seen yet, or is executing a program.
    pub(super) fn keep(&mut self, pid: u32) {
        if self.early.len() == EARLY {
            self.early.pop_front();
        }
        let until = now() + EARLY_NS;
        self.early.push_back(Early { pid, until });
    }

    /// True if numbers are kept whose processes could not be seen yet, or were gone when they were looked at.
    fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// True if this process could not be seen yet, or was gone.
    pub(super) fn is_early(&self, pid: u32) -> bool {
        self.early.iter().any(|e| e.pid == pid)
    }

    /// Takes note that an observed process has ended: the processes that it made last may not have been seen.
    pub(super) fn ended(&mut self) {
        self.ended = now();
    }

    /// True if processes that come and go between two looks stay unknown; see [`Numbers::tells_all`].
    pub(super) fn are_listed(&self) -> bool {
        !self.numbers.tells_all()
    }

    /// True if a process that may have made others has come and gone unseen of late, or an observed process has ended of late.
    pub(super) fn may_have_missed(&self) -> bool {
        self.are_listed() || self.has_early() || now().saturating_sub(self.ended) < EARLY_NS
    }

    /// Takes the kept processes that can be seen now. The caller looks at them again, and gives those back
    /// ([`still`](Self::still)) of which nothing is known yet.
    pub(super) fn early(&mut self) -> Vec<Early> {
        let now = now();
        self.early.retain(|e| e.until > now);
        let (there, not): (Vec<_>, Vec<_>) = self.early.drain(..).partition(|e| is_there(e.pid));
        self.early = not.into();
        there
    }

    /// Keeps a process of [`early`](Self::early) until its time is over.
    pub(super) fn still(&mut self, early: Early) {
        self.early.push_back(early);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_yet_is_looked_at_again() {
        let mut births = Births::new(false);
        let own = std::process::id();
        for pid in [own, 0x3fff_fff0] {
            births.keep(pid);
        }
        let early = births.early();
        assert_eq!(early.iter().map(|e| e.pid).collect::<Vec<_>>(), [own]);
        assert!(births.has_early() && births.early().is_empty());
        for until in [now() + 1_000_000_000, 0] {
            births.still(Early { pid: own, until });
        }
        assert_eq!(births.early().len(), 1);
        for pid in 0..10_000 {
            births.keep(0x3000_0000 + pid);
        }
        assert_eq!(births.early.len(), EARLY);
    }
}
