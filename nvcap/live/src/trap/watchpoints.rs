//! Breakpoints on a process's doorbells: one perf event for each present thread, which later threads inherit.

use nvcap_process::procfs;
use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use nvcap_common::Birth;

pub(crate) use super::perf::Stops;
use super::perf::{self, Life};
pub(crate) use nvcap_process::clock::now;

/// A thread younger than this when its maker was armed may have missed the inheritance.
const MARGIN_NS: u64 = 4_000_000;
/// Debug registers of a thread.
const REGISTERS: usize = 4;
/// The BIRTHS map has a thread's birth within this time after the thread shows in /proc.
const BIRTH_IS_TOLD: Duration = Duration::from_millis(2);

/// One watched doorbell word of one process, or one store that is stopped at.
#[derive(Debug)]
pub(crate) struct Armed {
    /// The watched address.
    pub address: u64,
    /// Event that it stops at there.
    pub stops: Stops,
    /// Some thread that was there does not have it: it had no debug register left.
    pub partial: bool,
    /// The next exec ends it.
    pub until_exec: bool,
    /// The process whose events these are, when a child inherited them: they end when that process's are closed.
    pub of: Option<u32>,
    events: HashMap<u32, OwnedFd>,
    since: HashMap<u32, u64>,
    /// Time since which every thread present had the breakpoint, ns.
    complete: u64,
}

/// From when on a thread's children inherit what it is armed with now. A command waits for nvcap before it is executed: all of its do.
fn armed_at(life: Life) -> u64 {
    if life.from_exec { 0 } else { now() }
}

/// The thread has no debug register left.
fn is_full(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ENOSPC)
}

/// Conditions under which each thread of a process is armed; see [`Armed::new`].
struct Arming<'a, B, R> {
    life: Life,
    program: BorrowedFd<'a>,
    birth: B,
    /// There is a register for each breakpoint of the process.
    fits: bool,
    relieve: R,
}

impl Armed {
    /// Watches `address` in every thread of `pid` that has a debug register left. `birth` gives a thread's maker, where its birth
    /// was seen; `relieve` frees registers of a thread that was born while the process was being armed and holds more than it needs.
    /// `others`: how many breakpoints the process has beside this one. Where there is a register for each, a thread that has none left has
    /// some of them twice; where there is not, none is taken from it.
    ///
    /// # Errors
    /// Those of perf_event_open(2), where no thread has a register left too; a thread that ended meanwhile is no error.
    pub(crate) fn new(
        pid: u32,
        (stops, address): (Stops, u64),
        life: Life,
        program: BorrowedFd<'_>,
        birth: impl Fn(u32) -> Option<Birth>,
        (others, relieve): (usize, impl FnMut(u32, Birth) -> bool),
    ) -> io::Result<Self> {
        let mut armed = Self {
            address,
            stops,
            partial: false,
            until_exec: life.until_exec,
            of: None,
            events: HashMap::new(),
            since: HashMap::new(),
            complete: 0,
        };
        let mut arming = Arming {
            life,
            program,
            birth,
            fits: others < REGISTERS,
            relieve,
        };
        let mut refused = None;
        let mut considered = HashSet::new();
        // Until no thread has come while the others were armed.
        let mut came = true;
        while came {
            came = false;
            for tid in procfs::threads(pid)? {
                if considered.insert(tid) {
                    came = true;
                    refused = armed.watch_thread(tid, &mut arming)?.or(refused);
                }
            }
        }
        armed.complete = armed_at(life);
        armed.partial = refused.is_some();
        match refused {
            Some(e) if armed.since.is_empty() => Err(e),
            _ => Ok(armed),
        }
    }

