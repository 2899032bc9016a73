//! Search at the places of libcuda's rings: slots of 0x3000 bytes in a mapping of /dev/nvidiaN, with the ring of 1024 entries at +0, and
//! USERD at +0x2000.

use super::{
    check::{Fit, begins_here, check, settled},
    found::{FoundRing, Proof, Target},
};
use crate::memory::{maps::Area, places::Places};
use crate::procfs::mem::ReadMemory;

/// Size of a slot.
pub const SLOT: u64 = 0x3000;
/// Offset of USERD in a slot.
pub const USERD: u64 = 0x2000;
/// Number of ring entries in a slot.
pub const ENTRIES: u32 = 1024;
/// Largest mapping known to hold libcuda's slots, bytes.
const LARGEST: u64 = 64 << 20;
/// Number of unused slots in a row that ends the search.
const UNUSED: u32 = 24;

/// Tells whether a mapping has a size that can hold slots.
pub(super) fn has_room(area: &Area) -> bool {
    (SLOT..=LARGEST).contains(&(area.end - area.start))
}

/// Walks over the slots of a mapping until many in a row are not in use. `is_used` gets the address of a slot's ring.
pub fn walk(area: &Area, mut is_used: impl FnMut(u64) -> bool) {
    let mut unused = 0;
    let mut ring = area.start;
    while ring + SLOT <= area.end && unused < UNUSED {
        unused = if is_used(ring) { 0 } else { unused + 1 };
        ring += SLOT;
    }
}

impl FoundRing {
    /// Makes the ring of a slot, of which only the positions are known.
    pub fn in_slot(gpu: u32, ring: u64, get: u32, put: u32) -> Self {
        Self {
            gpu: Some(gpu),
            ring,
            entries: ENTRIES,
            userd: ring + USERD,
            get,
            put,
            used: false,
            proof: Proof::default(),
        }
    }
}

/// Returns the rings of one mapping that are at libcuda's usual places.
pub(super) fn rings(
    memory: &impl ReadMemory,
    places: &Places<'_>,
    area: &Area,
    gpu: u32,
) -> Vec<FoundRing> {
    let mut found = Vec::new();
    walk(area, |at| {
        let mut is_used = false;
        if let Some((get, put, fit)) = settled(memory, at + USERD, |get, put| {
            if get < ENTRIES && put < ENTRIES {
                check(memory, places, at, ENTRIES, put)
            } else {
                Fit::No
            }
        }) {
            let used = match fit {
                Fit::Yes(target) if target != Target::Elsewhere => Some(target),
                // Either the process was stopped between writing an entry and committing it, or the pushbuffer has just enough room for the
                // ring's entries, so that the oldest lies behind the newest. No ring continues before this one.
                Fit::Continues(target)
                    if target != Target::Elsewhere && begins_here(memory, places, at) =>
                {
                    Some(target)
                }
                _ => None,
            };
            if used.is_some() || (get, put) == (0, 0) {
                is_used = used.is_some();
                found.push(FoundRing {
                    used: is_used,
                    proof: Proof {
                        target: used.unwrap_or_default(),
                        ..Proof::default()
                    },
                    ..FoundRing::in_slot(gpu, at, get, put)
                });
            }
        }
        is_used
    });
    // With both positions 0, only the entries support it, which is not enough if nothing else does.
    if found.iter().any(|f| f.used && (f.get, f.put) != (0, 0)) {
        found
    } else {
        Vec::new()
    }
}
