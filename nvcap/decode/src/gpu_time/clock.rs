//! Conversion between the GPU's clock and the host's.
//!
//! Each stamp was seen by a read of its memory. By the end of that read it had been written, and at the beginning of the previous read it
//! had not. The difference of the clocks (host less GPU) therefore lies between (beginning of the previous read - stamp) and (end of the
//! read - stamp). A stretch of time has bounds of its own: the least upper and the greatest lower bound of its stamps. The least upper
//! bound is taken as the difference; it is too high by the time that a write and a read take ([`WRITE_NS`]), and the distance between both
//! bounds limits the error. The clocks drift against each other, and one of them may step. Bounds of neighbouring stretches limit each
//! other, plus the possible drift in between. The difference at a time is the lower hull of the upper bounds within a second before and
//! after it; the other limit is the upper hull of the lower bounds. A step ends both hulls.

use std::collections::VecDeque;

/// Length of a stretch, ns. With a drift of 20 ppm the clocks move apart by 1 us within it, which interpolation removes.
const STRETCH_NS: u64 = 50_000_000;
/// Length of the first stretches, ns. They are shorter so that the drift is soon known.
const FIRST_NS: u64 = 5_000_000;
const FIRST: usize = 20;
/// Number of stretches that are kept: more than a minute, for work that began that long before its end.
const KEPT: usize = 1_600;
/// Longest time from a write by the GPU until another processor can read it, ns. A write over PCIe is posted and takes some hundred ns.
/// This uncertainty always remains.
const WRITE_NS: u64 = 1_000;
/// The most by which the difference can move between two stretches without a step, as a share of the time between them. Clocks are some
/// tens of ppm apart, and NTP slews by up to 500 ppm.
const SLEW: f64 = 1e-3;
/// Limit below which a change of the difference is no step, ns.
const STEP_NS: i64 = 20_000;
/// Fastest drift of two clocks, as a share: NTP slews by that much.
const DRIFT: f64 = 500e-6;
/// Drift that is assumed if nothing shows it, as a share.
const UNKNOWN_DRIFT: f64 = 200e-6;
/// Error of a drift that is extrapolated, as a share.
const DRIFT_ERROR: f64 = 50e-6;
/// Distance within which stretches determine the difference at a time, ns. Over so short a time the drift is steady.
const NEAR_NS: u64 = 1_000_000_000;
/// Error above which stretches farther away are used as well, ns, and the distance to which they are used.
const POOR_NS: u64 = 500_000;
const WIDE_NS: u64 = 20_000_000_000;

/// Margin around the times that a clock had twice, ns. Times in the margin are not converted either.
const TWICE_NS: u64 = 100_000;
/// Time before and after a step back in which entries of the other side may still be converted, ns.
const AROUND_NS: u64 = 3_000_000_000;

/// The difference of the clocks in one stretch.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Beginning of the stretch, on the GPU's clock.
    begin: u64,
    /// Stamp that gave the least upper bound.
    gpu_ns: u64,
    /// Least upper bound: host less GPU, ns.
    upper: i64,
    /// Greatest lower bound, and the stamp that gave it.
    lower: i64,
    lower_gpu_ns: u64,
    stamps: u64,
}

/// Difference of the GPU's clock and the host's over time, with bounds for its error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    stretches: VecDeque<Stretch>,
    steps: u64,
    /// Latest stamp since the last step.
    newest: u64,
    /// Range of times that the GPU's clock had before the last step back and has again after it (after a wide step, only the last of them),
    /// and the time at which the range is over.
    twice: Option<(u64, u64, u64)>,
}

/// A time of the host, converted from a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostTime {
    pub ns: u64,
    pub error_ns: u64,
}

fn difference(host: u64, gpu: u64) -> i64 {
    host.wrapping_sub(gpu).cast_signed()
}

