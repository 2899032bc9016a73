//! Ring entries that are left out of a trace because the user asked for it.

use super::{At, ChannelId, named};

named! {
    /// Reason why entries were skipped.
    pub enum SkippedWhy {
        /// Doorbells are counted, and rings are not read (`--count`).
        Counted = "counted",
        /// Doorbells were not watched for a while (`--duty`).
        Resting = "resting",
    }
}

/// Ring entries that nobody read, because the user asked for it: no loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Time when GP_PUT was read, and the process.
    pub at: At,
    /// The channel.
    pub channel: ChannelId,
    /// Position of the first of them.
    pub position: u64,
    /// Number of entries, as far as GP_PUT tells: whole rounds of the ring are known only where doorbells were counted.
    pub entries: u64,
    /// Doorbells that were counted for them; `None` where none are.
    pub doorbells: Option<u64>,
    /// Reason why they were skipped.
    pub why: SkippedWhy,
}
