//! What the model can be asked: channels, GPUs, doorbells, what lies at an address. Changes nothing.

use serde::Serialize;

use super::{
    gpu::Gpu,
    model::Model,
    names,
    object::{Aperture, Caching, Channel, Kind, MemoryId, ObjectRef, Space},
    process::Target,
    space::Backing,
};
use crate::{
    decode::event::{Engine, Place},
    record::{self, ChannelId, CpuVa, Device, GpuVa, Origin},
};

/// An engine object bound to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BoundEngine {
    /// Its handle.
    pub handle: u32,
    /// Its class (0xcbc0, 0xc8b5, ...).
    pub class: u32,
    /// NV2080_ENGINE_TYPE, where known.
    pub engine: Option<u32>,
}

/// A channel, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelView {
    /// Number in this trace.
    pub id: ChannelId,
    /// Process that can read it.
    pub pid: u32,
    /// RM object.
    pub object: Option<ObjectRef>,
    /// Minor number of its GPU's device file.
    pub gpu: Option<u32>,
    /// Work-submit token.
    pub token: Option<u32>,
    /// Class.
    pub class: Option<u32>,
    /// Handle of its channel group (TSG).
    pub tsg: Option<u32>,
    /// Handle of its context share.
    pub context_share: Option<u32>,
    /// Its address space.
    pub space: Option<Space>,
    /// NV2080_ENGINE_TYPE it was allocated for (its own or its group's).
    pub engine: Option<u32>,
    /// Engine objects bound to it.
    pub bound: Vec<BoundEngine>,
    /// Ring, as the GPU addresses it.
    pub ring_gpu: Option<GpuVa>,
    /// Ring, as the process addresses it.
    pub ring: Option<CpuVa>,
    /// Entries of the ring.
    pub entries: Option<u32>,
    /// USERD in the process.
    pub userd: Option<CpuVa>,
    /// Memory handle of the error notifier.
    pub notifier: Option<u32>,
    /// Where the driver leaves the token for the process: info32 of the notifier's record, where it is mapped.
    pub token_at: Option<CpuVa>,
    /// How it was learnt.
    pub origin: Origin,
}

impl ChannelView {
    /// Hardware channel id: bits 11:0 of the token.
    #[must_use]
    pub fn chid(&self) -> Option<u32> {
        self.token.map(|t| t & 0xfff)
    }

    /// Runlist: bits 22:16 of the token.
    #[must_use]
    pub fn runlist(&self) -> Option<u32> {
        self.token.map(|t| t >> 16 & 0x7f)
    }

    /// The engines it can feed, by name: the one it was allocated for first, then those of objects bound to it.
    #[must_use]
    pub fn engines(&self) -> Vec<String> {
        let mut engines: Vec<String> = Vec::new();
        for number in self
            .engine
            .into_iter()
            .chain(self.bound.iter().filter_map(|b| b.engine))
        {
            let name = names::engine(number).into_owned();
            if !engines.contains(&name) {
                engines.push(name);
            }
        }
        engines
    }
}

/// A channel group (TSG).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// RM object.
    pub object: ObjectRef,
    /// Minor number of its GPU's device file.
    pub gpu: Option<u32>,
    /// NV2080_ENGINE_TYPE.
    pub engine: Option<u32>,
    /// Its channels.
    pub channels: Vec<ChannelId>,
    /// Its context shares: handle and subcontext id.
    pub context_shares: Vec<(u32, Option<u32>)>,
}

/// A doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DoorbellView {
    /// Process.
    pub pid: u32,
    /// Minor number of the GPU's device file.
    pub gpu: Option<u32>,
    /// Address in the process.
    #[serde(serialize_with = "hex_cpu")]
    pub cpu: CpuVa,
    /// Length in bytes.
    pub len: u64,
    /// Mapped through BAR1.
    pub bar1: Option<bool>,
    /// Its object; `None`: only the mapping's shape says so.
    pub object: Option<ObjectRef>,
}

