//! Proof that entries read from a ring are the submitted ones. Pure: gets what was read, and returns verdicts.
//!
//! Three things can be wrong with an entry that was read from outside. GP_PUT alone shows none of them:
//! - the ring went round once or more between two looks (GP_PUT counts modulo the ring's size);
//! - the entry was overwritten while it was being read;
//! - its pushbuffer memory was used again before it was read.
//!
//! Evidence:
//! - The *lap sentinel*: the newest entry of the last look. Its slot is written again exactly when the ring has gone round, so that
//!   it must be found unchanged; where all entries of a program look alike, the end of its pushbuffer segment must be unchanged,
//!   too.
//! - The *payload* of the semaphore release at a segment's end: CUDA's payload grows by one from each segment of a channel to the
//!   next (600 of 600 in a capture of an H200, 30,000 of 30,000 of a training).
//! - The second look at the first entry of a reading: rings are written in order, so that if this entry is unchanged, all are.
//! - The segment's words: an illegal header cannot be a submission's.

use nvcap_decode::record::Segment;
use nvcap_decode::wire::stream::StopReason;
use nvcap_decode::wire::stream::{Item, Stream};
use nvcap_decode::wire::{GpuVa, entry, release::Release};

/// Bytes of a segment's end that are kept to recognize it: a release and its neighbours.
pub(crate) const TAIL: usize = 64;

/// Verdict on an entry of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingVerdict {
    /// The payload follows the one before.
    Proven,
    /// The entry ends with no release of the channel's own semaphore, or that semaphore is not known yet.
    Unproven,
    /// The payload is not the expected one: the memory was used again.
    Wrong,
    /// The payloads jump to another number, and no ring position is missing.
    Jumped {
        /// Payload before the jump.
        from: u32,
        /// Payload after the jump.
        to: u32,
    },
}

/// The consecutive payloads of a channel's own semaphore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PayloadSequence {
    /// The channel's own semaphore, known once two consecutive releases of it were seen.
    own: Option<GpuVa>,
    last: Option<Release>,
    /// Number of entries since `last` that end with no release of the channel's own semaphore. Each may contain one that was not
    /// recognized: in its middle, or cut in two by the entry's end.
    between: u32,
    /// The last payload that did not follow.
    suspect: Option<u32>,
}

impl PayloadSequence {
    /// Judges the releases of consecutive entries.
    pub(crate) fn judge(&mut self, releases: &[Option<Release>]) -> Vec<RingVerdict> {
        let mut verdicts = Vec::with_capacity(releases.len());
        for (i, release) in releases.iter().enumerate() {
            verdicts.push(self.one(*release, &releases[i + 1..]));
        }
        verdicts
    }

    fn one(&mut self, release: Option<Release>, behind: &[Option<Release>]) -> RingVerdict {
        let between = self.between;
        self.between = between.saturating_add(1);
        let Some(release) = release else {
            return RingVerdict::Unproven;
        };
        let Some(own) = self.own else {
            let follows = self.last.is_some_and(|l| {
                l.address == release.address && l.payload.wrapping_add(1) == release.payload
            });
            self.last = Some(release);
            if follows {
                self.own = Some(release.address);
                return RingVerdict::Proven;
            }
            return RingVerdict::Unproven;
        };
        if release.address != own {
            return RingVerdict::Unproven;
        }
        self.between = 0;
        let Some(last) = self.last.filter(|l| l.address == own) else {
            self.last = Some(release);
            return RingVerdict::Unproven;
        };
        let suspect = self.suspect.take();
        let due = last.payload.wrapping_add(1);
        let take = |chain: &mut Self, payload: u32| {
            chain.last = Some(Release { payload, ..release });
        };
        if release.payload.wrapping_sub(due) <= between {
            take(self, release.payload);
            return RingVerdict::Proven;
        }
        let next = behind.iter().flatten().find(|r| r.address == own);
        let goes_on = next.is_some_and(|n| n.payload == release.payload.wrapping_add(1))
            || next.is_none_or(|n| n.payload != due.wrapping_add(1))
                && suspect.is_some_and(|s| s.wrapping_add(1) == release.payload);
        if goes_on {
            take(self, release.payload);
            return RingVerdict::Jumped {
                from: last.payload,
                to: release.payload,
            };
        }
        // The entry is there, its bytes are not: the next one must bear the payload after it.
        take(self, due);
        self.suspect = Some(release.payload);
        RingVerdict::Wrong
    }

