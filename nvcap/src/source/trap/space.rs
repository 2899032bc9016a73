//! What the session knows of an address space and of a channel in it.

use std::collections::BTreeSet;

use crate::{
    record::{ChannelId, CpuVa},
    source::memory::ring,
};

/// An address space: a process between two execs, with the children that share its mappings.
#[derive(Debug, Default)]
pub struct SpaceState {
    /// Processes in it.
    pub pids: BTreeSet<u32>,
    /// Doorbell words, with the GPU they belong to.
    pub doorbells: Vec<(u64, u32)>,
    /// Indexes of its channels.
    pub channels: Vec<u32>,
    /// When it was last searched for rings and all of them were followed, ns.
    pub searched: u64,
    /// When its memory may be searched for rings again; none where all of its life was seen.
    pub search: Option<Search>,
}

/// When memory may be searched for rings again.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Not before this time, ns.
    pub next: u64,
    /// Time between the last search and that one, ns.
    pub pause: u64,
}

/// A channel in the BPF programs' table.
#[derive(Clone, Debug)]
pub struct ChannelState {
    /// Its number in the trace.
    pub id: ChannelId,
    /// Address space.
    pub space: u32,
    /// GPU.
    pub gpu: Option<u32>,
    /// Token, where known.
    pub token: Option<u32>,
    /// The driver told the token (else it was concluded).
    pub token_told: bool,
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
    /// GP_PUT that the last patrol found ahead of `seen`.
    pub ahead: Option<u32>,
    /// Its USERD was read from outside while its doorbell was watched: what came after was trapped.
    pub looked: bool,
    /// It lives.
    pub live: bool,
}

impl ChannelState {
    /// The index in the ring of a position.
    pub fn index(&self, position: u64) -> u32 {
        (position & (u64::from(self.entries) - 1)) as u32
    }

    /// The first position from `seen` on that has this index: GP_PUT as a position.
    pub fn position(&self, put: u32, seen: u64) -> u64 {
        ring::position(put, seen, self.entries)
    }
}

/// Address of the doorbell in a USERMODE page.
pub fn doorbell_of(page: CpuVa) -> u64 {
    page.0 + 0x90
}
