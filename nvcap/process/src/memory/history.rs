//! A ring read backwards in time: its newest entries with their pushbuffer bytes, and counts of the entries that cannot be
//! believed.
//!
//! The process may reuse the memory while it is read. GP_PUT is therefore read again during the reading, and entries whose slots the
//! process may have rewritten since are given up. If a newer entry points to the same pushbuffer range as an older one, the range holds the
//! newer bytes, so the older entry's bytes are given up, too. Both losses are counted, and the bytes are not shown as submitted.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use super::{
    captured::ChannelSnapshot,
    scan::{self, FoundRing, Places},
    va_inference::{self, Window},
};
use crate::memory::ring::{self, Ring};
use crate::procfs::mem::ReadMemory;
use nvcap_decode::record::{How, Segment, Submission};
use nvcap_decode::wire::{GpuVa, entry};

/// The most pushbuffer bytes of one channel that are read. A ring of garbage could name gigabytes.
const MOST_BYTES: u64 = 256 << 20;
/// Shortest time between two entries that a process submits, ns: a store to video memory and a doorbell take longer.
const FASTEST_NS: u64 = 300;
/// Number of bytes behind the newest entry's bytes that the process may be writing for the next entry: the size of a few launches.
const BEING_WRITTEN: u32 = 16 << 10;
/// The most pushbuffer bytes that are read at once if the bytes of several entries are adjacent. The cost of a read depends on the pages
/// that it touches.
const RUN: u64 = 256 << 10;
/// Number of entries whose bytes are read one by one before GP_PUT is read again.
const BETWEEN: usize = 16;
/// Number of ring entries that are read at once.
const PIECE: u32 = 128;
/// Number of entries at a ring's beginning that are examined for classes.
const FIRST: usize = 3;

