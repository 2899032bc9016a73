//! Queries on the model: channels, GPUs, doorbells, address lookup. No query changes the model.

use super::{
    gpu::Gpu,
    model::Model,
    names,
    object::{Aperture, Caching, ChannelObject, Kind, MemoryId, ObjectRef, Space},
    process::{CpuMap, Target},
};
use crate::record::{ChannelId, CpuVa, Device, Origin};
use crate::wire::GpuVa;

/// An engine object bound to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BoundEngine {
    /// Handle of the object.
    pub handle: u32,
    /// Class of the object (0xcbc0, 0xc8b5, ...).
    pub class: u32,
    /// NV2080_ENGINE_TYPE, if known.
    pub engine: Option<u32>,
}

/// The model's knowledge of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelView {
    /// Number in this trace.
    pub id: ChannelId,
    /// Process that can read it.
    pub pid: u32,
    /// RM object.
    pub object: Option<ObjectRef>,
    /// Minor number of the GPU's device file.
    pub gpu: Option<u32>,
    /// Work-submit token.
    pub token: Option<u32>,
    /// Class.
    pub class: Option<u32>,
    /// Handle of the channel group (TSG).
    pub tsg: Option<u32>,
    /// Handle of the context share.
    pub context_share: Option<u32>,
    /// Address space of the channel.
    pub space: Option<Space>,
    /// NV2080_ENGINE_TYPE for which the channel, or its group, was allocated.
    pub engine: Option<u32>,
    /// Engine objects that are bound to the channel.
    pub bound: Vec<BoundEngine>,
    /// GPU address of the ring.
    pub ring_gpu: Option<GpuVa>,
    /// Address of the ring in the process.
    pub ring: Option<CpuVa>,
    /// Number of entries of the ring.
    pub entries: Option<u32>,
    /// Address of USERD in the process.
    pub userd: Option<CpuVa>,
    /// Memory handle of the error notifier.
    pub notifier: Option<u32>,
    /// Address in the process at which the driver stores the token: info32 of the notifier's record, if mapped.
    pub token_at: Option<CpuVa>,
    /// Way in which the channel became known.
    pub origin: Origin,
    /// Number of the channel's submissions.
    pub submissions: u64,
    /// GP_GET at the last submission that had it.
    pub gp_get: Option<u32>,
    /// GP_PUT after the last submission.
    pub gp_put: Option<u32>,
}

impl ChannelView {
    /// Returns the hardware channel id: bits 11:0 of the token.
    #[must_use]
    pub fn chid(&self) -> Option<u32> {
        self.token.map(|t| t & 0xfff)
    }

    /// Returns the runlist: bits 22:16 of the token.
    #[must_use]
    pub fn runlist(&self) -> Option<u32> {
        self.token.map(|t| t >> 16 & 0x7f)
    }

    /// Returns the names of the engines that the channel can feed: first the one for which it was allocated, then those of the objects
    /// bound to it.
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
    /// Minor number of the GPU's device file.
    pub gpu: Option<u32>,
    /// NV2080_ENGINE_TYPE.
    pub engine: Option<u32>,
    /// Channels of the group.
    pub channels: Vec<ChannelId>,
    /// Context shares of the group: handle and subcontext id.
    pub context_shares: Vec<(u32, Option<u32>)>,
}

/// An RM object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ObjectView {
    /// Client and handle of the object.
    pub object: ObjectRef,
    /// Handle of the object's parent; of the object itself for a client.
    pub parent: u32,
    /// Class; 0 if only the handle is known.
    pub class: u32,
}

/// A doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DoorbellView {
    /// Process.
    pub pid: u32,
    /// Minor number of the GPU's device file.
    pub gpu: Option<u32>,
    /// Address in the process.
    #[cfg_attr(feature = "serde", serde(serialize_with = "hex_cpu"))]
    pub cpu: CpuVa,
    /// Length in bytes.
    pub len: u64,
    /// True if mapped through BAR1.
    pub bar1: Option<bool>,
    /// USERMODE object; `None` if the doorbell was recognised only by the mapping's shape.
    pub object: Option<ObjectRef>,
    /// Number of submissions that rang the doorbell.
    pub rung: u64,
}

#[cfg(feature = "serde")]
fn hex_cpu<S: serde::Serializer>(at: &CpuVa, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(at)
}

/// A mapping of a device file in a process, with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingView {
    /// First address.
    pub start: CpuVa,
    /// Length in bytes.
    pub len: u64,
    /// The device file.
    pub device: Device,
    /// True if the mapping is readable.
    pub read: bool,
    /// True if the mapping is writable.
    pub write: bool,
    /// True if the mapping existed before the trace began.
    pub found: bool,
    /// Contents that are visible through the mapping.
    pub what: MappingWhat,
    /// GPU virtual address of the first byte, if it is mapped for the GPU.
    pub gpu: Option<GpuVa>,
    /// Channels whose ring or USERD lies in the mapping.
    pub channels: Vec<ChannelId>,
    /// Number of submissions that rang a doorbell in the mapping.
    pub rung: u64,
}

