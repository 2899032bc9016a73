//! Entries of a ring that were submitted a while ago, with their pushbuffer bytes, read from outside.
//!
//! The process may use this memory again while it is read, so a block is believed only if nothing newer lies where it was read. Newer
//! entries must not have the block's bytes, and no byte of it may lie where the process writes next. If the tracking semaphore of the
//! channel is proven, the newest entry and those that came during the reading are compared, and the block's releases must go up by one.
//! Without it, all newer entries are compared. Of a single submission the number is known: if the semaphore shows after the reading that
//! it is still not done, its bytes are its own, for the process does not use them again before that.

use super::find::{self, Readable};
use nvcap_decode::record::Segment;
use nvcap_decode::wire::{GpuVa, entry, release};
use nvcap_process::memory::ring::{self, Ring};
use nvcap_process::memory::scan::{self, FoundRing};
use nvcap_process::procfs::mem::ReadMemory;

/// Number of the oldest slots of a ring that are not read: the process writes them next.
const RESERVE: u32 = 64;
/// Number of bytes behind the newest entry's that the process may be writing.
const BEING_WRITTEN: u64 = 16 << 10;
/// Longest block that is read, bytes.
const MOST_BYTES: u64 = 4 << 20;

/// Entries that lie one behind the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    /// Position of the first entry, on a scale on which GP_PUT is the ring's size plus its own value.
    pub position: u64,
    /// The entries, each with its bytes.
    pub segments: Vec<Segment>,
    /// True if the first of the bytes may belong to the next submission, which the process is writing; only for single submissions.
    pub is_doubtful: bool,
}

/// Reason why a block could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// The channel is gone.
    Gone,
    /// The ring's memory or the pushbuffer's was used again.
    UsedAgain,
    /// The pushbuffer lies in memory that is not readable, or is larger than `MOST_BYTES`.
    Elsewhere,
}

/// Returns the number of the newest `came` entries that a ring still has.
pub(super) fn held(found: &FoundRing, came: u64) -> u32 {
    let most = found.entries.saturating_sub(1 + RESERVE);
    u32::try_from(came).unwrap_or(u32::MAX).min(most)
}

/// Position of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    pub readable: &'a Readable,
    pub found: &'a FoundRing,
    /// The channel's tracking semaphore.
    pub tracking: Option<GpuVa>,
    /// GP_PUT at an earlier moment: what was submitted since is no part of the block.
    pub put: u32,
    /// Number of entries by which the first one is behind `put`.
    pub back: u32,
    /// The most entries that are read.
    pub count: u32,
    /// The number that the block's last entry releases, where it is one submission.
    pub number: Option<u32>,
}

impl At<'_> {
    /// Tells whether the semaphore shows even now that the submission is not done. Then nothing has used its entries or bytes again.
    fn is_undone(&self, memory: &impl ReadMemory) -> bool {
        let (Some(number), Some(tracking)) = (self.number, self.tracking) else {
            return false;
        };
        let done = find::number(memory, tracking.0);
        done.is_some_and(|done| done.wrapping_sub(number).cast_signed() < 0)
    }
}

/// Number of entries in which the release is looked for, from the estimated one to older ones.
const AROUND: u32 = 16;
/// Number of entries from which on a submission is not read whole, but its last entry alone.
const MOST: u32 = 8;

/// Newest entry of a channel with a tracking semaphore.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    /// GP_PUT.
    pub put: u32,
    /// The number that it releases.
    pub number: u32,
}

/// The submission that releases `number`; none where it cannot be found, or its memory was used again.
pub(super) fn submission(
    memory: &impl ReadMemory,
    readable: &Readable,
    (found, tracking): (&FoundRing, GpuVa),
    newest: Newest,
    number: u32,
) -> Option<Entries> {
    let size = found.entries.max(1);
    let release = |back: u32| {
        let index = (newest.put + size - back % size) % size;
        let raw = memory.word(found.ring + 8 * u64::from(index)).ok()?;
        let release = find::release_of(memory, readable, raw)?;
        (release.address == tracking).then_some(release.payload)
    };
    // The distance in entries is that in numbers, if each submission has one entry.
    let back = newest.number.wrapping_sub(number).checked_add(1)?;
    let at = |back, count| At {
        readable,
        found,
        tracking: Some(tracking),
        put: newest.put,
        back,
        count,
        number: Some(number),
    };
    if back >= size || newest.put >= size {
        return None;
    }
    if let Some(entries) = at_once(memory, &at(back, 1), newest, number) {
        // An entry without a release before it would belong to the same submission.
        if back + 1 >= size || release(back + 1).is_some() {
            return Some(entries);
        }
    }
    let last = (back..back.saturating_add(AROUND).min(size))
        .find(|back| release(*back) == Some(number))?;
    let first = (last + 1..(last + MOST).min(size))
        .find(|back| release(*back).is_some())
        .unwrap_or(last + 1);
    read(memory, at(first - 1, first - last), &mut Vec::new()).ok()
}

