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

#[cfg(test)]
mod tests;

/// A thread younger than this when its maker was armed may have missed the inheritance: its birth is told after that, and the maker may have had
/// to wait for a processor in between.
const MARGIN_NS: u64 = 20_000_000;
/// So often an address is set anew at most, for threads that come meanwhile.
const MOST_ANEW: usize = 8;
/// Debug registers of a thread.
const REGISTERS: usize = 4;
/// The BIRTHS map has a thread's birth within this time after the thread shows in /proc.
const BIRTH_IS_TOLD: Duration = Duration::from_millis(2);

/// Threads of a process, and the breakpoints that they can be given.
pub(crate) trait Threads {
    /// A breakpoint, which ends when this is dropped, in threads that inherited it, too.
    type Event;

    /// Returns the threads that there are.
    ///
    /// # Errors
    /// When the process is gone.
    fn all(&self) -> io::Result<Vec<u32>>;

    /// Gives a thread a breakpoint, which the threads inherit that it makes later.
    ///
    /// # Errors
    /// Those of perf_event_open(2).
    fn watch(&self, tid: u32, at: (Stops, u64), life: Life) -> io::Result<Self::Event>;

    /// Returns the number of hits of a breakpoint.
    fn hits(&self, event: &Self::Event) -> u64;

    /// Returns the maker of a thread, where its birth was seen.
    fn birth(&self, tid: u32) -> Option<Birth>;

    /// Waits until the birth of a thread is told that shows already.
    fn wait_for_birth(&self);

    /// Returns the time on the clock of births, ns.
    fn now(&self) -> u64;
}

/// Threads of a process of this machine.
pub(crate) struct Present<'a, B> {
    pub(crate) pid: u32,
    /// Program that runs at a hit.
    pub(crate) program: BorrowedFd<'a>,
    /// Births that were seen.
    pub(crate) births: B,
}

impl<B: Fn(u32) -> Option<Birth>> Threads for Present<'_, B> {
    type Event = OwnedFd;

    fn all(&self) -> io::Result<Vec<u32>> {
        procfs::threads(self.pid)
    }

    fn watch(&self, tid: u32, at: (Stops, u64), life: Life) -> io::Result<OwnedFd> {
        perf::watch(tid, at, life, self.program)
    }

    fn hits(&self, event: &OwnedFd) -> u64 {
        perf::counted(event).map_or(0, |counted| counted.hits)
    }

    fn birth(&self, tid: u32) -> Option<Birth> {
        (self.births)(tid)
    }

    fn wait_for_birth(&self) {
        thread::sleep(BIRTH_IS_TOLD);
    }

    fn now(&self) -> u64 {
        now()
    }
}

/// Times of a thread's breakpoint, ns: threads that it made before `begun` did not inherit it, those long after `armed` did.
#[derive(Clone, Copy, Debug)]
struct Since {
    /// Time before it was asked for.
    begun: u64,
    /// Time by which it was there.
    armed: u64,
}

impl Since {
    /// It was there from the thread's beginning.
    const BIRTH: Self = Self { begun: 0, armed: 0 };
}

/// One watched doorbell word of one process, or one store that is stopped at.
#[derive(Debug)]
pub(crate) struct Armed<E = OwnedFd> {
    /// The watched address.
    pub address: u64,
    /// Event that it stops at there.
    pub stops: Stops,
    /// Some thread that was there does not have it: it had no debug register left.
    pub partial: bool,
    /// Inheritance and end.
    pub life: Life,
    /// The process whose events these are, when a child inherited them: they end when that process's are closed.
    pub of: Option<u32>,
    /// Child processes have inherited it, which would lose it if it were set anew.
    pub has_heirs: bool,
    events: HashMap<u32, E>,
    since: HashMap<u32, Since>,
    /// Threads that have no debug register for it.
    refused: HashSet<u32>,
    /// Hits of breakpoints that were closed and set anew.
    closed_hits: u64,
    /// Time since which every thread present had the breakpoint, ns.
    complete: u64,
}

impl<E> Armed<E> {
    /// One that no thread has yet.
    fn unset((stops, address): (Stops, u64), life: Life) -> Self {
        Self {
            address,
            stops,
            partial: false,
            life,
            of: None,
            has_heirs: false,
            events: HashMap::new(),
            since: HashMap::new(),
            refused: HashSet::new(),
            closed_hits: 0,
            complete: 0,
        }
    }

