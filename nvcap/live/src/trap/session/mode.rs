//! Choice of the doorbells that are captured: each, or fewer if the user wants to pay less for the trap. Every record shows the choice.
//!
//! With `--batch`, the BPF programs leave a doorbell to a later one of its channel; entries that no later doorbell reads are read here. With
//! `--count` they only count. With `--duty` breakpoints are disabled most of the time; submissions of that time are skipped.

use std::time::Duration;

use nvcap_common as c;

use nvcap_decode::{ledger, record::SkippedWhy};

/// Choice of the doorbells that are captured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mode {
    /// Each doorbell is captured.
    #[default]
    Each,
    /// A channel's ring is read once for this many doorbells, or after this time.
    Batch {
        /// The most doorbells of a channel for which one read of its ring serves.
        doorbells: u32,
        /// Longest time that a submission waits to be read.
        within: Duration,
    },
    /// No doorbell is captured: they are counted.
    Count,
    /// Doorbells in this share of the time are captured.
    Duty {
        /// Share of the time in which doorbells are watched, 0 to 1.
        share: f64,
    },
}

impl Mode {
    /// Returns the mode in the form of the BPF programs.
    pub(super) fn of_programs(self) -> c::Mode {
        match self {
            Self::Each | Self::Duty { .. } => c::Mode::EACH,
            Self::Batch { doorbells, within } => c::Mode {
                every: doorbells.into(),
                within_ns: u64::try_from(within.as_nanos()).unwrap_or(u64::MAX),
            },
            Self::Count => c::Mode {
                every: 0,
                within_ns: 0,
            },
        }
    }

    /// Returns the reason, if there is one from the start of the trace, why entries are skipped that no doorbell captures.
    pub(super) fn skips(self) -> Option<SkippedWhy> {
        match self {
            Self::Each | Self::Batch { .. } => None,
            Self::Count => Some(SkippedWhy::Counted),
            Self::Duty { .. } => Some(SkippedWhy::Resting),
        }
    }

    /// Returns the longest time for which the mode needs no work.
    pub(super) fn longest_wait(self) -> Duration {
        match self {
            Self::Each | Self::Count => Duration::MAX,
            // A fraction of it: what has just begun to wait at one look is late at the next.
            Self::Batch { within, .. } => (within / 4).max(SHORTEST_WAIT),
            Self::Duty { .. } => Duration::from_millis(1),
        }
    }
}

/// The shortest wait for a batch.
const SHORTEST_WAIT: Duration = Duration::from_micros(50);

/// Length of a window in which doorbells are watched, ns: long compared with the time that enabling breakpoints takes.
const WINDOW_NS: u64 = 5_000_000;
/// The shortest time from window to window, ns.
const SHORTEST_ROUND_NS: u64 = 50_000_000;

/// The windows of `--duty`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Duty {
    /// The open window: its beginning, and the counts of captures before it.
    pub(super) open: Option<(u64, ledger::Captured)>,
    /// Time at which the next change is due, ns.
    pub(super) next: u64,
    /// Time at which counts are reported next, with `--count`.
    pub(super) tell: u64,
    pub(super) first: Option<u64>,
    pub(super) windows: ledger::Windows,
    random: u64,
}

impl Duty {
    /// Returns the length of a window, and the mean time from one window to the next.
    pub(super) fn lengths(share: f64) -> (u64, u64) {
        let share = share.clamp(0.0001, 1.0);
        let round = (WINDOW_NS as f64 / share).max(SHORTEST_ROUND_NS as f64);
        ((round * share) as u64, round as u64)
    }

    /// Makes the state of the windows. `seed`: another number in each run.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: seed,
            ..Self::default()
        }
    }

    /// Draws a pause from an exponential distribution, ten times the mean at most. Each moment is as likely as another, whenever the last window
    /// was, so that no rhythm of the traced program coincides with the windows.
    pub(super) fn pause(&mut self, share: f64) -> u64 {
        let (window, round) = Self::lengths(share);
        // Xorshift: any number but 0 will do to begin with.
        let mut x = self.random | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        let mean = (round - window) as f64;
        let chance = ((x >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        (mean * (-chance.ln()).min(10.0)) as u64
    }

    /// Returns the estimate for the time from the first window until now. `entries`: all entries that were captured or skipped in it.
    pub(super) fn estimate(&self, now: u64, entries: u64, doubtful: u64) -> Option<ledger::Duty> {
        let first = self.first?;
        let all_ns = now.saturating_sub(first);
        Some(self.windows.duty(all_ns, entries, doubtful))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_are_told() {
        assert_eq!(Mode::Each.of_programs(), c::Mode::EACH);
        assert_eq!(Mode::Count.of_programs().every, 0);
        let batch = Mode::Batch {
            doorbells: 8,
            within: Duration::from_micros(500),
        };
        let told = batch.of_programs();
        assert_eq!((told.every, told.within_ns), (8, 500_000));
        assert_eq!(batch.longest_wait(), Duration::from_micros(125));
    }

    #[test]
    fn windows_have_their_share_of_the_time() {
        assert_eq!(Duty::lengths(0.1), (5_000_000, 50_000_000));
        assert_eq!(Duty::lengths(0.01), (5_000_000, 500_000_000));
        assert_eq!(Duty::lengths(0.5), (25_000_000, 50_000_000));
        let mut duty = Duty::new(12345);
        let pauses: Vec<u64> = (0..1000).map(|_| duty.pause(0.1)).collect();
        let mean = pauses.iter().sum::<u64>() / 1000;
        assert!(mean.abs_diff(45_000_000) < 5_000_000, "{mean}");
        assert!(pauses.iter().all(|p| *p <= 450_000_000));
        // A third is longer than the mean, and as many of the others are shorter than four tenths of it.
        let longer = pauses.iter().filter(|p| **p > 45_000_000).count();
        let short = pauses.iter().filter(|p| **p < 18_000_000).count();
        assert!(
            (320..420).contains(&longer) && (280..380).contains(&short),
            "{longer} {short}"
        );
        assert!(pauses[0] != pauses[1]);
    }
}
