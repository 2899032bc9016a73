//! The whole result of one look at processes, as plain data for the outputs.

use super::{Analysis, ChannelFacts, RingState, Thread, Xid};
use crate::record::{ChannelId, Fault};

/// The result of one look.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Time of the beginning of the look, `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// Moment of a trace's recording that is shown, ns after the first submission; `None` for a look at running processes. For a recording,
    /// the GPU's progress is known only of channels with timestamps, and GP_GET is as it was at a channel's newest doorbell.
    pub trace_ns: Option<u64>,
    /// Duration of the whole look, ns: reading, decoding and judging.
    pub took_ns: u64,
    /// Processes that were looked at.
    pub processes: Vec<ProcessReport>,
    /// Decoded channels of all processes.
    pub rings: RingState,
    /// Conclusions from the look.
    pub analysis: Analysis,
}

/// A process that was looked at.
#[derive(Clone, Debug, Default)]
pub struct ProcessReport {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
    /// Rank in a job of several processes, by the environment with which the process was started (RANK, and the variables of MPI and
    /// Slurm).
    pub rank: Option<u32>,
    /// Number of ranks of that job, by the same environment (WORLD_SIZE and others).
    pub ranks: Option<u32>,
    /// Version of the process's CPython, if it has one whose frames can be read.
    pub python: Option<String>,
    /// The driver's messages about the process in the kernel log, oldest first.
    pub xids: Vec<Xid>,
    /// Faults of the process in a trace's recording, oldest first.
    pub faults: Vec<Fault>,
    /// Threads of the process.
    pub threads: Vec<Thread>,
    /// Facts about finding and reading the process's channels.
    pub channels: Vec<ChannelFacts>,
    /// Number of slots that are all zero: channels that were never used, or no channels.
    pub unused: usize,
    /// Notes on parts that were left out or not resolved.
    pub notes: Vec<String>,
    /// True if the process had ended by the moment that is shown: nothing of it runs any more.
    pub has_ended: bool,
    /// Time taken to read its mappings and find its channels, ns.
    pub finding_ns: u64,
    /// Time taken to read its rings and pushbuffers, ns.
    pub reading_ns: u64,
}

impl Report {
    /// Tells whether some of the process's memory could not be read completely.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.processes
            .iter()
            .flat_map(|p| &p.channels)
            .any(|c| c.ring_gone || c.overwritten + c.elsewhere > 0 || c.unreadable > 0)
    }

    /// Returns the number of the error after which the driver has stopped a channel.
    #[must_use]
    pub fn error_of(&self, id: ChannelId) -> Option<u32> {
        let found = self.facts(id).and_then(|facts| facts.error);
        let mut faults = self.processes.iter().flat_map(|p| &p.faults);
        let its = |f: &&Fault| f.channel == Some(id) || f.group.contains(&id);
        found.or_else(|| faults.find(its).map(|f| f.code))
    }

    /// Returns the facts about a channel.
    #[must_use]
    pub fn facts(&self, id: ChannelId) -> Option<&ChannelFacts> {
        self.processes
            .iter()
            .flat_map(|p| &p.channels)
            .find(|c| c.channel == id)
    }
}
