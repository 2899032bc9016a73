//! Notices during the trace that nvcap does not keep up. The sum is in the ledger.
//!
//! Invariant: at most one notice is given in [`NOTICE_NS`], and none if no doorbell found the buffer full since the
//! last one.

use nvcap_common as c;

/// The shortest time from one notice to the next, ns.
const NOTICE_NS: u64 = 5_000_000_000;

/// State of the notices so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lag {
    deferred: u64,
    at: Option<u64>,
}

impl Lag {
    /// Returns the notice for the user, if one is due now.
    pub(super) fn notice(&mut self, now: u64, stats: &c::Stats) -> Option<String> {
        let more = stats.deferred.saturating_sub(self.deferred);
        let is_early = self.at.is_some_and(|at| now < at + NOTICE_NS);
        if more == 0 || is_early {
            return None;
        }
        *self = Self {
            deferred: stats.deferred,
            at: Some(now),
        };
        Some(format!(
            "the trace does not keep up: doorbells that found its buffer full since this was last said: {more}. What they rang for is \
             fetched from the rings later, and is missing where it is overwritten before. A larger --buffer helps over a burst; \
             nvcap -s takes least for each submission, and nvcap --batch or --duty captures fewer doorbells"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_at_once_and_then_now_and_again() {
        let mut lag = Lag::default();
        let mut told = |now, deferred| {
            let stats = c::Stats {
                deferred,
                ..c::Stats::default()
            };
            lag.notice(now, &stats)
        };
        assert_eq!(told(1_000, 0), None);
        let first = told(2_000, 7).unwrap();
        assert!(first.contains("last said: 7."), "{first}");
        assert_eq!(told(3_000, 9), None);
        assert_eq!(told(1_999 + NOTICE_NS, 9), None);
        let second = told(2_000 + NOTICE_NS, 12).unwrap();
        assert!(second.contains("last said: 5."), "{second}");
        assert_eq!(told(9 * NOTICE_NS, 12), None);
    }
}
