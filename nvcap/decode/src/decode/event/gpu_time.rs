//! Begin and duration of the GPU's work on an entry, as far as they were seen.

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

/// Evidence for the begin of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
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

/// Evidence for the time since which an entry was in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
pub enum QueuedBy {
    /// Its own doorbell.
    Doorbell,
    /// A look or another doorbell, which found the entry later: it came after the look before that.
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

/// Evidence for a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
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
    /// Evidence for the duration.
    pub by: DurationBy,
}

/// The execution of kernels: without the launch, which CUPTI and nsys count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GpuExec {
    /// Moment at which the first instruction ran.
    pub start: GpuMoment,
    /// Time for which instructions ran.
    pub duration: Option<GpuDuration>,
}

/// The part of an entry's time in which its process did not have the engine, by the driver's record of context switches ([`crate::switches`]): no work of
/// the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
pub enum Preempted {
    /// Holders of the GPU were not recorded, or the work was not the graphics and compute engine's.
    #[default]
    NotRecorded,
    /// Holders of the GPU were recorded, but not for this time.
    Unknown,
    /// Length of that part, ns.
    Ns(u64),
}

/// The times of one entry of a ring. What was not seen is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GpuTime {
    /// Begin of the GPU's work: of kernels, the write of their launch's stamp, which is where CUPTI and nsys count from.
    pub start: Option<GpuMoment>,
    /// Evidence for `start`; `None` where the start is not known.
    pub start_by: Option<StartBy>,
    /// Time from its begin to its end; [`Self::worked`] leaves out what was preempted.
    pub duration: Option<GpuDuration>,
    /// The part of `duration` in which others had the GPU.
    pub preempted: Preempted,
    /// The execution of its kernels; `None` of what has no first instruction, such as copies.
    pub exec: Option<GpuExec>,
    /// Time that the entry waited from its doorbell until then, ns: at least and at most.
    pub queued: Option<(u64, u64)>,
    /// Evidence for the time since which the entry waited; `None` where that time is not known.
    pub queued_by: Option<QueuedBy>,
    /// Time up to which the entry had to wait, on the GPU's clock, ns: the entry before it in the channel had not ended, or a semaphore that it waits
    /// for was not released.
    pub ready_gpu_ns: Option<u64>,
    /// The semaphore that it waited for when it was there and the entry before it had ended.
    pub wait: Option<GpuWait>,
    /// Launches and copies that the entry has; a graph's replay is one. The times are of all of them together.
    pub works: u32,
    /// End of the work, where that is told without its begin.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub ended: Option<GpuMoment>,
    /// The times from the stamp, where those above are the execution's ([`Self::by_exec`]).
    #[cfg_attr(feature = "serde", serde(skip))]
    pub by_stamp: Option<ByStamp>,
}

/// Times that are counted from a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByStamp {
    start: Option<GpuMoment>,
    duration: Option<GpuDuration>,
    queued: Option<(u64, u64)>,
}

/// A wait for a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GpuWait {
    /// Its address.
    pub semaphore: GpuVa,
    /// Duration of the wait, ns.
    pub ns: u64,
}

impl GpuTime {
    /// Returns the end of the work, on the GPU's clock, ns.
    #[must_use]
    pub fn end_gpu_ns(&self) -> Option<u64> {
        Some(self.start?.gpu_ns.saturating_add(self.duration?.ns))
    }

    /// Returns these times with kernels counted from their first instruction (`--exec-time`).
    #[must_use]
    pub fn by_exec(self) -> Self {
        let Some((exec, stamp)) = self.exec.zip(self.start) else {
            return self;
        };
        // The launch is time in the queue, then.
        let launch = exec.start.gpu_ns.saturating_sub(stamp.gpu_ns);
        let error = exec.start.gpu_error_ns;
        let queued = self.queued.map(|(least, most)| {
            let least = least.saturating_add(launch.saturating_sub(error));
            (least, most.saturating_add(launch).saturating_add(error))
        });
        Self {
            start: Some(exec.start),
            duration: exec.duration,
            queued,
            by_stamp: Some(ByStamp {
                start: self.start,
                duration: self.duration,
                queued: self.queued,
            }),
            ..self
        }
    }

    /// Tells whether these times are the execution's ([`Self::by_exec`]).
    #[must_use]
    pub fn is_by_exec(&self) -> bool {
        self.by_stamp.is_some()
    }

    /// Returns these times with kernels counted from their launch's stamp, whatever is shown.
    #[must_use]
    pub fn by_stamp(self) -> Self {
        let Some(by_stamp) = self.by_stamp else {
            return self;
        };
        let ByStamp {
            start,
            duration,
            queued,
        } = by_stamp;
        Self {
            start,
            duration,
            queued,
            by_stamp: None,
            ..self
        }
    }

    /// Returns the time from a launch's stamp to its kernel's first instruction, ns.
    #[must_use]
    pub fn launch(&self) -> Option<u64> {
        let start = self.by_stamp().start?;
        Some(self.exec?.start.gpu_ns.saturating_sub(start.gpu_ns))
    }

    /// Returns the time for which the instructions of the entry's launches ran.
    #[must_use]
    pub fn executed(&self) -> Option<GpuDuration> {
        let duration = self.exec?.duration;
        duration.map(|d| self.without_preempted(d))
    }

    /// Returns the time for which the instructions of the entry's only launch ran.
    #[must_use]
    pub fn exec_alone(&self) -> Option<GpuDuration> {
        self.executed().filter(|_| self.works <= 1)
    }

    /// Returns the time for which the GPU worked on the entry: its duration without the time in which others had the GPU.
    #[must_use]
    pub fn worked(&self) -> Option<GpuDuration> {
        self.duration.map(|d| self.without_preempted(d))
    }

    /// Returns the time in which others had the GPU, as far as that is known, ns.
    #[must_use]
    pub fn preempted_ns(&self) -> u64 {
        match self.preempted {
            Preempted::Ns(ns) => ns,
            Preempted::NotRecorded | Preempted::Unknown => 0,
        }
    }

    fn without_preempted(&self, duration: GpuDuration) -> GpuDuration {
        let ns = duration.ns.saturating_sub(self.preempted_ns());
        let ns = ns.max(duration.ns.min(1));
        GpuDuration { ns, ..duration }
    }

    /// Tells whether nothing is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self
            == Self {
                works: self.works,
                ended: self.ended,
                ..Self::default()
            }
    }

    /// Returns the time for which the GPU worked on the entry's only launch or copy; where there are several, none has a duration of its own.
    #[must_use]
    pub fn alone(&self) -> Option<GpuDuration> {
        self.worked().filter(|_| self.works <= 1)
    }
}
