//! State of a channel in the session, and of the doorbells in an address space.

use std::collections::BTreeMap;

use nvcap_decode::record::{ChannelId, CpuVa};
use nvcap_process::memory::ring;

/// The doorbell words of an address space, by address, each with its GPU where that is known.
#[derive(Debug, Default)]
pub(crate) struct Doorbells(BTreeMap<u64, Option<u32>>);

impl Doorbells {
    /// Adds a word. A GPU that is known stays known.
    pub(crate) fn add(&mut self, address: u64, gpu: Option<u32>) {
        let known = self.0.entry(address).or_default();
        *known = gpu.or(*known);
    }

    /// True if there is no doorbell word.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the GPU of a word, where it is known.
    pub(crate) fn gpu(&self, address: u64) -> Option<u32> {
        self.0.get(&address).copied().flatten()
    }

    /// Returns the words that may ring a channel of this GPU, each with whether it certainly does. (Where one of the two GPUs is
    /// unknown, the word may belong to another GPU.)
    pub(crate) fn of_channel(&self, gpu: Option<u32>) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.0
            .iter()
            .filter(move |(_, own)| may_be_same(**own, gpu))
            .map(move |(address, own)| (*address, own.is_some() && *own == gpu))
    }

    /// Returns the other words of the same GPU, if the GPU of this word is known.
    pub(crate) fn beside(&self, rung: u64) -> Vec<u64> {
        let Some(gpu) = self.gpu(rung) else {
            return Vec::new();
        };
        let same = self.0.iter().filter(|(_, own)| **own == Some(gpu));
        same.map(|(address, _)| *address)
            .filter(|address| *address != rung)
            .collect()
    }
}

/// Tells whether two GPUs may be the same: both are equal, or one is unknown.
pub(crate) fn may_be_same(one: Option<u32>, other: Option<u32>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// A channel in the BPF programs' table.
#[derive(Clone, Debug)]
pub(crate) struct ChannelState {
    /// Number of the channel in the trace; none until it certainly is a channel.
    pub id: Option<ChannelId>,
    /// Number of the channel in the driver model.
    pub model_id: Option<ChannelId>,
    /// Address space.
    pub space: u32,
    /// GPU.
    pub gpu: Option<u32>,
    /// Token, where known.
    pub token: Option<u32>,
    /// True if the driver reported the token; false if the token was inferred.
    pub token_certain: bool,
    /// True if the token was inferred, and doorbells with it have found nothing new since.
    pub token_doubted: bool,
    /// Token that the error notifiers suggest, where the token is not known.
    pub guess: Option<u32>,
    /// Ring entries.
    pub entries: u32,
    /// Address of the ring.
    pub ring: u64,
    /// Address of GP_GET and GP_PUT.
    pub get_put: u64,
    /// The channel record that was last announced, to recognize changes.
    pub announced: nvcap_decode::record::Channel,
    /// Position from which the channel is followed.
    pub start: u64,
    /// Position at which the channel was not yet seen to move: `start`; or, for a ring that counts as a channel by its number
    /// alone, the first position at which it was found.
    pub unmoved: u64,
    /// Position behind the last entry that was passed on or counted as lost.
    pub taken: u64,
    /// Values of `done` and `seen` at the last patrol.
    pub patrolled: (u64, u64),
    /// Number of doorbells that the BPF programs had counted at the last look.
    pub counted: u64,
    /// Number of entries that the last look saw, and whose doorbells seem not to have been counted yet.
    pub unrung: u64,
    /// Numbers of entries that were skipped up to `taken`, and of doorbells, that were not reported yet.
    pub skipped: (u64, u64),
    /// GP_PUT as a position, if the last patrol that could read it found it ahead of the captured entries.
    pub ahead: Option<u64>,
    /// True if the channel's USERD was read from outside while its doorbell was watched: later submissions trapped.
    pub looked: bool,
    /// Number of looks from outside that found GP_PUT beyond the ring.
    pub beyond: u64,
    /// True if the channel lives.
    pub live: bool,
}

impl ChannelState {
    /// Returns the ring index of a position.
    pub(crate) fn index(&self, position: u64) -> u32 {
        (position & (u64::from(self.entries) - 1)) as u32
    }

    /// Returns the first position from `seen` on that has this index: GP_PUT as a position.
    pub(crate) fn position(&self, put: u32, seen: u64) -> u64 {
        ring::position(put, seen, self.entries)
    }
}

/// Returns the address of the doorbell in a USERMODE page.
pub(crate) fn doorbell_of(page: CpuVa) -> u64 {
    page.0 + 0x90
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(of: impl Iterator<Item = (u64, bool)>) -> Vec<(u64, bool)> {
        of.collect()
    }

    #[test]
    fn an_unknown_gpu_is_not_gpu_0() {
        let mut doorbells = Doorbells::default();
        doorbells.add(0x1090, Some(0));
        doorbells.add(0x2090, None);
        doorbells.add(0x3090, Some(1));
        assert_eq!(
            [0x1090, 0x2090, 0x3090, 0x4090].map(|a| doorbells.gpu(a)),
            [Some(0), None, Some(1), None]
        );
        // It may ring a channel of any GPU, and certainly rings none's.
        let of = |gpu| words(doorbells.of_channel(gpu));
        assert_eq!(of(Some(0)), [(0x1090, true), (0x2090, false)]);
        assert_eq!(of(Some(1)), [(0x2090, false), (0x3090, true)]);
        assert_eq!(
            of(None),
            [(0x1090, false), (0x2090, false), (0x3090, false)]
        );
        // Its ringing says nothing against the pages of GPU 0, and the other way round.
        doorbells.add(0x5090, Some(0));
        assert_eq!(doorbells.beside(0x2090), [0; 0]);
        assert_eq!(doorbells.beside(0x1090), [0x5090]);
    }

    #[test]
    fn a_doorbell_s_known_gpu_stays_known() {
        let mut doorbells = Doorbells::default();
        doorbells.add(0x1090, None);
        doorbells.add(0x1090, Some(1));
        doorbells.add(0x1090, None);
        assert_eq!(doorbells.gpu(0x1090), Some(1));
        assert_eq!(words(doorbells.of_channel(Some(1))), [(0x1090, true)]);
        // The address is mapped anew, of another GPU.
        doorbells.add(0x1090, Some(0));
        assert_eq!(words(doorbells.of_channel(Some(1))), []);
    }
}
