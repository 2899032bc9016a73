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

/// Evidence for the beginning of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
pub enum StartBy {
    /// The entry's own stamp, which the channel writes when the work begins.
    OwnStamp,
    /// The stamp behind the work of the previous entry, for which this entry waited.
    PreviousStamp,
    /// The release of a semaphore for which the entry waited.
    Release,
    /// The entry's doorbell: its engine had nothing else to do.
    Doorbell,
}

impl StartBy {
    /// Returns the name in JSON.
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
    /// The entry's own doorbell.
    Doorbell,
    /// A look or another doorbell, which found the entry later. The entry came after the look before that.
    Look,
}

impl QueuedBy {
    /// Returns the name in JSON.
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
    /// The stamp of the channel's next entry, which was already in the ring when this entry ended.
    NextStamp,
    /// The semaphore that the kernel releases at its end: the time at which its change was seen.
    Release,
    /// The entry's own stamp, which its engine writes behind the work.
    OwnStamp,
}

impl DurationBy {
    /// Returns the name in JSON.
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
    /// Duration, ns.
    pub ns: u64,
    /// The most by which `ns` may be wrong, ns.
    pub error_ns: u64,
    /// Evidence for the duration.
    pub by: DurationBy,
}

/// The execution of kernels without the launch (the times of CUPTI and nsys include the launch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GpuExec {
    /// Moment at which the first instruction ran.
    pub start: GpuMoment,
    /// Time for which instructions ran.
    pub duration: Option<GpuDuration>,
}

/// Part of an entry's time in which another process had the engine, by the driver's record of context switches ([`crate::switches`]). It is
/// not work of the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "kebab-case")
)]
pub enum Preempted {
    /// The holders of the GPU were not recorded, or the work did not run on the graphics and compute engine.
    #[default]
    NotRecorded,
    /// The holders of the GPU were recorded, but not at this time.
    Unknown,
    /// Length of the part, ns.
    Ns(u64),
}

/// The times of one ring entry. A time that was not seen is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GpuTime {
    /// Beginning of the GPU's work. For kernels it is the moment at which their launch's stamp is written, from which CUPTI and nsys count,
    /// too.
    pub start: Option<GpuMoment>,
    /// Evidence for `start`; `None` if the start is not known.
    pub start_by: Option<StartBy>,
    /// Time from beginning to end. [`Self::worked`] leaves out the time for which the work was preempted.
    pub duration: Option<GpuDuration>,
    /// Part of `duration` in which others had the GPU.
    pub preempted: Preempted,
    /// Execution of the entry's kernels; `None` for work without a first instruction, such as copies.
    pub exec: Option<GpuExec>,
    /// Time from the entry's doorbell to `start`, ns: lower and upper bound.
    pub queued: Option<(u64, u64)>,
    /// Evidence for the time since which the entry waited; `None` if that time is not known.
    pub queued_by: Option<QueuedBy>,
    /// Time, on the GPU's clock, until which the entry had to wait, ns: the previous entry of the channel had not ended, or a semaphore
    /// that the entry waits for was not released.
    pub ready_gpu_ns: Option<u64>,
    /// Semaphore for which the entry waited after its submission and after the end of the previous entry.
    pub wait: Option<GpuWait>,
    /// Number of launches and copies in the entry. A graph's replay counts as one. The times are those of all of them together.
    pub works: u32,
    /// End of the work, if it is known without the beginning.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub ended: Option<GpuMoment>,
    /// The times counted from the stamp, if the other members are those of the execution ([`Self::by_exec`]).
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
    /// Address of the semaphore.
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

    /// Returns these times with kernels counted from their first instruction on (`--exec-time`).
    #[must_use]
    pub fn by_exec(self) -> Self {
        let Some((exec, stamp)) = self.exec.zip(self.start) else {
            return self;
        };
        // The launch then counts as time in the queue.
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

    /// Returns these times with kernels counted from their launch's stamp on, whichever of the two is shown.
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

    /// Returns the time for which the GPU worked on the entry: the duration less the time in which others had the GPU.
    #[must_use]
    pub fn worked(&self) -> Option<GpuDuration> {
        self.duration.map(|d| self.without_preempted(d))
    }

    /// Returns the time in which others had the GPU, as far as it is known, ns.
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

    /// Returns the time for which the GPU worked on the entry's only launch or copy; `None` if there are several, because then none has a
    /// duration of its own.
    #[must_use]
    pub fn alone(&self) -> Option<GpuDuration> {
        self.worked().filter(|_| self.works <= 1)
    }
}
