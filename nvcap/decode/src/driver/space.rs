//! GPU address spaces: the memory at each GPU virtual address. The module knows only ranges.

use std::collections::{BTreeMap, VecDeque};

use super::object::{MemoryId, ObjectRef};
use crate::record::MemoryNear;

/// A mapping of a range of GPU addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuMap {
    pub len: u64,
    pub memory: Option<Backing>,
    /// Handle, in the client of the space, of the virtual memory object through which the range was mapped; 0 for UVM.
    pub through: u32,
}

/// The memory behind a GPU range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    pub id: MemoryId,
    pub object: ObjectRef,
    /// Offset, in the memory, of the range's first byte.
    pub offset: u64,
    /// True if the call named the memory; false if it was inferred from sizes and order.
    pub stated: bool,
}

/// The most freed ranges that are kept of an address space.
const FREED: usize = 1024;

/// A range that was mapped to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freed {
    pub start: u64,
    pub len: u64,
    /// Time of the call.
    pub time_ns: u64,
}

/// The mappings of one address space, by first address. They do not overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressSpace {
    pub ranges: BTreeMap<u64, GpuMap>,
    /// Ranges that were freed last, the newest at the end.
    pub freed: VecDeque<Freed>,
}

impl AddressSpace {
    pub(crate) fn at(&self, address: u64) -> Option<(u64, &GpuMap)> {
        let (&start, map) = self.ranges.range(..=address).next_back()?;
        (address - start < map.len).then_some((start, map))
    }

    /// Records the mappings to memory within a range that is about to be freed.
    pub(crate) fn note_freed(&mut self, start: u64, len: u64, time_ns: u64) {
        let end = start.saturating_add(len);
        let first = self.at(start).map_or(start, |(first, _)| first);
        for (&at, map) in self.ranges.range(first..end.max(first)) {
            if map.memory.is_none() {
                continue;
            }
            let from = at.max(start);
            let to = at.saturating_add(map.len).min(end);
            if self.freed.len() >= FREED {
                self.freed.pop_front();
            }
            self.freed.push_back(Freed {
                start: from,
                len: to.saturating_sub(from),
                time_ns,
            });
        }
    }

    /// Returns the memory at an address, else the memory that was freed there last, else the nearest.
    pub(crate) fn memory_near(&self, address: u64) -> Option<MemoryNear> {
        let mapped = |(start, map): (&u64, &GpuMap)| {
            map.memory.map(|_| MemoryNear {
                start: *start,
                bytes: map.len,
                freed_ns: None,
            })
        };
        let below = self.ranges.range(..=address).rev().find_map(mapped);
        if below.is_some_and(|m| address - m.start < m.bytes) {
            return below;
        }
        let is_there = |f: &&Freed| f.start <= address && address - f.start < f.len;
        if let Some(freed) = self.freed.iter().rev().find(is_there) {
            return Some(MemoryNear {
                start: freed.start,
                bytes: freed.len,
                freed_ns: Some(freed.time_ns),
            });
        }
        let above = self.ranges.range(address..).find_map(mapped);
        let behind = below.map(|m| address - m.start - m.bytes);
        let before = above.map(|m| m.start - address);
        match (behind, before) {
            (Some(behind), Some(before)) if before < behind => above,
            (None, _) => above,
            _ => below,
        }
    }

    /// Removes a range; the remaining parts of cut mappings stay. Returns the mappings that were touched.
    pub(crate) fn cut(&mut self, start: u64, len: u64) -> Vec<(u64, GpuMap)> {
        let end = start.saturating_add(len);
        let mut hit: Vec<u64> = self.at(start).map(|(s, _)| s).into_iter().collect();
        if end > start {
            hit.extend(self.ranges.range(start..end).map(|(s, _)| *s));
        }
        hit.dedup();
        let mut gone = Vec::new();
        for s in hit {
            let Some(map) = self.ranges.remove(&s) else {
                continue;
            };
            gone.push((s, map));
            let map_end = s.saturating_add(map.len);
            if s < start {
                self.ranges.insert(
                    s,
                    GpuMap {
                        len: start - s,
                        ..map
                    },
                );
            }
            if map_end > end {
                let mut rest = GpuMap {
                    len: map_end - end,
                    ..map
                };
                if let Some(backing) = &mut rest.memory {
                    backing.offset = backing.offset.saturating_add(end - s);
                }
                self.ranges.insert(end, rest);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn mapped(space: &mut AddressSpace, start: u64, len: u64, has_memory: bool) {
        let backing = Backing {
            id: MemoryId(1),
            object: ObjectRef {
                client: 1,
                handle: 2,
            },
            offset: 0,
            stated: true,
        };
        let map = GpuMap {
            len,
            memory: has_memory.then_some(backing),
            through: 0,
        };
        space.ranges.insert(start, map);
    }

    #[test]
    fn memory_is_found_at_an_address_or_near_it() {
        let mut space = AddressSpace::default();
        assert_eq!(space.memory_near(0), None);
        mapped(&mut space, 16 * MIB, 4 * MIB, true);
        mapped(&mut space, 64 * MIB, 8 * MIB, true);
        // This range is only reserved.
        mapped(&mut space, 32 * MIB, 8 * MIB, false);
        let of = |space: &AddressSpace, at: u64| {
            let near = space.memory_near(at).unwrap();
            (near.start / MIB, near.bytes / MIB, near.freed_ns)
        };
        assert_eq!(of(&space, 17 * MIB), (16, 4, None));
        assert_eq!(of(&space, 20 * MIB), (16, 4, None));
        assert_eq!(of(&space, 0), (16, 4, None));
        assert_eq!(of(&space, 60 * MIB), (64, 8, None));
        assert_eq!(of(&space, 34 * MIB), (16, 4, None));
        assert_eq!(of(&space, u64::MAX), (64, 8, None));

        // A part is freed, and later mapped again.
        space.note_freed(66 * MIB, 2 * MIB, 5);
        space.cut(66 * MIB, 2 * MIB);
        assert_eq!(of(&space, 67 * MIB), (66, 2, Some(5)));
        assert_eq!(of(&space, 65 * MIB), (64, 2, None));
        mapped(&mut space, 66 * MIB, 2 * MIB, true);
        assert_eq!(of(&space, 67 * MIB), (66, 2, None));
        // A range that is only reserved does not count as freed, and the freed ranges that are kept are bounded.
        space.note_freed(0, u64::MAX, 9);
        assert_eq!(space.freed.len(), 5);
        (0..2 * FREED).for_each(|_| space.note_freed(16 * MIB, MIB, 10));
        assert_eq!(space.freed.len(), FREED);
    }
}
