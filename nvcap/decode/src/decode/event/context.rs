//! Source of an event: process, channel and submission.

use super::{Engine, GpuTime, PartOf};
use crate::record::{At, Calls, ChannelId, How, Identity};

/// The source of a submission and its channel. All events of the submission share it.
#[derive(Clone, Debug)]
pub struct Context {
    /// Time of the doorbell, process and thread.
    pub at: At,
    /// Thread (or process) name, if known.
    pub thread: Option<std::sync::Arc<str>>,
    /// GPU by device file minor number, if known.
    pub gpu: Option<u32>,
    /// The channel.
    pub channel: ChannelId,
    /// Work-submit token of the channel, if known.
    pub token: Option<u32>,
    /// Channel class (0xc86f), if known.
    pub class: Option<u32>,
    /// Engine on which the channel runs.
    pub engine: Engine,
    /// Serial number of the submission in this trace, from 0.
    pub serial: u64,
    /// Way in which the submission was captured.
    pub how: How,
    /// True if the submission was fetched later than at its own doorbell.
    pub late: bool,
    /// Latest time at which the submission is known not to have been in the ring yet, ns. For an observed submission, it is the time of the
    /// look before.
    pub absent_ns: Option<u64>,
    /// Name of the labelled time range that contains the submission (`--phases`).
    pub phase: Option<std::sync::Arc<str>>,
    /// Calls that led to the submission's doorbell (`--stacks`).
    pub stack: Option<std::sync::Arc<Calls>>,
    /// Times at which the GPU worked on each entry of the submission, as far as they were seen (`--gpu-time`).
    pub gpu_time: Option<std::sync::Arc<[GpuTime]>>,
    /// By entry, the work that the driver submits on its own account and that the entry is a part of; `None` if no entry is such a part.
    pub parts: Option<std::sync::Arc<[Option<PartOf>]>>,
    /// Identity of the process, if it was recorded (`-a`).
    pub identity: Option<std::sync::Arc<Identity>>,
}

impl Context {
    /// Returns the work of the driver of which an entry is a part, by the entry's index in the submission; `None` for the program's own
    /// work.
    #[must_use]
    pub fn part_of(&self, entry: u32) -> Option<PartOf> {
        *self.parts.as_ref()?.get(entry as usize)?
    }

    /// Returns the index of the last entry with known times, or 0 if there is none. (A graph is launched by the last entry.)
    pub(crate) fn last_entry(&self) -> u32 {
        let entries = self.gpu_time.as_ref().map_or(0, |t| t.len());
        entries.saturating_sub(1) as u32
    }

    /// Returns the time of the GPU's work on the submission: that of the first entry that works or has times, else that of the first entry.
    pub fn gpu_time_of_submission(&self) -> Option<&GpuTime> {
        let all = self.gpu_time.as_ref()?;
        all.iter()
            .find(|t| t.works > 0 || !t.is_unknown())
            .or_else(|| all.first())
    }

    /// Returns the time of the GPU's work on an entry, by its index in the submission; `None` if times were not asked for.
    #[must_use]
    pub fn gpu_time_of(&self, entry: u32) -> Option<&GpuTime> {
        self.gpu_time.as_ref()?.get(entry as usize)
    }
}
