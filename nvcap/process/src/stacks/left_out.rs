//! Limits of the data that is read for stacks, and counts of omissions by reason.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet, hash_map::RandomState},
    hash::{BuildHasher as _, Hash},
};

use crate::procfs::budget::Budget;

/// The most bytes that are read of all files of an address space together.
const MOST_OF_SPACE: u64 = 1 << 30;

/// The most parts of one reason that are kept, so that each part is counted once. Further parts are counted each time that they are left
/// out.
const MOST_PARTS: usize = 1 << 16;

/// Reason: files on FUSE.
pub(super) const ON_FUSE: &str = "mapped files on FUSE, which are not opened";
/// Reason: tables beyond the budget of an address space.
pub(super) const TABLES: &str =
    "tables of mapped files: they have more than is read of the files of one process";
/// Reason: tables that are too large by themselves.
pub(super) const LARGE_TABLES: &str =
    "tables of mapped files that are larger than 256 MiB, or 512 MiB of debugging information";
/// Reason: too many symbols.
pub(super) const SYMBOLS: &str = "symbols of a mapped file that has more than 4 million";
/// Reason: too many sections.
pub(super) const SECTIONS: &str = "sections of a mapped file that has more than 16,384";
/// Reason: names that are cut, or not demangled.
pub(super) const NAMES: &str = "parts of long names: they are cut at 16 KiB, and mangled ones that stand for more stay mangled";
/// Reason: names that are not read.
pub(super) const LONG_SYMBOLS: &str = "names of functions that are longer than 8 KiB";
/// Reason: names or lines of Python that exceed the budget.
pub const PYTHON: &str = "names or lines of Python functions: they have more than is read of one process or of one function";
/// Reason: callers in Python that the BPF program does not reach.
pub(super) const PYTHON_CALLERS: &str =
    "callers in Python beyond the 64 innermost frames, by stack";
/// Reason: callers of deep stacks.
pub(super) const CALLERS: &str = "callers beyond 192 frames or 4 MiB of them, by stack";

/// Counts of omissions, by reason.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    reasons: BTreeMap<&'static str, Parts>,
    hasher: RandomState,
}

/// Parts that were left out for one reason.
#[derive(Debug, Default)]
struct Parts {
    known: HashSet<u64>,
    count: u64,
}

impl LeftOut {
    /// Counts a part, if it was not counted before. Returns true for the first part of this reason.
    pub(crate) fn add(&mut self, why: &'static str, part: impl Hash) -> bool {
        let part = self.hasher.hash_one(part);
        let parts = self.reasons.entry(why).or_default();
        let before = parts.count;
        if parts.known.len() >= MOST_PARTS {
            parts.count += u64::from(!parts.known.contains(&part));
        } else {
            parts.count += u64::from(parts.known.insert(part));
        }
        before == 0 && parts.count == 1
    }

    /// Counts this many omissions, without a check for repeated parts.
    pub(super) fn count(&mut self, why: &'static str, count: u64) {
        self.reasons.entry(why).or_default().count += count;
    }

    /// Returns the reasons with their counts.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.reasons.iter().map(|(why, parts)| (*why, parts.count))
    }
}

/// Budget for the files of one address space, and counts of the parts that were left out because of it.
#[derive(Debug)]
pub(super) struct Room {
    budget: Budget,
    left_out: RefCell<LeftOut>,
}

impl Default for Room {
    fn default() -> Self {
        Self::of(MOST_OF_SPACE)
    }
}

impl Room {
    /// Makes a budget of this many bytes.
    pub(super) fn of(bytes: u64) -> Self {
        Self {
            budget: Budget::of(bytes),
            left_out: RefCell::default(),
        }
    }

    /// Takes this many bytes for a part. If fewer are left, returns `None`, and the part is left out.
    pub(super) fn take(&self, bytes: u64, part: impl Hash) -> Option<()> {
        let fits = self.budget.take(bytes);
        if !fits {
            self.leave_out(TABLES, part);
        }
        fits.then_some(())
    }

    /// Counts a part that is left out, once.
    pub(super) fn leave_out(&self, what: &'static str, part: impl Hash) {
        if self.left_out.borrow_mut().add(what, part) {
            log::warn!("not read for stacks: {what}");
        }
    }

    /// Returns names of the parts that were left out, with their counts.
    pub(super) fn left_out(&self) -> Vec<(&'static str, u64)> {
        self.left_out.borrow().counts().collect()
    }

    /// Tells whether a part has needed more bytes than were left.
    pub(super) fn is_spent(&self) -> bool {
        self.budget.is_spent()
    }

    /// Returns the number of bytes that are left.
    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.budget.left()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_counted_once() {
        let mut all = LeftOut::default();
        assert!(all.add(SYMBOLS, 1) && !all.add(SYMBOLS, 1) && !all.add(SYMBOLS, 2));
        assert!(all.add(TABLES, 1));
        all.count(CALLERS, 3);
        let expected = [(CALLERS, 3), (SYMBOLS, 2), (TABLES, 1)];
        let mut counts: Vec<_> = all.counts().collect();
        counts.sort_unstable();
        assert_eq!(counts, expected);
        for part in 0..2 * MOST_PARTS {
            all.add(NAMES, part);
        }
        let names = all.counts().find(|(why, _)| *why == NAMES);
        assert_eq!(names, Some((NAMES, 2 * MOST_PARTS as u64)));
        assert!(all.reasons[NAMES].known.len() <= MOST_PARTS);
    }
}
