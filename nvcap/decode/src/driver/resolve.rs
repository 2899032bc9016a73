//! Address lookup: from the GPU's virtual addresses to memory objects and to the addresses of the process.

use super::{
    model::Model,
    object::{Aperture, Caching, Kind, MemoryId, ObjectRef, Space},
    process::Target,
    space::Backing,
};
use crate::{
    decode::event::Place,
    record::{ChannelId, CpuVa, Device},
    wire::GpuVa,
};

/// Result of looking up a GPU virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Memory object; `None` if only a mapping of the process is known.
    pub object: Option<ObjectRef>,
    /// Class of the object.
    pub class: Option<u32>,
    /// Size of the object, bytes.
    pub size: Option<u64>,
    /// Offset of the address in the object.
    pub offset: u64,
    /// Location of the object's bytes.
    pub aperture: Option<Aperture>,
    /// Caching of the object by the CPU.
    pub caching: Option<Caching>,
    /// Address of the same byte in the process, if it is mapped there.
    pub cpu: Option<CpuVa>,
    /// Number of bytes, from the address on, that are certain to lie in the same mapping.
    pub len: u64,
    /// True if a call named the object; false if it was inferred (from addresses, sizes and order).
    pub stated: bool,
    /// Minor number of the GPU to which the object belongs.
    pub gpu: Option<u32>,
}

/// A range with its address for the GPU and its address in the process, which may be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Translation {
    /// First address for the GPU.
    pub gpu: GpuVa,
    /// Length in bytes.
    pub len: u64,
    /// First address in the process.
    pub cpu: CpuVa,
    /// GPU address space.
    pub space: Space,
}

/// Map from a channel's GPU addresses to addresses in the channel's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressMap {
    /// Ranges by GPU address, which do not overlap.
    pub ranges: Vec<Translation>,
    /// True if an address outside all ranges is not mapped in the process. Otherwise such an address is the same in the process, if it is
    /// mapped at all.
    pub complete: bool,
}

impl AddressMap {
    /// Adds ranges where nothing is mapped yet.
    fn add(&mut self, more: Vec<Translation>) {
        let known = self.ranges.len();
        for t in more {
            let end = t.gpu.0.saturating_add(t.len);
            let next = self.ranges[..known].partition_point(|k| k.gpu.0 < end);
            let clear = next == 0 || {
                let k = &self.ranges[next - 1];
                k.gpu.0.saturating_add(k.len) <= t.gpu.0
            };
            // The new ranges are sorted, and may come from several spaces in turn.
            let last = self.ranges[known..].iter().max_by_key(|l| l.gpu);
            if clear && last.is_none_or(|l| l.gpu.0.saturating_add(l.len) <= t.gpu.0) {
                self.ranges.push(t);
            }
        }
        self.ranges.sort_unstable();
    }

    /// Returns the process's address of a byte, and the number of bytes from there on in the same range; `None` outside all ranges.
    #[must_use]
    pub fn at(&self, gpu: u64) -> Option<(u64, u64)> {
        let before = self.ranges.partition_point(|t| t.gpu.0 <= gpu);
        let found = before
            .checked_sub(1)
            .and_then(|i| self.ranges.get(i))
            .map(|t| (t, gpu - t.gpu.0))
            .filter(|(t, offset)| *offset < t.len);
        match found {
            Some((t, offset)) => Some((t.cpu.0.saturating_add(offset), t.len - offset)),
            None if self.complete => None,
            None => Some((gpu, u64::MAX)),
        }
    }
}

impl Model {
    /// Locates a channel's ring and USERD in its process, each if it is mapped.
    pub(crate) fn locate(&self, id: ChannelId) -> Option<(Option<CpuVa>, Option<CpuVa>)> {
        let channel = self.channels.get(&id)?;
        let ring = channel
            .ring_gpu
            .and_then(|va| self.resolve_in(channel.pid, channel.space, va)?.cpu);
        let userd = match (channel.userd_at, channel.object) {
            (Some((handle, offset)), Some(object)) => {
                let at = ObjectRef {
                    client: object.client,
                    handle,
                };
                match self.object(at).map(|o| &o.kind) {
                    Some(Kind::Memory(memory)) => self
                        .cpu_of(*memory, offset, channel.pid, None)
                        .map(|(cpu, _)| cpu),
                    _ => None,
                }
            }
            // USERD that RM allocated is mapped by mapping the channel itself.
            _ => self.processes.get(&channel.pid).and_then(|p| {
                p.maps.iter().find_map(|(start, map)| match map.target {
                    Target::Channel { id: of, .. } if of == id => {
                        Some(CpuVa(start.saturating_add(map.skip)))
                    }
                    _ => None,
                })
            }),
        };
        Some((ring, userd))
    }

