//! State of a channel between its submissions.

use super::changes::Changes;
use super::packets::Packets;
use super::tracks::{Place, Track, Tracks};
use crate::export::rows::Rows;

/// Rows and counters of a channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub place: Place,
    rows: Rows,
    /// Entries of its ring, where known.
    pub ring: Option<u32>,
    /// Entries that wait or run.
    pub depth: Changes,
    /// Bytes moved.
    pub bytes: Changes,
    /// The entry that was drawn last, by submission and entry, and its track.
    drawn: Option<(u64, u32, Track)>,
}

impl Channel {
    pub(super) fn new(place: Place, ring: Option<u32>) -> Self {
        Self {
            place,
            rows: Rows::default(),
            ring,
            depth: Changes::default(),
            bytes: Changes::default(),
            drawn: None,
        }
    }

    /// The track for a slice; none where too much is drawn there already.
    pub(super) fn row(&mut self, begin: u64, end: u64) -> Option<Track> {
        Some(match self.rows.take(begin, end)? {
            0 => Track::Channel(self.place),
            row => Track::Row(self.place, row),
        })
    }

    /// The track for what belongs to an entry and has no duration of its own.
    pub(super) fn beside(&self, serial: u64, entry: u32) -> Track {
        match self.drawn {
            Some((s, e, track)) if (s, e) == (serial, entry) => track,
            _ => Track::Channel(self.place),
        }
    }

    /// Returns the track for what has no known time: among slices it would look like a part of one.
    pub(super) fn untimed(&self) -> Track {
        match self.rows.is_empty() {
            true => Track::Channel(self.place),
            false => Track::Untimed(self.place),
        }
    }

    /// Tells whether this entry is the one that was drawn last.
    pub(super) fn is_drawn(&self, serial: u64, entry: u32) -> bool {
        self.drawn
            .is_some_and(|(s, e, _)| (s, e) == (serial, entry))
    }

    pub(super) fn set_drawn(&mut self, serial: u64, entry: u32, track: Track) {
        self.drawn = Some((serial, entry, track));
    }

    /// Writes the values of its counters that nothing before `until` can change any more.
    pub(super) fn count(&mut self, (packets, tracks): (&mut Packets, &mut Tracks), until: u64) {
        while let Some((time, value)) = self.depth.next(until) {
            let track = tracks.of(packets, Track::Depth(self.place));
            packets.counter(track, time, value);
        }
        while let Some((time, value)) = self.bytes.next(until) {
            let track = tracks.of(packets, Track::Bytes(self.place));
            packets.counter(track, time, value);
        }
    }
}
