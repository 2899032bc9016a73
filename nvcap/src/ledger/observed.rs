//! How observing went, as the ledger states it.

use crate::record::ChannelId;

/// How near observing came to missing something of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Margin {
    /// The channel.
    pub channel: ChannelId,
    /// Looks at its ring.
    pub looks: u64,
    /// Times that its semaphore alone was looked at: the GPU was not past what had been read.
    pub peeks: u64,
    /// Longest time between two looks or peeks between which something came, ns.
    pub longest_ns: u64,
    /// Largest part of the ring that passed between two looks; 1 and more is a lap.
    pub largest_part: f64,
}

/// How observing went: what a source without a trap tells of its own work. None of it is a loss by itself; what was
/// lost is told as such, and this says why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Looks at rings.
    pub looks: u64,
    /// Times that a semaphore alone was looked at.
    pub peeks: u64,
    /// Longest time between two looks or peeks at a channel between which something came, ns.
    pub longest_ns: u64,
    /// Largest part of a ring that passed between two looks; 1 and more is a lap.
    pub largest_part: f64,
    /// Longest time by which a look at a used channel came later than was aimed at, ns.
    pub latest_ns: u64,
    /// Longest time that one look took, ns.
    pub longest_look_ns: u64,
    /// Longest time that looking after processes and mappings took in one go, looks at rings in between included, ns.
    pub longest_search_ns: u64,
    /// The margin of each channel.
    pub margins: Vec<Margin>,
    /// Longest time from the last look at a ring to when it was found gone, ns.
    pub tail_ns: u64,
    /// Length of the trace, ns.
    pub wall_ns: u64,
    /// CPU time that the whole program used, ns.
    pub cpu_ns: u64,
    /// CPU time of it that looking took, ns.
    pub reader_ns: u64,
    /// Share of one core that might be used, where one was given.
    pub budget: Option<f64>,
    /// Time for which nothing was looked at because that share was used up, ns.
    pub throttled_ns: u64,
    /// Times that a ring went round between two looks.
    pub laps: u64,
    /// Times of them that the ring may have gone round more often than was counted.
    pub rounds_unseen: u64,
    /// Entries that were overwritten while they were read.
    pub overwritten: u64,
    /// Entries whose pushbuffer memory was used again before it was read.
    pub reused: u64,
    /// Entries whose words no client writes.
    pub unparsable: u64,
    /// Times that a channel's payloads went on from another one with no ring position missing.
    pub jumps: u64,
}
