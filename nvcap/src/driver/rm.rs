//! What RM ioctls do to the model.

use super::{
    call::{Call, Structure, Subject, esc, number},
    gpu::Gpu,
    model::{Change, MAX_CHANNELS, MAX_CLIENTS, MAX_GPUS, MAX_OBJECTS, Model},
    object::{
        Aperture, Caching, Channel, Client, Kind, MemoryId, Object, ObjectRef, Space, attributes,
    },
    process::{FileKey, Pending, Target},
    space::{Backing, GpuMap},
    version::Version,
};
use crate::record::{CpuVa, GpuVa, Origin};

/// Classes (rm/classes.tsv) whose objects the model tells apart.
pub(crate) mod class {
    pub const ROOT: u32 = 0x0000;
    pub const ROOT_NON_PRIV: u32 = 0x0001;
    pub const MEMORY_SYSTEM: u32 = 0x003e;
    pub const MEMORY_LOCAL_PRIVILEGED: u32 = 0x003f;
    pub const MEMORY_LOCAL_USER: u32 = 0x0040;
    pub const ROOT_CLIENT: u32 = 0x0041;
    pub const MEMORY_EXTENDED_USER: u32 = 0x0042;
    pub const MEMORY_VIRTUAL: u32 = 0x0070;
    pub const MEMORY_OS_DESCRIPTOR: u32 = 0x0071;
    pub const DEVICE: u32 = 0x0080;
    pub const NV50_MEMORY_VIRTUAL: u32 = 0x50a0;
    pub const CONTEXT_SHARE: u32 = 0x9067;
    pub const VASPACE: u32 = 0x90f1;
    pub const CHANNEL_GROUP: u32 = 0xa06c;
    pub const FIRST_GPFIFO: u32 = 0x906f;
    pub const FIRST_USERMODE: u32 = 0xc361;
    pub const HOPPER_USERMODE: u32 = 0xc661;
}

/// Whether objects of a class are GPFIFO channels (906f, a06f, ... c86f, c96f, ca6f).
pub(crate) fn is_channel(class: u32) -> bool {
    class & 0xff == 0x6f && (class::FIRST_GPFIFO..=0xffff).contains(&class)
}

/// Whether objects of a class are doorbell pages (c361, c461, c561, c661, c761).
pub(crate) fn is_usermode(class: u32) -> bool {
    class & 0xff == 0x61 && (class::FIRST_USERMODE..=0xffff).contains(&class)
}

/// Control commands that the model learns from.
mod control {
    pub const GPU_GET_ID_INFO: u32 = 0x0000_0202;
    pub const GPU_GET_ID_INFO_V2: u32 = 0x0000_0205;
    pub const GPU_GET_UUID_FROM_GPU_ID: u32 = 0x0000_0275;
    pub const GPU_GET_GID_INFO: u32 = 0x2080_014a;
    pub const MC_GET_ARCH_INFO: u32 = 0x2080_1701;
    pub const GSP_GET_FEATURES: u32 = 0x2080_3601;
    /// GET_CLASS_ENGINEID; the command has an alias for each channel class.
    pub const GET_CLASS_ENGINE_ID: u32 = 0x0101;
    pub const GPFIFO_GET_WORK_SUBMIT_TOKEN: u32 = 0x0108;
    pub const GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX: u32 = 0x010a;
    /// NVA06F_CTRL_CMD_BIND.
    pub const BIND: u32 = 0x0104;
}

/// The notifier record that holds the token unless the client asks for another
/// (NV_CHANNELGPFIFO_NOTIFICATION_TYPE_WORK_SUBMIT_TOKEN).
const TOKEN_INDEX: u32 = 1;

impl Model {
    pub(crate) fn rm(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        match call.nr {
            esc::ALLOC | esc::ALLOC_MEMORY | esc::ALLOC_OBJECT => self.rm_alloc(call),
            esc::FREE => {
                let object = (arg.u32("hRoot"), arg.u32("hObjectOld"));
                if let (Some(client), Some(handle)) = object {
                    self.free(ObjectRef { client, handle });
                }
            }
            esc::CONTROL => self.rm_control(call),
            esc::DUP_OBJECT => self.rm_dup(call),
            esc::MAP_MEMORY => self.rm_map(call),
            esc::UNMAP_MEMORY => self.rm_unmap(call),
            esc::MAP_MEMORY_DMA => self.rm_map_dma(call),
            esc::UNMAP_MEMORY_DMA => self.rm_unmap_dma(call),
            esc::VID_HEAP_CONTROL => self.rm_heap(call),
            esc::CARD_INFO => self.rm_cards(call),
            esc::CHECK_VERSION_STR => {
                if let Some(text) = arg.bytes("versionString") {
                    self.learn_version(text);
                }
            }
            _ => {}
        }
    }

