//! Bytes of a submission's entries that are missing: raw words are shown only where they were read.

use nvcap_decode::wire::entry;
use std::ops::Range;

use nvcap_decode::record::{Segment, Submission};

/// For each entry of the current submission, the ranges of bytes that are missing: sorted, without overlap, and within
/// the length that the entry announces.
#[derive(Debug, Default)]
pub(super) struct Holes(Vec<Vec<Range<usize>>>);

/// A part of an entry's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Bytes that were read, with their offset.
    Read(usize, &'a [u8]),
    /// Number of bytes that are missing.
    Missing(usize),
}

impl Holes {
    /// Takes the next submission.
    pub(super) fn note(&mut self, s: &Submission) {
        self.0.clear();
        self.0.extend(s.segments.iter().map(of));
    }

    /// Returns the missing ranges of an entry's bytes.
    #[must_use]
    pub(super) fn of(&self, entry: u32) -> &[Range<usize>] {
        self.0.get(entry as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of bytes of an entry that are missing.
    #[must_use]
    pub(super) fn missing(&self, entry: u32) -> usize {
        self.of(entry).iter().map(Range::len).sum()
    }

    /// The parts of an entry in order: read bytes and missing ones.
    pub(super) fn parts<'a>(&self, entry: u32, bytes: &'a [u8]) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let mut at = 0;
        let read = |from: usize, to: usize, parts: &mut Vec<Part<'a>>| {
            let span = from.min(bytes.len())..to.min(bytes.len());
            if !span.is_empty() {
                parts.push(Part::Read(span.start, &bytes[span]));
            }
        };
        for hole in self.of(entry) {
            read(at, hole.start, &mut parts);
            parts.push(Part::Missing(hole.len()));
            at = hole.end;
        }
        read(at, bytes.len(), &mut parts);
        parts
    }
}

fn of(segment: &Segment) -> Vec<Range<usize>> {
    let announced = entry::len(segment.entry) as usize;
    let mut all: Vec<Range<usize>> = segment
        .holes
        .iter()
        .map(|h| h.offset as usize..h.offset as usize + h.len as usize)
        .chain(std::iter::once(segment.bytes.len()..announced))
        .filter(|r| !r.is_empty())
        .collect();
    all.sort_by_key(|r| r.start);
    all.dedup_by(|next, last| {
        let touch = next.start <= last.end;
        if touch {
            last.end = last.end.max(next.end);
        }
        touch
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::wire::Hole;

    #[test]
    fn holes_are_told_once_and_up_to_what_was_announced() {
        let hole = |offset, len| Hole { offset, len };
        let segment = Segment {
            entry: 10 << 42,
            bytes: (0..32).collect(),
            // Unsorted, and with overlaps.
            holes: vec![hole(24, 8), hole(4, 8), hole(8, 8), hole(20, 0)],
        };
        let mut holes = Holes::default();
        holes.0.push(of(&segment));
        assert_eq!(holes.of(0), [4..16, 24..40]);
        assert_eq!((holes.missing(0), holes.missing(1)), (28, 0));
        assert_eq!(
            holes.parts(0, &segment.bytes),
            [
                Part::Read(0, &[0, 1, 2, 3]),
                Part::Missing(12),
                Part::Read(16, &[16, 17, 18, 19, 20, 21, 22, 23]),
                Part::Missing(16)
            ]
        );
        assert_eq!(holes.parts(1, &[1, 2]), [Part::Read(0, &[1, 2])]);
        assert_eq!(holes.parts(1, &[]), []);
    }
}
