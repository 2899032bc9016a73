//! Effects of RM ioctls on objects in the model: allocation, duplication and freeing.

use super::{
    call::{Call, Subject, esc, number},
    class::{self, aperture_of_class, is_channel, is_memory, is_usermode},
    model::{Change, MAX_CLIENTS, MAX_OBJECTS, Model},
    object::{Aperture, Caching, Client, Kind, MemoryId, Object, ObjectRef, Space, attributes},
    process::Target,
};
use crate::record::CpuVa;

/// NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE (nvos.h): the device's own address space instead of a new one.
const INDEX_GPU_DEVICE: u32 = 3;

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

    // ---- objects ----

    /// Returns the client of an object, held by the calling process. A client whose allocation was not seen is made now.
    pub(crate) fn client(&mut self, handle: u32, pid: u32) -> Option<&mut Client> {
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

    /// Puts an object into its client. A previous object with the same handle is gone; its free was not seen.
    pub(crate) fn insert(
        &mut self,
        pid: u32,
        at: ObjectRef,
        parent: u32,
        class: u32,
        kind: Kind,
    ) -> bool {
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
                    // The parent was not seen: the object is freed with the client at the latest.
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

    pub(crate) fn rm_alloc(&mut self, call: &Call<'_>) {
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
            // A handle that is already in use belongs to a client whose end was not seen.
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
            class::VASPACE => Kind::VaSpace {
                of_device: field("index") == Some(INDEX_GPU_DEVICE),
            },
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

    pub(crate) fn object_kind_is_channel(&self, at: ObjectRef) -> bool {
        matches!(self.object(at).map(|o| &o.kind), Some(Kind::Channel(_)))
    }

    pub(crate) fn alloc_memory(&mut self, call: &Call<'_>, at: ObjectRef, parent: u32, class: u32) {
        let pid = call.ioctl.at.pid;
        let id = self.new_memory(at, class);
        if !self.insert(pid, at, parent, class, Kind::Memory(id)) {
            self.memory.remove(&id);
            return;
        }
        let (mut size, mut aperture, mut caching) = (None, aperture_of_class(class), None);
        let mut pinned = None;
        if call.nr == esc::ALLOC_MEMORY {
            // NVOS02: the limit is the offset of the last byte. An OS descriptor names the process's own memory.
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

    pub(crate) fn describe(
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

    /// Returns the address space of a handle: its own, or its device's if the handle is another one for that space.
    pub(crate) fn space(&self, at: ObjectRef) -> Space {
        let device = || match self.object(at)?.kind {
            Kind::VaSpace { of_device: true } => self.clients.get(&at.client)?.device_of(at.handle),
            _ => None,
        };
        Space::Rm(ObjectRef {
            handle: device().unwrap_or(at.handle),
            ..at
        })
    }

    /// Frees an object and all objects below it.
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

    pub(crate) fn free_one(&mut self, at: ObjectRef) {
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
            Kind::VaSpace { of_device: false } | Kind::Device { .. } => {
                self.drop_space(Space::Rm(at));
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

    /// Makes the target of a process's mappings unknown if `which` is true for it.
    pub(crate) fn retarget(&mut self, pid: u32, which: impl Fn(&Target) -> bool) {
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

    /// Releases a handle to memory that is gone. With the last handle, the memory's mappings end.
    pub(crate) fn release(&mut self, id: MemoryId, at: ObjectRef) {
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

    pub(crate) fn rm_dup(&mut self, call: &Call<'_>) {
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
            // The source belongs to a process that is not traced. Duplicated objects are normally memory.
            self.insert(call.ioctl.at.pid, at, parent, 0, Kind::Other);
            return;
        };
        let (class, mut kind) = (original.class, original.kind.clone());
        if let Kind::Channel(_) = kind {
            // A retained channel remains the same channel, under its first handle.
            kind = Kind::Other;
        }
        if self.insert(call.ioctl.at.pid, at, parent, class, kind)
            && let Some(memory) = memory.and_then(|id| self.memory.get_mut(&id))
        {
            memory.handles.insert(at);
        }
    }
}

/// Tells whether a USERMODE object is mapped through BAR1. Its allocation says so; before Hopper none is.
fn bar1_of(call: &Call<'_>, class: u32) -> Option<bool> {
    if class < class::HOPPER_USERMODE {
        return Some(false);
    }
    match &call.nested {
        Some(params) => number(&params.input.data, 0, 1).map(|b| b != 0),
        // No parameters means the BAR0 form; parameters that were not captured tell nothing.
        None => (call.arg.get_input("pAllocParms")? == 0).then_some(false),
    }
}

/// Returns the engine that an engine object's parameters name (NVB0B5: version 1 carries an NV2080_ENGINE_TYPE, version 0 a copy engine's
/// number).
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
