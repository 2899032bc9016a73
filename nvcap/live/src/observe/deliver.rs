//! Delivery of readings. Entries become submissions if they are proven to be the submitted ones; the rest is counted as lost.

use nvcap_decode::wire::release::{self, Release};
use std::io;

use super::{
    channel::{Begun, Context, Faults, Follower},
    proof::{self, LapCheck, LapSentinel, RingVerdict},
    reuse,
};
use nvcap_decode::record::{Record, Segment};
use nvcap_process::memory::ring;
pub(super) use nvcap_process::procfs::mem::ReadMemory;

/// Time in which a submission that is being written grows by at least some words, ns. Bytes that are the same before and after it are
/// not being written.
const WRITTEN_NS: u64 = 5_000;

/// The most bytes a ns that a program can write.
const WRITES: u64 = 16;

/// Damage to entries that happened while they were read.
#[derive(Debug, Default)]
struct Damage {
    /// Number of the reading's first entries that were overwritten in the ring.
    gone: usize,
    /// Indices of entries whose memory was used again.
    reused: Vec<usize>,
    /// Number of entries that came meanwhile.
    more: u64,
}

/// A reading: consecutive entries of the ring, their bytes, and the payloads in them.
struct Reading<'a> {
    segments: &'a [Segment],
    entries: &'a [u64],
    /// True if every entry carries the expected next payload.
    proven: bool,
    /// The newest payload, where it is known.
    newest: Option<Release>,
}

impl Reading<'_> {
    /// Returns the indices of entries that lie wholly or partly in one of these ranges.
    fn within(&self, ranges: &[(u64, u64)]) -> Vec<usize> {
        let there = |i: &usize| ranges.iter().any(|r| reuse::overlaps(self.entries[*i], *r));
        (0..self.entries.len()).filter(there).collect()
    }
}

/// Judgement of a reading.
struct Judged {
    /// Verdicts by the payloads, one for each entry.
    verdicts: Vec<RingVerdict>,
    damage: Damage,
}

impl Judged {
    /// Tells whether the memory of an entry was used again before it was read.
    fn is_reused(&self, i: usize) -> bool {
        self.verdicts[i] == RingVerdict::Wrong || self.damage.reused.binary_search(&i).is_ok()
    }
}

impl Follower {
    /// Takes new entries whose bytes were read just now. Delivers the proven ones, and counts the others as lost. False if their
    /// payloads show that the ring has gone round: then nothing was delivered or counted.
    pub(super) fn deliver(
        &mut self,
        with: &mut Context<'_, impl ReadMemory, impl Fn() -> u64>,
        begun: Begun,
        segments: Vec<Segment>,
    ) -> io::Result<bool> {
        let (memory, clock) = (with.memory, with.clock);
        let entries: Vec<u64> = segments.iter().map(|s| s.entry).collect();
        let releases: Vec<Option<Release>> =
            segments.iter().map(|s| release::at_end(&s.bytes)).collect();
        let mut chain = self.payloads.clone();
        let verdicts = chain.judge(&releases);
        // A payload that follows was there when it was read, and no other round's has that number.
        let proven = verdicts.iter().all(|v| *v == RingVerdict::Proven);
        let damage = if proven && self.untouched(memory, releases.first()) {
            Damage::default()
        } else {
            let reading = Reading {
                segments: &segments,
                entries: &entries,
                proven,
                newest: chain.newest(),
            };
            self.damage(memory, clock, begun, &reading)?
        };
        if verdicts.iter().any(|v| self.tells_of_a_lap(*v)) {
            return Ok(false);
        }
        let took = clock().saturating_sub(begun.now);
        self.report_damage(&damage, entries.len(), proven, took);
        self.payloads = chain;
        self.extended = begun.extended;
        self.count_links(&verdicts);
        for entry in &entries {
            self.allocator.take(*entry);
        }
        with.faults.overwritten += damage.gone as u64;
        // Where part of it was overwritten meanwhile, the newest stands still, or the next look finds it gone.
        let keeper = segments.last().map(|s| LapSentinel::of(s, self.extended));
        let count = segments.len() as u64;
        let judged = Judged { verdicts, damage };
        self.give_out(with.to, with.faults, begun, segments, &judged);
        self.done += count;
        self.lap_sentinel = keeper;
        self.kept = begun.now;
        Ok(true)
    }

