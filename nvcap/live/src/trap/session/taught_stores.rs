//! Stores that one process taught and the next one is stopped at, from its first doorbell on (`known_stores`).
//!
//! Invariant: a store is stopped at in an address space only after its bytes there were read. One that captures nothing although rings
//! move is given up in that space, for as long as the space exists: doorbells are watched there as if nothing had been known.

use std::collections::{HashMap, HashSet};

use nvcap_common::SiteKey;

use super::super::known_stores::{Cache, FileId, KnownStores};

/// Looks at which a ring had moved on, and no taught store had captured anything, after which these are given up.
const MOST_MISSES: u32 = 8;

/// Stores that are known, and where they were used.
#[derive(Debug)]
pub(super) struct TaughtStores {
    pub(super) known: KnownStores,
    /// Address spaces that were searched, and how many stores were known then.
    pub(super) searched: HashMap<u32, u64>,
    /// Stores that taught something: where they are in their files.
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

    /// Tells whether a space is to be searched: something is known that was not when it was searched last.
    pub(super) fn is_due(&mut self, space: u32) -> bool {
        let known = self.known.added;
        !self.given_up.contains(&space)
            && known > 0
            && self.searched.insert(space, known) != Some(known)
    }

    /// A ring moved on unseen where a store that was taught is stopped at, and none has captured. True where they are given up now.
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
