//! The value of a counter over time, from changes that come a little out of order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most changes that wait; beyond that the oldest are told, in order or not.
const MOST: usize = 1 << 16;

/// Changes that wait until no earlier one can come.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    waiting: BinaryHeap<Reverse<(u64, i64)>>,
    value: i64,
    /// The time of the last value that was told.
    told: u64,
}

impl Changes {
    /// Changes the value by `by` at `time`.
    pub(super) fn add(&mut self, time: u64, by: i64) {
        // What comes too late for its place counts from the next one on.
        self.waiting.push(Reverse((time.max(self.told), by)));
    }

    /// Takes the next value, with its time, if nothing before `until` can change it any more.
    pub(super) fn next(&mut self, until: u64) -> Option<(u64, i64)> {
        loop {
            let &Reverse((time, _)) = self.waiting.peek()?;
            if time >= until && self.waiting.len() <= MOST {
                return None;
            }
            let before = self.value;
            while let Some(&Reverse((at, by))) = self.waiting.peek()
                && at == time
            {
                self.value += by;
                self.waiting.pop();
            }
            self.told = time;
            if self.value != before {
                return Some((time, self.value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_told_by_time_and_once_each() {
        let mut depth = Changes::default();
        for (time, by) in [(10, 1), (50, -1), (20, 1), (30, -1), (30, 1)] {
            depth.add(time, by);
        }
        let all = |depth: &mut Changes, until| {
            std::iter::from_fn(|| depth.next(until)).collect::<Vec<_>>()
        };
        assert_eq!(all(&mut depth, 10), []);
        assert_eq!(all(&mut depth, 40), [(10, 1), (20, 2)]);
        // Later than its place.
        depth.add(15, 1);
        assert_eq!(all(&mut depth, u64::MAX), [(30, 3), (50, 2)]);
    }

    #[test]
    fn no_more_wait_than_fit() {
        let mut depth = Changes::default();
        for time in 0..MOST as u64 + 3 {
            depth.add(time, 1);
        }
        assert_eq!(depth.next(0), Some((0, 1)));
        assert_eq!(depth.next(0), Some((1, 2)));
        assert_eq!(depth.next(0), Some((2, 3)));
        assert_eq!(depth.next(0), None);
    }
}
