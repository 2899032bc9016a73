//! End of a submission's kernels.
//!
//! The tracking semaphore does not tell it: libcuda's releases are not ordered behind the kernel, and come half a microsecond before it
//! starts. But a kernel's QMD releases a word of its own when the kernel ends. A graph's replay has such a word, too: its submission
//! writes the number before to it.

use super::find::{self, Readable};
use nvcap_decode::decode::event::{InlineContent, LaunchKind, Operation};
use nvcap_decode::wire::GpuVa;
use nvcap_process::procfs::mem::ReadMemory;

/// The words that the kernels of one submission release at their ends, each with the number that the word has then.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    kernels: Vec<(GpuVa, u32)>,
    /// Words to which the submission writes a number, each with the next number, which the kernel's end will release.
    written: Vec<(GpuVa, u32)>,
    /// True if the submission launches kernels whose QMDs are not in its pushbuffer.
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
            Operation::Inline(i)
                if i.bytes == 4 && matches!(i.content, None | Some(InlineContent::Semaphore)) =>
            {
                if let Ok(number) = <[u8; 4]>::try_from(i.head.as_slice()) {
                    let next = u32::from_le_bytes(number).wrapping_add(1);
                    self.written.push((i.dst, next));
                }
            }
            _ => {}
        }
    }

    /// Tells whether the submission replays a graph: its kernels' QMDs are not in it.
    pub(super) fn replays(&self) -> bool {
        self.replays
    }

    /// Tells whether the submission prepares each word that its kernels release. If so, its bytes are those of one submission: nothing in
    /// between is from a newer one.
    pub(super) fn agree(&self) -> bool {
        !self.kernels.is_empty() && self.kernels.iter().all(|k| self.written.contains(k))
    }

    /// The words that tell the end of the kernels: those that the submission writes, or those that its QMDs release.
    pub(super) fn words(&self) -> &[(GpuVa, u32)] {
        // Words that the submission writes are surely its own. The decoder may know a QMD from before, and not that it was changed since.
        let launches = self.replays || !self.kernels.is_empty();
        match launches && !self.written.is_empty() {
            true => &self.written,
            false => &self.kernels,
        }
    }

    /// Tells whether a kernel runs or has still to run; none if no word that tells it can be read.
    pub(super) fn run(&self, memory: &impl ReadMemory, readable: &Readable) -> Option<bool> {
        let open = |(at, end): &(GpuVa, u32)| find::is_open(memory, readable, *at, *end);
        let mut known = self.words().iter().filter_map(open).peekable();
        known.peek()?;
        Some(known.any(|open| open))
    }
}
