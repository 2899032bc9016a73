//! Reading one channel, at the best of several moments.

use std::time::{Duration, Instant};

use super::{
    captured::{ChannelSnapshot, SnapshotOptions},
    history::{read_ring, used_again},
    scan::{self, Found, Places},
};
use crate::procfs::mem::Peek;
use crate::record::{At, ChannelId};

/// Reads a channel's newest entries. Of one that goes on, memory is used again all the while: how much of what was asked
/// for is left in it changes from one millisecond to the next, and the best of several readings is taken.
pub(super) fn see(
    memory: &impl Peek,
    places: &Places<'_>,
    at: At,
    id: ChannelId,
    found: Found,
    options: SnapshotOptions<'_>,
    patience: &mut Duration,
) -> ChannelSnapshot {
    let mut best = see_once(memory, places, at, id, found, options);
    while best.elsewhere == 0 && best.missing(options.last) > 0 && !patience.is_zero() {
        let begun = Instant::now();
        let now = scan::get_put(memory, found.userd);
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
    options: SnapshotOptions<'_>,
) -> ChannelSnapshot {
    let mut seen = ChannelSnapshot {
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
