//! Breakpoints on a process's doorbells: one perf event for each present thread, which later threads inherit.
//!
//! No thread may have an address watched twice. Threads that switch places on a processor swap lists of inherited events; the kernel then loses
//! count of the debug registers that these take. It then lets a thread have more events than there are registers, and refuses that thread's
//! clone(2). So the birth of each thread tells which events it inherited, and registers are counted here, too.

use nvcap_process::procfs;
use std::{
    cell::Cell,
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

/// Debug registers of a thread.
pub(crate) const REGISTERS: usize = 4;
/// The most events of an address that are closed at once because a thread inherited them before their program was attached.
const MOST_CLOSED: usize = 64;
/// Number of waits for births of threads that do not run yet, for all threads together. Threads that get no processor have no birth.
const LOOKS_FOR_BIRTHS: u32 = 50;
/// Time between two of these looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Threads of a process, and the breakpoints that they can be given.
pub(crate) trait Threads {
    /// A breakpoint. It ends when this value is dropped, also in threads that inherited it.
    type Event;

    /// Returns the present threads.
    ///
    /// # Errors
    /// When the process is gone.
    fn all(&self) -> io::Result<Vec<u32>>;

    /// Gives a thread a breakpoint, which threads inherit that it makes later. Returns the number by which births name it.
    ///
    /// # Errors
    /// Those of perf_event_open(2).
    fn watch(&self, tid: u32, at: (Stops, u64), life: Life) -> io::Result<(u64, Self::Event)>;

    /// Returns the number of hits of a breakpoint.
    fn hits(&self, event: &Self::Event) -> u64;

    /// Returns the birth of a thread that came after its process was traced. Waits for it while the thread does not run yet.
    fn birth(&self, tid: u32) -> Option<Birth>;

    /// Returns the time on the clock of births, ns.
    fn now(&self) -> u64;
}

/// Threads of a process of this machine.
pub(crate) struct Present<'a, B> {
    pid: u32,
    program: BorrowedFd<'a>,
    births: B,
    /// Number of waits for births that are left.
    looks: Cell<u32>,
}

impl<'a, B> Present<'a, B> {
    /// Makes the threads of process `pid`. `program` runs at a hit; `births` returns the birth of a thread, if it was seen.
    pub(crate) fn new(pid: u32, program: BorrowedFd<'a>, births: B) -> Self {
        Self {
            pid,
            program,
            births,
            looks: Cell::new(LOOKS_FOR_BIRTHS),
        }
    }
}

impl<B: Fn(u32) -> Option<Birth>> Threads for Present<'_, B> {
    type Event = OwnedFd;

    fn all(&self) -> io::Result<Vec<u32>> {
        procfs::threads(self.pid)
    }

    fn watch(&self, tid: u32, at: (Stops, u64), life: Life) -> io::Result<(u64, OwnedFd)> {
        perf::watch(tid, at, life, self.program)
    }

    fn hits(&self, event: &OwnedFd) -> u64 {
        perf::counted(event).map_or(0, |counted| counted.hits)
    }

    /// Returns a thread's birth. A thread shows in /proc before its birth is told, and runs only after that. So a thread that has run and has no
    /// birth is older than the trace.
    fn birth(&self, tid: u32) -> Option<Birth> {
        loop {
            let birth = (self.births)(tid);
            if birth.is_some() {
                return birth;
            }
            if self.looks.get() == 0 || procfs::has_run(self.pid, tid) {
                break;
            }
            self.looks.set(self.looks.get() - 1);
            thread::sleep(BETWEEN_LOOKS);
        }
        // It may have been told, and have run, since.
        (self.births)(tid)
    }

    fn now(&self) -> u64 {
        now()
    }
}

/// Event of one thread, which others may have inherited.
#[derive(Debug)]
struct Own<E> {
    event: E,
    /// Time by which the event was there, ns.
    since: u64,
    /// True if child processes have inherited the event: it is not closed while the trace needs theirs.
    has_heirs: bool,
}

