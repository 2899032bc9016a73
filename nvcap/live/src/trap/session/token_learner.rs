//! Tokens that were rung, and whose channel the driver's calls did not show. Tells for which token a scan was made, and which
//! doorbells found nothing. The channel of a token is concluded by `token_evidence`.
//!
//! Invariant: a doorbell at which nothing new was found is an orphan, and stays counted until its address space ends.

use std::collections::{HashMap, HashSet};

use nvcap_common::{self as c, TokenKey};

/// Token that a thread rang at a store that was not decoded yet.
#[derive(Clone, Copy, Debug)]
struct AtTrap {
    time_ns: u64,
    token: u32,
}

/// Observations of tokens at doorbells.
#[derive(Debug, Default)]
pub(super) struct TokenLearner {
    /// The newest trap of each thread.
    at_trap: HashMap<u32, AtTrap>,
    /// Tokens at whose doorbells some channel was once found moved alone.
    found: HashSet<TokenKey>,
    /// First parts of scans that were sent in several, by thread: the time, and the values of GP_PUT.
    parts: HashMap<u32, (u64, Vec<c::Put>)>,
    /// Doorbells at which nothing new was found.
    orphans: HashMap<TokenKey, u64>,
    /// Doorbells of channels that the BPF programs did not know yet, and that had not been looked at.
    early: HashMap<TokenKey, u64>,
    /// Tokens that were rung while no channel was known to have them, whatever was found.
    unowned: HashSet<TokenKey>,
}

impl TokenLearner {
    /// Takes note of a thread's trap that rang `token`, and from which its store was decoded.
    pub(super) fn trapped(&mut self, h: &c::Header, token: u32) {
        let time_ns = h.time_ns;
        self.at_trap.insert(h.tid, AtTrap { time_ns, token });
    }

    /// Returns the token for which a scan was made: known to the BPF programs, or decoded from the same trap.
    pub(super) fn rung(&self, r: &c::Scan) -> Option<u32> {
        if r.token != c::NO_TOKEN {
            return Some(r.token);
        }
        self.rung_at(&r.header)
    }

    /// Returns the token that was rung at a trap from which its store was decoded.
    pub(super) fn rung_at(&self, h: &c::Header) -> Option<u32> {
        let trap = self.at_trap.get(&h.tid);
        trap.filter(|t| t.time_ns == h.time_ns).map(|t| t.token)
    }

    /// Returns everything that a scan has seen up to this record: the whole scan, unless this is a part.
    pub(super) fn puts(&mut self, r: &c::Scan) -> Vec<c::Put> {
        let before = self.parts.remove(&r.header.tid);
        let before = before.filter(|(time_ns, _)| *time_ns == r.header.time_ns);
        let mut puts = before.map_or_else(Vec::new, |(_, puts)| puts);
        let noted = (r.noted as usize).min(c::PUTS);
        puts.extend(r.puts.iter().take(noted));
        if r.header.flags & c::flag::PART != 0 {
            let part = (r.header.time_ns, std::mem::take(&mut puts));
            self.parts.insert(r.header.tid, part);
        }
        puts
    }

    /// Takes note that a scan found one channel alone moved. It is most likely the one that was rung.
    pub(super) fn found(&mut self, key: TokenKey) {
        self.found.insert(key);
    }

    /// Takes note that a doorbell found nothing new.
    pub(super) fn orphan(&mut self, key: TokenKey) {
        *self.orphans.entry(key).or_default() += 1;
    }

    /// Takes note of a doorbell for a known channel that the BPF programs learnt of later, and that had not been looked at.
    pub(super) fn early(&mut self, key: TokenKey) {
        *self.early.entry(key).or_default() += 1;
    }

    /// Takes note of a rung token that no known channel has.
    pub(super) fn rung_unowned(&mut self, key: TokenKey) {
        self.unowned.insert(key);
    }

    /// Returns the tokens of a space that were rung while no channel was known to have them.
    pub(super) fn unowned_of(&self, space: u32) -> impl Iterator<Item = &TokenKey> {
        let all = self.unowned.iter();
        all.filter(move |key| key.space == space)
    }

    /// Tells whether a channel was ever found moved alone at the token's doorbell.
    pub(super) fn was_found(&self, key: &TokenKey) -> bool {
        self.found.contains(key)
    }

    /// Returns the number of rung tokens in the space without a known channel. `aside`: doorbells without a moved channel that are
    /// still to be handled.
    pub(super) fn without_channel(
        &self,
        space: u32,
        aside: impl Iterator<Item = TokenKey>,
    ) -> usize {
        let all = self.orphans.keys().copied().chain(aside);
        let without = all.filter(|key| key.space == space && !self.was_found(key));
        without.collect::<HashSet<_>>().len()
    }

