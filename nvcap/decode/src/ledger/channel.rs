//! One channel's part of the ledger: the sum of its ring positions.

use std::ops::Range;

use crate::decode::{engine_of, event::Engine};
use crate::record::{Channel, Origin, Skipped, Submission};
use crate::wire::entry;

/// Number of separate missing ranges of one channel that are remembered. Beyond that the entries are still counted; only for the
/// oldest ranges, a second report or a later capture of the same entries is no longer recognised.
const RANGES_REMEMBERED: usize = 1024;

/// Account of one channel's stream.
#[derive(Clone, Debug, Default)]
pub struct ChannelLedger {
    /// The process, 0 where unknown.
    pub pid: u32,
    /// Its command name, where known.
    pub process: Option<String>,
    /// Device file minor number of the GPU, where known.
    pub gpu: Option<u32>,
    /// Work-submit token, where known.
    pub token: Option<u32>,
    /// Engine that it feeds, where known.
    pub engine: Engine,
    /// Channel class, where known.
    pub class: Option<u32>,
    /// Way in which the channel was learnt, where it was announced.
    pub origin: Option<Origin>,
    /// Entries in the ring, where known.
    pub ring_entries: Option<u32>,
    /// Submissions captured.
    pub submissions: u64,
    /// Ring entries captured.
    pub entries: u64,
    /// Pushbuffer bytes captured, the unreadable ones not included.
    pub bytes: u64,
    /// Ring entries known to be missing.
    pub gaps: u64,
    /// Pushbuffer bytes that were announced by an entry and could not be read.
    pub unreadable: u64,
    /// Submissions captured later than at their own doorbell. Not a loss.
    pub late: u64,
    /// Ring entries that were read later than at their own doorbell, behind another of the same submission: which doorbells they had is not
    /// known, so that there are fewer submissions than there were doorbells. Not a loss.
    pub merged: u64,
    /// Ring entries captured that had been captured before.
    pub repeated: u64,
    /// Submissions whose `prev_put` differs from the `gp_put` of the submission before.
    pub contradictions: u64,
    /// Ring entries that nobody read because the user asked for it (`--count`, `--duty`). Not a loss.
    pub skipped: u64,
    /// Doorbells that were counted for these.
    pub doorbells: u64,
    /// Position of the first entry that was seen or is known to be missing.
    pub first: Option<u64>,
    /// Time of the first and the last submission, ns; none where no submission had one.
    pub times: Option<(u64, u64)>,
    /// Position that the next submission must have.
    next: Option<u64>,
    /// GP_PUT that the next submission must have found.
    next_put: Option<u32>,
    /// Missing ranges, ascending and apart.
    missing: Vec<Range<u64>>,
}

/// Returns GP_PUT behind this number of further entries of a ring that is not empty.
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

    /// The missing ring positions, as far as they are remembered, in ascending order.
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

    /// Removes a captured range from the missing ranges; returns how many entries that were.
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
        // Where its allocation was seen, the stream begins at position 0.
        let from_zero = (self.origin == Some(Origin::Allocated)).then_some(0);
        let Some(next) = self.next.or(from_zero) else {
            self.first = Some(start);
            self.after(s, end, announced);
            return;
        };
        self.first = Some(self.first.unwrap_or(next));
        if start < next {
            // Captured out of order, or twice.
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

    /// Sets the expected start of the next submission, and counts entries that this one announced and did not bring.
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

    /// Returns the number of entries that GP_PUT announces; `None` if a wrapped ring of unknown size leaves it open.
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

    /// Entries were reported that are not captured: the next submission follows them.
    fn leave_out(&mut self, position: u64, count: u64) {
        let end = position.saturating_add(count);
        self.first = Some(self.first.unwrap_or(position).min(position));
        match self.next {
            // Reported in order: the next submission follows the lost entries. Its expected GP_PUT is then known only if
            // the ring's size is.
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
        // A channel that is announced again (its token became known) keeps its first origin.
        self.origin = self.origin.or(Some(c.origin));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_time::made_up::{KERNELS, kernel, submission};
    use crate::record::{At, How, SkippedWhy};

    /// A submission of `entries` entries.
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

    /// A recording may give a ring any size: an entry that is announced and did not come is missing in each.
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
                    // It is continued where it was left.
                    channel.submission(&of(10, 0, (puts.1, puts.1)));
                    assert_eq!((channel.gaps, channel.contradictions), (missing, 0));
                }
            }
        }
    }

    /// Positions and numbers of a recording may be anything.
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
        // More ranges than are remembered: the oldest is counted anew each time, and no count ends at 0.
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
