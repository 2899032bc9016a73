//! Entries whose times may still come.

use super::{Noted, Place, Timeline, Value, Words};

/// Entries behind one that are looked at: what runs after it tells that it has ended, where its own stamp was overwritten before it was read.
const LATER: usize = 4;
/// Time of reading behind the end of the last entry after which the next entry's stamp would have been seen, ns.
const SETTLED_NS: u64 = 10_000_000;

/// Sources of what was seen of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub pid: u32,
    pub words: &'a Words,
    /// Time up to which semaphores were read, ns.
    pub read_ns: u64,
}

impl Seen<'_> {
    /// Returns when a semaphore was seen that had reached a number which an entry writes, ns.
    fn reached(self, of: &Noted, value: Value) -> Option<u64> {
        let stamp = self.words.reached(self.pid, value)?;
        (stamp.seen_ns >= of.not_before()).then_some(stamp.seen_ns)
    }

    /// Tells whether the entry's own semaphores tell its end; `None` of an entry that tells no times.
    fn has_ended(self, of: &Noted) -> Option<bool> {
        if let Some(pair) = of.unit.pair {
            let end = self.words.get(self.pid, pair.end);
            return Some(end.is_some_and(|s| s.seen_ns >= of.not_before()));
        }
        let (stamp, place) = of.unit.stamp?;
        let stamped = self.reached(of, stamp);
        if place == Place::Behind || !of.unit.works {
            return Some(stamped.is_some());
        }
        let ends = of.unit.ends.iter().map(|end| self.reached(of, *end));
        let last = ends.fold(stamped, |last, end| last.max(end).filter(|_| end.is_some()));
        let is_settled = |seen| self.read_ns >= SETTLED_NS.saturating_add(seen);
        Some(!of.unit.ends.is_empty() && last.is_some_and(is_settled))
    }

    /// Tells whether an entry's stamp was seen: those before it have ended.
    fn has_begun(self, of: &Noted) -> bool {
        let stamp = of.unit.stamp.map(|(stamp, _)| stamp);
        stamp.is_some_and(|stamp| self.reached(of, stamp).is_some())
    }
}

impl Timeline {
    /// Tells whether more may be seen of the times of a submission's entries, which are noted: the last one that tells times has not ended, nor has
    /// one behind it begun.
    pub(crate) fn awaits(&self, position: u64, entries: usize, seen: Seen<'_>) -> bool {
        let first = self.noted.partition_point(|n| n.position < position);
        let end = position.saturating_add(entries as u64);
        let behind = first
            + self
                .noted
                .range(first..)
                .take(entries)
                .filter(|n| n.position < end)
                .count();
        let mut own = self.noted.range(first..behind).rev();
        if own.find_map(|n| seen.has_ended(n)) != Some(false) {
            return false;
        }
        let mut later = self.noted.range(behind..).take(LATER);
        !later.any(|n| seen.has_begun(n))
    }
}
