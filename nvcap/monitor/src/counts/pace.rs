//! Times of the readings: once in the interval, or as seldom as the budget of CPU time takes. All but [`rest`] is pure.

use std::time::{Duration, Instant};

/// CPU time that may be spent at once, ns: what finding the processes and channels of a host takes at the beginning. Later it must have been
/// earned before.
const AT_ONCE: f64 = 5e8;
/// The part of the budget that is spent. The rest is for what runs between two readings: it is counted at the second one.
const SPENT: f64 = 0.95;

/// Times of the readings, by the interval and the budget of CPU time.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    interval: Duration,
    budget: Option<f64>,
    /// CPU time that may be spent, ns; if negative, so much was spent too early.
    credit: f64,
    /// True if no reading was made yet.
    first: bool,
    seen: (u64, u64),
    due: u64,
    stretched: u64,
}

impl Pace {
    pub(super) fn new(interval: Duration, budget: Option<f64>, now: u64, cpu: u64) -> Self {
        Self {
            interval,
            budget,
            credit: AT_ONCE,
            first: true,
            seen: (now, cpu),
            due: now,
            stretched: 0,
        }
    }

    /// Returns the number of readings that were delayed to keep the budget.
    pub(super) fn stretched(&self) -> u64 {
        self.stretched
    }

    /// Leaves this CPU time, ns, out of the budget: it was used for something else.
    pub(super) fn forgive(&mut self, cpu: u64) {
        self.seen.1 += cpu;
    }

    /// Returns the time to wait for the next reading after one at `now`, with `cpu` used so far.
    pub(super) fn next(&mut self, now: u64, cpu: u64) -> Duration {
        let (before, used) = std::mem::replace(&mut self.seen, (now, cpu));
        let interval = self.interval.as_nanos() as u64;
        // Readings that were missed are not made up for: none comes at once behind a late one, for a rate over a moment tells nothing.
        let next = self.due + interval;
        let least = now + interval / 2;
        self.due = if next < least { now + interval } else { next };
        let mut wait = self.due - now;
        if let Some(budget) = self.budget.map(|b| b * SPENT) {
            let earned = now.saturating_sub(before) as f64 * budget;
            let spent = cpu.saturating_sub(used) as f64;
            self.credit = (self.credit + earned).min(AT_ONCE) - spent;
            if std::mem::take(&mut self.first) {
                self.credit = self.credit.min(0.0);
            }
            if self.credit < 0.0 {
                let owed = (-self.credit / budget) as u64;
                if owed > wait {
                    wait = owed;
                    self.due = now + owed;
                    self.stretched += 1;
                }
            }
        }
        Duration::from_nanos(wait)
    }
}

/// The shortest and the longest mean time between two samples, ns.
const SAMPLES: (f64, f64) = (1e6, 1e9);

/// Times at which samples are taken. Moments come at random times, so seldom that they take no more than their share (but about one a
/// second at least); blocks are read as far as their credit of CPU time goes. Pure but for chance.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    /// CPU time of a moment, smoothed, ns.
    cost: f64,
    random: fastrand::Rng,
    /// CPU time that blocks may take, ns.
    credit: f64,
    credited: u64,
}

/// CPU time that blocks may take at once, ns.
const BLOCKS_AT_ONCE: f64 = 2e7;
/// Part of the time of samples that is for blocks; the rest is for moments.
const FOR_BLOCKS: f64 = 0.5;

impl Sampling {
    /// Tells whether blocks may be read now.
    pub(super) fn may_read(&mut self, now: u64, share: f64) -> bool {
        let passed = now.saturating_sub(std::mem::replace(&mut self.credited, now)) as f64;
        self.credit = (self.credit + passed * share * FOR_BLOCKS).min(BLOCKS_AT_ONCE);
        self.credit >= 0.0
    }

    /// Takes the CPU time that blocks took.
    pub(super) fn spent(&mut self, cpu: u64) {
        self.credit -= cpu as f64;
    }

