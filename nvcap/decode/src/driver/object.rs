//! RM objects of the model: clients, devices, memory, channels. The module has data and small queries on them, and knows no ioctls.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{At, ChannelId, CpuVa, Origin};
use crate::wire::GpuVa;

/// An RM object, named by its client and its handle in that client. Client handles are unique in the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ObjectRef {
    /// Handle of the client.
    pub client: u32,
    /// Handle of the object in that client.
    pub handle: u32,
}

/// Location of a memory object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum Aperture {
    /// The GPU's own memory.
    Video,
    /// System memory.
    System,
    /// Device registers (doorbells, timers).
    Registers,
}

/// Caching of a memory object by the CPU (NVOS32_ATTR_COHERENCY).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum Caching {
    /// Uncached.
    Uncached,
    /// Cached.
    Cached,
    /// Write combining.
    WriteCombine,
    /// Write through.
    WriteThrough,
    /// Write protect.
    WriteProtect,
    /// Write back.
    WriteBack,
}

/// Decodes the memory attribute word of an allocation (NVOS32_ATTR_*, nvos.h).
#[must_use]
pub(super) fn attributes(attr: u32) -> (Option<Aperture>, Option<Caching>) {
    // NVOS32_ATTR_LOCATION is 26:25, NVOS32_ATTR_COHERENCY 31:29.
    let aperture = match attr >> 25 & 3 {
        0 => Some(Aperture::Video),
        1 => Some(Aperture::System),
        _ => None,
    };
    let caching = match attr >> 29 {
        0 => Some(Caching::Uncached),
        1 => Some(Caching::Cached),
        2 => Some(Caching::WriteCombine),
        3 => Some(Caching::WriteThrough),
        4 => Some(Caching::WriteProtect),
        5 => Some(Caching::WriteBack),
        _ => None,
    };
    (aperture, caching)
}

/// A piece of memory, which may have several handles (duplicated objects share it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemoryId(pub u64);

/// A GPU address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum Space {
    /// A virtual address space object of RM, or a device's default one (named by the device's handle).
    Rm(ObjectRef),
    /// Memory mapped through UVM: one range of addresses for the CPU and all GPUs of a process.
    Uvm {
        /// The process.
        pid: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// The first handle to the memory.
    pub object: ObjectRef,
    pub class: u32,
    pub size: Option<u64>,
    pub aperture: Option<Aperture>,
    pub caching: Option<Caching>,
    /// Handles to the memory, which is freed with the last one.
    pub handles: BTreeSet<ObjectRef>,
    /// CPU mappings of the memory: process and first address.
    pub cpu: BTreeSet<(u32, u64)>,
    /// GPU mappings of the memory: address space and first address.
    pub gpu: BTreeSet<(Space, u64)>,
    /// Process memory that is registered in place with the GPU (OS descriptor): process and address.
    pub pinned: Option<(u32, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Client,
    Device {
        /// Value of NV0080_ALLOC_PARAMETERS.deviceId.
        instance: Option<u32>,
        /// Minor number of the device file, learnt from a mapping or from the GPU list.
        minor: Option<u32>,
    },
    VaSpace {
        /// True if the object is another handle for its device's default address space.
        of_device: bool,
    },
    /// Virtual memory: addresses of an address space (`None`: the device's default one).
    Virtual {
        space: Option<u32>,
    },
    Memory(MemoryId),
    Tsg {
        engine: Option<u32>,
        space: Option<u32>,
    },
    ContextShare {
        space: Option<u32>,
        subcontext: Option<u32>,
    },
    Channel(ChannelId),
    Usermode {
        bar1: Option<bool>,
    },
    /// An engine object bound to a channel.
    Engine {
        engine: Option<u32>,
    },
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub parent: u32,
    pub class: u32,
    pub kind: Kind,
    pub children: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// Processes that hold the client: its maker, and forked children. It ends with the last of them.
    pub holders: BTreeSet<u32>,
    pub objects: BTreeMap<u32, Object>,
}

impl Client {
    /// Returns the object and all objects below it, children before their parents.
    pub(crate) fn subtree(&self, handle: u32) -> Vec<u32> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        let mut work = vec![handle];
        while let Some(h) = work.pop() {
            if !seen.insert(h) {
                continue;
            }
            if let Some(object) = self.objects.get(&h) {
                order.push(h);
                work.extend(object.children.iter().copied());
            }
        }
        order.reverse();
        order
    }

    /// Returns the object and its ancestors.
    pub(crate) fn ancestors(&self, handle: u32) -> impl Iterator<Item = (u32, &Object)> {
        let mut next = Some(handle);
        // Parents are never below their children, but a log may claim so.
        let mut left = 32;
        std::iter::from_fn(move || {
            let handle = next?;
            left -= 1;
            let object = self.objects.get(&handle).filter(|_| left > 0)?;
            next = (object.parent != handle).then_some(object.parent);
            Some((handle, object))
        })
    }

    /// Returns the device under which an object is.
    pub(crate) fn device_of(&self, handle: u32) -> Option<u32> {
        self.ancestors(handle)
            .find(|(_, o)| matches!(o.kind, Kind::Device { .. }))
            .map(|(h, _)| h)
    }
}

/// A channel as the model knows it.
#[derive(Clone, Debug)]
pub(crate) struct ChannelObject {
    pub at: At,
    pub id: ChannelId,
    /// Process in which the channel can be read.
    pub pid: u32,
    pub object: Option<ObjectRef>,
    pub class: Option<u32>,
    pub tsg: Option<u32>,
    pub context_share: Option<u32>,
    pub space: Option<Space>,
    pub engine: Option<u32>,
    pub gpu: Option<u32>,
    pub token: Option<u32>,
    pub ring_gpu: Option<GpuVa>,
    pub entries: Option<u32>,
    /// Memory handle of USERD, and the offset of USERD in that memory.
    pub userd_at: Option<(u32, u64)>,
    /// Memory handle of the error notifier, which also holds the token.
    pub notifier: Option<u32>,
    /// Index of the token's record in the notifier.
    pub token_index: u32,
    pub ring: Option<CpuVa>,
    pub userd: Option<CpuVa>,
    pub origin: Origin,
    /// Ring and USERD with which the channel was announced.
    pub announced: Option<(CpuVa, CpuVa)>,
    pub submissions: u64,
    pub gp_get: Option<u32>,
    pub gp_put: Option<u32>,
    /// True if a source named the channel: its number is the one used in the trace.
    pub named: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_words_of_the_h200_log() {
        // A pushbuffer in system memory, and the video memory of the rings.
        assert_eq!(
            attributes(0x4a80_0000),
            (Some(Aperture::System), Some(Caching::WriteCombine))
        );
        assert_eq!(
            attributes(0x1180_0000),
            (Some(Aperture::Video), Some(Caching::Uncached))
        );
    }
}
