//! The GPU's clock against the host's.
//!
//! Each stamp was seen by a read of its memory: by the end of that read it had been written, and at the begin of the read before
//! it had not. So the difference of the clocks (host less GPU) lies between (begin of the read before - stamp) and (end of the read - stamp).
//! The least upper bound of a stretch of time is the difference, but for the time that a write and a read take ([`WRITE_NS`]);
//! the spread between both bounds says how far it may be wrong. The clocks drift against each other, and one of them may step:
//! each stretch has a difference of its own, and between two the difference is interpolated unless it stepped.

use std::collections::VecDeque;

/// The length of a stretch, ns: with a drift of 20 ppm the clocks move apart by 1 us in it, which the interpolation removes.
const STRETCH_NS: u64 = 50_000_000;
/// How many stretches are kept.
const KEPT: usize = 256;
/// The time from a write by the GPU until a read of another processor can see it, at most, ns: a write over PCIe is posted, and
/// takes some hundred ns; this is the least that is left unknown.
const WRITE_NS: u64 = 1_000;
/// The most that the difference moves between two stretches without a step, as a share of the time between them: clocks are
/// some tens of ppm apart, and NTP slews by up to 500 ppm.
const SLEW: f64 = 1e-3;
/// Differences closer than this are no step, ns.
const STEP_NS: i64 = 20_000;
/// How fast clocks drift apart at most where nothing is known yet, as a share.
const DRIFT: f64 = 100e-6;

/// The difference in one stretch.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Begin of the stretch by the GPU's clock.
    begin: u64,
    /// The stamp that gave the least upper bound.
    gpu_ns: u64,
    /// That bound: host less GPU, ns.
    upper: i64,
    /// The greatest lower bound.
    lower: i64,
    stamps: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    stretches: VecDeque<Stretch>,
    steps: u64,
}

/// A time of the host that a stamp was converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostTime {
    pub ns: u64,
    pub error_ns: u64,
}

fn difference(host: u64, gpu: u64) -> i64 {
    host.wrapping_sub(gpu).cast_signed()
}

impl Clock {
    /// Takes a stamp: when it was seen, and when a read began that did not see it (0 where there was none).
    pub(crate) fn learn(&mut self, gpu_ns: u64, before_ns: u64, seen_ns: u64) {
        let upper = difference(seen_ns, gpu_ns);
        let lower = match before_ns {
            0 => i64::MIN,
            before => difference(before, gpu_ns),
        };
        let last = self.stretches.back_mut();
        let fits = last.filter(|s| {
            // A bound above the other's step means that the clock went back or forth in between.
            gpu_ns.abs_diff(s.begin) < STRETCH_NS
                && gpu_ns >= s.begin
                && lower <= s.upper.saturating_add(STEP_NS)
                && upper >= s.lower.saturating_sub(STEP_NS)
        });
        if let Some(s) = fits {
            s.stamps += 1;
            if upper < s.upper {
                (s.upper, s.gpu_ns) = (upper, gpu_ns);
            }
            s.lower = s.lower.max(lower);
            return;
        }
        if let Some(before) = self.stretches.back() {
            // A stamp seen late says little: its upper bound alone is no step.
            let late = upper > before.upper && lower <= before.upper;
            if gpu_ns < before.begin && late {
                return;
            }
        }
        let stretch = Stretch {
            begin: gpu_ns,
            gpu_ns,
            upper,
            lower,
            stamps: 1,
        };
        if self
            .stretches
            .back()
            .is_some_and(|before| is_step(before, &stretch))
        {
            self.steps += 1;
        }
        self.stretches.push_back(stretch);
        if self.stretches.len() > KEPT {
            self.stretches.pop_front();
        }
    }

