//! Time that submissions take until they are done, as far as looks at a channel bound it. Pure: no I/O, no clock.
//!
//! A look finds the number of the newest submission that there is, and of the newest that is done. A submission took no longer than from
//! the last look that did not find it to the first that found it done. That longest time is what is counted: never less than the truth, and
//! more by at most the pauses between looks.

use std::collections::{BTreeMap, VecDeque};

/// Buckets for each doubling: 2 to this power. The base of the buckets is the fourth root of 2.
pub(crate) const SCALE: i32 = 2;
/// Shorter times count as this one, ns.
const SHORTEST: u64 = 1000;

/// Times in buckets that grow by the same factor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delays {
    /// Number of times in the bucket with this index: longer than base^index seconds, and no longer than base^(index + 1).
    pub buckets: BTreeMap<i32, u64>,
    /// Number of times in all.
    pub count: u64,
    /// Sum of the times, seconds.
    pub sum: f64,
}

impl Delays {
    /// Adds `count` submissions that took `ns` at most.
    fn add(&mut self, ns: u64, count: u64) {
        let seconds = ns.max(SHORTEST) as f64 * 1e-9;
        let index = (seconds.log2() * f64::from(1 << SCALE)).ceil() as i32 - 1;
        *self.buckets.entry(index).or_default() += count;
        self.count += count;
        self.sum += seconds * count as f64;
    }

    /// Adds another's.
    pub(crate) fn join(&mut self, other: &Self) {
        for (index, count) in &other.buckets {
            *self.buckets.entry(*index).or_default() += count;
        }
        self.count += other.count;
        self.sum += other.sum;
    }

    /// Returns the number of times that were no longer than 2^`power` seconds.
    pub(crate) fn within(&self, power: i32) -> u64 {
        let end = power << SCALE;
        self.buckets.range(..end).map(|(_, count)| count).sum()
    }
}

/// Submissions that one look found and the one before did not.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Time at which the look before began; none where there was none.
    after: Option<u64>,
    /// The newest of them.
    number: u32,
}

/// The numbers that a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubmissionNumbers {
    /// The newest submission that is done.
    pub done: u32,
    /// The newest that there is.
    pub submitted: u32,
}

/// Record of the looks at a channel.
#[derive(Debug)]
pub(super) struct Looks {
    groups: VecDeque<Group>,
    seen: SubmissionNumbers,
    /// Time at which the last look began.
    at: u64,
}

/// Returns the number by which `now` is ahead of `before`; negative where it is behind.
fn ahead(before: u32, now: u32) -> i32 {
    now.wrapping_sub(before).cast_signed()
}

impl Looks {
    /// Begins with a look, which began at `at`. How long the submissions that are pending then have taken is not known.
    fn new(at: u64, seen: SubmissionNumbers) -> Self {
        let pending = seen.done != seen.submitted;
        let group = Group {
            after: None,
            number: seen.submitted,
        };
        Self {
            groups: pending.then_some(group).into_iter().collect(),
            seen,
            at,
        }
    }

    /// Takes a look, which began and ended at these times (ns of one clock).
    pub(super) fn take(
        of: &mut Option<Self>,
        (began, ended): (u64, u64),
        seen: SubmissionNumbers,
        to: &mut Delays,
    ) {
        let Some(looks) = of else {
            *of = Some(Self::new(began, seen));
            return;
        };
        let (done, submitted) = (
            ahead(looks.seen.done, seen.done),
            ahead(looks.seen.submitted, seen.submitted),
        );
        // A submission whose kernel still runs may be found done by its number alone at one look, and not at the next.
        if submitted < 0 || done < -1 || ahead(seen.done, seen.submitted) < 0 {
            *of = Some(Self::new(began, seen));
            return;
        }
        if submitted > 0 {
            looks.groups.push_back(Group {
                after: Some(looks.at),
                number: seen.submitted,
            });
        }
        while let Some(oldest) = looks.groups.front().copied() {
            let until = match ahead(oldest.number, seen.done) >= 0 {
                true => oldest.number,
                false => seen.done,
            };
            let count = ahead(looks.seen.done, until);
            if count > 0 {
                looks.seen.done = until;
                if let Some(after) = oldest.after {
                    to.add(ended.saturating_sub(after), u64::from(count.unsigned_abs()));
                }
            }
            if until != oldest.number {
                break;
            }
            looks.groups.pop_front();
        }
        looks.seen.submitted = seen.submitted;
        looks.at = began;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn after(looks: &[(u64, u32, u32)]) -> Delays {
        let (mut of, mut delays) = (None, Delays::default());
        for (second, done, submitted) in looks {
            let (done, submitted) = (*done, *submitted);
            let at = second * SECOND;
            Looks::take(
                &mut of,
                (at, at),
                SubmissionNumbers { done, submitted },
                &mut delays,
            );
        }
        delays
    }

    #[test]
    fn each_submission_is_within_the_looks_around_it() {
        // Pending at the first look: nothing is known of it.
        assert_eq!(after(&[(0, 0, 3), (1, 3, 3)]), Delays::default());
        // Five come between 0 and 1, and three of them are done by then; the others and two more by 4.
        let delays = after(&[(0, 0, 0), (1, 3, 5), (4, 7, 7), (9, 7, 7)]);
        assert_eq!((delays.count, delays.sum), (7, 3.0 + 2.0 * 4.0 + 2.0 * 3.0));
        let within: Vec<u64> = [-1, 0, 1, 2, 6].map(|p| delays.within(p)).to_vec();
        assert_eq!(within, [0, 3, 3, 7, 7]);
        // The look at which nothing is new moves the beginning.
        let delays = after(&[(0, 7, 7), (9, 7, 7), (10, 8, 8)]);
        assert_eq!((delays.count, delays.sum), (1, 1.0));
    }

    #[test]
    fn numbers_that_wrap_or_begin_anew() {
        let last = u32::MAX;
        let delays = after(&[(0, last, last), (1, 1, 2), (2, 2, 2)]);
        assert_eq!((delays.count, delays.sum), (3, 1.0 + 1.0 + 2.0));
        // Another channel lies there now: what it has is not new.
        let delays = after(&[(0, 900, 900), (1, 30, 40), (2, 41, 41)]);
        assert_eq!((delays.count, delays.sum), (1, 1.0));
        // A kernel that still runs.
        let delays = after(&[(0, 5, 5), (1, 6, 6), (2, 5, 6), (3, 6, 6)]);
        assert_eq!((delays.count, delays.sum), (1, 1.0));
    }

    #[test]
    fn buckets_grow_by_the_fourth_root_of_two() {
        let mut delays = Delays::default();
        for ns in [0, 1, SECOND / 1024, SECOND, SECOND + 1, 64 * SECOND] {
            delays.add(ns, 1);
        }
        let indexes: Vec<i32> = delays.buckets.keys().copied().collect();
        assert_eq!(indexes, [-80, -41, -1, 0, 23]);
        assert_eq!(delays.within(-10), 3);
        assert_eq!((delays.within(0), delays.within(6)), (4, 6));
        let mut twice = delays.clone();
        twice.join(&delays);
        assert_eq!((twice.count, twice.within(0)), (12, 8));
    }
}
