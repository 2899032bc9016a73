//! Events that the caller of a decoder wants, the caller's knowledge of addresses, and the decoder's counts.

use super::event::{Memory, Place};
use crate::wire::GpuVa;

/// Kinds of events to emit. Unwanted events are not made, and cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// [`Body::Entry`](super::event::Body::Entry).
    pub entries: bool,
    /// [`Body::Method`](super::event::Body::Method).
    pub methods: bool,
    /// [`Body::Operation`](super::event::Body::Operation).
    pub operations: bool,
}

impl Default for Wants {
    fn default() -> Self {
        Self {
            entries: true,
            methods: true,
            operations: true,
        }
    }
}

/// The caller's knowledge of the places of addresses.
pub trait Places {
    /// Returns the location of the memory at `va` of process `pid`; `None` if unknown.
    fn place(&self, pid: u32, va: GpuVa) -> Option<Place>;

    /// Returns true if nothing of the driver's is known at `va`: the process has no mapping there, unlike for pinned and managed memory.
    fn is_unmapped(&self, _pid: u32, _va: GpuVa) -> bool {
        false
    }

    /// Returns true if a process with one GPU has reserved `va` and mapped nothing there, as libcuda does for the GPU's own memory.
    fn is_reserved(&self, _pid: u32, _va: GpuVa) -> bool {
        false
    }

    /// Returns the memory object at an address; `None` if unknown.
    fn memory(&self, _pid: u32, _va: GpuVa) -> Option<Memory> {
        None
    }
}

/// Knows nothing of addresses.
impl Places for () {
    fn place(&self, _: u32, _: GpuVa) -> Option<Place> {
        None
    }
}

/// Counts of a decoder. They are always kept, whichever events are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Submissions.
    pub submissions: u64,
    /// GPFIFO entries, control entries included.
    pub entries: u64,
    /// Control entries.
    pub controls: u64,
    /// Pushbuffer bytes, including missing ones.
    pub bytes: u64,
    /// Method writes, including masked ones.
    pub methods: u64,
    /// Runs: method headers with their data.
    pub runs: u64,
    /// Method writes skipped by the subdevice mask.
    pub masked: u64,
    /// Method writes to a subchannel without a class, or with a class that the tables do not have. They are not counted by method.
    pub classless: u64,
    /// Entries that were not read to their end.
    pub stops: u64,
    /// Launches of kernels of the program and of the driver, including nodes of graphs and unresolved launches. This and the following
    /// counts are kept only if operations are wanted.
    pub launches: u64,
    /// Part of `launches`: kernels of the program, which CUPTI counts as kernels.
    pub kernels: u64,
    /// Part of `launches`: nodes of graph replays.
    pub nodes: u64,
    /// Part of `launches`: launches whose QMD was not seen.
    pub unresolved: u64,
    /// Part of `launches`: launches whose QMD is known from the process's memory.
    pub qmds_from_memory: u64,
    /// Graph replays.
    pub graphs: u64,
}