    /// Tells whether payloads jumped so far that the ring must have gone round meanwhile.
    fn tells_of_a_lap(&self, verdict: RingVerdict) -> bool {
        match verdict {
            RingVerdict::Jumped { from, to } => to.wrapping_sub(from) >= self.size,
            _ => false,
        }
    }

    /// Counts the entries whose payload followed the one before.
    fn count_links(&mut self, verdicts: &[RingVerdict]) {
        let follow = verdicts.iter().filter(|v| **v == RingVerdict::Proven);
        self.links.follow += follow.count() as u64;
        self.links.of += verdicts.len() as u64;
    }

    /// Gives out the accepted entries as submissions, and each run of rejected entries between them as a loss.
    fn give_out(
        &mut self,
        to: &mut Vec<Record>,
        faults: &mut Faults,
        begun: Begun,
        segments: Vec<Segment>,
        judged: &Judged,
    ) {
        let now = begun.now;
        let mut lost: Option<(u64, u64)> = None;
        let count = segments.len();
        for (i, segment) in segments.into_iter().enumerate() {
            let position = self.done + i as u64;
            if !self.takes(i, &segment, judged, faults) {
                self.words.cut();
                let (first, n) = lost.unwrap_or((position, 0));
                lost = Some((first, n + 1));
                continue;
            }
            self.lose(now, lost.take(), to);
            if let RingVerdict::Jumped { from, to: payload } = judged.verdicts[i] {
                faults.jumps += 1;
                self.report_jump(now, from, payload, to);
            }
            let get = begun.get.filter(|_| i + 1 == count);
            to.push(Record::Submission(
                self.submission(now, position, get, segment),
            ));
        }
        self.lose(now, lost.take(), to);
    }

    /// Decides whether the entry with this index is the submitted one, and counts the reason where it is not. An entry that was
    /// overwritten in the ring is counted already.
    fn takes(&mut self, i: usize, segment: &Segment, judged: &Judged, faults: &mut Faults) -> bool {
        if i < judged.damage.gone {
            false
        } else if judged.is_reused(i) {
            faults.reused += 1;
            false
        } else if !self.words.take(segment) {
            faults.unparsable += 1;
            false
        } else {
            true
        }
    }

    /// True if the GPU is not done with the first of these entries: libcuda then cannot have reused a slot or memory of any of them.
    fn untouched(&self, memory: &impl ReadMemory, first: Option<&Option<Release>>) -> bool {
        let Some(Some(first)) = first.filter(|_| self.peeks()) else {
            return false;
        };
        self.done_by_gpu(memory)
            .is_some_and(|done| done.wrapping_sub(first.payload).cast_signed() < 0)
    }

