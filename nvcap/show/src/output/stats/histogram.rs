//! Histograms by powers of two, drawn as `bpftrace` draws its own.

use serde_json::{Value, json};

/// Columns of the longest bar.
const BAR: usize = 40;

/// Histogram with a bucket from each power of two to the next.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    /// Numbers of values of 0, of 1, of 2 and 3, of 4 to 7, and so on.
    buckets: [u64; 65],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; 65] }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, value: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        if let Some(n) = self.buckets.get_mut(bucket) {
            *n += 1;
        }
    }

    /// Returns the buckets from the first to the last that have a value: the least value of each, and its number of values.
    fn filled(&self) -> Vec<(u64, u64)> {
        let first = self.buckets.iter().position(|n| *n > 0);
        let last = self.buckets.iter().rposition(|n| *n > 0);
        let Some((first, last)) = first.zip(last) else {
            return Vec::new();
        };
        let all = self.buckets.iter().enumerate();
        all.take(last + 1)
            .skip(first)
            .map(|(bucket, n)| (least(bucket), *n))
            .collect()
    }

    /// One line a bucket, with the bucket's least value in words; none where there are no values.
    pub(super) fn lines(&self, words: impl Fn(u64) -> String) -> Vec<String> {
        let filled = self.filled();
        let most = filled.iter().map(|(_, n)| *n).max().unwrap_or(0).max(1);
        let mut lines = Vec::new();
        for (from, n) in filled {
            // Rounded up: a bucket with at least one value has a bar.
            let long = (u128::from(n) * BAR as u128).div_ceil(u128::from(most)) as usize;
            let bounds = match from {
                0 => "[0]".to_owned(),
                1 => format!("[{}]", words(1)),
                _ => format!("[{}, {})", words(from), words(from.saturating_mul(2))),
            };
            lines.push(format!("{bounds:<24} {n:>10} |{:<BAR$}|", "@".repeat(long)));
        }
        lines
    }

    pub(super) fn json(&self) -> Value {
        self.filled()
            .into_iter()
            .map(|(from, n)| json!({"from": from, "count": n}))
            .collect()
    }
}

/// The least value of a bucket.
fn least(bucket: usize) -> u64 {
    match bucket {
        0 => 0,
        _ => 1 << (bucket - 1).min(63),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_lies_in_its_doubling() {
        let mut all = Histogram::default();
        assert!(all.lines(|n| n.to_string()).is_empty());
        assert_eq!(all.json(), json!([]));
        for value in [1, 4, 7, 4, 16, u64::MAX] {
            all.add(value);
        }
        let filled = all.filled();
        assert_eq!(filled.first(), Some(&(1, 1)));
        assert_eq!(filled.get(1), Some(&(2, 0)));
        assert_eq!(filled.get(2), Some(&(4, 3)));
        assert_eq!(filled.last(), Some(&(1 << 63, 1)));
        let lines = all.lines(|n| n.to_string());
        assert_eq!(
            lines[2],
            format!("{:<24} {:>10} |{}|", "[4, 8)", 3, "@".repeat(40))
        );
        assert_eq!(lines[0].matches('@').count(), 14, "{}", lines[0]);
        assert_eq!(lines[1].matches('@').count(), 0);
        let mut zeros = Histogram::default();
        zeros.add(0);
        assert!(zeros.lines(|n| n.to_string())[0].starts_with("[0] "));
    }
}
