//! Durations of one kind: count, sum, least, greatest, and quantiles to 3 %.

/// Number of buckets for each doubling of the duration: a bucket is 3 % wide.
const STEPS: f64 = 24.0;
/// Number of buckets: they reach up to 2^48 ns, three days.
const BUCKETS: usize = 48 * 24 + 1;

/// Durations of one kind: count, sum, least, greatest, and quantiles to 3 %.
#[derive(Clone, Debug, Default)]
pub(crate) struct Durations {
    pub count: u64,
    pub sum_ns: u64,
    pub least_ns: u64,
    pub most_ns: u64,
    /// Number of durations in each bucket.
    buckets: Vec<u32>,
}

impl Durations {
    pub(crate) fn add(&mut self, ns: u64) {
        self.least_ns = match self.count {
            0 => ns,
            _ => self.least_ns.min(ns),
        };
        self.most_ns = self.most_ns.max(ns);
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        let bucket = ((ns.max(1) as f64).log2() * STEPS) as usize;
        let bucket = bucket.min(BUCKETS - 1);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(n) = self.buckets.get_mut(bucket) {
            *n = n.saturating_add(1);
        }
    }

    /// Returns a figure of these durations; none where there are none.
    pub(crate) fn known<T>(&self, figure: T) -> Option<T> {
        (self.count > 0).then_some(figure)
    }

    pub(crate) fn mean_ns(&self) -> u64 {
        self.sum_ns / self.count.max(1)
    }

    /// Returns the duration that this share of all (0 to 1) does not exceed.
    pub(crate) fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        if wanted >= self.count {
            return self.most_ns;
        }
        let mut before = 0;
        for (bucket, n) in self.buckets.iter().enumerate() {
            let n = u64::from(*n);
            if before + n < wanted {
                before += n;
                continue;
            }
            // As if those of a bucket lay evenly in the part of it that has any.
            let edge = |steps: usize| (steps as f64 / STEPS).exp2();
            let inside = |ns: f64| ns.clamp(self.least_ns as f64, self.most_ns as f64);
            let (from, until) = (inside(edge(bucket)), inside(edge(bucket + 1)));
            let part = ((wanted - before) as f64 - 0.5) / n as f64;
            return (from + (until - from) * part) as u64;
        }
        self.most_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_three_percent() {
        let mut all = Durations::default();
        assert_eq!((all.mean_ns(), all.quantile_ns(0.5)), (0, 0));
        for ns in 1..=10_000 {
            all.add(ns);
        }
        assert_eq!((all.count, all.least_ns, all.most_ns), (10_000, 1, 10_000));
        assert_eq!(all.mean_ns(), 5_000);
        for share in [0.1, 0.5, 0.9, 0.99, 1.0] {
            let wrong = all.quantile_ns(share) as f64 / (share * 10_000.0);
            assert!((0.97..1.03).contains(&wrong), "{share}: {wrong}");
        }
        // Those of one bucket are told apart, too: a mean above all quantiles would be a contradiction.
        let mut close = Durations::default();
        for ns in 1_010..1_030 {
            close.add(ns);
        }
        let of = |share| close.quantile_ns(share);
        assert!(of(0.01) <= 1_011 && (1_018..=1_021).contains(&of(0.5)) && of(0.99) >= 1_028);
        all.add(0);
        all.add(u64::MAX);
        assert_eq!(all.quantile_ns(1.0), u64::MAX);
    }
}
