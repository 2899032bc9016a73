//! Distances of stamps from the beginning and the end of work. They were measured on an H200, driver 580.159.04, against kernels that write
//! %globaltimer at their beginning and end (docs/gpu-time.md has the commands). Other GPUs get the same numbers with wider errors.

/// Longest time between a trap's time and its doorbell's, ns.
pub(super) const TRAP_NS: u64 = 10_000;

/// Delays between a GPU's stamps and its work, with their errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Time from a stamp at the front end to the first instruction of the kernel, ns, if no other channel of the process launches.
    pub start_ns: u64,
    pub start_error_ns: u64,
    /// Time from the stamp to the first instruction if other channels launch, too, ns.
    pub shared_start_ns: u64,
    pub shared_start_error_ns: u64,
    /// Time from the stamp to the first instruction if the channel was idle for long, ns.
    pub idle_start_ns: u64,
    pub idle_start_error_ns: u64,
    /// Time from the stamp to the first instruction of a graph's first kernel, ns: for a replay that found the GPU idle, and for one that
    /// was queued.
    pub replay_start_ns: u64,
    pub queued_replay_start_ns: u64,
    pub replay_start_error_ns: u64,
    /// Time from the end of a kernel to the stamp of the next entry, if that was waiting, ns.
    pub end_ns: u64,
    pub end_error_ns: u64,
    /// The most by which a stamp behind a kernel is delayed because the kernel's writes are still arriving, ns.
    pub drain_most_ns: u64,
    /// The most by which a kernel's beginning is delayed because the writes of the previous kernel are still arriving, ns.
    pub behind_most_ns: u64,
    /// Time from the end of a kernel to the next stamp if other channels of the process launch, too, ns.
    pub shared_end_ns: u64,
    /// Time from the end of a kernel to the next stamp if the next entry replays a graph, ns.
    pub replay_end_ns: u64,
    /// Longest time from a doorbell to its trap, ns: the processor traps after the store.
    pub trap_ns: u64,
    /// Longest time from the time of a look to the read of the ring, ns (live/src/observe/channel.rs).
    pub look_ns: u64,
    /// Time from the trap at a doorbell to the beginning of the work on an idle GPU, ns.
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

/// Divisor of a kernel's time: writes that arrive after its last instruction take at most this part of it (H200: 32 MiB written by kernels
/// of 12 us).
const DRAIN_PART: u64 = 8;

impl Rules {
    /// Returns the most of the time from a kernel to the next entry's stamp that the kernel's last writes may take, ns.
    pub(crate) fn drain(self, kernel_ns: u64) -> u64 {
        (kernel_ns / DRAIN_PART).min(self.drain_most_ns)
    }

    /// Returns the most by which a kernel's last writes may delay the next kernel, ns.
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

/// The interval in which something was first seen, on the GPU's clock: from the beginning of the last read that did not see it to the end
/// of the first read that did. Also the most by which both times may be wrong, ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Between {
    pub from: u64,
    pub until: u64,
    pub clock_error: u64,
}

/// The time from a kernel's end until its release was seen, counted to the middle of the two reads. It is learnt from entries whose end is
/// also known otherwise. Failing these, it is learnt from stamps, which are read along with releases and tell when they were written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lag {
    ends: Newest,
    stamps: Newest,
}

/// The newest values that were learnt, ns.
#[derive(Clone, Debug)]
struct Newest {
    seen: [i64; LEARNT],
    count: usize,
}

/// Number of values that are kept.
const LEARNT: usize = 63;
/// Lag that is assumed if none was learnt, and its error, ns (H200: the medians of 27 streams of kernels lie between -100 and 440).
const LAG_NS: i64 = 150;
const LAG_ERROR_NS: u64 = 1_500;
/// Difference of a release's lag and a stamp's, and its error, ns (H200: the medians of 24 streams of kernels differ by 280 to 550, half of
/// them by 320 to 410).
const BEYOND_STAMP_NS: i64 = 390;
const BEYOND_STAMP_ERROR_NS: u64 = 300;
/// The most by which an end may be later than the release suggests, beyond its error, ns.
const AGREED_NS: u64 = 500;
/// Longest time between two reads from which the lag is learnt, ns.
const CLOSE_NS: u64 = 5_000;
/// Greatest error of the clocks with which the lag is learnt, ns. A lag contains that error, and is wrong once the clocks are known better.
const CLOCK_NS: u64 = 3_000;
/// The least number of values from which a lag is concluded.
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
    /// Takes in something that happened at a known time, and the interval in which it was seen.
    fn learn(&mut self, happened: u64, between: Between) {
        if between.until.saturating_sub(between.from) > CLOSE_NS || between.clock_error > CLOCK_NS {
            // The reader came late, or the clocks are not known yet; this tells nothing about the GPU.
            return;
        }
        let lag = between.middle().wrapping_sub(happened).cast_signed();
        if let Some(slot) = self.seen.get_mut(self.count % LEARNT) {
            *slot = lag;
            self.count += 1;
        }
    }

    /// Returns the median of the values, and the greatest distance from it of nine in ten.
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
    /// Takes in a known end, on the GPU's clock, and the interval in which its release was seen.
    pub(crate) fn learn(&mut self, end: u64, between: Between) {
        self.ends.learn(end, between);
    }

    /// Takes in a stamp, and the interval in which it was seen.
    pub(crate) fn stamped(&mut self, stamp: u64, between: Between) {
        self.stamps.learn(stamp, between);
    }

    /// Returns the end that follows from a release seen in this interval, and the most by which it may be wrong apart from the clocks, ns.
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

    /// Tells whether an end is no later than the release suggests, by the lags that were learnt. A later end means that the next entry was
    /// not in the ring yet at the end, and that its stamp came later.
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
        // The reader came late: nothing is learnt.
        (0..200).for_each(|n| lag.learn(n, between(n, n + 250_000)));
        // Nothing is learnt either while the clocks are not known.
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
