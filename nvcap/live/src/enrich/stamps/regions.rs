//! The semaphores of one process that are read again and again, and their changes from one read to the next.

use std::io;

use nvcap_decode::record::Stamp;
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::words::{u32_at, u64_at};
use nvcap_process::procfs::mem::{Ordinary, Ranges};

/// Bytes of a semaphore with a time stamp: number, unused, time.
const STAMPED: u64 = 16;
/// Size of the pieces in which words without stamps are read, together with the bytes beside them.
const PIECE: u64 = 64;
/// Bytes of a page. Regions do not cross pages, because a page that cannot be read must not hide another.
const PAGE: u64 = 4096;
/// Number of times that each region is read alone, to learn how long that takes.
const PACES: usize = 32;
/// Time that is allowed, beyond the least times of both, between the end of a region's read and the next region's read, ns.
const MARGIN_NS: u64 = 150;
/// The most regions of a process: each costs some 50 ns a read.
const MOST_REGIONS: usize = 24;

/// Reads of a process's memory, several ranges at once.
pub(super) trait Read {
    /// Reads the ranges. Returns the number of bytes up to the first range that could not be read.
    fn read(&self, ranges: &Ranges, to: &mut [u8]) -> io::Result<usize>;

    /// Calls `read`, which makes a read, and calls it again if the read does not count.
    fn counting<T>(&self, mut read: impl FnMut() -> T) -> T {
        read()
    }
}

impl Read for Ordinary {
    fn read(&self, ranges: &Ranges, to: &mut [u8]) -> io::Result<usize> {
        self.read_ranges(ranges, to)
    }

    #[cfg(feature = "in-step")]
    fn counting<T>(&self, read: impl FnMut() -> T) -> T {
        nvcap_process::in_step::apart(self.pid(), read)
    }
}

/// Content of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Semaphores with time stamps. Each is known.
    Stamped,
    /// Words, any of which may be a semaphore.
    Words,
}

/// A semaphore with a time stamp.
#[derive(Clone, Copy, Debug)]
struct Slot {
    address: u64,
    payload: u32,
    gpu_ns: u64,
    /// True if the slot was read before.
    known: bool,
    /// A change that the next read must confirm, because its number and time may belong to two writes.
    pending: Option<Stamp>,
}

/// A range of memory.
#[derive(Debug)]
struct Region {
    kind: Kind,
    begin: u64,
    end: u64,
    /// Last content of a region of words, and the address at which it begins.
    old: Vec<u8>,
    old_begin: u64,
    slots: Vec<Slot>,
    /// Words that were read for the first time.
    #[cfg(feature = "in-step")]
    first: Vec<(u64, u32)>,
}

/// The semaphores of one process that are read again and again.
#[derive(Debug, Default)]
pub(super) struct Regions {
    regions: Vec<Region>,
    ranges: Ranges,
    buffer: Vec<u8>,
    pace: Pace,
    /// Addresses that cannot be read.
    refused: Vec<u64>,
    /// Begin of the last read, ns (0 before the first), and its duration, ns.
    last: u64,
    last_took: u64,
}

/// Durations of reads. The regions are read one after the other, so that each is read within a part of the whole time.
#[derive(Clone, Debug, Default)]
struct Pace {
    /// Least time of a read of each region alone, and of a read of all regions, ns.
    alone: Vec<u64>,
    all: u64,
    samples: usize,
    /// For each region, the time from the begin of the fastest read to the region's read, and from the end of that to the read's end,
    /// ns; empty while that is not known.
    parts: Vec<(u64, u64)>,
}

impl Pace {
    /// Creates the pace of this many regions.
    fn new(regions: usize) -> Self {
        Self {
            alone: vec![u64::MAX; regions],
            all: u64::MAX,
            ..Self::default()
        }
    }

    /// Returns the region that is to be read alone next; none where all times are known.
    fn wants(&self) -> Option<usize> {
        let count = self.alone.len();
        (count > 1 && self.samples < count * PACES).then(|| self.samples % count)
    }

    fn take(&mut self, region: usize, alone: u64, all: u64) {
        if let Some(least) = self.alone.get_mut(region) {
            *least = alone.min(*least);
        }
        self.all = all.min(self.all);
        self.samples += 1;
        if self.wants().is_none() {
            self.split();
        }
    }

