//! Prediction of the place where a channel's pushbuffer memory is written next. Pure.

pub(super) use nvcap_process::memory::reuse::{overlaps, reused};

use nvcap_process::memory::reuse::range;

/// Prediction, from a channel's entries, of the place where its pushbuffer memory is written next: behind the newest entry; or
/// at the beginning of memory, when the newest entry lies near its end, or when the GPU is done with all entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allocator {
    /// End of the newest segment.
    end: u64,
    /// Size of the largest segment.
    largest: u64,
    /// Average size of recent segments.
    mean: u64,
    /// Beginning of memory: the lowest place to which entries jumped back, and the latest one. Both are kept, because where
    /// entries are missing a jump may seem to lead to a place behind the beginning.
    begins: Option<[u64; 2]>,
    /// The furthest place that entries reached before they jumped back.
    furthest: u64,
}

/// Number of segments before the end of memory, and behind its beginning, that count as its turn.
const TURN_BEFORE: u64 = 192;
const TURN_BEHIND: u64 = 128;
/// Least size of the range that may be written ahead, bytes.
const AHEAD: u64 = 1024;

impl Allocator {
    /// Takes in the place of an entry.
    pub(crate) fn take(&mut self, entry: u64) {
        let (start, end) = range(entry);
        if start == end {
            return;
        }
        if start < self.end {
            let lowest = self.begins.map_or(start, |b| b[0].min(start));
            self.begins = Some([lowest, start]);
            self.furthest = self.furthest.max(self.end);
        }
        self.end = end;
        self.mean = (self.mean * 15 + (end - start)) / 16;
        self.largest = self.largest.max(end - start);
    }

    /// True if entries are about to reach the end of memory, or have just begun again at its beginning: the memory there is
    /// about to be overwritten.
    pub(crate) fn turns(&self) -> bool {
        let behind =
            |begin: &u64| (0..TURN_BEHIND * self.mean).contains(&self.end.wrapping_sub(*begin));
        self.begins.is_some_and(|begins| {
            self.end + TURN_BEFORE * self.mean > self.furthest || begins.iter().any(behind)
        })
    }

    /// Returns the ranges at the beginning of memory that a submission there covers.
    pub(crate) fn beginning(&self) -> Vec<(u64, u64)> {
        let most = self.largest.max(AHEAD);
        self.begins
            .iter()
            .flatten()
            .map(|b| (*b, b + most))
            .collect()
    }

    /// Returns the ranges to which a submission that is not committed yet may be writing.
    pub(crate) fn ahead(&self) -> Vec<(u64, u64)> {
        let next = (self.end, self.end + self.largest.max(AHEAD));
        let mut all = if next.1 > self.furthest {
            self.beginning()
        } else {
            Vec::new()
        };
        all.push(next);
        all
    }

    /// True if the next `bytes` that are written cannot lie where these entries do, wherever writing continues.
    pub(crate) fn far(&self, entries: &[u64], bytes: u64) -> bool {
        let mut ranges = self.begins.iter().flatten().chain([&self.end]);
        self.begins.is_some()
            && !ranges.any(|r| entries.iter().any(|e| overlaps(*e, (*r, r + bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_memory_is_written_next() {
        let at = |address: u64, words: u64| words << 42 | address;
        let taken = |entries: &[u64]| {
            let mut allocator = Allocator::default();
            entries.iter().for_each(|e| allocator.take(*e));
            allocator
        };
        let behind = |end| (end, end + AHEAD);
        let first = taken(&[at(0x10_0000, 4)]);
        // Nothing is known of where memory begins.
        assert_eq!(first.ahead(), [behind(0x10_0010)]);
        assert_eq!(first.beginning(), []);
        assert!(!first.far(&[at(0x80_0000, 4)], 4096));
        assert!(!first.turns());
        let begin = 0x10_0000;
        let mut again = taken(&[at(begin, 4), at(0x20_0000, 4), at(begin, 4)]);
        assert!(again.turns());
        for n in 1..400 {
            again.take(at(begin + 1024 * n, 256));
        }
        let end = begin + 1024 * 400;
        assert_eq!(again.ahead(), [behind(end)]);
        assert_eq!(again.beginning(), [behind(begin); 2]);
        assert!(!again.turns());
        assert!(again.far(&[at(end - 4096, 4)], 4096));
        assert!(!again.far(&[at(end - 4096, 4), at(begin + 4000, 4)], 4096));
        assert!(!again.far(&[at(end + 4000, 4)], 4096));
        // Near the end of memory.
        again.take(at(0x1f_fe00, 64));
        assert_eq!(
            again.ahead(),
            [behind(begin), behind(begin), behind(0x1f_ff00)]
        );
        assert!(again.turns());
        // Some are missing.
        again.take(at(begin + 8192, 4));
        assert_eq!(again.beginning(), [behind(begin), behind(begin + 8192)]);
    }
}
