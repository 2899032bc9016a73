//! Evidence from doorbells about the channel of a token, however many threads submit at once.
//!
//! At each doorbell of a token, the channel that it rings has moved since the doorbell before: its GP_PUT differs. This holds even if another
//! doorbell's scan has taken the entries meanwhile. Another channel may have moved too, but not each time. So a channel that has once stood still
//! between two doorbells of a token is hardly the token's. Decides only; must not read or write memory.
//!
//! Invariant: only doorbells at which some channel had moved are counted.

use std::collections::HashMap;

use nvcap_common::{Put, TokenKey};

/// Number of doorbells without a conclusion after which those seen are forgotten, because a program's behaviour may change.
const WINDOW: u32 = 64;
/// Number of doorbells after which the token's channel may be an unknown one.
const PATIENCE: u32 = 16;
/// Number of times that each other channel must have stood still, and the number if a guess from another source agrees.
const NEEDED: u32 = 2;
const NEEDED_OF_GUESS: u32 = 1;
/// Number of doorbells that are needed if all other channels that moved as often are concluded to have other tokens (one thread that submits to
/// several channels in turn); and the number if a guess from another source agrees.
const NEEDED_BESIDE_OWNED: u32 = 8;
const NEEDED_BESIDE_OWNED_OF_GUESS: u32 = 2;

/// A channel that a token may ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: u32,
    /// Ring entries.
    pub(super) entries: u32,
    /// GP_PUT where the channel began to be followed.
    pub(super) start: u32,
    /// Token that the channel was concluded to have, if that is not in doubt.
    pub(super) has: Option<u32>,
    /// Token of the channel that the error notifiers suggest.
    pub(super) guess: Option<u32>,
}

/// Movement of a channel at the doorbells of one token.
#[derive(Clone, Copy, Debug)]
struct Track {
    put: u32,
    /// Number of doorbells at which it stood still.
    still: u32,
    /// Number of entries by which it moved.
    moved: u64,
}

/// Basis of a conclusion.
#[derive(Clone, Copy, Debug)]
struct Proof {
    doorbells: u32,
    moved: u64,
}

impl Proof {
    /// Tells whether this proof is better: twice as many doorbells, and no more entries at each. (The token of a channel is rung at each submission,
    /// so that the channel moves less at its own token's doorbells than at those of any other token.)
    fn is_better_than(self, other: Proof) -> bool {
        let by_doorbell = |moved: u64, of: u32| moved.saturating_mul(of.into());
        self.doorbells >= other.doorbells.saturating_mul(2)
            && by_doorbell(self.moved, other.doorbells) <= by_doorbell(other.moved, self.doorbells)
    }
}

/// Observations at the doorbells of a token.
#[derive(Debug, Default)]
struct TokenObservations {
    tracks: HashMap<u32, Track>,
    doorbells: u32,
    /// True if the doorbells before belonged to another conclusion: nothing is compared with the start of the trace.
    is_later: bool,
    proof: Option<Proof>,
}

/// Observations at the doorbells of all tokens.
#[derive(Debug, Default)]
pub(super) struct TokenEvidence(HashMap<TokenKey, TokenObservations>);

impl TokenEvidence {
    /// Takes the GP_PUT of each channel at a doorbell of a token, without the channels that never moved. Returns the channel that the token rings,
    /// once that is certain enough.
    pub(super) fn see(
        &mut self,
        key: TokenKey,
        puts: &[Put],
        candidates: &[Candidate],
    ) -> Option<u32> {
        let seen = self.0.entry(key).or_default();
        seen.note(puts, candidates);
        let (best, proof) = seen.best(key.token, candidates)?;
        if best.has == Some(key.token) {
            // Concluded before, and this is from before the BPF programs knew.
            return None;
        }
        let owner = best.has.filter(|token| *token != key.token);
        // It may have been concluded at another doorbell page.
        let mut all = self.0.iter();
        let owner = all.find_map(|(k, seen)| {
            let is_it = k.space == key.space && Some(k.token) == owner;
            Some((*k, seen.proof?)).filter(|_| is_it)
        });
        if let Some((owner, its_proof)) = owner {
            if !proof.is_better_than(its_proof) {
                return None;
            }
            self.restart(owner);
        }
        self.restart(key);
        if let Some(seen) = self.0.get_mut(&key) {
            seen.proof = Some(proof);
        }
        Some(best.index)
    }

    /// Tells whether the channel of a token may be an unknown one: none of the known ones has moved at the token's doorbells, or enough doorbells did
    /// not show which one it is.
    pub(super) fn may_be_unknown(&self, key: &TokenKey) -> bool {
        let doorbells = self.0.get(key).map_or(0, |seen| seen.doorbells);
        doorbells == 0 || doorbells >= PATIENCE
    }

