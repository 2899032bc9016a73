//! Debug registers that move to other doorbells: in a process that has more doorbells than registers, while no store is known that rings.
//!
//! Invariant: a register is taken only from a doorbell that was never seen rung, and given only to one of a GPU of which a ring has moved.

use std::collections::{BTreeSet, HashMap};

use super::{
    super::{space::may_be_same, watchpoints::Stops},
    Session,
    arming::REGISTERS,
    breakpoints::{Set, Watch},
    rung::DoorbellWord,
    stores::Doorbell,
};

/// Shortest time from one move in an address space to the next, ns: a doorbell that is rung at all is rung in it. It doubles with each
/// move, up to the longest: every move costs each thread of the process an interrupt.
const SHORTEST_NS: u64 = 10_000_000;
const LONGEST_NS: u64 = 1_000_000_000;

/// Moves so far.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Time of the next move in an address space, and the pause after it, ns.
    next: HashMap<u32, (u64, u64)>,
    /// How often a register was given to a doorbell.
    given: HashMap<Doorbell, u32>,
}

impl Moves {
    /// Tells whether a move is due; the one after it is put off.
    fn is_due(&mut self, space: u32, now: u64) -> bool {
        let (next, pause) = self.next.entry(space).or_insert((0, SHORTEST_NS));
        let due = now >= *next;
        if due {
            *next = now + *pause;
            *pause = (*pause * 2).min(LONGEST_NS);
        }
        due
    }

    /// Takes the doorbell of these that was given a register least often.
    fn choose(&mut self, pid: u32, of: impl Iterator<Item = u64>) -> Option<u64> {
        let often = |address: &u64| self.given.get(&(pid, *address)).copied().unwrap_or(0);
        let chosen = of.min_by_key(|address| (often(address), *address))?;
        *self.given.entry((pid, chosen)).or_default() += 1;
        Some(chosen)
    }

    /// An address space is gone, and these processes with it.
    pub(super) fn forget_space(&mut self, space: u32, pids: &[u32]) {
        self.next.remove(&space);
        self.given.retain(|(pid, _), _| !pids.contains(pid));
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_doorbell_has_its_turn() {
        let mut moves = Moves::default();
        let all = [0x90, 0x1090, 0x2090];
        let chosen: Vec<_> = (0..4)
            .filter_map(|_| moves.choose(7, all.into_iter()))
            .collect();
        assert_eq!(chosen, [0x90, 0x1090, 0x2090, 0x90]);
        assert_eq!(moves.choose(8, all.into_iter()), Some(0x90));
        assert_eq!(moves.choose(7, [0x90, 0x3090].into_iter()), Some(0x3090));
        assert_eq!(moves.choose(7, std::iter::empty()), None);
    }

    #[test]
    fn moves_become_rare() {
        let mut moves = Moves::default();
        assert!(moves.is_due(1, 5) && !moves.is_due(1, 4 + SHORTEST_NS) && moves.is_due(2, 5));
        assert!(moves.is_due(1, 5 + SHORTEST_NS));
        assert!(!moves.is_due(1, 4 + 3 * SHORTEST_NS) && moves.is_due(1, 5 + 3 * SHORTEST_NS));
        for n in 1..20 {
            assert!(moves.is_due(1, n * (1 << 40)));
        }
        assert!(!moves.is_due(1, 19 * (1 << 40) + LONGEST_NS - 1));
        moves.forget_space(1, &[7]);
        assert!(moves.is_due(1, 0));
    }
}
