//! The model's state, and the effect of records other than ioctls: mappings, beginning and end of processes, channels named by other
//! sources. The ioctls are in `rm` and `uvm`, the queries in `view`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    call::{Call, Family},
    class::aperture_of_class,
    gpu::Gpu,
    object::{ChannelObject, Client, Kind, Memory, MemoryId, Object, ObjectRef, Space},
    process::{CpuMap, FileKey, ProcessModel, Target, is_doorbell_shape},
    space::{AddressSpace, GpuMap},
    version::Version,
};
use crate::record::{self, ChannelId, CpuVa, Device, Mapping, Record, Unmapping};

/// Facts that the user or the machine provides in advance.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelOptions {
    /// The driver's release, if known (`/proc/driver/nvidia/version`, a capture's header). Without it, the model takes the release from the
    /// ioctls that report it, and chooses layouts by size until then.
    pub driver_version: Option<Version>,
}

/// A change on which a live tracer must act. Changes come in the order in which they became true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A doorbell page became mapped.
    DoorbellPage {
        /// Process that mapped the page.
        pid: u32,
        /// Minor number of the GPU's device file.
        gpu_minor: Option<u32>,
        /// Address in the process. The doorbell is the word at +0x90.
        cpu_va: CpuVa,
        /// Length, bytes.
        len: u64,
        /// True if mapped through BAR1, false if through BAR0; `None` if the allocation was not seen.
        bar1: Option<bool>,
        /// USERMODE object; `None` if the doorbell was recognised only by the shape of the mapping.
        object: Option<ObjectRef>,
    },
    /// A doorbell page is no longer mapped, or its object is gone.
    DoorbellGone {
        /// Process that had mapped the page.
        pid: u32,
        /// Address in the process.
        cpu_va: CpuVa,
        /// Length, bytes.
        len: u64,
    },
    /// A channel's ring and USERD can be read in the process `at.pid`. The change is repeated, with the same id, if they have moved.
    Channel(Box<record::Channel>),
    /// A forked child has mapped the channel's ring and USERD too, at the same addresses.
    ChannelShared {
        /// The channel.
        channel: ChannelId,
        /// The child.
        pid: u32,
    },
    /// A channel's work-submit token became known. The change is repeated right after [`Change::Channel`] if the token was known before,
    /// for receivers that handle tokens separately.
    Token {
        /// The channel.
        channel: ChannelId,
        /// The token.
        token: u32,
    },
    /// A channel was freed, or its process is gone. The channel's id is not used again.
    ChannelGone {
        /// The channel.
        channel: ChannelId,
        /// The process in which it could be read.
        pid: u32,
    },
    /// The set of memory whose addresses differ between the GPU and the process has changed; see [`Model::translations`].
    Translations {
        /// The process.
        pid: u32,
    },
    /// The driver's release, which the driver reported.
    DriverVersion(Version),
}

/// Counts of the records that the model was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of ioctls.
    pub ioctls: u64,
    /// Part of `ioctls`: failed ones, which change nothing.
    pub failed: u64,
    /// Number of mappings.
    pub mappings: u64,
    /// Number of items that were not kept because a fixed limit was reached.
    pub refused: u64,
}

// The following limits bound the items that are kept of each kind. A training job holds some 10^4 memory objects.
pub(crate) const MAX_PROCESSES: usize = 1 << 15;
pub(crate) const MAX_CLIENTS: usize = 1 << 14;
pub(crate) const MAX_OBJECTS: usize = 1 << 18;
pub(crate) const MAX_MAPS: usize = 1 << 17;
pub(crate) const MAX_RANGES: usize = 1 << 18;
pub(crate) const MAX_CHANNELS: usize = 1 << 15;
pub(crate) const MAX_GPUS: usize = 64;

/// The model of nvidia.ko's objects, as the traced processes built them. See the module's description.
///
/// A trace has one model, which the pipeline feeds and lends.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) expected: Option<Version>,
    pub(crate) seen: Option<Version>,
    pub(crate) stats: Stats,
    pub(crate) processes: BTreeMap<u32, ProcessModel>,
    pub(crate) clients: HashMap<u32, Client>,
    pub(crate) memory: HashMap<MemoryId, Memory>,
    pub(crate) spaces: BTreeMap<Space, AddressSpace>,
    pub(crate) channels: BTreeMap<ChannelId, ChannelObject>,
    /// GPUs by RM's gpuId.
    pub(crate) gpus: BTreeMap<u32, Gpu>,
    pub(crate) next_channel: u32,
    next_memory: u64,
    pub(crate) changes: Vec<Change>,
}

