//! Numbers of what is in a file, and the rank that the file is of.

/// The place of a process among those of a distributed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Its number, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: Option<u32>,
}

/// Numbers of what was written into a file, and of what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels, and entries that do several things.
    pub kernels: u64,
    /// Replays of graphs.
    pub replays: u64,
    /// Copies.
    pub copies: u64,
    /// Memsets and fills.
    pub memsets: u64,
    /// Calls of CUDA, or doorbells.
    pub calls: u64,
    /// Works whose begin or duration is not known; they are left out.
    pub untimed: u64,
}

impl Counts {
    /// Returns the numbers with their names.
    pub fn all(&self) -> [(&'static str, u64); 6] {
        [
            ("kernels", self.kernels),
            ("graph_replays", self.replays),
            ("copies", self.copies),
            ("memsets", self.memsets),
            ("calls", self.calls),
            ("untimed", self.untimed),
        ]
    }

    /// Returns the number of works that were written.
    pub fn works(&self) -> u64 {
        self.kernels + self.replays + self.copies + self.memsets
    }
}
