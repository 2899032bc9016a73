//! The account of the trap, as the ledger states it.

/// What the trap reports of its own work. None of it is a loss: what a hit without a program rang for is fetched later, and what
/// cannot be fetched is reported as a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Trapped {
    /// Hits of breakpoints that the kernel counted.
    pub hits: u64,
    /// BPF programs that ran at them.
    pub runs: u64,
    /// Of these, before the doorbell was rung.
    pub before: u64,
    /// Doorbells that found the ring buffer full: what they rang for was fetched later.
    pub deferred: u64,
    /// Doorbells that were left to a later one of their channel (`--batch`).
    pub put_off: u64,
    /// Doorbells that were counted and not captured (`--count`).
    pub counted: u64,
    /// SIGTRAPs that nobody asked for: debug exceptions of which the kernel was not told the cause, as where the machine loses a hit. The
    /// kernel counts no hit then.
    pub stray_traps: u64,
    /// With `--duty`: how long doorbells were watched, and what that tells of all.
    pub duty: Option<Duty>,
}

impl Trapped {
    /// Hits that ran no program: another one was running on that processor.
    #[must_use]
    pub fn without_program(&self) -> u64 {
        self.hits.saturating_sub(self.runs)
    }
}

/// An extrapolated number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The most likely value.
    pub about: f64,
    /// Half the width of the interval that holds the true value with a confidence of 95 %; `None` where there were too few windows
    /// to tell.
    pub margin: Option<f64>,
}

/// A trace that watches doorbells for a share of the time. Ring positions are followed in all the time, so that the number of entries
/// is known; the rest is extrapolated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Duty {
    /// Times that doorbells were watched.
    pub windows: u64,
    /// How long in all, ns.
    pub watched_ns: u64,
    /// From the first window to the end of the trace, ns.
    pub all_ns: u64,
    /// Ring entries in all that time.
    pub entries: u64,
    /// Looks at which so much of a ring was new that it may have gone round since the one before: then there were more entries.
    pub doubtful: u64,
    /// Submissions in all that time.
    pub submissions: Estimate,
    /// Pushbuffer bytes in all that time.
    pub bytes: Estimate,
}

/// What was captured, of a window or of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Captured {
    /// Submissions.
    pub submissions: u64,
    /// Ring entries.
    pub entries: u64,
    /// Pushbuffer bytes.
    pub bytes: u64,
}

impl std::ops::Sub for Captured {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            submissions: self.submissions.saturating_sub(before.submissions),
            entries: self.entries.saturating_sub(before.entries),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// The sums of windows of one number, for its estimate.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    x: f64,
    xx: f64,
    xe: f64,
}

/// Windows in which doorbells were watched, and what was captured in each.
///
/// The estimate is that of a ratio: what was captured in the windows by their entries, applied to all entries, whose number is known. Its
/// variance is that of the windows about this ratio. Time is no measure: the program is slower where it is watched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Windows {
    count: u64,
    ns: u64,
    e: f64,
    ee: f64,
    submissions: Sums,
    bytes: Sums,
}

/// The least number of windows that an interval is stated for.
const LEAST_WINDOWS: u64 = 5;

impl Windows {
    /// A window of so many ns has ended.
    pub(crate) fn add(&mut self, ns: u64, captured: Captured) {
        let e = captured.entries as f64;
        self.count += 1;
        self.ns += ns;
        self.e += e;
        self.ee += e * e;
        for (sums, x) in [
            (&mut self.submissions, captured.submissions as f64),
            (&mut self.bytes, captured.bytes as f64),
        ] {
            sums.x += x;
            sums.xx += x * x;
            sums.xe += x * e;
        }
    }

    /// The estimates for all of so many entries in so many ns.
    pub(crate) fn duty(&self, all_ns: u64, entries: u64, doubtful: u64) -> Duty {
        Duty {
            windows: self.count,
            watched_ns: self.ns,
            all_ns,
            entries,
            doubtful,
            submissions: self.estimate(self.submissions, entries),
            bytes: self.estimate(self.bytes, entries),
        }
    }

