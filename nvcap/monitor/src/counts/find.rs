//! Channels of a process, and those of them whose tracking semaphore counts the submissions.
//!
//! A semaphore's number is trusted when the ring proves it: the newest entry ends with a release of that semaphore, and the releases at the
//! ends of the entries before it are of the same semaphore, with payloads that go down by one from release to release. The number in memory
//! must not be ahead of the newest payload, and at most as far behind as the ring has entries. At each later reading at which GP_PUT has
//! moved, the newest entry must end with a release of that semaphore again.

use std::collections::{BTreeMap, BTreeSet};

use nvcap_decode::record::Device;
use nvcap_decode::wire::release::{self, Release};
use nvcap_decode::wire::{GpuVa, entry};
use nvcap_process::memory::maps::Area;
use nvcap_process::memory::notifier;
use nvcap_process::memory::ring::{self, Ring};
use nvcap_process::memory::scan::{self, Effort, FoundRing, Place};
use nvcap_process::memory::tokens;
use nvcap_process::procfs::mem::ReadMemory;

/// Entries before GP_PUT that must agree.
const CHECKED: u32 = 8;
/// Bytes at the end of a segment that can hold its release.
const TAIL: u64 = 24;
/// Number of slots that are watched in a mapping in which no channel was found yet.
const FIRST_SLOTS: usize = 4;
/// Number of times that a ring that moves on is read again.
const TRIES: u32 = 4;

/// Memory that entries and semaphores may lie in: readable, and no doorbell page.
#[derive(Clone, Debug, Default)]
pub(super) struct Readable(Vec<(u64, u64)>);

impl Readable {
    pub(super) fn new(areas: &[Area]) -> Self {
        let fit = |a: &&Area| {
            // Managed memory would move away from the GPU when it is read.
            a.read && !a.is_doorbell_shape() && a.device() != Some(Device::Uvm)
        };
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for area in areas.iter().filter(fit) {
            match ranges.last_mut() {
                Some((_, end)) if *end == area.start => *end = area.end,
                _ => ranges.push((area.start, area.end)),
            }
        }
        Self(ranges)
    }

    pub(super) fn holds(&self, at: u64, len: u64) -> bool {
        let behind = self.0.partition_point(|(start, _)| *start <= at);
        let range = behind.checked_sub(1).and_then(|i| self.0.get(i));
        range.is_some_and(|(_, end)| at.checked_add(len).is_some_and(|to| to <= *end))
    }
}

/// A channel's tracking semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tracking {
    pub address: GpuVa,
    /// True if the GPU's time is written behind the number.
    pub stamped: bool,
    /// True if its number counts the submissions from the channel's beginning.
    pub whole: bool,
    /// The payload of the newest entry.
    pub newest: u32,
}

/// A channel that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    pub found: FoundRing,
    /// Tracking semaphore of the channel; none where nothing proves one.
    pub tracking: Option<Tracking>,
}

/// Result of a search.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    pub channels: Vec<Channel>,
    /// Pages that may hold the channels' error notifiers.
    pub notifiers: Vec<u64>,
    /// Numbers of the channels' slots, by ring; the notifiers lie in the order of these numbers. Empty where that is not known.
    pub slots: BTreeMap<u64, usize>,
    /// Slots in which nothing proves a channel, and that may come into use.
    pub watched: Vec<Slot>,
}

/// A slot as a search left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub userd: u64,
    /// GP_GET and GP_PUT.
    pub positions: u64,
}

impl Slot {
    /// Tells whether its positions are those of a channel at work: one that could not be read at that moment, as its ring went on too fast.
    pub(super) fn may_be_a_channel(self) -> bool {
        self.positions != 0
    }
}

/// Looks for the channels of a process.
pub(super) fn search(memory: &impl ReadMemory, areas: &[Area], effort: Effort) -> Search {
    let readable = Readable::new(areas);
    let mut search = Search::default();
    for found in scan::search(memory, areas, effort).found {
        if found.used {
            search.channels.push(Channel {
                tracking: tracking(memory, &readable, &found),
                found,
            });
        }
    }
    // A ring that could not be read leaves its USERD alone, to which another channel's ring may fit.
    let habit = |c: &Channel| c.found.proof.place == Place::Habit;
    search.channels.sort_by_key(|c| !habit(c));
    let (mut rings, mut semaphores) = (BTreeSet::new(), BTreeSet::new());
    search.channels.retain(|c| {
        let new = c.tracking.is_none_or(|t| semaphores.insert(t.address.0));
        rings.insert(c.found.ring) && new
    });
    search.watched = watched(memory, areas, &search.channels);
    search.notifiers = notifier::pages(areas);
    let found: Vec<FoundRing> = search.channels.iter().map(|c| c.found).collect();
    let rings = found.iter().map(|f| f.ring);
    search.slots = rings
        .zip(tokens::slots(areas, &found).unwrap_or_default())
        .collect();
    search
}

