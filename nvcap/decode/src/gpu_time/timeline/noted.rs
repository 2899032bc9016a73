//! Entries as they come from the source.

use crate::decode::event::QueuedBy;
use crate::gpu_time::unit::Unit;

/// Longest time before the trap of its doorbell at which an entry's stamp can have been seen, ns. Later ones: another program's.
const HELD_UP_NS: u64 = 1_000_000;
/// Time behind an entry's doorbell in which its times are told from those on the other side of a step of the clocks, ns.
const STEPPED_NS: u64 = 2_500_000_000;

/// An entry that was noted.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) position: u64,
    /// Time of its doorbell, or of the look that found it, ns.
    pub(super) doorbell: u64,
    /// True if the doorbell was not later than that time, and may have been before.
    pub(super) observed: bool,
    /// The latest time at which the entry was not there yet, where known, ns.
    pub(super) absent: Option<u64>,
    pub(super) unit: Unit,
    /// Steps of the clocks before it.
    pub(super) steps: u64,
}

impl Noted {
    /// Tells whether one of the clocks stepped since its doorbell, and so long behind it that nothing tells which side its times are of.
    ///
    /// `steps` and `read_ns`: of the clocks until now, and the time up to which semaphores were read.
    pub(super) fn has_stepped(&self, steps: u64, read_ns: u64) -> bool {
        let is_long = read_ns > self.doorbell.saturating_add(STEPPED_NS);
        is_long && self.steps != steps
    }

    /// A time at which the entry was not in the ring, ns.
    pub(super) fn not_before(&self) -> u64 {
        match self.observed {
            false => self.doorbell.saturating_sub(HELD_UP_NS),
            true => self.absent.unwrap_or(0),
        }
    }

    /// Returns the evidence for the time since which it was in the ring.
    pub(super) fn queued_by(&self) -> Option<QueuedBy> {
        match self.observed {
            false => Some(QueuedBy::Doorbell),
            true => self.absent.map(|_| QueuedBy::Look),
        }
    }
}