    /// Computes the parts of the time. (Each read has the same time before its first region.)
    fn split(&mut self) {
        let others = self.alone.len().saturating_sub(1) as u64;
        let sum: u64 = self.alone.iter().sum();
        let first = { sum.checked_sub(self.all) }.and_then(|s| s.checked_div(others));
        // No read is shorter than what each has before its first region. Where one is, they were not made alike (by an errand, and directly),
        // and nothing is known.
        let Some(first) = first.filter(|first| self.alone.iter().all(|alone| first <= alone))
        else {
            return;
        };
        let mut begin = first;
        for alone in &self.alone {
            let own = alone.saturating_sub(first);
            let behind = self.all.saturating_sub(begin + own);
            self.parts.push((begin, behind));
            begin += own;
        }
    }

    /// Returns the earliest time of a region's read after the begin of a read that took `first`, and the latest time of its read
    /// before the end of another read that took `second`, ns.
    fn of(&self, region: usize, first: u64, second: u64) -> (u64, u64) {
        let (begin, behind) = self.parts.get(region).copied().unwrap_or_default();
        // A slower read may have been held up in any of its parts: no more than the fastest one's time is sure.
        let scaled = |part: u64, took: u64| {
            (u128::from(part) * u128::from(took.min(self.all)) / u128::from(self.all.max(1))) as u64
        };
        (
            scaled(begin, first).saturating_sub(MARGIN_NS),
            scaled(behind, second),
        )
    }
}

impl Regions {
    /// Tells whether no semaphore is read.
    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Adds a semaphore.
    pub(super) fn add(&mut self, kind: Kind, address: GpuVa) {
        let address = address.0;
        if !address.is_multiple_of(4) || self.refused.contains(&(address & !(PAGE - 1))) {
            return;
        }
        let (begin, end) = match kind {
            Kind::Stamped => (address, address.saturating_add(STAMPED)),
            Kind::Words => {
                let begin = address & !(PIECE - 1);
                (begin, begin.saturating_add(PIECE))
            }
        };
        let page = address & !(PAGE - 1);
        if end > page.saturating_add(PAGE) {
            return;
        }
        let same = |r: &Region| r.kind == kind && r.begin & !(PAGE - 1) == page;
        let at = self.regions.iter().position(same);
        if at.is_none() && self.regions.len() < MOST_REGIONS {
            self.regions.push(Region {
                kind,
                begin,
                end,
                old: Vec::new(),
                old_begin: begin,
                slots: Vec::new(),
                #[cfg(feature = "in-step")]
                first: Vec::new(),
            });
        }
        let newest = self.regions.len().saturating_sub(1);
        let region = self.regions.get_mut(at.unwrap_or(newest));
        let Some(region) = region.filter(|r| same(r)) else {
            return;
        };
        region.begin = region.begin.min(begin);
        region.end = region.end.max(end);
        if kind == Kind::Stamped && !region.slots.iter().any(|s| s.address == address) {
            region.slots.push(Slot {
                address,
                payload: 0,
                gpu_ns: 0,
                known: false,
                pending: None,
            });
        }
        self.plan();
    }

    fn plan(&mut self) {
        let all = self.regions.iter();
        self.ranges = Ranges::new(all.map(|r| (r.begin, (r.end - r.begin) as usize)));
        self.buffer.resize(self.ranges.len(), 0);
        self.pace = Pace::new(self.regions.len());
    }

    /// Reads one region while the durations are still being learnt. Returns its index and the duration, ns.
    fn one(&mut self, memory: &impl Read, now: &impl Fn() -> u64) -> Option<(usize, u64)> {
        let index = self.pace.wants()?;
        let region = self.regions.get(index)?;
        let len = (region.end - region.begin) as usize;
        let range = Ranges::new(std::iter::once((region.begin, len)));
        let to = self.buffer.get_mut(..len)?;
        let begun = now();
        memory.read(&range, to).ok()?;
        Some((index, now() - begun))
    }

    /// Takes the words that were read for the first time, which are no change.
    #[cfg(feature = "in-step")]
    pub(super) fn first(&mut self) -> impl Iterator<Item = (u64, u32)> {
        self.regions.iter_mut().flat_map(|r| r.first.drain(..))
    }

