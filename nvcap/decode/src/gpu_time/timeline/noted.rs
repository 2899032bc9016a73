//! Entries as they come from the source.

use crate::decode::event::QueuedBy;
use crate::gpu_time::unit::Unit;

/// Longest time, before the trap of its doorbell, at which an entry's stamp can have been seen, ns. A stamp seen earlier is another
/// program's.
const HELD_UP_NS: u64 = 1_000_000;
/// Time after an entry's doorbell within which its times can be told from those on the other side of a step of the clocks, ns.
const STEPPED_NS: u64 = 2_500_000_000;

/// An entry that was noted.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) position: u64,
    /// Time of the doorbell, or of the look that found the entry, ns.
    pub(super) doorbell: u64,
    /// True if the doorbell was not later than that time, and may have been earlier.
    pub(super) observed: bool,
    /// Latest time at which the entry was not in the ring yet, if known, ns.
    pub(super) absent: Option<u64>,
    pub(super) unit: Unit,
    /// Number of steps of the clocks before the entry.
    pub(super) steps: u64,
}

impl Noted {
    /// Tells whether one of the clocks stepped since the entry's doorbell, and so long after it that the side of the step to which its
    /// times belong is unknown.
    ///
    /// `steps` is the number of steps of the clocks until now, and `read_ns` the time up to which semaphores were read.
    pub(super) fn has_stepped(&self, steps: u64, read_ns: u64) -> bool {
        let is_long = read_ns > self.doorbell.saturating_add(STEPPED_NS);
        is_long && self.steps != steps
    }

    /// Returns a time at which the entry was not in the ring, ns.
    pub(super) fn not_before(&self) -> u64 {
        match self.observed {
            false => self.doorbell.saturating_sub(HELD_UP_NS),
            true => self.absent.unwrap_or(0),
        }
    }

    /// Returns the evidence for the time since which the entry was in the ring.
    pub(super) fn queued_by(&self) -> Option<QueuedBy> {
        match self.observed {
            false => Some(QueuedBy::Doorbell),
            true => self.absent.map(|_| QueuedBy::Look),
        }
    }
}
