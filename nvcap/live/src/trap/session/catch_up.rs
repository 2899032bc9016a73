//! Reads, through the process's memory file, ring entries that no doorbell fetched: entries that were submitted before the breakpoint
//! was set, entries that a full ring buffer or a lost hit left behind, and pages that the BPF programs could not fault in.
//!
//! Only reads. The caller must hold the claim on the channel, and uses the result.

use nvcap_common as c;

use super::{
    super::{assemble::Gathered, space::ChannelState},
    outbox::seen_now,
};
use nvcap_decode::{
    driver::AddressMap,
    record::{At, Lost, Segment},
    wire::entry,
};
pub(super) use nvcap_process::{
    memory::{reuse, ring},
    procfs::mem::{Memory, ReadMemory},
};

/// Ring entries behind the captured ones.
#[derive(Debug)]
pub(super) enum Fetch {
    /// No entries: GP_PUT cannot be read, or its value is invalid.
    Nothing,
    /// Entries up to this position, which cannot be read.
    Unreadable { target: u64 },
    /// Entries that were read; there may be none.
    Read(Read),
}

/// Entries that were read from a ring.
#[derive(Debug)]
pub(super) struct Read {
    /// Time of the read.
    pub(super) at: At,
    /// GP_GET and GP_PUT.
    pub(super) get: u32,
    pub(super) put: u32,
    /// Position of the first entry, and position behind the last one.
    pub(super) from: u64,
    pub(super) target: u64,
    /// Address bits 56:40 that hold behind the last entry.
    pub(super) extended: u64,
    /// Loss of entries before the first, which were overwritten.
    pub(super) lost: Option<Lost>,
    pub(super) segments: Vec<Segment>,
}

/// The most entries that a process writes behind GP_PUT before it moves GP_PUT.
const AHEAD: u64 = 8;

/// Reads the entries of a channel's ring behind the captured ones. `map`: the places of its GPU addresses in the process.
pub(super) fn fetch(
    channel: &ChannelState,
    state: &c::SharedChannel,
    memory: &impl ReadMemory,
    map: impl FnOnce() -> AddressMap,
) -> Fetch {
    let Ok((get, put)) = memory.get_put(channel.get_put) else {
        return Fetch::Nothing;
    };
    if put >= channel.entries {
        return Fetch::Nothing;
    }
    let size = u64::from(channel.entries);
    let target = channel.position(put, state.seen);
    let at = seen_now(channel.announced.at.pid);
    // Entries that were captured but have not reached this program are fetched again.
    let first = state.done.min(channel.taken);
    let mut from = first.max((target + 1).saturating_sub(size));
    let mut extended = state.extended;
    let map = map();
    // An offset that no file has: unmapped memory becomes a hole.
    let translate = |address: u64| map.at(address).map_or(1 << 63, |(cpu, _)| cpu);
    let on = ring::Ring {
        address: channel.ring,
        entries: channel.entries,
    };
    let Ok(mut entries) = ring::entries(memory, on, from, target) else {
        return Fetch::Unreadable { target };
    };
    // The process goes on meanwhile: the oldest ones may be overwritten before they are read, or before their bytes are.
    from += drop_overwritten(memory, (on, channel.get_put), (from, target), &mut entries);
    let mut segments = ring::segments(memory, &entries, &mut extended, &mut Vec::new(), translate);
    let overwritten = drop_overwritten(memory, (on, channel.get_put), (from, target), &mut entries);
    segments.drain(..overwritten as usize);
    from += overwritten;
    // Nor does that tell whether their memory was used again.
    let newest = newest(memory, (on, channel.get_put), target);
    let since = ring::entries(memory, on, target, newest).unwrap_or_default();
    let stale = reuse::stale(&entries, &since, true);
    segments.drain(..stale);
    from += stale as u64;
    let lost = (from > first).then_some(Lost::Entries {
        position: first,
        count: from - first,
    });
    Fetch::Read(Read {
        at,
        get,
        put,
        from,
        target,
        extended,
        lost,
        segments,
    })
}