/// Reads a channel's newest entries into its snapshot.
pub(super) fn read_ring(
    memory: &impl ReadMemory,
    places: &Places<'_>,
    seen: &mut ChannelSnapshot,
    last: u32,
    before: u32,
) -> io::Result<()> {
    let entries = seen.found.entries.max(1);
    let (get, put) = scan::get_put(memory, seen.found.userd)?;
    if get >= entries || put >= entries {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    (seen.get, seen.put) = (get, put);
    let pending = (put + entries - get) % entries;
    // One slot of a ring is never used, and the GPU may still be at the entry before GP_GET.
    let want = last
        .max((pending + 1).saturating_add(before))
        .min(entries - 1);
    let around = want.saturating_sub(put);
    let (raw, overwritten) = read_entries(memory, &seen.found, put, want)?;
    seen.overwritten = overwritten;
    // Slots that were never used are zero: the oldest ones, or all of them.
    let first = overwritten as usize;
    let unused = raw
        .get(first..)
        .unwrap_or_default()
        .iter()
        .take_while(|e| **e == 0)
        .count();
    let begin = first + unused;
    // If the ring has wrapped, positions count from the previous lap.
    let lap = if (begin as u32) < around {
        u64::from(entries)
    } else {
        0
    };
    let end = lap + u64::from(put);
    let count = raw.len() - begin;
    let newest = raw.get(begin..).unwrap_or_default();
    let mut bytes = Bytes {
        memory,
        places,
        left: MOST_BYTES,
    };
    let (all, until) = submissions(&mut bytes, seen, newest, end - count as u64);
    seen.submissions = all;
    // Further back than was asked for, if the ring's beginning is still there.
    if around == 0 && u64::from(put) > count as u64 {
        let mut raw = [0; 8 * FIRST];
        let n = FIRST.min(put as usize - count);
        let oldest = memory.word(seen.found.ring + 8 * u64::from(put))?;
        if let Some(raw) = raw.get_mut(..8 * n).filter(|_| oldest == 0) {
            memory.read_bytes(seen.found.ring, raw)?;
            let raw: Vec<u64> = entry::iter(raw).collect();
            seen.first = submissions(&mut bytes, seen, &raw, 0).0;
        }
    }
    let since = submitted_since(memory, &seen.found, put);
    let until: Vec<usize> = until
        .iter()
        .map(|put| ((put % entries + entries - seen.put) % entries) as usize)
        .collect();
    give_up_recycled(seen, &since, &until);
    Ok(())
}

/// Returns the number of a channel's newest `last` entries whose memory is now used by newer entries. It reads none of their bytes.
pub(super) fn used_again(
    memory: &impl ReadMemory,
    found: &FoundRing,
    last: u32,
) -> io::Result<u32> {
    let entries = found.entries.max(1);
    let (_, put) = scan::get_put(memory, found.userd)?;
    let (raw, overwritten) = read_entries(memory, found, put % entries, last.min(entries - 1))?;
    let mut later = Taken::default();
    let ranges = raw.iter().rev().filter_map(|e| range_of(*e));
    let again = ranges.filter(|(address, len)| *len > 0 && later.take(*address, *len));
    Ok(overwritten + again.count() as u32)
}

/// Returns the entries from `put` on. They were submitted while pushbuffers were read, and may use the memory of older ones.
fn submitted_since(memory: &impl ReadMemory, found: &FoundRing, put: u32) -> Vec<u64> {
    let entries = found.entries.max(1);
    let Ok((_, now)) = scan::get_put(memory, found.userd) else {
        return Vec::new();
    };
    let count = (now % entries + entries - put) % entries;
    let on = Ring {
        address: found.ring,
        entries,
    };
    let put = u64::from(put);
    ring::entries(memory, on, put, put + u64::from(count)).unwrap_or_default()
}

#[cfg(test)]
thread_local! {
    /// Time at which a test has stopped the clock.
    pub(super) static STOPPED: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// The clock that measures the pause between two reads.
fn now() -> Instant {
    #[cfg(test)]
    if let Some(at) = STOPPED.get() {
        return at;
    }
    Instant::now()
}

/// Reads the `want` entries before `put`, oldest first. Also returns the number of the oldest entries that may have been overwritten during
/// the reading.
fn read_entries(
    memory: &impl ReadMemory,
    found: &FoundRing,
    put: u32,
    want: u32,
) -> io::Result<(Vec<u64>, u32)> {
    let entries = found.entries.max(1);
    let mut raw = vec![0; want as usize * 8];
    // Entries that the process has written since replaced the oldest ones; one slot of a ring is always free.
    let (mut overwritten, mut written, mut last) = (0, 0_u32, put);
    // The oldest entries are read first, because they are overwritten first. They are read in pieces, because a read of GPU memory takes
    // long, and after each piece GP_PUT is read again.
    let mut at = 0;
    while at < want {
        let begin = now();
        let index = (put + entries - want + at) % entries;
        let run = PIECE.min(want - at).min(entries - index);
        let Some(piece) = raw.get_mut(at as usize * 8..(at + run) as usize * 8) else {
            break;
        };
        memory.read_bytes(found.ring + 8 * u64::from(index), piece)?;
        at += run;
        let (_, later) = scan::get_put(memory, found.userd)?;
        let moved = (later % entries + entries - last) % entries;
        // Positions are known modulo the ring. In so long a pause, the ring may have wrapped.
        let slow = now() - begin > Duration::from_nanos(FASTEST_NS) * entries;
        written += if moved != 0 && slow { entries } else { moved };
        last = later % entries;
        let lost = (want + written).saturating_sub(entries - 1);
        // Entries that were read before that were intact when they were read.
        if lost > at - run {
            overwritten = overwritten.max(lost.min(at));
        }
    }
    Ok((entry::iter(&raw).collect(), overwritten))
}

/// Returns the entries from `position` on, each as a submission, and GP_PUT after the bytes of each were read.
fn submissions(
    from: &mut Bytes<'_, impl ReadMemory>,
    seen: &mut ChannelSnapshot,
    entries: &[u64],
    position: u64,
) -> (Vec<Submission>, Vec<u32>) {
    let (memory, places) = (from.memory, from.places);
    let size = seen.found.entries.max(1);
    let mut extended = 0;
    let mut all = Vec::with_capacity(entries.len());
    let mut until: Vec<u32> = Vec::with_capacity(entries.len());
    let mut run = Run::default();
    let now = |seen: &ChannelSnapshot| {
        scan::get_put(memory, seen.found.userd).map_or(seen.put, |gp| gp.1)
    };
    for (n, (raw, position)) in entries.iter().zip(position..).enumerate() {
        if !run.holds(*raw, extended) {
            run = Run::read(
                memory,
                places,
                entries.get(n..).unwrap_or_default(),
                extended,
            );
            run.until = now(seen);
        }
        let segment = from.segment(*raw, &mut extended, seen, &run);
        let index = (position % u64::from(size)) as u32;
        all.push(Submission {
            absent_ns: None,
            at: seen.channel.at,
            channel: seen.channel.id,
            token: None,
            position,
            gp_get: Some(seen.get),
            prev_put: index,
            gp_put: (index + 1) % size,
            ip: None,
            doorbell: None,
            how: How::Observed,
            late: false,
            thread: None,
            segments: vec![segment],
        });
        if run.holds(*raw, extended) {
            until.resize(all.len(), run.until);
        } else if all.len() - until.len() >= BETWEEN || all.len() == entries.len() {
            until.resize(all.len(), now(seen));
        }
    }
    (all, until)
}

/// Bytes of several entries, read at once.
#[derive(Default)]
struct Run {
    start: u64,
    bytes: Vec<u8>,
    /// GP_PUT after the read.
    until: u32,
}

impl Run {
    /// Reads the bytes of the first of `entries` and of those that follow, as far as they are adjacent. Empty if they are not, or cannot be
    /// read.
    fn read(memory: &impl ReadMemory, places: &Places<'_>, entries: &[u64], base: u64) -> Self {
        let mut run: Option<(u64, u64)> = None;
        for raw in entries {
            let Some((GpuVa(address), len)) = entry::segment_of(*raw, base) else {
                break;
            };
            let (start, end) = run.unwrap_or((address, address));
            let to = address + u64::from(len);
            if address < end || address - end > 256 || to - start > RUN {
                break;
            }
            run = Some((start, to));
        }
        let Some((start, end)) = run.filter(|r| places.holds(r.0, r.1 - r.0)) else {
            return Self::default();
        };
        let mut bytes = vec![0; (end - start) as usize];
        match memory.read_bytes(start, &mut bytes) {
            Ok(()) => Self {
                start,
                bytes,
                until: 0,
            },
            Err(_) => Self::default(),
        }
    }

    fn of(&self, address: u64, len: u32) -> Option<&[u8]> {
        let from = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(len as usize)?)
    }

    fn holds(&self, raw: u64, base: u64) -> bool {
        entry::segment_of(raw, base).is_none_or(|(address, len)| self.of(address.0, len).is_some())
    }
}

/// Source of a channel's pushbuffer bytes.
struct Bytes<'a, M> {
    memory: &'a M,
    places: &'a Places<'a>,
    /// Number of bytes that may still be read.
    left: u64,
}