fn hex_cpu<S: serde::Serializer>(at: &CpuVa, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(at)
}

/// What lies at a GPU virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The memory object; `None` where only a mapping of the process is known.
    pub object: Option<ObjectRef>,
    /// Its class.
    pub class: Option<u32>,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Offset of the address in it.
    pub offset: u64,
    /// Where its bytes are.
    pub aperture: Option<Aperture>,
    /// How the CPU caches it.
    pub caching: Option<Caching>,
    /// The same byte in the process, where it is mapped there.
    pub cpu: Option<CpuVa>,
    /// Bytes from the address on that are certain to lie in the same mapping.
    pub len: u64,
    /// A call named the object; otherwise it was concluded (from addresses, sizes and order).
    pub stated: bool,
    /// Minor number of the GPU that the object belongs to.
    pub gpu: Option<u32>,
}

/// A range that lies at one address for the GPU and at another (or the same) in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Translation {
    /// First address for the GPU.
    pub gpu: GpuVa,
    /// Length in bytes.
    pub len: u64,
    /// First address in the process.
    pub cpu: CpuVa,
    /// The GPU address space.
    pub space: Space,
}

/// A mapping of a device file in a process, explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingView {
    /// First address.
    pub start: CpuVa,
    /// Length in bytes.
    pub len: u64,
    /// The device file.
    pub device: Device,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// It was there before the trace began.
    pub found: bool,
    /// What it shows.
    pub what: MappingWhat,
    /// GPU virtual address of its first byte, where mapped for the GPU.
    pub gpu: Option<GpuVa>,
    /// Channels whose ring or USERD lies in it.
    pub channels: Vec<ChannelId>,
}

/// What a mapping shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingWhat {
    /// Not known.
    Unknown,
    /// A doorbell page.
    Doorbell {
        /// Its object, unless only the shape says so.
        object: Option<ObjectRef>,
        /// Mapped through BAR1.
        bar1: Option<bool>,
    },
    /// Memory.
    Memory {
        /// The object.
        object: ObjectRef,
        /// Its class.
        class: u32,
        /// Offset of the mapping's first byte in it.
        offset: u64,
        /// Its size.
        size: Option<u64>,
        /// Where its bytes are.
        aperture: Option<Aperture>,
        /// How the CPU caches it.
        caching: Option<Caching>,
    },
    /// The control page of a channel.
    Channel(ChannelId),
    /// Managed memory or a semaphore pool of UVM.
    Uvm,
}

impl Channel {
    pub(crate) fn to_record(&self) -> record::Channel {
        record::Channel {
            at: record::At {
                pid: self.pid,
                ..self.at
            },
            id: self.id,
            gpu: self.gpu,
            token: self.token,
            class: self.class,
            engine: self.engine,
            handle: self.object.map(|o| (o.client, o.handle)),
            ring_gpu: self.ring_gpu,
            ring: self.ring,
            entries: self.entries,
            userd: self.userd,
            origin: self.origin,
        }
    }

    pub(crate) fn from_record(said: &record::Channel, object: Option<ObjectRef>) -> Self {
        Self {
            at: said.at,
            id: said.id,
            pid: said.at.pid,
            object,
            class: said.class,
            tsg: None,
            context_share: None,
            space: None,
            engine: said.engine,
            gpu: said.gpu,
            token: said.token,
            ring_gpu: said.ring_gpu,
            entries: said.entries,
            userd_at: None,
            notifier: None,
            token_index: 1,
            ring: said.ring,
            userd: said.userd,
            origin: said.origin,
            announced: said.ring.zip(said.userd),
        }
    }

