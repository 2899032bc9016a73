//! Progress between two looks at the same processes.

use super::analysis::Analysis;
use super::ring_state::RingState;
use crate::record::ChannelId;

/// Progress of one channel between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ChannelProgress {
    /// Number of the channel in the later look.
    pub channel: ChannelId,
    /// Number of entries that the process added: the advance of GP_PUT modulo the ring size (more than a lap cannot be seen).
    pub submitted: u64,
    /// Number of entries that the GPU fetched: the advance of GP_GET.
    pub fetched: u64,
    /// Number of submissions done, by the channel's own semaphore; `None` if it cannot be read.
    pub done: Option<u64>,
    /// True if the channel had submissions that were not done or entries that were not fetched, in both looks.
    pub busy: bool,
}

impl ChannelProgress {
    /// Tells whether nothing moved in this channel.
    #[must_use]
    pub fn is_still(&self) -> bool {
        self.submitted == 0 && self.fetched == 0 && self.done.is_none_or(|n| n == 0)
    }
}

/// Differences between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Progress {
    /// Time between the looks, ns.
    pub ns: u64,
    /// Channels that are in both looks.
    pub channels: Vec<ChannelProgress>,
    /// Number of channels in the later look only.
    pub new: u32,
    /// Number of channels in the earlier look only.
    pub gone: u32,
}

impl Progress {
    /// Tells whether no channel moved and at least one has unfinished work: a hang, as far as the time between the looks shows.
    #[must_use]
    pub fn is_hang(&self) -> bool {
        let still = self.channels.iter().all(ChannelProgress::is_still);
        still && self.new == 0 && self.channels.iter().any(|c| c.busy)
    }
}

/// Compares an earlier look with a later one. `same` tells whether two channels are the same, since their numbers may differ between looks.
#[must_use]
pub fn compare(
    before: (&RingState, &Analysis),
    now: (&RingState, &Analysis),
    ns: u64,
    same: impl Fn(usize, usize) -> bool,
) -> Progress {
    let mut movement = Progress {
        ns,
        ..Progress::default()
    };
    let mut met = 0;
    for (n, channel) in now.0.channels.iter().enumerate() {
        let Some(b) = (0..before.0.channels.len()).find(|b| same(*b, n)) else {
            movement.new += 1;
            continue;
        };
        met += 1;
        let old = &before.0.channels[b];
        let entries = channel.entries.max(1);
        let way = |from: u32, to: u32| {
            let lap = u64::from(entries);
            (u64::from(to) + lap - u64::from(from % entries)) % lap
        };
        let line = |a: &Analysis, at: usize| {
            let judged = a.channels.get(at)?;
            Some((judged.semaphore?.address, judged.done()?))
        };
        let done = match (line(before.1, b), line(now.1, n)) {
            (Some((old, was)), Some((new, is))) if old == new => {
                Some(u64::from((is as u32).wrapping_sub(was as u32)))
            }
            _ => None,
        };
        let busy = |a: &Analysis, at: usize| {
            a.channels
                .get(at)
                .is_some_and(|j| j.state != super::State::Idle)
        };
        movement.channels.push(ChannelProgress {
            channel: channel.id,
            submitted: way(old.put, channel.put),
            fetched: way(old.get, channel.get),
            done,
            busy: busy(before.1, b) && busy(now.1, n),
        });
    }
    movement.gone = (before.0.channels.len() as u32).saturating_sub(met);
    movement
}