    fn learn_version(&mut self, text: &[u8]) {
        let text = text.split(|b| *b == 0).next().unwrap_or_default();
        let Some(version) = std::str::from_utf8(text)
            .ok()
            .and_then(|t| t.parse::<Version>().ok())
        else {
            return;
        };
        if self.seen != Some(version) {
            self.seen = Some(version);
            self.changes.push(Change::DriverVersion(version));
        }
    }

    // ---- objects ----

    /// The client an object lives in, held by the calling process; one whose allocation was not seen is made
    /// known now.
    fn client(&mut self, handle: u32, pid: u32) -> Option<&mut Client> {
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&handle) {
            self.stats.refused += 1;
            return None;
        }
        let client = self.clients.entry(handle).or_default();
        if client.objects.is_empty() {
            client.objects.insert(
                handle,
                Object {
                    parent: handle,
                    class: class::ROOT_CLIENT,
                    kind: Kind::Client,
                    children: Default::default(),
                },
            );
        }
        if client.holders.is_empty() {
            client.holders.insert(pid);
            self.process(pid)?.clients.insert(handle);
        }
        self.clients.get_mut(&handle)
    }

    /// Puts an object into its client; one of the same handle there is gone (its free was not seen).
    fn insert(&mut self, pid: u32, at: ObjectRef, parent: u32, class: u32, kind: Kind) -> bool {
        if self.object(at).is_some() && at.client != at.handle {
            self.free(at);
        }
        let refused = match self.client(at.client, pid) {
            Some(client) if client.objects.len() < MAX_OBJECTS => {
                if let Some(above) = client.objects.get_mut(&parent)
                    && parent != at.handle
                {
                    above.children.insert(at.handle);
                } else if at.handle != at.client
                    && let Some(root) = client.objects.get_mut(&at.client)
                {
                    // A parent that was not seen: it goes with the client at the latest.
                    root.children.insert(at.handle);
                }
                client.objects.insert(
                    at.handle,
                    Object {
                        parent,
                        class,
                        kind,
                        children: Default::default(),
                    },
                );
                false
            }
            _ => true,
        };
        if refused {
            self.stats.refused += 1;
        }
        !refused
    }

    fn rm_alloc(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        let pid = call.ioctl.at.pid;
        let root = arg.u32("hRoot");
        let (Some(root), Some(parent), Some(handle)) =
            (root, arg.u32("hObjectParent"), arg.u32("hObjectNew"))
        else {
            return;
        };
        let Subject::Class(class) = call.subject else {
            return;
        };
        if matches!(
            class,
            class::ROOT | class::ROOT_NON_PRIV | class::ROOT_CLIENT
        ) {
            // A handle that is in use is a client whose end was not seen.
            let at = ObjectRef {
                client: handle,
                handle,
            };
            self.free(at);
            let _ = self.client(handle, pid);
            return;
        }
        let at = ObjectRef {
            client: root,
            handle,
        };
        let params = call.nested;
        let field = |name: &str| params.as_ref().and_then(|p| p.u32(name));
        let nonzero = |name: &str| field(name).filter(|h| *h != 0);
        let kind = match class {
            class::DEVICE => Kind::Device {
                instance: field("deviceId"),
                minor: None,
            },
            class::VASPACE => Kind::VaSpace,
            class::MEMORY_VIRTUAL | class::NV50_MEMORY_VIRTUAL => Kind::Virtual {
                space: nonzero("hVASpace"),
            },
            class::CHANNEL_GROUP => Kind::Tsg {
                engine: nonzero("engineType"),
                space: nonzero("hVASpace"),
            },
            class::CONTEXT_SHARE => Kind::ContextShare {
                space: nonzero("hVASpace"),
                subcontext: field("subctxId"),
            },
            c if is_usermode(c) => Kind::Usermode {
                bar1: bar1_of(call, c),
            },
            c if is_channel(c) => {
                self.alloc_channel(call, at, parent, c);
                return;
            }
            c if is_memory(c) => {
                self.alloc_memory(call, at, parent, c);
                return;
            }
            _ if self.object_kind_is_channel(ObjectRef {
                client: root,
                handle: parent,
            }) =>
            {
                Kind::Engine {
                    engine: engine_of_object(call),
                }
            }
            _ => Kind::Other,
        };
        self.insert(pid, at, parent, class, kind);
    }

    fn object_kind_is_channel(&self, at: ObjectRef) -> bool {
        matches!(self.object(at).map(|o| &o.kind), Some(Kind::Channel(_)))
    }

    fn alloc_memory(&mut self, call: &Call<'_>, at: ObjectRef, parent: u32, class: u32) {
        let pid = call.ioctl.at.pid;
        let id = self.new_memory(at, class);
        if !self.insert(pid, at, parent, class, Kind::Memory(id)) {
            self.memory.remove(&id);
            return;
        }
        let (mut size, mut aperture, mut caching) = (None, aperture_of_class(class), None);
        let mut pinned = None;
        if call.nr == esc::ALLOC_MEMORY {
            // NVOS02: the limit is the last byte's offset; an OS descriptor names the process's own memory.
            size = call.arg.get("limit").and_then(|l| l.checked_add(1));
            if class == class::MEMORY_OS_DESCRIPTOR {
                pinned = call
                    .arg
                    .get_input("pMemory")
                    .filter(|p| *p != 0)
                    .map(|p| (pid, p));
            }
            self.expect(call, call.arg.u32("fd"), at, 0, size.unwrap_or(0));
        } else if let Some(params) = &call.nested {
            size = params.get("size").or_else(|| {
                let limit = params.get("limit")?;
                limit.checked_add(1)
            });
            if let Some(attr) = params.u32("attr") {
                let (a, c) = attributes(attr);
                aperture = a.or(aperture);
                caching = c;
            }
            if class == class::MEMORY_OS_DESCRIPTOR {
                pinned = params
                    .get("descriptor")
                    .filter(|p| *p != 0)
                    .map(|p| (pid, p));
            }
        }
        self.describe(id, size.filter(|s| *s != 0), aperture, caching);
        if let Some(memory) = self.memory.get_mut(&id) {
            memory.pinned = pinned;
        }
    }

    fn describe(
        &mut self,
        id: MemoryId,
        size: Option<u64>,
        aperture: Option<Aperture>,
        caching: Option<Caching>,
    ) {
        if let Some(memory) = self.memory.get_mut(&id) {
            memory.size = size.or(memory.size);
            memory.aperture = aperture.or(memory.aperture);
            memory.caching = caching.or(memory.caching);
        }
    }

    fn alloc_channel(&mut self, call: &Call<'_>, at: ObjectRef, parent: u32, class: u32) {
        let pid = call.ioctl.at.pid;
        if self.channels.len() >= MAX_CHANNELS {
            self.stats.refused += 1;
            return;
        }
        // Before its number is given: an old channel of that handle goes first.
        if self.object(at).is_some() {
            self.free(at);
        }
        let id = self.reserve_channel_id();
        if !self.insert(pid, at, parent, class, Kind::Channel(id)) {
            return;
        }
        let params = call.nested;
        let get = |name: &str| params.as_ref().and_then(|p| p.get(name));
        let handle = |name: &str| {
            params
                .as_ref()
                .and_then(|p| p.u32(name))
                .filter(|h| *h != 0)
        };
        // hUserdMemory and userdOffset are arrays, one element a subdevice: the first is at their start.
        let first = |name: &str, size: usize| {
            let p = params.as_ref()?;
            let offset = p.layout?.field(name)?.offset;
            number(&p.output.data, offset, size).or_else(|| number(&p.input.data, offset, size))
        };
        let userd_at = first("hUserdMemory", 4)
            .and_then(|h| u32::try_from(h).ok())
            .filter(|h| *h != 0)
            .zip(first("userdOffset", 8));
        let tsg = self
            .object(ObjectRef {
                client: at.client,
                handle: parent,
            })
            .filter(|o| matches!(o.kind, Kind::Tsg { .. }))
            .map(|_| parent);
        let context_share = handle("hContextShare");
        let engine = handle("engineType").or_else(|| {
            let group = ObjectRef {
                client: at.client,
                handle: tsg?,
            };
            match self.object(group)?.kind {
                Kind::Tsg { engine, .. } => engine,
                _ => None,
            }
        });
        let space = self.space_of_channel(at, handle("hVASpace"), context_share, tsg);
        self.add_channel(Channel {
            at: call.ioctl.at,
            id,
            pid,
            object: Some(at),
            class: Some(class),
            tsg,
            context_share,
            space,
            engine,
            gpu: None,
            token: None,
            ring_gpu: get("gpFifoOffset").map(GpuVa),
            entries: get("gpFifoEntries").and_then(|e| u32::try_from(e).ok()),
            userd_at,
            notifier: handle("hObjectError"),
            token_index: TOKEN_INDEX,
            ring: None,
            userd: None,
            origin: Origin::Allocated,
            announced: None,
        });
    }

    /// The address space of a channel: its own, its context share's, its group's, or its device's default one.
    fn space_of_channel(
        &self,
        at: ObjectRef,
        own: Option<u32>,
        context_share: Option<u32>,
        tsg: Option<u32>,
    ) -> Option<Space> {
        let of = |handle: u32| ObjectRef {
            client: at.client,
            handle,
        };
        let shared = || match self.object(of(context_share?))?.kind {
            Kind::ContextShare { space, .. } => space,
            _ => None,
        };
        let grouped = || match self.object(of(tsg?))?.kind {
            Kind::Tsg { space, .. } => space,
            _ => None,
        };
        own.or_else(shared)
            .or_else(grouped)
            .or_else(|| self.clients.get(&at.client)?.device_of(at.handle))
            .map(|handle| Space::Rm(of(handle)))
    }

    /// Frees an object and all below it.
    pub(crate) fn free(&mut self, at: ObjectRef) {
        let Some(client) = self.clients.get(&at.client) else {
            return;
        };
        let order = client.subtree(at.handle);
        let parent = client.objects.get(&at.handle).map(|o| o.parent);
        for handle in order {
            self.free_one(ObjectRef {
                client: at.client,
                handle,
            });
        }
        if at.handle == at.client {
            if let Some(client) = self.clients.remove(&at.client) {
                for pid in client.holders {
                    if let Some(process) = self.processes.get_mut(&pid) {
                        process.clients.remove(&at.client);
                    }
                }
            }
        } else if let Some(client) = self.clients.get_mut(&at.client) {
            for above in [parent, Some(at.client)].into_iter().flatten() {
                if let Some(object) = client.objects.get_mut(&above) {
                    object.children.remove(&at.handle);
                }
            }
        }
    }

    fn free_one(&mut self, at: ObjectRef) {
        let Some(client) = self.clients.get_mut(&at.client) else {
            return;
        };
        let Some(object) = client.objects.remove(&at.handle) else {
            return;
        };
        let holders: Vec<u32> = client.holders.iter().copied().collect();
        match object.kind {
            Kind::Memory(id) => self.release(id, at),
            Kind::Channel(id) => {
                for pid in holders {
                    self.retarget(
                        pid,
                        |t| matches!(t, Target::Channel { id: of, .. } if *of == id),
                    );
                }
                self.drop_channel(id);
            }
            Kind::Usermode { .. } => {
                for pid in holders {
                    self.retarget(
                        pid,
                        |t| matches!(t, Target::Doorbell { object: Some(of), .. } if *of == at),
                    );
                }
            }
            Kind::VaSpace | Kind::Device { .. } => {
                self.drop_space(Space::Rm(at));
                self.uvm_spaces.remove(&at);
            }
            Kind::Virtual { .. } => {
                if let Some(space) = self.space_of_dma(at.client, &object.kind, object.parent) {
                    let ranges: Vec<(u64, u64)> = self
                        .spaces
                        .get(&space)
                        .into_iter()
                        .flat_map(|s| &s.ranges)
                        .filter(|(_, m)| m.through == at.handle)
                        .map(|(s, m)| (*s, m.len))
                        .collect();
                    for (start, len) in ranges {
                        self.cut_gpu(space, start, len);
                    }
                }
            }
            _ => {}
        }
    }

    /// Mappings of a process that show what `which` says show nothing known any more.
    fn retarget(&mut self, pid: u32, which: impl Fn(&Target) -> bool) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        for (start, map) in &mut process.maps {
            if which(&map.target) {
                if matches!(map.target, Target::Doorbell { .. }) {
                    self.changes.push(Change::DoorbellGone {
                        pid,
                        cpu_va: CpuVa(*start),
                        len: map.len,
                    });
                }
                map.target = Target::Unknown;
            }
        }
    }

    /// A handle to memory is gone; with the last one its mappings are.
    fn release(&mut self, id: MemoryId, at: ObjectRef) {
        let Some(memory) = self.memory.get_mut(&id) else {
            return;
        };
        memory.handles.remove(&at);
        if let Some(other) = memory.handles.first() {
            memory.object = *other;
            return;
        }
        let Some(memory) = self.memory.remove(&id) else {
            return;
        };
        for (space, start) in memory.gpu {
            if let Some(space) = self.spaces.get_mut(&space) {
                space.ranges.remove(&start);
            }
        }
        for (pid, start) in memory.cpu {
            if let Some(map) = self
                .processes
                .get_mut(&pid)
                .and_then(|p| p.maps.get_mut(&start))
            {
                map.target = Target::Unknown;
            }
        }
    }

    fn rm_dup(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        let (Some(client), Some(parent), Some(handle), Some(from), Some(source)) = (
            arg.u32("hClient"),
            arg.u32("hParent"),
            arg.u32("hObject"),
            arg.u32("hClientSrc"),
            arg.u32("hObjectSrc"),
        ) else {
            return;
        };
        let source = ObjectRef {
            client: from,
            handle: source,
        };
        let at = ObjectRef { client, handle };
        let memory = self.memory_of(source);
        let Some(original) = self.object(source) else {
            // Of another process that is not traced: memory is what is duplicated as a rule.
            self.insert(call.ioctl.at.pid, at, parent, 0, Kind::Other);
            return;
        };
        let (class, mut kind) = (original.class, original.kind.clone());
        if let Kind::Channel(_) = kind {
            // A retained channel stays the one it is, under its first handle.
            kind = Kind::Other;
        }
        if self.insert(call.ioctl.at.pid, at, parent, class, kind)
            && let Some(memory) = memory.and_then(|id| self.memory.get_mut(&id))
        {
            memory.handles.insert(at);
        }
    }

    // ---- mappings ----

    /// A mapping of an object is about to be made through an open file.
    fn expect(
        &mut self,
        call: &Call<'_>,
        fd: Option<u32>,
        object: ObjectRef,
        offset: u64,
        len: u64,
    ) {
        let fd = fd.map(u32::cast_signed).filter(|fd| *fd >= 0);
        let key = match (call.ioctl.named_file, fd) {
            (0, Some(fd)) => FileKey::Fd(fd),
            (0, None) => return,
            (file, _) => FileKey::File(file),
        };
        let pending = Pending {
            object,
            offset,
            len,
        };
        if let Some(process) = self.process(call.ioctl.at.pid) {
            process.expect(key, pending);
        }
    }

    fn rm_map(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        let (Some(client), Some(handle)) = (arg.u32("hClient"), arg.u32("hMemory")) else {
            return;
        };
        let at = ObjectRef { client, handle };
        let offset = arg.get("offset").unwrap_or(0);
        let len = arg.get("length").unwrap_or(0);
        if self.object(at).is_none() {
            // Allocated before the trace began: its device is known at least.
            let parent = arg.u32("hDevice").unwrap_or(client);
            self.insert(call.ioctl.at.pid, at, parent, 0, Kind::Other);
        }
        if let Some(id) = self.memory_of(at)
            && let Some(memory) = self.memory.get_mut(&id)
        {
            let end = offset.saturating_add(len);
            if memory.size.is_none_or(|s| s < end) {
                memory.size = Some(end);
            }
        }
        self.expect(call, arg.u32("fd"), at, offset, len);
    }

    /// NV_ESC_RM_UNMAP_MEMORY: the munmap that goes with it tells the range; here only a doorbell ends.
    fn rm_unmap(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        if let (Some(client), Some(handle)) = (arg.u32("hClient"), arg.u32("hMemory")) {
            let at = ObjectRef { client, handle };
            if matches!(
                self.object(at).map(|o| &o.kind),
                Some(Kind::Usermode { .. })
            ) {
                self.retarget(
                    call.ioctl.at.pid,
                    |t| matches!(t, Target::Doorbell { object: Some(of), .. } if *of == at),
                );
            }
        }
    }

    /// The address space that virtual memory belongs to.
    fn space_of_dma(&self, client: u32, kind: &Kind, parent: u32) -> Option<Space> {
        let handle = match kind {
            Kind::Virtual { space: Some(space) } => *space,
            Kind::Virtual { space: None } => self.clients.get(&client)?.device_of(parent)?,
            _ => return None,
        };
        Some(Space::Rm(ObjectRef { client, handle }))
    }

    fn dma_space(&self, client: u32, device: u32, dma: u32) -> Space {
        let at = ObjectRef {
            client,
            handle: dma,
        };
        let known = self.object(at).and_then(|o| match o.kind {
            Kind::VaSpace => Some(Space::Rm(at)),
            _ => self.space_of_dma(client, &o.kind, o.parent),
        });
        // Virtual memory that was not seen being allocated: taken for the device's own space.
        known.unwrap_or(Space::Rm(ObjectRef {
            client,
            handle: device,
        }))
    }

    fn rm_map_dma(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        let (Some(client), Some(device), Some(dma), Some(handle)) = (
            arg.u32("hClient"),
            arg.u32("hDevice"),
            arg.u32("hDma"),
            arg.u32("hMemory"),
        ) else {
            return;
        };
        let (Some(start), Some(len)) = (arg.get("dmaOffset"), arg.get("length")) else {
            return;
        };
        let at = ObjectRef { client, handle };
        if self.object(at).is_none() {
            self.insert(call.ioctl.at.pid, at, device, 0, Kind::Other);
        }
        let offset = arg.get("offset").unwrap_or(0);
        let memory = self.memory_of(at).map(|id| Backing {
            id,
            object: at,
            offset,
            stated: true,
        });
        let space = self.dma_space(client, device, dma);
        self.map_gpu(
            space,
            start,
            GpuMap {
                len,
                memory,
                through: dma,
            },
        );
        self.settle(call.ioctl.at.pid);
    }

    fn rm_unmap_dma(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        let (Some(client), Some(device), Some(dma), Some(start)) = (
            arg.u32("hClient"),
            arg.u32("hDevice"),
            arg.u32("hDma"),
            arg.get("dmaOffset"),
        ) else {
            return;
        };
        let space = self.dma_space(client, device, dma);
        // Before release 550 there is no size, and 0 means the whole mapping.
        let len = arg.get("size").filter(|s| *s != 0).or_else(|| {
            let (s, map) = self.spaces.get(&space)?.at(start)?;
            Some(map.len - (start - s))
        });
        if let Some(len) = len {
            self.cut_gpu(space, start, len);
        }
    }

    /// NVOS32: memory from a heap, as graphics drivers allocate it. All allocating functions put the new handle
    /// at the same place.
    fn rm_heap(&mut self, call: &Call<'_>) {
        // NVOS32_FUNCTION_*: 1, 2, 3, 5, 6 and 14 of nvos.h. Offsets of NVOS32_PARAMETERS.data, same in all
        // releases.
        const ALLOC_DEPTH_WIDTH_HEIGHT: u32 = 1;
        const ALLOC_SIZE: u32 = 2;
        const FREE: u32 = 3;
        const ALLOC_TILED_PITCH_HEIGHT: u32 = 6;
        const ALLOC_SIZE_RANGE: u32 = 14;
        const VIRTUAL: u32 = 1 << 19;
        let arg = &call.arg;
        let (Some(client), Some(parent), Some(function)) =
            (arg.u32_at(0), arg.u32_at(4), arg.u32_at(8))
        else {
            return;
        };
        let Some(handle) = arg.u32_at(44) else { return };
        let at = ObjectRef { client, handle };
        let part = match function {
            ALLOC_DEPTH_WIDTH_HEIGHT => "data.AllocDepthWidthHeight",
            ALLOC_SIZE => "data.AllocSize",
            ALLOC_TILED_PITCH_HEIGHT => "data.AllocTiledPitchHeight",
            ALLOC_SIZE_RANGE => "data.AllocSizeRange",
            FREE => {
                self.free(at);
                return;
            }
            _ => return,
        };
        let flags = arg.get_input(&format!("{part}.flags")).unwrap_or(0);
        let size = arg.get(&format!("{part}.size"));
        let attr = arg.u32(&format!("{part}.attr"));
        let pid = call.ioctl.at.pid;
        if flags & u64::from(VIRTUAL) != 0 {
            let space = arg.u32("hVASpace").filter(|h| *h != 0);
            self.insert(
                pid,
                at,
                parent,
                class::NV50_MEMORY_VIRTUAL,
                Kind::Virtual { space },
            );
            return;
        }
        let (aperture, caching) = attr.map(attributes).unwrap_or_default();
        let class = match aperture {
            Some(Aperture::System) => class::MEMORY_SYSTEM,
            _ => class::MEMORY_LOCAL_USER,
        };
        let id = self.new_memory(at, class);
        if self.insert(pid, at, parent, class, Kind::Memory(id)) {
            self.describe(id, size, aperture, caching);
        } else {
            self.memory.remove(&id);
        }
    }

    // ---- what controls tell ----

    fn rm_control(&mut self, call: &Call<'_>) {
        let Subject::Control(command) = call.subject else {
            return;
        };
        let (Some(client), Some(handle)) = (call.arg.u32("hClient"), call.arg.u32("hObject"))
        else {
            return;
        };
        let at = ObjectRef { client, handle };
        let Some(params) = &call.nested else { return };
        match command {
            control::GPU_GET_ID_INFO | control::GPU_GET_ID_INFO_V2 => self.gpu_ids(command, params),
            control::GPU_GET_UUID_FROM_GPU_ID => {
                // gpuId, flags, 256 bytes of UUID (NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS).
                if let Some(id) = params.u32_at(0) {
                    let uuid = params.output.data.get(8..).and_then(read_uuid);
                    self.gpu_by_id(id, |g| g.uuid = uuid.or(g.uuid));
                }
            }
            control::GPU_GET_GID_INFO => {
                let uuid = params.bytes("data").and_then(read_uuid);
                self.gpu_by_object(at, |g| g.uuid = uuid.or(g.uuid));
            }
            control::MC_GET_ARCH_INFO => {
                let arch = params.u32("architecture").zip(params.u32("implementation"));
                self.gpu_by_object(at, |g| g.arch = arch.or(g.arch));
            }
            control::GSP_GET_FEATURES => {
                // gspFeatures, bValid, bDefaultGspRmGpu, firmwareVersion[64]
                if let Some(text) = params.output.data.get(6..) {
                    self.learn_version(text);
                }
            }
            _ => self.channel_control(command, at, params),
        }
    }

    fn channel_control(&mut self, command: u32, at: ObjectRef, params: &Structure<'_>) {
        if !is_channel(command >> 16) && command >> 16 != class::CHANNEL_GROUP {
            return;
        }
        let channel = match self.object(at).map(|o| &o.kind) {
            Some(Kind::Channel(id)) => Some(*id),
            _ => None,
        };
        match (command & 0xffff, channel) {
            (control::GPFIFO_GET_WORK_SUBMIT_TOKEN, Some(id)) => {
                if let Some(token) = params.u32_at(0) {
                    self.set_token(id, token);
                }
            }
            (control::GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX, Some(id)) => {
                if let (Some(index), Some(channel)) = (params.u32_at(0), self.channels.get_mut(&id))
                {
                    channel.token_index = index;
                }
            }
            (control::GET_CLASS_ENGINE_ID, Some(_)) => {
                let (handle, engine) = (params.u32("hObject"), params.u32("engineID"));
                if let (Some(handle), Some(engine)) = (handle, engine)
                    && let Some(Object {
                        kind: Kind::Engine { engine: known },
                        ..
                    }) = self
                        .clients
                        .get_mut(&at.client)
                        .and_then(|c| c.objects.get_mut(&handle))
                {
                    *known = Some(engine);
                }
            }
            (control::BIND, Some(id)) if command >> 16 != class::CHANNEL_GROUP => {
                if let (Some(engine), Some(channel)) =
                    (params.u32_at(0), self.channels.get_mut(&id))
                {
                    channel.engine = Some(engine);
                }
            }
            _ => {}
        }
    }

    fn gpu_ids(&mut self, command: u32, params: &Structure<'_>) {
        // The two structures begin alike: gpuId, gpuFlags, deviceInstance, subDeviceInstance.
        let (Some(id), Some(instance)) = (params.u32_at(0), params.u32_at(8)) else {
            return;
        };
        // ID_INFO has pointers of names after subDeviceInstance; what is read here lies before them.
        let _ = command;
        self.gpu_by_id(id, |g| g.instance = Some(instance));
    }

    fn gpu_by_id(&mut self, id: u32, change: impl FnOnce(&mut Gpu)) {
        if self.gpus.len() >= MAX_GPUS && !self.gpus.contains_key(&id) {
            self.stats.refused += 1;
            return;
        }
        change(self.gpus.entry(id).or_insert_with(|| Gpu::new(id)));
    }

    fn gpu_by_object(&mut self, at: ObjectRef, change: impl FnOnce(&mut Gpu)) {
        if let Some(gpu) = self.gpu_id_of(at).and_then(|id| self.gpus.get_mut(&id)) {
            change(gpu);
        }
    }

    fn rm_cards(&mut self, call: &Call<'_>) {
        let Some(layout) = super::facts::layout("nv_ioctl_card_info_t", self.version(), None)
        else {
            return;
        };
        let data = &call.arg.output.data;
        for card in data.chunks_exact(layout.size().max(1)).take(MAX_GPUS) {
            let get = |name: &str| {
                let f = layout.field(name)?;
                number(card, f.offset, f.size)
            };
            if get("valid") != Some(1) {
                continue;
            }
            let Some(id) = get("gpu_id").and_then(|v| u32::try_from(v).ok()) else {
                continue;
            };
            let narrow = |name: &str| get(name).and_then(|v| u32::try_from(v).ok());
            self.gpu_by_id(id, |g| {
                g.minor = narrow("minor_number").or(g.minor);
                g.pci = (|| {
                    Some((
                        narrow("pci_info.domain")?,
                        narrow("pci_info.bus")?,
                        narrow("pci_info.slot")?,
                        narrow("pci_info.function")?,
                    ))
                })()
                .or(g.pci);
                g.device_id = narrow("pci_info.device_id").or(g.device_id);
            });
        }
    }
}

