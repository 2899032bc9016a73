//! Channels, recorded when they become known.

use super::{At, ChannelId, CpuVa, named};
use crate::wire::GpuVa;

/// A channel that became known to the source. Later records may refer to it by `id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Time at which the channel became known, and the process.
    pub at: At,
    /// Number of the channel in this trace.
    pub id: ChannelId,
    /// Device file minor number of the GPU, if known.
    pub gpu: Option<u32>,
    /// Work-submit token, if known. A later [`Record::Channel`](super::Record::Channel) with the same id may add it.
    pub token: Option<u32>,
    /// Channel class (0xc86f, ...), if known.
    pub class: Option<u32>,
    /// NV2080_ENGINE_TYPE for which the channel was allocated, if known.
    pub engine: Option<u32>,
    /// RM client and object handle, if known.
    pub handle: Option<(u32, u32)>,
    /// GPU address of the ring.
    pub ring_gpu: Option<GpuVa>,
    /// Address of the ring in the process.
    pub ring: Option<CpuVa>,
    /// Number of entries in the ring (a power of two).
    pub entries: Option<u32>,
    /// Address of USERD in the process.
    pub userd: Option<CpuVa>,
    /// Way in which the channel became known.
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
    /// Way in which a channel became known.
    pub enum Origin {
        /// Its allocation, which was seen.
        Allocated = "allocated",
        /// Search of the memory of a process that was already running.
        Found = "found",
        /// Search as for `Found`. The channel's token is taken from the error notifier at the channel's place in the order of channels; no
        /// action of the process has confirmed it.
        Notified = "notified",
        /// The user, who named it (`--channels FILE`).
        Given = "given",
        /// A capture that names it.
        Recorded = "recorded",
    }
}
