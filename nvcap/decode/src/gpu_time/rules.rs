//! Distances of stamps from the begin and the end of work. Measured on an H200, driver 580.159.04, against kernels that write
//! %globaltimer at their begin and end (docs/gpu-time.md has the commands); for other GPUs the same numbers with wider errors.

/// Longest time of a trap, between its time and the doorbell's, ns.
pub(super) const TRAP_NS: u64 = 10_000;

/// Delays between a GPU's stamps and its work, with their errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// From a stamp at the front end to the first instruction of the kernel, ns: where no other channel of the process launches.
    pub start_ns: u64,
    pub start_error_ns: u64,
    /// The same where others do.
    pub shared_start_ns: u64,
    pub shared_start_error_ns: u64,
    /// The same where the channel was idle for long.
    pub idle_start_ns: u64,
    pub idle_start_error_ns: u64,
    /// The same of a graph's first kernel: of a replay that found the GPU idle, and of one that was queued.
    pub replay_start_ns: u64,
    pub queued_replay_start_ns: u64,
    pub replay_start_error_ns: u64,
    /// Time from the end of a kernel to the stamp of the next entry, which was waiting, ns.
    pub end_ns: u64,
    pub end_error_ns: u64,
    /// Most by which a stamp behind a kernel is later because the kernel's writes still arrive, ns.
    pub drain_most_ns: u64,
    /// Most by which a kernel begins later because the writes of the kernel before it still arrive, ns.
    pub behind_most_ns: u64,
    /// The same where other channels of the process launch, too.
    pub shared_end_ns: u64,
    /// The same where the next entry replays a graph.
    pub replay_end_ns: u64,
    /// Longest time from a doorbell to its trap, ns: the processor traps behind the store.
    pub trap_ns: u64,
    /// Longest time from the time of a look to the read of the ring, ns (live/src/observe/channel.rs).
    pub look_ns: u64,
    /// Time from the trap at a doorbell to the begin of the work on an idle GPU, ns.
    pub fetch_ns: u64,
    pub fetch_error_ns: u64,
    /// Longest time from one piece of work to the next of the same engine, ns.
    pub next_error_ns: u64,
    /// Longest time from a kernel's end until its release is seen, ns.
    pub lag_most_ns: u64,
}

const HOPPER: Rules = Rules {
    start_ns: 576,
    start_error_ns: 64,
    shared_start_ns: 730,
    shared_start_error_ns: 400,
    idle_start_ns: 670,
    idle_start_error_ns: 200,
    replay_start_ns: 800,
    queued_replay_start_ns: 870,
    replay_start_error_ns: 256,
    end_ns: 900,
    end_error_ns: 200,
    drain_most_ns: 1_600,
    behind_most_ns: 450,
    shared_end_ns: 1_000,
    replay_end_ns: 1_190,
    trap_ns: TRAP_NS,
    look_ns: 10_000,
    fetch_ns: 2_000,
    fetch_error_ns: 25_000,
    next_error_ns: 500,
    lag_most_ns: 20_000,
};

/// Writes that arrive behind a kernel's last instruction take at most this part of its time (H200: 32 MiB written by kernels of 12 us).
const DRAIN_PART: u64 = 8;

impl Rules {
    /// Returns the most of a kernel's time, to the next entry's stamp, that its last writes may be, ns.
    pub(crate) fn drain(self, kernel_ns: u64) -> u64 {
        (kernel_ns / DRAIN_PART).min(self.drain_most_ns)
    }

    /// Returns the most by which they may hold up the kernel behind it, ns.
    pub(crate) fn behind(self, kernel_ns: u64) -> u64 {
        (kernel_ns / DRAIN_PART).min(self.behind_most_ns)
    }

    /// Returns the rules for a compute class.
    pub(crate) fn of(class: Option<u32>) -> Self {
        match class {
            Some(0xcbc0) => HOPPER,
            _ => Self {
                start_error_ns: 600,
                shared_start_error_ns: 800,
                idle_start_error_ns: 800,
                replay_start_error_ns: 800,
                end_error_ns: 1_300,
                fetch_error_ns: 50_000,
                next_error_ns: 1_000,
                ..HOPPER
            },
        }
    }
}

/// Between which times something was seen: the begin of the last read that did not see it, and the end of the first that did, by the
/// GPU's clock; and the most by which both may be wrong, ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Between {
    pub from: u64,
    pub until: u64,
    pub clock_error: u64,
}

/// The time from a kernel's end until its release was seen, counted to the middle of the two reads. Learnt from entries whose end is
/// known otherwise, too; else from stamps, which are read with it: a stamp tells when it was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lag {
    ends: Newest,
    stamps: Newest,
}

/// The newest of what was learnt, ns.
#[derive(Clone, Debug)]
struct Newest {
    seen: [i64; LEARNT],
    count: usize,
}

