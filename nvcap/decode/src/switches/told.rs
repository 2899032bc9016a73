//! News of a GPU's context switches, and the times at which they were taken.

use super::record::Switch;

/// Users whose processes the driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All users. To a client that is not root, it reports other users' slices without their process, and at inexact times.
    AllUsers,
    /// The client's own user.
    OwnUser,
}

/// News from a GPU, in the order in which they happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A record.
    Switch(Switch),
    /// Number of records that are missing here.
    Missing(u64),
    /// Bytes that are no record of this kind.
    Strange,
    /// A process that had an engine has ended by this GPU time, ns, and all its records were given. (The driver may not report this end.)
    Ended {
        /// The process.
        pid: u32,
        /// GPU time, ns.
        by_ns: u64,
    },
}

impl Told {
    /// The most by which news may be later than a clock that was read before them, ns.
    const LATEST_NS: u64 = 10_000_000_000;

    /// Checks news of a GPU whose clock was read about then. A record of a much later time counts as not understood, because nothing could
    /// be summed up until that time.
    #[must_use]
    pub fn by(self, now: u64) -> Self {
        let time = match self {
            Self::Switch(switch) => switch.time_ns,
            Self::Ended { by_ns, .. } => by_ns,
            Self::Missing(_) | Self::Strange => 0,
        };
        match time <= now.saturating_add(Self::LATEST_NS) {
            true => self,
            false => Self::Strange,
        }
    }
}

/// The GPU's time (PTIMER) at a time of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Time of the host, `CLOCK_MONOTONIC`, ns: the middle between question and answer.
    pub host_ns: u64,
    /// Time of the GPU, ns.
    pub gpu_ns: u64,
    /// Half of the time between question and answer, ns.
    pub error_ns: u64,
}
