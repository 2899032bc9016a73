//! Rings read from outside: their positions, their entries, and the pushbuffer bytes to which the entries point. Reads are few and large,
//! because each costs about a microsecond in addition to its bytes, and the kernel copies page by page.
//!
//! All live sources read rings here. The look back at a ring's newest entries (`history`) shares only the reading of entries. It reads
//! GP_PUT between any two reads, and keeps for each segment the GP_PUT after the segment's bytes were read.

use std::io;

use crate::procfs::mem::ReadMemory;
use nvcap_decode::{
    record::{MOST_BYTES, Segment},
    wire::entry,
};

const PAGE: u64 = 4096;
/// Number of entries that are read at once. BAR1 memory is slow per byte, and the newest entries should not wait for the oldest.
const RUN: u64 = 512;
/// Length of a joint read of adjacent segments, bytes.
const JOINT: u64 = 256 << 10;
/// Largest gap between two segments that are read together, bytes: the gap's bytes are read, too.
const BETWEEN: u64 = 512;

/// A ring to read.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Address in the process.
    pub address: u64,
    /// Number of entries, a power of two.
    pub entries: u32,
}

/// Turns GP_PUT, or another index of a ring with `entries` entries, into a position: the first position from `seen` on with this index.
pub fn position(put: u32, seen: u64, entries: u32) -> u64 {
    seen + (u64::from(put).wrapping_sub(seen) & (u64::from(entries) - 1))
}

/// Returns the entries from `position` (counted without wrapping) to before `end`.
///
/// # Errors
/// When the ring cannot be read.
pub fn entries(
    memory: &impl ReadMemory,
    ring: Ring,
    position: u64,
    end: u64,
) -> io::Result<Vec<u64>> {
    let size = u64::from(ring.entries.max(1));
    let mut all = Vec::with_capacity((end - position) as usize);
    let mut at = position;
    while at < end {
        let run = (end - at).min(size - at % size).min(RUN);
        let mut raw = vec![0; run as usize * 8];
        memory.read_bytes(ring.address + 8 * (at % size), &mut raw)?;
        all.extend(entry::iter(&raw));
        at += run;
    }
    Ok(all)
}

/// Returns, for each entry, the address to which it points and the number of bytes there (0 for control entries). Address bits 56:40 come
/// from the last control entry that set them; `extended` carries them from call to call.
fn spans(entries: &[u64], extended: &mut u64, translate: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
    let span = |raw: &u64| match entry::pass(*raw, extended) {
        Some((address, len)) => (translate(address.0), u64::from(len)),
        None => (0, 0),
    };
    entries.iter().map(span).collect()
}

/// Returns the entries with their bytes. Bytes that cannot be read are zero, and are listed as holes. `translate` turns a GPU address into
/// the process's. `buffer` is memory that is kept from one call to the next, because memory that is new to this program costs a page fault
/// every 4 KiB, as much as reading into it.
pub fn segments(
    memory: &impl ReadMemory,
    entries: &[u64],
    extended: &mut u64,
    buffer: &mut Vec<u8>,
    translate: impl Fn(u64) -> u64,
) -> Vec<Segment> {
    let spans = spans(entries, extended, translate);
    let mut segments: Vec<Segment> = entries
        .iter()
        .map(|entry| Segment {
            entry: *entry,
            ..Segment::default()
        })
        .collect();
    let mut left = MOST_BYTES;
    let mut first = 0;
    while first < entries.len() {
        let (next, start, end) = joint(&spans, first);
        // Reading from the start of a page: otherwise every page that the kernel copies would consist of halves of two pages.
        let from = if end - start > PAGE {
            start & !(PAGE - 1)
        } else {
            start
        };
        let size = (end - from) as usize;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let whole = end > start && memory.read_bytes(from, &mut buffer[..size]).is_ok();
        for i in first..next {
            let (address, len) = (spans[i].0, spans[i].1 as usize);
            // Bytes beyond the limit count as unreadable.
            if len == 0 || len > left {
                continue;
            }
            left -= len;
            if whole {
                let at = (address - from) as usize;
                segments[i].bytes = buffer[at..at + len].to_vec();
            } else {
                (segments[i].bytes, segments[i].holes) = memory.read_bytes_lax(address, len);
            }
        }
        first = next;
    }
    segments
}

/// Joins entries, from `first` on, that one read covers. Returns the index behind them, and the beginning and end of the read.
fn joint(spans: &[(u64, u64)], first: usize) -> (usize, u64, u64) {
    let (mut start, mut end) = (0, 0);
    for (i, &(address, len)) in spans.iter().enumerate().skip(first) {
        if len == 0 {
            continue;
        }
        if start == end {
            (start, end) = (address, address + len);
            continue;
        }
        let behind = address >= end && address - end <= BETWEEN;
        if !behind || address + len - start > JOINT {
            return (i, start, end);
        }
        end = address + len;
    }
    (spans.len(), start, end)
}

/// Returns the `len` bytes at `at`; `None` if they cannot be read.
pub fn bytes(memory: &impl ReadMemory, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    memory.read_bytes(at, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::wire::GpuVa;

    #[test]
    fn gp_put_as_a_position() {
        for (put, seen, expected) in [
            (0, 0, 0),
            (5, 3, 5),
            (3, 1023, 1027),
            (1023, 1024, 2047),
            (7, 4096 + 7, 4096 + 7),
            (6, 4096 + 7, 5120 + 6),
        ] {
            assert_eq!(position(put, seen, 1024), expected, "{put} from {seen}");
        }
    }

    /// Memory that is readable at any address, and zero.
    struct Zeros;

    impl ReadMemory for Zeros {
        fn read_bytes(&self, _at: u64, to: &mut [u8]) -> io::Result<()> {
            to.fill(0);
            Ok(())
        }
    }

    #[test]
    fn a_ring_of_great_entries_takes_no_more_than_its_room() {
        let entries = [entry::segment(GpuVa(0x2_0000_1000), u32::MAX, false, false, false); 100];
        let segments = segments(&Zeros, &entries, &mut 0, &mut Vec::new(), |a| a);
        let bytes: usize = segments.iter().map(|s| s.bytes.len()).sum();
        assert_eq!(segments.len(), 100);
        assert!((MOST_BYTES - (8 << 20)..=MOST_BYTES).contains(&bytes));
        assert!(segments.iter().all(|s| s.holes.is_empty()));
    }
}
