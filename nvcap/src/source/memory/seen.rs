//! One channel as it was seen, at the best of several moments.

use std::time::{Duration, Instant};

use super::{
    find::{self, Found, Places},
    history::{range_of, read_ring, used_again},
    notifier::Notifier,
    process::Peek,
    snapshot::Options,
};
use crate::record::{At, Channel, ChannelId, Segment, Submission};

/// A channel and what was read of it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// As a record, with what is known.
    pub channel: Channel,
    /// How it was found.
    pub found: Found,
    /// GP_GET when its ring was read.
    pub get: u32,
    /// GP_PUT when its ring was read: entries go up to it.
    pub put: u32,
    /// Its newest entries, oldest first, a submission each: where doorbells were rung is not known.
    pub submissions: Vec<Submission>,
    /// The ring's first entries, where they are not among the newest and the ring has not gone round: there libcuda
    /// says which classes the subchannels have.
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

impl Seen {
    /// How many of the newest `last` entries were given up.
    pub(super) fn missing(&self, last: u32) -> u32 {
        let given_up = |s: &&Submission| {
            let has_bytes = |s: &Segment| range_of(s.entry).is_some_and(|(_, len)| len > 0);
            let gone = |s: &Segment| s.bytes.is_empty() && has_bytes(s);
            s.segments.iter().any(gone)
        };
        let newest = self.submissions.iter().rev().take(last as usize);
        let short = last.saturating_sub(self.submissions.len() as u32);
        short.min(self.overwritten) + newest.filter(given_up).count() as u32
    }
}

/// Reads a channel's newest entries. Of one that goes on, memory is used again all the while: how much of what was asked
/// for is left in it changes from one millisecond to the next, and the best of several readings is taken.
pub(super) fn see(
    memory: &impl Peek,
    places: &Places<'_>,
    at: At,
    id: ChannelId,
    found: Found,
    options: Options<'_>,
    patience: &mut Duration,
) -> Seen {
    let mut best = see_once(memory, places, at, id, found, options);
    while best.elsewhere == 0 && best.missing(options.last) > 0 && !patience.is_zero() {
        let begun = Instant::now();
        let now = find::get_put(memory, found.userd);
        if !now.is_ok_and(|(_, put)| put != best.put) {
            break;
        }
        // The ring alone first: it tells whether this is a better moment in a sixth of the time.
        let worth = |again| again < best.missing(options.last);
        if used_again(memory, &found, options.last).is_ok_and(worth) {
            let seen = see_once(memory, places, at, id, found, options);
            if !seen.ring_gone && seen.missing(options.last) < best.missing(options.last) {
                best = seen;
            }
        }
        *patience = patience.saturating_sub(begun.elapsed());
    }
    best
}

fn see_once(
    memory: &impl Peek,
    places: &Places<'_>,
    at: At,
    id: ChannelId,
    found: Found,
    options: Options<'_>,
) -> Seen {
    let mut seen = Seen {
        channel: found.channel(at, id),
        found,
        get: found.get,
        put: found.put,
        submissions: Vec::new(),
        first: Vec::new(),
        overwritten: 0,
        recycled: 0,
        unreadable: 0,
        elsewhere: 0,
        ring_gone: false,
        notifier: None,
    };
    if read_ring(memory, places, &mut seen, options.last, options.before).is_err() {
        seen.ring_gone = true;
    }
    seen
}
