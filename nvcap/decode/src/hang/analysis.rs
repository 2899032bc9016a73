//! Conclusions from a look, as plain data.

use crate::decode::event::{Copy, Launch};
use crate::record::{ChannelId, named};
use crate::wire::GpuVa;

/// A channel's own semaphore, which shows the number of its done steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TrackingSemaphore {
    /// GPU address of the semaphore.
    pub address: GpuVa,
    /// Value now; `None` if its memory could not be read.
    pub value: Option<u64>,
    /// Payload of the newest step that releases the semaphore.
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
    /// Other work: see the step's operations.
    Other,
}

/// The first work that is fetched and not done.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Ring position of the step.
    pub position: u64,
    /// Index of the entry in the ring.
    pub index: u32,
    /// Kind of the work.
    pub kind: WorkKind,
    /// Number of other kernels or copies in the step, any of which may be the running one instead.
    pub others: u32,
    /// Number of later steps of the channel that are not done either.
    pub behind: u64,
    /// True if the channel's semaphore proves that the work is not done. Otherwise it is only the newest fetched step.
    pub certain: bool,
}

/// A release that could end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Releaser {
    /// Channel that makes the release.
    pub channel: ChannelId,
    /// Ring position of the step.
    pub position: u64,
    /// Index of the entry in the ring.
    pub index: u32,
    /// Value that is written.
    pub payload: u64,
    /// True if the release is done.
    pub done: bool,
    /// True if the entry is fetched.
    pub fetched: bool,
    /// True if a kernel makes the release, at its end.
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
    /// Ring position of the step.
    pub position: u64,
    /// Index of the entry in the ring.
    pub index: u32,
    /// GPU address of the semaphore.
    pub address: GpuVa,
    /// Payload for which the channel waits.
    pub payload: u64,
    /// Comparison of the value with the payload.
    pub mode: WaitMode,
    /// True for a payload of 64 bits.
    pub wide: bool,
    /// Value of the semaphore now; `None` if its memory could not be read. The wait is then only possible, not certain.
    pub value: Option<u64>,
    /// Releases that would end the wait and are not done yet.
    pub releasers: Vec<Releaser>,
    /// Releases that would have ended the wait and are done, so that their value was overwritten.
    pub overwritten: Vec<Releaser>,
    /// Newest release of the address, with another payload.
    pub last: Option<Releaser>,
    /// Channel whose own semaphore this is.
    pub owner: Option<ChannelId>,
}

/// One channel with its judgement.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The channel.
    pub id: ChannelId,
    /// Activity of the channel.
    pub state: State,
    /// Own semaphore of the channel.
    pub semaphore: Option<TrackingSemaphore>,
    /// Number of entries that are not fetched.
    pub pending: u32,
    /// Fetched work that is not done.
    pub running: Option<Work>,
    /// Wait that blocks the channel.
    pub wait: Option<Wait>,
}

impl Judged {
    /// Returns the number of the newest submission that is done, as the channel's own semaphore counts them; `None` if the semaphore could
    /// not be read. libcuda's release comes before its kernel starts. If a kernel that the semaphore has passed has not ended, the number
    /// is therefore one less than the semaphore's value.
    #[must_use]
    pub fn done(&self) -> Option<u64> {
        let line = self.semaphore?;
        let passed = |w: &Work| Some(w.position) <= line.done;
        let work = self.running.as_ref().filter(|w| passed(w));
        let runs = work.is_some_and(|w| matches!(w.kind, WorkKind::Kernel(_)));
        let value = line.value? as u32;
        Some(u64::from(value.wrapping_sub(u32::from(runs))))
    }

    /// Tells whether a step is done as far as the semaphore shows, and is not the work that runs.
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
    /// Unfinished work of a channel.
    Work {
        /// The channel.
        channel: ChannelId,
    },
    /// A wait of a channel that no submitted release ends.
    NobodyReleases {
        /// The channel.
        channel: ChannelId,
    },
    /// A cycle of waits.
    Cycle {
        /// Index in [`Analysis::cycles`].
        index: usize,
    },
    /// A channel that has yet to make the release, and that nothing visible holds up.
    AboutTo {
        /// The channel.
        channel: ChannelId,
    },
    /// Unknown, because the semaphore's value could not be read: the channel may not wait at all.
    Unknown,
}

/// A waiting channel and the root cause of its wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Blocked {
    /// The channel.
    pub channel: ChannelId,
    /// Root cause of the wait.
    pub root: Root,
}

/// Channels that wait for one another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cycle {
    /// Channels of which each waits for the next, and the last for the first.
    pub channels: Vec<ChannelId>,
}

/// The result of [`super::analyse()`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Analysis {
    /// Every channel, in the order of the look.
    pub channels: Vec<Judged>,
    /// Waiting channels, each with its root cause.
    pub blocked: Vec<Blocked>,
    /// Cycles of waits.
    pub cycles: Vec<Cycle>,
}

impl Analysis {
    /// Returns a channel's judgement.
    #[must_use]
    pub fn of(&self, id: ChannelId) -> Option<&Judged> {
        self.channels.iter().find(|j| j.id == id)
    }
}
