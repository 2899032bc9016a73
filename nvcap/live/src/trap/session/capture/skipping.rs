//! Entries that are skipped because the user asked for it. The position of a channel is followed, and none of its entries is read.

use super::{super::outbox::seen_now, Capture};
use nvcap_decode::{
    record::{Record, Skipped, SkippedWhy, Submission},
    wire::entry,
};
pub(super) use nvcap_process::{
    memory::ring::{self, Ring},
    procfs::mem::ReadMemory,
};

impl Capture {
    /// Passes a submission of an address space on, and counts it.
    pub(super) fn pass_on(&mut self, space: u32, submission: Submission) {
        self.rung.found(space, submission.at.time_ns);
        let bytes = submission.segments.iter().map(|s| s.bytes.len() as u64);
        self.captured.submissions += 1;
        self.captured.entries += submission.segments.len() as u64;
        self.captured.bytes += bytes.sum::<u64>();
        self.out.push(Record::Submission(submission));
    }

    /// Follows a channel to GP_PUT. False if GP_PUT cannot be read. Only while the channel is claimed.
    pub(super) fn skip(&mut self, index: u32, why: SkippedWhy) -> bool {
        let state = self.table.shared().get(index);
        let channel = &self.table[index];
        let put = self
            .spaces
            .memory(channel.space)
            .filter(|_| !self.spaces.is_ending(channel.space))
            .and_then(|m| m.get_put(channel.get_put).ok())
            .map(|(_, put)| put)
            .filter(|put| *put < channel.entries);
        let Some(put) = put else {
            return false;
        };
        let from = state.done.min(channel.taken);
        let doorbells =
            (why == SkippedWhy::Counted).then(|| state.counted.saturating_sub(channel.counted));
        // Counted since `state` was read: GP_PUT may have their entries.
        let now = self.table.shared().get(index).counted;
        let meanwhile = now.saturating_sub(state.counted);
        let target = target(from, channel.index(from), put, channel.entries, doorbells);
        let entries = target - from;
        if doorbells.is_none() && entries > u64::from(channel.entries) / 2 {
            self.doubtful += 1;
        }
        if state.counted_before > 0 {
            self.stopped.insert(channel.space);
        }
        let extended = self.extended_at(index, state.extended, target);
        if let Some(channel) = self.table.get_mut(index) {
            channel.taken = target;
            channel.counted = state.counted;
            channel.unrung = unrung(channel.unrung, entries, doorbells.unwrap_or(0), meanwhile);
            channel.skipped.0 += entries;
            channel.skipped.1 += doorbells.unwrap_or(0);
            channel.ahead = None;
            channel.looked = true;
        }
        let shared = self.table.shared();
        shared.progress(index, target, target, extended);
        // As at the first look: what comes before the next doorbell may have been rung for by another.
        shared.begin_anew(index);
        true
    }

    /// Reports what was skipped, channel by channel.
    pub(in super::super) fn tell_all_skipped(&mut self) {
        for index in self.table.indexes() {
            self.tell_skipped(index);
        }
    }

    pub(super) fn tell_skipped(&mut self, index: u32) {
        let (Some(why), Some(channel)) = (self.skips, self.table.get(index)) else {
            return;
        };
        if channel.skipped == (0, 0) {
            return;
        }
        // What only looks like a channel is told when it certainly is one.
        let Some(id) = self.table.id_of_loss(index, &mut self.out) else {
            return;
        };
        let Some(channel) = self.table.get_mut(index) else {
            return;
        };
        let (entries, doorbells) = std::mem::take(&mut channel.skipped);
        self.skipped += entries;
        self.out.push(Record::Skipped(Skipped {
            at: seen_now(channel.announced.at.pid),
            channel: id,
            position: channel.taken.saturating_sub(entries),
            entries,
            doorbells: (why == SkippedWhy::Counted).then_some(doorbells),
            why,
        }));
    }

    /// Returns the number of entries that were captured or skipped, and of looks between which more may have come.
    pub(in super::super) fn entries_of_all(&self) -> (u64, u64) {
        (self.captured.entries + self.skipped, self.doubtful)
    }