    /// Begins again with a token whose conclusion is in doubt.
    pub(super) fn restart(&mut self, key: TokenKey) {
        let seen = TokenObservations {
            is_later: true,
            ..TokenObservations::default()
        };
        self.0.insert(key, seen);
    }

    /// Forgets an address space that is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.0.retain(|key, _| key.space != space);
    }
}

impl TokenObservations {
    fn note(&mut self, puts: &[Put], candidates: &[Candidate]) {
        if self.doorbells >= WINDOW {
            *self = Self {
                is_later: true,
                proof: self.proof,
                ..Self::default()
            };
        }
        let is_first = self.tracks.is_empty() && self.is_later;
        let mut any = false;
        let mut still = Vec::new();
        let puts: HashMap<u32, u32> = puts.iter().map(|p| (p.channel, p.put)).collect();
        for candidate in candidates {
            let now = puts.get(&candidate.index).copied();
            let now = now.unwrap_or(candidate.start);
            let track = self.tracks.entry(candidate.index).or_insert(Track {
                put: if is_first { now } else { candidate.start },
                still: 0,
                moved: 0,
            });
            let by = now.wrapping_sub(track.put) & candidate.entries.wrapping_sub(1);
            track.put = now;
            track.moved += u64::from(by);
            any |= by != 0;
            if by == 0 {
                still.push(candidate.index);
            }
        }
        if !any {
            return;
        }
        self.doorbells += 1;
        for index in still {
            if let Some(track) = self.tracks.get_mut(&index) {
                track.still += 1;
            }
        }
    }

    /// Returns the channel that has stood still far less often than any other.
    fn best(&self, token: u32, candidates: &[Candidate]) -> Option<(Candidate, Proof)> {
        self.best_of(token, candidates)
            .or_else(|| self.best_beside_owned(token, candidates))
    }

    fn still(&self, of: &Candidate) -> u32 {
        self.tracks.get(&of.index).map_or(0, |t| t.still)
    }

    fn best_of(&self, token: u32, candidates: &[Candidate]) -> Option<(Candidate, Proof)> {
        let best = candidates.iter().min_by_key(|c| self.still(c))?;
        let track = self.tracks.get(&best.index)?;
        let others = candidates.iter().filter(|c| c.index != best.index);
        let next = others.map(|c| self.still(c)).min().unwrap_or(u32::MAX);
        let needed = match best.guess == Some(token) && track.still == 0 {
            true => NEEDED_OF_GUESS,
            false => NEEDED,
        };
        let enough = 2 * track.still + needed;
        let proof = Proof {
            doorbells: self.doorbells,
            moved: track.moved,
        };
        let is_it = next >= enough && self.doorbells >= needed && 2 * track.still < self.doorbells;
        is_it.then_some((*best, proof))
    }

