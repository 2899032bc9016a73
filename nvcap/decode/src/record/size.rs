//! Memory taken by a record.

use super::{Identity, MemoryRange, Record, Stamp, Variable};
use crate::samples::Counter;
use crate::switches::Told;

impl Record {
    /// Returns the approximate number of bytes that the record takes while it waits to be decoded.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Submission(s) => {
                256 + s
                    .segments
                    .iter()
                    .map(|g| g.bytes.len() + 8 * g.holes.len() + 64)
                    .sum::<usize>()
            }
            Self::QmdCopy(i) => 256 + i.bytes.len(),
            Self::Stamps(s) => 256 + s.stamps.len() * size_of::<Stamp>(),
            Self::Samples(s) => 256 + s.counters.len() * size_of::<(u64, Counter)>(),
            Self::Switches(s) => {
                256 + s.told.len() * size_of::<Told>()
                    + s.processes.len() * (256 + size_of::<Identity>())
            }
            Self::Snapshot(l) => {
                512 + l.threads.len() * 4096 + l.memory.len() * size_of::<MemoryRange>()
            }
            Self::Kernel(k) => {
                let of = |v: &Variable| size_of::<Variable>() + v.name.len();
                256 + k.variables.iter().map(of).sum::<usize>()
            }
            Self::Ioctl(i) => 512 + i.input.data.len() + i.output.data.len(),
            _ => 256,
        }
    }
}