    /// Returns the address of a byte of memory in a process, and the number of bytes from there on in the same mapping. If the byte is at
    /// several places, `prefer` is taken if it is one of them.
    pub(crate) fn cpu_of(
        &self,
        id: MemoryId,
        offset: u64,
        pid: u32,
        prefer: Option<u64>,
    ) -> Option<(CpuVa, u64)> {
        let memory = self.memory.get(&id)?;
        let process = self.processes.get(&pid);
        let mut best: Option<(CpuVa, u64)> = None;
        if let Some((owner, start)) = memory.pinned
            && owner == pid
            && memory.size.is_none_or(|s| offset < s)
        {
            let left = memory.size.map_or(1, |s| s - offset);
            best = Some((CpuVa(start.saturating_add(offset)), left));
        }
        for (_, start) in memory.cpu.range((pid, 0)..=(pid, u64::MAX)) {
            let Some(map) = process.and_then(|p| p.maps.get(start)) else {
                continue;
            };
            let Target::Memory {
                offset: first,
                id: of,
                ..
            } = map.target
            else {
                continue;
            };
            let Some(inside) = map.place_of(first, offset) else {
                continue;
            };
            if of != id {
                continue;
            }
            let found = (CpuVa(start.saturating_add(inside)), map.len - inside);
            if prefer == Some(found.0.0) {
                return Some(found);
            }
            best = best.or(Some(found));
        }
        best
    }

    /// Looks up a GPU virtual address of a process. If several of its address spaces have a mapping there, UVM's comes
    /// first; [`Model::resolve_for`] knows which one a channel uses.
    #[must_use]
    pub fn resolve(&self, pid: u32, va: GpuVa) -> Option<Resolved> {
        self.resolve_in(pid, None, va)
    }

    /// Looks up a GPU virtual address in a channel's address space.
    #[must_use]
    pub fn resolve_for(&self, channel: ChannelId, va: GpuVa) -> Option<Resolved> {
        let channel = self.channels.get(&channel)?;
        self.resolve_in(channel.pid, channel.space, va)
    }

    fn resolve_in(&self, pid: u32, space: Option<Space>, va: GpuVa) -> Option<Resolved> {
        let in_space = |space: Space| {
            let (start, map) = self.spaces.get(&space)?.at(va.0)?;
            Some((start, *map))
        };
        // RM's mapping in the channel's own space, or in any space of the process.
        let rm = match space {
            Some(space) => in_space(space),
            None => None,
        };
        let uvm = in_space(Space::Uvm { pid });
        let any = || {
            let clients = &self.processes.get(&pid)?.clients;
            clients.iter().find_map(|client| {
                let from = Space::Rm(ObjectRef {
                    client: *client,
                    handle: 0,
                });
                let to = Space::Rm(ObjectRef {
                    client: *client,
                    handle: u32::MAX,
                });
                self.spaces
                    .range(from..=to)
                    .find_map(|(_, s)| s.at(va.0))
                    .map(|(start, map)| (start, *map))
            })
        };
        let others = if space.is_none() { any() } else { None };
        let ranges = [rm, uvm, others];
        let stated = ranges
            .iter()
            .flatten()
            .find(|(_, m)| m.memory.is_some_and(|b| b.stated));
        if let Some((start, map)) = stated {
            return self.resolve_range(pid, va, *start, map.len, map.memory?);
        }
        // If CPU and GPU share addresses (CUDA), the process's own mapping of that address decides.
        if let Some(found) = self.resolve_identity(pid, va) {
            return Some(found);
        }
        let concluded = ranges.iter().flatten().find(|(_, m)| m.memory.is_some());
        if let Some((start, map)) = concluded {
            return self.resolve_range(pid, va, *start, map.len, map.memory?);
        }
        // The channel's presumed space has nothing there; another space of the process may have it.
        let (start, map) = any()?;
        let mut found = self.resolve_range(pid, va, start, map.len, map.memory?)?;
        found.stated = false;
        Some(found)
    }

    fn resolve_range(
        &self,
        pid: u32,
        va: GpuVa,
        start: u64,
        len: u64,
        backing: Backing,
    ) -> Option<Resolved> {
        let memory = self.memory.get(&backing.id)?;
        let inside = va.0.checked_sub(start)?;
        let offset = backing.offset.saturating_add(inside);
        let left = len.saturating_sub(inside);
        let cpu = self.cpu_of(backing.id, offset, pid, Some(va.0));
        Some(Resolved {
            object: Some(backing.object),
            class: Some(memory.class),
            size: memory.size,
            offset,
            aperture: memory.aperture,
            caching: memory.caching,
            cpu: cpu.map(|(cpu, _)| cpu),
            len: cpu.map_or(left, |(_, in_map)| left.min(in_map)),
            stated: backing.stated,
            gpu: self.minor_of(backing.object),
        })
    }

