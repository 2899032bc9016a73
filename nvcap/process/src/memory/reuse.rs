//! Search for entries whose memory was overwritten before it was read, because a client reuses the memory of its pushbuffer again and
//! again. Pure.

use nvcap_decode::wire::entry;

/// Returns the range to which an entry points, from start to end; empty for a control entry.
pub fn range(entry: u64) -> (u64, u64) {
    entry::segment_of(entry, 0).map_or((0, 0), |(at, len)| (at.0, at.0 + u64::from(len)))
}

/// Tells whether an entry's memory lies in a range, wholly or in part.
pub fn overlaps(entry: u64, range: (u64, u64)) -> bool {
    let (start, end) = self::range(entry);
    start != end && start < range.1 && range.0 < end
}

/// Returns the indices of entries whose memory was, or may have been, rewritten before it was read. Either a later entry of the same
/// reading points to the same memory, or an entry that was committed after the reading began (`since`) does.
pub fn reused(entries: &[u64], since: &[u64]) -> Vec<usize> {
    // Almost always, each entry begins where the previous one ends, or behind it.
    let mut last = 0;
    let ascending = entries
        .iter()
        .chain(since)
        .map(|e| range(*e))
        .all(|(start, end)| {
            let fits = start >= last || start == end;
            last = last.max(end);
            fits
        });
    if ascending {
        return Vec::new();
    }
    let mut later: Vec<(u64, u64)> = since.iter().map(|e| range(*e)).collect();
    let mut hit = Vec::new();
    for (i, entry) in entries.iter().enumerate().rev() {
        if later.iter().any(|l| overlaps(*entry, *l)) {
            hit.push(i);
        }
        later.push(range(*entry));
    }
    hit.reverse();
    hit
}

/// Returns the number of entries at the beginning of a reading that are not to be trusted: all up to the last entry whose memory was
/// overwritten before it was read, by a later entry of the reading or by an entry that was committed after the reading began (`since`).
/// `again` means that the client may submit the same memory twice, as graphics clients do, so a second entry for the same memory proves
/// nothing.
pub fn stale(entries: &[u64], since: &[u64], again: bool) -> usize {
    let is_other = |(i, entry): (usize, u64)| {
        let later = entries.iter().skip(i + 1).chain(since);
        let mut later = later.filter(|l| range(**l) != range(entry));
        later.any(|l| overlaps(entry, range(*l)))
    };
    let reused = reused(entries, since).into_iter();
    let last = reused
        .filter_map(|i| Some((i, *entries.get(i)?)))
        .rfind(|at| !again || is_other(*at));
    last.map_or(0, |(i, _)| i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_again() {
        let at = |address: u64, words: u64| words << 42 | address;
        let row = [at(0x1000, 4), at(0x1010, 4), 0, at(0x1020, 8)];
        assert_eq!(reused(&row, &[]), [0; 0]);
        assert_eq!(reused(&row, &[at(0x1040, 4)]), [0; 0]);
        // A later entry in the middle of an earlier one.
        assert_eq!(
            reused(&[at(0x1000, 16), at(0x9000, 4), at(0x1010, 4)], &[]),
            [0]
        );
        // An entry that was committed while the others were read.
        assert_eq!(
            reused(
                &[at(0x1000, 4), at(0x4000, 4), at(0x8000, 4)],
                &[at(0x4000, 4)]
            ),
            [1]
        );
    }

    #[test]
    fn entries_before_one_that_was_written_over_are_stale() {
        let at = |address: u64, words: u64| words << 42 | address;
        let row = [at(0x1000, 4), at(0x1010, 4), at(0x1000, 4), at(0x1010, 6)];
        assert_eq!(stale(&row, &[], false), 2);
        // The first may have been submitted again; the second cannot have been.
        assert_eq!(stale(&row, &[], true), 2);
        assert_eq!(stale(&row[..3], &[], true), 0);
        assert_eq!(stale(&row[..3], &[], false), 1);
        assert_eq!(stale(&row[..2], &[at(0x1008, 2)], true), 1);
        assert_eq!(stale(&row[..2], &[], false), 0);
    }
}
