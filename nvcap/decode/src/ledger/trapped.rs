//! Account of the trap, as the ledger states it.

/// Account of the trap: its report on its own work. None of these numbers is a loss. Entries whose doorbell hit without running a program
/// are fetched later, and entries that cannot be fetched are reported as a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trapped {
    /// Hits of breakpoints that the kernel counted.
    pub hits: u64,
    /// Runs of BPF programs at these hits.
    pub runs: u64,
    /// Part of `runs`: programs that ran before the doorbell was rung.
    pub before: u64,
    /// Doorbells that found the ring buffer full; their entries were fetched later.
    pub deferred: u64,
    /// Doorbells that were left to a later doorbell of their channel (`--batch`).
    pub put_off: u64,
    /// Doorbells that were counted and not captured (`--count`).
    pub counted: u64,
    /// SIGTRAPs without a cause: debug exceptions whose cause the kernel was not told, as happens if the machine loses a hit. The kernel
    /// counts no hit then.
    pub stray_traps: u64,
    /// Time for which doorbells were watched, and the extrapolation to the whole trace, with `--duty`.
    pub duty: Option<Duty>,
}

impl Trapped {
    /// Returns the number of hits that ran no program because another program was running on that processor.
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
    /// Half the width of the interval that contains the true value with a confidence of 95 %; `None` if there were too few windows.
    pub margin: Option<f64>,
}

/// A trace that watches doorbells for a share of the time. Ring positions are followed all the time, so the number of entries is known; the
/// other numbers are extrapolated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Duty {
    /// Number of windows in which doorbells were watched.
    pub windows: u64,
    /// Total time for which doorbells were watched, ns.
    pub watched_ns: u64,
    /// Time from the first window to the end of the trace, ns.
    pub all_ns: u64,
    /// Number of ring entries in that time.
    pub entries: u64,
    /// Number of looks at which so much of a ring was new that the ring may have wrapped since the previous look. There may then have been
    /// more entries.
    pub doubtful: u64,
    /// Submissions in `all_ns`.
    pub submissions: Estimate,
    /// Pushbuffer bytes in `all_ns`.
    pub bytes: Estimate,
}

/// Amounts captured in a window or in a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
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

/// Sums over windows of one number, for its estimate.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    x: f64,
    xx: f64,
    xe: f64,
}

/// Windows in which doorbells were watched, and the amounts captured in each.
///
/// The estimate is a ratio estimate: the number captured in the windows, divided by the windows' entries, and applied to all entries, whose
/// number is known. The variance is that of the windows about this ratio. Time is not used as a measure, because the program is slower
/// while it is watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Windows {
    count: u64,
    /// Number of windows in which something was captured.
    full: u64,
    ns: u64,
    e: f64,
    ee: f64,
    submissions: Sums,
    bytes: Sums,
}

/// The least number of windows for which an interval is stated. If a seventh of the time differs from the rest, fewer windows miss it
/// entirely once in twenty times.
const LEAST_WINDOWS: u64 = 20;
/// The least effective number of windows for which an interval is stated. Windows with very unequal numbers of entries count as fewer
/// windows of equal weight.
const LEAST_ALIKE: f64 = 6.0;

impl Windows {
    /// Adds a window of `ns` that has ended.
    pub fn add(&mut self, ns: u64, captured: Captured) {
        let e = captured.entries as f64;
        self.count += 1;
        self.full += u64::from(captured.entries > 0);
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

    /// Returns the estimates for all `entries` entries in `all_ns`.
    pub fn duty(&self, all_ns: u64, entries: u64, doubtful: u64) -> Duty {
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
        // An empty window tells nothing about the content of entries.
        let n = self.full as f64;
        let alike = self.e * self.e / self.ee;
        let squares = (s.xx - 2.0 * ratio * s.xe + ratio * ratio * self.ee).max(0.0);
        // The captured part is known; only the rest is estimated.
        let rest = (1.0 - self.e / all.max(1.0)).max(0.0);
        let enough = self.full >= LEAST_WINDOWS && alike >= LEAST_ALIKE;
        let margin = enough.then(|| {
            let error = (squares * n / (n - 1.0) * rest).sqrt() / self.e;
            student(alike - 1.0) * error * all
        });
        Estimate {
            about: ratio * all,
            margin,
        }
    }
}

/// Returns Student's t for 95 % and these degrees of freedom, accurate to 1 % from 4 on.
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
        // Runs at an event whose count could not be read.
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
        for entries in [50, 60, 55, 50, 70].repeat(4) {
            even.add(5_000_000, window(entries, entries, 100 * entries));
        }
        let duty = even.duty(1_140_000_000, 11_400, 0);
        assert_eq!((duty.windows, duty.watched_ns), (20, 100_000_000));
        assert!((duty.submissions.about - 11_400.0).abs() < 1e-6);
        assert!((duty.bytes.about - 1_140_000.0).abs() < 1e-6);
        assert!(duty.bytes.margin.unwrap() < 1e-3, "{duty:?}");
        // Half of the windows have long entries.
        let mut uneven = Windows::default();
        for n in 0..100 {
            uneven.add(5_000_000, window(100, 100, 20_000 * (n % 2)));
        }
        let duty = uneven.duty(5_000_000_000, 100_000, 0);
        assert!((duty.bytes.about - 10_000_000.0).abs() < 1e-3);
        // 100 windows, standard deviation 10,050 of 10,000 each, a tenth captured: 10^7 x 1.984 x 0.1005 x sqrt(0.9).
        let margin = duty.bytes.margin.unwrap();
        assert!((margin - 1_892_000.0).abs() < 10_000.0, "{margin}");
        // Everything was captured: nothing is uncertain.
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
            // A third of the windows has entries of 1,500 bytes, the others of 60; each has some 50 entries.
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