    /// Takes note that entries are missing, so that the next release may have any payload. Returns the last payload seen of the
    /// channel's own semaphore.
    pub(crate) fn cut(&mut self) -> Option<u32> {
        self.suspect = None;
        self.between = 0;
        let last = self.last.take()?;
        (Some(last.address) == self.own).then_some(last.payload)
    }

    /// Tells whether these releases of consecutive entries continue the last one; false if nothing is known.
    pub(crate) fn continues(&self, releases: &[Option<Release>]) -> bool {
        let Some(last) = self.newest() else {
            return false;
        };
        let due = last.payload.wrapping_add(1);
        let mut with = releases.iter().enumerate();
        with.find_map(|(i, r)| r.filter(|r| r.address == last.address).map(|r| (i, r)))
            .is_some_and(|(i, r)| r.payload.wrapping_sub(due) <= self.between + i as u32)
    }

    /// Tells whether both end with the same release.
    pub(crate) fn same_newest(&self, other: &Self) -> bool {
        self.last.is_some() && self.last == other.last
    }

    /// The newest release of any semaphore.
    pub(crate) fn last(&self) -> Option<Release> {
        self.last
    }

    /// The newest release of the channel's own semaphore.
    pub(crate) fn newest(&self) -> Option<Release> {
        self.last.filter(|l| Some(l.address) == self.own)
    }

    /// The channel's own semaphore, once it is known.
    pub(crate) fn own(&self) -> Option<GpuVa> {
        self.own
    }
}

/// Returns the number of rounds of a ring. `size`: its entries. `seen`: distance that the position moved, modulo the size.
/// `at_least`: rounds that are certain. `payloads`: distance that the payloads moved over the same entries, where each entry has
/// one: the answer is then exact.
pub(crate) fn rounds(size: u64, seen: u64, at_least: u64, payloads: Option<u64>) -> u64 {
    payloads
        .filter(|p| *p >= seen && (p - seen).is_multiple_of(size))
        .map_or(at_least, |p| ((p - seen) / size).max(at_least))
}

/// The payload that the entry behind these must have, where each entry has one. Most of them must agree on it, because the memory of
/// some may have been used again.
pub(crate) fn payload_behind(
    releases: impl ExactSizeIterator<Item = Option<Release>>,
    own: GpuVa,
) -> Option<u32> {
    let count = releases.len() as u32;
    let own = |(i, r): (usize, Option<Release>)| {
        let r = r.filter(|r| r.address == own)?;
        Some(r.payload.wrapping_add(count - i as u32))
    };
    let mut all: Vec<u32> = releases.enumerate().filter_map(own).collect();
    all.sort_unstable();
    let middle = *all.get(all.len() / 2)?;
    let agree = all.iter().filter(|p| **p == middle).count();
    (2 * agree > count as usize).then_some(middle)
}

/// The newest entry of the last look, which shows whether the ring has gone round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LapSentinel {
    /// The ring entry.
    pub entry: u64,
    /// The end of the entry's segment; empty for a control entry, or where it could not be read.
    pub tail: Vec<u8>,
    /// Address of `tail`.
    pub tail_at: u64,
}

/// Result of a second look at the lap sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LapCheck {
    /// The sentinel is unchanged: the ring has not gone round.
    Yes,
    /// The entry is another one: the ring has gone round.
    No,
    /// The entry is unchanged, and its memory was used again: either the ring has gone round and entries look alike, or the
    /// pushbuffer is small.
    Doubtful,
}