/// Removes entries whose slots were written again since they were read. Returns their number, from the first on.
fn drop_overwritten(
    memory: &impl ReadMemory,
    (on, at): (ring::Ring, u64),
    (from, target): (u64, u64),
    entries: &mut Vec<u64>,
) -> u64 {
    let count = entries.len() as u64;
    let oldest = newest(memory, (on, at), target).saturating_sub(on.entries.into());
    let mut gone = oldest.saturating_sub(from).min(count);
    // Entries are written before GP_PUT, and that does not tell how often the ring went round. Rings are written in order: where an
    // entry stands, all behind it do.
    let ahead = (count - gone).min(AHEAD);
    if let Ok(now) = ring::entries(memory, on, from + gone, from + gone + ahead) {
        let before = entries[gone as usize..].iter();
        let other = before.zip(&now).rposition(|(before, now)| before != now);
        gone = match other.map(|last| last as u64 + 1) {
            Some(n) if n == AHEAD => count,
            Some(n) => gone + n,
            None => gone,
        };
    }
    entries.drain(..gone as usize);
    gone
}

/// Returns the present position of GP_PUT, at `target` or behind it.
fn newest(memory: &impl ReadMemory, (on, at): (ring::Ring, u64), target: u64) -> u64 {
    match memory.get_put(at) {
        Ok((_, put)) if put < on.entries => ring::position(put, target, on.entries),
        // The process is gone, and submits nothing any more.
        _ => target,
    }
}

/// Fills holes that the BPF programs left. They cannot fault in a page that the process has mapped but never touched (a forked child's
/// shared memory). True if something was filled.
pub(super) fn fill_holes(g: &mut Gathered, map: &AddressMap, memory: &Memory) -> bool {
    let mut extended = g.head.extended;
    let mut filled = false;
    for segment in &mut g.segments {
        let Some((gpu, _)) = entry::pass(segment.entry, &mut extended) else {
            continue;
        };
        let bytes = &mut segment.bytes;
        segment.holes.retain(|hole| {
            let span = hole.offset as usize..(hole.offset + hole.len) as usize;
            let at = map.at(gpu.0 + u64::from(hole.offset));
            let read = match (at, bytes.get_mut(span)) {
                (Some((cpu, room)), Some(to)) => {
                    room >= u64::from(hole.len) && memory.read(cpu, to).is_ok()
                }
                _ => false,
            };
            filled |= read;
            !read
        });
    }
    filled
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const ENTRIES: u32 = 32;
    const GET_PUT: u64 = 8 * ENTRIES as u64;
    const ON: ring::Ring = ring::Ring {
        address: 0,
        entries: ENTRIES,
    };

    struct Made(Vec<u8>);

    impl ReadMemory for Made {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            self.0[..].read_bytes(at, to)
        }
    }

    /// Makes a ring and its GP_PUT after this many entries; `ahead` more entries are written already.
    fn after(committed: u64, ahead: u64) -> Made {
        let mut memory = vec![0; GET_PUT as usize + 8];
        for position in 0..committed + ahead {
            let at = 8 * (position % u64::from(ENTRIES)) as usize;
            memory[at..at + 8].copy_from_slice(&(position + 1).to_le_bytes());
        }
        let put = (committed % u64::from(ENTRIES)) << 32;
        memory[GET_PUT as usize..].copy_from_slice(&put.to_le_bytes());
        Made(memory)
    }

    /// Returns the number of entries from `from` to `target` that are gone, and the remaining ones, if the ring went on to `later`
    /// meanwhile.
    fn left(from: u64, target: u64, later: &Made) -> (u64, Vec<u64>) {
        let then = after(target, 0);
        let mut entries = ring::entries(&then, ON, from, target).unwrap();
        let gone = drop_overwritten(later, (ON, GET_PUT), (from, target), &mut entries);
        (gone, entries)
    }

    #[test]
    fn what_was_overwritten_meanwhile_is_left_out() {
        let all: Vec<u64> = (10..41).map(|position| position + 1).collect();
        // Nothing came, or less than there is room for.
        assert_eq!(left(10, 41, &after(41, 0)), (0, all.clone()));
        assert_eq!(left(20, 41, &after(52, 0)), (0, all[10..].to_vec()));
        // The oldest ones were written again, the last of them without being committed yet.
        assert_eq!(left(10, 41, &after(45, 0)), (3, all[3..].to_vec()));
        assert_eq!(left(10, 41, &after(45, 2)), (5, all[5..].to_vec()));
        assert_eq!(left(10, 41, &after(41, 3)), (2, all[2..].to_vec()));
        // The ring went round: GP_PUT is where it was, and nothing stands.
        assert_eq!(left(10, 41, &after(41 + 32, 0)), (31, vec![]));
        assert_eq!(left(10, 41, &after(41 + 64 + 3, 0)), (31, vec![]));
        // The process is gone.
        let mut gone = after(41, 0);
        gone.0.truncate(GET_PUT as usize);
        assert_eq!(left(10, 41, &gone), (0, all));
    }
}
