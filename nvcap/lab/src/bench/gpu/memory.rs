//! Memory, allocated and mapped into the GPU's address space. It is also mapped into the process where the
//! processor must write it.

use super::Gpu;
use crate::bench::error::Error;
use nvcap_decode::wire::GpuVa;
use nvcap_process::rm::{Access, Mapping, Object};

/// Location of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The GPU's own memory.
    Video,
    /// The system's memory, cached by the processor; the GPU's accesses snoop.
    System,
}

/// NV01_MEMORY_LOCAL_USER and NV01_MEMORY_SYSTEM.
const CLASS_VIDEO: u32 = 0x40;
const CLASS_SYSTEM: u32 = 0x3e;

/// Bits of NVOS32_ATTR (nvos.h).
mod attribute {
    pub(super) const SYSTEM: u64 = 1 << 25;
    pub(super) const MAY_BE_SCATTERED: u64 = 3 << 27;
    pub(super) const CACHED: u64 = 1 << 29;
}

/// Bits of NVOS32_ALLOC_FLAGS (nvos.h), as CUDA's driver sets them.
mod flag {
    pub(super) const IGNORE_BANK_PLACEMENT: u64 = 0x1;
    pub(super) const ALIGNMENT_FORCE: u64 = 0x100;
    pub(super) const MAP_NOT_REQUIRED: u64 = 0x8000;
    pub(super) const PERSISTENT: u64 = 0x1_0000;
}

/// NVOS46_FLAGS_CACHE_SNOOP_ENABLE.
const SNOOP: u64 = 1 << 4;

/// Bytes of a page of large memory.
const LARGE: u64 = 2 << 20;
const SMALL: u64 = 0x1000;

/// Memory of a GPU's client. The client frees it.
#[derive(Debug)]
pub(crate) struct Memory {
    object: Object,
    address: GpuVa,
    len: u64,
    mapping: Option<Mapping>,
}

impl Memory {
    /// The memory's handle.
    pub(crate) fn object(&self) -> Object {
        self.object
    }

    /// Returns its GPU address.
    pub(crate) fn address(&self) -> GpuVa {
        self.address
    }

    /// Returns the memory's bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns its mapping in the process, if one was asked for.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        self.mapping.as_ref()
    }
}

impl Gpu {
    /// Allocates memory of at least `len` bytes.
    pub(crate) fn memory(
        &self,
        what: &str,
        place: Place,
        len: u64,
        mapped: bool,
    ) -> Result<Memory, Error> {
        let what = format!("get {len:#x} bytes of memory for {what}");
        let align = if len >= LARGE { LARGE } else { SMALL };
        let len = len.next_multiple_of(align);
        let basic = flag::IGNORE_BANK_PLACEMENT | flag::MAP_NOT_REQUIRED;
        let (class, flags, attributes) = match place {
            Place::Video => (
                CLASS_VIDEO,
                basic | flag::PERSISTENT | flag::ALIGNMENT_FORCE,
                attribute::MAY_BE_SCATTERED,
            ),
            Place::System => (
                CLASS_SYSTEM,
                basic,
                attribute::SYSTEM | attribute::MAY_BE_SCATTERED | attribute::CACHED,
            ),
        };
        let client = &self.client;
        let mut parameters = client.structure(
            "NV_MEMORY_ALLOCATION_PARAMS",
            &[
                ("owner", client.root().field()),
                ("flags", flags),
                ("attr", attributes),
                ("size", len),
                ("alignment", align),
            ],
        )?;
        let object = client.alloc(&what, self.device, class, Some(&mut parameters))?;
        let flags = match place {
            Place::Video => 0,
            Place::System => SNOOP,
        };
        let address = client.map_gpu(&what, self.device, self.space, object, len, flags)?;
        let mapping = match (mapped, place) {
            (false, _) => None,
            (true, Place::Video) => {
                let (parent, gpu) = (self.subdevice, Some(self.minor));
                Some(client.map(&what, parent, object, len, gpu, Access::ReadWrite)?)
            }
            (true, Place::System) => {
                Some(client.map(&what, self.device, object, len, None, Access::ReadWrite)?)
            }
        };
        Ok(Memory {
            object,
            address: GpuVa(address),
            len,
            mapping,
        })
    }
}
