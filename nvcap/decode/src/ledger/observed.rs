//! Account of observing, as the ledger states it.

use crate::record::ChannelId;

/// The margin by which observing missed no entries of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Margin {
    /// The channel.
    pub channel: ChannelId,
    /// Number of looks at the ring.
    pub looks: u64,
    /// Number of peeks at the semaphore that found that the GPU had not passed the entries already read.
    pub peeks: u64,
    /// Longest time between two looks or peeks between which new entries came, ns.
    pub longest_ns: u64,
    /// Largest part of the ring that passed between two looks; 1 or more is a lap.
    pub largest_part: f64,
}

/// Work of an additional thread that looks at channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderCost {
    /// Number of channels that the thread was given; a channel given several times counts each time.
    pub channels: u64,
    /// CPU time of the thread, ns.
    pub cpu_ns: u64,
}

/// Account of observing: the report of a source without a trap on its own work. None of these numbers is a loss by itself. Losses are
/// reported as such, and these numbers explain them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Number of looks at rings.
    pub looks: u64,
    /// Number of peeks at semaphores.
    pub peeks: u64,
    /// Longest time between two looks or peeks at a channel between which new entries came, ns.
    pub longest_ns: u64,
    /// Largest part of a ring that passed between two looks; 1 or more is a lap.
    pub largest_part: f64,
    /// Longest delay of a look at a used channel, ns.
    pub latest_ns: u64,
    /// Longest time that one look took, ns.
    pub longest_look_ns: u64,
    /// Longest duration of one search for new processes and mappings, ns, including the looks at rings during it.
    pub longest_search_ns: u64,
    /// Margins of the channels.
    pub margins: Vec<Margin>,
    /// Longest time from the last look at a ring to the discovery that the ring was gone, ns.
    pub tail_ns: u64,
    /// Length of the trace, ns.
    pub wall_ns: u64,
    /// CPU time of the whole program, ns.
    pub cpu_ns: u64,
    /// Part of `cpu_ns` that looking used, in all threads, ns.
    pub reader_ns: u64,
    /// Additional threads that looked at busy channels.
    pub readers: Vec<ReaderCost>,
    /// Share of one core that observing may use, if limited.
    pub budget: Option<f64>,
    /// Time without looks because the share was used up, ns.
    pub throttled_ns: u64,
    /// Number of times that a ring lapped between two looks.
    pub laps: u64,
    /// Number of those laps that may have been several.
    pub rounds_unseen: u64,
    /// Entries that were overwritten while they were read.
    pub overwritten: u64,
    /// Entries whose pushbuffer memory was reused before it was read.
    pub reused: u64,
    /// Entries with words that no client writes.
    pub unparsable: u64,
    /// Number of times that a channel's payloads jumped while no ring position was missing.
    pub jumps: u64,
}
