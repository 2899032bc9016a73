//! Part of the captured bytes that was understood: the second measure of the ledger, besides the missing parts.

use crate::decode::Counts;

/// Part of the captured bytes that was understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Understanding {
    /// Kernels of the program that were launched, as CUPTI counts them.
    pub kernels: u64,
    /// Number of launches, including kernels of the driver and unresolved ones.
    pub launches: u64,
    /// Part of `launches`: nodes of graph replays.
    pub nodes: u64,
    /// Graph replays.
    pub graphs: u64,
    /// Launches whose QMD is known from the process's memory.
    pub qmds_from_memory: u64,
    /// Launches whose QMD was not seen.
    pub unresolved: u64,
    /// Method writes.
    pub methods: u64,
    /// Method writes to an unknown class.
    pub classless: u64,
    /// Entries that could not be read to their end.
    pub stops: u64,
}

impl Understanding {
    /// Tells whether everything was understood.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.unresolved == 0 && self.classless == 0 && self.stops == 0
    }
}

impl From<Counts> for Understanding {
    fn from(counts: Counts) -> Self {
        Self {
            kernels: counts.kernels,
            launches: counts.launches,
            nodes: counts.nodes,
            graphs: counts.graphs,
            qmds_from_memory: counts.qmds_from_memory,
            unresolved: counts.unresolved,
            methods: counts.methods,
            classless: counts.classless,
            stops: counts.stops,
        }
    }
}
