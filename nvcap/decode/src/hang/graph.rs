//! The wait graph: from a waiting channel, along the releases for which it waits, to the root cause.

use super::analysis::{Analysis, Cycle, Root};
use crate::record::ChannelId;

/// Follows the wait of channel number `at` to its root cause.
pub(super) fn follow(analysis: &mut Analysis, at: usize) -> Option<Root> {
    analysis.channels.get(at)?.wait.as_ref()?;
    let mut path: Vec<usize> = Vec::new();
    let mut now = at;
    loop {
        let judged = &analysis.channels[now];
        let Some(wait) = &judged.wait else {
            return Some(Root::AboutTo { channel: judged.id });
        };
        if wait.value.is_none() {
            return Some(Root::Unknown);
        }
        if let Some(from) = path.iter().position(|n| *n == now) {
            let channels = path[from..].iter().map(|n| analysis.channels[*n].id);
            return Some(Root::Cycle {
                index: cycle(&mut analysis.cycles, channels.collect()),
            });
        }
        path.push(now);
        let waiter = judged.id;
        // Any one releaser is enough; one that nothing holds up is preferred to one that itself waits.
        let mut best = None;
        for r in &wait.releasers {
            let Some(next) = analysis.channels.iter().position(|j| j.id == r.channel) else {
                continue;
            };
            let its = &analysis.channels[next];
            let waits = its.wait.as_ref().is_some_and(|w| w.position <= r.position);
            let runs = its
                .running
                .as_ref()
                .is_some_and(|w| w.position <= r.position);
            let rank = match (runs, waits) {
                (_, true) => 2,
                (true, false) => 1,
                (false, false) => 0,
            };
            if best.is_none_or(|(b, _)| rank < b) {
                best = Some((rank, next));
            }
        }
        match best {
            None => return Some(Root::NobodyReleases { channel: waiter }),
            Some((0, next)) => {
                return Some(Root::AboutTo {
                    channel: analysis.channels[next].id,
                });
            }
            Some((1, next)) => {
                return Some(Root::Work {
                    channel: analysis.channels[next].id,
                });
            }
            Some((_, next)) => now = next,
        }
    }
}

/// Returns the index of a cycle, which is the same for every channel at which the cycle is entered.
fn cycle(cycles: &mut Vec<Cycle>, mut channels: Vec<ChannelId>) -> usize {
    let least = channels.iter().enumerate().min_by_key(|(_, c)| **c);
    let least = least.map_or(0, |(at, _)| at);
    channels.rotate_left(least);
    let cycle = Cycle { channels };
    match cycles.iter().position(|c| *c == cycle) {
        Some(index) => index,
        None => {
            cycles.push(cycle);
            cycles.len() - 1
        }
    }
}