/// Whether a USERMODE object is mapped through BAR1: its allocation says so, and before Hopper none is.
fn bar1_of(call: &Call<'_>, class: u32) -> Option<bool> {
    if class < class::HOPPER_USERMODE {
        return Some(false);
    }
    match &call.nested {
        Some(params) => number(&params.input.data, 0, 1).map(|b| b != 0),
        // No parameters means the BAR0 form; parameters that were not captured mean nothing.
        None => (call.arg.get_input("pAllocParms")? == 0).then_some(false),
    }
}

fn is_memory(class: u32) -> bool {
    matches!(
        class,
        class::MEMORY_SYSTEM
            | class::MEMORY_LOCAL_PRIVILEGED
            | class::MEMORY_LOCAL_USER
            | class::MEMORY_EXTENDED_USER
            | class::MEMORY_OS_DESCRIPTOR
    )
}

fn aperture_of_class(class: u32) -> Option<Aperture> {
    match class {
        class::MEMORY_SYSTEM | class::MEMORY_OS_DESCRIPTOR => Some(Aperture::System),
        class::MEMORY_LOCAL_USER | class::MEMORY_EXTENDED_USER => Some(Aperture::Video),
        class::MEMORY_LOCAL_PRIVILEGED => Some(Aperture::Registers),
        _ => None,
    }
}

/// The engine that an engine object's parameters name (NVB0B5: version 1 carries an NV2080_ENGINE_TYPE, version 0
/// a copy engine's number).
fn engine_of_object(call: &Call<'_>) -> Option<u32> {
    let params = call.nested.as_ref()?;
    if params.layout?.name() != "NVB0B5_ALLOCATION_PARAMETERS" {
        return None;
    }
    let number = params.u32("engineType")?;
    match params.u32("version")? {
        0 if number < 10 => Some(0x09 + number),
        0 if number < 20 => Some(0x34 + number - 10),
        1 => Some(number),
        _ => None,
    }
}

/// A binary UUID at the start of a buffer; one of zeros, or text ("GPU-..."), is none.
fn read_uuid(data: &[u8]) -> Option<[u8; 16]> {
    let bytes: [u8; 16] = data.get(..16)?.try_into().ok()?;
    (bytes != [0; 16] && !bytes.starts_with(b"GPU-")).then_some(bytes)
}