/// Reads a submission of one entry, if it lies in the estimated slot. The reads are few, so that memory is rarely used again meanwhile.
fn at_once(memory: &impl ReadMemory, at: &At<'_>, newest: Newest, number: u32) -> Option<Entries> {
    let size = at.found.entries.max(1);
    let slot = |back: u32| {
        let index = (newest.put + size - back % size) % size;
        memory.word(at.found.ring + 8 * u64::from(index)).ok()
    };
    let block = [slot(at.back)?];
    let (address, len) = entry::segment_of(block[0], 0)?;
    if u64::from(len) > MOST_BYTES || !at.readable.holds(address.0, u64::from(len)) {
        return None;
    }
    let segments = ring::segments(memory, &block, &mut 0, &mut Vec::new(), |at| at);
    let release = release::at_end(&segments.first()?.bytes)?;
    if Some(release.address) != at.tracking || release.payload != number {
        return None;
    }
    let is_doubtful = prove(memory, at, &block, vec![slot(1)?]).ok()?;
    Some(Entries {
        position: u64::from(size) + u64::from(newest.put) - u64::from(at.back),
        segments,
        is_doubtful,
    })
}

/// Reads a block.
pub(super) fn read(
    memory: &impl ReadMemory,
    at: At<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Entries, Unread> {
    let size = at.found.entries.max(1);
    let (_, put) = scan::get_put(memory, at.found.userd).map_err(|_| Unread::Gone)?;
    if put >= size || at.put >= size || at.back >= size || at.back == 0 {
        return Err(Unread::Gone);
    }
    let at = At {
        put,
        back: at.back + (put + size - at.put) % size,
        ..at
    };
    let At {
        readable,
        found,
        tracking,
        back,
        count,
        number,
        ..
    } = at;
    if back >= size {
        return Err(Unread::UsedAgain);
    }
    let on = Ring {
        address: found.ring,
        entries: size,
    };
    let end = u64::from(size) + u64::from(put);
    let position = end - u64::from(back);
    let entries = |from, to| ring::entries(memory, on, from, to).map_err(|_| Unread::Gone);
    let block = entries(position, position + u64::from(count.min(back)))?;
    let newest = entries(end - 1, end)?;
    let mut bytes = 0;
    for raw in &block {
        let Some((at, len)) = entry::segment_of(*raw, 0) else {
            continue;
        };
        bytes += u64::from(len);
        if !readable.holds(at.0, u64::from(len)) || bytes > MOST_BYTES {
            return Err(Unread::Elsewhere);
        }
    }
    let segments = ring::segments(memory, &block, &mut 0, buffer, |at| at);
    let is_doubtful = prove(memory, &at, &block, newest)?;
    if let Some(tracking) = tracking {
        let releases = segments.iter().filter_map(|s| release::at_end(&s.bytes));
        let payloads: Vec<u32> = { releases.filter(|r| r.address == tracking) }
            .map(|r| r.payload)
            .collect();
        if payloads.is_empty() || payloads.windows(2).any(|w| w[1] != w[0].wrapping_add(1)) {
            return Err(Unread::UsedAgain);
        }
        if number.is_some_and(|number| payloads != [number]) {
            return Err(Unread::UsedAgain);
        }
    }
    Ok(Entries {
        position,
        segments,
        is_doubtful,
    })
}

/// Proves that newer entries had not used the bytes of `block` again when these were read. `at.put` and `newest` are GP_PUT and the newest entry
/// before the reading. Returns true where the process may be writing where a single submission lies; for other blocks that is an error.
fn prove(
    memory: &impl ReadMemory,
    at: &At<'_>,
    block: &[u64],
    newest: Vec<u64>,
) -> Result<bool, Unread> {
    if at.is_undone(memory) {
        return Ok(false);
    }
    let size = at.found.entries.max(1);
    let end = u64::from(size) + u64::from(at.put);
    let on = Ring {
        address: at.found.ring,
        entries: size,
    };
    let entries = |from, to| ring::entries(memory, on, from, to).map_err(|_| Unread::Gone);
    let (_, now) = scan::get_put(memory, at.found.userd).map_err(|_| Unread::Gone)?;
    let moved = (now % size + size - at.put) % size;
    // A known number is checked by its release: entries of other submissions cannot pass for it.
    if at.number.is_none() && at.back + moved > size - RESERVE / 2 {
        return Err(Unread::UsedAgain);
    }
    let later = end + u64::from(moved);
    let newer = match at.tracking {
        // What matters is where the newest entry ends, for the process writes on from there, and what came meanwhile.
        Some(_) => newest.into_iter().chain(entries(end, later)?).collect(),
        None => entries(end - u64::from(at.back) + block.len() as u64, later)?,
    };
    let is_newest = block.len() as u32 >= at.back;
    let newer = newer.get(usize::from(is_newest && at.tracking.is_some())..);
    let newer = newer.unwrap_or_default();
    if overlap(block, newer) {
        return Err(Unread::UsedAgain);
    }
    let being_written = is_being_written(block, newer);
    if being_written && at.number.is_none() {
        return Err(Unread::UsedAgain);
    }
    Ok(being_written)
}

fn range(raw: &u64) -> Option<(u64, u64)> {
    entry::segment_of(*raw, 0).map(|(at, len)| (at.0, at.0 + u64::from(len)))
}

/// Tells whether an entry of `block` shares bytes with a newer entry.
fn overlap(block: &[u64], newer: &[u64]) -> bool {
    let mut later: Vec<(u64, u64)> = newer.iter().filter_map(range).collect();
    later.sort_unstable();
    block.iter().filter_map(range).any(|(start, end)| {
        let behind = later.partition_point(|(from, _)| *from < end);
        // Segments are short, and different ones lie far apart: it is enough to look at a few that begin before.
        later
            .iter()
            .take(behind)
            .rev()
            .take(64)
            .any(|(_, to)| *to > start)
    })
}

/// Tells whether an entry of `block` has bytes right behind the newest entry's, where the process writes the next ones.
fn is_being_written(block: &[u64], newer: &[u64]) -> bool {
    let Some((_, next)) = newer.last().or(block.last()).and_then(range) else {
        return false;
    };
    let mut ranges = block.iter().filter_map(range);
    ranges.any(|(start, end)| start < next + BEING_WRITTEN && end > next)
}

#[cfg(test)]
mod tests {
    use super::super::fakes::{ENTRIES, Fake, RINGS};
    use super::*;
    use nvcap_process::memory::scan::Proof;

    /// A reader that counted ten submissions reads those ten, though five more have come since.
    #[test]
    fn what_was_submitted_since_is_no_part_of_a_block() {
        let memory = Fake::new();
        memory.work(0, 1, 35);
        let found = FoundRing {
            gpu: Some(0),
            ring: RINGS,
            entries: ENTRIES as u32,
            userd: RINGS + 0x2000,
            get: 0,
            put: 0,
            used: true,
            proof: Proof::default(),
        };
        let at = At {
            readable: &Readable::new(&Fake::areas()),
            found: &found,
            tracking: Some(GpuVa(Fake::semaphore(0))),
            put: 30,
            back: 10,
            count: 10,
            number: None,
        };
        let entries = read(&memory, at, &mut Vec::new()).unwrap();
        let releases = { entries.segments.iter() }.filter_map(|s| release::at_end(&s.bytes));
        let numbers: Vec<u32> = releases.map(|r| r.payload).collect();
        assert_eq!(numbers, (21..=30).collect::<Vec<u32>>());
        // Older than the ring holds.
        memory.work(0, 36, 1050);
        let again = read(&memory, at, &mut Vec::new());
        assert_eq!(again.unwrap_err(), Unread::UsedAgain);
    }

    fn raw(at: u64, len: u32) -> u64 {
        entry::segment(GpuVa(at), len, false, true, false)
    }

    #[test]
    fn bytes_of_newer_entries_are_not_believed() {
        let block = [raw(0x1000, 64), raw(0x1040, 64)];
        assert!(!overlap(&block, &[]));
        assert!(!overlap(&block, &[raw(0x1080, 64), raw(0x9000, 64)]));
        assert!(overlap(&block, &[raw(0x1080, 64), raw(0x1060, 8)]));
        // The next one may be on its way.
        let before = [raw(0xfc0, 64)];
        assert!(!overlap(&block, &before) && is_being_written(&block, &before));
        assert!(!is_being_written(&block, &[raw(0x1080, 64)]));
    }
}
