//! Account of a channel's time.

use super::durations::Durations;
use super::intervals::Intervals;
use nvcap_decode::decode::event::Engine;

/// Account of a channel's time.
#[derive(Clone, Debug, Default)]
pub(super) struct ChannelTime {
    pub(super) pid: u32,
    pub(super) engine: Engine,
    pub(super) gpu: Option<u32>,
    pub(super) work: Intervals,
    /// Time of entries in the ring before the GPU began them: the middle between the least and the most that it can be, and these two.
    pub(super) queued: Durations,
    pub(super) queued_least: Durations,
    pub(super) queued_most: Durations,
    /// The sum of the channel's waits for semaphores, ns.
    pub(super) waited_ns: u64,
    /// Number of entries whose times are known, and their sum, ns.
    pub(super) timed: (u64, u64),
}

impl ChannelTime {
    /// Returns the mean time of the entries whose times are known, ns; `u64::MAX` where there are none.
    pub(super) fn mean_ns(&self) -> u64 {
        self.timed.1.checked_div(self.timed.0).unwrap_or(u64::MAX)
    }
}
