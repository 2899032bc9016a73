//! Threads, and the doorbells that are watched in each. Must not know anything of captures.
//!
//! Invariant: a process has at most one set of events for an address, its own or an inherited one, because two would trap twice. Hits of events
//! that were closed stay counted.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::BorrowedFd,
};

use nvcap_common::Birth;

use super::super::{
    perf::Life,
    watchpoints::{Armed, Present, Stops},
};
use nvcap_process::error::{Error, remedy_for_refusal};

/// Time for which a breakpoint may have no debug register while its thread runs, ns: much more than it takes to set the register.
pub(super) const UNSET_NS: u64 = 1_000_000;

/// Reason why a doorbell cannot be watched.
#[derive(Debug)]
pub(super) enum WatchError {
    /// A thread has no debug register left.
    NoRegister,
    /// The process has ended.
    ProcessGone,
    /// The kernel refuses.
    Refused(io::Error),
}

impl From<io::Error> for WatchError {
    fn from(e: io::Error) -> Self {
        match e.raw_os_error() {
            Some(libc::ENOSPC) => Self::NoRegister,
            Some(libc::ENOENT | libc::ESRCH) => Self::ProcessGone,
            _ => Self::Refused(e),
        }
    }
}

impl WatchError {
    /// Makes the error that the user sees.
    pub(super) fn of(self, pid: u32, address: u64) -> Error {
        let what = format!("watching the doorbell {address:#x} of process {pid}");
        match self {
            Self::NoRegister => Error::new(
                what,
                "no debug register is left in one of its threads (there are 4)",
                "end the debugger or tracer that holds them",
            )
            .or_observe(),
            Self::ProcessGone => Error::new(what, "the process is gone", "check the process id"),
            Self::Refused(e) => Error::new(what, &e, remedy_for_refusal(&e)),
        }
    }
}

/// A doorbell of a process, and its GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) address: u64,
    /// GPU of the doorbell, where it is known.
    pub(super) gpu: Option<u32>,
}

/// A doorbell to watch, or a store at which threads are to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) pid: u32,
    pub(super) stops: Stops,
    pub(super) address: u64,
    pub(super) life: Life,
}

/// Result of setting a breakpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// The breakpoint was set before.
    Before,
    /// The breakpoint is set in every thread.
    Whole,
    /// The breakpoint is set in some threads; the others have no debug register left.
    Partial,
}

/// The breakpoints of all processes.
#[derive(Debug, Default)]
pub(super) struct Breakpoints {
    armed: HashMap<u32, Vec<Armed>>,
    /// Breakpoints that ended with an exec or with their process. They stay open, because closing them would end the breakpoints that children
    /// inherited from them.
    ended: Vec<Armed>,
    /// Hits of closed breakpoints.
    closed_hits: u64,
    /// Processes that got breakpoints since the last call of `take_new`.
    new: BTreeSet<u32>,
}

impl Breakpoints {
    /// Watches a doorbell. `program` and `birth`: see [`Present::new`].
    ///
    /// # Errors
    /// When no thread can be watched.
    pub(super) fn set(
        &mut self,
        watch: Watch,
        program: BorrowedFd<'_>,
        birth: impl Fn(u32) -> Option<Birth>,
    ) -> Result<Set, WatchError> {
        let Watch {
            pid,
            stops,
            address,
            life,
        } = watch;
        let list = self.armed.entry(pid).or_default();
        if list.iter().any(|a| a.address == address) {
            // Of the program before it, for which that was told, too.
            #[cfg(feature = "in-step")]
            nvcap_process::in_step::armed(pid, list.len());
            return Ok(Set::Before);
        }
        let threads = Present::new(pid, program, birth);
        let armed = Armed::new(&threads, (stops, address), life, list.len())?;
        let set = set_of(&armed);
        list.push(armed);
        #[cfg(feature = "in-step")]
        nvcap_process::in_step::armed(pid, list.len());
        self.new.insert(pid);
        Ok(set)
    }

