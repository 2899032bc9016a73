//! The whole result of one look at processes, as plain data for the outputs.

use super::{Analysis, ChannelFacts, RingState, Thread, Xid};
use crate::record::{ChannelId, Fault};

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Nanoseconds of `CLOCK_MONOTONIC` at its beginning.
    pub time_ns: u64,
    /// Moment that is shown of a trace's recording, ns after the first submission; `None` for a look at running processes. The GPU's progress is then
    /// known only of channels with time stamps, and GP_GET is as it was at a channel's newest doorbell.
    pub trace_ns: Option<u64>,
    /// Duration of the whole look, ns: reading, decoding, judging.
    pub took_ns: u64,
    /// The processes.
    pub processes: Vec<ProcessReport>,
    /// The channels of all of them, decoded.
    pub rings: RingState,
    /// The conclusions.
    pub analysis: Analysis,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct ProcessReport {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its rank in a job of several processes, by the environment that it was started with (RANK and what MPI and Slurm
    /// set).
    pub rank: Option<u32>,
    /// Number of ranks of that job, by the same environment (WORLD_SIZE and others).
    pub ranks: Option<u32>,
    /// The version of its CPython, if it has one whose frames can be read.
    pub python: Option<String>,
    /// The driver's messages about it in the kernel log, oldest first.
    pub xids: Vec<Xid>,
    /// Faults that a trace's recording has of it, oldest first.
    pub faults: Vec<Fault>,
    /// Its threads.
    pub threads: Vec<Thread>,
    /// Facts of finding and reading its channels.
    pub channels: Vec<ChannelFacts>,
    /// Slots that are all zero: channels that were never used, or no channels.
    pub unused: usize,
    /// Notes on what was left out or not resolved.
    pub notes: Vec<String>,
    /// True if the process had ended by the moment that is shown: nothing of it runs any more.
    pub has_ended: bool,
    /// Time for its mappings and for finding its channels, ns.
    pub finding_ns: u64,
    /// Time for its rings and pushbuffers, ns.
    pub reading_ns: u64,
}

impl Report {
    /// Tells whether some of its contents could not be read whole.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.processes
            .iter()
            .flat_map(|p| &p.channels)
            .any(|c| c.ring_gone || c.overwritten + c.elsewhere > 0 || c.unreadable > 0)
    }

    /// The number of the error after which the driver has stopped a channel.
    #[must_use]
    pub fn error_of(&self, id: ChannelId) -> Option<u32> {
        let found = self.facts(id).and_then(|facts| facts.error);
        let mut faults = self.processes.iter().flat_map(|p| &p.faults);
        let its = |f: &&Fault| f.channel == Some(id) || f.group.contains(&id);
        found.or_else(|| faults.find(its).map(|f| f.code))
    }

    /// The facts of a channel.
    #[must_use]
    pub fn facts(&self, id: ChannelId) -> Option<&ChannelFacts> {
        self.processes
            .iter()
            .flat_map(|p| &p.channels)
            .find(|c| c.channel == id)
    }
}
