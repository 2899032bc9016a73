//! Measures how often this machine loses a hit of a breakpoint. Watched processes of nvcap's own store again and again; their stores, the
//! hits, the runs of the BPF program and the SIGTRAPs are compared.
//!
//! Linux learns from DR6 which breakpoint a debug exception belongs to. If DR6 names none, it takes the exception for an `int1` instruction
//! of the program, and sends SIGTRAP with `TRAP_BRKPT`: the event does not count the hit, and no program runs. This happens in a guest of
//! KVM whose hypervisor loads a stale DR6 (Linux c2fee09fc167, in 6.14, explains it).

use std::{io, os::fd::OwnedFd, thread, time::Duration};

use super::{
    load::{LoadOptions, Loaded},
    perf::{self, Life, Stops},
};
use nvcap_process::error::{Error, Result, remedy_for_refusal};
use storer::Storer;

mod storer;

/// The most processors that are used. Each is kept busy.
const PROCESSORS: usize = 8;
/// Processes on each processor. When they take turns, debug registers are loaded anew.
const A_PROCESSOR: usize = 2;

/// Result of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Processors that were used.
    pub processors: usize,
    /// Processes that stored.
    pub processes: usize,
    /// Duration of the measurement.
    pub time: Duration,
    /// Stores to the watched words.
    pub stores: u64,
    /// Hits of the breakpoints, as the kernel counted them.
    pub hits: u64,
    /// Runs of the BPF program at the hits.
    pub runs: u64,
    /// SIGTRAPs that the processes got.
    pub traps: u64,
    /// SIGTRAPs for debug exceptions right behind a store, for which the kernel found no cause.
    pub causeless: u64,
    /// `si_code` of the last other SIGTRAP.
    pub other_code: Option<i32>,
}

impl Measured {
    /// Returns the number of stores without a counted hit.
    pub fn lost(&self) -> u64 {
        self.stores.saturating_sub(self.hits)
    }

    /// Returns the number of hits that ran no program.
    pub fn without_program(&self) -> u64 {
        self.hits.saturating_sub(self.runs)
    }
}

/// Lets processes store for this time.
///
/// # Errors
/// When the programs cannot be loaded, or a process cannot be made or watched.
pub fn measure(time: Duration) -> Result<Measured> {
    let all = measure_while(|_| thread::sleep(time))?;
    Ok(Measured { time, ..all })
}

/// Lets processes store until `pass` returns.
fn measure_while(pass: impl FnOnce(&[Storer])) -> Result<Measured> {
    let (loaded, _shared) = Loaded::new(LoadOptions {
        buffer: 1 << 16,
        no_bpf_loop: false,
        stack_bytes: 0,
        stack_every: 1,
        mode: nvcap_common::Mode::EACH,
    })?;
    let mut processors = allowed().map_err(|e| failed("asking for the processors", &e))?;
    processors.truncate(PROCESSORS);
    let mut storers = Vec::new();
    for processor in processors.iter().flat_map(|p| [*p; A_PROCESSOR]) {
        let storer = Storer::new(Some(processor), None);
        storers.push(storer.map_err(|e| failed("starting a process that stores", &e))?);
    }
    let mut events = Vec::new();
    for storer in &storers {
        events.push(watched(storer, &loaded)?);
    }
    // In processes that are not traced, a run of the program does no more than to count itself here.
    let runs_before = loaded.stats().foreign;
    storers.iter().for_each(Storer::start);
    pass(&storers);
    let mut all = Measured {
        processors: processors.len(),
        processes: storers.len(),
        ..Measured::default()
    };
    for storer in &mut storers {
        let stored = storer.end();
        let stored = stored.map_err(|e| failed("counting stores", &e))?;
        all.stores += stored.stores;
        all.traps += stored.traps;
        all.causeless += stored.causeless;
        all.other_code = stored.other_code.or(all.other_code);
    }
    for event in &events {
        let counted = perf::counted(event);
        all.hits += counted
            .map_err(|e| failed("reading a breakpoint's count", &e))?
            .hits;
    }
    all.runs = loaded.stats().foreign - runs_before;
    Ok(all)
}

fn watched(storer: &Storer, loaded: &Loaded) -> Result<OwnedFd> {
    let life = Life {
        children: false,
        until_exec: true,
        from_exec: false,
    };
    let at = (Stops::AfterWrite, storer.address());
    let watched = perf::watch(storer.pid, at, life, loaded.doorbell());
    watched.map(|(_, event)| event).map_err(|e| {
        Error::new(
            "watching a process of nvcap's own",
            &e,
            remedy_for_refusal(&e),
        )
    })
}

fn failed(what: &str, e: &io::Error) -> Error {
    Error::new(what, e, "try again")
}

/// The processors that this process may run on.
fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: a bit set, for which zero is a value.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: room for a set of that size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut all) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let bits = 0..8 * size_of::<libc::cpu_set_t>();
    // SAFETY: the index is below the set's size.
    let allowed = bits.filter(|n| unsafe { libc::CPU_ISSET(*n, &all) });
    Ok(allowed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests on the machine itself: whatever it loses, the numbers must agree.
    #[test]
    #[ignore = "needs BPF programs and breakpoints: cargo xtask test runs it as root"]
    fn stores_are_hits_or_lost() {
        let until_all_have_stored = |storers: &[Storer]| {
            nvcap_waiting::until("each process has stored", || {
                storers.iter().all(|s| s.stores() > 100)
            });
        };
        let measured = match measure_while(until_all_have_stored) {
            Ok(measured) => measured,
            Err(e) => {
                println!("NOT RUN stores_are_hits_or_lost: {e}");
                return;
            }
        };
        assert!(measured.stores > 100, "{measured:?}");
        assert!(
            measured.hits <= measured.stores && measured.runs <= measured.hits,
            "{measured:?}"
        );
        assert!(measured.lost() == measured.causeless, "{measured:?}");
    }
}
