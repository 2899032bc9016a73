//! Channels in libcuda's layout: slots of one size, with a ring and its USERD in each.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
};

use nvcap_decode::wire::entry;
pub(super) use nvcap_process::memory::{
    maps::Area,
    scan::{self, FoundRing, Places},
};
pub(super) use nvcap_process::procfs::mem::ReadMemory;

/// Memory whose reads let other work go on: `between` is called between any two reads.
pub(super) struct Polite<'a, P> {
    pub memory: &'a P,
    pub between: RefCell<&'a mut dyn FnMut()>,
}

impl<P: ReadMemory> ReadMemory for Polite<'_, P> {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        (self.between.borrow_mut())();
        self.memory.read_bytes(at, to)
    }
}

/// A place that looks like a slot's USERD, and whose ring was not believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unresolved {
    /// Address that the place's ring would have.
    pub ring: u64,
    /// GP_PUT as it was first seen there.
    put: u32,
    /// True if GP_PUT was another one later: a program submits there.
    pub moved: bool,
}

/// Finds the channels in libcuda's layout, however fast they move: the entry before GP_PUT must be a segment in mapped memory, whether nvcap
/// reads that memory or not. It does not change with the entries behind it. Slots that are all zero are channels if a used slot lies behind
/// them. A place that looks like a USERD and has no such entry is put into `unresolved`, by its address. Slots whose rings are `known` are
/// not read again, because no ring is followed during the search.
pub(super) fn slots(
    memory: &impl ReadMemory,
    areas: &[Area],
    known: &BTreeSet<u64>,
    unresolved: &mut BTreeMap<u64, Unresolved>,
) -> Vec<FoundRing> {
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
            let found = FoundRing::in_slot(gpu, ring, slot.get, slot.put);
            if slot.used {
                all.append(&mut zero);
                all.push(FoundRing {
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

/// Positions of a slot that a ring can have.
struct Slot {
    get: u32,
    put: u32,
    /// True if the entry before GP_PUT is a ring's entry.
    used: bool,
}

impl Slot {
    /// Reads a slot. `thorough`: a slot whose positions are both 0 may have been used, too.
    fn read(
        memory: &impl ReadMemory,
        places: &Places<'_>,
        ring: u64,
        thorough: bool,
    ) -> Option<Self> {
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
        slot.used = segment.is_some_and(|(at, len)| places.has(at.0, u64::from(len)));
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::Device;
    use nvcap_decode::wire::GpuVa;

    const RINGS: u64 = 0x2_0060_0000;
    const PUSHBUFFER: u64 = 0x2_0080_0000;

    /// Words by address; all others are 0.
    struct Words(BTreeMap<u64, u64>);

    impl Words {
        /// Sets the positions of a slot and the entry before GP_PUT.
        fn set(&mut self, slot: u64, put: u64, entry: u64) {
            let ring = ring(slot);
            self.0
                .insert(ring + scan::USERD + scan::GP_GET, put << 32 | put);
            self.0.insert(ring + 8 * (put - 1), entry);
        }
    }

    impl ReadMemory for Words {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            let word = self.0.get(&at).copied().unwrap_or(0);
            to.copy_from_slice(&word.to_le_bytes());
            Ok(())
        }
    }

    fn ring(slot: u64) -> u64 {
        RINGS + slot * scan::SLOT
    }

    fn areas() -> [Area; 2] {
        let area = |start, len, path| Area::made_up(start, len, "rw", path);
        let areas = [
            area(RINGS, 0x20_0000, "/dev/nvidia3"),
            area(PUSHBUFFER, 0x1000, "/dev/nvidiactl"),
        ];
        assert_eq!(areas[0].device(), Some(Device::Gpu(3)));
        areas
    }

    /// Submissions whose pushbuffer nvcap may not read are submissions: their channel is found, and what cannot be read is counted there.
    #[test]
    fn a_ring_whose_newest_entry_points_to_served_memory_is_a_channel() {
        let mut areas = areas();
        let mut memory = Words(BTreeMap::new());
        memory.set(
            0,
            58,
            entry::segment(GpuVa(PUSHBUFFER), 64, false, false, false),
        );
        let found = |areas: &[Area]| {
            let mut unresolved = BTreeMap::new();
            let found = slots(&memory, areas, &BTreeSet::new(), &mut unresolved);
            (found.len(), unresolved.len())
        };
        (areas[1].read, areas[1].served) = (false, true);
        assert_eq!(found(&areas), (1, 0));
        areas[1].served = false;
        assert_eq!(found(&areas), (0, 1));
    }

    #[test]
    fn used_slots_and_those_before_them_are_channels() {
        let segment = entry::segment(GpuVa(PUSHBUFFER), 64, false, false, false);
        let mut memory = Words(BTreeMap::new());
        let mut unresolved = BTreeMap::new();
        let mut found = |memory: &Words, known: &[u64]| {
            let known = known.iter().map(|slot| ring(*slot)).collect();
            let found = slots(memory, &areas(), &known, &mut unresolved);
            let moved = unresolved.values().filter(|u| u.moved);
            let moved: Vec<u64> = moved.map(|u| u.ring).collect();
            let seen = found.iter().map(|f| {
                assert_eq!((f.gpu, f.userd), (Some(3), f.ring + scan::USERD));
                ((f.ring - RINGS) / scan::SLOT, f.used, f.put)
            });
            (seen.collect::<Vec<_>>(), unresolved.len(), moved)
        };
        assert_eq!(found(&memory, &[]), (vec![], 0, vec![]));
        memory.set(2, 7, segment);
        // Its entry points to memory that is not mapped.
        memory.set(4, 9, segment + 0x10_0000);
        let used = |slot, put| (slot, true, put);
        let zero = |slot| (slot, false, 0);
        let three = vec![zero(0), zero(1), used(2, 7)];
        assert_eq!(found(&memory, &[]), (three.clone(), 1, vec![]));
        memory.set(4, 10, segment + 0x10_0000);
        assert_eq!(found(&memory, &[]), (three.clone(), 1, vec![ring(4)]));
        // So many behind the last used one are looked at.
        memory.set(27, 1, segment);
        assert_eq!(found(&memory, &[]).0, three);
        // One that is known is not read again, and those behind it are looked at.
        let (seen, ..) = found(&memory, &[0, 1, 2, 3]);
        assert_eq!(seen.first(), Some(&zero(5)));
        assert_eq!(seen.last(), Some(&used(27, 1)));
        memory.set(4, 11, segment);
        let (seen, unresolved, _) = found(&memory, &[2]);
        assert_eq!(seen[..3], [zero(0), zero(1), zero(3)]);
        assert_eq!((seen[3], unresolved), (used(4, 11), 0));
    }
}
