//! Pace and turns of debug registers that move from doorbell to doorbell (`moving.rs`).

use std::collections::HashMap;

use super::stores::Doorbell;

/// Shortest time from one move in an address space to the next, ns. A doorbell that is used at all is rung within it. The time doubles
/// with each move, up to the longest, because every move costs each thread of the process an interrupt.
const SHORTEST_NS: u64 = 10_000_000;
const LONGEST_NS: u64 = 1_000_000_000;

/// Moves so far.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Time of the next move in an address space, and the pause after it, ns.
    next: HashMap<u32, (u64, u64)>,
    /// Number of times that each doorbell was given a register.
    given: HashMap<Doorbell, u32>,
}

impl Moves {
    /// Tells whether a move is due, and postpones the next one.
    pub(super) fn is_due(&mut self, space: u32, now: u64) -> bool {
        let (next, pause) = self.next.entry(space).or_insert((0, SHORTEST_NS));
        let due = now >= *next;
        if due {
            *next = now + *pause;
            *pause = (*pause * 2).min(LONGEST_NS);
        }
        due
    }

    /// Takes the doorbell that was given a register least often.
    pub(super) fn choose(&mut self, pid: u32, of: impl Iterator<Item = u64>) -> Option<u64> {
        let often = |address: &u64| self.given.get(&(pid, *address)).copied().unwrap_or(0);
        let chosen = of.min_by_key(|address| (often(address), *address))?;
        *self.given.entry((pid, chosen)).or_default() += 1;
        Some(chosen)
    }

    /// Forgets an address space that is gone, and its processes.
    pub(super) fn forget_space(&mut self, space: u32, pids: &[u32]) {
        self.next.remove(&space);
        self.given.retain(|(pid, _), _| !pids.contains(pid));
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
