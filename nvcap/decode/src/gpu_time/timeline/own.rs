//! Numbers that the entries of one channel release.

use std::collections::HashMap;

use crate::gpu_time::unit::Unit;
use crate::gpu_time::words::Value;
use crate::wire::GpuVa;

/// The most semaphores that a channel's own entries release. Beyond that, the channel is taken to wait for others.
const MOST_OWN: usize = 1 << 14;

/// The newest number that this channel's entries release in each semaphore, up to the entry whose turn it is. A channel's entries run one
/// after the other, so a wait for such a number ends with an earlier entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Own(HashMap<GpuVa, u32>);

impl Own {
    pub(super) fn add(&mut self, unit: &Unit) {
        if self.0.len() >= MOST_OWN {
            self.0.clear();
        }
        let stamp = unit.stamp.map(|s| s.0);
        for value in unit.ends.iter().copied().chain(stamp) {
            self.0.insert(value.address, value.payload);
        }
    }

    /// Tells whether one of these entries releases a number for which an entry waits.
    pub(super) fn releases(&self, value: Value) -> bool {
        let newest = self.0.get(&value.address);
        newest.is_some_and(|n| n.wrapping_sub(value.payload).cast_signed() >= 0)
    }
}