    /// How often one of the clocks stepped.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// The host's time of a time of the GPU; `None` before any stamp was seen.
    pub(crate) fn host(&self, gpu_ns: u64) -> Option<HostTime> {
        let after = self.stretches.partition_point(|s| s.gpu_ns <= gpu_ns);
        let before = after.checked_sub(1).and_then(|i| self.stretches.get(i));
        let behind = self.stretches.get(after);
        let (offset, error) = match (before, behind) {
            (Some(a), Some(b)) if !is_step(a, b) => between(a, b, gpu_ns),
            // The stretch that it belongs to: a step lies between it and the other.
            (Some(a), Some(b)) => {
                let own = if gpu_ns >= b.begin { b } else { a };
                from(own, self.neighbour(own), gpu_ns)
            }
            (Some(a), None) => from(a, self.neighbour(a), gpu_ns),
            (None, Some(b)) => from(b, self.neighbour(b), gpu_ns),
            (None, None) => return None,
        };
        Some(HostTime {
            ns: gpu_ns.wrapping_add_signed(offset),
            error_ns: error + WRITE_NS,
        })
    }

    /// The GPU's time of a time of the host, by the newest difference.
    pub(crate) fn gpu(&self, host_ns: u64) -> Option<u64> {
        let last = self.stretches.back()?;
        let guess = host_ns.wrapping_add_signed(last.upper.wrapping_neg());
        let there = self.host(guess)?.ns;
        Some(guess.wrapping_add_signed(difference(host_ns, there)))
    }

    /// The stretch next to one, without a step between.
    fn neighbour(&self, of: &Stretch) -> Option<&Stretch> {
        let at = self.stretches.partition_point(|s| s.gpu_ns < of.gpu_ns);
        let sides = [at.checked_sub(1), at.checked_add(1)];
        sides
            .into_iter()
            .flatten()
            .filter_map(|i| self.stretches.get(i))
            .find(|s| !is_step(s, of) && s.gpu_ns != of.gpu_ns)
    }
}

/// The spread of a stretch: how far its difference may be from the truth.
fn spread(s: &Stretch) -> u64 {
    match s.lower {
        // No read before: nothing bounds it from below.
        i64::MIN => u64::MAX / 4,
        lower => s.upper.saturating_sub(lower).max(0).cast_unsigned(),
    }
}

/// Between two stretches the difference is on the line.
fn between(a: &Stretch, b: &Stretch, gpu_ns: u64) -> (i64, u64) {
    let whole = b.gpu_ns.saturating_sub(a.gpu_ns).max(1) as f64;
    let share = gpu_ns.saturating_sub(a.gpu_ns) as f64 / whole;
    let offset = a.upper + ((b.upper - a.upper) as f64 * share) as i64;
    (offset, spread(a).max(spread(b)))
}

/// Beyond the last or before the first the drift of the neighbour goes on.
fn from(s: &Stretch, neighbour: Option<&Stretch>, gpu_ns: u64) -> (i64, u64) {
    let away = difference(gpu_ns, s.gpu_ns) as f64;
    match neighbour {
        Some(n) => {
            let drift = (n.upper - s.upper) as f64 / difference(n.gpu_ns, s.gpu_ns) as f64;
            let moved = (drift * away) as i64;
            // The drift itself is known to the spread of both.
            (s.upper + moved, spread(s) + moved.unsigned_abs() / 4)
        }
        None => (s.upper, spread(s) + (DRIFT * away.abs()) as u64),
    }
}

