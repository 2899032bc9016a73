//! Whether a submission's kernels have ended.
//!
//! The tracking semaphore does not say so: libcuda's releases are not ordered behind the kernel, and come half a microsecond before it
//! starts. Its QMD releases a word of its own at its end; a graph's replay has such a word too, to which its submission writes the number
//! before.

use super::find::{self, Readable};
use crate::decode::event::{LaunchKind, Operation};
use crate::procfs::mem::Peek;
use crate::wire::GpuVa;

/// The words that the kernels of one submission release at their ends, with the numbers that these have then.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    kernels: Vec<(GpuVa, u32)>,
    /// Words that the submission writes, with the numbers that follow.
    written: Vec<(GpuVa, u32)>,
    /// It has launches whose QMDs it does not have.
    replays: bool,
}

impl Ends {
    /// Takes in an operation of the submission.
    pub(super) fn operation(&mut self, operation: &Operation) {
        match operation {
            Operation::Launch(l) if l.kind == LaunchKind::Unresolved => self.replays = true,
            Operation::Launch(l) if l.kind != LaunchKind::Companion => {
                let releases = l.releases.iter().map(|r| (r.address, r.payload as u32));
                self.kernels.extend(releases);
            }
            Operation::Graph(_) => self.replays = true,
            // QMDs that lie in memory are scheduled.
            Operation::Barrier(b)
                if b.what.starts_with("pcas_") && b.what.ends_with("schedule") =>
            {
                self.replays = true;
            }
            Operation::Inline(i) if i.bytes == 4 && i.content.is_none() => {
                if let Ok(number) = <[u8; 4]>::try_from(i.head.as_slice()) {
                    let next = u32::from_le_bytes(number).wrapping_add(1);
                    self.written.push((i.dst, next));
                }
            }
            _ => {}
        }
    }

    /// It replays a graph: its kernels' QMDs are not in it.
    pub(super) fn replays(&self) -> bool {
        self.replays
    }

    /// What a kernel releases at its end is what the submission makes ready for it: they are of one submission, and no bytes between
    /// them are a newer one's.
    pub(super) fn agree(&self) -> bool {
        !self.kernels.is_empty() && self.kernels.iter().all(|k| self.written.contains(k))
    }

    /// The words of its own, or those of its kernels.
    pub(super) fn words(&self) -> &[(GpuVa, u32)] {
        // What the submission itself makes ready is its own; a QMD may be one that was seen before, of which a newer one is not known.
        let launches = self.replays || !self.kernels.is_empty();
        match launches && !self.written.is_empty() {
            true => &self.written,
            false => &self.kernels,
        }
    }

    /// Whether one of them runs or is still to run; none where no word tells it.
    pub(super) fn run(&self, memory: &impl Peek, readable: &Readable) -> Option<bool> {
        let open = |(at, end): &(GpuVa, u32)| {
            let number = readable
                .holds(at.0, 4)
                .then(|| find::number(memory, at.0))??;
            Some(number.wrapping_sub(*end).cast_signed() < 0)
        };
        let mut known = self.words().iter().filter_map(open).peekable();
        known.peek()?;
        Some(known.any(|open| open))
    }
}
