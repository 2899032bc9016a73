//! Submissions found by a scan of all channels, held back until the scan's end shows whose doorbell it was.
//!
//! Invariant: held submissions of a channel come out in the order in which they came in, before anything later of that
//! channel is passed on; the caller asks with [`HeldSubmissions::has`].

use std::collections::HashMap;

use super::super::assemble::Gathered;

/// Submissions held back, by thread.
#[derive(Debug, Default)]
pub(super) struct HeldSubmissions(HashMap<u32, Vec<Gathered>>);

impl HeldSubmissions {
    /// Holds a submission back.
    pub(super) fn hold(&mut self, g: Gathered) {
        self.0.entry(g.head.header.tid).or_default().push(g);
    }

    /// Whether a submission of the channel is held.
    pub(super) fn has(&self, channel: u32) -> bool {
        let mut all = self.0.values().flatten();
        all.any(|g| g.head.channel == channel)
    }

    /// Takes out the submissions that are to be passed on now.
    pub(super) fn take(&mut self, which: impl Fn(&Gathered) -> bool) -> Vec<Gathered> {
        let mut ready = Vec::new();
        for list in self.0.values_mut() {
            ready.extend(list.extract_if(.., |g| which(g)));
        }
        self.0.retain(|_, list| !list.is_empty());
        ready
    }
}

#[cfg(test)]
mod tests {
    use nvcap_common as c;

    use super::{super::super::assemble::Assembler, *};

    /// A submission of one control entry.
    fn gathered(tid: u32, channel: u32, position: u64) -> Gathered {
        // SAFETY: a record is valid for any bits.
        let mut submit: c::Submit = unsafe { std::mem::zeroed() };
        submit.header.tid = tid;
        (submit.channel, submit.position) = (channel, position);
        (submit.target, submit.count) = (position + 1, 1);
        let mut out = Vec::new();
        Assembler::default().submit(&submit, &mut out);
        out.pop().unwrap()
    }

    #[test]
    fn held_submissions_keep_their_channel_s_order() {
        let mut held = HeldSubmissions::default();
        for (tid, channel, position) in [(1, 7, 0), (1, 8, 0), (1, 7, 1), (2, 9, 4)] {
            held.hold(gathered(tid, channel, position));
        }
        assert!(held.has(7) && !held.has(6));
        let out = held.take(|g| g.head.channel == 7);
        let positions: Vec<u64> = out.iter().map(|g| g.head.position).collect();
        assert_eq!(positions, [0, 1]);
        assert!(!held.has(7) && held.has(8));
        assert_eq!(held.take(|_| true).len(), 2);
        assert!(held.0.is_empty());
    }
}