    /// Watches an address in every thread that has a debug register left. `others`: what the process has watched before, in that order. Where
    /// there is a register for each address, a thread without one left has some of them twice, its own and an inherited one: such an address is
    /// watched anew. Where there is not, it keeps what it has.
    ///
    /// # Errors
    /// Those of perf_event_open(2), where no thread has a register left too; a thread that ended meanwhile is no error.
    pub(crate) fn new(
        threads: &impl Threads<Event = E>,
        (stops, address): (Stops, u64),
        life: Life,
        others: &mut Vec<Self>,
    ) -> io::Result<Self> {
        let mut armed = Self::unset((stops, address), life);
        let refused = armed.watch_all(threads, others)?;
        if others.len() < REGISTERS {
            armed.separate_own(threads)?;
        }
        match refused {
            Some(e) if armed.since.is_empty() => Err(e),
            _ => Ok(armed),
        }
    }

    /// Sets the address anew while there are threads without a register for it that may have inherited it, from more than one of their makers.
    fn separate_own(&mut self, threads: &impl Threads<Event = E>) -> io::Result<()> {
        for _ in 0..MOST_ANEW {
            let mut refused = self.refused.iter();
            let is_twin = refused.any(|tid| self.may_have_inherited(threads.birth(*tid)));
            if !is_twin || self.has_heirs {
                break;
            }
            self.set_anew(threads)?;
        }
        Ok(())
    }

    /// Watches the address in every thread, until none has come while the others were armed. Returns a refusal, where one has no debug register
    /// left.
    fn watch_all(
        &mut self,
        threads: &impl Threads<Event = E>,
        others: &mut Vec<Self>,
    ) -> io::Result<Option<io::Error>> {
        let mut refused = None;
        let mut considered = HashSet::new();
        let mut came = true;
        while came {
            came = false;
            for tid in threads.all()? {
                if considered.insert(tid) {
                    came = true;
                    all_thread_came(others, tid, threads)?;
                    let refusal = self.watch_thread(tid, threads, others)?;
                    refused = refusal.or(refused);
                }
            }
        }
        self.complete = self.now(threads);
        self.partial = refused.is_some();
        Ok(refused)
    }

    /// Closes all breakpoints, also those that threads inherited, and sets new ones: no thread has two then.
    fn set_anew(&mut self, threads: &impl Threads<Event = E>) -> io::Result<()> {
        let closed = self.events.drain().map(|(_, event)| threads.hits(&event));
        self.closed_hits += closed.sum::<u64>();
        self.since.clear();
        self.refused.clear();
        self.watch_all(threads, &mut Vec::new()).map(drop)
    }

    /// Returns the time; of a command, which waits for nvcap before it is executed, so that all its threads inherit, its beginning.
    fn now(&self, threads: &impl Threads) -> u64 {
        match self.life.from_exec {
            true => 0,
            false => threads.now(),
        }
    }

    /// Tells whether a thread, which is none of those that were armed, may lack this one.
    fn may_lack(&self, tid: u32, born: Option<Birth>) -> bool {
        let is_old = born.is_some_and(|b| b.time_ns > self.complete.saturating_add(MARGIN_NS));
        // What a child inherited is its parent's, whose own threads are armed.
        let is_armed = self.since.contains_key(&tid) || self.refused.contains(&tid);
        !is_armed && !is_old && self.of.is_none() && !self.life.from_exec
    }

