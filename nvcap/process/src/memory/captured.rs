//! Plain data of a look at a process: what is read of a channel, and how far the look goes.

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
    /// So many of each channel's newest entries are read; more where more are not fetched yet.
    pub last: u32,
    /// At least so many entries before those that are not fetched yet are read too: what runs is among them.
    pub before: u32,
    /// Effort of the search.
    pub effort: Effort,
    /// Channels that the user names.
    pub known_rings: &'a [KnownRing],
    /// For how long, all channels together, a channel is read again whose memory was used again before all was read that was asked
    /// for.
    pub patience: Duration,
}

/// A channel that the user names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRing {
    /// GPU by device file minor number, where the user says.
    pub gpu: Option<u32>,
    /// Address of the ring.
    pub ring: u64,
    /// Entries, a power of two.
    pub entries: u32,
    /// Address of USERD.
    pub userd: u64,
    /// Work-submit token.
    pub token: Option<u32>,
}

/// A channel and what was read of it.
#[derive(Clone, Debug)]
pub struct ChannelSnapshot {
    /// Channel as a record, with what is known.
    pub channel: Channel,
    /// Ring of the channel as it was found, with the evidence.
    pub found: FoundRing,
    /// GP_GET when its ring was read.
    pub get: u32,
    /// GP_PUT when its ring was read: entries go up to it.
    pub put: u32,
    /// Its newest entries, oldest first, a submission each: where doorbells were rung is not known.
    pub submissions: Vec<Submission>,
    /// The ring's first entries, where it has not gone round and they are not among the newest: libcuda binds the classes of the
    /// subchannels there.
    pub first: Vec<Submission>,
    /// Entries given up because their slots may have been written again while they were read.
    pub overwritten: u32,
    /// Entries whose pushbuffer bytes were used again by newer ones.
    pub recycled: u32,
    /// Pushbuffer bytes that could not be read.
    pub unreadable: u64,
    /// Entries that point to memory the process does not map at that address.
    pub elsewhere: u32,
    /// The ring could not be read (any more).
    pub ring_gone: bool,
    /// Its error notifier, by the order of channels.
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
