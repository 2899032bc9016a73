//! The handles of a process's contexts: a profiler object is bound to a client and one of its channel groups, by their handles.
//!
//! No control command of the driver tells another client's handles. libcuda keeps them in its ordinary memory: the client's, 0xc1d00000 and up
//! (RS_CLIENT_HANDLE_BASE of the driver), and in the next word, in many of its structures, that of the device; libcuda chooses
//! the handles below the client itself, 0x5c000000 and up, one after the other. What is found so is a candidate: only the driver
//! says whether there is such a channel group ([`super::Session`]).

use std::collections::BTreeMap;
use std::io;

use crate::enrich::names::scan::{self, Ordinary, Space};

/// A client's handle, without its number.
const CLIENT: u32 = 0xc1d0_0000;
const CLIENT_MASK: u32 = 0xfff0_0000;

/// A handle that libcuda chose.
const OBJECT: u32 = 0x5c00_0000;
/// libcuda's first handles, of the client's devices and channel groups, are small.
const OBJECT_MASK: u32 = 0xffff_f000;

/// Structures with the pair of client and device, at least: libcuda has some fifty.
const LEAST_PAIRS: u32 = 8;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// A client of a process, and what may be its channel groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The client's handle.
    pub client: u32,
    /// Handles of objects, the most probable channel group first: the first groups that libcuda makes are those that compute.
    pub objects: Vec<u32>,
}

/// Finds the clients in a process's memory.
///
/// # Errors
/// Those of reading the process's maps or memory: no such process, or no right to read it.
pub fn contexts(pid: u32) -> io::Result<Vec<Context>> {
    let memory = Ordinary::open(pid)?;
    let mut found = Found::default();
    let mut buffer = vec![0; CHUNK];
    for run in scan::runs(pid)? {
        let mut at = run.start;
        found.gap();
        while at < run.end {
            let len = (run.end - at).min(CHUNK as u64) as usize;
            let part = buffer.get_mut(..len).unwrap_or_default();
            let read = memory.read_some(at, part);
            found.take(part.get(..read).unwrap_or_default());
            if read < len {
                found.gap();
            }
            at += len as u64;
        }
    }
    Ok(found.contexts())
}

#[derive(Default)]
struct Found {
    /// The word before, where it is known.
    last: Option<u32>,
    /// Pairs of a client and its device, with their number.
    pairs: BTreeMap<(u32, u32), u32>,
    objects: BTreeMap<u32, u32>,
}

impl Found {
    /// Notes that the next words do not follow those before.
    fn gap(&mut self) {
        self.last = None;
    }

    fn take(&mut self, bytes: &[u8]) {
        for word in bytes.as_chunks::<4>().0 {
            let word = u32::from_le_bytes(*word);
            if word & OBJECT_MASK == OBJECT {
                *self.objects.entry(word).or_default() += 1;
                if let Some(client) = self.last.filter(|last| last & CLIENT_MASK == CLIENT) {
                    *self.pairs.entry((client, word)).or_default() += 1;
                }
            }
            self.last = Some(word);
        }
    }

    fn contexts(self) -> Vec<Context> {
        let mut clients: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for ((client, device), count) in &self.pairs {
            if *count >= LEAST_PAIRS {
                let best = clients.entry(*client).or_default();
                *best = (*best).max((*count, *device));
            }
        }
        let mut clients: Vec<_> = clients.into_iter().collect();
        clients.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        let context = |(client, (_, device))| Context {
            client,
            // Groups are made behind the device, with a structure of libcuda's for each of their channels.
            objects: { self.objects.iter() }
                .filter(|(object, count)| **object > device && **count > 1)
                .map(|(object, _)| *object)
                .collect(),
        };
        clients.into_iter().map(context).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[u32]) -> Vec<Context> {
        let mut found = Found::default();
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        for part in bytes.chunks(64) {
            found.take(part);
        }
        found.contexts()
    }

    #[test]
    fn the_client_is_the_one_whose_device_stands_beside_it() {
        let mut words = Vec::new();
        for i in 0..20u32 {
            words.extend([0xc1d0_0040, 0x5c00_0002, 7, i]);
        }
        words.extend([
            0x5c00_0015,
            0x5c00_0016,
            0,
            0x5c00_0015,
            0x5c00_0016,
            0x5c00_003e,
        ]);
        // Words of other data.
        words.extend([
            0xc1de_c6d9,
            1,
            0xc1de_c6d9,
            0x5c00_0002,
            0x5c00_7988,
            0x5c00_7988,
        ]);
        let context = Context {
            client: 0xc1d0_0040,
            objects: vec![0x5c00_0015, 0x5c00_0016],
        };
        assert_eq!(found(&words), [context]);
        assert_eq!(found(&words[80..]), []);
    }

    #[test]
    fn words_on_both_sides_of_a_gap_are_no_pair() {
        let mut found = Found::default();
        for _ in 0..20 {
            found.take(&0xc1d0_0040_u32.to_le_bytes());
            found.gap();
            found.take(&0x5c00_0002_u32.to_le_bytes());
        }
        assert_eq!(found.contexts(), []);
    }
}