impl<M: ReadMemory> Bytes<'_, M> {
    /// Returns an entry and the bytes to which it points. `run` has bytes that were read before.
    fn segment(
        &mut self,
        entry: u64,
        extended: &mut u64,
        seen: &mut ChannelSnapshot,
        run: &Run,
    ) -> Segment {
        let Some((GpuVa(address), len)) = entry::pass(entry, extended) else {
            return Segment {
                entry,
                ..Segment::default()
            };
        };
        // Without bytes, the entry still tells the decoder how many there would be.
        if !self.places.holds(address, u64::from(len)) {
            seen.elsewhere += 1;
            return Segment {
                entry,
                ..Segment::default()
            };
        }
        let Some(left) = self.left.checked_sub(u64::from(len)) else {
            seen.unreadable += u64::from(len);
            return Segment {
                entry,
                ..Segment::default()
            };
        };
        self.left = left;
        let (bytes, holes) = match run.of(address, len) {
            Some(bytes) => (bytes.to_vec(), Vec::new()),
            None => self.memory.read_bytes_lax(address, len as usize),
        };
        seen.unreadable += holes.iter().map(|h| u64::from(h.len)).sum::<u64>();
        Segment {
            entry,
            bytes,
            holes,
        }
    }
}

/// Disjoint ranges of memory, from start to end.
#[derive(Default)]
struct Taken(BTreeMap<u64, u64>);

impl Taken {
    fn overlaps(&self, address: u64, len: u32) -> bool {
        let before = self.0.range(..address + u64::from(len)).next_back();
        before.is_some_and(|(_, end)| *end > address)
    }

    /// Adds a range. Returns true if a part of it was taken before.
    fn take(&mut self, address: u64, len: u32) -> bool {
        let (mut start, mut end) = (address, address + u64::from(len));
        let mut over = false;
        while let Some((&its, &its_end)) =
            self.0.range(..end).next_back().filter(|(_, e)| **e > start)
        {
            over = true;
            (start, end) = (start.min(its), end.max(its_end));
            self.0.remove(&its);
        }
        self.0.insert(start, end);
        over
    }
}

/// Returns the address and length of the range to which an entry points, without the bits of the extended base; `None` for a control entry.
pub(super) fn range_of(raw: u64) -> Option<(u64, u32)> {
    entry::segment_of(raw, 0).map(|(address, len)| (address.0, len))
}

