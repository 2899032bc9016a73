//! Time of the regular look at everything, and the losses that the BPF programs' counters show since the last
//! look.
//!
//! Invariant: each loss that a counter shows is reported once.

use nvcap_common as c;

use nvcap_decode::record::{Lost, RecordKind};

/// Time between two looks at the channels from outside, ns.
pub(super) const PATROL_NS: u64 = 200_000_000;

/// Counters that were reported at the last patrol.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patrol {
    next: u64,
    dropped: u64,
    cached_put_wrong: u64,
    left_out: u64,
    scans: u64,
}

impl Patrol {
    /// Tells whether the next patrol is due.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + PATROL_NS;
        }
        due
    }

    /// Tells whether a record of driver calls or of processes was dropped since the trace began.
    pub(super) fn dropped_any(&self) -> bool {
        self.dropped > 0
    }

    /// Returns the losses since the last patrol. `left_out`: number of driver calls that the kernel let pass
    /// unseen.
    pub(super) fn losses(&mut self, now: &c::Stats, left_out: u64) -> Vec<Lost> {
        if now.scans > self.scans {
            log::debug!("{} scans at {} doorbells", now.scans, now.hits);
            self.scans = now.scans;
        }
        let mut lost = Vec::new();
        let records = |kind, now: u64, before: u64| {
            let count = now.saturating_sub(before);
            (count > 0).then_some(Lost::Records { kind, count })
        };
        lost.extend(records(RecordKind::DriverCalls, now.dropped, self.dropped));
        let wrong = now.cached_put_wrong.saturating_sub(self.cached_put_wrong);
        if wrong > 0 {
            let why = format!(
                "channels on which the process's own copy of GP_PUT was found ahead of GP_PUT: {wrong}; up to {} submissions of each before that may differ from those submitted; set NVCAP_NO_CACHED_PUT=1 to do without that copy",
                c::GET_EVERY
            );
            lost.push(Lost::Untraced { why });
        }
        lost.extend(records(RecordKind::PreemptedCalls, left_out, self.left_out));
        self.dropped = now.dropped;
        self.cached_put_wrong = now.cached_put_wrong;
        self.left_out = left_out;
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_told_once() {
        let mut patrol = Patrol::default();
        assert!(!patrol.dropped_any());
        let stats = c::Stats {
            dropped: 3,
            cached_put_wrong: 1,
            ..c::Stats::default()
        };
        let first = patrol.losses(&stats, 2);
        assert!(matches!(
            &first[..],
            [
                Lost::Records { count: 3, .. },
                Lost::Untraced { .. },
                Lost::Records { count: 2, .. }
            ]
        ));
        assert!(patrol.dropped_any());
        assert!(patrol.losses(&stats, 2).is_empty());
        let more = c::Stats {
            dropped: 5,
            ..stats
        };
        assert!(matches!(
            &patrol.losses(&more, 2)[..],
            [Lost::Records { count: 2, .. }]
        ));
    }

    #[test]
    fn it_is_due_at_its_pace() {
        let mut patrol = Patrol::default();
        assert!(patrol.is_due(1000) && !patrol.is_due(999 + PATROL_NS));
        assert!(patrol.is_due(1000 + PATROL_NS));
    }
}