    /// Returns the time to wait for the next moment after one that took `cost` ns of CPU time.
    pub(super) fn next(&mut self, cost: u64, share: f64) -> Duration {
        let cost = cost as f64;
        self.cost = match self.cost {
            0.0 => cost,
            before => before + (cost - before) / 8.0,
        };
        let mean = (self.cost.max(cost) / (share * (1.0 - FOR_BLOCKS))).clamp(SAMPLES.0, SAMPLES.1);
        // Waits of an exponential distribution: each moment is as likely as another.
        let wait = -mean * (1.0 - self.random.f64()).ln();
        Duration::from_nanos(wait.min(10.0 * SAMPLES.1) as u64)
    }
}

/// Waits, and takes samples meanwhile: `moment` takes one and says when to take the next.
pub fn rest(wait: Duration, mut moment: impl FnMut() -> Option<Duration>) {
    let end = Instant::now() + wait;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let Some(pause) = moment().filter(|_| !left.is_zero()) else {
            std::thread::sleep(left);
            return;
        };
        std::thread::sleep(pause.min(left));
        if pause >= left {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes readings that take `each` of CPU time: the share of a core that they take, and how many were delayed.
    fn share(each: u64, readings: u64) -> (f64, u64) {
        let mut pace = Pace::new(Duration::from_secs(1), Some(0.01), 0, 0);
        let (mut now, mut cpu) = (0, 0);
        for _ in 0..readings {
            now += each;
            cpu += each;
            now += pace.next(now, cpu).as_nanos() as u64;
        }
        (cpu as f64 / now as f64, pace.stretched())
    }

    #[test]
    fn the_budget_is_kept_by_reading_less_often() {
        let (cheap, late) = share(1_000_000, 1000);
        assert!(
            (0.0009..0.0011).contains(&cheap) && late == 0,
            "{cheap} {late}"
        );
        let (dear, late) = share(100_000_000, 1000);
        assert!(
            (0.0094..0.0096).contains(&dear) && late > 900,
            "{dear} {late}"
        );
    }

    #[test]
    fn what_the_beginning_did_not_take_is_not_spent_later() {
        let ms = 1_000_000;
        let mut pace = Pace::new(Duration::from_secs(1), Some(0.01), 0, 0);
        // The first reading takes 200 ms, the later ones 15 ms, more than a second earns.
        let (mut now, mut cpu) = (200 * ms, 200 * ms);
        let from = now;
        while now < from + 240_000 * ms {
            now += pace.next(now, cpu).as_nanos() as u64;
            (now, cpu) = (now + 15 * ms, cpu + 15 * ms);
        }
        let share = (cpu - 200 * ms) as f64 / (now - from) as f64;
        assert!((0.009..0.01).contains(&share), "{share}");
    }

    #[test]
    fn samples_take_no_more_than_their_share() {
        let mut sampling = Sampling::default();
        let (mut now, mut cpu) = (0, 0);
        for n in 0..20_000 {
            let cost = 50_000 + n % 7 * 30_000;
            cpu += cost;
            now += sampling.next(cost, 0.01).as_nanos() as u64;
        }
        let share = cpu as f64 / now as f64;
        assert!((0.003..=0.0051).contains(&share), "{share}");
    }

    #[test]
    fn without_a_budget_readings_keep_their_times() {
        let mut pace = Pace::new(Duration::from_secs(1), None, 0, 0);
        let ms = 1_000_000;
        assert_eq!(pace.next(300 * ms, 0), Duration::from_millis(700));
        assert_eq!(pace.next(1100 * ms, 0), Duration::from_millis(900));
        // After a pause of the machine there is no burst of readings, and none at once: its rate would be that of a moment.
        assert_eq!(pace.next(9000 * ms, 0), Duration::from_secs(1));
        assert_eq!(pace.next(10_300 * ms, 0), Duration::from_millis(700));
        assert_eq!(pace.next(11_600 * ms, 0), Duration::from_secs(1));
    }
}
