//! One channel's part of the ledger: the account of its ring positions.

use std::ops::Range;

use crate::decode::{engine_of, event::Engine};
use crate::record::{Channel, Origin, Skipped, Submission};
use crate::wire::entry;

/// Number of separate missing ranges that are kept of one channel. Entries beyond that are still counted. Only a second report or a later
/// capture of entries in the oldest ranges is no longer recognised.
const RANGES_REMEMBERED: usize = 1024;

/// Account of one channel's stream.
#[derive(Clone, Debug, Default)]
pub struct ChannelLedger {
    /// Process id; 0 if unknown.
    pub pid: u32,
    /// Command name of the process, if known.
    pub process: Option<String>,
    /// Device file minor number of the GPU, if known.
    pub gpu: Option<u32>,
    /// Work-submit token, if known.
    pub token: Option<u32>,
    /// Engine that the channel feeds, if known.
    pub engine: Engine,
    /// Channel class, if known.
    pub class: Option<u32>,
    /// Way in which the channel became known, if it was announced.
    pub origin: Option<Origin>,
    /// Number of entries in the ring, if known.
    pub ring_entries: Option<u32>,
    /// Submissions captured.
    pub submissions: u64,
    /// Ring entries captured.
    pub entries: u64,
    /// Pushbuffer bytes captured, without the unreadable ones.
    pub bytes: u64,
    /// Ring entries known to be missing.
    pub gaps: u64,
    /// Pushbuffer bytes that an entry announced and that could not be read.
    pub unreadable: u64,
    /// Submissions captured later than at their own doorbell. This is no loss.
    pub late: u64,
    /// Ring entries that were read later than at their own doorbell, after another entry of the same submission. Their doorbells are not
    /// known, so there are fewer submissions than doorbells. This is no loss.
    pub merged: u64,
    /// Ring entries captured that had been captured before.
    pub repeated: u64,
    /// Submissions whose `prev_put` differs from the `gp_put` of the submission before.
    pub contradictions: u64,
    /// Ring entries that were not read because the user asked for it (`--count`, `--duty`). This is no loss.
    pub skipped: u64,
    /// Doorbells that were counted for the skipped entries.
    pub doorbells: u64,
    /// Position of the first entry that was seen or is known to be missing.
    pub first: Option<u64>,
    /// Times of the first and the last submission, ns; `None` if no submission had a time.
    pub times: Option<(u64, u64)>,
    /// Position at which the next submission must begin.
    next: Option<u64>,
    /// GP_PUT that the next submission must have found.
    next_put: Option<u32>,
    /// Missing ranges, in ascending order and not adjacent.
    missing: Vec<Range<u64>>,
}

/// Returns GP_PUT after this number of further entries of a ring that is not empty.
fn advanced(put: u32, entries: u64, ring: u32) -> u32 {
    let ring = u64::from(ring);
    ((u64::from(put) + entries % ring) % ring) as u32
}

