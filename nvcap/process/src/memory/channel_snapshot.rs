//! Reads one channel several times, and keeps the best reading.

use std::time::{Duration, Instant};

use super::{
    captured::{ChannelSnapshot, SnapshotOptions},
    history::{read_ring, used_again},
    scan::{self, FoundRing, Places},
};
use crate::procfs::mem::ReadMemory;
use nvcap_decode::record::{At, ChannelId};

/// Reader of channels: a process's memory and mappings, and the extent of the look.
pub(super) struct Reader<'a, M> {
    pub memory: &'a M,
    pub places: &'a Places<'a>,
    /// Time of the look, and the process.
    pub at: At,
    pub options: SnapshotOptions<'a>,
}

impl<M: ReadMemory> Reader<'_, M> {
    /// Reads a channel's newest entries. While a channel works, its process constantly reuses pushbuffer memory, so the part of the entries
    /// that is still in memory changes from one millisecond to the next. The channel is read several times, and the best reading is taken.
    /// `patience` is the time that is left for it.
    pub(super) fn see(
        &self,
        id: ChannelId,
        found: FoundRing,
        patience: &mut Duration,
    ) -> ChannelSnapshot {
        let last = self.options.last;
        let mut best = self.see_once(id, found);
        while best.elsewhere == 0 && best.missing(last) > 0 && !patience.is_zero() {
            let begun = Instant::now();
            let now = scan::get_put(self.memory, found.userd);
            if !now.is_ok_and(|(_, put)| put != best.put) {
                break;
            }
            // The ring alone is read first: it shows in a sixth of the time whether this is a better moment.
            let worth = |again| again < best.missing(last);
            if used_again(self.memory, &found, last).is_ok_and(worth) {
                let seen = self.see_once(id, found);
                if !seen.ring_gone && seen.missing(last) < best.missing(last) {
                    best = seen;
                }
            }
            *patience = patience.saturating_sub(begun.elapsed());
        }
        best
    }

    fn see_once(&self, id: ChannelId, found: FoundRing) -> ChannelSnapshot {
        let mut seen = ChannelSnapshot {
            channel: found.channel(self.at, id),
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
        let SnapshotOptions { last, before, .. } = self.options;
        if read_ring(self.memory, self.places, &mut seen, last, before).is_err() {
            seen.ring_gone = true;
        }
        seen
    }
}
