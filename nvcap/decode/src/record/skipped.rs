//! Ring entries that are left out of a trace because the user asked for it.

use super::{At, ChannelId, named};

named! {
    /// Reason why entries were skipped.
    pub enum SkippedWhy {
        /// Doorbells were only counted, and rings were not read (`--count`).
        Counted = "counted",
        /// Doorbells were not watched for a while (`--duty`).
        Resting = "resting",
    }
}

/// Ring entries that were not read because the user asked for it. They are no loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Time at which GP_PUT was read, and the process.
    pub at: At,
    /// The channel.
    pub channel: ChannelId,
    /// Position of the first skipped entry.
    pub position: u64,
    /// Number of entries, as far as GP_PUT shows: whole laps of the ring are known only if doorbells were counted.
    pub entries: u64,
    /// Number of doorbells that were counted for the entries; `None` if doorbells are not counted.
    pub doorbells: Option<u64>,
    /// Reason why the entries were skipped.
    pub why: SkippedWhy,
}
