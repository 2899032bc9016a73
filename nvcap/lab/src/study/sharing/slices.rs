//! Times at which work ran, and at which it was interrupted.

use serde::Serialize;

/// The times at which a kernel or a row of copies ran, ns.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Busy {
    pub start_ns: u64,
    pub end_ns: u64,
    /// Pauses between the two: begin and end of each, ns. In order, without overlap.
    pub pauses: Vec<(u64, u64)>,
}

impl Busy {
    pub(crate) fn new(start_ns: u64, end_ns: u64, pauses: Vec<(u64, u64)>) -> Self {
        Self {
            start_ns,
            end_ns,
            pauses,
        }
    }

    /// Makes the times of work that ended repeatedly at `ends`. Returns the median distance of the ends, ns, and the times at which the
    /// work ran. If two ends are further apart than four times the median, the time beyond the median is a pause.
    pub(crate) fn of_ends(ends: &[u64]) -> (u64, Self) {
        let (Some(first), Some(last)) = (ends.first(), ends.last()) else {
            return (0, Self::default());
        };
        let pairs = || ends.iter().zip(ends.iter().skip(1));
        let each = median(pairs().map(|(a, b)| b.saturating_sub(*a)).collect());
        let pauses = pairs().filter(|(a, b)| b.saturating_sub(**a) > 4 * each);
        let pauses = pauses.map(|(a, b)| (*a, b - each));
        (each, Self::new(*first, *last, pauses.collect()))
    }

    /// Returns the times without a pause: begin and end of each.
    pub(crate) fn slices(&self) -> Vec<(u64, u64)> {
        let begins = std::iter::once(self.start_ns).chain(self.pauses.iter().map(|p| p.1));
        let ends = self.pauses.iter().map(|p| p.0);
        let ends = ends.chain(std::iter::once(self.end_ns));
        begins.zip(ends).filter(|(a, b)| a < b).collect()
    }

    pub(crate) fn paused_ns(&self) -> u64 {
        self.pauses.iter().map(|(a, b)| b - a).sum()
    }

    /// Returns the median length of the times without a pause, without the first and the last of them; and the median length of the
    /// pauses.
    pub(crate) fn median_slice_and_pause(&self) -> (u64, u64) {
        let slices = self.slices();
        let inner = slices.get(1..slices.len().saturating_sub(1));
        let inner = inner.unwrap_or_default().iter().map(|(a, b)| b - a);
        let pauses = self.pauses.iter().map(|(a, b)| b - a);
        (median(inner.collect()), median(pauses.collect()))
    }
}

/// Returns the time in which both had begun and neither had ended, and the part of it in which both ran, ns.
pub(crate) fn overlap(a: &Busy, b: &Busy) -> (u64, u64) {
    let from = a.start_ns.max(b.start_ns);
    let to = a.end_ns.min(b.end_ns);
    let mut both = 0;
    for (begin, end) in a.slices() {
        for (other_begin, other_end) in b.slices() {
            let (begin, end) = (begin.max(other_begin), end.min(other_end));
            both += end.saturating_sub(begin);
        }
    }
    (to.saturating_sub(from), both)
}

pub(crate) fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_take_turns() {
        let a = Busy::new(0, 100, vec![(20, 40), (60, 80)]);
        let b = Busy::new(10, 110, vec![(10, 21), (40, 61), (80, 100)]);
        assert_eq!(a.slices(), [(0, 20), (40, 60), (80, 100)]);
        assert_eq!(b.slices(), [(21, 40), (61, 80), (100, 110)]);
        assert_eq!(overlap(&a, &b), (90, 0));
        assert_eq!(a.paused_ns(), 40);
        assert_eq!(a.median_slice_and_pause(), (20, 20));
        let never = Busy::new(10, 90, Vec::new());
        assert_eq!(overlap(&a, &never), (80, 40));
        assert_eq!(never.median_slice_and_pause(), (0, 0));
    }

    #[test]
    fn ends_with_a_gap() {
        let (each, busy) = Busy::of_ends(&[10, 20, 30, 130, 140]);
        assert_eq!((each, busy.start_ns, busy.end_ns), (10, 10, 140));
        assert_eq!(busy.pauses, [(30, 120)]);
        assert_eq!(Busy::of_ends(&[]), (0, Busy::default()));
        assert_eq!(Busy::of_ends(&[7]).0, 0);
    }
}
