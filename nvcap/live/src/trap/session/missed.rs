//! Process events without a record, because the ring buffer was full or no BPF program saw them.
//!
//! Invariant: a finding is acted on only when two consecutive looks agree. The ring buffer is emptied between two
//! looks, so that a record of something that both find cannot still be in it.

use std::collections::BTreeMap;

/// Time between two checks with the kernel whether the processes still exist, ns. They find ends that no BPF program
/// saw.
const LOOK_NS: u64 = 1_000_000_000;

/// The event that was missed, derived from the state of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// The process has ended.
    End,
    /// The process is in this address space.
    Space(u32),
}

/// Findings of the last look that no record had reported.
#[derive(Debug, Default)]
pub(super) struct MissedLives {
    untold: BTreeMap<u32, Missed>,
    /// Time of the next check with the kernel.
    next: u64,
}

impl MissedLives {
    /// Tells whether this look checks with the kernel, which costs more than asking the BPF programs.
    pub(super) fn asks_kernel(&mut self, now: u64) -> bool {
        let ask = now >= self.next;
        if ask {
            self.next = now + LOOK_NS;
        }
        ask
    }

    /// Takes the findings of a look, and returns those to act on now. `asked`: the look also checked with the kernel.
    pub(super) fn found(
        &mut self,
        untold: BTreeMap<u32, Missed>,
        asked: bool,
        now: u64,
    ) -> Vec<(u32, Missed)> {
        let before = std::mem::replace(&mut self.untold, untold);
        let is_again = |(pid, what): &(u32, Missed)| before.get(pid) == Some(what);
        let all = self.untold.iter().map(|(pid, what)| (*pid, *what));
        let (again, first): (Vec<_>, Vec<_>) = all.partition(is_again);
        if asked && !first.is_empty() {
            // The next look asks the kernel at once.
            self.next = now;
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_looks_must_find_the_same() {
        let mut lives = MissedLives::default();
        let mut look =
            |found: &[(u32, Missed)]| lives.found(found.iter().copied().collect(), false, 0);
        assert_eq!(look(&[(7, Missed::Space(1))]), []);
        assert_eq!(
            look(&[(7, Missed::End)]),
            [],
            "it was something else before"
        );
        assert_eq!(look(&[(7, Missed::End)]), [(7, Missed::End)]);
        assert_eq!(look(&[]), []);
        assert_eq!(look(&[(7, Missed::End)]), [], "a record told meanwhile");
    }

    #[test]
    fn a_finding_makes_the_next_look_ask_the_kernel() {
        let mut lives = MissedLives::default();
        assert!(lives.asks_kernel(5) && !lives.asks_kernel(5 + LOOK_NS - 1));
        lives.found(BTreeMap::from([(7, Missed::End)]), true, 6);
        assert!(lives.asks_kernel(6));
        lives.found(BTreeMap::from([(7, Missed::End)]), true, 6);
        assert!(!lives.asks_kernel(7), "it was acted on");
    }
}
