//! Entries that were in the ring of a running process before its first doorbell was seen, which are counted in one line.

use std::collections::HashSet;

use nvcap_decode::decode::event::Context;
use nvcap_decode::record::{ChannelId, How, Origin, Record};

/// The most entries that one doorbell is taken to be rung for. A first submission with more of them has earlier ones.
const FEW: usize = 8;
/// The most channels without a submission that are remembered.
const MOST: usize = 1 << 16;

/// The first submissions of channels that were found in a running process.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Channels that were found and have not submitted.
    found: HashSet<ChannelId>,
    /// The channel whose first submission was recorded last, and its entries but the last one.
    next: Option<(ChannelId, u32)>,
    /// The submission by its serial number, and the entries of it that are earlier.
    of: Option<(u64, u32)>,
}

impl History {
    /// Takes a record, before its events are shown.
    pub(super) fn note(&mut self, record: &Record) {
        match record {
            Record::Channel(c) => {
                let is_found = matches!(c.origin, Origin::Found | Origin::Notified);
                if is_found && self.found.len() < MOST {
                    self.found.insert(c.id);
                }
            }
            Record::Submission(s) => {
                self.next = None;
                // An observed ring is read from where it was, an entry at a time.
                let at_doorbell = !matches!(s.how, How::Observed | How::Recorded);
                if self.found.remove(&s.channel) && at_doorbell && s.segments.len() > FEW {
                    self.next = Some((s.channel, s.segments.len() as u32 - 1));
                }
            }
            _ => {}
        }
    }

    /// Begins a submission; returns its earlier entries, if it has any.
    pub(super) fn begin(&mut self, c: &Context) -> Option<u32> {
        let (_, earlier) = self.next.take().filter(|(id, _)| *id == c.channel)?;
        self.of = Some((c.serial, earlier));
        Some(earlier)
    }

    /// Tells whether an entry is an earlier one.
    pub(super) fn is_earlier(&self, c: &Context, entry: u32) -> bool {
        self.of
            .is_some_and(|(serial, earlier)| serial == c.serial && entry < earlier)
    }
}
