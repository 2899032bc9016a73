//! The time of all works of a kind, timed or not: at least and at most.
//!
//! Where stamps are read in bursts (`--gpu-time-cpu`), what ends within bursts is a sample of all, for nvcap chose when to read: the works
//! between bursts took as long on average, give or take what bursts differ. What is not timed within a burst is not a sample of anything:
//! its bounds ([`super::untimed`]) are all that is known.

use std::collections::BTreeMap;

use super::untimed::Bounds;

/// Number of bursts with work of a kind below which they tell nothing of the works between them.
const ENOUGH: f64 = 20.0;
/// Number of bursts that are kept apart until they are over: works of several channels come out of order.
const OPEN: usize = 64;

/// Durations by the burst in which the work ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Bursts {
    open: BTreeMap<u64, (f64, f64)>,
    n: f64,
    ns: f64,
    count: f64,
    ns_ns: f64,
    ns_count: f64,
    count_count: f64,
}

impl Bursts {
    /// Adds the duration of a work that ended in a burst (named by its begin).
    pub(super) fn add(&mut self, burst: u64, ns: u64) {
        let of = self.open.entry(burst).or_default();
        *of = (of.0 + ns as f64, of.1 + 1.0);
        if self.open.len() > OPEN
            && let Some((_, of)) = self.open.pop_first()
        {
            self.end(of);
        }
    }

    fn end(&mut self, (ns, count): (f64, f64)) {
        self.n += 1.0;
        self.ns += ns;
        self.count += count;
        self.ns_ns += ns * ns;
        self.ns_count += ns * count;
        self.count_count += count * count;
    }

    /// Returns the error of the mean of these works, taken for that of `of` others (95 %), ns: by the variance of a ratio of two sums, with a part
    /// from each burst. `None` with too few bursts.
    fn error_of_mean(&self, of: u64) -> Option<f64> {
        let mut all = self.clone();
        for of in std::mem::take(&mut all.open).into_values() {
            all.end(of);
        }
        if all.n < ENOUGH {
            return None;
        }
        let mean = all.ns / all.count;
        let squares = all.ns_ns - 2.0 * mean * all.ns_count + mean * mean * all.count_count;
        let variance = squares.max(0.0) * all.n / (all.n - 1.0) / (all.count * all.count);
        // The others differ from bursts to bursts, too.
        let others = 1.0 + all.count / of.max(1) as f64;
        // Student's distribution, nearly.
        let width = 1.96 + 2.7 / (all.n - 1.0);
        Some(width * (variance * others).sqrt())
    }
}

/// Times of the works of a kind, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Works {
    /// Works that are timed: their number, their sum and the sum of their errors, ns.
    pub timed: u64,
    pub sum_ns: u64,
    pub error_ns: u64,
    pub bursts: Bursts,
    /// Works that are not timed and ended while stamps were read, and those that ended between bursts.
    pub within: Bounds,
    pub between: Bounds,
}

impl Works {
    /// Adds a work that is timed, of a burst.
    pub(super) fn add(&mut self, burst: Option<u64>, ns: u64, error_ns: u64) {
        self.timed += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.error_ns = self.error_ns.saturating_add(error_ns);
        if let Some(burst) = burst {
            self.bursts.add(burst, ns);
        }
    }

    /// Returns the time of all; `None` where none is timed. `sampled`: stamps were read in bursts.
    pub(super) fn total(&self, sampled: bool) -> Option<Total> {
        if self.timed == 0 {
            return None;
        }
        let seen = Total {
            least_ns: self.sum_ns.saturating_sub(self.error_ns),
            about_ns: self.sum_ns,
            most_ns: self.sum_ns.saturating_add(self.error_ns),
        };
        let seen = seen.and(self.within.into());
        let of = self.between;
        let error = self.bursts.error_of_mean(of.count);
        let Some(error) = error.filter(|_| sampled) else {
            return Some(seen.and(of.into()));
        };
        let count = (self.timed + self.within.count) as f64;
        let all = |ns: u64, error: f64| {
            let mean = (ns as f64 / count + error).max(0.0);
            (mean * of.count as f64) as u64
        };
        let told = Total {
            least_ns: all(seen.least_ns, -error),
            about_ns: all(seen.about_ns, 0.0),
            most_ns: all(seen.most_ns, error),
        };
        Some(seen.and(told.within(of.into())))
    }
}

/// A sum, ns: the least and the most that it can be, and about what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub least_ns: u64,
    pub about_ns: u64,
    pub most_ns: u64,
}

impl From<Bounds> for Total {
    fn from(of: Bounds) -> Self {
        Self {
            least_ns: of.least_ns,
            about_ns: of.about_ns,
            most_ns: of.most_ns,
        }
    }
}

impl Total {
    /// Adds the two sums.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            least_ns: self.least_ns.saturating_add(other.least_ns),
            about_ns: self.about_ns.saturating_add(other.about_ns),
            most_ns: self.most_ns.saturating_add(other.most_ns),
        }
    }

    /// Narrows the sum to the bounds of both; `other` where these contradict each other.
    pub(super) fn within(self, other: Self) -> Self {
        let least_ns = self.least_ns.max(other.least_ns);
        let most_ns = self.most_ns.min(other.most_ns);
        match least_ns <= most_ns {
            true => Self {
                least_ns,
                about_ns: self.about_ns.clamp(least_ns, most_ns),
                most_ns,
            },
            false => other,
        }
    }

    /// Returns the most by which `about_ns` may be wrong, ns.
    pub(super) fn error_ns(&self) -> u64 {
        let below = self.about_ns.saturating_sub(self.least_ns);
        below.max(self.most_ns.saturating_sub(self.about_ns))
    }
}
