//! When and for how long the GPU worked on an entry, as far as it was seen.

use crate::wire::GpuVa;

/// A moment on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GpuMoment {
    /// `CLOCK_MONOTONIC` of the host, ns.
    pub host_ns: u64,
    /// The most by which `host_ns` may be wrong, ns.
    pub host_error_ns: u64,
    /// The GPU's own clock (PTIMER), ns.
    pub gpu_ns: u64,
    /// The most by which `gpu_ns` may be wrong, ns.
    pub gpu_error_ns: u64,
}

/// What told when work began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum StartBy {
    /// The entry's own stamp, which the channel writes when the work begins.
    OwnStamp,
    /// The stamp behind the work of the entry before it, for which it waited.
    PreviousStamp,
    /// The release of a semaphore for which it waited.
    Release,
    /// Its doorbell: its engine had nothing else to do.
    Doorbell,
}

impl StartBy {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OwnStamp => "own-stamp",
            Self::PreviousStamp => "previous-stamp",
            Self::Release => "release",
            Self::Doorbell => "doorbell",
        }
    }
}

/// What told since when an entry was in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum QueuedBy {
    /// Its own doorbell.
    Doorbell,
    /// It was found later, by a look or another doorbell: it came after the look before that.
    Look,
}

impl QueuedBy {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Doorbell => "doorbell",
            Self::Look => "look",
        }
    }
}

/// What told a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum DurationBy {
    /// The stamp of the next entry of the channel, which was in the ring already when this one ended.
    NextStamp,
    /// The semaphore that the kernel releases at its end: when its change was seen.
    Release,
    /// The entry's own stamp, which its engine writes behind the work.
    OwnStamp,
}

impl DurationBy {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NextStamp => "next-stamp",
            Self::Release => "release",
            Self::OwnStamp => "own-stamp",
        }
    }
}

/// A duration on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GpuDuration {
    /// ns.
    pub ns: u64,
    /// The most by which it may be wrong, ns.
    pub error_ns: u64,
    /// What told it.
    pub by: DurationBy,
}

/// The times of one entry of a ring. What was not seen is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GpuTime {
    /// When the GPU began the work.
    pub start: Option<GpuMoment>,
    /// What told that; `None` where it is not known.
    pub start_by: Option<StartBy>,
    /// For how long it worked.
    pub duration: Option<GpuDuration>,
    /// How long the entry waited from its doorbell until then, ns: at least and at most.
    pub queued: Option<(u64, u64)>,
    /// What told since when it waited; `None` where that time is not known.
    pub queued_by: Option<QueuedBy>,
    /// Until when it had to wait, on the GPU's clock, ns: the entry before it in the channel had not ended, or a semaphore that
    /// it waits for was not released.
    pub ready_gpu_ns: Option<u64>,
    /// The semaphore that it waited for when it was there and the entry before it had ended.
    pub wait: Option<GpuWait>,
    /// How many launches and copies the entry has; a graph's replay is one. The times are of all of them together.
    pub works: u32,
}

/// A wait for a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GpuWait {
    /// Its address.
    pub semaphore: GpuVa,
    /// For how long, ns.
    pub ns: u64,
}

impl GpuTime {
    /// When the work ended, on the GPU's clock, ns.
    #[must_use]
    pub fn end_gpu_ns(&self) -> Option<u64> {
        Some(self.start?.gpu_ns + self.duration?.ns)
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        let works = self.works;
        *self
            == Self {
                works,
                ..Self::default()
            }
    }

    /// For how long the GPU worked on the entry's only launch or copy: of several together none has a duration of its own.
    #[must_use]
    pub fn alone(&self) -> Option<GpuDuration> {
        self.duration.filter(|_| self.works <= 1)
    }
}
