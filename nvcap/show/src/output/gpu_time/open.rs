//! Works whose ends are not known, and the times up to which they may go on.

use std::collections::{BTreeSet, HashMap};

use nvcap_decode::record::ChannelId;

/// Longest time for which work of an unknown end is taken to go on where its channel is not used again, ns.
const LONGEST_NS: u64 = 10_000_000_000;

/// End of a stretch of work, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// At this time.
    At(u64),
    /// At an unknown time, not later than this.
    Before(u64),
    Unknown,
}

/// The last work of each channel, where its end is not known.
#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    /// Time by which each has ended at the latest, ns: `u64::MAX` where nothing tells it.
    until: HashMap<ChannelId, u64>,
    /// Channels by the time up to which their work is taken to go on: `until`, but at most [`LONGEST_NS`] from its begin.
    by_time: BTreeSet<(u64, ChannelId)>,
    /// Time of each channel in `by_time`, ns.
    taken: HashMap<ChannelId, u64>,
}

impl Open {
    /// Returns the time up to which work may go on, ns, as the next work of a channel begins; 0 if there is none. The channel's own work may go on
    /// until then, however long that is.
    pub(super) fn latest(&self, next: ChannelId) -> u64 {
        let own = self.until.get(&next).copied().unwrap_or(0);
        let others = self.by_time.last().map_or(0, |(until, _)| *until);
        own.max(others)
    }

    /// Takes the next work of a channel: what the channel did before has ended.
    pub(super) fn begins(&mut self, channel: ChannelId, at: u64, end: End) {
        self.until.remove(&channel);
        if let Some(taken) = self.taken.remove(&channel) {
            self.by_time.remove(&(taken, channel));
        }
        let until = match end {
            End::At(_) => return,
            End::Before(latest) => latest,
            End::Unknown => u64::MAX,
        };
        let taken = until.min(at.saturating_add(LONGEST_NS));
        self.until.insert(channel, until);
        self.taken.insert(channel, taken);
        self.by_time.insert((taken, channel));
    }
}