    /// Takes note that a channel is gone. Entries that were seen in its ring and not fetched are lost, or were skipped.
    pub(in super::super) fn count_unfetched(&mut self, index: u32) {
        if self.skips.is_none() {
            return self.table.count_unfetched(index, &mut self.out);
        }
        let state = self.table.shared().get(index);
        let Some(channel) = self.table.get_mut(index) else {
            return;
        };
        let seen = state.seen.max(channel.ahead.unwrap_or(0));
        // GP_PUT cannot be read any more: each doorbell that was counted has brought one, but for those whose entries the
        // last look saw.
        let counted = state.counted.saturating_sub(channel.counted);
        let brought = counted.saturating_sub(channel.unrung);
        let entries = seen.saturating_sub(state.done).max(brought);
        channel.unrung = 0;
        channel.taken = channel.taken.max(state.done + entries);
        channel.skipped.0 += entries;
        channel.skipped.1 += counted;
        let was_looked_at = channel.looked;
        channel.counted = state.counted;
        if self.skips == Some(SkippedWhy::Resting) && !was_looked_at {
            self.doubtful += 1;
        }
        self.tell_skipped(index);
        self.table.tell_unreadable(index, &mut self.out);
    }

    /// Returns address bits 56:40 at a position, if the channel uses them at all: those of the last entry before it that sets them.
    fn extended_at(&self, index: u32, before: u64, target: u64) -> u64 {
        let channel = &self.table[index];
        let memory = self.spaces.memory(channel.space);
        let Some(memory) = memory.filter(|_| before != 0) else {
            return before;
        };
        let on = Ring {
            address: channel.ring,
            entries: channel.entries,
        };
        let first = target.saturating_sub(u64::from(channel.entries) - 1);
        let mut extended = before;
        for e in ring::entries(memory, on, first, target).unwrap_or_default() {
            entry::pass(e, &mut extended);
        }
        extended
    }
}

/// Returns the position that GP_PUT means: the next one behind `from`; or, where doorbells were counted, the one that is nearest to one
/// entry a doorbell.
fn target(from: u64, from_index: u32, put: u32, entries: u32, doorbells: Option<u64>) -> u64 {
    let ring = u64::from(entries);
    let ahead = u64::from(put.wrapping_sub(from_index)) & (ring - 1);
    // A doorbell may come a little after the look that saw its entry.
    let short = doorbells.unwrap_or(0).saturating_sub(ahead);
    let rounds = (short + ring / 2) / ring;
    from + ahead + rounds * ring
}

/// Returns the number of entries that a look saw, and whose doorbells come after it. This is the surplus of entries over doorbells
/// since all seen entries had been rung for; at most one entry that is about to be rung for, plus the doorbells that were counted while
/// GP_PUT was read. A driver that submits several entries by a doorbell looks the same; then that many fewer entries are assumed at the
/// channel's end.
fn unrung(before: u64, entries: u64, doorbells: u64, meanwhile: u64) -> u64 {
    (before + entries)
        .saturating_sub(doorbells)
        .min(1 + meanwhile)
}

#[cfg(test)]
mod tests {
    use super::{target, unrung};

    #[test]
    fn an_entry_that_was_seen_before_its_doorbell_is_one() {
        assert_eq!(unrung(0, 21, 20, 0), 1);
        // Its doorbell came, and another with its entry.
        assert_eq!(unrung(1, 1, 2, 0), 0);
        assert_eq!(unrung(1, 2, 2, 0), 1);
        assert_eq!((unrung(0, 0, 0, 0), unrung(1, 0, 0, 0)), (0, 1));
        // Captured by another channel's doorbell, and counted by its own.
        assert_eq!(unrung(0, 4, 5, 0), 0);
        assert_eq!((unrung(0, 5, 4, 0), unrung(1, 4, 5, 0)), (1, 0));
        // Three were submitted after the count was read, before GP_PUT was; the third is still to be rung for.
        assert_eq!(unrung(0, 23, 20, 2), 3);
        assert_eq!(unrung(3, 1, 4, 0), 0);
        // Several entries by each doorbell.
        assert_eq!(unrung(1, 40, 20, 0), 1);
    }

    #[test]
    fn rounds_of_the_ring_are_known_by_doorbells() {
        // Not counted: the next position with that index.
        assert_eq!(target(100, 100, 120, 1024, None), 120);
        assert_eq!(target(1023, 1023, 5, 1024, None), 1029);
        assert_eq!(target(100, 100, 100, 1024, None), 100);
        // Counted: as many entries as doorbells, or a few more.
        assert_eq!(target(100, 100, 120, 1024, Some(20)), 120);
        assert_eq!(target(100, 100, 120, 1024, Some(5)), 120);
        assert_eq!(target(100, 100, 120, 1024, Some(20 + 511)), 120);
        assert_eq!(target(100, 100, 120, 1024, Some(20 + 512)), 120 + 1024);
        assert_eq!(target(100, 100, 120, 1024, Some(20 + 1024)), 120 + 1024);
        assert_eq!(target(100, 100, 100, 1024, Some(2048)), 100 + 2048);
    }
}
