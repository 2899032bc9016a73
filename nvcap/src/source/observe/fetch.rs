//! Reading a ring's entries and the pushbuffer bytes that they point to, in as few and as large reads as possible:
//! each costs about a microsecond beside its bytes, and the kernel copies page by page.

use std::io;

use super::proof::length;
use crate::record::{Hole, Segment};
use crate::source::memory::process::Peek;

const PAGE: u64 = 4096;
/// Entries read at once: BAR1 memory is slow by the byte, and the newest should not wait for the oldest.
const RUN: u64 = 512;
/// Bytes of a joint read of segments that lie one behind the other.
const JOINT: u64 = 256 << 10;
/// Bytes between two segments that are read along rather than read around.
const BETWEEN: u64 = 512;

/// The entries from `position` (counted without wrapping) to before `end`.
///
/// # Errors
/// When the ring cannot be read.
pub fn entries(
    memory: &impl Peek,
    ring: u64,
    size: u32,
    position: u64,
    end: u64,
) -> io::Result<Vec<u64>> {
    let mask = u64::from(size) - 1;
    let mut all = Vec::with_capacity((end - position) as usize);
    let mut at = position;
    while at < end {
        let run = (end - at).min(u64::from(size) - (at & mask)).min(RUN);
        let mut raw = vec![0; run as usize * 8];
        memory.peek(ring + 8 * (at & mask), &mut raw)?;
        all.extend(
            raw.as_chunks::<8>()
                .0
                .iter()
                .map(|e| u64::from_le_bytes(*e)),
        );
        at += run;
    }
    Ok(all)
}

/// Where entries point, taking the control entries between them into account: bits 56:40 come from the last control
/// entry that set them, and are carried on in `extended`.
fn addresses(entries: &[u64], extended: &mut u64) -> Vec<u64> {
    let address = |entry: &u64| {
        if length(*entry) == 0 && (entry >> 32) & 0xff == 4 {
            *extended = ((entry >> 8) & 0x1_ffff) << 40;
        }
        *extended | (entry & 0xff_ffff_fffc)
    };
    entries.iter().map(address).collect()
}

/// The entries with their bytes; what cannot be read is zero and named. `buffer` is room that is kept from one call to
/// the next: memory that is new to this program costs a page fault every 4 KiB, as much as reading into it.
pub fn segments(
    memory: &impl Peek,
    entries: &[u64],
    extended: &mut u64,
    buffer: &mut Vec<u8>,
) -> Vec<Segment> {
    let addresses = addresses(entries, extended);
    let mut segments: Vec<Segment> = entries
        .iter()
        .map(|entry| Segment {
            entry: *entry,
            ..Segment::default()
        })
        .collect();
    let mut first = 0;
    while first < entries.len() {
        let (next, start, end) = joint(entries, &addresses, first);
        // From a page's start on: else every page that the kernel copies is two halves of two pages.
        let from = if end - start > PAGE {
            start & !(PAGE - 1)
        } else {
            start
        };
        let size = (end - from) as usize;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let whole = end > start && memory.peek(from, &mut buffer[..size]).is_ok();
        for i in first..next {
            let len = length(entries[i]);
            if len == 0 {
                continue;
            }
            if whole {
                let at = (addresses[i] - from) as usize;
                segments[i].bytes = buffer[at..at + len].to_vec();
            } else {
                (segments[i].bytes, segments[i].holes) = lax(memory, addresses[i], len);
            }
        }
        first = next;
    }
    segments
}

/// As many entries from `first` on as one read covers: up to before which one, and from where to where.
fn joint(entries: &[u64], addresses: &[u64], first: usize) -> (usize, u64, u64) {
    let (mut start, mut end) = (0, 0);
    for i in first..entries.len() {
        let len = length(entries[i]) as u64;
        if len == 0 {
            continue;
        }
        if start == end {
            (start, end) = (addresses[i], addresses[i] + len);
            continue;
        }
        let behind = addresses[i] >= end && addresses[i] - end <= BETWEEN;
        if !behind || addresses[i] + len - start > JOINT {
            return (i, start, end);
        }
        end = addresses[i] + len;
    }
    (entries.len(), start, end)
}

/// Reads page by page what cannot be read at once.
fn lax(memory: &impl Peek, at: u64, len: usize) -> (Vec<u8>, Vec<Hole>) {
    let mut bytes = vec![0; len];
    let mut holes = Vec::new();
    if memory.peek(at, &mut bytes).is_ok() {
        return (bytes, holes);
    }
    let mut offset = 0;
    while offset < len {
        let from = at + offset as u64;
        let n = ((PAGE - (from & (PAGE - 1))) as usize).min(len - offset);
        let part = &mut bytes[offset..offset + n];
        if memory.peek(from, part).is_err() {
            part.fill(0);
            holes.push(Hole {
                offset: offset as u32,
                len: n as u32,
            });
        }
        offset += n;
    }
    (bytes, holes)
}

/// The last `len` bytes before `end`; `None` where they cannot be read.
pub fn tail(memory: &impl Peek, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    memory.peek(at, &mut bytes).ok()?;
    Some(bytes)
}
