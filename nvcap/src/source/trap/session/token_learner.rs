//! Which token belongs to which channel, where the driver's calls did not show it: inferred from the channels that moved
//! when a token was rung.
//!
//! Invariant: a token is taken for a channel's once two scans in a row for that token agree; until then it is a guess. A
//! doorbell at which nothing new was found is an orphan, and stays counted until its address space ends.

use std::collections::{BTreeSet, HashMap, HashSet};

use nvcap_common::{self as c, TokenKey};

/// The token that a thread rang at a store that was not decoded yet.
#[derive(Clone, Copy, Debug)]
struct AtTrap {
    time_ns: u64,
    token: u32,
}

/// The channel that last moved at a token's doorbell.
#[derive(Clone, Copy, Debug)]
struct Guess {
    channel: u32,
    /// How many times in a row.
    times: u32,
}

/// What doorbells show of tokens.
#[derive(Debug, Default)]
pub(super) struct TokenLearner {
    /// The newest trap of each thread.
    at_trap: HashMap<u32, AtTrap>,
    guesses: HashMap<TokenKey, Guess>,
    /// Doorbells at which nothing new was found.
    orphans: HashMap<TokenKey, u64>,
    /// Doorbells of channels that the BPF programs did not know yet and that had not been looked at.
    early: HashMap<TokenKey, u64>,
}

impl TokenLearner {
    /// A thread's trap, from which its store was decoded, rang `token`.
    pub(super) fn trapped(&mut self, h: &c::Header, token: u32) {
        let time_ns = h.time_ns;
        self.at_trap.insert(h.tid, AtTrap { time_ns, token });
    }

    /// The token that a scan was for: known to the BPF programs, or decoded from the same trap.
    pub(super) fn rung(&self, r: &c::Scan) -> Option<u32> {
        if r.token != c::NO_TOKEN {
            return Some(r.token);
        }
        let trap = self.at_trap.get(&r.header.tid);
        trap.filter(|t| t.time_ns == r.header.time_ns)
            .map(|t| t.token)
    }

    /// The channel that a scan found moved is taken for the one that was rung. That is wrong when another thread had moved
    /// a channel without ringing yet, and the entries of the rung channel were fetched before. True when this scan and the
    /// one before it agree.
    pub(super) fn agrees(&mut self, key: TokenKey, channel: u32) -> bool {
        let first = Guess { channel, times: 0 };
        let guess = self.guesses.entry(key).or_insert(first);
        if guess.channel != channel {
            *guess = first;
        }
        guess.times += 1;
        guess.times > 1
    }

    /// A doorbell found nothing new.
    pub(super) fn orphan(&mut self, key: TokenKey) {
        *self.orphans.entry(key).or_default() += 1;
    }

    /// A doorbell was rung for a known channel that the BPF programs learnt of later and that had not been looked at.
    pub(super) fn early(&mut self, key: TokenKey) {
        *self.early.entry(key).or_default() += 1;
    }

    /// Whether a channel was ever found moved at the token's doorbell.
    pub(super) fn is_guessed(&self, key: &TokenKey) -> bool {
        self.guesses.contains_key(key)
    }

    /// The channels that last moved at some doorbell.
    pub(super) fn guessed_channels(&self) -> BTreeSet<u32> {
        self.guesses.values().map(|g| g.channel).collect()
    }

    /// How many tokens without a known channel were rung in the space. `aside`: doorbells without a moved channel that are
    /// still to be handled.
    pub(super) fn without_channel(
        &self,
        space: u32,
        aside: impl Iterator<Item = TokenKey>,
    ) -> usize {
        let all = self.orphans.keys().copied().chain(aside);
        let without = all.filter(|key| key.space == space && !self.is_guessed(key));
        without.collect::<HashSet<_>>().len()
    }

    /// Takes out the orphans and the early doorbells of these address spaces, with their counts.
    pub(super) fn take_orphans(&mut self, of: impl Fn(u32) -> bool) -> Vec<(TokenKey, u64)> {
        let mut all: HashMap<TokenKey, u64> = HashMap::new();
        for counts in [&mut self.orphans, &mut self.early] {
            for (key, count) in counts.extract_if(|key, _| of(key.space)) {
                *all.entry(key).or_default() += count;
            }
        }
        all.into_iter().collect()
    }

    /// Forgets the guesses of an address space that is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.guesses.retain(|key, _| key.space != space);
    }
}

#[cfg(test)]
mod tests {
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
        }
    }

    #[test]
    fn two_looks_in_a_row_must_agree() {
        let mut learner = TokenLearner::default();
        assert!(!learner.agrees(key(1, 7), 0));
        assert!(!learner.agrees(key(1, 7), 3), "another channel moved");
        assert!(!learner.agrees(key(2, 7), 3), "another address space");
        assert!(learner.agrees(key(1, 7), 3));
        assert!(!learner.agrees(key(1, 7), 0));
        assert_eq!(learner.guessed_channels(), BTreeSet::from([0, 3]));
        learner.forget_space(1);
        assert!(!learner.is_guessed(&key(1, 7)) && learner.is_guessed(&key(2, 7)));
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
    fn a_token_without_channel_counts_once() {
        let mut learner = TokenLearner::default();
        for (space, token) in [(1, 7), (1, 7), (1, 8), (2, 7)] {
            learner.orphan(key(space, token));
        }
        learner.agrees(key(1, 8), 0);
        let aside = [key(1, 7), key(1, 9), key(2, 3)];
        assert_eq!(learner.without_channel(1, aside.into_iter()), 2);
        assert_eq!(learner.take_orphans(|space| space == 2), [(key(2, 7), 1)]);
        let left: HashMap<_, _> = learner.take_orphans(|_| true).into_iter().collect();
        assert_eq!(left, HashMap::from([(key(1, 7), 2), (key(1, 8), 1)]));
    }
}
