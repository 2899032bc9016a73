//! Watches doorbells, and stops threads at stores, as far as debug registers suffice.
//!
//! Each thread has four registers, and a process of a job on a whole node maps two doorbells of each of its GPUs. Where the registers do
//! not suffice, one is used for the store that rings, which serves all doorbells. Until that store is known, the other registers watch the
//! doorbells that are most likely rung, and move where none of them is (`moving.rs`).

use nvcap_common::Birth;
use std::collections::BTreeSet;

use super::{
    super::{
        perf::Life,
        space::{doorbell_of, may_be_same},
        watchpoints::{self, REGISTERS, Stops},
    },
    Session,
    breakpoints::{Set, Target, Watch, WatchError},
};
use nvcap_decode::record::{At, CpuVa};
use nvcap_process::error::Result;

/// Page of doorbells that a running process has mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoorbellPage {
    pub(super) start: CpuVa,
    /// Minor number of the page's GPU.
    pub(super) gpu: u32,
    pub(super) readable: bool,
}

/// GPUs of the rings that were found in a running process. An unknown GPU may be any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RingGpus {
    /// GPUs of rings whose GP_PUT moved during the look.
    pub(super) moving: BTreeSet<Option<u32>>,
    /// GPUs of rings that were used.
    pub(super) used: BTreeSet<Option<u32>>,
}

impl RingGpus {
    /// Rank by which doorbells are watched: first those of GPUs on which a ring moves right now, then those of GPUs that were used; of each
    /// GPU first CUDA's, which are write-only, then those of other clients.
    fn rank(&self, page: &DoorbellPage) -> (bool, bool, bool) {
        let is_of = |all: &BTreeSet<Option<u32>>| all.contains(&Some(page.gpu));
        (!is_of(&self.moving), !is_of(&self.used), page.readable)
    }
}

impl Session {
    /// Watches the doorbells that the user named, and those of a running process's doorbell pages. `was_there`: the process's rings are
    /// followed from their position at the end of this call.
    pub(super) fn arm_present(
        &mut self,
        (space, pid): (u32, u32),
        pages: &mut [DoorbellPage],
        (gpus, was_there): (&RingGpus, bool),
    ) -> Result<()> {
        let life = self.life();
        pages.sort_by_key(|page| gpus.rank(page));
        let targets = pages.iter().map(|page| Target {
            pid,
            address: doorbell_of(page.start),
            gpu: Some(page.gpu),
        });
        let targets = Vec::from_iter(targets);
        self.search_known_stores(space)?;
        self.stop_at_known_first(space, pid, &targets)?;
        // Names given by the user hold for every program that the process executes.
        self.arm_named(
            pid,
            Life {
                until_exec: false,
                ..life
            },
        )?;
        log::debug!(
            "{} doorbell pages of process {pid} are to be watched",
            pages.len()
        );
        for (n, target) in targets.into_iter().enumerate() {
            if was_there {
                // What trapped before is followed already; a ring that moves is to be where it was when its doorbell is watched.
                self.follow_from_here(space, |gpu| {
                    may_be_same(gpu, target.gpu) && gpus.moving.contains(&gpu)
                });
            }
            match self.watch(target, life) {
                Ok(_) => self.stop_at_stores(space),
                // Four registers serve two GPUs; the next patrol finds out about the rest.
                Err(e) if n == 0 => return Err(e),
                Err(e) => self.capture.out.untraced(pid, &e),
            }
        }
        let mut indexes = self.capture.table.of_space(space);
        let all = indexes.len();
        if was_there {
            indexes.retain(|index| !self.capture.begin_here(*index));
        }
        if indexes.len() == all {
            self.capture.peek_when_watched(space, &indexes);
        } else {
            // Its memory is there.
            self.capture.newly_watched.remove(&space);
            indexes.into_iter().for_each(|index| {
                self.capture.peek(index);
            });
        }
        Ok(())
    }

    /// Follows rings of some GPUs from their present position, if nothing was captured of them yet.
    fn follow_from_here(&mut self, space: u32, of: impl Fn(Option<u32>) -> bool) {
        for index in self.capture.table.of_space(space) {
            if of(self.capture.table[index].gpu) {
                self.capture.begin_here(index);
            }
        }
    }

