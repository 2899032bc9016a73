//! Reading new entries of a ring and their pushbuffer bytes from outside.

use crate::{decode::entry, record::Segment};

use super::process::Memory;

/// A ring to read.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Address in the process.
    pub address: u64,
    /// Number of entries, a power of two.
    pub entries: u32,
}

/// Reads the entries from `position` (counted without wrapping) up to `end`, with their bytes.
///
/// `extended` carries address bits 56:40 from entry to entry; `translate` turns a GPU address into the process's.
/// `None` when the ring itself cannot be read.
pub fn read(
    memory: &Memory,
    ring: Ring,
    position: u64,
    end: u64,
    extended: &mut u64,
    translate: impl Fn(u64) -> u64,
) -> Option<Vec<Segment>> {
    let mut segments = Vec::new();
    let mask = u64::from(ring.entries) - 1;
    let mut at = position;
    while at < end {
        let run = (end - at)
            .min(u64::from(ring.entries) - (at & mask))
            .min(512);
        let mut raw = vec![0; run as usize * 8];
        memory.read(ring.address + 8 * (at & mask), &mut raw).ok()?;
        for entry in raw.as_chunks::<8>().0 {
            let entry = u64::from_le_bytes(*entry);
            let Some((address, len)) = entry::pass(entry, extended) else {
                segments.push(Segment {
                    entry,
                    ..Segment::default()
                });
                continue;
            };
            let address = translate(address.0);
            let (bytes, holes) = memory.read_lax(address, len as usize);
            segments.push(Segment {
                entry,
                bytes,
                holes,
            });
        }
        at += run;
    }
    Some(segments)
}
