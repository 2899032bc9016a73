//! What the session knows of a channel, and of the doorbells of an address space.

use std::collections::BTreeMap;

use crate::{
    record::{ChannelId, CpuVa},
    source::memory::ring,
};

/// The doorbell words of an address space, by address, with the GPU that each belongs to where that is known.
#[derive(Debug, Default)]
pub(crate) struct Doorbells(BTreeMap<u64, Option<u32>>);

impl Doorbells {
    /// Adds a word. What is known of its GPU stays known.
    pub(crate) fn add(&mut self, address: u64, gpu: Option<u32>) {
        let known = self.0.entry(address).or_default();
        *known = gpu.or(*known);
    }

    /// The GPU of a word, where that is known.
    pub(crate) fn gpu(&self, address: u64) -> Option<u32> {
        self.0.get(&address).copied().flatten()
    }

    /// The words that a channel of this GPU may be rung by. With each: whether that is certain; where one of the two
    /// GPUs is not known it may be another's.
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

/// Two GPUs may be the same one: they are, or one is not known.
pub(crate) fn may_be_same(one: Option<u32>, other: Option<u32>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// A channel in the BPF programs' table.
#[derive(Clone, Debug)]
pub(crate) struct ChannelState {
    /// Its number in the trace; none before it is certain that there is such a channel.
    pub id: Option<ChannelId>,
    /// The driver model's number of it.
    pub model_id: Option<ChannelId>,
    /// Address space.
    pub space: u32,
    /// GPU.
    pub gpu: Option<u32>,
    /// Token, where known.
    pub token: Option<u32>,
    /// The driver told the token (else it was concluded).
    pub token_certain: bool,
    /// Ring entries.
    pub entries: u32,
    /// Address of the ring.
    pub ring: u64,
    /// Address of GP_GET and GP_PUT.
    pub get_put: u64,
    /// What was announced of it, to announce changes.
    pub announced: crate::record::Channel,
    /// Position from which it is followed.
    pub start: u64,
    /// Position behind the last entry that was passed on or is known to be lost.
    pub taken: u64,
    /// `done` and `seen` at the last patrol.
    pub patrolled: (u64, u64),
    /// GP_PUT as a position, where the last patrol that could read it found it ahead of what was captured.
    pub ahead: Option<u64>,
    /// Its USERD was read from outside while its doorbell was watched: what came after was trapped.
    pub looked: bool,
    /// Looks from outside that found GP_PUT beyond the ring.
    pub beyond: u64,
    /// It lives.
    pub live: bool,
}

impl ChannelState {
    /// The index in the ring of a position.
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
    fn a_gpu_that_is_not_known_is_not_gpu_0() {
        let mut doorbells = Doorbells::default();
        doorbells.add(0x1090, Some(0));
        doorbells.add(0x2090, None);
        doorbells.add(0x3090, Some(1));
        assert_eq!(
            [0x1090, 0x2090, 0x3090, 0x4090].map(|a| doorbells.gpu(a)),
            [Some(0), None, Some(1), None]
        );
        // It may be the doorbell of any GPU's channel, and is certain to be none's.
        let of = |gpu| words(doorbells.of_channel(gpu));
        assert_eq!(of(Some(0)), [(0x1090, true), (0x2090, false)]);
        assert_eq!(of(Some(1)), [(0x2090, false), (0x3090, true)]);
        assert_eq!(
            of(None),
            [(0x1090, false), (0x2090, false), (0x3090, false)]
        );
        // That it was rung says nothing against the pages of GPU 0, and the other way round.
        doorbells.add(0x5090, Some(0));
        assert_eq!(doorbells.beside(0x2090), [0; 0]);
        assert_eq!(doorbells.beside(0x1090), [0x5090]);
    }

    #[test]
    fn what_is_known_of_a_doorbell_s_gpu_stays_known() {
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