impl LapSentinel {
    /// Creates the sentinel from a segment as it was read. `extended`: the address bits that the entry has from those before it.
    pub(crate) fn of(segment: &Segment, extended: u64) -> Self {
        let from = segment.bytes.len().saturating_sub(TAIL);
        let whole = segment.holes.is_empty();
        let tail = if whole { &segment.bytes[from..] } else { &[] };
        Self {
            entry: segment.entry,
            tail: tail.to_vec(),
            tail_at: entry::segment_of(segment.entry, extended).map_or(0, |(at, _)| at.0)
                + from as u64,
        }
    }

    /// Compares the sentinel with the present content. `tail` is `None` where the tail was not read again.
    pub(crate) fn compare(&self, entry: u64, tail: Option<&[u8]>) -> LapCheck {
        if entry != self.entry {
            LapCheck::No
        } else if tail.is_some_and(|t| t != self.tail) {
            LapCheck::Doubtful
        } else {
            LapCheck::Yes
        }
    }
}

/// Returns the number of entries of a first reading that were overwritten by the time of a second one. The ring is written in order,
/// so that these are all entries up to the last one that differs.
pub(crate) fn overwritten(first: &[u64], second: &[u64]) -> usize {
    let last = first.iter().zip(second).rposition(|(a, b)| a != b);
    last.map_or(0, |i| i + 1)
}

/// Reads the words of a channel's segments, and finds words that no client writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    stream: Stream,
    /// True if it is known where the next header begins.
    synced: bool,
}

impl Words {
    /// Takes note that entries are missing: a method may be in progress whose beginning was not seen.
    pub(crate) fn cut(&mut self) {
        self.stream.reset();
        self.synced = false;
    }

    /// Takes note that the stream begins here.
    pub(crate) fn begin(&mut self) {
        self.stream.reset();
        self.synced = true;
    }

    /// Takes a segment. False if it has an illegal header at a place where a header is known to begin.
    pub(crate) fn take(&mut self, segment: &Segment) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: GpuVa = GpuVa(0x2_0460_fff0);