/// Number of values that are kept.
const LEARNT: usize = 63;
/// The lag where nothing is learnt, and its error, ns (H200: the medians of 27 streams of kernels lie from -100 to 440).
const LAG_NS: i64 = 150;
const LAG_ERROR_NS: u64 = 1_500;
/// By how much a release's lag is more than a stamp's, and its error, ns (H200: the medians of 24 streams of kernels differ by 280 to 550,
/// half of them by 320 to 410).
const BEYOND_STAMP_NS: i64 = 390;
const BEYOND_STAMP_ERROR_NS: u64 = 300;
/// Most by which an end may be behind that beyond its error, ns.
const AGREED_NS: u64 = 500;
/// Longest time between two reads that may teach it, ns.
const CLOSE_NS: u64 = 5_000;
/// Greatest error of the clocks that may teach it, ns: a lag has that error in it, and is wrong when the clocks are known better.
const CLOCK_NS: u64 = 3_000;
/// Number of values that are needed.
const ENOUGH: usize = 15;

impl Default for Newest {
    fn default() -> Self {
        Self {
            seen: [0; LEARNT],
            count: 0,
        }
    }
}

impl Newest {
    /// Takes something that happened at a known time, and between which times it was seen.
    fn learn(&mut self, happened: u64, between: Between) {
        if between.until.saturating_sub(between.from) > CLOSE_NS || between.clock_error > CLOCK_NS {
            // The reader came late, or the clocks are not known yet: that says nothing of the GPU.
            return;
        }
        let lag = between.middle().wrapping_sub(happened).cast_signed();
        if let Some(slot) = self.seen.get_mut(self.count % LEARNT) {
            *slot = lag;
            self.count += 1;
        }
    }

    /// The median of what was learnt, and the most that nine of ten lie away from it.
    fn learnt(&self) -> Option<(i64, u64)> {
        let have = self.count.min(LEARNT);
        let mut all = self.seen;
        let all = all.get_mut(..have).filter(|_| have >= ENOUGH)?;
        all.sort_unstable();
        let median = *all.get(have / 2)?;
        let mut away: Vec<u64> = all.iter().map(|l| l.abs_diff(median)).collect();
        away.sort_unstable();
        Some((median, *away.get(have * 9 / 10)?))
    }
}

impl Lag {
    /// Takes an end that is known, on the GPU's clock, and between which times its release was seen.
    pub(crate) fn learn(&mut self, end: u64, between: Between) {
        self.ends.learn(end, between);
    }

    /// The same of a stamp.
    pub(crate) fn stamped(&mut self, stamp: u64, between: Between) {
        self.stamps.learn(stamp, between);
    }

    /// The end that a release tells which was seen between these times, and the most by which it may be wrong beside the clocks, ns.
    pub(crate) fn end(&self, between: Between) -> (u64, u64) {
        let Between { from, until, .. } = between;
        let half = until.saturating_sub(from) / 2;
        let beyond = |(lag, error)| {
            let lag = i64::saturating_add(lag, BEYOND_STAMP_NS);
            (lag, u64::saturating_add(error, BEYOND_STAMP_ERROR_NS))
        };
        let of_stamps = || self.stamps.learnt().map(beyond);
        let learnt = self.ends.learnt().or_else(of_stamps);
        let (lag, error) = learnt.unwrap_or((LAG_NS, LAG_ERROR_NS));
        let end = between.middle().wrapping_add_signed(lag.wrapping_neg());
        (end.min(until), error.saturating_add(half))
    }

    /// Tells whether an end is no later than the release suggests, by the lags that were learnt. A later end means that the next
    /// entry was not there yet at the end, and that its stamp came later.
    pub(crate) fn agrees(&self, end: u64, between: Between) -> bool {
        let (by_release, error) = self.end(between);
        let learnt = self.ends.count >= ENOUGH || self.stamps.count >= ENOUGH;
        let error = error
            .saturating_add(between.clock_error)
            .saturating_add(AGREED_NS);
        !learnt || end <= by_release.saturating_add(error)
    }
}

impl Between {
    fn middle(self) -> u64 {
        self.from + self.until.saturating_sub(self.from) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_of_a_release_is_learnt() {
        let between = |from, until| Between {
            from,
            until,
            clock_error: 1_200,
        };
        let mut lag = Lag::default();
        assert_eq!(lag.end(between(10_000, 11_000)), (10_350, 2_000));
        for n in 0..200u64 {
            let end = n * 50_000;
            let late = 3_000 + n % 10 * 20;
            lag.learn(end, between(end + late - 500, end + late + 500));
        }
        // The reader came late: nothing to learn from.
        (0..200).for_each(|n| lag.learn(n, between(n, n + 250_000)));
        // Nor where the clocks are not known yet.
        (0..200).for_each(|n| {
            let clock_error = 60_000;
            lag.learn(
                n,
                Between {
                    clock_error,
                    ..between(n + 60_000, n + 60_500)
                },
            );
        });
        let (end, error) = lag.end(between(103_000, 104_000));
        assert!(end.abs_diff(100_400) <= 40, "{end}");
        assert!((550..=620).contains(&error), "{error}");
        let mut lag = Lag::default();
        for n in 0..200u64 {
            let stamp = n * 50_000;
            lag.stamped(stamp, between(stamp + 200, stamp + 1_200));
        }
        assert_eq!(lag.end(between(103_000, 104_000)), (102_410, 800));
    }
}