    /// Test of windows that captured nothing, and of one that captured nearly everything: they count as fewer windows.
    #[test]
    fn windows_that_tell_nothing_do_not_count() {
        let mut idle = Windows::default();
        (0..100).for_each(|_| idle.add(1_000, window(0, 0, 0)));
        (0..LEAST_WINDOWS - 1).for_each(|_| idle.add(1_000, window(5, 5, 50)));
        assert_eq!(idle.duty(10_000, 300, 0).submissions.margin, None);
        idle.add(1_000, window(5, 5, 50));
        assert!(idle.duty(10_000, 300, 0).submissions.margin.is_some());
        idle.add(1_000, window(500, 4_000, 50));
        assert_eq!(idle.duty(10_000, 30_000, 0).submissions.margin, None);
    }

    /// Submissions of a program in virtual time.
    #[derive(Clone, Copy, Debug)]
    enum Stream {
        /// Submissions of all kinds, at any time.
        Steady,
        /// Long ones for 30 ms, once in each 210 ms at a varying time.
        Bursts,
        /// Long ones in 15 of each 50 ms, which is about the pause between two windows.
        Periodic,
        /// Long ones in 0.7 of each 2 s.
        Phases,
    }

    impl Stream {
        /// Returns the number of entries of a submission at this time (us), and the bytes of each entry.
        fn at(self, us: u64, random: u64) -> (u64, u64) {
            let is_long = match self {
                Self::Steady => random.is_multiple_of(4),
                Self::Bursts => us / 30_000 % 7 == us / 210_000 * 5 % 7,
                Self::Periodic => us % 50_000 < 15_000,
                Self::Phases => us % 2_000_000 < 700_000,
            };
            if is_long { (6, 3_000) } else { (1, 100) }
        }
    }

    /// Samples a trace of `us` of virtual time. Returns the estimates by its windows, and the true numbers.
    fn sampled(stream: Stream, share: f64, us: u64, seed: u64) -> (Duty, Captured) {
        let mut state = seed;
        // SplitMix64.
        let mut random = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let x = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ x >> 31
        };
        // A waiting time with an exponential distribution.
        let wait = |random: u64, mean: f64| {
            let chance = ((random >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            (-mean * chance.ln()) as u64
        };
        let round = (5_000.0 / share).max(50_000.0) as u64;
        let length = (round as f64 * share) as u64;
        let pause = round - length;
        let (mut windows, mut truth) = (Windows::default(), Captured::default());
        let (began, mut now) = (random() % 2_000_000, 0);
        let mut window = (random() % round, Captured::default());
        while now < us {
            let (entries, bytes) = stream.at(began + now, random());
            while now >= window.0 + length {
                windows.add(1_000 * length, window.1);
                let next = window.0 + length + wait(random(), pause as f64);
                window = (next, Captured::default());
            }
            let mut sums = vec![&mut truth];
            if now >= window.0 {
                sums.push(&mut window.1);
            }
            for sum in sums {
                sum.submissions += 1;
                sum.entries += entries;
                sum.bytes += entries * bytes;
            }
            // The pause is 200 us on average, at any time.
            now += 1 + wait(random(), 200.0);
        }
        (windows.duty(1_000 * us, truth.entries, 0), truth)
    }

    #[test]
    fn intervals_of_programs_in_virtual_time_hold_the_truth() {
        let streams = [
            Stream::Steady,
            Stream::Bursts,
            Stream::Periodic,
            Stream::Phases,
        ];
        for stream in streams {
            for (share, us) in [(0.2, 1_600_000), (0.2, 6_000_000), (0.05, 4_000_000)] {
                let (mut stated, mut held) = (0_u32, [0_u32; 2]);
                for seed in 0..300 {
                    let (duty, truth) = sampled(stream, share, us, seed);
                    let (Some(of_submissions), Some(of_bytes)) =
                        (duty.submissions.margin, duty.bytes.margin)
                    else {
                        continue;
                    };
                    stated += 1;
                    let off = |about: f64, truth: u64| (about - truth as f64).abs();
                    let submissions = off(duty.submissions.about, truth.submissions);
                    held[0] += u32::from(submissions <= of_submissions);
                    held[1] += u32::from(off(duty.bytes.about, truth.bytes) <= of_bytes);
                }
                let enough = held.iter().all(|held| held * 10 >= stated * 9);
                assert!(
                    stated > 200 && enough,
                    "{stream:?} {share}: {held:?} of {stated}"
                );
            }
            // The trace is too short for an interval: none is stated.
            for seed in 0..50 {
                let (duty, _) = sampled(stream, 0.2, 300_000, seed);
                let margins = (duty.submissions.margin, duty.bytes.margin);
                assert_eq!(margins, (None, None), "{duty:?}");
            }
        }
    }

    #[test]
    fn student_s_t_is_near_the_tables() {
        for (freedom, t) in [(4.0, 2.776), (10.0, 2.228), (30.0, 2.042), (1000.0, 1.962)] {
            assert!((student(freedom) - t).abs() < 0.01 * t, "{freedom}");
        }
    }
}
