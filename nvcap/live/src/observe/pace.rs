//! Times of the looks at a channel, and the CPU that looking may cost. Pure: gets and returns times.
//!
//! A ring laps unseen when more entries pass between two looks than it holds. The rate of a channel is known only for
//! the past, so two limits hold at once: an eighth of the ring at the rate that was seen last (or not long ago), and
//! a sixth of the ring at the fastest rate that a program is assumed to reach suddenly ([`FASTEST_NS`]). A program
//! that becomes faster than that between two looks can lap a ring; `proof` then finds the lap, and it is counted.
//!
//! A process that seems to have used no CPU meanwhile proves nothing here: the clock of another process's CPU time is
//! updated only at its scheduler ticks (1 to 10 ms), and a whole ring can pass between two ticks.

/// Shortest assumed time between two entries of one channel, ns. On an H200 a launch takes libcuda 3.4 us in the long
/// run, and 1.2 us in the first thousand of a loop.
pub(crate) const FASTEST_NS: u64 = 1_000;
/// Shortest time between two looks at a channel, ns.
pub(crate) const SHORTEST_NS: u64 = 50_000;
/// Longest time between two looks at a channel that has ever moved, while its process runs, ns.
pub(crate) const LONGEST_NS: u64 = 50_000_000;

/// A channel's own pace.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    ring: u64,
    /// Entries a ns: the rate that was seen, or the remainder of an earlier faster rate.
    rate: f64,
}

impl Pace {
    /// Creates the pace of a channel with a ring of this many entries.
    pub(crate) fn new(ring: u32) -> Self {
        Self {
            ring: u64::from(ring),
            rate: 0.0,
        }
    }

    /// Takes in that a look found `fresh` entries after `elapsed` ns. A faster rate holds at once; a slower one is
    /// adopted little by little.
    pub(crate) fn looked(&mut self, fresh: u64, elapsed: u64) {
        let seen = fresh as f64 / elapsed.max(1) as f64;
        self.rate = seen.max(self.rate * 0.7);
    }

    /// Time from one look to the next, ns.
    pub(crate) fn interval(&self) -> u64 {
        let jump = self.jump_interval();
        if self.rate <= 0.0 {
            return jump;
        }
        let part = (self.ring as f64 / 8.0 / self.rate).min(1e12) as u64;
        part.min(jump).max(SHORTEST_NS)
    }

    /// Returns the time in which the fastest program fills a sixth of the ring, ns.
    fn jump_interval(&self) -> u64 {
        (self.ring * FASTEST_NS / 6).clamp(SHORTEST_NS, LONGEST_NS)
    }

    /// Returns the time in which the fastest program fills the ring once, ns.
    pub(crate) fn lap_time(&self) -> u64 {
        self.ring * FASTEST_NS
    }
}

/// CPU time that may be used: a share of one core, kept over any period of about a second.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    share: f64,
    /// CPU time that may be used now, ns; negative while overdrawn.
    left: f64,
    last: Option<(u64, u64)>,
}

impl Budget {
    /// `share` of one core: 0.05 is 5 %.
    pub(crate) fn new(share: f64) -> Self {
        let mut budget = Self {
            share,
            left: 0.0,
            last: None,
        };
        budget.left = budget.most();
        budget
    }

    /// Returns the most CPU time that idle time can save up, ns: a second's worth.
    fn most(&self) -> f64 {
        self.share * 1e9
    }

    /// Takes the clocks (wall and own CPU time, ns) into account. `Some` if the budget is used up: the time in ns
    /// that must pass before there is something to spend again.
    pub(crate) fn spend(&mut self, wall: u64, cpu: u64) -> Option<u64> {
        let (wall_before, cpu_before) = self.last.unwrap_or((wall, cpu));
        self.last = Some((wall, cpu));
        self.left += wall.saturating_sub(wall_before) as f64 * self.share;
        self.left = self.left.min(self.most());
        self.left -= cpu.saturating_sub(cpu_before) as f64;
        (self.left < 0.0).then(|| (-self.left / self.share).ceil().min(1e10) as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_of_the_ring_passes_between_two_looks() {
        let mut pace = Pace::new(1024);
        // The launch loop of an H200: 3.5 us a launch.
        pace.looked(286, 1_001_000);
        let passed = pace.interval() as f64 / 3_500.0;
        assert!((40.0..=129.0).contains(&passed), "{passed}");
    }

    #[test]
    fn an_idle_channel_cannot_be_lapped_by_the_fastest_program() {
        for ring in [64, 128, 512, 1024, 4096, 16384] {
            let pace = Pace::new(ring);
            let passed = pace.interval() / FASTEST_NS;
            assert!(passed < u64::from(ring) - 1, "{ring}: {passed}");
        }
    }

    #[test]
    fn a_burst_is_followed_at_once_and_a_pause_does_not_make_it_forget() {
        let mut pace = Pace::new(1024);
        pace.looked(0, 1_500_000);
        let idle = pace.interval();
        pace.looked(1000, 500_000);
        let fast = pace.interval();
        assert!(fast < idle / 2, "{fast} {idle}");
        pace.looked(0, fast);
        assert!(pace.interval() < idle);
        for _ in 0..40 {
            pace.looked(0, 1_500_000);
        }
        assert_eq!(pace.interval(), idle);
    }

    #[test]
    fn the_shortest_interval_holds_for_any_rate_and_ring() {
        for ring in [2, 16, 1024, 1 << 20] {
            let mut pace = Pace::new(ring);
            for (fresh, elapsed) in [(u64::MAX, 0), (1, 1), (0, u64::MAX), (1023, 1)] {
                pace.looked(fresh, elapsed);
                assert!((SHORTEST_NS..=LONGEST_NS).contains(&pace.interval()));
            }
        }
    }

    #[test]
    fn the_budget_is_kept_in_the_long_run() {
        let mut budget = Budget::new(0.05);
        let (mut wall, mut cpu) = (0u64, 0u64);
        while wall < 100_000_000_000 {
            match budget.spend(wall, cpu) {
                Some(wait) => wall += wait,
                None => {
                    // A look that costs 300 us.
                    wall += 300_000;
                    cpu += 300_000;
                }
            }
        }
        let used = cpu as f64 / wall as f64;
        assert!((0.045..=0.0512).contains(&used), "{used}");
    }

    #[test]
    fn what_is_saved_is_a_second_s_worth_at_most() {
        let mut budget = Budget::new(0.1);
        assert_eq!(budget.spend(0, 0), None);
        assert_eq!(budget.spend(3_600_000_000_000, 0), None);
        let wait = budget.spend(3_600_000_000_000, 150_000_000);
        assert_eq!(wait, Some(500_000_001));
    }
}
