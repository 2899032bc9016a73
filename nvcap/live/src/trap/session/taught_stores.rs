//! Stores that were learnt from one process, and at which the next one is stopped from its first doorbell on (`known_stores`).
//!
//! Invariant: threads are stopped at a store in an address space only after its bytes there were read. A store that captures nothing
//! although rings move is given up in that space, for as long as the space exists: doorbells are then watched there as without known
//! stores.

use std::collections::{HashMap, HashSet};

use nvcap_common::SiteKey;

use super::super::known_stores::{Cache, FileId, KnownStores};

/// Number of looks at which a ring had moved on although no learnt store had captured, after which these stores are given up.
const MOST_MISSES: u32 = 8;

/// Known stores, and where they were used.
#[derive(Debug)]
pub(super) struct TaughtStores {
    pub(super) known: KnownStores,
    /// Address spaces that were searched, with the number of stores that were known then.
    pub(super) searched: HashMap<u32, u64>,
    /// Stores from which something was learnt: their places in their files.
    pub(super) teachers: HashMap<SiteKey, (FileId, u64)>,
    /// Looks without a capture, by address space.
    misses: HashMap<u32, u32>,
    given_up: HashSet<u32>,
}

impl TaughtStores {
    pub(super) fn new(cache: Option<Cache>) -> Self {
        Self {
            known: KnownStores::new(cache),
            searched: HashMap::new(),
            teachers: HashMap::new(),
            misses: HashMap::new(),
            given_up: HashSet::new(),
        }
    }

    /// Tells whether a space must be searched: a store is known that was not known at its last search.
    pub(super) fn is_due(&mut self, space: u32) -> bool {
        let known = self.known.added;
        !self.given_up.contains(&space)
            && known > 0
            && self.searched.insert(space, known) != Some(known)
    }

    /// Takes note that a ring moved on unseen where threads are stopped at a learnt store, and none has captured. True if these stores
    /// are given up now.
    pub(super) fn misses(&mut self, space: u32) -> bool {
        let misses = self.misses.entry(space).or_default();
        *misses += 1;
        *misses >= MOST_MISSES && self.given_up.insert(space)
    }

    /// An address space is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.searched.remove(&space);
        self.misses.remove(&space);
        self.given_up.remove(&space);
        self.teachers.retain(|key, _| key.space != space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_searched_when_something_is_new() {
        let mut all = TaughtStores::new(None);
        assert!(!all.is_due(1), "nothing is known");
        all.known.added = 1;
        assert!(all.is_due(1) && !all.is_due(1) && all.is_due(2));
        all.known.added = 2;
        assert!(all.is_due(1));
        all.forget_space(1);
        assert!(all.is_due(1));
    }

    #[test]
    fn stores_without_a_capture_are_given_up_once() {
        let mut all = TaughtStores::new(None);
        all.known.added = 1;
        for n in 1..=MOST_MISSES + 1 {
            assert_eq!(all.misses(1), n == MOST_MISSES, "{n}");
        }
        assert!(!all.is_due(1) && all.is_due(2));
    }
}
