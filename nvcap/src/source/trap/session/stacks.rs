//! Stacks on their way out of their ring buffer, into the queue of those who find their frames. Without `--stacks` nothing is
//! done.

use std::collections::HashSet;

use aya::maps::{MapData, RingBuf};
use nvcap_common::{self as c, kind};

use super::super::assemble;
use crate::stacks::queue::{RawStack, StackQueue};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    to: Option<StackQueue>,
    /// Address spaces whose mappings were put into the queue.
    known: HashSet<u32>,
}

impl Stacks {
    pub(super) fn new(to: Option<StackQueue>) -> Self {
        Self {
            to,
            known: HashSet::new(),
        }
    }

    /// Takes what is in the ring buffer. Called before each record of a submission is taken: a doorbell's stack was put
    /// there before its submission.
    pub(super) fn take(&mut self, ring: &mut RingBuf<MapData>) {
        let Some(to) = &self.to else { return };
        while let Some(item) = ring.next() {
            let Some((stack, bytes)) = parse(&item) else {
                continue;
            };
            // A process may be gone by the time that its first stack's turn comes.
            if self.known.insert(stack.space) {
                to.put_mappings(stack.space, stack.header.pid);
            }
            to.put(RawStack {
                at: assemble::at(&stack.header),
                space: stack.space,
                ip: stack.ip,
                sp: stack.sp,
                fp: stack.fp,
                lr: stack.lr,
                bytes: bytes.to_vec(),
                cut: bytes.len() as u64 == u64::from(stack.wanted),
            });
        }
    }

    /// Passes on how many the BPF programs had no room for.
    pub(super) fn tell_lost(&mut self, stats: &c::Stats) {
        if let Some(to) = &self.to {
            to.add_lost(stats.stacks_lost);
        }
    }
}

/// A stack's record and its bytes; `None` where it is too short or another.
fn parse(bytes: &[u8]) -> Option<(c::Stack, &[u8])> {
    let (fixed, rest) = bytes.split_at_checked(size_of::<c::Stack>())?;
    // SAFETY: `fixed` has the size of a Stack, which is valid for any bits.
    let stack = unsafe { fixed.as_ptr().cast::<c::Stack>().read_unaligned() };
    (stack.header.kind == kind::STACK).then_some(())?;
    Some((stack, rest.get(..stack.header.len as usize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_too_short_are_none() {
        let mut bytes = vec![0; size_of::<c::Stack>() + 8];
        bytes[..2].copy_from_slice(&kind::STACK.to_le_bytes());
        bytes[4] = 8;
        assert_eq!(parse(&bytes).map(|(_, b)| b.len()), Some(8));
        bytes[4] = 9;
        assert!(parse(&bytes).is_none());
        bytes[4] = 8;
        bytes[0] = kind::DATA as u8;
        assert!(parse(&bytes).is_none());
        for n in 0..bytes.len() {
            let _ = parse(&bytes[..n]);
        }
    }
}
