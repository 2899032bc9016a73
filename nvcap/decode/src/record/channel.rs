//! Channels as they become known.

use super::{At, ChannelId, CpuVa, named};
use crate::wire::GpuVa;

/// A channel became known to the source: later records may name it by `id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Time when it became known, and the process.
    pub at: At,
    /// Its number in this trace.
    pub id: ChannelId,
    /// Device file minor number of its GPU, where known.
    pub gpu: Option<u32>,
    /// Work-submit token, where known. A later [`Record::Channel`](super::Record::Channel) with the same id may add it.
    pub token: Option<u32>,
    /// Channel class (0xc86f, ...), where known.
    pub class: Option<u32>,
    /// NV2080_ENGINE_TYPE it was allocated for, where known.
    pub engine: Option<u32>,
    /// RM client and object handle, where known.
    pub handle: Option<(u32, u32)>,
    /// The ring's address for the GPU.
    pub ring_gpu: Option<GpuVa>,
    /// The ring's address in the process.
    pub ring: Option<CpuVa>,
    /// Entries in the ring (a power of two).
    pub entries: Option<u32>,
    /// USERD's address in the process.
    pub userd: Option<CpuVa>,
    /// Way in which it was learnt.
    pub origin: Origin,
}

impl Channel {
    /// Makes a channel of which nothing else is known.
    #[must_use]
    pub const fn bare(at: At, id: ChannelId, origin: Origin) -> Self {
        Self {
            at,
            id,
            gpu: None,
            token: None,
            class: None,
            engine: None,
            handle: None,
            ring_gpu: None,
            ring: None,
            entries: None,
            userd: None,
            origin,
        }
    }
}

named! {
    /// Way in which a channel was learnt.
    pub enum Origin {
        /// Its allocation was seen.
        Allocated = "allocated",
        /// Found in the memory of a process that was already running.
        Found = "found",
        /// Found in the memory of a running process, as `Found`, and its token is that of the error notifier at its place in the
        /// order of channels: no action of the process has confirmed it.
        Notified = "notified",
        /// The user named it (`--channels FILE`).
        Given = "given",
        /// A capture names it.
        Recorded = "recorded",
    }
}