impl Clock {
    /// Takes in a stamp: the time at which it was seen, and the beginning of the last read that did not see it (0 if there was none).
    pub(crate) fn learn(&mut self, gpu_ns: u64, before_ns: u64, seen_ns: u64) {
        let newest = self.newest.max(gpu_ns);
        let before_it = std::mem::replace(&mut self.newest, newest);
        let upper = difference(seen_ns, gpu_ns);
        let lower = match before_ns {
            0 => i64::MIN,
            before => difference(before, gpu_ns),
        };
        let length = match self.stretches.len() {
            ..=FIRST => FIRST_NS,
            _ => STRETCH_NS,
        };
        let last = self.stretches.back_mut();
        let fits = last.filter(|s| {
            // A bound that exceeds the opposite one by more than a step means that a clock was set forward or back in between.
            gpu_ns.abs_diff(s.begin) < length
                && gpu_ns >= s.begin
                && lower <= s.upper.saturating_add(STEP_NS)
                && upper >= s.lower.saturating_sub(STEP_NS)
        });
        if let Some(s) = fits {
            s.stamps += 1;
            if upper < s.upper {
                (s.upper, s.gpu_ns) = (upper, gpu_ns);
            }
            if lower > s.lower {
                (s.lower, s.lower_gpu_ns) = (lower, gpu_ns);
            }
            return;
        }
        if let Some(before) = self.stretches.back() {
            // A stamp that was seen late has a high upper bound, which alone is no sign of a step.
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
            lower_gpu_ns: gpu_ns,
            stamps: 1,
        };
        if self
            .stretches
            .back()
            .is_some_and(|before| is_step(before, &stretch))
        {
            self.steps += 1;
            self.newest = gpu_ns;
            if gpu_ns <= before_it {
                let from = gpu_ns.max(before_it.saturating_sub(AROUND_NS));
                self.twice = Some((
                    from.saturating_sub(TWICE_NS),
                    before_it.saturating_add(TWICE_NS),
                    gpu_ns.saturating_add(AROUND_NS),
                ));
                // Stretches are kept in the order of their times.
                while self.stretches.back().is_some_and(|s| s.begin >= gpu_ns) {
                    self.stretches.pop_back();
                }
            }
        }
        self.stretches.push_back(stretch);
        if self.stretches.len() > KEPT {
            self.stretches.pop_front();
        }
    }

    /// Returns the number of steps of one of the clocks.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the host's time for a time of the GPU; `None` before any stamp was seen, and for a time that the clock had twice.
    pub(crate) fn host(&self, gpu_ns: u64) -> Option<HostTime> {
        let is_twice =
            |(from, until, over)| self.newest <= over && (from..=until).contains(&gpu_ns);
        if self.twice.is_some_and(is_twice) {
            return None;
        }
        let usual = self.by_hulls(gpu_ns)?;
        if usual.error_ns <= POOR_NS {
            return Some(usual);
        }
        // Few stamps are near, or they were seen late.
        let wide = self.by_drift(gpu_ns).unwrap_or(usual);
        Some(if wide.error_ns < usual.error_ns {
            wide
        } else {
            usual
        })
    }

    /// Returns the host's time by the bounds of stretches farther away, widened by the possible drift.
    fn by_drift(&self, gpu_ns: u64) -> Option<HostTime> {
        let (mut upper, mut lower) = (i64::MAX, i64::MIN);
        for s in self.around(gpu_ns, WIDE_NS)? {
            let drifted = |at: u64| (at.abs_diff(gpu_ns) as f64 * DRIFT) as i64;
            upper = upper.min(s.upper.saturating_add(drifted(s.gpu_ns)));
            if s.lower != i64::MIN {
                lower = lower.max(s.lower.saturating_sub(drifted(s.lower_gpu_ns)));
            }
        }
        let known = lower != i64::MIN && lower <= upper;
        known.then(|| HostTime {
            ns: gpu_ns.wrapping_add_signed(upper),
            error_ns: upper.abs_diff(lower).saturating_add(WRITE_NS + ROUNDING),
        })
    }

