//! Plain data of a look at a process: the extent of the look, and the data that was read of each channel.

use std::time::Duration;

use super::{
    notifier::Notifier,
    scan::{Effort, FoundRing},
};
use nvcap_decode::record::{Channel, Segment, Submission};
use nvcap_decode::wire::entry;

/// Extent of a look.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotOptions<'a> {
    /// Number of each channel's newest entries that are read. More are read if more are not fetched yet.
    pub last: u32,
    /// The least number of fetched entries that are read as well, before the entries that are not fetched yet. The running work is among
    /// them.
    pub before: u32,
    /// Effort of the search.
    pub effort: Effort,
    /// Channels that the user names.
    pub known_rings: &'a [KnownRing],
    /// Time for reading channels again, for all channels together. A channel is read again if its process reused memory before all of it
    /// was read.
    pub patience: Duration,
}

/// A channel that the user names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRing {
    /// GPU by device file minor number, if the user names one.
    pub gpu: Option<u32>,
    /// Address of the ring.
    pub ring: u64,
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Address of USERD.
    pub userd: u64,
    /// Work-submit token.
    pub token: Option<u32>,
}

/// A channel, and the data that was read from it.
#[derive(Clone, Debug)]
pub struct ChannelSnapshot {
    /// Channel as a record, with the facts that are known.
    pub channel: Channel,
    /// Ring of the channel as it was found, with the evidence.
    pub found: FoundRing,
    /// GP_GET at the time the ring was read.
    pub get: u32,
    /// GP_PUT at the time the ring was read, which is the end of the entries.
    pub put: u32,
    /// Newest entries of the channel, oldest first, each as a submission of its own because the entries at which doorbells were rung are
    /// not known.
    pub submissions: Vec<Submission>,
    /// First entries of the ring, if the ring has not wrapped and these are not among the newest. libcuda binds the classes of the
    /// subchannels in them.
    pub first: Vec<Submission>,
    /// Number of entries that were given up because their slots may have been rewritten while they were read.
    pub overwritten: u32,
    /// Number of entries whose pushbuffer bytes were reused by newer entries.
    pub recycled: u32,
    /// Number of pushbuffer bytes that could not be read.
    pub unreadable: u64,
    /// Number of entries whose address is not mapped in the process.
    pub elsewhere: u32,
    /// True if the ring could not be read, or could no longer be read.
    pub ring_gone: bool,
    /// Error notifier of the channel, by the order of channels.
    pub notifier: Option<Notifier>,
}

impl ChannelSnapshot {
    /// Returns the number of the newest `last` entries that were given up.
    pub(super) fn missing(&self, last: u32) -> u32 {
        let given_up = |s: &&Submission| {
            let has_bytes =
                |s: &Segment| entry::segment_of(s.entry, 0).is_some_and(|(_, len)| len > 0);
            let gone = |s: &Segment| s.bytes.is_empty() && has_bytes(s);
            s.segments.iter().any(gone)
        };
        let newest = self.submissions.iter().rev().take(last as usize);
        let short = last.saturating_sub(self.submissions.len() as u32);
        short.min(self.overwritten) + newest.filter(given_up).count() as u32
    }
}
