//! Totals from samples, with the interval that they are in. Pure.
//!
//! Between two readings of a channel `n` submissions came, which is known exactly; some blocks of them were decoded, the `j`th of `m_j` submissions
//! with `x_j` of something. The total is estimated as `n * sum(x_j) / sum(m_j)`, summed up over all readings. Its variance is estimated from how
//! much the blocks differ (the ratio estimator of cluster sampling); where the blocks were everything there is none.

/// The half of a 95 % interval, in standard deviations.
pub(crate) const Z95: f64 = 1.959_964;

/// A total that is being estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub total: f64,
    /// Its variance.
    pub variance: f64,
}

impl Estimate {
    /// The half width of its 95 % interval.
    pub fn error(&self) -> f64 {
        Z95 * self.variance.sqrt()
    }

    /// Adds an independent one.
    pub(crate) fn add(&mut self, other: Self) {
        self.total += other.total;
        self.variance += other.variance;
    }
}

/// A block: submissions that were decoded, and how many of something they had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub read: u64,
    pub found: f64,
}

/// The total in `all` submissions.
pub(super) fn estimate(all: u64, blocks: &[Block]) -> Estimate {
    let read: u64 = blocks.iter().map(|b| b.read).sum();
    let found: f64 = blocks.iter().map(|b| b.found).sum();
    let (all, sum, count) = (
        all.max(read) as f64,
        read.max(1) as f64,
        blocks.len() as f64,
    );
    let ratio = found / sum;
    let squares: f64 = { blocks.iter() }
        .map(|b| (b.found - ratio * b.read as f64).powi(2))
        .sum();
    let squared = match blocks.len() {
        // There is no other block to compare with: the variance is that of things that come by chance.
        0 | 1 => ratio * ratio.max(1.0) / sum,
        // The variance of the ratio of sums, from how far each block is from that ratio.
        _ => squares / (count - 1.0) * count / (sum * sum),
    };
    let left = (1.0 - sum / all).max(0.0);
    Estimate {
        total: all * ratio,
        variance: all * all * left * squared,
    }
}

/// A part of looks, and its 95 % interval (Wilson's).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The share.
    pub share: f64,
    /// The interval's ends.
    pub interval: (f64, f64),
}

impl Share {
    /// Makes the share of `hits` in `looks`; none where there was no look.
    pub(crate) fn new(hits: f64, looks: f64) -> Option<Self> {
        if looks < 1.0 {
            return None;
        }
        let (p, z2) = (hits / looks, Z95 * Z95);
        let middle = p + z2 / (2.0 * looks);
        let half = Z95
            * (p * (1.0 - p) / looks + z2 / (4.0 * looks * looks))
                .max(0.0)
                .sqrt();
        let by = 1.0 + z2 / looks;
        Some(Self {
            share: p,
            interval: (
                // The share lies within, also where rounding says otherwise: the upper end of all looks was 1 - 2^-52.
                ((middle - half) / by).clamp(0.0, p),
                ((middle + half) / by).clamp(p, 1.0),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_lies_within_its_interval() {
        for looks in 1..2000 {
            for hits in [0, 1, looks / 2, looks - 1, looks] {
                let share = Share::new(f64::from(hits), f64::from(looks)).unwrap();
                let (lower, upper) = share.interval;
                assert!((lower..=upper).contains(&share.share), "{share:?}");
            }
        }
    }

    #[test]
    fn what_is_read_whole_has_no_error() {
        let blocks = [Block {
            read: 40,
            found: 10.0,
        }];
        let whole = estimate(40, &blocks);
        assert_eq!((whole.total, whole.error()), (10.0, 0.0));
        assert!(estimate(400, &blocks).error() > 0.0);
        assert_eq!(estimate(7, &[]).total, 0.0);
    }

    /// Launches come by chance in 30 % of submissions: 95 of 100 intervals should hold the truth.
    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut held, mut sum) = (0, 0.0);
        for _ in 0..400 {
            let (mut total, mut truth) = (Estimate::default(), 0.0);
            for _ in 0..40 {
                let all: Vec<bool> = (0..500).map(|_| random.f64() < 0.3).collect();
                truth += all.iter().filter(|x| **x).count() as f64;
                let block = |n: usize| {
                    let from = n * 125 + random.usize(..=125 - 12);
                    let found = all[from..from + 12].iter().filter(|x| **x).count();
                    Block {
                        read: 12,
                        found: found as f64,
                    }
                };
                let blocks: Vec<Block> = (0..4).map(block).collect();
                total.add(estimate(500, &blocks));
            }
            held += u32::from((total.total - truth).abs() <= total.error());
            sum += total.total / truth;
        }
        assert!((0.995..1.005).contains(&(sum / 400.0)), "{sum}");
        assert!((368..=394).contains(&held), "{held} of 400");
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