    fn by_hulls(&self, gpu_ns: u64) -> Option<HostTime> {
        let near = self.around(gpu_ns, NEAR_NS)?;
        let uppers = below(near.clone().map(|s| (s.gpu_ns, s.upper)));
        let upper = line(&uppers, gpu_ns)?;
        // The lower bounds, negated so that their hull is also below.
        let lowers = near.filter(|s| s.lower != i64::MIN);
        let lowers = below(lowers.map(|s| (s.lower_gpu_ns, -s.lower)));
        let spread = line(&lowers, gpu_ns).map_or(u64::MAX / 4, |lower| {
            let beyond = upper.beyond.max(lower.beyond);
            // Beyond their ends the two hulls may meet or cross, and neither is a bound. The error is then measured at the ends, where both
            // are bounds.
            let ends = [upper, lower].map(|l| l.beyond.ends);
            let ends = ends.into_iter().flatten().flat_map(|(a, b)| [a, b]);
            let apart = |at| {
                let both = line(&uppers, at).zip(line(&lowers, at));
                both.map_or(0, |(u, l)| u.value.saturating_add(l.value).unsigned_abs())
            };
            let spread = ends.map(apart).fold(apart(gpu_ns), u64::max);
            spread.saturating_add(beyond.error(spread))
        });
        Some(HostTime {
            ns: gpu_ns.wrapping_add_signed(upper.value),
            error_ns: spread.saturating_add(WRITE_NS + ROUNDING),
        })
    }

    /// Returns the stretches around a time, at most `most_ns` away and without a step between them; at least the last stretch before the
    /// time.
    fn around(&self, gpu_ns: u64, most_ns: u64) -> Option<impl Iterator<Item = &Stretch> + Clone> {
        let after = self.stretches.partition_point(|s| s.begin <= gpu_ns);
        let own = after.saturating_sub(1);
        self.stretches.get(own)?;
        let is_apart = |a: usize, b: usize| match (self.stretches.get(a), self.stretches.get(b)) {
            (Some(a), Some(b)) => is_step(a, b),
            _ => true,
        };
        let is_far = |i: usize| {
            let stretch = self.stretches.get(i);
            stretch.is_none_or(|s| s.begin.abs_diff(gpu_ns) > most_ns)
        };
        let (mut first, mut last) = (own, own);
        while first > 0 && !is_far(first - 1) && !is_apart(first - 1, first) {
            first -= 1;
        }
        while !is_far(last + 1) && !is_apart(last, last + 1) {
            last += 1;
        }
        Some(self.stretches.range(first..=last))
    }

    /// Returns the GPU's time for a time of the host, by the newest difference.
    pub(crate) fn gpu(&self, host_ns: u64) -> Option<u64> {
        let last = self.stretches.back()?;
        let guess = host_ns.wrapping_add_signed(last.upper.wrapping_neg());
        let there = self.host(guess)?.ns;
        Some(guess.wrapping_add_signed(difference(host_ns, there)))
    }
}

/// Rounding error, ns: both sides of the difference are rounded.
const ROUNDING: u64 = 2;

/// Value of a hull at a place.
#[derive(Clone, Copy, Debug)]
struct Line {
    value: i64,
    beyond: Beyond,
}

/// Extrapolation of a hull: distance beyond its end, ns; length of the edge that is extended, ns (0 if there is none); and that edge's
/// ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Beyond {
    away: u64,
    edge: u64,
    ends: Option<(u64, u64)>,
}

impl Beyond {
    /// Returns the error due to the slope of the extended edge, ns, if both ends of the edge may be wrong by `spread`.
    fn error(self, spread: u64) -> u64 {
        let slope = match self.edge {
            0 => UNKNOWN_DRIFT,
            edge => (DRIFT_ERROR + spread as f64 / edge as f64).min(2.0 * DRIFT),
        };
        (slope * self.away as f64) as u64
    }
}

