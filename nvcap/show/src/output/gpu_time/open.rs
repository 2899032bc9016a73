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
    /// The time of each channel in `by_time`, ns, and the time that its work still takes if it is like the timed works of its channel, ns; `u64::MAX`
    /// where none is timed.
    taken: HashMap<ChannelId, (u64, u64)>,
}

/// The most works that go on at once of which it is told how long they take together.
const MOST_AT_ONCE: usize = 64;

impl Open {
    /// Returns the time up to which work may go on, ns, as the next work of a channel begins; 0 if there is none. The channel's own work may go on
    /// until then, however long that is.
    pub(super) fn latest(&self, next: ChannelId) -> u64 {
        let own = self.until.get(&next).copied().unwrap_or(0);
        let others = self.by_time.last().map_or(0, |(until, _)| *until);
        own.max(others)
    }

    /// Lets `ns` pass from a time on, until the next work of a channel begins. Returns for how much of it some work ran, ns, if works are like the
    /// timed ones of their channels; `None` where nothing tells how long one of them takes.
    pub(super) fn passes(&mut self, from: u64, ns: u64, next: ChannelId) -> Option<u64> {
        let going = self.by_time.iter().rev();
        let others = going.take_while(|(until, _)| *until > from);
        let others = others.map(|(_, channel)| *channel);
        // Its own work may go on for longer than others' are taken to.
        let own = self.until.get(&next).filter(|until| **until > from);
        let channels: Vec<ChannelId> = { own.map(|_| next).into_iter() }
            .chain(others.filter(|channel| *channel != next))
            .take(MOST_AT_ONCE)
            .collect();
        let mut longest = (channels.len() < MOST_AT_ONCE).then_some(0);
        for channel in &channels {
            match self.taken.get_mut(channel) {
                Some((_, u64::MAX)) => longest = None,
                Some((_, about)) => {
                    longest = longest.max(longest.map(|_| *about));
                    *about = about.saturating_sub(ns);
                }
                None => {}
            }
        }
        longest.map(|l: u64| l.min(ns))
    }

    /// Takes the next work of a channel: what the channel did before has ended. `about`: the time that it takes if it is like the timed works of its
    /// channel, ns; `u64::MAX` where none is timed.
    pub(super) fn begins(&mut self, channel: ChannelId, at: u64, end: End, about: u64) {
        self.until.remove(&channel);
        if let Some((taken, _)) = self.taken.remove(&channel) {
            self.by_time.remove(&(taken, channel));
        }
        let until = match end {
            End::At(_) => return,
            End::Before(latest) => latest,
            End::Unknown => u64::MAX,
        };
        let taken = until.min(at.saturating_add(LONGEST_NS));
        self.until.insert(channel, until);
        self.taken.insert(channel, (taken, about));
        self.by_time.insert((taken, channel));
    }
}
