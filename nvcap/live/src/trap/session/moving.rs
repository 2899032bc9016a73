//! Debug registers that move to other doorbells: in a process that has more doorbells than registers, while no store is known that rings.
//!
//! Invariant: a register is taken only from a doorbell that was never seen rung, and given only to one of a GPU of which a ring has moved.

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
    /// Rings of these GPUs have moved, and nothing trapped: registers of a process's other doorbells go to theirs.
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

    /// Doorbells of these GPUs that no thread of the process has watched.
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

    /// Gives a doorbell of a process the register of another one that was never rung, one of another GPU first.
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