/// Returns the greatest convex line below all points: the lower side of their convex hull.
fn below(points: impl Iterator<Item = (u64, i64)>) -> Vec<(u64, i64)> {
    let mut points: Vec<(u64, i64)> = points.collect();
    points.sort_unstable();
    // Of several points at one place, the lowest is kept.
    points.dedup_by_key(|p| p.0);
    // A neighbour's bound plus the possible drift is a bound as well. It is lower than the bound of a stamp that was seen late.
    for i in 1..points.len() {
        tighten(&mut points, i - 1, i);
    }
    for i in (1..points.len()).rev() {
        tighten(&mut points, i, i - 1);
    }
    let mut hull: Vec<(u64, i64)> = Vec::new();
    for p in points {
        while let [.., a, b] = hull.as_slice() {
            // b lies below the line from a to p, so it stays.
            if slope(*a, *b) < slope(*a, p) {
                break;
            }
            hull.pop();
        }
        hull.push(p);
    }
    hull
}

/// Returns the value of a hull at one place. Beyond its ends the last edge is extended, and its slope may be wrong.
fn line(hull: &[(u64, i64)], at: u64) -> Option<Line> {
    let edge = |i: usize| Some((*hull.get(i)?, *hull.get(i + 1)?));
    let after = hull.partition_point(|p| p.0 < at);
    let (from, along, inside) = match after.checked_sub(1).and_then(edge) {
        Some(along) => (along.0, Some(along), true),
        None if after == 0 => {
            let a = *hull.first()?;
            (a, edge(0), a.0 == at)
        }
        None => {
            let last = hull.len().checked_sub(2).and_then(edge);
            (*hull.last()?, last, false)
        }
    };
    let away = difference(at, from.0) as f64;
    let steep = along.map_or(0.0, |(a, b)| slope(a, b));
    let moved = (steep * away) as i64;
    Some(Line {
        value: from.1.saturating_add(moved),
        beyond: if inside {
            Beyond::default()
        } else {
            Beyond {
                away: at.abs_diff(from.0),
                edge: along.map_or(0, |(a, b)| b.0.abs_diff(a.0)),
                ends: Some(along.map_or((from.0, from.0), |(a, b)| (a.0, b.0))),
            }
        },
    })
}

/// Lowers a bound to another bound plus the possible drift between the two.
fn tighten(points: &mut [(u64, i64)], from: usize, to: usize) {
    let from = points.get(from).copied();
    if let (Some(from), Some(to)) = (from, points.get_mut(to)) {
        let most = (to.0.abs_diff(from.0) as f64 * DRIFT) as i64;
        to.1 = to.1.min(from.1.saturating_add(most));
    }
}

fn slope(a: (u64, i64), b: (u64, i64)) -> f64 {
    b.1.wrapping_sub(a.1) as f64 / difference(b.0, a.0).max(1) as f64
}

