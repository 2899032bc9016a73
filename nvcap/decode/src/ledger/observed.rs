//! The account of observing, as the ledger states it.

use crate::record::ChannelId;

/// Distance of observing from missing entries of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Margin {
    /// The channel.
    pub channel: ChannelId,
    /// Looks at its ring.
    pub looks: u64,
    /// Peeks at its semaphore: the GPU had not passed the entries that were read.
    pub peeks: u64,
    /// Longest time between two looks or peeks between which something came, ns.
    pub longest_ns: u64,
    /// Largest part of the ring that passed between two looks; 1 and more is a lap.
    pub largest_part: f64,
}

/// Work of a thread that looks at channels beside the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderCost {
    /// Channels that it was given, each as often as it was given.
    pub channels: u64,
    /// CPU time that it used, ns.
    pub cpu_ns: u64,
}

/// The account of observing: what a source without a trap reports of its own work. None of it is a loss by itself; losses
/// are reported as such, and these numbers explain them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Looks at rings.
    pub looks: u64,
    /// Peeks at semaphores.
    pub peeks: u64,
    /// Longest time between two looks or peeks at a channel between which something came, ns.
    pub longest_ns: u64,
    /// Largest part of a ring that passed between two looks; 1 and more is a lap.
    pub largest_part: f64,
    /// Longest delay of a look at a used channel, ns.
    pub latest_ns: u64,
    /// Longest time that one look took, ns.
    pub longest_look_ns: u64,
    /// Longest time that one round of looking after processes and mappings took, including looks at rings in between, ns.
    pub longest_search_ns: u64,
    /// The margin of each channel.
    pub margins: Vec<Margin>,
    /// Longest time from the last look at a ring to the discovery that it was gone, ns.
    pub tail_ns: u64,
    /// Length of the trace, ns.
    pub wall_ns: u64,
    /// CPU time of the whole program, ns.
    pub cpu_ns: u64,
    /// The part of it that looking used, by all threads, ns.
    pub reader_ns: u64,
    /// Threads that looked at busy channels beside the first.
    pub readers: Vec<ReaderCost>,
    /// Share of one core that observing may use, if limited.
    pub budget: Option<f64>,
    /// Time without looks because that share was used up, ns.
    pub throttled_ns: u64,
    /// Times that a ring lapped between two looks.
    pub laps: u64,
    /// Laps among them that may have been more than one.
    pub rounds_unseen: u64,
    /// Entries that were overwritten while they were read.
    pub overwritten: u64,
    /// Entries whose pushbuffer memory was used again before it was read.
    pub reused: u64,
    /// Entries with words that no client writes.
    pub unparsable: u64,
    /// Times that a channel's payloads jumped while no ring position was missing.
    pub jumps: u64,
}
