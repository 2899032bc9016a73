//! The entries of a submission, one by one: ring controls, and segments whose bytes are cut into runs of method data.

use super::{
    event::{Body, EntryHead, Stop},
    submission::SubmissionDecoder,
};
use crate::record::{Segment, Submission};
use crate::wire::{
    entry::{self, EntryKind},
    stream::{Item, Stream},
};

impl<'a> SubmissionDecoder<'a> {
    /// Decodes every entry. `stream` and `base` are the channel's state between entries.
    pub(super) fn entries(&mut self, s: &'a Submission, stream: &mut Stream, base: &mut u64) {
        for (index, segment) in s.segments.iter().enumerate() {
            self.counts.entries += 1;
            self.entry = index as u32;
            let kind = entry::read(segment.entry, *base);
            if self.wants.entries {
                self.emit(Body::Entry(EntryHead {
                    index: self.entry,
                    raw: segment.entry,
                    kind,
                    bytes: &segment.bytes,
                }));
            }
            match kind {
                EntryKind::Control {
                    opcode, operand, ..
                } => {
                    self.counts.controls += 1;
                    entry::apply_control(opcode, operand, base);
                }
                // A segment is not fetched while its subdevice is masked out.
                EntryKind::Segment {
                    conditional: true, ..
                } if stream.masked() => {}
                EntryKind::Segment { len, .. } => self.fetched(segment, len, stream),
            }
        }
    }

    /// Decodes the `len` bytes that an entry points to.
    fn fetched(&mut self, segment: &'a Segment, len: u32, stream: &mut Stream) {
        self.segment = &segment.bytes;
        self.writes_until = None;
        // Unfinished data continues: the entry is then a part of the one before.
        self.only_inline |= stream.pending() == 0;
        for item in stream.runs(&segment.bytes, len, &segment.holes) {
            match item {
                Item::Run(run) => self.run(&run),
                Item::Control(..) => {}
                Item::Skipped {
                    subchannel,
                    address,
                    words,
                } => self.skip(subchannel, address, words),
                Item::Stop(offset, why) => {
                    self.counts.stops += 1;
                    self.emit(Body::Stop(Stop {
                        entry: self.entry,
                        offset,
                        why,
                    }));
                }
            }
        }
        self.end_of_entry(len.into());
    }
}
