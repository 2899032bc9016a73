//! Channels of a process whose beginning was not seen. Their rings and USERDs are found in the process's mappings, by their
//! structure.
//!
//! A channel is accepted if GP_GET and GP_PUT are possible positions and the ring's entries before GP_PUT are pushbuffer segments
//! (`check`). The search covers first the places where libcuda puts its rings (`libcuda`), then every place at which a USERD can lie
//! (`generic`). The [`Proof`] of each ring lists the proven and the assumed facts.
//!
//! A read of GPU memory through /proc/PID/mem costs microseconds whatever its size, and more per byte. The search therefore makes one
//! aligned read of 8 bytes for each candidate, and never reads a page. Doorbell pages are never read: any mapping that could be one is left
//! out.

mod check;
mod found;
mod generic;
mod libcuda;
#[cfg(test)]
mod tests;

use super::maps::Area;
use crate::procfs::mem::{Memory, ReadMemory};

pub use super::places::Places;
pub use check::{get_put, is_methods};
pub use found::Effort;
pub use found::{FoundRing, GP_GET, Place, Proof, Search, Size, Target};
pub use libcuda::walk as walk_slots;
pub use libcuda::{ENTRIES, SLOT, USERD};

/// Returns the GPU whose memory is mapped here and may be read. A doorbell page must not be read, and a graphics client's doorbell page is
/// recognised only by its shape.
fn gpu_memory(area: &Area) -> Option<u32> {
    let gpu = area.gpu()?;
    (area.read && area.write && !area.is_doorbell_shape()).then_some(gpu)
}

/// Returns the mappings that may hold libcuda's slots, each with its GPU.
pub fn with_slots(areas: &[Area]) -> impl Iterator<Item = (&Area, u32)> {
    let with_room = areas.iter().filter(|a| libcuda::has_room(a));
    with_room.filter_map(|a| Some((a, gpu_memory(a)?)))
}

/// Looks for rings in all GPU memory mappings of a process.
pub fn rings(memory: &Memory, areas: &[Area]) -> Vec<FoundRing> {
    search(memory, areas, Effort::Usual).found
}

/// Looks for rings as [`rings`] does, on any memory and with this effort, and notes omissions.
pub fn search(memory: &impl ReadMemory, areas: &[Area], effort: Effort) -> Search {
    let mut search = Search::default();
    let places = Places::new(areas);
    let mut left = Vec::new();
    for area in areas {
        let Some(gpu) = gpu_memory(area) else {
            continue;
        };
        if libcuda::has_room(area) {
            search
                .found
                .extend(libcuda::rings(memory, &places, area, gpu));
        }
        left.push((area, gpu));
    }
    if effort > Effort::Habit {
        generic::add_rings(memory, &places, &left, effort, &mut search);
    }
    search.found.sort_by_key(|f| (f.gpu, f.userd));
    search
}