    /// Reads all regions once. Changes go to `to`. `now` is called before and after. False if the process cannot be read any more.
    pub(super) fn read(
        &mut self,
        memory: &impl Read,
        now: &impl Fn() -> u64,
        to: &mut Vec<Stamp>,
    ) -> bool {
        let one = self.one(memory, now);
        let (begun, read, seen) = memory.counting(|| {
            let begun = now();
            let read = memory.read(&self.ranges, &mut self.buffer);
            (begun, read, now())
        });
        let read = match read {
            Ok(read) => read,
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => 0,
            Err(_) => return false,
        };
        let before = std::mem::replace(&mut self.last, begun);
        let before_took = std::mem::replace(&mut self.last_took, seen - begun);
        if let Some((region, alone)) = one {
            self.pace.take(region, alone, seen - begun);
        }
        let mut at = 0;
        let mut refused = None;
        for (i, region) in self.regions.iter_mut().enumerate() {
            let len = (region.end - region.begin) as usize;
            let Some(bytes) = self.buffer.get(at..at + len).filter(|_| at + len <= read) else {
                refused = Some(i);
                break;
            };
            at += len;
            let (least, behind) = self.pace.of(i, before_took, seen - begun);
            let (before, seen) = match before {
                0 => (0, seen),
                _ => (before + least, seen - behind.min(seen - begun)),
            };
            match region.kind {
                Kind::Stamped => region.stamped(bytes, before, seen, to),
                Kind::Words => region.words(bytes, before, seen, to),
            }
        }
        if let Some(i) = refused {
            let region = self.regions.remove(i);
            self.refused.push(region.begin & !(PAGE - 1));
            self.plan();
        }
        true
    }
}

impl Region {
    fn stamped(&mut self, bytes: &[u8], before: u64, seen: u64, to: &mut Vec<Stamp>) {
        for slot in &mut self.slots {
            let at = (slot.address - self.begin) as usize;
            let (Some(payload), Some(gpu_ns)) = (u32_at(bytes, at), u64_at(bytes, at + 8)) else {
                continue;
            };
            slot.take(payload, gpu_ns, before, seen, to);
        }
    }

    fn words(&mut self, bytes: &[u8], before: u64, seen: u64, to: &mut Vec<Stamp>) {
        let pieces = (self.begin..).step_by(PIECE as usize);
        for (begin, new) in pieces.zip(bytes.chunks(PIECE as usize)) {
            let old = begin
                .checked_sub(self.old_begin)
                .and_then(|from| self.old.get(from as usize..(from + PIECE) as usize));
            let words = (begin..).step_by(4).zip(new.chunks(4));
            let words = words.filter_map(|(at, word)| Some((at, u32_at(word, 0)?)));
            // What is read for the first time is no change.
            let Some(old) = old else {
                #[cfg(feature = "in-step")]
                self.first.extend(words.filter(|(_, word)| *word != 0));
                continue;
            };
            if new == old {
                continue;
            }
            for (address, payload) in words {
                if u32_at(old, (address - begin) as usize) != Some(payload) {
                    to.push(Stamp {
                        address: GpuVa(address),
                        payload,
                        gpu_ns: None,
                        before_ns: before,
                        seen_ns: seen,
                    });
                }
            }
        }
        self.old_begin = self.begin;
        self.old.clear();
        self.old.extend_from_slice(bytes);
    }
}

