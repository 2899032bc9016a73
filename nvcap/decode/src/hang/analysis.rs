//! The conclusions from a look, as plain data.

use crate::decode::event::{Copy, Launch};
use crate::record::{ChannelId, named};
use crate::wire::GpuVa;

/// A channel's own semaphore, which shows how many of its steps are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TrackingSemaphore {
    /// Its GPU address.
    pub address: GpuVa,
    /// Its value now; `None` where its memory could not be read.
    pub value: Option<u64>,
    /// Payload of the newest step that releases it.
    pub newest: u64,
    /// Ring position of the newest done step among those that were read.
    pub done: Option<u64>,
}

/// Activity of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum State {
    /// Everything submitted is fetched, and done as far as is known.
    Idle,
    /// Fetched work is not done, and the channel waits for nothing.
    Running,
    /// The channel waits for a semaphore.
    Waiting,
    /// The channel waits for a semaphore, and earlier work is not done either.
    RunningAndWaiting,
    /// Entries are not fetched, and the reason is unknown.
    Queued,
}

/// The kind of work that is not done.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkKind {
    /// A kernel.
    Kernel(Box<Launch>),
    /// A copy.
    Copy(Box<Copy>),
    /// Neither: see the step's operations.
    Other,
}

/// The first work that is fetched and not done.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Ring position of its step.
    pub position: u64,
    /// Index of its entry in the ring.
    pub index: u32,
    /// Its kind.
    pub kind: WorkKind,
    /// Other kernels or copies in its step that it may be instead.
    pub others: u32,
    /// Number of later steps of the channel that are not done either.
    pub behind: u64,
    /// True if the channel's semaphore proves that it is not done; otherwise it is only the newest fetched step.
    pub certain: bool,
}

/// A release that could end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Releaser {
    /// Channel that makes it.
    pub channel: ChannelId,
    /// Ring position of its step.
    pub position: u64,
    /// Index of its entry in the ring.
    pub index: u32,
    /// Value it writes.
    pub payload: u64,
    /// True if the release is done.
    pub done: bool,
    /// True if its entry is fetched.
    pub fetched: bool,
    /// True if a kernel makes it, at its end.
    pub kernel: bool,
}

named! {
    /// Comparison of the semaphore's value with a wait's payload.
    pub enum WaitMode {
        /// Equal.
        Equal = "==",
        /// Greater or equal.
        GreaterEqual = ">=",
        /// A common bit.
        And = "&",
        /// A bit that neither has.
        Nor = "nor",
    }
}

/// A wait at the head of a channel.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Wait {
    /// Ring position of its step.
    pub position: u64,
    /// Index of its entry in the ring.
    pub index: u32,
    /// GPU address of the semaphore.
    pub address: GpuVa,
    /// Payload that the channel waits for.
    pub payload: u64,
    /// Comparison that it makes.
    pub mode: WaitMode,
    /// True for a payload of 64 bits.
    pub wide: bool,
    /// The semaphore's value now; `None` if its memory could not be read: then the wait is only possible, not certain.
    pub value: Option<u64>,
    /// Releases that would end the wait and are not done.
    pub releasers: Vec<Releaser>,
    /// Releases that would have ended the wait and are done: the value was overwritten.
    pub overwritten: Vec<Releaser>,
    /// The newest release of that address with another payload.
    pub last: Option<Releaser>,
    /// The channel whose own semaphore it is.
    pub owner: Option<ChannelId>,
}

/// One channel, judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The channel.
    pub id: ChannelId,
    /// Its activity.
    pub state: State,
    /// Its own semaphore.
    pub semaphore: Option<TrackingSemaphore>,
    /// Entries that are not fetched.
    pub pending: u32,
    /// Fetched work that is not done.
    pub running: Option<Work>,
    /// The wait that it is in.
    pub wait: Option<Wait>,
}

impl Judged {
    /// Number of the newest submission that is done, as its own semaphore counts them: the semaphore's value, or the one before where a kernel
    /// that the semaphore has passed has not ended (libcuda's release comes before its kernel starts). `None` where the value could not be read.
    #[must_use]
    pub fn done(&self) -> Option<u64> {
        let line = self.semaphore?;
        let passed = |w: &Work| Some(w.position) <= line.done;
        let work = self.running.as_ref().filter(|w| passed(w));
        let runs = work.is_some_and(|w| matches!(w.kind, WorkKind::Kernel(_)));
        let value = line.value? as u32;
        Some(u64::from(value.wrapping_sub(u32::from(runs))))
    }

    /// True for a step that is done as far as the semaphore shows, and is not the work that runs.
    #[must_use]
    pub fn has_done(&self, step: u64) -> bool {
        let passed = self.semaphore.and_then(|line| line.done);
        let runs = self.running.as_ref().is_some_and(|w| w.position == step);
        passed.is_some_and(|last| step <= last) && !runs
    }
}

/// The root cause of a channel's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(tag = "kind", rename_all = "snake_case")
)]
pub enum Root {
    /// Unfinished work of that channel.
    Work {
        /// The channel.
        channel: ChannelId,
    },
    /// Wait of a channel, which no submitted release ends.
    NobodyReleases {
        /// The channel.
        channel: ChannelId,
    },
    /// A cycle, by its index.
    Cycle {
        /// In [`Analysis::cycles`].
        index: usize,
    },
    /// Channel that has the release ahead of it, and no visible obstacle.
    AboutTo {
        /// The channel.
        channel: ChannelId,
    },
    /// The semaphore's value could not be read: it is unknown whether the channel waits.
    Unknown,
}

/// A waiting channel and the root cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Blocked {
    /// The channel.
    pub channel: ChannelId,
    /// The root cause of its wait.
    pub root: Root,
}

/// Channels that wait for one another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cycle {
    /// Each waits for the next, the last for the first.
    pub channels: Vec<ChannelId>,
}

/// The result of [`super::analyse()`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Analysis {
    /// Every channel, in the order of the look.
    pub channels: Vec<Judged>,
    /// Waiting channels, each with its root cause.
    pub blocked: Vec<Blocked>,
    /// The cycles.
    pub cycles: Vec<Cycle>,
}

impl Analysis {
    /// A channel's judgement.
    #[must_use]
    pub fn of(&self, id: ChannelId) -> Option<&Judged> {
        self.channels.iter().find(|j| j.id == id)
    }
}