    /// Sets the watches in a new thread that it did not inherit, because its maker was being armed at its birth. Returns the addresses that it
    /// lacked, each with whether all threads have a register for it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn thread_came(
        &mut self,
        pid: u32,
        (tid, born): (u32, Birth),
        program: BorrowedFd<'_>,
        birth: impl Fn(u32) -> Option<Birth>,
    ) -> Result<Vec<(u64, Set)>, WatchError> {
        let births = |other| match other == tid {
            true => Some(born),
            false => birth(other),
        };
        let threads = Present::new(pid, program, births);
        let mut lacked = Vec::new();
        for armed in self.armed.get_mut(&pid).into_iter().flatten() {
            if armed.thread_came((tid, born), &threads)? {
                lacked.push((armed.address, set_of(armed)));
            }
        }
        Ok(lacked)
    }

    /// Takes the processes that got breakpoints since the last call.
    pub(super) fn take_new(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.new)
    }

    /// Tells whether the process has any breakpoint.
    pub(super) fn any(&self, pid: u32) -> bool {
        self.armed.get(&pid).is_some_and(|all| !all.is_empty())
    }

    /// Returns the last doorbell that is watched in the process. Stopping its watch frees a register. `only`: even if it is the only one.
    pub(super) fn spare(&self, pid: u32, only: bool) -> Option<u64> {
        let all = self.armed.get(&pid)?.iter();
        let mut watched = all.filter(|a| a.stops == Stops::AfterWrite && a.of.is_none());
        let last = watched.next_back()?;
        (only || watched.next().is_some()).then_some(last.address)
    }

    /// Returns the doorbells that are watched in the process.
    pub(super) fn doorbells(&self, pid: u32) -> impl Iterator<Item = u64> + '_ {
        let all = self.armed.get(&pid).into_iter().flatten();
        all.filter(|a| a.stops == Stops::AfterWrite)
            .map(|a| a.address)
    }

    /// Returns the time for which breakpoints of the process (or of its parent, whose breakpoints it shares) had no debug register while threads
    /// with them ran, ns.
    pub(super) fn unset_ns(&self, pid: u32) -> u64 {
        let own = self.armed.get(&pid).into_iter().flatten();
        let events = own.flat_map(|a| {
            let of_owner = self.armed.get(&a.of.unwrap_or(pid)).into_iter().flatten();
            let ended = a.of.is_some().then_some(&self.ended).into_iter().flatten();
            of_owner.chain(ended).filter(|e| e.address == a.address)
        });
        events.map(|e| e.counted().unset_ns).max().unwrap_or(0)
    }

    /// Disables or enables a process's watchpoints, including those that it inherited from a process that is gone.
    pub(super) fn wake(&self, pid: u32, wake: bool) {
        let own = self.armed.get(&pid).into_iter().flatten();
        let own: Vec<&Armed> = own.filter(|a| a.stops == Stops::AfterWrite).collect();
        let is_inherited = |e: &&Armed| {
            let mut inherited = own.iter().filter(|a| a.of.is_some());
            inherited.any(|a| a.address == e.address)
        };
        own.iter().for_each(|a| a.wake(wake));
        self.ended
            .iter()
            .filter(is_inherited)
            .for_each(|a| a.wake(wake));
    }

    /// Disables or enables all breakpoints.
    pub(super) fn wake_all(&self, wake: bool) {
        let all = self.armed.values().flatten().chain(&self.ended);
        all.for_each(|a| a.wake(wake));
    }

    /// Takes note of the breakpoints that a child process was born with: own ones would trap twice. Returns the breakpoints of its parent that it
    /// lacks.
    pub(super) fn inherit(&mut self, pid: u32, (child, born): (u32, &Birth)) -> Vec<Watch> {
        let parents = self.armed.get(&pid).into_iter().flatten();
        let shares = Vec::from_iter(parents.map(|a| a.share(pid)));
        let mut lacking = Vec::new();
        for share in shares {
            let all = self.armed.values_mut().flatten().chain(&mut self.ended);
            let mut same = all.filter(|a| a.address == share.address);
            if same.any(|a| a.leaves_to(born)) {
                self.armed.entry(child).or_default().push(share);
            } else {
                lacking.push(Watch {
                    pid: child,
                    stops: share.stops,
                    address: share.address,
                    life: share.life,
                });
            }
        }
        lacking
    }

    /// Takes note that a process executed another program, which ends its breakpoints. Breakpoints that were set after the exec, before nvcap
    /// heard of it, are closed: they would hold registers of the new program for addresses of the old one.
    pub(super) fn exec_ends(&mut self, pid: u32) {
        let list = self.armed.get_mut(&pid).into_iter();
        let over = list.flat_map(|l| l.extract_if(.., |a| a.life.until_exec));
        let over: Vec<Armed> = over.collect();
        self.give_up(pid, over);
    }

    /// Takes note that a process has ended.
    pub(super) fn close(&mut self, pid: u32) {
        let over = self.armed.remove(&pid).unwrap_or_default();
        self.give_up(pid, over);
    }

    /// Closes breakpoints of a process, except those that children inherited.
    fn give_up(&mut self, pid: u32, over: Vec<Armed>) {
        for armed in over {
            let mut all = self.armed.values().flatten();
            if all.any(|a| a.of == Some(pid) && a.address == armed.address) {
                self.ended.push(armed);
            } else {
                self.closed_hits += armed.counted().hits;
            }
        }
    }

    /// Stops watching a doorbell in the process and in the children that inherited the breakpoint. Returns these children.
    pub(super) fn disarm(&mut self, pid: u32, address: u64) -> Vec<u32> {
        if let Some(list) = self.armed.get_mut(&pid) {
            self.closed_hits += list
                .iter()
                .filter(|a| a.address == address)
                .map(|a| a.counted().hits)
                .sum::<u64>();
            list.retain(|a| a.address != address);
        }
        let mut heirs = Vec::new();
        for (child, list) in &mut self.armed {
            let before = list.len();
            list.retain(|a| a.of != Some(pid) || a.address != address);
            heirs.extend((list.len() < before).then_some(*child));
        }
        heirs
    }

    /// Closes all breakpoints. Returns the number of hits since the trace began.
    pub(super) fn finish(&mut self) -> u64 {
        let mut armed: Vec<Armed> = self.armed.drain().flat_map(|(_, list)| list).collect();
        armed.append(&mut self.ended);
        armed.iter().map(|a| a.counted().hits).sum::<u64>() + self.closed_hits
    }
}