    /// Watches the address in a thread, unless the thread inherited that. Returns the refusal where it has no debug register left.
    fn watch_thread(
        &mut self,
        tid: u32,
        threads: &impl Threads<Event = E>,
        others: &mut [Self],
    ) -> io::Result<Option<io::Error>> {
        let fits = others.len() < REGISTERS;
        let mut born = threads.birth(tid);
        if self.inherited(born) {
            self.since.insert(tid, Since::BIRTH);
            return Ok(None);
        }
        let begun = self.now(threads);
        let watch = || threads.watch(tid, (self.stops, self.address), self.life);
        let mut watched = watch();
        if born.is_none() && watched.as_ref().is_err_and(is_full) {
            // A new thread shows in /proc, with its inherited breakpoints, a moment before BIRTHS has it.
            threads.wait_for_birth();
            born = threads.birth(tid);
        }
        // It may have others twice, its own and an inherited one, or two inherited ones. None of the latter can be kept: one that was inherited before
        // its program was there runs none.
        for other in others {
            let is_full = fits && watched.as_ref().is_err_and(is_full);
            if is_full && other.may_have_inherited(born) && !other.has_heirs {
                other.set_anew(threads)?;
                watched = watch();
            }
        }
        match watched {
            Ok(event) => {
                self.events.insert(tid, event);
                // It may be the second one, where the thread's birth is known or is yet to be told.
                let is_first = born.is_some() && !self.may_have_inherited(born);
                let begun = if is_first { begun } else { 0 };
                let armed = self.now(threads);
                self.since.insert(tid, Since { begun, armed });
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            Err(e) if is_full(&e) => {
                self.refused.insert(tid);
                return Ok(Some(e));
            }
            Err(e) => return Err(e),
        }
        Ok(None)
    }

    /// The share of a child that thread `tid` of process `pid` forked at `time_ns`; none where the thread may not have had
    /// the breakpoint itself yet.
    pub(crate) fn of_child(&self, pid: u32, tid: u32, time_ns: u64) -> Option<Self> {
        // A thread that is not listed came later, and inherited the breakpoint.
        let armed = self.since.get(&tid).map_or(self.complete, |s| s.armed);
        (time_ns > armed.saturating_add(MARGIN_NS)).then(|| Self {
            partial: self.partial,
            of: self.of.or(Some(pid)),
            ..Self::unset((self.stops, self.address), self.life)
        })
    }

    /// An `Armed` that watches nothing.
    #[cfg(test)]
    pub(super) fn without_events(address: u64, until_exec: bool) -> Self {
        let life = Life {
            children: true,
            until_exec,
            from_exec: false,
        };
        Self::unset((Stops::AfterWrite, address), life)
    }

    /// True for a thread made by an armed thread: it has the breakpoint already, and a second one would trap twice.
    fn inherited(&self, birth: Option<Birth>) -> bool {
        birth.is_some_and(|b| {
            let maker = self.since.get(&b.parent);
            maker.is_some_and(|s| b.time_ns > s.armed.saturating_add(MARGIN_NS))
        })
    }

    /// True for a thread that was not made before its maker was being armed.
    fn may_have_inherited(&self, birth: Option<Birth>) -> bool {
        birth.is_some_and(|b| {
            let maker = self.since.get(&b.parent);
            maker.is_some_and(|s| b.time_ns >= s.begun)
        })
    }
}

/// Watches all addresses of a process, in their order, in a thread that may lack some: it came while its maker was being armed, and showed too late
/// to be armed with the others. Returns the addresses that were dealt with; where it has no debug register left they are partial.
///
/// # Errors
/// Those of perf_event_open(2).
pub(crate) fn all_thread_came<E>(
    list: &mut Vec<Armed<E>>,
    tid: u32,
    threads: &impl Threads<Event = E>,
) -> io::Result<Vec<u64>> {
    let mut dealt_with = Vec::new();
    if !list.iter().any(|a| a.may_lack(tid, None)) {
        return Ok(dealt_with);
    }
    let born = threads.birth(tid).or_else(|| {
        threads.wait_for_birth();
        threads.birth(tid)
    });
    if born.is_none() {
        // It is dealt with when that is told; one whose birth was forgotten is old.
        return Ok(dealt_with);
    }
    for n in 0..list.len() {
        if list[n].may_lack(tid, born) {
            let mut armed = list.remove(n);
            let refusal = armed.watch_thread(tid, threads, list);
            dealt_with.push(armed.address);
            armed.partial |= matches!(refusal, Ok(Some(_)));
            let separated = match list.len() < REGISTERS && matches!(refusal, Ok(Some(_))) {
                true => armed.separate_own(threads),
                false => Ok(()),
            };
            list.insert(n, armed);
            refusal?;
            separated?;
        }
    }
    Ok(dealt_with)
}

/// The thread has no debug register left.
fn is_full(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ENOSPC)
}

impl Armed {
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
        let mut all = perf::Counted {
            hits: self.closed_hits,
            ..perf::Counted::default()
        };
        self.events
            .values()
            .filter_map(|e| perf::counted(e).ok())
            .for_each(|c| all += c);
        all
    }
}
