//! Channels that lie as libcuda lays them out: slots of one size, a ring and its USERD in each.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
};

use crate::procfs::mem::Peek;
use crate::record::Device;
use crate::source::memory::{
    maps::Area,
    scan::{self, Found, Places},
};
use crate::wire::entry;

/// Memory that is searched while something else must go on: called between any two reads.
pub(super) struct Polite<'a, P> {
    pub memory: &'a P,
    pub between: RefCell<&'a mut dyn FnMut()>,
}

impl<P: Peek> Peek for Polite<'_, P> {
    fn peek(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        (self.between.borrow_mut())();
        self.memory.peek(at, to)
    }
}

/// Slots behind the last used one that are looked at.
const UNUSED: u32 = 24;

/// The channels that lie as libcuda lays them out, however fast they move: the entry before GP_PUT is a segment in
/// mapped memory, which stays so whatever comes behind it. Slots that are all zero are channels where a used one lies
/// behind them; what looks like a USERD and has no such entry is `unresolved`. Slots that are `known` are not read again:
/// while this looks, nothing is followed.
pub(super) fn slots(
    memory: &impl Peek,
    areas: &[Area],
    known: &BTreeSet<u64>,
    unresolved: &mut BTreeMap<u64, (u32, bool, u64)>,
) -> Vec<Found> {
    let places = Places::new(areas);
    let mut all = Vec::new();
    for area in areas {
        let Some(Device::Gpu(gpu)) = area.device() else {
            continue;
        };
        let fits = (scan::SLOT..=64 << 20).contains(&(area.end - area.start));
        if !area.read || !area.write || !fits || area.is_doorbell_shape() {
            continue;
        }
        let mut zero = Vec::new();
        let mut unused = 0;
        let mut ring = area.start;
        while ring + scan::SLOT <= area.end && unused < UNUSED {
            let userd = ring + scan::USERD;
            unused += 1;
            if known.contains(&ring) {
                unused = 0;
                all.append(&mut zero);
            } else if let Some((get, put, used)) = slot(memory, &places, ring, known.is_empty()) {
                let found = Found {
                    gpu: Some(gpu),
                    ring,
                    entries: scan::ENTRIES,
                    userd,
                    get,
                    put,
                    used,
                    proof: scan::Proof::default(),
                };
                if used {
                    unused = 0;
                    all.append(&mut zero);
                    all.push(found);
                    unresolved.remove(&userd);
                } else if (get, put) == (0, 0) {
                    zero.push(found);
                } else {
                    let seen = unresolved.entry(userd).or_insert((put, false, ring));
                    seen.1 |= seen.0 != put;
                }
            }
            ring += scan::SLOT;
        }
    }
    all
}

/// GP_GET and GP_PUT of a slot where both are possible, and whether the entry before GP_PUT is one.
fn slot(
    memory: &impl Peek,
    places: &Places<'_>,
    ring: u64,
    thorough: bool,
) -> Option<(u32, u32, bool)> {
    let both = memory.word(ring + scan::USERD + scan::GP_GET).ok()?;
    let (get, put) = (both as u32, (both >> 32) as u32);
    if get >= scan::ENTRIES || put >= scan::ENTRIES {
        return None;
    }
    let newest = u64::from(put.wrapping_sub(1) % scan::ENTRIES);
    // All zero, most likely: only where nothing is known yet it may have gone round exactly.
    if (get, put) == (0, 0) && !thorough {
        return Some((0, 0, false));
    }
    let entry = memory.word(ring + 8 * newest).ok()?;
    let segment = entry::segment_of(entry, 0);
    let readable = segment.is_some_and(|(at, len)| places.holds(at.0, u64::from(len)));
    Some((get, put, readable))
}
