//! Channels that lie as libcuda lays them out: slots of one size, a ring and its USERD in each.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
};

use crate::procfs::mem::Peek;
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

/// A place that looks like a slot's USERD, and whose ring was not believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unresolved {
    /// Where its ring would be.
    pub ring: u64,
    /// GP_PUT as it was first seen there.
    put: u32,
    /// GP_PUT was another one later: somebody submits there.
    pub moved: bool,
}

/// The channels that lie as libcuda lays them out, however fast they move: the entry before GP_PUT is a segment in
/// mapped memory, which stays so whatever comes behind it. Slots that are all zero are channels where a used one lies
/// behind them; what looks like a USERD and has no such entry is `unresolved`, by its address. Slots whose rings are `known` are
/// not read again: while this looks, nothing is followed.
pub(super) fn slots(
    memory: &impl Peek,
    areas: &[Area],
    known: &BTreeSet<u64>,
    unresolved: &mut BTreeMap<u64, Unresolved>,
) -> Vec<Found> {
    let places = Places::new(areas);
    let mut all = Vec::new();
    for (area, gpu) in scan::with_slots(areas) {
        let mut zero = Vec::new();
        scan::walk_slots(area, |ring| {
            if known.contains(&ring) {
                all.append(&mut zero);
                return true;
            }
            let Some(slot) = Slot::read(memory, &places, ring, known.is_empty()) else {
                return false;
            };
            let found = Found::in_slot(gpu, ring, slot.get, slot.put);
            if slot.used {
                all.append(&mut zero);
                all.push(Found {
                    used: true,
                    ..found
                });
                unresolved.remove(&found.userd);
            } else if (slot.get, slot.put) == (0, 0) {
                zero.push(found);
            } else {
                let seen = unresolved.entry(found.userd).or_insert(Unresolved {
                    ring,
                    put: slot.put,
                    moved: false,
                });
                seen.moved |= seen.put != slot.put;
            }
            slot.used
        });
    }
    all
}

/// What a slot says of itself: positions that a ring can have.
struct Slot {
    get: u32,
    put: u32,
    /// The entry before GP_PUT is one.
    used: bool,
}

impl Slot {
    /// `thorough`: one whose positions are both 0 may have been used too.
    fn read(memory: &impl Peek, places: &Places<'_>, ring: u64, thorough: bool) -> Option<Self> {
        let (get, put) = scan::get_put(memory, ring + scan::USERD).ok()?;
        if get >= scan::ENTRIES || put >= scan::ENTRIES {
            return None;
        }
        let mut slot = Self {
            get,
            put,
            used: false,
        };
        // All zero, most likely: only where nothing is known yet it may have gone round exactly.
        if (get, put) == (0, 0) && !thorough {
            return Some(slot);
        }
        let newest = u64::from(put.wrapping_sub(1) % scan::ENTRIES);
        let entry = memory.word(ring + 8 * newest).ok()?;
        let segment = entry::segment_of(entry, 0);
        slot.used = segment.is_some_and(|(at, len)| places.holds(at.0, u64::from(len)));
        Some(slot)
    }
}