    fn estimate(&self, s: Sums, entries: u64) -> Estimate {
        if self.e <= 0.0 {
            return Estimate::default();
        }
        let all = entries as f64;
        let ratio = s.x / self.e;
        let n = self.count as f64;
        let squares = (s.xx - 2.0 * ratio * s.xe + ratio * ratio * self.ee).max(0.0);
        // What was captured is known: only the rest is estimated.
        let rest = (1.0 - self.e / all.max(1.0)).max(0.0);
        let margin = (self.count >= LEAST_WINDOWS).then(|| {
            let error = (squares * n / (n - 1.0) * rest).sqrt() / self.e;
            student(n - 1.0) * error * all
        });
        Estimate {
            about: ratio * all,
            margin,
        }
    }
}

/// Student's t for 95 % and so many degrees of freedom, to 1 % from 4 on.
fn student(freedom: f64) -> f64 {
    1.96 + 2.372 / freedom + 2.822 / (freedom * freedom) + 2.556 / (freedom * freedom * freedom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_without_a_program_are_told() {
        let trapped = Trapped {
            hits: 7,
            runs: 5,
            ..Trapped::default()
        };
        assert_eq!(trapped.without_program(), 2);
        // Runs of an event whose count could not be read.
        assert_eq!(Trapped { runs: 9, ..trapped }.without_program(), 0);
    }

    fn window(submissions: u64, entries: u64, bytes: u64) -> Captured {
        Captured {
            submissions,
            entries,
            bytes,
        }
    }

    #[test]
    fn what_each_entry_has_is_known_exactly_and_what_varies_is_not() {
        let mut even = Windows::default();
        for entries in [50, 60, 55, 50, 70] {
            even.add(5_000_000, window(entries, entries, 100 * entries));
        }
        let duty = even.duty(285_000_000, 2_850, 0);
        assert_eq!((duty.windows, duty.watched_ns), (5, 25_000_000));
        assert!((duty.submissions.about - 2_850.0).abs() < 1e-6);
        assert!((duty.bytes.about - 285_000.0).abs() < 1e-6);
        assert!(duty.bytes.margin.unwrap() < 1e-3, "{duty:?}");
        // Half of the windows see long entries.
        let mut uneven = Windows::default();
        for n in 0..100 {
            uneven.add(5_000_000, window(100, 100, 20_000 * (n % 2)));
        }
        let duty = uneven.duty(5_000_000_000, 100_000, 0);
        assert!((duty.bytes.about - 10_000_000.0).abs() < 1e-3);
        // 100 windows, standard deviation 10,050 of 10,000 each, a tenth captured: 10^7 x 1.984 x 0.1005 x sqrt(0.9).
        let margin = duty.bytes.margin.unwrap();
        assert!((margin - 1_892_000.0).abs() < 10_000.0, "{margin}");
        // All of it captured: nothing is uncertain.
        assert_eq!(uneven.duty(1, 10_000, 0).bytes.margin, Some(0.0));
    }

    #[test]
    fn few_windows_tell_no_interval() {
        let none = Windows::default().duty(1_000, 7, 0);
        assert_eq!((none.bytes.about, none.bytes.margin), (0.0, None));
        let mut few = Windows::default();
        few.add(1_000, window(3, 3, 4));
        assert_eq!(few.duty(10_000, 30, 0).submissions.about, 30.0);
        assert_eq!(few.duty(10_000, 30, 0).submissions.margin, None);
    }

    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let (mut held, runs) = (0, 400);
        for _ in 0..runs {
            let mut windows = Windows::default();
            // A third of the windows has entries of 1,500 bytes, the others of 60; each has some 50 of them.
            for _ in 0..60 {
                let each = if random() % 3 == 0 { 1_500 } else { 60 };
                let entries = 40 + random() % 21;
                windows.add(5_000, window(entries, entries, each * entries));
            }
            let Estimate { about, margin } = windows.duty(1, 300_000, 0).bytes;
            held += i32::from((about - 540.0 * 300_000.0).abs() <= margin.unwrap());
        }
        assert!((366..=392).contains(&held), "{held} of {runs}");
    }

    #[test]
    fn student_s_t_is_near_the_tables() {
        for (freedom, t) in [(4.0, 2.776), (10.0, 2.228), (30.0, 2.042), (1000.0, 1.962)] {
            assert!((student(freedom) - t).abs() < 0.01 * t, "{freedom}");
        }
    }
}
