//! Whether what was read from a ring is what was submitted. Pure: what was read comes in, verdicts go out.
//!
//! Three things can be wrong with an entry that was read from outside, and none can be seen from GP_PUT alone:
//! - the ring went round once or more between two looks (GP_PUT counts modulo the ring's size);
//! - the entry was overwritten while it was being read;
//! - its pushbuffer memory was used again before it was read.
//!
//! What tells:
//! - The *keeper*: the newest entry of the last look. Its slot is written again exactly when the ring has gone round,
//!   so it must be found as it was left; and, where all entries of a program look alike, the end of its pushbuffer
//!   segment too.
//! - The *payload* of the semaphore release that a segment ends with: CUDA's grows by one from each segment of a
//!   channel to the next (600 of 600 in a capture of an H200, 30,000 of 30,000 of a training).
//! - The second look at the first entry of what was read: rings are written in order, so where it stands, all stand.
//! - The segment's words: an illegal header is no submission.

use crate::decode::event::StopReason;
use crate::decode::stream::{Item, Stream};
use crate::record::Segment;

/// How much of a segment's end is kept to know it again: a release and its neighbours.
pub const TAIL: usize = 64;

/// Bytes that a ring entry points to; 0 for a control entry.
pub fn length(entry: u64) -> usize {
    ((entry >> 42) as usize & 0x1f_ffff) * 4
}

/// The semaphore release that a segment ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// GPU address of the semaphore.
    pub address: u64,
    /// What is written there.
    pub payload: u32,
}

/// Reads the release at a segment's end, as CUDA puts it there: SET_REPORT_SEMAPHORE_A..D of a compute channel, or
/// SET_SEMAPHORE_A..PAYLOAD and LAUNCH_DMA of a copy channel.
pub fn release(bytes: &[u8]) -> Option<Release> {
    let (tail, _) = bytes.as_chunks::<4>();
    let word = |from_end: usize| {
        let at = tail.len().checked_sub(from_end)?;
        Some(u32::from_le_bytes(tail[at]))
    };
    // INC_METHOD with this count and method, on any subchannel.
    let header = |w: u32, count: u32, method: u32| {
        w >> 29 == 1 && w >> 16 & 0x1fff == count && w & 0xfff == method >> 2
    };
    let at = |first: usize| {
        let (high, low) = (word(first)?, word(first - 1)?);
        Some(Release {
            address: u64::from(high) << 32 | u64::from(low),
            payload: word(first - 2)?,
        })
    };
    if header(word(5)?, 4, 0x1b00) {
        return at(4);
    }
    if header(word(2)?, 1, 0x300) && header(word(6)?, 3, 0x240) {
        return at(5);
    }
    None
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The payload follows the one before.
    Proven,
    /// It ends with no release of the channel's own semaphore, or that is not known yet.
    Unproven,
    /// The payload is not what must be there: memory that was used again.
    Wrong,
    /// The payloads go on from another one than before, and no ring position is missing.
    Jumped {
        /// Payload before.
        from: u32,
        /// Payload from which they go on.
        to: u32,
    },
}

/// The payloads of a channel's own semaphore, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The channel's own semaphore, once two releases of it followed each other.
    own: Option<u64>,
    last: Option<Release>,
    /// The last payload that did not follow.
    suspect: Option<u32>,
}

impl Chain {
    /// Judges the releases of entries that follow each other in the ring.
    pub fn judge(&mut self, releases: &[Option<Release>]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(releases.len());
        for (i, release) in releases.iter().enumerate() {
            verdicts.push(self.one(*release, &releases[i + 1..]));
        }
        verdicts
    }

    fn one(&mut self, release: Option<Release>, behind: &[Option<Release>]) -> Verdict {
        let Some(release) = release else {
            return Verdict::Unproven;
        };
        let Some(own) = self.own else {
            let follows = self.last.is_some_and(|l| {
                l.address == release.address && l.payload.wrapping_add(1) == release.payload
            });
            self.last = Some(release);
            if follows {
                self.own = Some(release.address);
                return Verdict::Proven;
            }
            return Verdict::Unproven;
        };
        if release.address != own {
            return Verdict::Unproven;
        }
        let Some(last) = self.last.filter(|l| l.address == own) else {
            self.last = Some(release);
            return Verdict::Unproven;
        };
        let suspect = self.suspect.take();
        let due = last.payload.wrapping_add(1);
        let take = |chain: &mut Self, payload: u32| {
            chain.last = Some(Release { payload, ..release });
        };
        if release.payload == due {
            take(self, due);
            return Verdict::Proven;
        }
        let next = behind.iter().flatten().find(|r| r.address == own);
        let goes_on = next.is_some_and(|n| n.payload == release.payload.wrapping_add(1))
            || next.is_none_or(|n| n.payload != due.wrapping_add(1))
                && suspect.is_some_and(|s| s.wrapping_add(1) == release.payload);
        if goes_on {
            take(self, release.payload);
            return Verdict::Jumped {
                from: last.payload,
                to: release.payload,
            };
        }
        // The entry is there, its bytes are not: the next one must bear the payload after it.
        take(self, due);
        self.suspect = Some(release.payload);
        Verdict::Wrong
    }

