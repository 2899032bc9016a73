//! Doorbells that were rung, as far as records show.
//!
//! Invariant: a doorbell's count of submissions only grows until its address space ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Number of submissions through one doorbell page of a GPU after which its other page is given up, if that was
/// never rung.
const DEAD_AFTER: u64 = 256;

/// A doorbell of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DoorbellWord {
    pub(super) space: u32,
    pub(super) address: u64,
}

/// The doorbells that were rung.
#[derive(Debug, Default)]
pub(super) struct RungDoorbells {
    /// Address spaces in which a doorbell was seen.
    spaces: BTreeSet<u32>,
    submissions: HashMap<DoorbellWord, u64>,
    /// Time at which the last submission of each space was found, by a doorbell or a look, ns.
    last: BTreeMap<u32, u64>,
    /// Doorbells that have just reached that number, with the process that rang them.
    busy: Vec<(u32, DoorbellWord)>,
}

impl RungDoorbells {
    /// Takes note that a doorbell was seen in the space.
    pub(super) fn saw(&mut self, space: u32) {
        self.spaces.insert(space);
    }

    /// Takes note that a submission of process `pid` came through a doorbell.
    pub(super) fn submitted(&mut self, pid: u32, doorbell: DoorbellWord) {
        self.saw(doorbell.space);
        let count = self.submissions.entry(doorbell).or_default();
        *count += 1;
        if *count == DEAD_AFTER {
            self.busy.push((pid, doorbell));
        }
    }

    /// Takes note that a submission of the space was found in any way.
    pub(super) fn found(&mut self, space: u32, time_ns: u64) {
        self.last.insert(space, time_ns);
    }

    /// Returns the time at which the last submission of the space was found, ns.
    pub(super) fn last(&self, space: u32) -> Option<u64> {
        self.last.get(&space).copied()
    }

    /// Takes the doorbells that were rung so often that others of the same GPU, never rung, are given up.
    pub(super) fn take_busy(&mut self) -> Vec<(u32, DoorbellWord)> {
        std::mem::take(&mut self.busy)
    }

    /// Tells whether a submission came through the doorbell.
    pub(super) fn was_rung(&self, doorbell: DoorbellWord) -> bool {
        self.submissions.contains_key(&doorbell)
    }

    /// Tells whether a doorbell was seen in the space.
    pub(super) fn has(&self, space: u32) -> bool {
        self.spaces.contains(&space)
    }

    /// Tells whether a doorbell was seen in any space that still exists.
    pub(super) fn any(&self) -> bool {
        !self.spaces.is_empty()
    }

    /// Forgets an address space that is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.spaces.remove(&space);
        self.last.remove(&space);
        self.submissions.retain(|d, _| d.space != space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_doorbell_is_told_once() {
        let doorbell = DoorbellWord {
            space: 1,
            address: 0x90,
        };
        let mut rung = RungDoorbells::default();
        for _ in 1..DEAD_AFTER {
            rung.submitted(7, doorbell);
        }
        assert!(rung.take_busy().is_empty() && rung.was_rung(doorbell));
        rung.submitted(7, doorbell);
        rung.submitted(7, doorbell);
        assert_eq!(rung.take_busy(), [(7, doorbell)]);
        assert!(rung.take_busy().is_empty());
        assert!(rung.has(1) && !rung.has(2));
        rung.forget_space(1);
        assert!(!rung.any() && !rung.was_rung(doorbell));
    }
}