    /// Stops threads at known stores before the process's doorbells take the registers, if the process has more doorbells than registers.
    fn stop_at_known_first(&mut self, space: u32, pid: u32, pages: &[Target]) -> Result<()> {
        let is_known = self.sites.to_stop_at(space).next().is_some();
        if !self.options.watch || !is_known {
            return Ok(());
        }
        let named = self.named.file.doorbells.iter().map(|d| Target {
            pid,
            address: d.address,
            gpu: d.gpu,
        });
        let mut targets = Vec::from_iter(named);
        for page in pages {
            if targets.iter().all(|t| t.address != page.address) {
                targets.push(*page);
            }
        }
        if targets.len() <= REGISTERS {
            return Ok(());
        }
        let now = watchpoints::now();
        for target in targets.iter().skip(REGISTERS - 1) {
            self.stores.unwatched((pid, target.address), now);
            self.know_doorbell(space, *target)?;
        }
        self.stop_at_stores(space);
        Ok(())
    }

    /// Watches a doorbell, and looks at the channels that it may ring. If no debug register is left for it, and the process has another
    /// doorbell watched, its rings are looked at instead, until the store that rings is known and threads stop at it.
    pub(super) fn arm(&mut self, target: Target, life: Life) -> Result<()> {
        if let Some(space) = self.watch(target, life)? {
            if life.until_exec {
                let indexes = self.capture.table.of_space(space);
                self.capture.peek_when_watched(space, &indexes);
            }
            self.search_known_stores(space)?;
            self.stop_at_stores(space);
        }
        Ok(())
    }

    /// Watches a doorbell, and connects it with the channels that it may ring. Returns the address space if it is new.
    fn watch(&mut self, target: Target, life: Life) -> Result<Option<u32>> {
        if !self.options.watch {
            return Ok(None);
        }
        let Target { pid, address, .. } = target;
        if self.stores.is_unwatched((pid, address)) {
            return Ok(None);
        }
        let watch = Watch {
            pid,
            stops: Stops::AfterWrite,
            address,
            life,
        };
        match self.set(watch) {
            Ok(Set::Before) => return Ok(None),
            Ok(Set::Whole) => {}
            Ok(Set::Partial) => self.leave_unwatched(pid, address),
            Err(WatchError::NoRegister) if self.breakpoints.any(pid) => {
                self.leave_unwatched(pid, address);
            }
            Err(e) => return Err(e.of(pid, address)),
        }
        let Some(space) = self.capture.bpf.proc(pid).map(|p| p.space) else {
            return Ok(None);
        };
        self.capture.newly_watched.insert(space);
        self.know_doorbell(space, target)?;
        if self.stores.rests(space) {
            self.breakpoints.wake(pid, false);
        }
        Ok(Some(space))
    }

    /// Connects a doorbell with the channels that it may ring.
    fn know_doorbell(&mut self, space: u32, target: Target) -> Result<()> {
        let capture = &mut self.capture;
        capture
            .table
            .add_doorbell(space, target.address, target.gpu);
        for index in capture.table.of_space(space) {
            capture.table.publish_token(index, &mut capture.bpf)?;
        }
        Ok(())
    }

    pub(super) fn set(&mut self, watch: Watch) -> std::result::Result<Set, WatchError> {
        let bpf = &self.capture.bpf;
        let birth = |tid| bpf.birth(tid);
        let set = self.breakpoints.set(watch, bpf.doorbell(), birth);
        if self.is_resting() {
            self.breakpoints.wake_all(false);
        }
        set
    }

    /// Sets the watches in a new thread that it did not inherit, and looks at the rings that it may have rung for meanwhile.
    pub(super) fn thread_came(&mut self, at: At, (tid, born): (u32, Birth), space: u32) {
        let bpf = &self.capture.bpf;
        let birth = |tid| bpf.birth(tid);
        let came = self
            .breakpoints
            .thread_came(at.pid, (tid, born), bpf.doorbell(), birth);
        let lacked = match came {
            Ok(lacked) => lacked,
            Err(WatchError::ProcessGone) => return,
            Err(e) => {
                let address = self.breakpoints.doorbells(at.pid).next().unwrap_or(0);
                self.capture.out.untraced(at.pid, &e.of(at.pid, address));
                return;
            }
        };
        if lacked.is_empty() {
            return;
        }
        for (address, set) in lacked {
            if set == Set::Partial {
                self.leave_unwatched(at.pid, address);
            }
        }
        self.look_behind(at.pid, space);
    }

