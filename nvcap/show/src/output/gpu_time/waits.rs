//! The longest waits for semaphores.

use nvcap_decode::record::ChannelId;
use nvcap_decode::wire::GpuVa;

/// The longest waits that are kept.
const MOST: usize = 10;

/// A wait for a semaphore.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub channel: ChannelId,
    pub pid: u32,
    /// The channel that released the semaphore, where that is known.
    pub by: Option<ChannelId>,
    pub semaphore: GpuVa,
    pub ns: u64,
    pub at_host_ns: u64,
}

/// Puts a wait among the longest, longest first, if it is one of them.
pub(super) fn add(all: &mut Vec<Wait>, wait: Wait) {
    let longest = all.partition_point(|w| w.ns >= wait.ns);
    if longest < MOST && wait.ns > 0 {
        all.insert(longest, wait);
        all.truncate(MOST);
    }
}
