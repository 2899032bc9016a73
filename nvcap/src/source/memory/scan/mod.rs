//! Channels of a process whose beginning was not seen: rings and USERD found in its mappings, by their structure.
//!
//! A channel is believed when GP_GET and GP_PUT are possible positions and the ring's entries before GP_PUT are
//! pushbuffer segments (`check`). Where to look, in order: where libcuda puts its rings (`libcuda`), then every place
//! where a USERD can lie (`generic`). What was proven of each ring and what assumed is in its [`Proof`].
//!
//! A read of GPU memory through /proc/PID/mem costs microseconds whatever its size, and more by the byte: so one
//! aligned read of 8 bytes a candidate, and never a page. Doorbell pages are never read: any mapping that could be one
//! is left out.

mod check;
mod found;
mod generic;
mod libcuda;
#[cfg(test)]
mod tests;

use super::maps::Area;
use crate::procfs::mem::{Memory, Peek};
use crate::record::Device;

pub(crate) use super::places::Places;
pub(super) use check::get_put;
pub(crate) use check::is_methods;
pub use found::Effort;
pub(crate) use found::{Found, GP_GET, Place, Proof, Search, Size, Target};
pub(crate) use libcuda::{ENTRIES, SLOT, USERD};

/// Looks for rings in all GPU memory mappings of a process.
pub(crate) fn rings(memory: &Memory, areas: &[Area]) -> Vec<Found> {
    search(memory, areas, Effort::Usual).found
}

/// As [`rings`], on any memory, with as much effort as is asked for, and with what was left out.
pub(crate) fn search(memory: &impl Peek, areas: &[Area], effort: Effort) -> Search {
    let mut search = Search::default();
    let places = Places::new(areas);
    let mut left = Vec::new();
    for area in areas {
        let Some(Device::Gpu(gpu)) = area.device() else {
            continue;
        };
        if !area.read || !area.write {
            continue;
        }
        if area.is_doorbell_shape() {
            // A doorbell page of a graphics client looks like that, and must not be read.
            continue;
        }
        let before = search.found.len();
        if area.end - area.start >= SLOT && area.end - area.start <= 64 << 20 {
            search
                .found
                .extend(libcuda::rings(memory, &places, area, gpu));
        }
        left.push((area, gpu, search.found.len() == before));
    }
    if effort > Effort::Habit {
        generic::add_rings(memory, &places, &left, effort, &mut search);
    }
    search.found.sort_by_key(|f| (f.gpu, f.userd));
    search
}