fn is_step(a: &Stretch, b: &Stretch) -> bool {
    let most = (b.gpu_ns.abs_diff(a.gpu_ns) as f64 * SLEW) as i64;
    let most = most.saturating_add(STEP_NS);
    // Only bounds that contradict each other show a step. A stretch whose stamps were all seen late merely has a high upper bound.
    let (low, high) = if a.upper < b.upper { (a, b) } else { (b, a) };
    high.lower.saturating_sub(low.upper) > most
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Teaches stamps every 10 us, read every us. The host's clock is ahead of the GPU's by `offset` and gains `ppm`.
    fn learn(clock: &mut Clock, from: u64, until: u64, offset: i64, ppm: f64) {
        let mut gpu = from;
        let mut n = 0u64;
        while gpu < until {
            let host = truth(gpu, offset, ppm);
            // Written at `host`, seen 0.4 to 1.3 us later.
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
        // Beyond the stamps, the difference is extrapolated.
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
        // After a pause, the first stamp is seen 3 ms late, and the read before it was long ago.
        let gpu = begin + 2_000 * MS;
        let host = truth(gpu, 500_000, 0.0);
        clock.learn(gpu, host - 900 * MS, host + 3 * MS);
        learn(&mut clock, gpu + MS, gpu + 100 * MS, 500_000, 0.0);
        assert_eq!(clock.steps(), 0);
        let wrong = clock.host(gpu + 50 * MS).unwrap().ns;
        assert!(wrong.abs_diff(host + 50 * MS) < 1_500);
    }

    /// Test of a reader that loses its processor: a stamp that it sees then counts less than the following ones, and the difference does
    /// not jump between the two.
    #[test]
    fn what_was_seen_late_at_the_begin_is_known_from_what_comes() {
        let mut clock = Clock::default();
        let (begin, ppm) = (1_000_000 * MS, 150.0);
        let of = |gpu| truth(gpu, 3_000_000_000, ppm);
        for n in 0..100 {
            let gpu = begin + n * 50_000;
            clock.learn(gpu, of(gpu).saturating_sub(5 * MS), of(gpu) + 65_000);
        }
        learn(
            &mut clock,
            begin + 5 * MS,
            begin + 20 * MS,
            3_000_000_000,
            ppm,
        );
        for t in (0..20_000).step_by(50) {
            let gpu = begin + t * 1_000;
            let host = clock.host(gpu).unwrap();
            let wrong = host.ns.abs_diff(of(gpu));
            assert!(wrong <= host.error_ns, "{wrong} {host:?} at {t} us");
            let back = clock.gpu(of(gpu)).unwrap();
            assert!(back.abs_diff(gpu) < 4_500, "{back} {gpu} at {t} us");
        }
    }

    /// Test of a reader that often loses its processor: beyond the last stamps both bounds are extrapolated, may meet, and are then wrong
    /// together.
    #[test]
    fn what_lies_beyond_the_stamps_is_as_uncertain_as_they_are() {
        let mut random = 1u64;
        let mut next = |most: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        let begin = 1_000_000 * MS;
        for run in 0..2_000 {
            let ppm = next(61) as f64 - 30.0;
            let of = |gpu| truth(gpu, 3_000_000_000, ppm);
            let mut clock = Clock::default();
            let mut gpu = begin;
            for _ in 0..2 + next(20) {
                gpu += 1 + next(20 * MS);
                let host = of(gpu);
                clock.learn(gpu, host - next(30_000), host + next(30_000));
            }
            for _ in 0..20 {
                let at = gpu + next(300 * MS);
                let host = clock.host(at).unwrap();
                let wrong = host.ns.abs_diff(of(at));
                assert!(
                    wrong <= host.error_ns,
                    "{wrong} {host:?}, run {run}, {} us beyond",
                    (at - gpu) / 1_000
                );
            }
        }
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

    /// Test of a stamp far from all others: its host time follows from theirs and the possible drift.
    #[test]
    fn a_stamp_alone_has_a_time_by_those_farther_away() {
        let (offset, second) = (5_000_000_000, 1_000 * MS);
        let mut clock = Clock::default();
        // No read tells when the stamp was not there yet.
        clock.learn(second, 0, second + offset + 1_000);
        assert!(clock.host(second).unwrap().error_ns > second);
        let later = 4 * second;
        clock.learn(later, later + offset - 2_000, later + offset + 1_000);
        let host = clock.host(second).unwrap();
        assert!(
            host.ns.abs_diff(second + offset) <= host.error_ns,
            "{host:?}"
        );
        assert!((1_000_000..2_000_000).contains(&host.error_ns), "{host:?}");
        // The conversion does not reach beyond a step.
        let behind = later + MS;
        clock.learn(
            behind,
            behind + 2 * offset - 2_000,
            behind + 2 * offset + 1_000,
        );
        let host = clock.host(behind).unwrap();
        assert!(
            host.ns.abs_diff(behind + 2 * offset) <= host.error_ns,
            "{host:?}"
        );
    }
}
