//! Entries of a ring that were submitted a while ago, with their pushbuffer bytes, read from outside.
//!
//! What is read may be used again meanwhile: a block is believed only where none of its slots and none of its bytes belong to a newer
//! entry when it has been read.

use super::super::find::Readable;
use crate::procfs::mem::Peek;
use crate::record::Segment;
use crate::source::memory::ring::{self, Ring};
use crate::source::memory::scan::{self, Found};
use crate::wire::entry;

/// Slots before the oldest that may be written next: so far behind nothing is read.
const RESERVE: u32 = 64;
/// Bytes behind the newest entry's that the process may be writing.
const BEING_WRITTEN: u64 = 16 << 10;
/// A block with more bytes is not read.
const MOST_BYTES: u64 = 4 << 20;

/// Entries that lie one behind the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    /// The index of the first, counted without wrapping from a lap before the newest.
    pub position: u64,
    /// Each with its bytes.
    pub segments: Vec<Segment>,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// The channel is gone.
    Gone,
    /// The ring's memory or the pushbuffer's was used again.
    UsedAgain,
    /// Its bytes lie elsewhere, or are too many.
    Elsewhere,
}

/// How many of the newest `came` entries a ring still has.
pub(super) fn held(found: &Found, came: u64) -> u32 {
    let most = found.entries.saturating_sub(1 + RESERVE);
    u32::try_from(came).unwrap_or(u32::MAX).min(most)
}

/// Reads up to `count` entries of which the first is `back` entries behind GP_PUT.
pub(super) fn read(
    memory: &impl Peek,
    readable: &Readable,
    found: &Found,
    back: u32,
    count: u32,
    buffer: &mut Vec<u8>,
) -> Result<Entries, Unread> {
    let size = found.entries.max(1);
    let (_, put) = scan::get_put(memory, found.userd).map_err(|_| Unread::Gone)?;
    if put >= size || back >= size {
        return Err(Unread::Gone);
    }
    let on = Ring {
        address: found.ring,
        entries: size,
    };
    let end = u64::from(size) + u64::from(put);
    let position = end - u64::from(back);
    let raw = ring::entries(memory, on, position, end).map_err(|_| Unread::Gone)?;
    let (block, newer) = raw.split_at(raw.len().min(count as usize));
    let mut bytes = 0;
    for raw in block {
        let Some((at, len)) = entry::segment_of(*raw, 0) else {
            continue;
        };
        bytes += u64::from(len);
        if !readable.holds(at.0, u64::from(len)) || bytes > MOST_BYTES {
            return Err(Unread::Elsewhere);
        }
    }
    let segments = ring::segments(memory, block, &mut 0, buffer, |at| at);
    let (_, now) = scan::get_put(memory, found.userd).map_err(|_| Unread::Gone)?;
    let moved = (now % size + size - put) % size;
    if back + moved > size - RESERVE / 2 {
        return Err(Unread::UsedAgain);
    }
    let since = ring::entries(memory, on, end, end + u64::from(moved)).map_err(|_| Unread::Gone)?;
    let newer: Vec<u64> = newer.iter().copied().chain(since).collect();
    if overlap(block, &newer) {
        return Err(Unread::UsedAgain);
    }
    Ok(Entries { position, segments })
}

/// Whether bytes of one of `block` are bytes of one that is newer, or of what follows the newest.
fn overlap(block: &[u64], newer: &[u64]) -> bool {
    let range = |raw: &u64| entry::segment_of(*raw, 0).map(|(at, len)| (at.0, at.0 + u64::from(len)));
    let mut later: Vec<(u64, u64)> = newer.iter().filter_map(range).collect();
    let newest = newer.iter().chain(block.last()).next_back().and_then(range);
    if let Some(last) = newest.filter(|_| !newer.is_empty()) {
        later.push((last.1, last.1 + BEING_WRITTEN));
    }
    later.sort_unstable();
    block.iter().filter_map(range).any(|(start, end)| {
        let behind = later.partition_point(|(from, _)| *from < end);
        // Ranges are short beside the distance of different ones: a few before are enough.
        later.iter().take(behind).rev().take(64).any(|(_, to)| *to > start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::GpuVa;

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
        assert!(overlap(&block, &[raw(0xfc0, 64)]));
    }
}
