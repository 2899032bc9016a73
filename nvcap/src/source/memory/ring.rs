//! Rings from outside: positions in them, and reading new entries with their pushbuffer bytes.

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

/// GP_PUT, or another index of a ring with so many entries, as a position: the first from `seen` on that has it.
pub fn position(put: u32, seen: u64, entries: u32) -> u64 {
    seen + (u64::from(put).wrapping_sub(seen) & (u64::from(entries) - 1))
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