    fn resolve_identity(&self, pid: u32, va: GpuVa) -> Option<Resolved> {
        let (start, map) = self.processes.get(&pid)?.at(va.0)?;
        // Nothing is mapped there in the process.
        if map.device == Device::RESERVED {
            return None;
        }
        let inside = va.0 - start;
        let mut found = Resolved {
            object: None,
            class: None,
            size: None,
            offset: inside,
            aperture: aperture_of_device(map.device),
            caching: None,
            cpu: Some(CpuVa(va.0)),
            len: map.len - inside,
            stated: false,
            gpu: match map.device {
                Device::Gpu(minor) => Some(minor),
                _ => None,
            },
        };
        match map.target {
            Target::Memory { id, object, offset } => {
                let memory = self.memory.get(&id)?;
                found.object = Some(object);
                found.class = Some(memory.class);
                found.size = memory.size;
                found.offset = map.offset_of(offset, inside)?;
                found.aperture = memory.aperture.or(found.aperture);
                found.caching = memory.caching;
                found.gpu = found.gpu.or_else(|| self.minor_of(object));
            }
            Target::Unknown => {}
            Target::Doorbell { .. } | Target::Channel { .. } => return None,
        }
        Some(found)
    }

    /// Returns the address in the process of a GPU virtual address: translated if it is known to differ, else the same number.
    #[must_use]
    pub fn cpu_address(&self, pid: u32, address: GpuVa) -> CpuVa {
        self.resolve(pid, address)
            .and_then(|r| r.cpu)
            .unwrap_or(CpuVa(address.0))
    }

    /// Returns the ranges of a process whose GPU addresses differ from its own, by GPU address. All other memory is at the same address in
    /// the process, if mapped at all. [`Change::Translations`] says when to ask again.
    ///
    /// [`Change::Translations`]: super::Change::Translations
    #[must_use]
    pub fn translations(&self, pid: u32) -> Vec<Translation> {
        let mut all = self.all_translations(pid);
        all.retain(|t| t.gpu.0 != t.cpu.0);
        all
    }

    /// Returns those [`Model::translations`] that apply to a channel's address space.
    #[must_use]
    pub fn translations_for(&self, channel: ChannelId) -> Vec<Translation> {
        let Some(channel) = self.channels.get(&channel) else {
            return Vec::new();
        };
        let mut all = self.translations(channel.pid);
        all.retain(|t| {
            channel.space.is_none_or(|s| s == t.space) || matches!(t.space, Space::Uvm { .. })
        });
        all
    }

    /// Returns the GPU address space in which a channel was allocated; `None` if unknown.
    #[must_use]
    pub fn space_of(&self, channel: ChannelId) -> Option<Space> {
        self.channels.get(&channel)?.space
    }

    /// Returns the map from a channel's GPU addresses to addresses in its process. The map is empty for a channel that the model does not
    /// know, and for a channel whose whole address space equals the process's own (CUDA's).
    #[must_use]
    pub fn address_map(&self, channel: ChannelId) -> AddressMap {
        let Some(channel) = self.channels.get(&channel) else {
            return AddressMap::default();
        };
        let (pid, own) = (channel.pid, channel.space);
        let mut map = AddressMap::default();
        map.add(self.translations_where(pid, |s| Some(*s) == own));
        // If RM chose addresses in the channel's own space, none of them equals the process's own unless listed.
        map.complete = map.ranges.iter().any(|t| t.gpu.0 != t.cpu.0);
        // The order is that of a lookup: UVM's space, then any other space of the process that has a mapping there.
        map.add(self.translations_where(pid, |s| *s == Space::Uvm { pid } && Some(*s) != own));
        map.add(self.translations_where(pid, |s| matches!(s, Space::Rm(_)) && Some(*s) != own));
        if !map.complete {
            map.ranges.retain(|t| t.gpu.0 != t.cpu.0);
        }
        map
    }

    /// Returns every range of a process that is mapped both for the GPU and in the process, by GPU address. Ranges of UVM have the same
    /// address in both; [`Space`] names the address space where it matters.
    #[must_use]
    pub fn all_translations(&self, pid: u32) -> Vec<Translation> {
        self.translations_where(pid, |_| true)
    }