impl ChannelLedger {
    /// Tells whether nothing of this channel is known to be missing or wrong.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.gaps == 0 && self.unreadable == 0 && self.repeated == 0 && self.contradictions == 0
    }

    /// Tells whether the stream was captured from the channel's first ring entry.
    #[must_use]
    pub fn from_start(&self) -> bool {
        self.first == Some(0) && self.origin != Some(Origin::Found)
    }

    /// Returns the missing ring positions, as far as they are kept, in ascending order.
    #[must_use]
    pub fn missing_ranges(&self) -> &[Range<u64>] {
        &self.missing
    }

    fn add_missing(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // The new range is merged with every range that it touches.
        let from = self.missing.partition_point(|r| r.end < range.start);
        let to = self.missing.partition_point(|r| r.start <= range.end);
        let mut merged = range;
        let mut known = 0;
        for r in &self.missing[from..to] {
            merged = merged.start.min(r.start)..merged.end.max(r.end);
            known += r.end - r.start;
        }
        let new = merged.end - merged.start - known;
        self.gaps = self.gaps.saturating_add(new);
        self.missing.splice(from..to, [merged]);
        if self.missing.len() > RANGES_REMEMBERED {
            self.missing.remove(0);
        }
    }

    /// Removes a captured range from the missing ranges. Returns the number of entries removed.
    fn fill(&mut self, range: &Range<u64>) -> u64 {
        let mut filled = 0;
        let mut left = Vec::with_capacity(self.missing.len() + 1);
        for r in self.missing.drain(..) {
            let start = r.start.max(range.start);
            let end = r.end.min(range.end);
            if start >= end {
                left.push(r);
                continue;
            }
            filled += end - start;
            if r.start < start {
                left.push(r.start..start);
            }
            if end < r.end {
                left.push(end..r.end);
            }
        }
        self.missing = left;
        self.gaps = self.gaps.saturating_sub(filled);
        filled
    }

    pub(super) fn submission(&mut self, s: &Submission) {
        self.submissions += 1;
        self.entries += s.segments.len() as u64;
        self.late += u64::from(s.late);
        if s.late || s.how.is_after() {
            self.merged += s.segments.len().saturating_sub(1) as u64;
        }
        if let Some(time) = s.at.time() {
            let (first, last) = self.times.unwrap_or((time, time));
            self.times = Some((first.min(time), last.max(time)));
        }
        if self.token.is_none() {
            self.token = s.token;
        }
        if self.pid == 0 {
            self.pid = s.at.pid;
        }
        for segment in &s.segments {
            let announced = u64::from(entry::len(segment.entry));
            let holes: u64 = segment.holes.iter().map(|h| u64::from(h.len)).sum();
            let have = (segment.bytes.len() as u64).saturating_sub(holes);
            self.bytes = self.bytes.saturating_add(have);
            self.unreadable += announced.saturating_sub(have);
        }

        let seen = s.segments.len() as u64;
        let announced = self.announced_entries(s);
        let start = s.position;
        let end = start.saturating_add(seen);
        // If the channel's allocation was seen, the stream begins at position 0.
        let from_zero = (self.origin == Some(Origin::Allocated)).then_some(0);
        let Some(next) = self.next.or(from_zero) else {
            self.first = Some(start);
            self.after(s, end, announced);
            return;
        };
        self.first = Some(self.first.unwrap_or(next));
        if start < next {
            // These entries were captured out of order, or twice.
            let again = start..end.min(next);
            let filled = self.fill(&again);
            self.repeated += again.end.saturating_sub(again.start).saturating_sub(filled);
            if end > next {
                self.after(s, end, announced);
            }
            return;
        }
        let gap = start - next;
        if gap > 0 {
            self.add_missing(next..start);
        }
        let fits = match (self.next_put, self.ring_entries) {
            (None, _) => true,
            (Some(put), Some(ring)) if ring > 0 => advanced(put, gap, ring) == s.prev_put,
            (Some(put), _) => gap > 0 || put == s.prev_put,
        };
        if !fits {
            self.contradictions += 1;
        }
        self.after(s, end, announced);
    }

    /// Sets the expected start of the next submission, and counts entries that this one announced and did not contain.
    fn after(&mut self, s: &Submission, end: u64, announced: Option<u64>) {
        let promised = s.position.saturating_add(announced.unwrap_or(0));
        if promised > end {
            self.add_missing(end..promised);
        } else if announced.is_some() && promised < end {
            self.contradictions += 1;
        }
        self.next = Some(end.max(promised));
        self.next_put = Some(s.gp_put);
    }

    /// Returns the number of entries that GP_PUT announces; `None` if it is uncertain because a ring of unknown size wrapped.
    fn announced_entries(&self, s: &Submission) -> Option<u64> {
        match self.ring_entries {
            Some(ring) if ring > 0 && s.gp_put < ring && s.prev_put < ring => {
                let lap = u64::from(ring);
                Some((u64::from(s.gp_put) + lap - u64::from(s.prev_put)) % lap)
            }
            _ if s.gp_put >= s.prev_put => Some(u64::from(s.gp_put - s.prev_put)),
            _ => None,
        }
    }

    pub(super) fn lost_entries(&mut self, position: u64, count: u64) {
        self.add_missing(position..position.saturating_add(count));
        self.leave_out(position, count);
    }

    pub(super) fn skipped(&mut self, p: &Skipped) {
        self.skipped = self.skipped.saturating_add(p.entries);
        self.doorbells = self.doorbells.saturating_add(p.doorbells.unwrap_or(0));
        if self.pid == 0 {
            self.pid = p.at.pid;
        }
        self.leave_out(p.position, p.entries);
    }

    /// Records entries that were reported but not captured. The next submission follows them.
    fn leave_out(&mut self, position: u64, count: u64) {
        let end = position.saturating_add(count);
        self.first = Some(self.first.unwrap_or(position).min(position));
        match self.next {
            // The loss was reported in order: the next submission follows the lost entries. Its expected GP_PUT is then known only if the
            // ring's size is.
            Some(next) if position <= next && end > next => {
                self.next_put = match (self.ring_entries, self.next_put) {
                    (Some(ring), Some(put)) if ring > 0 => Some(advanced(put, end - next, ring)),
                    _ => None,
                };
                self.next = Some(end);
            }
            None => self.next = Some(end),
            _ => {}
        }
    }

    pub(super) fn learn(&mut self, c: &Channel, name: Option<&String>) {
        self.pid = c.at.pid;
        self.process = name.cloned().or_else(|| self.process.take());
        self.gpu = c.gpu.or(self.gpu);
        self.token = c.token.or(self.token);
        if let Some(engine) = c.engine.map(engine_of).filter(|e| *e != Engine::Unknown) {
            self.engine = engine;
        }
        self.class = c.class.or(self.class);
        self.ring_entries = c.entries.or(self.ring_entries);
        // A channel that is announced again, because its token became known, keeps its first origin.
        self.origin = self.origin.or(Some(c.origin));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_time::made_up::{KERNELS, kernel, submission};
    use crate::record::{At, How, SkippedWhy};

    /// Makes a submission of `entries` entries.
    fn of(position: u64, entries: usize, puts: (u32, u32)) -> Submission {
        let mut s = submission(KERNELS, position, 1, How::Trapped, &kernel(0));
        s.segments = vec![s.segments[0].clone(); entries];
        (s.prev_put, s.gp_put) = puts;
        s
    }

    fn ring(entries: u32) -> ChannelLedger {
        ChannelLedger {
            ring_entries: Some(entries),
            ..ChannelLedger::default()
        }
    }

    /// Test of rings of any size, which a recording may have: an entry that is announced and did not come is missing in each.
    #[test]
    fn a_missing_entry_is_counted_in_rings_of_all_sizes() {
        for entries in [1024, 1 << 31, (1 << 31) + 1, u32::MAX - 1, u32::MAX] {
            let last = entries - 1;
            for puts in [
                (last - 3, last),
                (last - 2, 0),
                (last, 2),
                (1, 4),
                (entries / 2, entries / 2 + 3),
            ] {
                for (came, missing) in [(3, 0), (2, 1), (0, 3)] {
                    let mut channel = ring(entries);
                    channel.submission(&of(7, came, puts));
                    assert_eq!(channel.gaps, missing, "{entries} {puts:?} {came}");
                    assert_eq!(channel.is_complete(), missing == 0);
                    // The stream continues where it was left.
                    channel.submission(&of(10, 0, (puts.1, puts.1)));
                    assert_eq!((channel.gaps, channel.contradictions), (missing, 0));
                }
            }
        }
    }

    /// Test of any positions and numbers, which a recording may have.
    #[test]
    fn positions_up_to_the_last_do_not_overflow() {
        let ends = [0, 1, 1 << 63, u64::MAX - 1, u64::MAX];
        for entries in [1, 1024, u32::MAX] {
            for a in ends {
                for b in ends {
                    let mut channel = ring(entries);
                    channel.submission(&of(a, 2, (0, 2)));
                    channel.lost_entries(b, a);
                    channel.skipped(&Skipped {
                        at: At::default(),
                        channel: KERNELS,
                        position: b,
                        entries: u64::MAX,
                        doorbells: Some(u64::MAX),
                        why: SkippedWhy::Counted,
                    });
                    channel.submission(&of(b, 2, (u32::MAX, u32::MAX)));
                    channel.submission(&of(a, 2, (5, 3)));
                }
            }
        }
        // With more ranges than are kept, the oldest is counted anew each time, and no count falls below 0.
        let mut channel = ring(1024);
        for n in 0..=RANGES_REMEMBERED as u64 {
            channel.lost_entries(u64::MAX - 2 * n - 1, 1);
        }
        for _ in 0..3 {
            channel.lost_entries(0, u64::MAX / 2);
        }
        assert_eq!(channel.gaps, u64::MAX);
    }
}