    /// Takes the orphans and the early doorbells of these address spaces, with their counts.
    pub(super) fn take_orphans(&mut self, of: impl Fn(u32) -> bool) -> Vec<(TokenKey, u64)> {
        let mut all: HashMap<TokenKey, u64> = HashMap::new();
        for counts in [&mut self.orphans, &mut self.early] {
            for (key, count) in counts.extract_if(|key, _| of(key.space)) {
                *all.entry(key).or_default() += count;
            }
        }
        all.into_iter().collect()
    }

    /// Forgets the observations in an address space that is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.found.retain(|key| key.space != space);
        self.unowned.retain(|key| key.space != space);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn key(space: u32, token: u32) -> TokenKey {
        TokenKey {
            doorbell: 0x90,
            space,
            token,
        }
    }

    fn scan(time_ns: u64, token: u32) -> c::Scan {
        c::Scan {
            header: c::Header {
                tid: 5,
                time_ns,
                ..c::Header::default()
            },
            token,
            advanced: 1,
            channel: 0,
            space: 1,
            doorbell: 0x90,
            ip: 0,
            trust: 0,
            noted: 0,
            puts: [c::Put::default(); c::PUTS],
        }
    }

    #[test]
    fn what_was_found_is_kept_by_address_space() {
        let mut learner = TokenLearner::default();
        for space in [1, 2, 1] {
            learner.found(key(space, 7));
        }
        learner.forget_space(1);
        assert!(!learner.was_found(&key(1, 7)) && learner.was_found(&key(2, 7)));
    }

    #[test]
    fn a_trap_s_token_is_used_for_its_own_scan_only() {
        let mut learner = TokenLearner::default();
        learner.trapped(&scan(100, 0).header, 9);
        assert_eq!(learner.rung(&scan(100, c::NO_TOKEN)), Some(9));
        assert_eq!(learner.rung(&scan(101, c::NO_TOKEN)), None);
        assert_eq!(learner.rung(&scan(101, 4)), Some(4));
    }

    #[test]
    fn the_parts_of_a_scan_are_joined() {
        let mut learner = TokenLearner::default();
        let part = |time_ns, channel, flags| {
            let mut r = scan(time_ns, 7);
            r.header.flags = flags;
            (r.noted, r.puts[0].channel) = (1, channel);
            r
        };
        let channels = |puts: Vec<c::Put>| puts.iter().map(|p| p.channel).collect::<Vec<_>>();
        learner.puts(&part(100, 1, c::flag::PART));
        learner.puts(&part(100, 2, c::flag::PART));
        assert_eq!(channels(learner.puts(&part(100, 3, 0))), [1, 2, 3]);
        learner.puts(&part(101, 1, c::flag::PART));
        assert_eq!(
            channels(learner.puts(&part(102, 3, 0))),
            [3],
            "another doorbell's"
        );
        let mut wrong = part(103, 1, 0);
        wrong.noted = u32::MAX;
        assert_eq!(learner.puts(&wrong).len(), c::PUTS);
    }

    #[test]
    fn unowned_tokens_are_kept_by_address_space() {
        let mut learner = TokenLearner::default();
        for (space, token) in [(1, 7), (1, 7), (1, 8), (2, 7)] {
            learner.rung_unowned(key(space, token));
        }
        let of = |learner: &TokenLearner, space| -> BTreeSet<u32> {
            learner.unowned_of(space).map(|key| key.token).collect()
        };
        assert_eq!(of(&learner, 1), BTreeSet::from([7, 8]));
        assert_eq!(of(&learner, 2), BTreeSet::from([7]));
        learner.forget_space(1);
        assert!(of(&learner, 1).is_empty() && !of(&learner, 2).is_empty());
    }

    #[test]
    fn a_token_without_channel_counts_once() {
        let mut learner = TokenLearner::default();
        for (space, token) in [(1, 7), (1, 7), (1, 8), (2, 7)] {
            learner.orphan(key(space, token));
        }
        learner.found(key(1, 8));
        let aside = [key(1, 7), key(1, 9), key(2, 3)];
        assert_eq!(learner.without_channel(1, aside.into_iter()), 2);
        assert_eq!(learner.take_orphans(|space| space == 2), [(key(2, 7), 1)]);
        let left: HashMap<_, _> = learner.take_orphans(|_| true).into_iter().collect();
        assert_eq!(left, HashMap::from([(key(1, 7), 2), (key(1, 8), 1)]));
    }
}
