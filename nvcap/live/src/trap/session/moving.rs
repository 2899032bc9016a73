//! Moves debug registers to other doorbells, in a process with more doorbells than registers, while no store that rings is known.
//!
//! Invariant: a register is taken only from a doorbell that was never seen rung, and given only to a doorbell of a GPU on which a ring has
//! moved.

use std::collections::BTreeSet;

use super::{
    super::{
        space::may_be_same,
        watchpoints::{REGISTERS, Stops},
    },
    Session,
    breakpoints::{Set, Watch},
    rung::DoorbellWord,
    stores::Doorbell,
};

impl Session {
    /// Gives registers of a process's other doorbells to doorbells of these GPUs, on which rings have moved without a trap.
    pub(super) fn move_registers(&mut self, space: u32, moved: &BTreeSet<Option<u32>>, now: u64) {
        if self.sites.to_stop_at(space).next().is_some() || self.stores.has_captured(space) {
            return;
        }
        for pid in Vec::from_iter(self.capture.spaces.pids(space)) {
            let candidates = self.unwatched_of_gpus(space, pid, moved);
            if candidates.is_empty() || !self.moves.is_due(space, now) {
                continue;
            }
            if let Some(address) = self.moves.choose(pid, candidates.into_iter()) {
                self.give_register(space, (pid, address), moved);
            }
        }
    }

    /// Returns the doorbells of these GPUs that are watched in no thread of the process.
    fn unwatched_of_gpus(&self, space: u32, pid: u32, gpus: &BTreeSet<Option<u32>>) -> Vec<u64> {
        let Some(doorbells) = self.capture.table.doorbells(space) else {
            return Vec::new();
        };
        let watched = BTreeSet::from_iter(self.breakpoints.doorbells(pid));
        let of = |address: &u64| {
            gpus.iter()
                .any(|gpu| may_be_same(doorbells.gpu(*address), *gpu))
        };
        let all = self.stores.unwatched_of(pid);
        all.filter(|address| !watched.contains(address) && of(address))
            .collect()
    }

    /// Gives a doorbell the register of another one of the process that was never rung; of a doorbell of another GPU first.
    fn give_register(
        &mut self,
        space: u32,
        (pid, address): Doorbell,
        moved: &BTreeSet<Option<u32>>,
    ) {
        let watched = Vec::from_iter(self.breakpoints.doorbells(pid));
        let mut freed = None;
        if watched.len() + 1 >= REGISTERS {
            let rung = &self.capture.rung;
            let doorbells = self.capture.table.doorbells(space);
            let gpu = |address: u64| doorbells.and_then(|d| d.gpu(address));
            let quiet = watched.into_iter().filter(|address| {
                let address = *address;
                !rung.was_rung(DoorbellWord { space, address })
            });
            freed = quiet.min_by_key(|address| moved.contains(&gpu(*address)));
            let Some(freed) = freed else {
                return;
            };
            self.stop_watching(pid, freed);
        }
        let watch = Watch {
            pid,
            stops: Stops::AfterWrite,
            address,
            life: self.life(),
        };
        let set = self.set(watch);
        log::debug!(
            "process {pid}: doorbell {address:#x} is watched, no longer {freed:x?}: {set:?}"
        );
        if matches!(set, Ok(Set::Whole)) {
            self.stores.forget_doorbell((pid, address));
        }
    }
}
