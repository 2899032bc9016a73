//! State of a channel in the session, and of the doorbells in an address space.

use std::collections::BTreeMap;

use nvcap_decode::record::{ChannelId, CpuVa};
use nvcap_process::memory::ring;

/// The doorbell words of an address space, by address, each with its GPU where that is known.
#[derive(Debug, Default)]
pub(crate) struct Doorbells(BTreeMap<u64, Option<u32>>);

impl Doorbells {
    /// Adds a word. A known GPU stays known.
    pub(crate) fn add(&mut self, address: u64, gpu: Option<u32>) {
        let known = self.0.entry(address).or_default();
        *known = gpu.or(*known);
    }

    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The GPU of a word, where known.
    pub(crate) fn gpu(&self, address: u64) -> Option<u32> {
        self.0.get(&address).copied().flatten()
    }

    /// The words that may ring a channel of this GPU, and whether each certainly does: where one of the two GPUs is
    /// unknown, the word may belong to another GPU.
    pub(crate) fn of_channel(&self, gpu: Option<u32>) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.0
            .iter()
            .filter(move |(_, own)| may_be_same(**own, gpu))
            .map(move |(address, own)| (*address, own.is_some() && *own == gpu))
    }

    /// The other words of the GPU that a word is known to belong to.
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

/// Tells whether two GPUs may be the same: they are equal, or one is unknown.
pub(crate) fn may_be_same(one: Option<u32>, other: Option<u32>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// A channel in the BPF programs' table.
#[derive(Clone, Debug)]
pub(crate) struct ChannelState {
    /// Its number in the trace; none until it certainly is a channel.
    pub id: Option<ChannelId>,
    /// Its number in the driver model.
    pub model_id: Option<ChannelId>,
    /// Address space.
    pub space: u32,
    /// GPU.
    pub gpu: Option<u32>,
    /// Token, where known.
    pub token: Option<u32>,
    /// The driver reported the token (otherwise it was inferred).
    pub token_certain: bool,
    /// It was inferred, and doorbells with it have found nothing new since.
    pub token_doubted: bool,
    /// The token that it may have, where none is known: the error notifiers say so.
    pub guess: Option<u32>,
    /// Ring entries.
    pub entries: u32,
    /// Address of the ring.
    pub ring: u64,
    /// Address of GP_GET and GP_PUT.
    pub get_put: u64,
    /// The channel record announced last, to announce changes.
    pub announced: nvcap_decode::record::Channel,
    /// Position from which it is followed.
    pub start: u64,
    /// Position at which it was not yet seen to move: `start`, or for a ring that its number alone made a channel, the first one
    /// that it was found at.
    pub unmoved: u64,
    /// Position behind the last entry that was passed on or counted as lost.
    pub taken: u64,
    /// `done` and `seen` at the last patrol.
    pub patrolled: (u64, u64),
    /// Doorbells that the BPF programs had counted at the last look.
    pub counted: u64,
    /// Number of entries that the last look saw whose doorbells had not been counted yet, it seems.
    pub unrung: u64,
    /// Entries that were skipped up to `taken`, and doorbells, that were not told yet.
    pub skipped: (u64, u64),
    /// GP_PUT as a position, if the last patrol that could read it found it ahead of the captured entries.
    pub ahead: Option<u64>,
    /// Its USERD was read from outside while its doorbell was watched: later submissions trapped.
    pub looked: bool,
    /// Looks from outside that found GP_PUT beyond the ring.
    pub beyond: u64,
    /// It lives.
    pub live: bool,
}

impl ChannelState {
    /// The ring index of a position.
    pub(crate) fn index(&self, position: u64) -> u32 {
        (position & (u64::from(self.entries) - 1)) as u32
    }

    /// The first position from `seen` on that has this index: GP_PUT as a position.
    pub(crate) fn position(&self, put: u32, seen: u64) -> u64 {
        ring::position(put, seen, self.entries)
    }
}

/// Address of the doorbell in a USERMODE page.
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