    /// Entries are missing: the next release may bear any payload. Gives the last one seen of the channel's own.
    pub fn cut(&mut self) -> Option<u32> {
        self.suspect = None;
        let last = self.last.take()?;
        (Some(last.address) == self.own).then_some(last.payload)
    }

    /// The payload that must come next, where that is known.
    pub fn due(&self) -> Option<Release> {
        let last = self.last?;
        (Some(last.address) == self.own).then(|| Release {
            payload: last.payload.wrapping_add(1),
            ..last
        })
    }

    /// The channel's own semaphore, once known.
    pub fn own(&self) -> Option<u64> {
        self.own
    }
}

/// How many times a ring of `size` entries went round, where `seen` is how far the position moved modulo the size and
/// `at_least` rounds are certain. `payloads` is how far the payloads moved over the same entries, where each entry
/// bears one: then the answer is exact.
pub fn rounds(size: u64, seen: u64, at_least: u64, payloads: Option<u64>) -> u64 {
    payloads
        .filter(|p| *p >= seen && (p - seen) % size == 0)
        .map_or(at_least, |p| ((p - seen) / size).max(at_least))
}

/// The newest entry of the last look, by which a lap is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The ring entry.
    pub entry: u64,
    /// The end of its segment; empty for a control entry or where it could not be read.
    pub tail: Vec<u8>,
    /// Where that lies.
    pub tail_at: u64,
}

/// What a second look at the keeper says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// As it was left: the ring has not gone round.
    Yes,
    /// Another entry: the ring has gone round.
    No,
    /// The entry stands, its memory was used again: a lap by entries that look alike, or a small pushbuffer.
    Doubtful,
}

impl Keeper {
    /// Of a segment as it was read; `extended` are the address bits that its entry has from those before it.
    pub fn of(segment: &Segment, extended: u64) -> Self {
        let from = segment.bytes.len().saturating_sub(TAIL);
        let whole = segment.holes.is_empty();
        let tail = if whole { &segment.bytes[from..] } else { &[] };
        Self {
            entry: segment.entry,
            tail: tail.to_vec(),
            tail_at: (extended | (segment.entry & 0xff_ffff_fffc)) + from as u64,
        }
    }

    /// Compares it with what is there now; `tail` is `None` where it was not read again.
    pub fn compare(&self, entry: u64, tail: Option<&[u8]>) -> Kept {
        if entry != self.entry {
            Kept::No
        } else if tail.is_some_and(|t| t != self.tail) {
            Kept::Doubtful
        } else {
            Kept::Yes
        }
    }
}

/// Which of the entries stand in a second reading: the ring is written in order, so those that do not are the first.
pub fn overwritten(first: &[u64], second: &[u64]) -> usize {
    let last = first.iter().zip(second).rposition(|(a, b)| a != b);
    last.map_or(0, |i| i + 1)
}

/// Entries whose memory a later one of the same reading uses too: what was read of them is the later one's.
pub fn reused(entries: &[u64]) -> Vec<usize> {
    let range = |e: u64| {
        let start = e & 0xff_ffff_fffc;
        (start, start + length(e) as u64)
    };
    let segments = || {
        let all = entries.iter().enumerate();
        all.filter(|(_, e)| length(**e) != 0)
            .map(|(i, e)| (i, range(*e)))
    };
    // Almost always each begins where the one before ends, or behind it.
    let mut end = 0;
    let ascending = segments().all(|(_, (start, stop))| {
        let fits = start >= end;
        end = stop;
        fits
    });
    if ascending {
        return Vec::new();
    }
    let mut all: Vec<(usize, (u64, u64))> = segments().collect();
    all.sort_by_key(|s| s.1.0);
    let mut hit = Vec::new();
    for (n, (i, (_, stop))) in all.iter().enumerate() {
        for (j, (start, _)) in &all[n + 1..] {
            if start >= stop {
                break;
            }
            hit.push(*i.min(j));
        }
    }
    hit.sort_unstable();
    hit.dedup();
    hit
}

/// Reads a channel's words, to find those that no client writes.
#[derive(Clone, Debug, Default)]
pub struct Words {
    stream: Stream,
    /// The stream is known to stand between methods, or in one that was seen to begin.
    synced: bool,
}

impl Words {
    /// Entries are missing: a method may be in progress that nobody saw begin.
    pub fn cut(&mut self) {
        self.stream.reset();
        self.synced = false;
    }

    /// The stream begins here.
    pub fn begin(&mut self) {
        self.stream.reset();
        self.synced = true;
    }

    /// Takes a segment; false where it holds an illegal header and none can be there.
    pub fn take(&mut self, segment: &Segment) -> bool {
        if segment.bytes.is_empty() {
            return true;
        }
        let announced = segment.bytes.len() as u32;
        let illegal = self
            .stream
            .runs(&segment.bytes, announced, &segment.holes)
            .any(|item| matches!(item, Item::Stop(_, StopReason::IllegalHeader(_))));
        if !illegal {
            // A whole segment was read from its first header on.
            self.synced |= self.stream.pending() == 0;
            return true;
        }
        let judged = self.synced;
        self.cut();
        !judged
    }
}
