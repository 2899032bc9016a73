//! Rows in which the slices of a channel are drawn, so that no two of a row overlap.

use std::collections::VecDeque;

/// The most rows of a channel. A slice that would need another one is shown without its duration.
const MOST_ROWS: usize = 32;
/// Number of slices of a row that are remembered: one that comes out of order must find its place between them, or in another row.
const REMEMBERED: usize = 64;

/// The rows of a channel.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows(Vec<Row>);

/// A row: times at which its slices begin and end, in the order of time.
#[derive(Clone, Debug, Default)]
struct Row {
    slices: VecDeque<(u64, u64)>,
    /// Time before which the row is full, as far as is remembered.
    floor: u64,
}

impl Row {
    /// Takes a slice if it overlaps none that is there. It may begin when another ends, but not end when one begins that came before it: a viewer
    /// would take the end of the one for that of the other.
    fn take(&mut self, begin: u64, end: u64) -> bool {
        let at = self.slices.partition_point(|s| s.1 <= begin);
        let is_free = self.slices.get(at).is_none_or(|next| end < next.0);
        if begin < self.floor || !is_free {
            return false;
        }
        self.slices.insert(at, (begin, end));
        if self.slices.len() > REMEMBERED
            && let Some(oldest) = self.slices.pop_front()
        {
            self.floor = oldest.1;
        }
        true
    }
}

impl Rows {
    /// The first row with room; none where all are full.
    pub(super) fn take(&mut self, begin: u64, end: u64) -> Option<usize> {
        if let Some(row) = self.0.iter_mut().position(|row| row.take(begin, end)) {
            return Some(row);
        }
        (self.0.len() < MOST_ROWS).then(|| {
            let mut row = Row::default();
            row.take(begin, end);
            self.0.push(row);
            self.0.len() - 1
        })
    }

    /// Tells whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_row_while_nothing_overlaps() {
        let mut rows = Rows::default();
        assert_eq!(rows.take(10, 20), Some(0));
        assert_eq!(rows.take(20, 30), Some(0));
        assert_eq!(rows.take(25, 40), Some(1));
        assert_eq!(rows.take(40, 40), Some(0));
        // Between two that are there, and one that would end when another begins.
        assert_eq!(rows.take(31, 35), Some(0));
        assert_eq!(rows.take(5, 10), Some(1));
        assert_eq!(rows.take(0, 4), Some(0));
    }

    proptest! {
        /// Begin and end in the order in which a viewer takes them: by time, then as they were written.
        #[test]
        fn begins_and_ends_pair(slices in prop::collection::vec((0u64..300, 0u64..20), 1..400)) {
            let mut rows = Rows::default();
            let mut events: Vec<Vec<(u64, bool, usize)>> = vec![Vec::new(); MOST_ROWS];
            for (n, (begin, length)) in slices.iter().enumerate() {
                if let Some(row) = rows.take(*begin, begin + length) {
                    events[row].extend([(*begin, true, n), (begin + length, false, n)]);
                }
            }
            for mut row in events {
                row.sort_by_key(|e| e.0);
                for pair in row.chunks(2) {
                    prop_assert!(pair[0].1 && !pair[1].1 && pair[0].2 == pair[1].2, "{:?}", pair);
                }
            }
        }
    }
}
