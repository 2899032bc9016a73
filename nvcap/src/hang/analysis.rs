//! What is concluded of a look, as plain data.

use crate::decode::event::{Copy, Launch};
use crate::record::{ChannelId, named};
use crate::wire::GpuVa;

/// A channel's own semaphore, by which its steps are told done or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TrackingSemaphore {
    /// Its GPU address.
    pub address: GpuVa,
    /// Its value now; `None` where its memory could not be read.
    pub value: Option<u64>,
    /// Payload of the newest step that releases it.
    pub newest: u64,
    /// Ring position of the newest step that is done, of those that were read.
    pub done: Option<u64>,
}

/// What a channel is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum State {
    /// Everything submitted is fetched, and done as far as can be told.
    Idle,
    /// Fetched work is not done, and nothing is waited for.
    Running,
    /// It waits for a semaphore.
    Waiting,
    /// It waits for a semaphore, with work before that which is not done.
    RunningAndWaiting,
    /// Entries are not fetched, and what it is at cannot be told.
    Queued,
}

/// What kind of work is not done.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WorkKind {
    /// A kernel.
    Kernel(Box<Launch>),
    /// A copy.
    Copy(Box<Copy>),
    /// Neither: what it is the step's operations say.
    Other,
}

/// The first work that is fetched and not done.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Work {
    /// Ring position of its step.
    pub position: u64,
    /// Index of its entry in the ring.
    pub index: u32,
    /// What it is.
    pub kind: WorkKind,
    /// Kernels or copies in its step that may be meant instead.
    pub others: u32,
    /// Steps of the channel behind it that are not done either.
    pub behind: u64,
    /// The channel's semaphore proves that it is not done; else it is only the newest fetched.
    pub certain: bool,
}

/// A release that a wait looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Releaser {
    /// Channel that does it.
    pub channel: ChannelId,
    /// Ring position of its step.
    pub position: u64,
    /// Index of its entry in the ring.
    pub index: u32,
    /// What it writes.
    pub payload: u64,
    /// It is done.
    pub done: bool,
    /// Its entry is fetched.
    pub fetched: bool,
    /// A kernel does it, at its end.
    pub kernel: bool,
}

named! {
    /// How a wait compares the semaphore's value with its payload.
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
#[non_exhaustive]
pub struct Wait {
    /// Ring position of its step.
    pub position: u64,
    /// Index of its entry in the ring.
    pub index: u32,
    /// GPU address of the semaphore.
    pub address: GpuVa,
    /// Payload that is waited for.
    pub payload: u64,
    /// How it compares.
    pub mode: WaitMode,
    /// 64-bit payload.
    pub wide: bool,
    /// The semaphore's value now; `None` where its memory could not be read, and then the wait is a possible one only.
    pub value: Option<u64>,
    /// Releases that would let it pass and are not done.
    pub releasers: Vec<Releaser>,
    /// Releases that would have let it pass and are done: something overwrote them.
    pub overwritten: Vec<Releaser>,
    /// The newest release of that address with another payload.
    pub last: Option<Releaser>,
    /// The channel whose own semaphore it is.
    pub owner: Option<ChannelId>,
}

/// One channel, judged.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Judged {
    /// The channel.
    pub id: ChannelId,
    /// What it is at.
    pub state: State,
    /// Its own semaphore.
    pub semaphore: Option<TrackingSemaphore>,
    /// Entries that are not fetched.
    pub pending: u32,
    /// Fetched work that is not done.
    pub running: Option<Work>,
    /// What it waits for.
    pub wait: Option<Wait>,
}

/// What a waiting channel waits for in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(tag = "kind", rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Root {
    /// Work of that channel which is not done.
    Work {
        /// The channel.
        channel: ChannelId,
    },
    /// The wait of that channel, which nothing submitted releases.
    NobodyReleases {
        /// The channel.
        channel: ChannelId,
    },
    /// A cycle, by its index.
    Cycle {
        /// In [`Analysis::cycles`].
        index: usize,
    },
    /// That channel has the release ahead of it and nothing in its way that can be seen.
    AboutTo {
        /// The channel.
        channel: ChannelId,
    },
    /// The semaphore's value could not be read: whether it waits at all is not known.
    Unknown,
}

/// A waiting channel and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Blocked {
    /// The channel.
    pub channel: ChannelId,
    /// What it waits for in the end.
    pub root: Root,
}

/// Channels that wait for one another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cycle {
    /// Each waits for the next, the last for the first.
    pub channels: Vec<ChannelId>,
}

/// What [`super::analyse()`] found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Analysis {
    /// Every channel, in the order of the look.
    pub channels: Vec<Judged>,
    /// Who waits, and for what in the end.
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
