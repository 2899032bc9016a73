//! Looks at a channel from outside: whether its ring has moved on from what was captured. Fetches nothing.

use super::Capture;
pub(crate) use nvcap_process::procfs::mem::ReadMemory;

/// Result of a look at a channel's GP_PUT from outside.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct PutCheck {
    /// GP_PUT could be read.
    pub(in super::super) readable: bool,
    /// GP_PUT is ahead of what was captured.
    pub(in super::super) ahead: bool,
    /// By so many entries.
    pub(in super::super) count: u64,
    /// It was so at the last look, and no doorbell came between.
    pub(in super::super) still: bool,
    /// It could not be read at some doorbell before, and can be now.
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