    /// Watches the address in a thread, unless the thread inherited that. Returns the refusal where it has no debug register left.
    fn watch_thread(
        &mut self,
        tid: u32,
        arming: &mut Arming<'_, impl Fn(u32) -> Option<Birth>, impl FnMut(u32, Birth) -> bool>,
    ) -> io::Result<Option<io::Error>> {
        let (life, fits) = (arming.life, arming.fits);
        let mut born = (arming.birth)(tid);
        if self.inherited(born) {
            self.since.insert(tid, 0);
            return Ok(None);
        }
        let (at, program) = ((self.stops, self.address), arming.program);
        let watch = || perf::watch(tid, at, life, program);
        let mut watched = watch();
        if born.is_none() && watched.as_ref().is_err_and(is_full) {
            // A new thread shows in /proc, with its inherited breakpoints, a moment before BIRTHS has it.
            thread::sleep(BIRTH_IS_TOLD);
            born = (arming.birth)(tid);
        }
        if let Some(born) = born.filter(|_| fits)
            && watched.as_ref().is_err_and(is_full)
            && (arming.relieve)(tid, born)
        {
            watched = watch();
        }
        match watched {
            Ok(event) => {
                self.events.insert(tid, event);
                self.since.insert(tid, armed_at(life));
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            // Its registers hold breakpoints that it inherited while its maker was being armed.
            Err(e) if is_full(&e) && fits && self.may_have_inherited(born) => {
                self.since.insert(tid, 0);
            }
            Err(e) if is_full(&e) => return Ok(Some(e)),
            Err(e) => return Err(e),
        }
        Ok(None)
    }

    /// The share of a child that thread `tid` of process `pid` forked at `time_ns`; none where the thread may not have had
    /// the breakpoint itself yet.
    pub(crate) fn of_child(&self, pid: u32, tid: u32, time_ns: u64) -> Option<Self> {
        // A thread that is not listed came later, and inherited the breakpoint.
        let armed = self.since.get(&tid).copied().unwrap_or(self.complete);
        (time_ns > armed.saturating_add(MARGIN_NS)).then(|| Self {
            address: self.address,
            stops: self.stops,
            partial: self.partial,
            until_exec: self.until_exec,
            of: self.of.or(Some(pid)),
            events: HashMap::new(),
            since: HashMap::new(),
            complete: 0,
        })
    }

    /// An `Armed` that watches nothing.
    #[cfg(test)]
    pub(super) fn without_events(address: u64, until_exec: bool) -> Self {
        Self {
            address,
            stops: Stops::AfterWrite,
            partial: false,
            until_exec,
            of: None,
            events: HashMap::new(),
            since: HashMap::new(),
            complete: 0,
        }
    }

    /// Closes a thread's own event where it inherited one as well.
    pub(crate) fn release(&mut self, tid: u32, born: Birth) -> bool {
        self.may_have_inherited(Some(born)) && self.events.remove(&tid).is_some()
    }

    /// True for a thread made by an armed thread: it has the breakpoint already, and a second one would trap twice.
    fn inherited(&self, birth: Option<Birth>) -> bool {
        birth.is_some_and(|b| {
            self.since
                .get(&b.parent)
                .is_some_and(|armed| b.time_ns > armed.saturating_add(MARGIN_NS))
        })
    }

    /// True for a thread made when its maker was armed, or just before that was known.
    fn may_have_inherited(&self, birth: Option<Birth>) -> bool {
        birth.is_some_and(|b| {
            self.since
                .get(&b.parent)
                .is_some_and(|armed| b.time_ns.saturating_add(MARGIN_NS) > *armed)
        })
    }

    /// Lets it rest, or wakes it.
    pub(crate) fn wake(&self, wake: bool) {
        for event in self.events.values() {
            if let Err(e) = perf::wake(event, wake) {
                log::debug!("breakpoint at {:#x}: {e}", self.address);
            }
        }
    }

    /// Returns the kernel's counts; hits include those that ran no program.
    pub(crate) fn counted(&self) -> perf::Counted {
        let mut all = perf::Counted::default();
        self.events
            .values()
            .filter_map(|e| perf::counted(e).ok())
            .for_each(|c| all += c);
        all
    }
}
