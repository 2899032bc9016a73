//! Entries that wait and belong to a load.

use std::collections::{BTreeSet, VecDeque};

use super::form::{Form, chunk};
use super::held::{Decide, Item};
use super::named::Written;
use nvcap_decode::decode::event::{Load, PartOf};
use nvcap_decode::record::Kernel;

/// Makes a load of which nothing was seen.
pub(super) const fn load(part_of: PartOf) -> Load {
    Load {
        part_of,
        entries: 0,
        code_bytes: 0,
        code_writes: 0,
        data_bytes: 0,
        data_writes: 0,
        variables: None,
        constant_banks: None,
        functions: None,
        kernels: Vec::new(),
        symbols: Vec::new(),
    }
}

/// Adds an entry to a load; `is_code`: what a copy engine copies for it is code.
pub(super) fn count(load: &mut Load, form: &Form, is_code: bool) {
    load.entries += 1;
    for write in &form.writes {
        match write.is_code {
            true => code(load, write.bytes, write.functions.of(write.bytes)),
            false => data(load, write.bytes),
        }
    }
    match form.copy {
        Some((_, bytes, true)) if is_code => code(load, bytes, None),
        Some((_, bytes, _)) => data(load, bytes),
        None => {}
    }
}

/// Adds code with so many functions.
fn code(load: &mut Load, bytes: u64, functions: Option<u64>) {
    let before = match load.code_writes {
        0 => Some(0),
        _ => load.functions,
    };
    load.functions = before.zip(functions).map(|(a, b)| a.saturating_add(b));
    load.code_writes += 1;
    load.code_bytes = load.code_bytes.saturating_add(bytes);
}

fn data(load: &mut Load, bytes: u64) {
    load.data_writes += 1;
    load.data_bytes = load.data_bytes.saturating_add(bytes);
}

/// Gives a load the names of its functions, and of its variables where the images of the functions have as many as it has written. (Functions of a
/// module are loaded one by one: its variables come with the first.)
pub(super) fn name(load: &mut Load, functions: &[&Kernel]) {
    load.kernels = functions.iter().map(|f| f.name.clone()).collect();
    let symbols = functions.iter().flat_map(|f| &f.variables);
    let constants = symbols.clone().filter(|s| s.constant).count() as u64;
    let variables = symbols.clone().count() as u64 - constants;
    // Where there is no variable, no table tells of constants, either.
    let has_banks = match load.constant_banks {
        Some(banks) => banks > 0,
        None => load.data_writes > 0,
    };
    if load.variables.unwrap_or(0) == variables && (constants == 0 || has_banks) {
        load.symbols = symbols.cloned().collect();
        load.symbols.sort_by_key(|s| s.constant);
    }
}

/// The entries that belong to a load that is closed.
pub(super) struct Members<'a> {
    pub(super) load: Load,
    closing: &'a Form,
    code: &'a BTreeSet<u64>,
    /// Addresses in the table that no entry has written yet, looking back.
    listed: BTreeSet<u64>,
    /// Memory of variables that were found.
    chunks: BTreeSet<u64>,
    /// Memory to which its code was written.
    pub(super) written: Vec<Written>,
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
            written: Vec::new(),
        }
    }

    /// Takes the table of the variables' addresses.
    pub(super) fn list(&mut self, form: &Form) {
        self.listed
            .extend(form.writes.iter().flat_map(|w| w.table.iter().copied()));
        if !self.listed.is_empty() {
            self.add(0, 0);
        }
    }

    /// Adds variables and constant banks, which a table tells.
    fn add(&mut self, variables: u64, banks: u64) {
        let Load {
            variables: v,
            constant_banks: b,
            ..
        } = &mut self.load;
        for (known, more) in [(v, variables), (b, banks)] {
            *known.get_or_insert(0) += more;
        }
    }

    /// Takes an entry that belongs to the load.
    pub(super) fn take(&mut self, item: &Item, decide: &mut Decide<'_>) {
        let is_code = self.closing.instruction;
        count(&mut self.load, &item.form, is_code);
        let writes = item.form.writes.iter().filter(|w| w.is_code);
        self.written.extend(writes.map(|w| Written {
            at: w.dst..w.dst.saturating_add(w.bytes),
            hash: w.functions.hash(w.bytes),
        }));
        if let Some((dst, bytes, true)) = item.form.copy.filter(|_| is_code) {
            self.written.push(Written {
                at: dst..dst.saturating_add(bytes),
                hash: None,
            });
        }
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
                    self.add(1, 0);
                }
                listed || w.is_code
            });
        }
        // Constants lie beside the variables, and are written behind them.
        let mut is_behind = false;
        for (item, mut is_member) in items.into_iter().zip(is_member) {
            let mut chunks = item.form.writes.iter().map(|w| chunk(w.dst));
            let is_bank = !is_member && is_behind && chunks.any(|c| self.chunks.contains(&c));
            if is_bank {
                self.add(0, 1);
            }
            is_member |= is_bank;
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
                let is_variable = !is_code && self.listed.remove(&dst);
                if is_variable {
                    self.add(1, 0);
                }
                is_code || is_variable
            });
            match is_member {
                true => self.take(&item, decide),
                false => others.push_back(item),
            }
        }
        others
    }
}
