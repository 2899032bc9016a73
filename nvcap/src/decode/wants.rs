//! What the caller of a decoder wants, knows, and gets counted.

use super::event::{Memory, Place};
use crate::wire::GpuVa;

/// What is to be told. What is not wanted is not made, and costs nothing.
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

/// What the caller knows of where addresses lie.
pub trait Places {
    /// Where the memory at `va` of process `pid` lies; `None` where that is not known.
    fn place(&self, pid: u32, va: GpuVa) -> Option<Place>;

    /// What memory that is; `None` where that is not known.
    fn memory(&self, _pid: u32, _va: GpuVa) -> Option<Memory> {
        None
    }
}

/// Nothing is known.
impl Places for () {
    fn place(&self, _: u32, _: GpuVa) -> Option<Place> {
        None
    }
}

/// What went through a decoder: always counted, whatever is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Submissions.
    pub submissions: u64,
    /// GPFIFO entries, control entries included.
    pub entries: u64,
    /// Control entries.
    pub controls: u64,
    /// Pushbuffer bytes, the missing ones included.
    pub bytes: u64,
    /// Method writes, masked ones included.
    pub methods: u64,
    /// Runs: method headers with their data.
    pub runs: u64,
    /// Method writes skipped by the subdevice mask.
    pub masked: u64,
    /// Method writes to a subchannel whose class the tables do not have, or that has none: these are not counted by
    /// method.
    pub classless: u64,
    /// Stops.
    pub stops: u64,
    /// Launches of kernels of the program and of the driver, nodes of graphs and unresolved ones included. This and the
    /// following are counted only where operations are wanted.
    pub launches: u64,
    /// Of them, kernels of the program: what CUPTI counts as kernels.
    pub kernels: u64,
    /// Of them, nodes of graph replays.
    pub nodes: u64,
    /// Of them, those whose QMD was not seen.
    pub unresolved: u64,
    /// Of them, those whose QMD is known from the process's memory.
    pub images: u64,
    /// Graph replays.
    pub graphs: u64,
}
