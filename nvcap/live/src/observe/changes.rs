//! Changes that a look at a process found, as plain data.

use super::channel::Begin;
use nvcap_decode::record::{Channel, Record};
use nvcap_process::memory::snapshot::RingToken;

/// A channel that was seen, and the position at which following it begins.
#[derive(Debug)]
pub(crate) struct NewChannel {
    /// The channel. It has no number yet.
    pub channel: Channel,
    /// Place where following the channel begins.
    pub begin: Begin,
}

/// Changes that a look at a process found.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Mappings made and given up.
    pub records: Vec<Record>,
    /// Channels that were not known before.
    pub channels: Vec<NewChannel>,
    /// Tokens that became known.
    pub tokens: Vec<RingToken>,
}