fn set_of(armed: &Armed) -> Set {
    match armed.partial {
        true => Set::Partial,
        false => Set::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pid: u32, armed: Vec<Armed>) -> Breakpoints {
        Breakpoints {
            armed: HashMap::from([(pid, armed)]),
            ..Breakpoints::default()
        }
    }

    fn watched(all: &Breakpoints, pid: u32) -> Vec<u64> {
        let list = all.armed.get(&pid).into_iter().flatten();
        list.map(|a| a.address).collect()
    }

    /// Makes a birth with these breakpoints.
    fn born(breakpoints: &[u64]) -> Birth {
        let mut birth = Birth::default();
        birth.breakpoints[..breakpoints.len()].copy_from_slice(breakpoints);
        birth
    }

    #[test]
    fn a_child_s_breakpoints_outlive_their_parent() {
        let mut all = with(10, vec![Armed::with_event(0x90, true, 7)]);
        assert_eq!(all.inherit(10, (20, &born(&[5, 7]))).len(), 0);
        assert_eq!(watched(&all, 20), [0x90]);
        assert_eq!(all.spare(10, false), None, "it is the only one");
        assert_eq!(all.spare(10, true), Some(0x90));
        all.close(10);
        assert_eq!((watched(&all, 10).len(), all.ended.len()), (0, 1));
        // A grandchild's also belong to the first process.
        assert_eq!(all.inherit(20, (30, &born(&[7]))).len(), 0);
        assert_eq!(all.armed[&30][0].of, Some(10));
        let mut heirs = all.disarm(10, 0x90);
        heirs.sort_unstable();
        assert_eq!(heirs, [20, 30]);
        assert_eq!((watched(&all, 20).len(), watched(&all, 30).len()), (0, 0));
    }

    /// A child that was forked while its parent was being armed has no breakpoint, or one that runs no program.
    #[test]
    fn what_a_child_did_not_inherit_it_lacks() {
        for breakpoints in [&[][..], &[8], &[7 | Birth::IDLE]] {
            let mut all = with(10, vec![Armed::with_event(0x90, true, 7)]);
            let lacking = all.inherit(10, (20, &born(breakpoints)));
            let lacking = Vec::from_iter(lacking.iter().map(|w| (w.pid, w.address)));
            assert_eq!(lacking, [(20, 0x90)], "{breakpoints:x?}");
            assert_eq!(watched(&all, 20).len(), 0);
            all.close(10);
            assert!(all.ended.is_empty(), "no child has it");
        }
    }

    #[test]
    fn an_exec_ends_what_was_to_end_by_it() {
        let kept = Armed::with_event(0x1090, false, 8);
        let mut all = with(10, vec![Armed::with_event(0x90, true, 7), kept]);
        assert_eq!(all.spare(10, false), Some(0x1090));
        assert_eq!(all.spare(11, true), None);
        all.exec_ends(10);
        assert_eq!(watched(&all, 10), [0x1090]);
        assert!(all.ended.is_empty(), "no child has it");
    }

    #[test]
    fn a_refusal_says_which() {
        let of = |code| WatchError::from(io::Error::from_raw_os_error(code));
        assert!(matches!(of(libc::ENOSPC), WatchError::NoRegister));
        assert!(matches!(of(libc::ESRCH), WatchError::ProcessGone));
        assert!(matches!(of(libc::EPERM), WatchError::Refused(_)));
        let text = of(libc::ESRCH).of(7, 0x90).to_string();
        assert!(text.starts_with("watching the doorbell 0x90 of process 7: the process is gone"));
    }
}
