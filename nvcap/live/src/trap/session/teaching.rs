//! Learns stores from one process, searches for them in the others, and gives them up where they capture
//! nothing.

use nvcap_common::{self as c, CODE, SiteKey};
use nvcap_process::error::Result;

use super::{
    super::{
        doorbell_store::Store,
        known_stores::{self, KnownStore},
    },
    Session, store_sites,
};

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

    /// Takes note that a store of an address space was decoded: it is known from now on, and used in the other
    /// spaces at once.
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

    /// Takes note that the search for the copy of GP_PUT at a store is over.
    pub(super) fn learn_copy(&mut self, key: SiteKey, value: &c::SiteValue) {
        if let Some((file, end)) = self.taught.teachers.get(&key) {
            let copy = store_sites::place(value);
            self.taught.known.add_copy(file, *end, copy);
        }
    }

    /// Takes note that a ring moved on without a trap.
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
