//! The time in which the GPU's time stamps were read: the whole trace, or bursts (`--gpu-time-cpu`). Busy and idle time count only
//! within it.

use std::collections::{HashSet, VecDeque};

/// The most bursts that are kept: at 5 % of a processor those of three hours.
const MOST: usize = 1 << 18;
/// Number of bursts below which the reads are taken for continuous: the few breaks are processes that began anew.
const FEW: u64 = 10;

/// A burst of reads, by the host's clock, ns.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: u64,
    until: u64,
}

/// The time in which the GPU's time stamps were read. Without any window all time counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    windows: VecDeque<Window>,
    /// Processes whose stamps were read.
    processes: HashSet<u32>,
    /// Sum of all windows, ns; their number; and the begin of the first.
    covered_ns: u64,
    bursts: u64,
    first: Option<u64>,
}

impl Coverage {
    /// Adds a time in which a process's stamps were read without a pause. Times of several processes may overlap and count once. The
    /// time before the first read of a process counts as read: the process did no work yet.
    pub(super) fn add(&mut self, pid: u32, from: u64, until: u64) {
        let is_new = self.processes.insert(pid);
        let last = self.windows.back_mut();
        let from = match &last {
            Some(last) if is_new => last.until,
            Some(last) => from.max(last.until),
            None => from,
        };
        if until <= from {
            return;
        }
        self.first.get_or_insert(from);
        self.covered_ns += until - from;
        match last {
            Some(last) if last.until == from => last.until = until,
            _ => {
                self.bursts += 1;
                self.windows.push_back(Window { from, until });
            }
        }
        if self.windows.len() > MOST {
            self.windows.pop_front();
        }
    }

    /// Number of processes whose stamps were read.
    pub(super) fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Returns the parts of a time that lie in bursts: the begin of the burst, and the length, ns.
    pub(super) fn parts(&self, from: u64, until: u64) -> impl Iterator<Item = (u64, u64)> {
        let all = self.windows.is_empty() && until > from;
        let first = self.windows.partition_point(|w| w.until <= from);
        let windows = self.windows.range(first..);
        let parts = windows
            .take_while(move |w| from < until && w.from < until)
            .map(move |w| (w.from, w.until.min(until) - w.from.max(from)));
        all.then(|| (0, until - from)).into_iter().chain(parts)
    }

    /// The burst of a moment, by its begin.
    pub(super) fn burst(&self, at: u64) -> Option<u64> {
        self.parts(at, at.saturating_add(1)).next().map(|p| p.0)
    }

    /// Tells whether a time lies in one burst.
    pub(super) fn is_whole(&self, from: u64, until: u64) -> bool {
        self.within(from, until) == until.saturating_sub(from)
    }

    /// Returns the part of a time that lies in bursts, ns.
    pub(super) fn within(&self, from: u64, until: u64) -> u64 {
        self.parts(from, until).map(|(_, ns)| ns).sum()
    }

    /// Returns the number of bursts, and their share of the time from the first to the last, 0 to 1; `None` if stamps were read without pauses.
    pub(super) fn sample(&self) -> Option<(u64, f64)> {
        let last = self.windows.back().filter(|_| self.bursts >= FEW)?;
        let whole = last.until - self.first?;
        Some((self.bursts, self.covered_ns as f64 / whole as f64))
    }
}

/// A share of the time, estimated from bursts: the sum of their parts, divided by the sum of their whole lengths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// The current burst: its begin, its part, and its whole, ns.
    now: Option<(u64, f64, f64)>,
    n: f64,
    part: f64,
    whole: f64,
    part_part: f64,
    part_whole: f64,
    whole_whole: f64,
}

impl Share {
    /// Adds `ns` of a burst (named by its begin) to the whole, and to the part if `is_part`.
    pub(super) fn add(&mut self, burst: u64, is_part: bool, ns: u64) {
        if self.now.is_none_or(|n| n.0 != burst) {
            self.end();
            self.now = Some((burst, 0.0, 0.0));
        }
        if let Some((_, part, whole)) = &mut self.now {
            *part += if is_part { ns as f64 } else { 0.0 };
            *whole += ns as f64;
        }
    }

    fn end(&mut self) {
        let Some((_, part, whole)) = self.now.take() else {
            return;
        };
        self.n += 1.0;
        self.part += part;
        self.whole += whole;
        self.part_part += part * part;
        self.part_whole += part * whole;
        self.whole_whole += whole * whole;
    }

    /// Returns the error of the share at 95 % confidence, 0 to 1, by the variance of a ratio of two sums; `None` with fewer than 10 bursts.
    pub(super) fn error(&self) -> Option<f64> {
        let mut all = *self;
        all.end();
        if all.n < 10.0 || all.whole <= 0.0 {
            return None;
        }
        let share = all.part / all.whole;
        let squares =
            all.part_part - 2.0 * share * all.part_whole + share * share * all.whole_whole;
        let variance = squares.max(0.0) * all.n / (all.n - 1.0);
        Some(1.96 * variance.sqrt() / all.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_within_bursts_counts() {
        let mut all = Coverage::default();
        assert_eq!((all.within(5, 25), all.sample()), (20, None));
        // Read without a pause, a second process at the same time, and a third one that begins later.
        for (pid, from, until) in [(1, 100, 200), (1, 200, 250), (2, 150, 240), (3, 280, 300)] {
            all.add(pid, from, until);
        }
        assert_eq!((all.within(0, 1_000), all.sample()), (200, None));
        all.add(1, 900, 1_100);
        assert_eq!(all.within(250, 1_000), 150);
        assert_eq!(all.within(300, 900), 0);
        let parts: Vec<_> = all.parts(250, 1_000).collect();
        assert_eq!(parts, [(100, 50), (900, 100)]);
        assert_eq!(all.sample(), None);
        for n in 2..10 {
            all.add(1, n * 1_000, n * 1_000 + 200);
        }
        assert_eq!(all.sample(), Some((10, 2_000.0 / 9_100.0)));
    }

    /// Nineteen of twenty samples, of 400 with 100 bursts each, lie within the error that is stated.
    #[test]
    fn the_error_of_a_share_holds() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        let mut held = 0;
        for _ in 0..400 {
            let (mut share, mut part, mut whole) = (Share::default(), 0, 0);
            for burst in 0..100 {
                // A third of the time on average.
                let of = 1_000 + random(500);
                let busy = of * random(200) / 300;
                share.add(burst, true, busy);
                share.add(burst, false, of - busy);
                (part, whole) = (part + busy, whole + of);
            }
            let error = share.error().expect("bursts");
            let wrong = (part as f64 / whole as f64 - 199.0 / 600.0).abs();
            held += u64::from(wrong <= error);
        }
        assert!((365..=395).contains(&held), "{held}");
        assert_eq!(Share::default().error(), None);
    }
}