impl Default for Model {
    fn default() -> Self {
        Self::new(ModelOptions::default())
    }
}

#[cfg(debug_assertions)]
thread_local! {
    /// Number of models that the thread's test has made.
    pub static MADE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Model {
    /// Makes an empty model.
    #[must_use]
    pub fn new(options: ModelOptions) -> Self {
        #[cfg(debug_assertions)]
        MADE.with(|made| made.set(made.get() + 1));
        Self {
            expected: options.driver_version,
            seen: None,
            stats: Stats::default(),
            processes: BTreeMap::new(),
            clients: HashMap::new(),
            memory: HashMap::new(),
            spaces: BTreeMap::new(),
            channels: BTreeMap::new(),
            gpus: BTreeMap::new(),
            next_channel: 0,
            next_memory: 0,
            changes: Vec::new(),
        }
    }

    /// Takes the next record of the trace and returns its changes.
    pub fn record(&mut self, record: &Record) -> Vec<Change> {
        match record {
            Record::Ioctl(ioctl) => {
                self.stats.ioctls += 1;
                let call = Call::read(ioctl, self.version());
                if call.succeeded() {
                    match call.family {
                        Family::Rm => self.rm(&call),
                        Family::Uvm => self.uvm(&call),
                        Family::Unknown => {}
                    }
                } else {
                    self.stats.failed += 1;
                }
            }
            Record::Mapping(mapping) => self.mapping(mapping),
            Record::Unmapping(unmapping) => self.unmapping(unmapping),
            Record::Process(process) => self.life(process.at, &process.life),
            Record::Channel(channel) => self.channel_record(channel),
            Record::Submission(submission) => self.submission(submission),
            Record::Gpu(_)
            | Record::QmdCopy(_)
            | Record::Kernel(_)
            | Record::Stamps(_)
            | Record::Snapshot(_)
            | Record::Fault(_)
            | Record::Samples(_)
            | Record::Switches(_)
            | Record::Stack(_)
            | Record::Skipped(_)
            | Record::Loss(_) => {}
        }
        std::mem::take(&mut self.changes)
    }

    /// Returns the driver's release: from the driver's calls, else from [`ModelOptions`].
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.seen.or(self.expected)
    }

    /// Returns the counts of the records that the model was given.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns a channel number that is unused in this trace, for a source that found a channel by itself.
    pub fn reserve_channel_id(&mut self) -> ChannelId {
        while self.channels.contains_key(&ChannelId(self.next_channel)) {
            self.next_channel = self.next_channel.wrapping_add(1);
        }
        let id = ChannelId(self.next_channel);
        self.next_channel = self.next_channel.wrapping_add(1);
        id
    }

    pub(crate) fn new_memory(&mut self, object: ObjectRef, class: u32) -> MemoryId {
        let id = MemoryId(self.next_memory);
        self.next_memory += 1;
        self.memory.insert(
            id,
            Memory {
                object,
                class,
                size: None,
                aperture: aperture_of_class(class),
                caching: None,
                handles: BTreeSet::from([object]),
                cpu: BTreeSet::new(),
                gpu: BTreeSet::new(),
                pinned: None,
            },
        );
        id
    }

    pub(crate) fn process(&mut self, pid: u32) -> Option<&mut ProcessModel> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&pid) {
            self.stats.refused += 1;
            return None;
        }
        Some(self.processes.entry(pid).or_default())
    }

    pub(crate) fn object(&self, at: ObjectRef) -> Option<&Object> {
        self.clients.get(&at.client)?.objects.get(&at.handle)
    }

    /// Returns the memory of an object. If nothing was known of the object, memory is made for it: any object that is mapped is memory.
    pub(crate) fn memory_of(&mut self, at: ObjectRef) -> Option<MemoryId> {
        let object = self.object(at)?;
        match object.kind {
            Kind::Memory(id) => Some(id),
            Kind::Other => {
                let class = object.class;
                let id = self.new_memory(at, class);
                let object = self
                    .clients
                    .get_mut(&at.client)?
                    .objects
                    .get_mut(&at.handle)?;
                object.kind = Kind::Memory(id);
                Some(id)
            }
            _ => None,
        }
    }

    // ---- mappings ----

    fn mapping(&mut self, mapping: &Mapping) {
        self.stats.mappings += 1;
        let pid = mapping.at.pid;
        self.cut_maps(pid, mapping.start.0, mapping.len);
        let Some(process) = self.process(pid) else {
            return;
        };
        if process.maps.len() >= MAX_MAPS {
            self.stats.refused += 1;
            return;
        }
        let mut keys = Vec::new();
        if mapping.file != 0 {
            keys.push(FileKey::File(mapping.file));
        }
        keys.extend(mapping.fd.filter(|fd| *fd >= 0).map(FileKey::Fd));
        let pending = (!mapping.found)
            .then(|| process.fulfil(&keys, mapping.len))
            .flatten();
        let target = match pending {
            Some(p) => self.target_of(p.object, p.offset),
            // Write-only device memory has no other use. A readable page of that shape counts only while no better one of that GPU is
            // known.
            None if is_doorbell_shape(mapping)
                && (!mapping.read
                    || (mapping.found && !self.has_doorbell(pid, mapping.device))) =>
            {
                Target::Doorbell {
                    object: None,
                    bar1: None,
                }
            }
            None => Target::Unknown,
        };
        if let (Some(p), Device::Gpu(minor)) = (pending, mapping.device) {
            self.learn_minor(p.object, minor);
        }
        let map = CpuMap {
            len: mapping.len,
            device: mapping.device,
            read: mapping.read,
            write: mapping.write,
            found: mapping.found,
            target,
            skip: pending.map_or(0, |p| p.in_page),
            rung: 0,
        };
        self.put_map(pid, mapping.start.0, map);
        self.settle(pid);
    }

    fn has_doorbell(&self, pid: u32, device: Device) -> bool {
        self.processes.get(&pid).is_some_and(|p| {
            p.maps
                .values()
                .any(|m| m.device == device && matches!(m.target, Target::Doorbell { .. }))
        })
    }

    /// Returns the target that is visible through a mapping of an object.
    fn target_of(&mut self, at: ObjectRef, offset: u64) -> Target {
        match self.object(at).map(|o| o.kind.clone()) {
            Some(Kind::Usermode { bar1 }) => Target::Doorbell {
                object: Some(at),
                bar1,
            },
            Some(Kind::Channel(id)) => Target::Channel { id, object: at },
            _ => match self.memory_of(at) {
                Some(id) => Target::Memory {
                    id,
                    object: at,
                    offset,
                },
                None => Target::Unknown,
            },
        }
    }

    fn learn_minor(&mut self, at: ObjectRef, minor: u32) {
        let Some(client) = self.clients.get_mut(&at.client) else {
            return;
        };
        if let Some(device) = client.device_of(at.handle)
            && let Some(Object {
                kind: Kind::Device { minor: known, .. },
                ..
            }) = client.objects.get_mut(&device)
        {
            *known = Some(minor);
        }
    }

    pub(crate) fn put_map(&mut self, pid: u32, start: u64, map: CpuMap) {
        match map.target {
            Target::Doorbell { object, bar1 } => self.changes.push(Change::DoorbellPage {
                pid,
                gpu_minor: match map.device {
                    Device::Gpu(minor) => Some(minor),
                    _ => None,
                },
                cpu_va: CpuVa(start),
                len: map.len,
                bar1,
                object,
            }),
            Target::Memory { id, .. } => {
                if let Some(memory) = self.memory.get_mut(&id) {
                    memory.cpu.insert((pid, start));
                }
            }
            Target::Channel { .. } | Target::Unknown => {}
        }
        if let Some(process) = self.process(pid) {
            if let Device::Gpu(minor) = map.device {
                process.gpus.insert(minor);
            }
            process.maps.insert(start, map);
        }
        if let Target::Memory { id, .. } = map.target {
            self.note_translation(id);
        }
    }

    fn unmapping(&mut self, unmapping: &Unmapping) {
        let pid = unmapping.at.pid;
        if self.processes.contains_key(&pid) {
            self.cut_maps(pid, unmapping.start.0, unmapping.len);
        }
    }

    /// Removes a range of addresses from a process.
    fn cut_maps(&mut self, pid: u32, start: u64, len: u64) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let gone = process.cut(start, len);
        if gone.is_empty() {
            return;
        }
        let end = start.saturating_add(len);
        for (s, map) in gone {
            let left: Vec<u64> = [s, end]
                .into_iter()
                .filter(|at| {
                    self.processes
                        .get(&pid)
                        .is_some_and(|p| p.maps.contains_key(at))
                })
                .collect();
            match map.target {
                Target::Doorbell { .. } => self.changes.push(Change::DoorbellGone {
                    pid,
                    cpu_va: CpuVa(s),
                    len: map.len,
                }),
                Target::Memory { id, .. } => {
                    if let Some(memory) = self.memory.get_mut(&id) {
                        memory.cpu.remove(&(pid, s));
                        memory.cpu.extend(left.into_iter().map(|at| (pid, at)));
                    }
                }
                Target::Channel { .. } | Target::Unknown => {}
            }
        }
        // A channel whose ring or USERD was there must be found again.
        let lost: Vec<ChannelId> = self
            .channels
            .values()
            .filter(|c| c.pid == pid)
            .filter(|c| {
                [c.ring, c.userd]
                    .into_iter()
                    .flatten()
                    .any(|a| (start..end).contains(&a.0))
            })
            .map(|c| c.id)
            .collect();
        for id in lost {
            if let Some(channel) = self.channels.get_mut(&id)
                && channel.object.is_some()
            {
                channel.ring = None;
                channel.userd = None;
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.waiting.insert(id);
                }
            }
        }
    }

    // ---- GPU address spaces ----

    pub(crate) fn map_gpu(&mut self, space: Space, start: u64, map: GpuMap) {
        self.cut_gpu(space, start, map.len);
        let ranges = &mut self.spaces.entry(space).or_default().ranges;
        if ranges.len() >= MAX_RANGES {
            self.stats.refused += 1;
            return;
        }
        if map.len == 0 {
            return;
        }
        ranges.insert(start, map);
        if let Some(backing) = map.memory
            && let Some(memory) = self.memory.get_mut(&backing.id)
        {
            memory.gpu.insert((space, start));
            self.note_translation(backing.id);
        }
    }

    /// Reports changed translations if the memory is mapped at different addresses for the GPU and the process.
    fn note_translation(&mut self, id: MemoryId) {
        let Some(memory) = self.memory.get(&id) else {
            return;
        };
        if !memory.gpu.iter().any(|(s, _)| matches!(s, Space::Rm(_))) {
            return;
        }
        let pids: BTreeSet<u32> = memory.cpu.iter().map(|(pid, _)| *pid).collect();
        for pid in pids {
            let change = Change::Translations { pid };
            if self.changes.last() != Some(&change) {
                self.changes.push(change);
            }
        }
    }

    pub(crate) fn cut_gpu(&mut self, space: Space, start: u64, len: u64) {
        let Some(address_space) = self.spaces.get_mut(&space) else {
            return;
        };
        let gone = address_space.cut(start, len);
        let end = start.saturating_add(len);
        for (s, map) in gone {
            let Some(backing) = map.memory else { continue };
            let Some(memory) = self.memory.get_mut(&backing.id) else {
                continue;
            };
            memory.gpu.remove(&(space, s));
            for at in [s, end] {
                let same = address_space
                    .ranges
                    .get(&at)
                    .and_then(|m| m.memory)
                    .is_some_and(|b| b.id == backing.id);
                if same {
                    memory.gpu.insert((space, at));
                }
            }
        }
    }

    pub(crate) fn drop_space(&mut self, space: Space) {
        for (start, map) in self.spaces.remove(&space).unwrap_or_default().ranges {
            if let Some(memory) = map.memory.and_then(|b| self.memory.get_mut(&b.id)) {
                memory.gpu.remove(&(space, start));
            }
        }
    }
}