    fn translations_where(&self, pid: u32, wanted: impl Fn(&Space) -> bool) -> Vec<Translation> {
        let mut all = Vec::new();
        let Some(process) = self.processes.get(&pid) else {
            return all;
        };
        for (space, address_space) in self.spaces.iter().filter(|(s, _)| wanted(s)) {
            let mine = match space {
                Space::Uvm { pid: of } => *of == pid,
                Space::Rm(object) => process.clients.contains(&object.client),
            };
            if !mine {
                continue;
            }
            for (start, map) in &address_space.ranges {
                self.translate_range(pid, *space, *start, map.len, map.memory, &mut all);
            }
        }
        all.sort_unstable_by_key(|t| (t.space, t.gpu, t.cpu));
        // Ranges that are adjacent on both sides are merged.
        let mut merged: Vec<Translation> = Vec::with_capacity(all.len());
        for t in all {
            match merged.last_mut() {
                Some(last)
                    if last.space == t.space
                        && last.gpu.0.checked_add(last.len) == Some(t.gpu.0)
                        && last.cpu.0.checked_add(last.len) == Some(t.cpu.0) =>
                {
                    last.len = last.len.saturating_add(t.len);
                }
                _ => merged.push(t),
            }
        }
        merged.sort_unstable();
        merged
    }

    /// Returns the CPU ranges of a GPU range, piece by piece.
    fn translate_range(
        &self,
        pid: u32,
        space: Space,
        start: u64,
        len: u64,
        memory: Option<Backing>,
        all: &mut Vec<Translation>,
    ) {
        let mut push = |gpu: u64, len: u64, cpu: u64| {
            all.push(Translation {
                gpu: GpuVa(gpu),
                len,
                cpu: CpuVa(cpu),
                space,
            });
        };
        let stated = memory.filter(|b| b.stated);
        let Some(backing) = stated else {
            // The memory is uncertain; the process's own mapping of these addresses counts, if there is one.
            let end = start.saturating_add(len);
            let Some(process) = self.processes.get(&pid) else {
                return;
            };
            let first = process.at(start).map_or(start, |(s, _)| s);
            for (s, map) in process.maps.range(first..end) {
                let (from, to) = (start.max(*s), end.min(s.saturating_add(map.len)));
                let is_mapped = map.device != Device::RESERVED
                    && !matches!(map.target, Target::Doorbell { .. });
                if from < to && is_mapped {
                    push(from, to - from, from);
                }
            }
            return;
        };
        let mut at = 0;
        while at < len {
            let offset = backing.offset.saturating_add(at);
            let Some(gpu) = start.checked_add(at) else {
                break;
            };
            match self.cpu_of(backing.id, offset, pid, Some(gpu)) {
                Some((cpu, in_map)) => {
                    let piece = in_map.min(len - at).max(1);
                    push(gpu, piece, cpu.0);
                    at += piece;
                }
                None => {
                    // Continue with the next mapping of that memory, if there is one.
                    let next = self.next_mapped(backing.id, offset, pid);
                    match next {
                        Some(next) => at += next - offset,
                        None => break,
                    }
                }
            }
        }
    }

    fn next_mapped(&self, id: MemoryId, offset: u64, pid: u32) -> Option<u64> {
        let memory = self.memory.get(&id)?;
        let process = self.processes.get(&pid)?;
        memory
            .cpu
            .range((pid, 0)..=(pid, u64::MAX))
            .filter_map(|(_, start)| match process.maps.get(start)?.target {
                Target::Memory { offset: first, .. } => Some(first),
                _ => None,
            })
            .filter(|first| *first > offset)
            .min()
    }

    /// Returns the aperture of the memory at a GPU virtual address of a process, as seen from the GPU that owns the memory; `None` if it is
    /// unknown, and for managed memory, which migrates.
    #[must_use]
    pub fn place(&self, pid: u32, va: GpuVa) -> Option<Place> {
        place_of(&self.resolve(pid, va)?, None)
    }

    /// Tells whether process `pid` uses one GPU, and has reserved `va` and mapped nothing there. The memory at `va` must then be that
    /// GPU's.
    #[must_use]
    pub fn is_reserved(&self, pid: u32, va: GpuVa) -> bool {
        self.processes.get(&pid).is_some_and(|p| {
            p.gpus.len() == 1
                && p.at(va.0)
                    .is_some_and(|(_, m)| m.device == Device::RESERVED)
        })
    }

    /// Returns the aperture of the memory at a GPU virtual address of a channel, as seen from the channel's GPU.
    #[must_use]
    pub fn place_for(&self, channel: ChannelId, va: GpuVa) -> Option<Place> {
        let gpu = self.gpu_of_channel(channel);
        place_of(&self.resolve_for(channel, va)?, gpu)
    }
}

fn aperture_of_device(device: Device) -> Option<Aperture> {
    match device {
        Device::Gpu(_) => Some(Aperture::Video),
        Device::Control | Device::MEMORY => Some(Aperture::System),
        Device::Uvm | Device::Other(..) => None,
    }
}

fn place_of(found: &Resolved, gpu: Option<u32>) -> Option<Place> {
    match found.aperture? {
        Aperture::System => Some(Place::Host),
        Aperture::Video => match (found.gpu, gpu) {
            (Some(of), Some(seen_from)) if of != seen_from => Some(Place::Peer),
            _ => Some(Place::Device),
        },
        Aperture::Registers => None,
    }
}
