//! Reads ring entries that no doorbell fetched through the process's memory file: entries submitted before the breakpoint
//! was set, entries left by a full ring buffer or a lost hit, pages that the BPF programs could not fault in.
//!
//! Only reads. The caller holds the claim on the channel and uses the result.

use nvcap_common as c;

use super::{
    super::{assemble::Gathered, space::ChannelState},
    outbox::seen_now,
};
use crate::{
    driver::AddressMap,
    procfs::mem::Memory,
    record::{At, Lost, Segment},
    source::memory::ring,
    wire::entry,
};

/// Ring entries behind the captured ones.
#[derive(Debug)]
pub(super) enum Fetch {
    /// GP_PUT cannot be read, or its value is invalid.
    Nothing,
    /// There are entries up to this position, but they cannot be read.
    Unreadable { target: u64 },
    /// The result of the read, which may be empty.
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
    /// Positions of the first entry and behind the last.
    pub(super) from: u64,
    pub(super) target: u64,
    /// Address bits 56:40 behind the last entry.
    pub(super) extended: u64,
    /// Entries before the first that were overwritten.
    pub(super) lost: Option<Lost>,
    pub(super) segments: Vec<Segment>,
}

/// Reads the entries of a channel's ring behind the captured ones. `map`: where its GPU addresses lie in the process.
pub(super) fn fetch(
    channel: &ChannelState,
    state: &c::SharedChannel,
    memory: &Memory,
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
    let mut from = state.done.min(channel.taken);
    let mut lost = None;
    if target - from >= size {
        let count = target - from - (size - 1);
        lost = Some(Lost::Entries {
            position: from,
            count,
        });
        from += count;
    }
    let mut extended = state.extended;
    let map = map();
    // An offset that no file has: unmapped memory becomes a hole.
    let translate = |address: u64| map.at(address).map_or(1 << 63, |(cpu, _)| cpu);
    let on = ring::Ring {
        address: channel.ring,
        entries: channel.entries,
    };
    let Ok(entries) = ring::entries(memory, on, from, target) else {
        return Fetch::Unreadable { target };
    };
    let segments = ring::segments(memory, &entries, &mut extended, &mut Vec::new(), translate);
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

/// Fills holes that the BPF programs left: they cannot fault in a page that the process has mapped but never touched (a
/// forked child's shared memory). True when something was filled.
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