/// Way in which an address is watched in a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    /// Watched by an event of the thread's own, or by an inherited one that runs the program.
    Watched,
    /// Covered by an inherited event of this number that runs no program.
    Idle(u64),
    Nothing,
}

/// A watched doorbell word of a process, or a store at which the process is stopped.
#[derive(Debug)]
pub(crate) struct Armed<E = OwnedFd> {
    /// The watched address.
    pub address: u64,
    /// Kind of event that stops threads at the address.
    pub stops: Stops,
    /// True if some thread lacks the breakpoint because it had no debug register left.
    pub partial: bool,
    /// Inheritance and lifetime of the breakpoint.
    pub life: Life,
    /// The process that has these events, if a child inherited them: they end when that process's are closed.
    pub of: Option<u32>,
    /// Events by number.
    events: HashMap<u64, Own<E>>,
    /// Number of the last event in each thread.
    of_thread: HashMap<u32, u64>,
    /// Threads that have no debug register for the breakpoint.
    refused: HashSet<u32>,
    /// Hits of breakpoints that were closed.
    closed_hits: u64,
    /// Number of breakpoints that were closed.
    closed: usize,
}

impl<E> Armed<E> {
    /// Makes a value that no thread has yet.
    fn unset((stops, address): (Stops, u64), life: Life) -> Self {
        Self {
            address,
            stops,
            partial: false,
            life,
            of: None,
            events: HashMap::new(),
            of_thread: HashMap::new(),
            refused: HashSet::new(),
            closed_hits: 0,
            closed: 0,
        }
    }