impl Slot {
    /// Takes the result of a read.
    fn take(&mut self, payload: u32, gpu_ns: u64, before: u64, seen: u64, to: &mut Vec<Stamp>) {
        let stands = payload == self.payload && gpu_ns == self.gpu_ns;
        if self.known && (stands || payload == self.payload || gpu_ns == self.gpu_ns) {
            if let Some(pending) = &mut self.pending
                && !stands
                && gpu_ns == self.gpu_ns
            {
                // The number that was read with this time was that of the write before.
                pending.payload = payload;
                self.payload = payload;
            } else if stands {
                to.extend(self.pending.take());
            }
            // Half of a write was read: the next read finds all of it.
            return;
        }
        to.extend(self.pending.take());
        self.payload = payload;
        self.gpu_ns = gpu_ns;
        let before_ns = if std::mem::replace(&mut self.known, true) {
            before
        } else {
            0
        };
        // A semaphore that was never written has no time.
        self.pending = (gpu_ns != 0).then_some(Stamp {
            address: GpuVa(self.address),
            payload,
            gpu_ns: Some(gpu_ns),
            before_ns,
            seen_ns: seen,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;

    /// Memory of words, and how often it was read.
    #[derive(Default)]
    struct Fake {
        words: RefCell<BTreeMap<u64, u32>>,
        unmapped: Cell<u64>,
    }

    impl Fake {
        fn stamp(&self, at: u64, payload: u32, gpu_ns: u64) {
            let mut words = self.words.borrow_mut();
            words.insert(at, payload);
            words.insert(at + 8, gpu_ns as u32);
            words.insert(at + 12, (gpu_ns >> 32) as u32);
        }
    }

    impl Read for Fake {
        fn read(&self, ranges: &Ranges, to: &mut [u8]) -> io::Result<usize> {
            let mut at = 0;
            for (begin, len) in ranges.each() {
                if begin & !(PAGE - 1) == self.unmapped.get() {
                    return Ok(at);
                }
                for i in (0..len).step_by(4) {
                    let word = self.words.borrow().get(&(begin + i as u64)).copied();
                    to[at + i..at + i + 4].copy_from_slice(&word.unwrap_or(0).to_le_bytes());
                }
                at += len;
            }
            Ok(at)
        }
    }

    const A: u64 = 0x2_0460_fff0;
    const B: u64 = 0x2_0460_ffe0;
    const WORD: u64 = 0x2_0463_7010;

    fn read(regions: &mut Regions, memory: &Fake, time: u64) -> Vec<(u64, u32, Option<u64>, u64)> {
        let mut to = Vec::new();
        let clock = Cell::new(time);
        let now = || clock.replace(clock.get() + 1);
        assert!(regions.read(memory, &now, &mut to));
        // A few looks at the clock before a read are no time here.
        let short = |s: &Stamp| (s.address.0, s.payload, s.gpu_ns, s.before_ns / 10 * 10);
        to.iter().map(short).collect()
    }

    #[test]
    fn changes_are_seen_once_each() {
        let (mut regions, memory) = (Regions::default(), Fake::default());
        regions.add(Kind::Stamped, GpuVa(A));
        regions.add(Kind::Stamped, GpuVa(B));
        regions.add(Kind::Words, GpuVa(WORD));
        memory.stamp(A, 7, 1000);
        assert_eq!(read(&mut regions, &memory, 10), []);
        // What was there before the first read: it is not known since when.
        assert_eq!(read(&mut regions, &memory, 20), [(A, 7, Some(1000), 0)]);
        memory.stamp(A, 8, 2000);
        memory.stamp(B, 1, 2010);
        memory.words.borrow_mut().insert(WORD + 0x20, 41);
        assert_eq!(
            read(&mut regions, &memory, 30),
            [(WORD + 0x20, 41, None, 20)]
        );
        assert_eq!(
            read(&mut regions, &memory, 40),
            [(A, 8, Some(2000), 20), (B, 1, Some(2010), 20)]
        );
        assert_eq!(read(&mut regions, &memory, 50), []);
    }

    /// A channel's first submission makes words be read beside those that are read already. The end of a kernel at that moment is
    /// still seen.
    #[test]
    fn a_change_is_seen_while_a_region_grows() {
        let (mut regions, memory) = (Regions::default(), Fake::default());
        regions.add(Kind::Words, GpuVa(WORD));
        memory.words.borrow_mut().insert(WORD + 0x20, 41);
        assert_eq!(read(&mut regions, &memory, 10), []);
        for (n, grown) in [WORD + 0x400, WORD - 0xc00].into_iter().enumerate() {
            let (number, time) = (42 + n as u32, 20 + 10 * n as u64);
            regions.add(Kind::Words, GpuVa(grown));
            let mut words = memory.words.borrow_mut();
            words.insert(WORD + 0x20, number);
            // What is new in it is no change.
            words.insert(grown, 7);
            drop(words);
            assert_eq!(
                read(&mut regions, &memory, time),
                [(WORD + 0x20, number, None, time - 10)]
            );
            memory.words.borrow_mut().insert(grown, 8);
            let changed = read(&mut regions, &memory, time + 5);
            assert_eq!(changed[0].0, grown, "{changed:?}");
        }
    }

    #[test]
    fn each_region_is_read_in_its_part_of_the_time() {
        let mut pace = Pace::new(3);
        assert_eq!(pace.of(0, 9, 9), (0, 0), "nothing is known");
        // 400 ns for any read; the second region takes longer.
        let alone = [500, 700, 450];
        while let Some(region) = pace.wants() {
            let odd = pace.samples as u64 % 7;
            pace.take(region, alone[region] + odd, 850 + odd);
        }
        assert_eq!(pace.of(0, 850, 850), (250, 350));
        assert_eq!(pace.of(1, 850, 850), (350, 50));
        assert_eq!(pace.of(2, 850, 850), (650, 0));
        // Faster than those that were learnt from; held up, who knows where.
        assert_eq!(pace.of(1, 680, 680), (250, 40));
        for took in [1_700, 9_000] {
            assert_eq!(pace.of(1, took, took), (350, 50));
        }
        let mut one = Pace::new(1);
        assert_eq!(one.wants(), None);
        one.alone = vec![500, 500];
        (one.all, one.samples) = (2_000, 0);
        one.split();
        assert_eq!(
            one.of(1, 2_000, 2_000),
            (0, 0),
            "all of them took longer than each"
        );
        // Two were read alone while reads were slow, and all of them while they were fast.
        let mut mixed = Pace::new(3);
        mixed.alone = vec![20_500, 700, 20_450];
        mixed.all = 850;
        mixed.split();
        assert_eq!(mixed.of(2, 850, 850), (0, 0), "reads of two kinds");
    }

    #[test]
    fn a_write_that_is_read_in_halves_is_not_taken() {
        let (mut regions, memory) = (Regions::default(), Fake::default());
        regions.add(Kind::Stamped, GpuVa(A));
        memory.stamp(A, 7, 1000);
        read(&mut regions, &memory, 10);
        read(&mut regions, &memory, 20);
        // The number is new, the time is not; then the other way round.
        memory.stamp(A, 8, 1000);
        assert_eq!(read(&mut regions, &memory, 30), []);
        memory.stamp(A, 8, 2000);
        assert_eq!(read(&mut regions, &memory, 40), []);
        assert_eq!(read(&mut regions, &memory, 50), [(A, 8, Some(2000), 30)]);
        memory.stamp(A, 8, 3000);
        assert_eq!(read(&mut regions, &memory, 60), []);
        memory.stamp(A, 9, 3000);
        assert_eq!(read(&mut regions, &memory, 70), []);
        assert_eq!(read(&mut regions, &memory, 80), [(A, 9, Some(3000), 60)]);
        // The number of one write with the time of the next.
        memory.stamp(A, 10, 5000);
        assert_eq!(read(&mut regions, &memory, 90), []);
        memory.stamp(A, 11, 5000);
        assert_eq!(read(&mut regions, &memory, 100), []);
        assert_eq!(read(&mut regions, &memory, 110), [(A, 11, Some(5000), 80)]);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let (mut regions, memory) = (Regions::default(), Fake::default());
        memory.unmapped.set(A & !(PAGE - 1));
        regions.add(Kind::Stamped, GpuVa(A));
        regions.add(Kind::Stamped, GpuVa(0x3000));
        memory.stamp(0x3000, 5, 50);
        assert_eq!(read(&mut regions, &memory, 10), []);
        read(&mut regions, &memory, 20);
        assert_eq!(read(&mut regions, &memory, 30), [(0x3000, 5, Some(50), 0)]);
        regions.add(Kind::Stamped, GpuVa(A));
        assert_eq!(regions.regions.len(), 1);
        for n in 0..100 {
            regions.add(Kind::Words, GpuVa(0x10_0000 + n * PAGE));
        }
        assert_eq!(regions.regions.len(), MOST_REGIONS);
        regions.add(Kind::Words, GpuVa(u64::MAX));
        regions.add(Kind::Stamped, GpuVa(u64::MAX - 3));
    }
}
