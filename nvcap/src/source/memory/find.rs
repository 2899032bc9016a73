//! Channels of a process whose beginning was not seen: rings and USERD found in its mappings of GPU memory.
//!
//! What is looked for is libcuda's habit, measured from driver 580: slots of 0x3000 bytes in a mapping of
//! /dev/nvidiaN, the ring of 1024 entries at +0 and USERD at +0x2000. A slot is believed when GP_GET and GP_PUT are
//! possible positions and the entry before GP_PUT points into a readable mapping; slots that are still all zero are
//! kept as possible channels that have not been used, as long as a believed one is in the same mapping.

use super::{maps::Area, process::Memory};
use crate::record::Device;

/// Size of libcuda's slots.
pub const SLOT: u64 = 0x3000;
/// USERD in a slot.
pub const USERD: u64 = 0x2000;
/// Ring entries of a slot.
pub const ENTRIES: u32 = 1024;
/// GP_GET in USERD; GP_PUT follows.
pub const GP_GET: u64 = 0x88;
/// Unused slots kept behind the last used one.
const UNUSED: usize = 24;

/// A ring that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// GPU by device file minor number.
    pub gpu: u32,
    /// Address of the ring.
    pub ring: u64,
    /// Entries.
    pub entries: u32,
    /// Address of USERD.
    pub userd: u64,
    /// GP_GET when found.
    pub get: u32,
    /// GP_PUT when found.
    pub put: u32,
    /// It has been used: its last entry was checked.
    pub used: bool,
}

/// Looks for rings in all GPU memory mappings of a process.
pub fn rings(memory: &Memory, areas: &[Area]) -> Vec<Found> {
    let mut all = Vec::new();
    for area in areas {
        let Some(Device::Gpu(gpu)) = area.device() else {
            continue;
        };
        if area.read
            && area.write
            && area.end - area.start >= SLOT
            && area.end - area.start <= 64 << 20
        {
            all.extend(rings_of(memory, areas, area, gpu));
        }
    }
    all
}

fn rings_of(memory: &Memory, areas: &[Area], area: &Area, gpu: u32) -> Vec<Found> {
    let mut found = Vec::new();
    let mut unused = 0;
    let mut at = area.start;
    while at + SLOT <= area.end && unused < UNUSED {
        if let Ok((get, put)) = memory.get_put(at + USERD + GP_GET)
            && get < ENTRIES
            && put < ENTRIES
        {
            let used = last_entry_is_plausible(memory, areas, at, put);
            let zero = get == 0 && put == 0 && !used;
            if used || zero {
                found.push(Found {
                    gpu,
                    ring: at,
                    entries: ENTRIES,
                    userd: at + USERD,
                    get,
                    put,
                    used,
                });
                unused = if used { 0 } else { unused + 1 };
            } else {
                unused += 1;
            }
        } else {
            unused += 1;
        }
        at += SLOT;
    }
    if found.iter().any(|f| f.used) {
        found
    } else {
        Vec::new()
    }
}

/// The entry before GP_PUT is a segment in readable memory.
fn last_entry_is_plausible(memory: &Memory, areas: &[Area], ring: u64, put: u32) -> bool {
    let last = u64::from(put.wrapping_sub(1) & (ENTRIES - 1));
    let mut b = [0; 8];
    if memory.read(ring + 8 * last, &mut b).is_err() {
        return false;
    }
    let entry = u64::from_le_bytes(b);
    let address = entry & 0xff_ffff_fffc;
    let len = ((entry >> 42) & 0x1f_ffff) * 4;
    len != 0
        && areas
            .iter()
            .any(|a| a.read && a.start <= address && address + len <= a.end)
}
