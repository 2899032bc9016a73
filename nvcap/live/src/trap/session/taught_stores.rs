//! Stores that one process taught and the next one is stopped at, from its first doorbell on ([`known_stores`]).
//!
//! Invariant: a store is stopped at in an address space only after its bytes there were read. One that captures nothing although rings
//! move is given up in that space, for as long as the space exists: doorbells are watched there as if nothing had been known.

use std::collections::{HashMap, HashSet};

use nvcap_common::{self as c, CODE, SiteKey};
use nvcap_process::error::Result;

use super::{
    super::{
        doorbell_store::Store,
        known_stores::{self, Cache, FileId, KnownStore, KnownStores},
    },
    Session, store_sites,
};

/// Looks at which a ring had moved on, and no taught store had captured anything, after which these are given up.
const MOST_MISSES: u32 = 8;

/// What is known of stores, and where it was used.
#[derive(Debug)]
pub(super) struct TaughtStores {
    pub(super) known: KnownStores,
    /// Address spaces that were searched, and how many stores were known then.
    searched: HashMap<u32, u64>,
    /// Stores that taught something: where they are in their files.
    teachers: HashMap<SiteKey, (FileId, u64)>,
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
    fn is_due(&mut self, space: u32) -> bool {
        let known = self.known.added;
        !self.given_up.contains(&space)
            && known > 0
            && self.searched.insert(space, known) != Some(known)
    }

    /// A ring moved on unseen where a store that was taught is stopped at, and none has captured. True where they are given up now.
    fn misses(&mut self, space: u32) -> bool {
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

impl Session {
    /// Looks for known stores in an address space, and gives the BPF programs those that are there.
    pub(super) fn search_known_stores(&mut self, space: u32) -> Result<()> {
        if !self.options.watch || !self.taught.is_due(space) {
            return Ok(());
        }
        let Some(pid) = self.capture.spaces.pids(space).next() else {
            return Ok(());
        };
        self.capture.open_memory(space);
        let Some(memory) = self.capture.spaces.memory(space) else {
            // Nothing of it can be read yet, or any more.
            self.taught.searched.remove(&space);
            return Ok(());
        };
        let pieces = known_stores::pieces(pid).unwrap_or_default();
        let found = known_stores::found_in(self.taught.known.all(), &pieces, memory);
        let mut values = Vec::new();
        for (end, known) in found {
            let key = store_sites::key(space, end);
            if let Some(value) = self.sites.taught(key, known) {
                log::debug!(
                    "store at {end:#x} in space {space} (process {pid}): known from an earlier process, {:?}",
                    known.store
                );
                values.push((key, value));
            }
        }
        for (key, value) in values {
            self.set_site(key, value)?;
        }
        Ok(())
    }

    /// A store of an address space was decoded: it is known from now on, and the other spaces have it at once.
    pub(super) fn learn_store(&mut self, r: &c::Site, value: &c::SiteValue) -> Result<()> {
        let Some(code) = r.code.first_chunk::<CODE>().filter(|_| value.len > 0) else {
            return Ok(());
        };
        let memory = self.capture.spaces.memory(r.space);
        let pieces = known_stores::pieces(r.header.pid).unwrap_or_default();
        let Some((file, end)) = memory.and_then(|m| known_stores::file_of(&pieces, m, r.ip)) else {
            log::debug!("store at {:#x} in space {}: in no file", r.ip, r.space);
            return Ok(());
        };
        let known = KnownStore {
            file: file.clone(),
            end,
            code: *code,
            store: Store {
                register: value.register,
                len: value.len,
                address: Some((value.base, value.displacement)),
            },
            doorbell: value.offset,
            copy: None,
        };
        let key = store_sites::key(r.space, r.ip);
        self.taught.teachers.insert(key, (file.clone(), end));
        if !self.taught.known.add(known) {
            return Ok(());
        }
        log::debug!("the store at {end:#x} of file {file} is known from now on");
        // This one has it.
        self.taught
            .searched
            .insert(r.space, self.taught.known.added);
        for space in self.capture.table.spaces_with_doorbells() {
            self.search_known_stores(space)?;
            self.stop_at_stores(space);
        }
        Ok(())
    }

    /// The search for the copy of GP_PUT at a store is over.
    pub(super) fn learn_copy(&mut self, key: SiteKey, value: &c::SiteValue) {
        if let Some((file, end)) = self.taught.teachers.get(&key) {
            let copy = store_sites::place(value);
            self.taught.known.add_copy(file, *end, copy);
        }
    }

    /// A ring moved on, and nothing trapped.
    pub(super) fn missed_at_taught(&mut self, space: u32) {
        if self.stores.has_captured(space)
            || self.capture.stopped.contains(&space)
            || !self.sites.has_taught(space)
            || !self.taught.misses(space)
        {
            return;
        }
        log::debug!("space {space}: known stores ring nothing, and are given up");
        let pids = Vec::from_iter(self.capture.spaces.pids(space));
        for (keys, begins) in self.sites.forget_taught(space) {
            for pid in &pids {
                self.breakpoints.disarm(*pid, begins);
            }
            for key in keys {
                self.capture.bpf.forget_site(key);
            }
            self.stores.given_up(space, begins);
        }
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
