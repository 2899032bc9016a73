//! End of work, and its duration, which is never 0.

use crate::decode::event::{DurationBy, GpuDuration};

/// The end of an entry's kernels, on the GPU's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub at: u64,
    /// The most by which `at` may be wrong, ns.
    pub error_ns: u64,
    /// Evidence for the end.
    pub by: DurationBy,
}

impl End {
    /// Returns the duration from `from` to this end, which is at least `least` ns. If the end may lie before that, the middle of the
    /// possible durations is taken.
    pub(super) fn behind(self, from: u64, least: u64) -> GpuDuration {
        let ns = self.at.saturating_sub(from);
        let (ns, error_ns) = match ns > least {
            true => (ns, self.error_ns),
            false => {
                let latest = self.at.saturating_add(self.error_ns);
                let most = latest.saturating_sub(from).max(least.saturating_add(1));
                let middle = least + (most - least).div_ceil(2);
                // If the whole range of the end lies before the least one, the end or its error is wrong.
                let wrong = from.saturating_add(least).saturating_sub(latest);
                (middle, (middle - least).saturating_add(wrong))
            }
        };
        GpuDuration {
            ns,
            error_ns,
            by: self.by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_takes_no_time() {
        let of = |at, error_ns, from, least| {
            let by = DurationBy::Release;
            let told = End { at, error_ns, by }.behind(from, least);
            (told.ns, told.error_ns)
        };
        assert_eq!(of(5_000, 200, 1_000, 512), (4_000, 200));
        // It may have ended by 2,100: durations of 512 to 1,100 are possible, which are all within the error.
        assert_eq!(of(1_400, 700, 1_000, 512), (806, 294));
        // The end may lie before the beginning: durations of 0 to 300 are possible.
        assert_eq!(of(900, 400, 1_000, 0), (150, 150));
        // Even for contradictory times, the error covers the contradiction.
        assert_eq!(of(100, 50, 1_000, 0), (1, 851));
        assert_eq!(of(1_000, 0, 1_000, 0), (1, 1));
    }
}
