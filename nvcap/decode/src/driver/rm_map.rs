//! Effects of RM ioctls on mappings: CPU mappings that are about to be made, GPU mappings, memory from a heap.

use super::{
    call::Call,
    class,
    model::Model,
    object::{Aperture, Kind, ObjectRef, Space, attributes},
    process::{FileKey, Pending, Target},
    space::{Backing, GpuMap},
};

impl Model {
    /// Records that a mapping of an object is about to be made through an open file.
    pub(crate) fn expect(
        &mut self,
        call: &Call<'_>,
        fd: Option<u32>,
        object: ObjectRef,
        offset: u64,
        len: u64,
    ) {
        // The address that RM returns is that of the first byte; the mapping begins at its page.
        let in_page = call.arg.get("pLinearAddress").unwrap_or(offset) & 0xfff;
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
            in_page,
        };
        if let Some(process) = self.process(call.ioctl.at.pid) {
            process.expect(key, pending);
        }
    }

    pub(crate) fn rm_map(&mut self, call: &Call<'_>) {
        let arg = &call.arg;
        let (Some(client), Some(handle)) = (arg.u32("hClient"), arg.u32("hMemory")) else {
            return;
        };
        let at = ObjectRef { client, handle };
        let offset = arg.get("offset").unwrap_or(0);
        let len = arg.get("length").unwrap_or(0);
        if self.object(at).is_none() {
            // The memory was allocated before the trace began; at least its device is known.
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

    /// Handles NV_ESC_RM_UNMAP_MEMORY. The accompanying munmap gives the range; here only a doorbell ends.
    pub(crate) fn rm_unmap(&mut self, call: &Call<'_>) {
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

    /// Returns the address space to which virtual memory belongs.
    pub(crate) fn space_of_dma(&self, client: u32, kind: &Kind, parent: u32) -> Option<Space> {
        let handle = match kind {
            Kind::Virtual { space: Some(space) } => *space,
            Kind::Virtual { space: None } => self.clients.get(&client)?.device_of(parent)?,
            _ => return None,
        };
        Some(self.space(ObjectRef { client, handle }))
    }

    pub(crate) fn dma_space(&self, client: u32, device: u32, dma: u32) -> Space {
        let at = ObjectRef {
            client,
            handle: dma,
        };
        let known = self.object(at).and_then(|o| match o.kind {
            Kind::VaSpace { .. } => Some(self.space(at)),
            _ => self.space_of_dma(client, &o.kind, o.parent),
        });
        // The allocation of the virtual memory was not seen, so the device's own space is assumed.
        known.unwrap_or(Space::Rm(ObjectRef {
            client,
            handle: device,
        }))
    }

    pub(crate) fn rm_map_dma(&mut self, call: &Call<'_>) {
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

    pub(crate) fn rm_unmap_dma(&mut self, call: &Call<'_>) {
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
        // Before release 550 the structure has no size; 0 means the whole mapping.
        let len = arg.get("size").filter(|s| *s != 0).or_else(|| {
            let (s, map) = self.spaces.get(&space)?.at(start)?;
            Some(map.len - (start - s))
        });
        if let Some(len) = len {
            self.cut_gpu(space, start, len);
        }
    }

    /// Handles NVOS32: memory from a heap, as graphics drivers allocate it. All allocating functions put the new handle at the same place.
    pub(crate) fn rm_heap(&mut self, call: &Call<'_>) {
        // NVOS32_FUNCTION_*: 1, 2, 3, 5, 6 and 14 of nvos.h. The offset of NVOS32_PARAMETERS.data is the same in all releases.
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
}