fn is_step(a: &Stretch, b: &Stretch) -> bool {
    let most = (b.gpu_ns.abs_diff(a.gpu_ns) as f64 * SLEW) as i64 + STEP_NS;
    // Only what the bounds themselves contradict: a stretch whose stamps were all seen late has a high upper bound.
    let (low, high) = if a.upper < b.upper { (a, b) } else { (b, a) };
    high.lower.saturating_sub(low.upper) > most
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Stamps every 10 us, read every us; the host's clock is ahead of the GPU's by `offset` and gains `ppm`.
    fn learn(clock: &mut Clock, from: u64, until: u64, offset: i64, ppm: f64) {
        let mut gpu = from;
        let mut n = 0u64;
        while gpu < until {
            let host = truth(gpu, offset, ppm);
            // Written at `host`, seen 0.4..1.3 us later.
            let seen = host + 400 + (n * 37) % 900;
            clock.learn(gpu, seen - 1_100, seen);
            gpu += 10_000;
            n += 1;
        }
    }

    fn truth(gpu: u64, offset: i64, ppm: f64) -> u64 {
        gpu.wrapping_add_signed(offset + (gpu as f64 * ppm / 1e6) as i64)
    }

    #[test]
    fn drifting_clocks_are_followed() {
        let mut clock = Clock::default();
        assert_eq!(clock.host(5), None);
        let offset = -1_700_000_000_000_000_000;
        let begin = 1_800_000_000_000_000_000;
        let of = |gpu: u64| truth(gpu, offset, 20.0);
        learn(&mut clock, begin, begin + 3_000 * MS, offset, 20.0);
        for t in (0..3_000).step_by(7) {
            let gpu = begin + t * MS;
            let host = clock.host(gpu).unwrap();
            let wrong = host.ns.abs_diff(of(gpu));
            assert!(wrong <= host.error_ns, "{wrong} {host:?} at {t} ms");
            assert!(wrong < 1_500, "{wrong} at {t} ms");
            assert!(host.error_ns < 12_000, "{host:?}");
            let back = clock.gpu(host.ns).unwrap();
            assert!(back.abs_diff(gpu) < 20, "{back} {gpu}");
        }
        assert_eq!(clock.steps(), 0);
        // Beyond what was seen it goes on.
        let gpu = begin + 3_200 * MS;
        assert!(clock.host(gpu).unwrap().ns.abs_diff(of(gpu)) < 3_000);
    }

    #[test]
    fn a_step_is_survived() {
        for step in [3_000_000i64, -3_000_000, 2_000_000_000] {
            let mut clock = Clock::default();
            let begin = 1_000_000 * MS;
            learn(&mut clock, begin, begin + 1_100 * MS, 500_000, 0.0);
            learn(
                &mut clock,
                begin + 1_100 * MS,
                begin + 2_000 * MS,
                500_000 + step,
                0.0,
            );
            assert_eq!(clock.steps(), 1, "{step}");
            for (t, offset) in [(1_050, 500_000), (1_150, 500_000 + step)] {
                let gpu = begin + t * MS;
                let wrong = clock
                    .host(gpu)
                    .unwrap()
                    .ns
                    .abs_diff(truth(gpu, offset, 0.0));
                assert!(wrong < 1_500, "{wrong} at {t} ms after a step of {step}");
            }
        }
    }

    #[test]
    fn stamps_that_are_seen_late_do_no_harm() {
        let mut clock = Clock::default();
        let begin = 1_000_000 * MS;
        learn(&mut clock, begin, begin + 500 * MS, 500_000, 0.0);
        // After a pause the first is seen 3 ms late, and the read before was long ago.
        let gpu = begin + 2_000 * MS;
        let host = truth(gpu, 500_000, 0.0);
        clock.learn(gpu, host - 900 * MS, host + 3 * MS);
        learn(&mut clock, gpu + MS, gpu + 100 * MS, 500_000, 0.0);
        assert_eq!(clock.steps(), 0);
        let wrong = clock.host(gpu + 50 * MS).unwrap().ns;
        assert!(wrong.abs_diff(host + 50 * MS) < 1_500);
    }

    #[test]
    fn any_numbers_are_taken() {
        let mut clock = Clock::default();
        for (gpu, before, seen) in [
            (0, 0, 0),
            (u64::MAX, 1, 2),
            (7, u64::MAX, 0),
            (u64::MAX / 2, 3, u64::MAX),
        ] {
            clock.learn(gpu, before, seen);
            let _ = clock.host(gpu);
            let _ = clock.host(0);
            let _ = clock.gpu(u64::MAX);
        }
    }
}
