//! Looks at a channel from outside, to see whether its ring has moved on from the captured entries.
//! Fetches nothing.

use super::Capture;
pub(crate) use nvcap_process::procfs::mem::ReadMemory;

/// Result of a look at a channel's GP_PUT from outside.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct PutCheck {
    /// True if GP_PUT could be read.
    pub(in super::super) readable: bool,
    /// True if GP_PUT is ahead of the captured entries.
    pub(in super::super) ahead: bool,
    /// Number of entries by which GP_PUT is ahead.
    pub(in super::super) count: u64,
    /// True if it was so at the last look, too, and no doorbell came in between.
    pub(in super::super) still: bool,
    /// True if GP_PUT could not be read at some earlier doorbell, and can be now.
    pub(in super::super) unread: bool,
}

impl Capture {
    /// Looks at GP_PUT.
    pub(in super::super) fn check_put(&mut self, index: u32) -> PutCheck {
        let state = self.table.shared().get(index);
        let channel = &self.table[index];
        let unmoved = channel.patrolled == (state.done, state.seen);
        let space = channel.space;
        let put = self
            .spaces
            .memory(space)
            .and_then(|m| m.get_put(channel.get_put).ok())
            .map(|gp| gp.1);
        let readable = put.is_some();
        // Of a process that ends, what is read is its memory no longer: what was seen before stays so.
        let put = put.filter(|_| !self.spaces.is_ending(space));
        let is_beyond = put.is_some_and(|p| p >= channel.entries);
        let put = put.filter(|_| !is_beyond);
        let ahead = put
            .filter(|p| *p != channel.index(state.done))
            .map(|p| channel.position(p, state.seen));
        let Some(channel) = self.table.get_mut(index) else {
            return PutCheck::default();
        };
        channel.looked |= readable;
        channel.beyond += u64::from(is_beyond);
        let still = ahead.is_some() && channel.ahead.is_some() && unmoved;
        channel.patrolled = (state.done, state.seen);
        if put.is_some() {
            channel.ahead = ahead;
        }
        PutCheck {
            readable,
            ahead: ahead.is_some(),
            count: ahead.map_or(0, |ahead| ahead.saturating_sub(state.done)),
            still,
            unread: put.is_some() && state.unread > 0,
        }
    }
}
