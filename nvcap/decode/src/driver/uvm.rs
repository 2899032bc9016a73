//! Effects of UVM ioctls on the model: CUDA uses external ranges to give RM memory its GPU addresses.

use super::{
    call::{Call, Structure, uvm},
    facts,
    model::Model,
    object::{Kind, MemoryId, ObjectRef, Space},
    process::Target,
    space::{Backing, GpuMap},
};
use crate::record::MemoryNear;

impl Model {
    pub(crate) fn uvm(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        let pid = call.ioctl.at.pid;
        let space = Space::Uvm { pid };
        let range = || arg.get("base").zip(arg.get("length"));
        match call.nr {
            uvm::CREATE_EXTERNAL_RANGE | uvm::ALLOC_SEMAPHORE_POOL => {
                if let Some((base, len)) = range() {
                    self.map_gpu(
                        space,
                        base,
                        GpuMap {
                            len,
                            memory: None,
                            through: 0,
                        },
                    );
                }
            }
            uvm::MAP_EXTERNAL_ALLOCATION => {
                let Some((base, len)) = range() else { return };
                let offset = arg.get("offset").unwrap_or(0);
                let memory = self.external_memory(call, base, len, offset);
                self.map_gpu(
                    space,
                    base,
                    GpuMap {
                        len,
                        memory,
                        through: 0,
                    },
                );
                self.settle(pid);
            }
            uvm::UNMAP_EXTERNAL => {
                if let Some((base, len)) = range() {
                    self.free_gpu(space, base, len, call.ioctl.at.time_ns);
                }
            }
            uvm::FREE => {
                let Some(base) = arg.get("base") else { return };
                // Since release 590 the call gives no length: it means the range that begins at the address.
                let len = arg
                    .get("length")
                    .filter(|l| *l != 0)
                    .or_else(|| self.spaces.get(&space)?.at(base).map(|(_, m)| m.len));
                if let Some(len) = len {
                    self.free_gpu(space, base, len, call.ioctl.at.time_ns);
                }
            }
            _ => {}
        }
    }

    /// Removes a range that a process frees, and records it as freed.
    fn free_gpu(&mut self, space: Space, base: u64, len: u64, time_ns: u64) {
        if let Some(addresses) = self.spaces.get_mut(&space) {
            addresses.note_freed(base, len, time_ns);
        }
        self.cut_gpu(space, base, len);
    }

    /// Returns the memory that a process's GPUs have or had at an address, or else nearest to it, as far as the process's calls were seen.
    #[must_use]
    pub fn memory_near(&self, pid: u32, address: u64) -> Option<MemoryNear> {
        self.spaces.get(&Space::Uvm { pid })?.memory_near(address)
    }

    /// Returns the memory of an external range. The call names it, 9 KiB into its argument. If the argument was not captured that far, it
    /// is the memory mapped for the CPU at that address, or else the newest memory of the process that has no GPU address yet and may have
    /// that size.
    fn external_memory(
        &mut self,
        call: &Call<'_>,
        base: u64,
        len: u64,
        offset: u64,
    ) -> Option<Backing> {
        let pid = call.ioctl.at.pid;
        if let Some(object) = self.external_object(call) {
            let id = self.memory_of(object)?;
            if let Some(memory) = self.memory.get_mut(&id) {
                memory.size = memory.size.max(Some(offset.saturating_add(len)));
            }
            return Some(Backing {
                id,
                object,
                offset,
                stated: true,
            });
        }
        let id = self
            .mapped_at(pid, base)
            .or_else(|| self.newest_unplaced(pid, len))?;
        let memory = self.memory.get_mut(&id)?;
        memory.size = memory.size.or(Some(offset.saturating_add(len)));
        Some(Backing {
            id,
            object: memory.object,
            offset,
            stated: false,
        })
    }

    /// Returns the object that the argument names. Its place moved by 8 KiB in release 550. The layout that leads to an existing object is
    /// used; the version's own layout is tried first.
    fn external_object(&mut self, call: &Call<'_>) -> Option<ObjectRef> {
        let name = call.arg.layout?.name();
        let others = facts::layouts(name);
        let named = |layout| {
            let arg = Structure {
                layout: Some(layout),
                ..call.arg
            };
            let (client, handle) = arg.u32("hClient").zip(arg.u32("hMemory"))?;
            Some(ObjectRef { client, handle })
        };
        let known = call
            .arg
            .layout
            .into_iter()
            .chain(others)
            .filter_map(named)
            .find(|at| self.object(*at).is_some());
        if known.is_some() {
            return known;
        }
        // The object's allocation was not seen (it was imported from a descriptor); at least its client is known.
        let at = call
            .arg
            .layout
            .and_then(named)
            .filter(|at| at.handle != 0 && self.clients.contains_key(&at.client))?;
        self.insert(call.ioctl.at.pid, at, at.client, 0, Kind::Other);
        Some(at)
    }

    fn mapped_at(&self, pid: u32, address: u64) -> Option<MemoryId> {
        let process = self.processes.get(&pid)?;
        if let Some((_, map)) = process.at(address)
            && let Target::Memory { id, .. } = map.target
        {
            return Some(id);
        }
        self.newest(pid, |m| m.pinned == Some((pid, address)))
    }

    fn newest_unplaced(&self, pid: u32, len: u64) -> Option<MemoryId> {
        self.newest(pid, |m| {
            m.gpu.is_empty() && m.cpu.is_empty() && m.size.is_none_or(|s| s >= len)
        })
    }

    fn newest(&self, pid: u32, which: impl Fn(&super::object::Memory) -> bool) -> Option<MemoryId> {
        let process = self.processes.get(&pid)?;
        self.memory
            .iter()
            .filter(|(_, m)| process.clients.contains(&m.object.client) && which(m))
            .map(|(id, _)| *id)
            .max()
    }
}