/// The slots that may come into use, where libcuda has slots: all that are free behind used ones, and the first ones of a mapping in which
/// none is used.
fn watched(memory: &impl ReadMemory, areas: &[Area], channels: &[Channel]) -> Vec<Slot> {
    let used: BTreeSet<u64> = channels.iter().map(|c| c.found.ring).collect();
    let mut watched = Vec::new();
    for (area, _) in scan::with_slots(areas) {
        let is_used = used.range(area.start..area.end).next().is_some();
        let most = if is_used { usize::MAX } else { FIRST_SLOTS };
        let mut seen = 0;
        scan::walk_slots(area, |ring| {
            if used.contains(&ring) {
                return true;
            }
            if seen < most {
                seen += 1;
                let userd = ring + scan::USERD;
                let fits = |(get, put): &(u32, u32)| *get < scan::ENTRIES && *put < scan::ENTRIES;
                if let Some((get, put)) = scan::get_put(memory, userd).ok().filter(fits) {
                    watched.push(Slot {
                        userd,
                        positions: u64::from(put) << 32 | u64::from(get),
                    });
                }
            }
            false
        });
    }
    watched
}

/// The tracking semaphore of a channel, if the newest entries prove it.
pub(super) fn tracking(
    memory: &impl ReadMemory,
    readable: &Readable,
    found: &FoundRing,
) -> Option<Tracking> {
    (0..TRIES).find_map(|_| {
        let (_, put) = scan::get_put(memory, found.userd).ok()?;
        proven(memory, readable, found, put)
    })
}

fn proven(
    memory: &impl ReadMemory,
    readable: &Readable,
    found: &FoundRing,
    put: u32,
) -> Option<Tracking> {
    let on = Ring {
        address: found.ring,
        entries: found.entries,
    };
    let size = found.entries.max(1);
    // As long as the ring has not gone round, the entries from GP_PUT on are zero.
    let around = put < size && memory.word(found.ring + 8 * u64::from(put)).ok()? != 0;
    let count = if around { CHECKED } else { put.min(CHECKED) };
    let end = u64::from(size) + u64::from(put % size);
    let raw = ring::entries(memory, on, end - u64::from(count), end).ok()?;
    let release = |raw: &u64| release_of(memory, readable, *raw);
    let newest = release(raw.last()?)?;
    let mut last = newest.payload;
    let mut agreed = 1;
    for older in raw.iter().rev().skip(1).filter_map(release) {
        if older.address != newest.address || older.payload != last.wrapping_sub(1) {
            return None;
        }
        last = older.payload;
        agreed += 1;
    }
    let at = newest.address.0;
    if !readable.holds(at, 16) {
        return None;
    }
    let number = number(memory, at)?;
    let behind = newest.payload.wrapping_sub(number);
    // One release alone proves little: it must be the first of its channel.
    let first = agreed == 1 && newest.payload == 1 && !around;
    if !(agreed > 1 || first) || behind > size {
        return None;
    }
    // Either each entry has had one release, from the first on; or the ring still has its first release, and that has the payload 1.
    let whole = newest.payload % size == put % size || !around && begins(memory, on, put, release);
    Some(Tracking {
        address: newest.address,
        stamped: newest.stamped,
        whole,
        newest: newest.payload,
    })
}

/// Tells whether the first release in a ring that has not gone round yet has the payload 1.
fn begins(
    memory: &impl ReadMemory,
    on: Ring,
    put: u32,
    release: impl Fn(&u64) -> Option<Release>,
) -> bool {
    let raw = ring::entries(memory, on, 0, u64::from(put.min(CHECKED)));
    let first = raw.ok().and_then(|raw| raw.iter().find_map(release));
    first.is_some_and(|first| first.payload == 1)
}

/// The number in a semaphore.
pub(super) fn number(memory: &impl ReadMemory, at: u64) -> Option<u32> {
    let mut number = [0; 4];
    memory.read_bytes(at, &mut number).ok()?;
    Some(u32::from_le_bytes(number))
}

/// Tells whether the word there has yet to reach `end`; none if it may not or cannot be read.
pub(super) fn is_open(
    memory: &impl ReadMemory,
    readable: &Readable,
    at: GpuVa,
    end: u32,
) -> Option<bool> {
    let number = readable.holds(at.0, 4).then(|| number(memory, at.0))??;
    Some(number.wrapping_sub(end).cast_signed() < 0)
}

/// The release at the end of an entry's segment.
pub(super) fn release_of(
    memory: &impl ReadMemory,
    readable: &Readable,
    raw: u64,
) -> Option<Release> {
    let (at, len) = entry::segment_of(raw, 0)?;
    let len = u64::from(len);
    if !readable.holds(at.0, len) {
        return None;
    }
    let tail = len.min(TAIL);
    let mut bytes = [0; TAIL as usize];
    let bytes = bytes.get_mut(..tail as usize)?;
    memory.read_bytes(at.0 + len - tail, bytes).ok()?;
    release::at_end(bytes)
}
