//! Submissions that are held back until their doorbell is known. They were found by a scan of all channels, or by a token
//! that is a guess. They are held until the scan's end shows the doorbell, the channel's token is concluded, or a time has
//! passed.
//!
//! Invariant: held submissions of a channel come out in the order in which they came in, before anything later of that
//! channel is passed on. The caller asks with [`HeldSubmissions::has`].

use std::collections::BTreeMap;

use super::super::assemble::Gathered;

/// Longest time for which a submission is held, ns.
const HOLD_NS: u64 = 50_000_000;
/// Most submissions of a channel that are held.
const MOST: usize = 512;

/// A submission held back.
#[derive(Debug)]
struct HeldSubmission {
    since: u64,
    submission: Gathered,
}

/// Submissions held back, by channel.
#[derive(Debug, Default)]
pub(super) struct HeldSubmissions(BTreeMap<u32, Vec<HeldSubmission>>);

impl HeldSubmissions {
    /// Holds a submission back from `now` on.
    pub(super) fn hold(&mut self, submission: Gathered, now: u64) {
        let since = now;
        let channel = submission.head.channel;
        let all = self.0.entry(channel).or_default();
        all.push(HeldSubmission { since, submission });
    }

    /// Tells whether a submission of the channel is held.
    pub(super) fn has(&self, channel: u32) -> bool {
        self.0.contains_key(&channel)
    }

    /// Tells whether no more of the channel's submissions can be held.
    pub(super) fn is_full(&self, channel: u32) -> bool {
        self.0.get(&channel).is_some_and(|all| all.len() >= MOST)
    }

    /// Returns the channels with a held submission that this thread's doorbells found, or any thread's.
    pub(super) fn channels(&self, of: Option<u32>) -> Vec<u32> {
        let is_its = |h: &HeldSubmission| of.is_none_or(|tid| h.submission.head.header.tid == tid);
        let all = self.0.iter().filter(|(_, held)| held.iter().any(is_its));
        all.map(|(channel, _)| *channel).collect()
    }

    /// Takes the held submissions of a channel.
    pub(super) fn take(&mut self, channel: u32) -> Vec<Gathered> {
        let all = self.0.remove(&channel).unwrap_or_default();
        all.into_iter().map(|h| h.submission).collect()
    }

    /// Takes the held submissions of the channels whose first one was held for too long.
    pub(super) fn take_old(&mut self, now: u64) -> Vec<Gathered> {
        let is_old = |held: &Vec<HeldSubmission>| {
            let first = held.first().map_or(0, |h| h.since);
            now.saturating_sub(first) > HOLD_NS
        };
        let old = self.0.iter().filter(|(_, held)| is_old(held));
        let old: Vec<u32> = old.map(|(channel, _)| *channel).collect();
        old.into_iter().flat_map(|c| self.take(c)).collect()
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

    fn positions(of: &[Gathered]) -> Vec<u64> {
        of.iter().map(|g| g.head.position).collect()
    }

    #[test]
    fn held_submissions_keep_their_channel_s_order() {
        let mut held = HeldSubmissions::default();
        // Found by several threads.
        for (tid, channel, position) in [(1, 7, 0), (1, 8, 0), (3, 7, 1), (2, 9, 4), (1, 7, 2)] {
            held.hold(gathered(tid, channel, position), 10);
        }
        assert!(held.has(7) && !held.has(6));
        assert_eq!(held.channels(Some(1)), [7, 8]);
        assert_eq!(held.channels(Some(3)), [7]);
        assert_eq!(positions(&held.take(7)), [0, 1, 2]);
        assert!(!held.has(7) && held.take(7).is_empty());
        assert_eq!(held.channels(None), [8, 9]);
    }

    #[test]
    fn they_are_held_for_a_while_and_not_too_many() {
        let mut held = HeldSubmissions::default();
        for n in 0..MOST as u64 {
            assert!(!held.is_full(7));
            held.hold(gathered(1, 7, n), 10 + n);
        }
        assert!(held.is_full(7) && !held.is_full(8));
        held.hold(gathered(1, 8, 0), 15);
        assert!(held.take_old(10 + HOLD_NS).is_empty());
        assert_eq!(held.take_old(11 + HOLD_NS).len(), MOST);
        assert!(!held.has(7) && held.has(8));
    }
}