    fn own(payload: u32) -> Option<Release> {
        Some(Release {
            address: OWN,
            payload,
            stamped: true,
            by_copy: false,
        })
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn payloads_that_follow_are_proven() {
        let mut chain = PayloadSequence::default();
        let verdicts = chain.judge(&[own(4), own(5), None, own(6), own(7)]);
        use RingVerdict::*;
        assert_eq!(verdicts, [Unproven, Proven, Unproven, Proven, Proven]);
        // A release in the middle of an entry, or cut in two, is not recognised.
        assert_eq!(chain.judge(&[None, own(9)]), [Unproven, Proven]);
        let wrap = chain.judge(&[own(10)]);
        assert_eq!(wrap, [Proven]);
    }

    #[test]
    fn one_entry_with_another_payload_is_wrong_and_the_next_goes_on() {
        let mut chain = PayloadSequence::default();
        chain.judge(&[own(1), own(2)]);
        use RingVerdict::*;
        assert_eq!(
            chain.judge(&[own(3), own(700), own(5), own(6)]),
            [Proven, Wrong, Proven, Proven]
        );
        // The newest of a reading, with nothing behind it to tell yet.
        assert_eq!(chain.judge(&[own(800)]), [Wrong]);
        assert_eq!(chain.judge(&[own(8)]), [Proven]);
    }

    #[test]
    fn a_chain_of_many_ends_as_one_of_the_newest_does() {
        let of = |releases: &[Option<Release>]| {
            let mut chain = PayloadSequence::default();
            chain.judge(releases);
            chain
        };
        let newest = of(&[own(9)]);
        assert!(of(&[own(7), own(8), own(9)]).same_newest(&newest));
        assert!(!of(&[own(7), own(8), own(10)]).same_newest(&newest));
        assert!(!of(&[own(8), own(9)]).same_newest(&of(&[None])));
    }

    #[test]
    fn payloads_that_go_on_from_another_one_have_jumped() {
        use RingVerdict::*;
        let jumped = Jumped { from: 3, to: 40 };
        let mut chain = PayloadSequence::default();
        chain.judge(&[own(1), own(2), own(3)]);
        assert_eq!(
            chain.judge(&[own(40), own(41), own(42)]),
            [jumped, Proven, Proven]
        );
        // Seen one by one, the first is taken for wrong.
        let mut chain = PayloadSequence::default();
        chain.judge(&[own(1), own(2), own(3)]);
        assert_eq!(chain.judge(&[own(40)]), [Wrong]);
        assert_eq!(chain.judge(&[own(41)]), [Jumped { from: 4, to: 41 }]);
        assert_eq!(chain.judge(&[own(42)]), [Proven]);
    }

    #[test]
    fn how_often_a_ring_went_round() {
        assert_eq!(rounds(1024, 10, 1, None), 1);
        assert_eq!(rounds(1024, 10, 1, Some(10 + 5 * 1024)), 5);
        // Payloads that do not fit the position tell nothing.
        assert_eq!(rounds(1024, 10, 1, Some(5000)), 1);
        assert_eq!(rounds(1024, 10, 1, Some(3)), 1);
        assert_eq!(rounds(1024, 1023, 0, Some(1023)), 0);
    }

    #[test]
    fn most_payloads_tell_the_next_one() {
        let all = |payloads: &[Option<Release>]| payload_behind(payloads.iter().copied(), OWN);
        assert_eq!(all(&[own(5), own(6), own(7)]), Some(8));
        assert_eq!(all(&[own(5), own(900), own(7)]), Some(8));
        assert_eq!(all(&[own(5), None, None]), None);
        assert_eq!(all(&[own(5), own(900)]), None);
        assert_eq!(all(&[]), None);
    }

    #[test]
    fn a_lap_sentinel_knows_itself_again() {
        let segment = Segment {
            entry: 4 << 42 | 0x1000,
            bytes: bytes(&[1, 2, 3, 4]),
            holes: Vec::new(),
        };
        let keeper = LapSentinel::of(&segment, 5 << 40);
        assert_eq!(keeper.tail_at, 5 << 40 | 0x1000);
        assert_eq!(keeper.compare(segment.entry, None), LapCheck::Yes);
        assert_eq!(
            keeper.compare(segment.entry, Some(&segment.bytes)),
            LapCheck::Yes
        );
        assert_eq!(
            keeper.compare(segment.entry, Some(&[0; 16])),
            LapCheck::Doubtful
        );
        assert_eq!(keeper.compare(segment.entry + 4, None), LapCheck::No);
    }

    #[test]
    fn what_was_overwritten() {
        assert_eq!(overwritten(&[1, 2, 3], &[1, 2, 3]), 0);
        assert_eq!(overwritten(&[1, 2, 3], &[9, 2, 3]), 1);
        // An entry that looks as before among overwritten ones is overwritten too.
        assert_eq!(overwritten(&[1, 2, 3], &[9, 2, 9]), 3);
    }

    #[test]
    fn words_are_judged_once_a_beginning_was_seen() {
        let segment = |words: &[u32]| Segment {
            entry: (words.len() as u64) << 42,
            bytes: bytes(words),
            holes: Vec::new(),
        };
        let illegal = segment(&[0xc000_0000]);
        let mut words = Words::default();
        // In the middle of a method, nothing is illegal.
        assert!(words.take(&illegal));
        assert!(words.take(&segment(&[0x2001_0000, 1])));
        assert!(!words.take(&illegal));
        assert!(words.take(&illegal));
        words.begin();
        assert!(!words.take(&illegal));
    }
}