    /// Returns the best of the channels without another token, which moved each time.
    fn best_beside_owned(
        &self,
        token: u32,
        candidates: &[Candidate],
    ) -> Option<(Candidate, Proof)> {
        let is_free = |c: &&Candidate| c.has.is_none_or(|has| has == token);
        let free: Vec<Candidate> = candidates.iter().filter(is_free).copied().collect();
        let found = self.best_of(token, &free);
        found.filter(|(best, proof)| {
            let needed = match best.guess == Some(token) {
                true => NEEDED_BESIDE_OWNED_OF_GUESS,
                false => NEEDED_BESIDE_OWNED,
            };
            self.still(best) == 0 && proof.doorbells >= needed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u32 = 8;

    fn key(token: u32) -> TokenKey {
        TokenKey {
            doorbell: 0x90,
            space: 1,
            token,
        }
    }

    fn puts(of: &[u32]) -> Vec<Put> {
        let all = of.iter().zip(0..);
        all.map(|(put, channel)| Put {
            channel,
            put: put % ENTRIES,
        })
        .collect()
    }

    /// Makes channels with the tokens that they are concluded to have.
    fn channels(has: &[Option<u32>]) -> Vec<Candidate> {
        let all = has.iter().zip(0..);
        all.map(|(has, index)| Candidate {
            index,
            entries: ENTRIES,
            start: 0,
            has: *has,
            guess: None,
        })
        .collect()
    }

    #[test]
    fn one_channel_that_moves_alone_is_certain_at_its_second_doorbell() {
        let mut e = TokenEvidence::default();
        let three = channels(&[None; 3]);
        assert_eq!(e.see(key(7), &puts(&[0, 1, 0]), &three), None);
        assert_eq!(e.see(key(7), &puts(&[0, 2, 0]), &three), Some(1));
        // With a guess that says the same, at its first; a guess that says otherwise counts for nothing.
        let mut guessed = three.clone();
        guessed[1].guess = Some(8);
        assert_eq!(e.see(key(8), &puts(&[0, 3, 0]), &guessed), Some(1));
        guessed[2].guess = Some(9);
        assert_eq!(e.see(key(9), &puts(&[1, 3, 0]), &guessed), None);
    }

    #[test]
    fn one_thread_that_submits_to_two_channels_in_turn() {
        let mut e = TokenEvidence::default();
        // Channel 0 has its token; it moves between all doorbells of channel 1.
        let mut two = channels(&[Some(7), None]);
        for n in 1..8 {
            assert_eq!(e.see(key(8), &puts(&[n, n]), &two), None, "{n}");
        }
        assert_eq!(e.see(key(8), &puts(&[1, 8]), &two), Some(1));
        two[1].guess = Some(9);
        assert_eq!(e.see(key(9), &puts(&[1, 1]), &two), None);
        assert_eq!(e.see(key(9), &puts(&[2, 2]), &two), Some(1));
    }

    #[test]
    fn moves_of_other_threads_delay_and_do_not_mislead() {
        let mut e = TokenEvidence::default();
        let two = channels(&[None; 2]);
        // Channel 0 moves with each doorbell, faster than channel 1, which is rung; then it pauses.
        for at in [[3, 1], [5, 2], [6, 3], [9, 4], [9, 5]] {
            assert_eq!(e.see(key(7), &puts(&at), &two), None, "{at:?}");
        }
        assert_eq!(e.see(key(7), &puts(&[9, 6]), &two), Some(1));
    }

    #[test]
    fn a_channel_that_stood_still_between_late_doorbells_may_be_it() {
        let mut e = TokenEvidence::default();
        let two = channels(&[None; 2]);
        let mut at = [0, 0];
        let mut concluded = None;
        for n in 0..40 {
            // One in four doorbells of channel 1 finds nothing, as another thread rang for it before; channel 0 is slower.
            at[1] += u32::from(n % 4 != 3);
            at[0] += u32::from(n % 4 == 3);
            concluded = concluded.or(e.see(key(7), &puts(&at), &two));
        }
        assert_eq!(concluded, Some(1));
    }

    #[test]
    fn doorbells_at_which_nothing_moves_are_no_evidence() {
        let mut e = TokenEvidence::default();
        let two = channels(&[None; 2]);
        for _ in 0..200 {
            assert_eq!(e.see(key(7), &puts(&[0, 0]), &two), None);
        }
        assert_eq!(e.see(key(7), &puts(&[0, 1]), &two), None);
        assert_eq!(e.see(key(7), &puts(&[0, 2]), &two), Some(1));
    }

    #[test]
    fn what_is_not_noted_never_moved() {
        let mut e = TokenEvidence::default();
        let three = channels(&[None; 3]);
        assert_eq!(e.see(key(7), &puts(&[0, 1]), &three), None);
        assert_eq!(e.see(key(7), &puts(&[0, 2]), &three), Some(1));
        assert_eq!(e.see(key(8), &[], &three), None);
        assert!(e.may_be_unknown(&key(8)), "nothing moved");
        e.see(key(8), &puts(&[0, 2]), &three);
        assert!(!e.may_be_unknown(&key(8)), "entries that another scan took");
    }

    #[test]
    fn the_token_of_an_unknown_channel_takes_none_for_long() {
        let mut e = TokenEvidence::default();
        let free = channels(&[None; 2]);
        // Channel 1 is another token's and three times as fast.
        assert_eq!(e.see(key(7), &puts(&[0, 3]), &free), None);
        assert_eq!(e.see(key(7), &puts(&[0, 6]), &free), Some(1));
        let taken = channels(&[None, Some(7)]);
        let found: Vec<_> = (7..=10)
            .map(|put| e.see(key(8), &puts(&[0, put]), &taken))
            .collect();
        assert_eq!(found.last(), Some(&Some(1)), "{found:?}");
        // The first one does not get it back.
        let taken = channels(&[None, Some(8)]);
        for n in 0..200 {
            assert_eq!(e.see(key(7), &puts(&[0, 10 + 3 * n]), &taken), None);
        }
    }

    #[test]
    fn a_conclusion_in_doubt_is_made_anew() {
        let mut e = TokenEvidence::default();
        let two = channels(&[None; 2]);
        e.see(key(7), &puts(&[0, 1]), &two);
        assert_eq!(e.see(key(7), &puts(&[0, 2]), &two), Some(1));
        e.restart(key(7));
        // Nothing is concluded from what was there before.
        assert_eq!(e.see(key(7), &puts(&[5, 2]), &two), None);
        assert_eq!(e.see(key(7), &puts(&[6, 2]), &two), None);
        assert_eq!(e.see(key(7), &puts(&[7, 2]), &two), Some(0));
        e.forget_space(1);
        assert!(e.0.is_empty());
    }
}