/// Contents that are visible through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingWhat {
    /// Unknown contents.
    Unknown,
    /// A doorbell page.
    Doorbell {
        /// USERMODE object, unless the doorbell was recognised only by its shape.
        object: Option<ObjectRef>,
        /// True if mapped through BAR1.
        bar1: Option<bool>,
    },
    /// A memory object.
    Memory {
        /// Handle and client of the object.
        object: ObjectRef,
        /// Class of the object.
        class: u32,
        /// Offset, in the object, of the mapping's first byte.
        offset: u64,
        /// Size of the object, bytes.
        size: Option<u64>,
        /// Location of the object's bytes.
        aperture: Option<Aperture>,
        /// Caching of the object by the CPU.
        caching: Option<Caching>,
    },
    /// The control page of a channel.
    Channel(ChannelId),
    /// Managed memory or a semaphore pool of UVM.
    Uvm,
}

impl Model {
    /// Returns all live channels, oldest first.
    pub fn channels(&self) -> impl Iterator<Item = ChannelView> + '_ {
        self.channels.values().map(|c| self.view(c))
    }

    /// Returns one channel.
    #[must_use]
    pub fn channel(&self, id: ChannelId) -> Option<ChannelView> {
        self.channels.get(&id).map(|c| self.view(c))
    }

    /// Returns the channel that a token rings, in a process (in any, if none is given) and on a GPU (if given). A token is unique on one
    /// GPU only.
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

    fn view(&self, channel: &ChannelObject) -> ChannelView {
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
            submissions: channel.submissions,
            gp_get: channel.gp_get,
            gp_put: channel.gp_put,
        }
    }

    /// Returns the address of info32 in the notifier record that holds the token. A record has 16 bytes, with info32 at 8 (NvNotification).
    fn token_at(&self, channel: &ChannelObject) -> Option<CpuVa> {
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

    /// Returns all live channel groups.
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

    /// Returns the GPUs that ioctls reported, by RM's gpuId.
    pub fn gpus(&self) -> impl Iterator<Item = &Gpu> + '_ {
        self.gpus.values()
    }

    /// Returns the GPU of a device file.
    #[must_use]
    pub fn gpu_by_minor(&self, minor: u32) -> Option<&Gpu> {
        self.gpus.values().find(|g| g.minor == Some(minor))
    }

    /// Returns the doorbell pages that are mapped now.
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
                    rung: map.rung,
                })
            })
        })
    }

    /// Returns the processes that the model knows.
    pub fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.keys().copied()
    }

    /// Returns a process's command name, if a source reported it.
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

    /// Returns the minor number of the GPU to which an object belongs.
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

    /// Returns all objects of the clients that a process holds, each with its parent and class: clients first, parents before their
    /// children.
    #[must_use]
    pub fn objects(&self, pid: u32) -> Vec<ObjectView> {
        let mut all = Vec::new();
        let Some(process) = self.processes.get(&pid) else {
            return all;
        };
        for handle in &process.clients {
            let Some(client) = self.clients.get(handle) else {
                continue;
            };
            let mut order = client.subtree(*handle);
            order.reverse();
            all.extend(order.into_iter().filter_map(|h| {
                let object = client.objects.get(&h)?;
                Some(ObjectView {
                    object: ObjectRef {
                        client: *handle,
                        handle: h,
                    },
                    parent: object.parent,
                    class: object.class,
                })
            }));
        }
        all
    }

    /// Returns the class of an object; 0 if only its handle is known.
    #[must_use]
    pub fn class_of(&self, at: ObjectRef) -> Option<u32> {
        self.object(at).map(|o| o.class)
    }

    /// Returns the mappings of a process with their contents, by address.
    #[must_use]
    pub fn mappings(&self, pid: u32) -> Vec<MappingView> {
        let Some(process) = self.processes.get(&pid) else {
            return Vec::new();
        };
        process
            .maps
            .iter()
            .map(|(start, map)| self.mapping_view(pid, *start, map))
            .collect()
    }

    /// Returns the mapping at an address of a process, with its contents.
    #[must_use]
    pub fn mapping_at(&self, pid: u32, at: CpuVa) -> Option<MappingView> {
        let (start, map) = self.processes.get(&pid)?.at(at.0)?;
        Some(self.mapping_view(pid, start, map))
    }

    fn mapping_view(&self, pid: u32, start: u64, map: &CpuMap) -> MappingView {
        let range = start..start.saturating_add(map.len);
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
            Target::Memory { id, offset, .. } => self
                .gpu_of_memory(id, offset)
                .and_then(|gpu| gpu.0.checked_sub(map.skip))
                .map(GpuVa),
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
            start: CpuVa(start),
            len: map.len,
            device: map.device,
            read: map.read,
            write: map.write,
            found: map.found,
            what,
            gpu,
            channels,
            rung: map.rung,
        }
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
