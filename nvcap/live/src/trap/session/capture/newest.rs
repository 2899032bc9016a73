//! The newest entry that a look from outside has read of a ring. Its slot is written again exactly when the ring has gone round. So if the entry
//! and its memory are unchanged at the next look, nothing was missed between the two looks, however far apart they were.
//!
//! This holds only if entries do not look alike. So the newest entry is kept only if its segment ends with a release of a semaphore, whose
//! payload CUDA raises with each entry, and if no other entry of the same read is equal to it.

use super::super::catch_up::Read;
use nvcap_decode::wire::{entry, release};
pub(super) use nvcap_process::{
    memory::ring::{self, Ring},
    procfs::mem::ReadMemory,
};

/// Bytes of the segment's end that are compared.
const TAIL: usize = 64;

/// The newest entry that a look from outside has read of a ring, by which the next look tells whether anything was missed in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    /// Position behind the entry.
    pub(super) behind: u64,
    /// Address of the entry's ring.
    pub(super) ring: u64,
    entry: u64,
    /// End of the entry's segment, and the GPU's address of that end.
    pub(super) tail: Vec<u8>,
    pub(super) tail_at: u64,
}

impl Newest {
    /// Returns the newest of the entries of a look.
    pub(super) fn of(read: &Read, ring: u64) -> Option<Self> {
        let (last, others) = read.segments.split_last()?;
        let alike = others.iter().any(|s| s.entry == last.entry);
        if alike || !last.holes.is_empty() || release::at_end(&last.bytes).is_none() {
            return None;
        }
        let (at, _) = entry::segment_of(last.entry, read.extended)?;
        let from = last.bytes.len().saturating_sub(TAIL);
        Some(Self {
            behind: read.target,
            ring,
            entry: last.entry,
            tail: last.bytes[from..].to_vec(),
            tail_at: at.0 + from as u64,
        })
    }

    /// Tells whether the entry is unchanged; none where this proves nothing, because its memory was used again. `tail_at`: the process's address
    /// of its memory.
    pub(super) fn stands(
        &self,
        memory: &impl ReadMemory,
        entries: u32,
        tail_at: u64,
    ) -> Option<bool> {
        let on = Ring {
            address: self.ring,
            entries,
        };
        let now = ring::entries(memory, on, self.behind - 1, self.behind).ok()?;
        if now != [self.entry] {
            return Some(false);
        }
        let mut tail = vec![0; self.tail.len()];
        memory.read_bytes(tail_at, &mut tail).ok()?;
        (tail == self.tail).then_some(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use nvcap_decode::record::{At, Segment};

    const RING: u64 = 0x1000;
    const PUSHBUFFER: u64 = 0x2000;

    struct Made(Vec<u8>);

    impl ReadMemory for Made {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            self.0[..].read_bytes(at, to)
        }
    }

    /// Makes a release of a semaphore, as CUDA ends a segment.
    fn release(payload: u32) -> Vec<u8> {
        let words = [7, 0x2004_26c0, 2, 0x0460_fff0, payload, 0];
        words.iter().flat_map(|w: &u32| w.to_le_bytes()).collect()
    }

    fn segment(at: u64, bytes: Vec<u8>) -> Segment {
        Segment {
            entry: (bytes.len() as u64 / 4) << 42 | at,
            bytes,
            holes: Vec::new(),
        }
    }

    fn read(segments: Vec<Segment>) -> Read {
        Read {
            at: At::default(),
            get: 0,
            put: 3,
            from: 1,
            target: 3,
            extended: 0,
            lost: None,
            segments,
        }
    }

    #[test]
    fn the_newest_entry_and_its_memory_stand() {
        let first = segment(PUSHBUFFER, release(6));
        let last = segment(PUSHBUFFER + 0x40, release(7));
        assert!(release::at_end(&last.bytes).is_some());
        let newest = Newest::of(&read(vec![first.clone(), last.clone()]), RING).unwrap();
        let mut memory = Made(vec![0; 0x3000]);
        let slot = RING as usize + 2 * 8;
        memory.0[slot..slot + 8].copy_from_slice(&last.entry.to_le_bytes());
        let at = PUSHBUFFER as usize + 0x40;
        memory.0[at..at + last.bytes.len()].copy_from_slice(&last.bytes);
        let stands = |memory: &Made| newest.stands(memory, 32, newest.tail_at);
        assert_eq!(stands(&memory), Some(true));
        // A lap by entries of the same place: their payloads differ.
        memory.0[at..at + last.bytes.len()].copy_from_slice(&release(39));
        assert_eq!(stands(&memory), None);
        // Another entry: the ring went round.
        memory.0[slot..slot + 8].copy_from_slice(&first.entry.to_le_bytes());
        assert_eq!(stands(&memory), Some(false));
        memory.0.truncate(100);
        assert_eq!(stands(&memory), None);
    }

    #[test]
    fn entries_that_look_alike_prove_nothing() {
        let same = segment(PUSHBUFFER, release(6));
        assert_eq!(
            Newest::of(&read(vec![same.clone(), same.clone()]), RING),
            None
        );
        // Without a release any submission may look like it.
        let plain = segment(PUSHBUFFER, vec![0; 24]);
        assert_eq!(Newest::of(&read(vec![plain]), RING), None);
        assert_eq!(Newest::of(&read(Vec::new()), RING), None);
        assert!(Newest::of(&read(vec![same]), RING).is_some());
    }
}