    /// Takes over what another description of the same channel says.
    pub(crate) fn learn(&mut self, other: &Self) {
        self.object = other.object.or(self.object);
        self.class = other.class.or(self.class);
        self.engine = other.engine.or(self.engine);
        self.gpu = other.gpu.or(self.gpu);
        self.token = other.token.or(self.token);
        self.ring_gpu = other.ring_gpu.or(self.ring_gpu);
        self.entries = other.entries.or(self.entries);
        self.ring = other.ring.or(self.ring);
        self.userd = other.userd.or(self.userd);
        self.announced = self.ring.zip(self.userd);
    }
}

impl Model {
    /// All channels alive, oldest first.
    pub fn channels(&self) -> impl Iterator<Item = ChannelView> + '_ {
        self.channels.values().map(|c| self.view(c))
    }

    /// One channel.
    #[must_use]
    pub fn channel(&self, id: ChannelId) -> Option<ChannelView> {
        self.channels.get(&id).map(|c| self.view(c))
    }

    /// The channel of a process (or of any, where no process is named) that a token rings, on a GPU where it is
    /// given: tokens are unique on one GPU only.
    #[must_use]
    pub fn channel_by_token(
        &self,
        pid: Option<u32>,
        gpu: Option<u32>,
        token: u32,
    ) -> Option<ChannelId> {
        self.channels
            .values()
            .filter(|c| c.token == Some(token))
            .filter(|c| pid.is_none_or(|p| p == c.pid))
            .filter(|c| gpu.is_none() || c.gpu.is_none() || c.gpu == gpu)
            .map(|c| c.id)
            .next_back()
    }

    fn view(&self, channel: &Channel) -> ChannelView {
        let mut bound = Vec::new();
        if let Some(at) = channel.object
            && let Some(client) = self.clients.get(&at.client)
            && let Some(object) = client.objects.get(&at.handle)
        {
            for handle in &object.children {
                if let Some(child) = client.objects.get(handle)
                    && let Kind::Engine { engine } = child.kind
                {
                    bound.push(BoundEngine {
                        handle: *handle,
                        class: child.class,
                        engine,
                    });
                }
            }
        }
        ChannelView {
            id: channel.id,
            pid: channel.pid,
            object: channel.object,
            gpu: channel.gpu.or_else(|| self.gpu_of_channel(channel.id)),
            token: channel.token,
            class: channel.class,
            tsg: channel.tsg,
            context_share: channel.context_share,
            space: channel.space,
            engine: channel.engine,
            bound,
            ring_gpu: channel.ring_gpu,
            ring: channel.ring,
            entries: channel.entries,
            userd: channel.userd,
            notifier: channel.notifier,
            token_at: self.token_at(channel),
            origin: channel.origin,
        }
    }

    /// info32 of the notifier record that holds the token: 16 bytes a record, info32 at 8 (NvNotification).
    fn token_at(&self, channel: &Channel) -> Option<CpuVa> {
        let at = ObjectRef {
            client: channel.object?.client,
            handle: channel.notifier?,
        };
        let Kind::Memory(id) = self.object(at)?.kind else {
            return None;
        };
        let offset = u64::from(channel.token_index) * 16 + 8;
        self.cpu_of(id, offset, channel.pid, None)
            .map(|(cpu, _)| cpu)
    }

    /// All channel groups alive.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupView> {
        let mut groups = Vec::new();
        for (client_handle, client) in &self.clients {
            for (handle, object) in &client.objects {
                let Kind::Tsg { engine, .. } = object.kind else {
                    continue;
                };
                let at = ObjectRef {
                    client: *client_handle,
                    handle: *handle,
                };
                let mut group = GroupView {
                    object: at,
                    gpu: self.minor_of(at),
                    engine,
                    channels: Vec::new(),
                    context_shares: Vec::new(),
                };
                for child in &object.children {
                    match client.objects.get(child).map(|o| &o.kind) {
                        Some(Kind::Channel(id)) => group.channels.push(*id),
                        Some(Kind::ContextShare { subcontext, .. }) => {
                            group.context_shares.push((*child, *subcontext));
                        }
                        _ => {}
                    }
                }
                groups.push(group);
            }
        }
        groups.sort_by_key(|g| g.object);
        groups
    }

    /// GPUs that the ioctls told of, by RM's gpuId.
    pub fn gpus(&self) -> impl Iterator<Item = &Gpu> + '_ {
        self.gpus.values()
    }

    /// The GPU of a device file.
    #[must_use]
    pub fn gpu_by_minor(&self, minor: u32) -> Option<&Gpu> {
        self.gpus.values().find(|g| g.minor == Some(minor))
    }

    /// Doorbell pages mapped now.
    pub fn doorbells(&self) -> impl Iterator<Item = DoorbellView> + '_ {
        self.processes.iter().flat_map(|(pid, process)| {
            process.maps.iter().filter_map(|(start, map)| {
                let Target::Doorbell { object, bar1 } = map.target else {
                    return None;
                };
                Some(DoorbellView {
                    pid: *pid,
                    gpu: match map.device {
                        Device::Gpu(minor) => Some(minor),
                        _ => None,
                    },
                    cpu: CpuVa(*start),
                    len: map.len,
                    bar1,
                    object,
                })
            })
        })
    }

    /// Processes the model knows.
    pub fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.keys().copied()
    }

    /// A process's command name, where a source told it.
    #[must_use]
    pub fn process_name(&self, pid: u32) -> Option<&str> {
        self.processes.get(&pid)?.name.as_deref()
    }

    // ---- GPUs of things ----

    fn device_minor(&self, at: ObjectRef) -> Option<(Option<u32>, Option<u32>)> {
        let client = self.clients.get(&at.client)?;
        let device = client.device_of(at.handle)?;
        match client.objects.get(&device)?.kind {
            Kind::Device { instance, minor } => Some((instance, minor)),
            _ => None,
        }
    }

    pub(crate) fn gpu_id_of(&self, at: ObjectRef) -> Option<u32> {
        let by_device = self.device_minor(at).and_then(|(instance, minor)| {
            self.gpus
                .values()
                .find(|g| {
                    (minor.is_some() && g.minor == minor)
                        || (instance.is_some() && g.instance == instance)
                })
                .map(|g| g.id)
        });
        by_device.or_else(|| self.only_gpu().map(|g| g.id))
    }

    fn only_gpu(&self) -> Option<&Gpu> {
        let mut all = self.gpus.values();
        all.next().filter(|_| all.next().is_none())
    }

    /// Minor number of the GPU that an object belongs to.
    pub(crate) fn minor_of(&self, at: ObjectRef) -> Option<u32> {
        let (instance, minor) = self.device_minor(at)?;
        minor.or_else(|| {
            self.gpus
                .values()
                .find(|g| instance.is_some() && g.instance == instance)
                .or_else(|| self.only_gpu())
                .and_then(|g| g.minor)
        })
    }

    pub(crate) fn gpu_of_channel(&self, id: ChannelId) -> Option<u32> {
        let channel = self.channels.get(&id)?;
        channel
            .gpu
            .or_else(|| self.minor_of(channel.object?))
            .or_else(|| {
                // USERD in video memory is mapped from the GPU's own file.
                let (_, map) = self.processes.get(&channel.pid)?.at(channel.userd?.0)?;
                match map.device {
                    Device::Gpu(minor) => Some(minor),
                    _ => None,
                }
            })
    }

    // ---- addresses ----

    /// Where a channel's ring and USERD lie in its process, each where it is mapped.
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
            // USERD that RM allocated is seen by mapping the channel itself.
            _ => self.processes.get(&channel.pid).and_then(|p| {
                p.maps.iter().find_map(|(start, map)| match map.target {
                    Target::Channel { id: of, .. } if of == id => Some(CpuVa(*start)),
                    _ => None,
                })
            }),
        };
        Some((ring, userd))
    }

    /// A byte of memory in a process, and how many bytes from it on are in the same mapping; at `prefer`, where
    /// it is mapped there among other places.
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
            let Some(inside) = offset.checked_sub(first).filter(|i| *i < map.len) else {
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

    /// What lies at a GPU virtual address of a process. Where several of its address spaces have something
    /// there, UVM's comes first; [`Model::resolve_for`] knows which one a channel uses.
    #[must_use]
    pub fn resolve(&self, pid: u32, va: GpuVa) -> Option<Resolved> {
        self.resolve_in(pid, None, va)
    }

    /// What lies at a GPU virtual address in a channel's address space.
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
        // What RM mapped in the channel's own space, or in any of the process.
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
        let ranges = [rm, uvm, if space.is_none() { any() } else { None }];
        let stated = ranges
            .iter()
            .flatten()
            .find(|(_, m)| m.memory.is_some_and(|b| b.stated));
        if let Some((start, map)) = stated {
            return self.resolve_range(pid, va, *start, map.len, map.memory?);
        }
        // Where CPU and GPU share addresses (CUDA), the process's own mapping of that address is it.
        if let Some(found) = self.resolve_identity(pid, va) {
            return Some(found);
        }
        let (start, map) = ranges.iter().flatten().find(|(_, m)| m.memory.is_some())?;
        self.resolve_range(pid, va, *start, map.len, map.memory?)
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
                found.offset = offset.saturating_add(inside);
                found.aperture = memory.aperture.or(found.aperture);
                found.caching = memory.caching;
                found.gpu = found.gpu.or_else(|| self.minor_of(object));
            }
            Target::Unknown => {}
            Target::Doorbell { .. } | Target::Channel { .. } => return None,
        }
        Some(found)
    }

    /// The address in the process of a GPU virtual address: translated where it is known to lie elsewhere, else
    /// the same number.
    #[must_use]
    pub fn cpu_address(&self, pid: u32, address: u64) -> u64 {
        self.resolve(pid, GpuVa(address))
            .and_then(|r| r.cpu)
            .map_or(address, |cpu| cpu.0)
    }

    /// The ranges of a process that lie at other addresses for the GPU than in the process, by GPU address;
    /// what is not among them is at its own address, if anywhere. [`Change::Translations`] says when to look again.
    ///
    /// [`Change::Translations`]: super::Change::Translations
    #[must_use]
    pub fn translations(&self, pid: u32) -> Vec<Translation> {
        let mut all = self.all_translations(pid);
        all.retain(|t| t.gpu.0 != t.cpu.0);
        all
    }

    /// The translations of [`Model::translations`] that hold in a channel's address space.
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

    /// Every range of a process that is mapped both for the GPU and in the process, by GPU address. Ranges of
    /// UVM are at the same address in both; [`Space`] tells the address space where that matters.
    #[must_use]
    pub fn all_translations(&self, pid: u32) -> Vec<Translation> {
        let mut all = Vec::new();
        let Some(process) = self.processes.get(&pid) else {
            return all;
        };
        for (space, address_space) in &self.spaces {
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
        // Neighbours on both sides are one range.
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

    /// The CPU ranges that a GPU range is mapped at, piece by piece.
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
            // Not certain which memory it is: the process's own mapping of these addresses, if any.
            let end = start.saturating_add(len);
            let Some(process) = self.processes.get(&pid) else {
                return;
            };
            let first = process.at(start).map_or(start, |(s, _)| s);
            for (s, map) in process.maps.range(first..end) {
                let (from, to) = (start.max(*s), end.min(s.saturating_add(map.len)));
                if from < to && !matches!(map.target, Target::Doorbell { .. }) {
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
                    // On to the next mapping of that memory, if there is one.
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

    /// Where the memory at a GPU virtual address of a process is, seen from the GPU that its memory belongs to;
    /// `None` where nothing is known of it, and for managed memory, which moves.
    #[must_use]
    pub fn place(&self, pid: u32, va: GpuVa) -> Option<Place> {
        place_of(&self.resolve(pid, va)?, None)
    }

    /// Where the memory at a GPU virtual address of a channel is, seen from the channel's GPU.
    #[must_use]
    pub fn place_for(&self, channel: ChannelId, va: GpuVa) -> Option<Place> {
        let gpu = self.gpu_of_channel(channel);
        place_of(&self.resolve_for(channel, va)?, gpu)
    }

    /// The mappings of a process, explained, by address.
    #[must_use]
    pub fn mappings(&self, pid: u32) -> Vec<MappingView> {
        let Some(process) = self.processes.get(&pid) else {
            return Vec::new();
        };
        process
            .maps
            .iter()
            .map(|(start, map)| {
                let range = *start..start.saturating_add(map.len);
                let what = match map.target {
                    Target::Doorbell { object, bar1 } => MappingWhat::Doorbell { object, bar1 },
                    Target::Channel { id, .. } => MappingWhat::Channel(id),
                    Target::Memory { id, object, offset } => {
                        let memory = self.memory.get(&id);
                        MappingWhat::Memory {
                            object,
                            class: memory.map_or(0, |m| m.class),
                            offset,
                            size: memory.and_then(|m| m.size),
                            aperture: memory.and_then(|m| m.aperture),
                            caching: memory.and_then(|m| m.caching),
                        }
                    }
                    Target::Unknown if map.device == Device::Uvm => MappingWhat::Uvm,
                    Target::Unknown => MappingWhat::Unknown,
                };
                let gpu = match map.target {
                    Target::Memory { id, offset, .. } => self.gpu_of_memory(id, offset),
                    _ => None,
                };
                let channels = self
                    .channels
                    .values()
                    .filter(|c| c.pid == pid)
                    .filter(|c| {
                        [c.ring, c.userd]
                            .into_iter()
                            .flatten()
                            .any(|a| range.contains(&a.0))
                    })
                    .map(|c| c.id)
                    .collect();
                MappingView {
                    start: CpuVa(*start),
                    len: map.len,
                    device: map.device,
                    read: map.read,
                    write: map.write,
                    found: map.found,
                    what,
                    gpu,
                    channels,
                }
            })
            .collect()
    }

    fn gpu_of_memory(&self, id: MemoryId, offset: u64) -> Option<GpuVa> {
        let memory = self.memory.get(&id)?;
        memory.gpu.iter().find_map(|(space, start)| {
            let map = self.spaces.get(space)?.ranges.get(start)?;
            let inside = offset.checked_sub(map.memory?.offset)?;
            (inside < map.len).then(|| GpuVa(start.saturating_add(inside)))
        })
    }
}

/// The engine of the decoder's events that an NV2080_ENGINE_TYPE is.
#[must_use]
pub fn event_engine(number: Option<u32>) -> Engine {
    match number {
        None | Some(0) => Engine::Unknown,
        Some(0x01..=0x08) => Engine::Graphics,
        Some(n @ 0x09..=0x12) => Engine::Copy(Some(n - 0x09)),
        Some(n @ 0x34..=0x3d) => Engine::Copy(Some(n - 0x34 + 10)),
        Some(n @ 0x13..=0x1a) => Engine::Nvdec(n - 0x13),
        Some(n @ 0x1b..=0x1d) => Engine::Nvenc(n - 0x1b),
        Some(0x3f) => Engine::Nvenc(3),
        Some(n @ 0x2b..=0x32) => Engine::Nvjpg(n - 0x2b),
        Some(0x33) => Engine::Ofa(0),
        Some(0x3e) => Engine::Ofa(1),
        Some(0x26) => Engine::Sec2,
        Some(n) => Engine::Other(n),
    }
}

fn aperture_of_device(device: Device) -> Option<Aperture> {
    match device {
        Device::Gpu(_) => Some(Aperture::Video),
        Device::Control => Some(Aperture::System),
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
