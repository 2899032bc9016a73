//! A work of the GPU, as a profiler's file tells it.

use crate::output::names::{direction, for_driver};
use nvcap_decode::decode::event::{Direction, PartOf};

/// Kind of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A kernel or the replay of a graph, by the name that the file has.
    Kernel(&'a str),
    /// A copy; without a direction where that is not known.
    Copy(Option<Direction>),
    /// A memset.
    Memset,
    /// A copy or memset by which the driver makes a context or loads a module.
    Driver(PartOf),
}

impl What<'_> {
    /// Returns the name of a row of copies; `None` for kernels, which have names of their own.
    pub(crate) fn of_copies(self) -> Option<String> {
        Some(match self {
            Self::Kernel(_) => return None,
            Self::Copy(Some(to)) => format!("copy {}", direction(to)),
            Self::Copy(None) => "copy of a direction that is not known".to_owned(),
            Self::Memset => "memset".to_owned(),
            Self::Driver(part) => for_driver(part).to_owned(),
        })
    }
}

/// A work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work<'a> {
    /// Kind, and name.
    pub what: What<'a>,
    /// The GPU's number, as the profiler counts GPUs.
    pub gpu: Option<u32>,
    /// The stream, by its number.
    pub stream: Option<u32>,
    /// Begin and duration, ns, where both are known.
    pub times: Option<(u64, u64)>,
    /// The most by which these two may be wrong, ns; 0 where that is not told.
    pub errors: (u64, u64),
    /// Bytes that a copy or memset wrote.
    pub bytes: u64,
}
