//! Entries that wait and belong to a load.

use std::collections::{BTreeSet, VecDeque};

use super::form::{Form, chunk};
use super::held::{Decide, Item};
use nvcap_decode::decode::event::{Load, PartOf};

/// Makes a load of which nothing was seen.
pub(super) const fn load(part_of: PartOf) -> Load {
    Load {
        part_of,
        entries: 0,
        code_bytes: 0,
        code_writes: 0,
        data_bytes: 0,
        data_writes: 0,
    }
}

/// Adds an entry to a load; `is_code`: what a copy engine copies for it is code.
pub(super) fn count(load: &mut Load, form: &Form, is_code: bool) {
    load.entries += 1;
    let mut add = |code: bool, bytes: u64| {
        let (n, of) = match code {
            true => (&mut load.code_writes, &mut load.code_bytes),
            false => (&mut load.data_writes, &mut load.data_bytes),
        };
        *n += 1;
        *of = of.saturating_add(bytes);
    };
    for write in &form.writes {
        add(write.is_code, write.bytes);
    }
    if let Some((_, bytes, has_source)) = form.copy {
        add(has_source && is_code, bytes);
    }
}

/// Entries that belong to a load that is closed.
pub(super) struct Members<'a> {
    pub(super) load: Load,
    closing: &'a Form,
    code: &'a BTreeSet<u64>,
    /// Addresses in the table that no entry has written yet, looking back.
    listed: BTreeSet<u64>,
    /// Memory of variables that were found.
    chunks: BTreeSet<u64>,
}

impl<'a> Members<'a> {
    /// Begins with no member of the load that `closing` closes, which goes on with `so_far`.
    pub(super) fn new(so_far: Option<Load>, closing: &'a Form, code: &'a BTreeSet<u64>) -> Self {
        Self {
            load: so_far.unwrap_or(load(PartOf::Module)),
            closing,
            code,
            listed: BTreeSet::new(),
            chunks: BTreeSet::new(),
        }
    }

    /// Takes the table of the variables' addresses.
    pub(super) fn list(&mut self, form: &Form) {
        self.listed
            .extend(form.writes.iter().flat_map(|w| w.table.iter().copied()));
    }

    /// Takes an entry that belongs to the load.
    pub(super) fn take(&mut self, item: &Item, decide: &mut Decide<'_>) {
        count(&mut self.load, &item.form, self.closing.instruction);
        decide.settle(item.record, item.entry, Some(PartOf::Module));
    }

    /// Divides the entries of the load's channel into those of the load and the program's.
    pub(super) fn writes(&mut self, items: Vec<Item>, decide: &mut Decide<'_>) {
        let mut is_member = vec![false; items.len()];
        for (item, is_member) in items.iter().zip(&mut is_member).rev() {
            // Whoever wrote there before has not written the module: the program did, to a module that is gone.
            *is_member = item.form.writes.iter().any(|w| {
                let listed = self.listed.remove(&w.dst);
                if listed {
                    self.chunks.insert(chunk(w.dst));
                }
                listed || w.is_code
            });
        }
        // Constants lie beside the variables, and are written behind them.
        let mut is_behind = false;
        for (item, mut is_member) in items.into_iter().zip(is_member) {
            let mut chunks = item.form.writes.iter().map(|w| chunk(w.dst));
            is_member |= is_behind && chunks.any(|c| self.chunks.contains(&c));
            is_behind |= is_member;
            match is_member || item.form.is_idle() && is_behind {
                true => self.take(&item, decide),
                false => decide.settle(item.record, item.entry, None),
            }
        }
    }

    /// Takes the entries of another channel that belong to the load, and returns the others.
    pub(super) fn copies(
        &mut self,
        items: VecDeque<Item>,
        decide: &mut Decide<'_>,
    ) -> VecDeque<Item> {
        let mut others = VecDeque::new();
        for item in items {
            let is_awaited = item
                .form
                .releases
                .iter()
                .any(|r| self.closing.waits.contains(r));
            let is_member = item.form.copy.is_some_and(|(dst, _, has_source)| {
                let is_code = has_source
                    && self.closing.instruction
                    && (is_awaited || self.code.contains(&chunk(dst)));
                is_code || self.listed.remove(&dst)
            });
            match is_member {
                true => self.take(&item, decide),
                false => others.push_back(item),
            }
        }
        others
    }
}
