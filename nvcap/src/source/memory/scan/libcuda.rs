//! Where libcuda puts its rings: slots of 0x3000 bytes in a mapping of /dev/nvidiaN, the ring of 1024 entries at +0, USERD at
//! +0x2000.

use super::{
    check::{Fit, begins_here, check, settled},
    found::{Found, Proof, Target},
};
use crate::procfs::mem::Peek;
use crate::source::memory::{maps::Area, places::Places};

/// Size of a slot.
pub(crate) const SLOT: u64 = 0x3000;
/// USERD in a slot.
pub(crate) const USERD: u64 = 0x2000;
/// Ring entries of a slot.
pub(crate) const ENTRIES: u32 = 1024;
/// Unused slots kept behind the last used one.
const UNUSED: usize = 24;

/// The rings of one mapping that lie where libcuda puts them.
pub(super) fn rings(memory: &impl Peek, places: &Places<'_>, area: &Area, gpu: u32) -> Vec<Found> {
    let mut found = Vec::new();
    let mut unused = 0;
    let mut at = area.start;
    while at + SLOT <= area.end && unused < UNUSED {
        unused += 1;
        if let Some((get, put, fit)) = settled(memory, at + USERD, |get, put| {
            if get < ENTRIES && put < ENTRIES {
                check(memory, places, at, ENTRIES, put)
            } else {
                Fit::No
            }
        }) {
            let used = match fit {
                Fit::Yes(target) if target != Target::Elsewhere => Some(target),
                // A process that was stopped between writing an entry and committing it; or a pushbuffer that has just
                // room for the ring's entries, so that the oldest lies behind the newest. No ring goes on before this one.
                Fit::Continues(target)
                    if target != Target::Elsewhere && begins_here(memory, places, at) =>
                {
                    Some(target)
                }
                _ => None,
            };
            if used.is_some() || (get, put) == (0, 0) {
                found.push(Found {
                    gpu: Some(gpu),
                    ring: at,
                    entries: ENTRIES,
                    userd: at + USERD,
                    get,
                    put,
                    used: used.is_some(),
                    proof: Proof {
                        target: used.unwrap_or_default(),
                        ..Proof::default()
                    },
                });
                if used.is_some() {
                    unused = 0;
                }
            }
        }
        at += SLOT;
    }
    // With both positions 0 it is the entries alone that speak for it: not enough where nothing else does.
    if found.iter().any(|f| f.used && (f.get, f.put) != (0, 0)) {
        found
    } else {
        Vec::new()
    }
}
