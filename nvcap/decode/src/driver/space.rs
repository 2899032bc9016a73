//! GPU address spaces: which memory lies at which GPU virtual address. Knows ranges only.

use std::collections::BTreeMap;

use super::object::{MemoryId, ObjectRef};

/// A mapping of a range of GPU addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuMap {
    pub len: u64,
    pub memory: Option<Backing>,
    /// Handle of the virtual memory object it was mapped through, in the client of its space; 0 for UVM.
    pub through: u32,
}

/// The memory behind a GPU range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    pub id: MemoryId,
    pub object: ObjectRef,
    /// Offset in the memory of the range's first byte.
    pub offset: u64,
    /// The call named the memory; otherwise it was inferred from sizes and order.
    pub stated: bool,
}

/// The mappings of one address space, by first address, not overlapping.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressSpace {
    pub ranges: BTreeMap<u64, GpuMap>,
}

impl AddressSpace {
    pub(crate) fn at(&self, address: u64) -> Option<(u64, &GpuMap)> {
        let (&start, map) = self.ranges.range(..=address).next_back()?;
        (address - start < map.len).then_some((start, map))
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