fn give_up(segment: &mut Segment, recycled: &mut u32) {
    if !segment.bytes.is_empty() {
        segment.bytes.clear();
        segment.holes.clear();
        *recycled += 1;
    }
}

/// Gives up the bytes of entries whose range a newer entry points to as well, because only the newer entry's bytes are known to be the
/// submitted ones. `since` are the entries that came while bytes were read. `until` has, for each submission, the number of these entries
/// that had come when its bytes had been read.
fn give_up_recycled(seen: &mut ChannelSnapshot, since: &[u64], until: &[usize]) {
    let mut recycled = 0;
    // Oldest first: the set of entries that came meanwhile grows.
    let (mut meanwhile, mut came) = (Taken::default(), 0);
    for (n, submission) in seen.submissions.iter_mut().enumerate() {
        let now = until
            .get(n)
            .copied()
            .unwrap_or(since.len())
            .min(since.len());
        for raw in since.get(came..now).unwrap_or_default() {
            if let Some((address, len)) = range_of(*raw) {
                meanwhile.take(address, len);
            }
        }
        came = came.max(now);
        // The range that the process was writing then, right behind the newest entry.
        let newest = came.checked_sub(1).and_then(|n| since.get(n)).copied();
        let writing = newest.and_then(range_of).map(|(a, len)| a + u64::from(len));
        for segment in &mut submission.segments {
            let Some((address, len)) = range_of(segment.entry) else {
                continue;
            };
            let being_written = writing.is_some_and(|w| {
                address < w + u64::from(BEING_WRITTEN) && w < address + u64::from(len)
            });
            if being_written || meanwhile.overlaps(address, len) {
                give_up(segment, &mut recycled);
            }
        }
    }
    // Newest first: the ranges that later entries use.
    let mut taken = Taken::default();
    for raw in since {
        if let Some((address, len)) = range_of(*raw) {
            taken.take(address, len);
        }
    }
    let mut later = Taken::default();
    let ours = seen.submissions.iter_mut().rev();
    for segment in ours.flat_map(|s| s.segments.iter_mut().rev()) {
        let Some((address, len)) = range_of(segment.entry) else {
            continue;
        };
        taken.take(address, len);
        if later.take(address, len) {
            give_up(segment, &mut recycled);
        }
    }
    // The ring's beginning was read last of all.
    for segment in seen.first.iter_mut().flat_map(|s| s.segments.iter_mut()) {
        if let Some((address, len)) = range_of(segment.entry)
            && taken.overlaps(address, len)
        {
            give_up(segment, &mut recycled);
        }
    }
    seen.recycled += recycled;
}

/// Reads entries that have GPU addresses only, as far as the matching addresses in the process can be found.
pub(super) fn resolve(
    memory: &impl ReadMemory,
    places: &Places<'_>,
    channels: &mut [ChannelSnapshot],
) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    for seen in channels.iter_mut().filter(|s| s.elsewhere > 0) {
        // A pushbuffer may be in several pieces of memory, which are found one at a time, newest first.
        for _ in 0..4 {
            let left: Vec<(u64, u32)> = seen
                .submissions
                .iter()
                .flat_map(|s| &s.segments)
                .filter(|s| s.bytes.is_empty())
                .filter_map(|s| range_of(s.entry))
                .collect();
            let known = |windows: &[Window]| {
                let newest = left.last().copied();
                newest.is_some_and(|(a, n)| {
                    windows.iter().any(|w| w.cpu_of(a, u64::from(n)).is_some())
                })
            };
            if !known(&windows) {
                match va_inference::window(memory, places, &left) {
                    Some(window) => windows.push(window),
                    None => break,
                }
            }
            let mut filled = 0;
            let all = seen.first.iter_mut().chain(&mut seen.submissions);
            for segment in all.flat_map(|s| &mut s.segments) {
                let Some((address, len)) = range_of(segment.entry) else {
                    continue;
                };
                let cpu = windows
                    .iter()
                    .find_map(|w| w.cpu_of(address, u64::from(len)));
                if let (true, Some(cpu)) = (segment.bytes.is_empty(), cpu) {
                    (segment.bytes, segment.holes) = memory.read_bytes_lax(cpu, len as usize);
                    filled += 1;
                }
            }
            seen.elsewhere = seen.elsewhere.saturating_sub(filled);
            if filled == 0 || seen.elsewhere == 0 {
                break;
            }
        }
        give_up_recycled(seen, &[], &[]);
    }
    windows
}
