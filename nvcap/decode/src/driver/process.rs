//! A traced process as the model sees it: its mappings of the driver's files, and those that it is about to make. Knows
//! address ranges; of handles it only passes them on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::object::{MemoryId, ObjectRef};
use crate::record::{ChannelId, Device, Mapping};

/// A doorbell page is 64 KiB; the doorbell is the 32-bit word at +0x90 of it.
pub(crate) const DOORBELL_LEN: u64 = 0x10000;

/// Tells whether a mapping looks like a doorbell page: 64 KiB of a GPU's device file that can be written.
///
/// The one that CUDA rings is write-only (`-w-s`); Vulkan's is `rw-s`. For a mapping that can be read too the
/// shape proves little: any 64 KiB of video memory has it.
#[must_use]
pub fn is_doorbell_shape(mapping: &Mapping) -> bool {
    matches!(mapping.device, Device::Gpu(_)) && mapping.len == DOORBELL_LEN && mapping.write
}

/// Target that is visible through a CPU mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Unknown (found afterwards, or its ioctl was not seen).
    Unknown,
    /// A memory object from an offset on.
    Memory {
        id: MemoryId,
        object: ObjectRef,
        offset: u64,
    },
    /// A doorbell page, and its object, unless it was recognised by its shape alone.
    Doorbell {
        object: Option<ObjectRef>,
        bar1: Option<bool>,
    },
    /// The control page of a channel (USERD that RM allocated).
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
    /// Bytes at the mapping's start before the target: a mapping begins at a page boundary, the object (or the requested
    /// part of it) may not.
    pub skip: u64,
    /// Doorbells seen on it.
    pub rung: u64,
}

impl CpuMap {
    /// The place, relative to the mapping's start, of a byte of its memory.
    pub(crate) fn place_of(&self, first: u64, offset: u64) -> Option<u64> {
        let at = offset.checked_sub(first)?.checked_add(self.skip)?;
        (at < self.len).then_some(at)
    }

    /// The offset in the memory of a byte of the mapping.
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
    /// Offset in its first page of the first byte asked for.
    pub in_page: u64,
}

/// The open file that a map request names and the mmap comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileKey {
    /// By the source's number for the open file.
    File(u64),
    /// By descriptor.
    Fd(i32),
}

/// Limits of requests that wait for their mmap, on one open file and on all of a process: the driver allows one per file (a
/// list since 595), so more than this are leftovers.
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

    /// The request that an mmap of `len` bytes fulfils: of those on its file the first of that length, else the
    /// latest.
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

    /// The mapping that holds an address.
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
            // A doorbell page that is cut is no doorbell any more.
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