    /// Watches an address in every thread that has a debug register left. `others`: number of addresses that are already watched in the process.
    ///
    /// # Errors
    /// Those of perf_event_open(2), also when no thread has a register left. A thread that ended meanwhile is no error.
    pub(crate) fn new(
        threads: &impl Threads<Event = E>,
        (stops, address): (Stops, u64),
        life: Life,
        others: usize,
    ) -> io::Result<Self> {
        if others >= REGISTERS {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let mut armed = Self::unset((stops, address), life);
        let refused = armed.watch_all(threads)?;
        match refused {
            Some(e) if armed.events.is_empty() => Err(e),
            _ => Ok(armed),
        }
    }

    /// Watches the address in every thread that lacks it, until none does. Returns a refusal if a thread has no debug register left.
    fn watch_all(&mut self, threads: &impl Threads<Event = E>) -> io::Result<Option<io::Error>> {
        let mut refused = None;
        self.refused.clear();
        loop {
            let (events, closed) = (self.events.len(), self.closed);
            for tid in threads.all()? {
                let refusal = self.watch_thread(tid, threads)?;
                refused = refusal.or(refused);
            }
            if (self.events.len(), self.closed) == (events, closed) {
                break;
            }
        }
        self.partial = !self.refused.is_empty();
        Ok(refused)
    }

    /// Watches the address in a thread, unless it is watched there. Returns the refusal if the thread has no debug register left.
    fn watch_thread(
        &mut self,
        tid: u32,
        threads: &impl Threads<Event = E>,
    ) -> io::Result<Option<io::Error>> {
        if self.refused.contains(&tid) {
            return Ok(None);
        }
        match self.has(tid, threads.birth(tid)) {
            Has::Watched => return Ok(None),
            Has::Idle(number) => self.close(number, threads),
            Has::Nothing => {}
        }
        match threads.watch(tid, (self.stops, self.address), self.life) {
            Ok((number, event)) => {
                let own = Own {
                    event,
                    since: threads.now(),
                    has_heirs: false,
                };
                self.events.insert(number, own);
                self.of_thread.insert(tid, number);
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                self.refused.insert(tid);
                return Ok(Some(e));
            }
            Err(e) => return Err(e),
        }
        Ok(None)
    }

    /// Watches the address in a new thread, and in the threads that lost it by events that had to be closed for that; not if the events are
    /// another process's. Returns false if the thread has it already.
    ///
    /// # Errors
    /// Those of perf_event_open(2).
    pub(crate) fn thread_came(
        &mut self,
        (tid, born): (u32, Birth),
        threads: &impl Threads<Event = E>,
    ) -> io::Result<bool> {
        if self.of.is_some() || self.has(tid, Some(born)) == Has::Watched {
            return Ok(false);
        }
        // One of an earlier thread with this id.
        self.refused.remove(&tid);
        let closed = self.closed;
        let refusal = self.watch_thread(tid, threads)?;
        self.partial |= refusal.is_some();
        if self.closed > closed {
            self.watch_all(threads)?;
        }
        Ok(true)
    }

    /// Closes an event in all threads that have it, unless child processes have it.
    fn close(&mut self, number: u64, threads: &impl Threads<Event = E>) {
        let has_heirs = self.events.get(&number).is_none_or(|own| own.has_heirs);
        if has_heirs || self.closed >= MOST_CLOSED {
            return;
        }
        if let Some(own) = self.events.remove(&number) {
            self.closed_hits += threads.hits(&own.event);
            self.closed += 1;
        }
    }

    /// Tells in which way a thread has the address watched.
    fn has(&self, tid: u32, born: Option<Birth>) -> Has {
        let own = self.of_thread.get(&tid).and_then(|n| self.events.get(n));
        // A later birth is of another thread with this id.
        if own.is_some_and(|own| born.is_none_or(|b| b.time_ns < own.since)) {
            return Has::Watched;
        }
        let mut has = Has::Nothing;
        for of in born.iter().flat_map(Birth::inherited) {
            if self.events.contains_key(&of.number) {
                match of.runs {
                    true => return Has::Watched,
                    false => has = Has::Idle(of.number),
                }
            }
        }
        has
    }

    /// Leaves an event to a child process with this birth. Returns false if the child inherited no event that runs the program.
    pub(crate) fn leaves_to(&mut self, born: &Birth) -> bool {
        let of = born.inherited().filter(|of| of.runs);
        let own = of.map(|of| of.number).find(|n| self.events.contains_key(n));
        let own = own.and_then(|number| self.events.get_mut(&number));
        own.map(|own| own.has_heirs = true).is_some()
    }

    /// Makes the value of a child process that inherits from a process `pid`.
    pub(crate) fn share(&self, pid: u32) -> Self {
        Self {
            partial: self.partial,
            of: self.of.or(Some(pid)),
            ..Self::unset((self.stops, self.address), self.life)
        }
    }
}

impl Armed {
    /// Makes an `Armed` with one event, of this number, that watches nothing.
    #[cfg(test)]
    pub(super) fn with_event(address: u64, until_exec: bool, number: u64) -> Self {
        let life = Life {
            children: true,
            until_exec,
            from_exec: false,
        };
        let mut armed = Self::unset((Stops::AfterWrite, address), life);
        let own = Own {
            event: std::fs::File::open("/dev/null").unwrap().into(),
            since: 0,
            has_heirs: false,
        };
        armed.events.insert(number, own);
        armed
    }

    /// Disables the breakpoint, or enables it.
    pub(crate) fn wake(&self, wake: bool) {
        for own in self.events.values() {
            if let Err(e) = perf::wake(&own.event, wake) {
                log::debug!("breakpoint at {:#x}: {e}", self.address);
            }
        }
    }

    /// Returns the kernel's counts. Hits include those that ran no program.
    pub(crate) fn counted(&self) -> perf::Counted {
        let mut all = perf::Counted {
            hits: self.closed_hits,
            ..perf::Counted::default()
        };
        self.events
            .values()
            .filter_map(|own| perf::counted(&own.event).ok())
            .for_each(|c| all += c);
        all
    }
}
