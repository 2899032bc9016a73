//! A traced process in the model: its mappings of the driver's files, and those that it is about to make. The module knows address ranges;
//! it only passes handles on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::object::{MemoryId, ObjectRef};
use crate::record::{ChannelId, Device, Mapping};

/// Length of a doorbell page: 64 KiB. The doorbell is its 32-bit word at +0x90.
pub(crate) const DOORBELL_LEN: u64 = 0x10000;

/// Tells whether a mapping looks like a doorbell page: 64 KiB, writable, of a GPU's device file.
///
/// The page that CUDA rings is write-only (`-w-s`); Vulkan's is `rw-s`. The shape of a readable mapping proves little, because any 64 KiB
/// of video memory has it.
#[must_use]
pub fn is_doorbell_shape(mapping: &Mapping) -> bool {
    matches!(mapping.device, Device::Gpu(_)) && mapping.len == DOORBELL_LEN && mapping.write
}

/// Target that is visible through a CPU mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An unknown target: the mapping was found afterwards, or its ioctl was not seen.
    Unknown,
    /// A memory object, from an offset on.
    Memory {
        id: MemoryId,
        object: ObjectRef,
        offset: u64,
    },
    /// A doorbell page with its object, or without one if it was recognised only by its shape.
    Doorbell {
        object: Option<ObjectRef>,
        bar1: Option<bool>,
    },
    /// Control page of a channel: USERD that RM allocated.
    Channel { id: ChannelId, object: ObjectRef },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuMap {
    pub len: u64,
    pub device: Device,
    pub read: bool,
    pub write: bool,
    pub found: bool,
    pub target: Target,
    /// Bytes between the mapping's start and the target. A mapping begins at a page boundary, but the object, or the requested part of it,
    /// may not.
    pub skip: u64,
    /// Number of doorbells seen on the page.
    pub rung: u64,
}

impl CpuMap {
    /// Returns the place, relative to the mapping's start, of a byte of its memory.
    pub(crate) fn place_of(&self, first: u64, offset: u64) -> Option<u64> {
        let at = offset.checked_sub(first)?.checked_add(self.skip)?;
        (at < self.len).then_some(at)
    }

    /// Returns the offset, in the memory, of a byte of the mapping.
    pub(crate) fn offset_of(&self, first: u64, at: u64) -> Option<u64> {
        at.checked_sub(self.skip)?.checked_add(first)
    }
}

/// A map request (NV_ESC_RM_MAP_MEMORY) whose mmap is yet to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub object: ObjectRef,
    pub offset: u64,
    pub len: u64,
    /// Offset of the first requested byte in its page.
    pub in_page: u64,
}

/// The open file that a map request names, and from which the mmap comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileKey {
    /// The source's number for the open file.
    File(u64),
    /// The descriptor.
    Fd(i32),
}

/// Limits of the requests that wait for their mmap, on one open file and in a process. The driver allows one per file (a list since 595),
/// so requests beyond the limits are leftovers.
const PENDING_OF_FILE: usize = 16;
const PENDING_FILES: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessModel {
    pub name: Option<String>,
    pub maps: BTreeMap<u64, CpuMap>,
    /// Minor numbers of the GPUs whose device files were ever mapped.
    pub gpus: BTreeSet<u32>,
    pub pending: BTreeMap<FileKey, VecDeque<Pending>>,
    pub clients: BTreeSet<u32>,
    /// Channels that wait for a mapping of their ring or USERD.
    pub waiting: BTreeSet<ChannelId>,
}

impl ProcessModel {
    pub(crate) fn expect(&mut self, key: FileKey, pending: Pending) {
        if self.pending.len() >= PENDING_FILES && !self.pending.contains_key(&key) {
            self.pending.pop_first();
        }
        let queue = self.pending.entry(key).or_default();
        if queue.len() >= PENDING_OF_FILE {
            queue.pop_front();
        }
        queue.push_back(pending);
    }

    /// Takes out the request that an mmap of `len` bytes fulfils: of those on its file, the first of that length, else the latest.
    pub(crate) fn fulfil(&mut self, keys: &[FileKey], len: u64) -> Option<Pending> {
        for key in keys {
            let Some(queue) = self.pending.get_mut(key) else {
                continue;
            };
            let fits = queue
                .iter()
                .position(|p| page_up(p.len) == page_up(len))
                .unwrap_or(queue.len().saturating_sub(1));
            let found = queue.remove(fits);
            if queue.is_empty() {
                self.pending.remove(key);
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Returns the mapping that contains an address.
    pub(crate) fn at(&self, address: u64) -> Option<(u64, &CpuMap)> {
        let (&start, map) = self.maps.range(..=address).next_back()?;
        (address - start < map.len).then_some((start, map))
    }

    /// Removes a range. Returns the mappings that were wholly or partly in it, and puts back the remaining parts of those
    /// that were cut.
    pub(crate) fn cut(&mut self, start: u64, len: u64) -> Vec<(u64, CpuMap)> {
        let end = start.saturating_add(len);
        let mut hit: Vec<u64> = self.at(start).map(|(s, _)| s).into_iter().collect();
        hit.extend(self.maps.range(start..end).map(|(s, _)| *s));
        hit.dedup();
        let mut gone = Vec::new();
        for s in hit {
            let Some(map) = self.maps.remove(&s) else {
                continue;
            };
            gone.push((s, map));
            let map_end = s.saturating_add(map.len);
            // A doorbell page that is cut is no longer a doorbell.
            let splittable = !matches!(map.target, Target::Doorbell { .. });
            if s < start && splittable {
                self.maps.insert(
                    s,
                    CpuMap {
                        len: start - s,
                        ..map
                    },
                );
            }
            if map_end > end && splittable {
                let cut = end - s;
                let mut rest = CpuMap {
                    len: map_end - end,
                    skip: map.skip.saturating_sub(cut),
                    ..map
                };
                if let Target::Memory { offset, .. } = &mut rest.target {
                    *offset = offset.saturating_add(cut.saturating_sub(map.skip));
                }
                self.maps.insert(end, rest);
            }
        }
        gone
    }
}

pub(crate) fn page_up(len: u64) -> u64 {
    len.saturating_add(0xfff) & !0xfff
}
