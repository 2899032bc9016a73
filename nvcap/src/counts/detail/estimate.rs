//! Totals from samples, with the interval that they are in. Pure.
//!
//! Between two readings of a channel `n` submissions came, which is known exactly; a block of `m` of them was decoded and had `x`
//! of something. The total is estimated as the sum of `n * x / m` over all readings. Its variance is estimated from how much `x / m` differs from
//! one reading to the next, as is usual for samples taken in turn; where the block was everything there is none.

/// The half of a 95 % interval, in standard deviations.
pub(crate) const Z95: f64 = 1.959_964;

/// A total that is being estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    /// The estimate.
    pub total: f64,
    /// Its variance.
    pub variance: f64,
}

impl Estimate {
    /// The half width of its 95 % interval.
    pub(crate) fn error(&self) -> f64 {
        Z95 * self.variance.sqrt()
    }

    /// Adds an independent one.
    pub(crate) fn add(&mut self, other: Self) {
        self.total += other.total;
        self.variance += other.variance;
    }
}

/// One block: of `all` submissions `read` were decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub all: u64,
    pub read: u64,
}

impl Block {
    /// What `found` in this block adds to a total. `before`: how many there were for each submission in the block before, if
    /// there was one.
    pub(super) fn estimate(self, found: f64, before: Option<f64>) -> (Estimate, f64) {
        let (all, read) = (self.all.max(self.read) as f64, self.read.max(1) as f64);
        let ratio = found / read;
        // Without another block to compare with, as if each were there or not by chance.
        let squared = match before {
            Some(before) => (ratio - before).powi(2) / 2.0,
            None => ratio * ratio.max(1.0) / read,
        };
        let left = 1.0 - read / all;
        let estimate = Estimate {
            total: all * ratio,
            variance: all * all * left.max(0.0) * squared,
        };
        (estimate, ratio)
    }
}

/// A part of looks, and its 95 % interval (Wilson's).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    /// The share.
    pub share: f64,
    /// The interval's ends.
    pub interval: (f64, f64),
}

impl Share {
    /// `hits` of `looks`, of which there is at least one.
    pub(crate) fn new(hits: f64, looks: f64) -> Option<Self> {
        if looks < 1.0 {
            return None;
        }
        let (p, z2) = (hits / looks, Z95 * Z95);
        let middle = p + z2 / (2.0 * looks);
        let half = Z95 * (p * (1.0 - p) / looks + z2 / (4.0 * looks * looks)).max(0.0).sqrt();
        let by = 1.0 + z2 / looks;
        Some(Self {
            share: p,
            interval: (
                ((middle - half) / by).clamp(0.0, 1.0),
                ((middle + half) / by).clamp(0.0, 1.0),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_whole_has_no_error() {
        let block = Block { all: 40, read: 40 };
        let (estimate, ratio) = block.estimate(10.0, None);
        assert_eq!((estimate.total, estimate.error(), ratio), (10.0, 0.0, 0.25));
    }

    /// Launches come by chance in 30 % of submissions: 95 of 100 intervals should hold the truth.
    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut held, mut sum) = (0, 0.0);
        for _ in 0..400 {
            let (mut total, mut truth, mut before) = (Estimate::default(), 0.0, None);
            for _ in 0..60 {
                let all: Vec<bool> = (0..500).map(|_| random.f64() < 0.3).collect();
                truth += all.iter().filter(|x| **x).count() as f64;
                let from = random.usize(..=500 - 32);
                let found = all[from..from + 32].iter().filter(|x| **x).count();
                let block = Block { all: 500, read: 32 };
                let (estimate, ratio) = block.estimate(found as f64, before);
                total.add(estimate);
                before = Some(ratio);
            }
            held += u32::from((total.total - truth).abs() <= total.error());
            sum += total.total / truth;
        }
        assert!((0.995..1.005).contains(&(sum / 400.0)), "{sum}");
        assert!((368..=396).contains(&held), "{held} of 400");
    }

    #[test]
    fn shares() {
        assert_eq!(Share::new(0.0, 0.0), None);
        let share = Share::new(50.0, 100.0).unwrap();
        assert!((share.interval.0 - 0.404).abs() < 1e-3 && (share.interval.1 - 0.596).abs() < 1e-3);
        let none = Share::new(0.0, 100.0).unwrap();
        assert!(none.interval.0 == 0.0 && (0.03..0.04).contains(&none.interval.1));
    }
}
