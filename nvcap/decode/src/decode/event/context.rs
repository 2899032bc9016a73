//! Source of an event.

use super::{Engine, GpuTime, PartOf};
use crate::record::{At, Calls, ChannelId, How, Identity};

/// The source of a submission and its channel: the same for every event of the submission.
#[derive(Clone, Debug)]
pub struct Context {
    /// Time of the doorbell, process and thread.
    pub at: At,
    /// Thread (or process) name, where known.
    pub thread: Option<std::sync::Arc<str>>,
    /// GPU by device file minor number, where known.
    pub gpu: Option<u32>,
    /// The channel.
    pub channel: ChannelId,
    /// Its work-submit token, where known.
    pub token: Option<u32>,
    /// Channel class (0xc86f), where known.
    pub class: Option<u32>,
    /// The engine the channel runs on.
    pub engine: Engine,
    /// Serial number of the submission in this trace, from 0.
    pub serial: u64,
    /// Way in which it was seen.
    pub how: How,
    /// True if it was fetched later than at its own doorbell.
    pub late: bool,
    /// Latest time at which it is known not to have been in the ring yet, ns: that of the look before, when observed.
    pub absent_ns: Option<u64>,
    /// Name of the labelled time range it falls into (`--phases`).
    pub phase: Option<std::sync::Arc<str>>,
    /// The calls that led to its doorbell (`--stacks`).
    pub stack: Option<std::sync::Arc<Calls>>,
    /// Times at which the GPU worked on each of its entries, as far as they were seen (`--gpu-time`).
    pub gpu_time: Option<std::sync::Arc<[GpuTime]>>,
    /// Parts that its entries are of work that the driver submits on its own account, where one is.
    pub parts: Option<std::sync::Arc<[Option<PartOf>]>>,
    /// Identity of the process, where that was told (`-a`).
    pub identity: Option<std::sync::Arc<Identity>>,
}

impl Context {
    /// Work of the driver that an entry is a part of, by the entry's index in the submission; `None` for the program's own.
    #[must_use]
    pub fn part_of(&self, entry: u32) -> Option<PartOf> {
        *self.parts.as_ref()?.get(entry as usize)?
    }

    /// Index of the last entry of which times are known, 0 where none are: a graph is launched by the last one.
    pub(crate) fn last_entry(&self) -> u32 {
        let entries = self.gpu_time.as_ref().map_or(0, |t| t.len());
        entries.saturating_sub(1) as u32
    }

    /// Returns the time of the GPU's work on the submission: on its first entry that works, or that has times.
    pub fn gpu_time_of_submission(&self) -> Option<&GpuTime> {
        let all = self.gpu_time.as_ref()?;
        all.iter()
            .find(|t| t.works > 0 || !t.is_unknown())
            .or_else(|| all.first())
    }

    /// Returns the time of the GPU's work on an entry, by its index in the submission; `None` where nobody asked for it.
    #[must_use]
    pub fn gpu_time_of(&self, entry: u32) -> Option<&GpuTime> {
        self.gpu_time.as_ref()?.get(entry as usize)
    }
}