    /// Sets the watches in a child process that it did not inherit, and looks at the rings that it may have rung for meanwhile.
    pub(super) fn child_came(&mut self, at: At, (child, born): (u32, Birth), space: u32) {
        let lacking = self.breakpoints.inherit(at.pid, (child, &born));
        self.stores.inherit(at.pid, child);
        if lacking.is_empty() {
            return;
        }
        for watch in lacking {
            match self.set(watch) {
                Ok(Set::Whole | Set::Before) | Err(WatchError::ProcessGone) => {}
                Ok(Set::Partial) | Err(WatchError::NoRegister) => match watch.stops {
                    Stops::AfterWrite => self.leave_unwatched(child, watch.address),
                    Stops::Before => self.stores.partial(space),
                },
                Err(e) => self
                    .capture
                    .out
                    .untraced(child, &e.of(child, watch.address)),
            }
        }
        self.look_behind(child, space);
    }

    /// Looks at the rings of a process in which a thread was watched late.
    fn look_behind(&mut self, pid: u32, space: u32) {
        if self.is_resting() {
            self.breakpoints.wake_all(false);
        } else if self.stores.rests(space) {
            self.breakpoints.wake(pid, false);
        }
        self.capture.newly_watched.insert(space);
        let indexes = self.capture.table.of_space(space);
        self.capture.peek_when_watched(space, &indexes);
    }

    /// Takes note that a doorbell is not watched in every thread of the process.
    fn leave_unwatched(&mut self, pid: u32, address: u64) {
        let is_first = !self.stores.lacks([pid].into_iter());
        if !self.stores.unwatched((pid, address), watchpoints::now()) || !is_first {
            return;
        }
        (self.options.notice)(&format!(
            "process {pid} has more doorbells than debug registers are left: their rings are looked at every ms or two, until the store that rings is stopped at"
        ));
        // One register is for that store.
        self.free_register(pid, false);
    }

    /// Stops watching one of several doorbells of a process, or with `only` even the only one. Returns the doorbell.
    fn free_register(&mut self, pid: u32, only: bool) -> Option<u64> {
        let spare = self.breakpoints.spare(pid, only)?;
        self.stop_watching(pid, spare);
        Some(spare)
    }

    /// Stops watching a doorbell of a process. Its rings are looked at from then on.
    pub(super) fn stop_watching(&mut self, pid: u32, address: u64) {
        let heirs = self.breakpoints.disarm(pid, address);
        for pid in heirs.into_iter().chain([pid]) {
            self.stores.unwatched((pid, address), watchpoints::now());
        }
    }

    /// Stops threads at the stores of an address space before they ring, if the user asks for it or debug registers are lacking.
    pub(super) fn stop_at_stores(&mut self, space: u32) {
        let pids = Vec::from_iter(self.capture.spaces.pids(space));
        let lacks = self.stores.lacks(pids.iter().copied());
        if !self.options.precommit && !lacks {
            return;
        }
        let stores = self.stores.begin(space, self.sites.to_stop_at(space));
        let mut whole = !stores.is_empty();
        for store in stores {
            for &pid in &pids {
                let set = self.stop_at_store(pid, store, lacks);
                log::debug!("stopping at {store:#x} of process {pid}: {set:?}");
                whole &= matches!(set, Ok(Set::Whole | Set::Before));
                match set {
                    Ok(Set::Partial) => self.stores.partial(space),
                    Ok(_) | Err(WatchError::ProcessGone) => {}
                    Err(e) => {
                        self.stores.refused(space, store);
                        if self.options.precommit {
                            let e = e.of(pid, store);
                            (self.options.notice)(&format!("not before the doorbell: {e}"));
                        }
                    }
                }
            }
        }
        if whole {
            self.stores.armed(space, watchpoints::now());
        }
    }

    /// Stops a process's threads at a store, if necessary with the debug register of one of its doorbells; with `only` even of the only
    /// one.
    fn stop_at_store(
        &mut self,
        pid: u32,
        store: u64,
        only: bool,
    ) -> std::result::Result<Set, WatchError> {
        let watch = Watch {
            pid,
            stops: Stops::Before,
            address: store,
            life: self.life(),
        };
        let set = self.set(watch);
        if !matches!(set, Err(WatchError::NoRegister) | Ok(Set::Partial)) {
            return set;
        }
        // The store rings them all; a watchpoint serves one doorbell.
        let Some(freed) = self.free_register(pid, only) else {
            return set;
        };
        self.breakpoints.disarm(pid, store);
        let set = self.set(watch);
        if set.is_err() {
            let watchpoint = Watch {
                stops: Stops::AfterWrite,
                address: freed,
                ..watch
            };
            // One doorbell is better than none.
            let again = self.set(watchpoint);
            log::debug!("watching {freed:#x} of process {pid} again: {again:?}");
        }
        set
    }
}