    /// Finds the entries that were, or may have been, overwritten while they were read.
    fn damage(
        &self,
        memory: &impl ReadMemory,
        clock: &impl Fn() -> u64,
        begun: Begun,
        reading: &Reading<'_>,
    ) -> io::Result<Damage> {
        let entries = reading.entries;
        let end = self.done + entries.len() as u64;
        // What was committed meanwhile may have been written over what was read.
        let (_, put) = self.get_put(memory)?;
        let more = u64::from(put).wrapping_sub(end) & self.mask();
        let newest = end + more;
        let done = self.done_by_gpu(memory);
        let mut allocator = self.allocator.clone();
        for entry in entries {
            allocator.take(*entry);
        }
        let written = clock().saturating_sub(begun.now) * WRITES;
        let since = if allocator.far(entries, written) {
            Vec::new()
        } else {
            ring::entries(memory, self.ring(), end, newest)?
        };
        // Late: another program had the processor meanwhile.
        let in_time = clock().saturating_sub(begun.now) < self.pace.lap_time() / 2;
        // The second look at the first entry: where it stands, all of them do, and their bytes were read in time.
        let stands = || {
            let again = ring::entries(memory, self.ring(), self.done, self.done + 1)?;
            io::Result::Ok(again[0] == entries[0])
        };
        // Where entries look alike from round to round, that one stands proves little. Then it is the time that tells
        // and, where that was long (another program had the processor), whether the bytes stand too.
        let gone = if in_time && (reading.proven || stands()?) {
            0
        } else {
            let second = ring::entries(memory, self.ring(), self.done, end)?;
            match proof::overwritten(entries, &second) {
                0 if in_time
                    || reading.proven
                    || self.bytes_stand(memory, reading.segments, begun.extended) =>
                {
                    0
                }
                _ if !in_time => entries.len(),
                some => some,
            }
        };
        // The same by position, for entries that look alike from round to round; one more may be half written.
        let round_before = (newest + 1).saturating_sub(u64::from(self.size));
        let gone = gone.max(round_before.saturating_sub(self.done) as usize);
        for entry in &since {
            allocator.take(*entry);
        }
        let mut reused = reuse::reused(entries, &since);
        reused.extend(reading.within(&allocator.ahead()));
        // One may be written where memory begins, out of turn, only if the GPU was done with all; and that can be seen.
        let idle = match (done, reading.newest) {
            (Some(done), Some(newest)) if self.peeks() => {
                let newest = newest.payload.wrapping_add(more as u32);
                done.wrapping_sub(newest).cast_signed() >= 0
            }
            _ => true,
        };
        if idle {
            let doubtful = reading.within(&allocator.beginning());
            if !self.stand(memory, clock, begun, reading, &doubtful) {
                reused.extend(doubtful);
            }
        }
        reused.sort_unstable();
        reused.dedup();
        Ok(Damage {
            gone: gone.min(entries.len()),
            reused,
            more,
        })
    }

    /// True if the bytes of some entries equal those that were read, and stay the same for long enough to show that nobody writes
    /// there.
    fn stand(
        &self,
        memory: &impl ReadMemory,
        clock: &impl Fn() -> u64,
        begun: Begun,
        reading: &Reading<'_>,
        some: &[usize],
    ) -> bool {
        loop {
            let late = clock().saturating_sub(begun.now) > WRITTEN_NS;
            let stand = some.iter().all(|i| {
                let mut extended = begun.extended;
                let entry = &reading.entries[*i..*i + 1];
                let again = ring::segments(memory, entry, &mut extended, &mut Vec::new(), |a| a);
                again[0].bytes == reading.segments[*i].bytes
            });
            if !stand || late || some.is_empty() {
                return stand;
            }
        }
    }

    fn report_damage(&self, damage: &Damage, of: usize, proven: bool, took: u64) {
        if damage.gone + damage.reused.len() > 0 {
            log::debug!(
                "channel {}: of {of} entries from {} on {} overwritten, {} reused; {} came meanwhile, in {} us; payloads follow: {proven}",
                self.announced.id.0,
                self.done,
                damage.gone,
                damage.reused.len(),
                damage.more,
                took / 1000
            );
        }
    }

    /// True if the end of the first segment equals what was read. Memory is used again in order, so that the other segments are
    /// unchanged, too.
    fn bytes_stand(&self, memory: &impl ReadMemory, segments: &[Segment], extended: u64) -> bool {
        let first = segments.iter().find(|s| !s.bytes.is_empty());
        first.is_none_or(|s| {
            let keeper = LapSentinel::of(s, extended);
            self.compare(memory, &keeper, s.entry) == LapCheck::Yes
        })
    }

    /// True if each entry of this channel ends with a payload that follows the one before.
    pub(super) fn has_payloads(&self) -> bool {
        self.links.follow > 16 && self.links.follow + 4 >= self.links.of
    }
}
