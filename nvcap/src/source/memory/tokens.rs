//! Work-submit tokens of a process's channels, by the order of channels and error notifiers: for a look at a process, and
//! for a source that follows the channels by other means.

use std::time::{Duration, Instant};

use super::{
    find::{self, Effort, Found, Places},
    maps::Area,
    notifier,
    process::Peek,
    seen::Seen,
    snapshot::{self, Options},
};
use crate::decode::stream::{Item, Stream};

/// Entries of each channel that are looked at: which engine it feeds must agree with its token.
const LAST: u32 = 8;

/// The tokens, each with the address of its channel's ring, as far as the order of channels and error notifiers tells
/// them (`notifier`): of all channels that lie as libcuda lays them out, or of none.
pub fn tokens(memory: &impl Peek, areas: &[Area]) -> Vec<(u64, u32)> {
    let options = Options {
        last: LAST,
        before: 0,
        effort: Effort::Habit,
        given: &[],
        patience: Duration::ZERO,
    };
    let name = String::new();
    let seen = snapshot::of(memory, 0, name, areas.to_vec(), 0, options, Instant::now());
    let token = |s: &Seen| Some((s.found.ring, s.channel.token?));
    seen.channels.iter().filter_map(token).collect()
}

/// Gives channels their tokens where the order of their slots and notifiers tells them.
pub(super) fn name_tokens(
    memory: &impl Peek,
    areas: &[Area],
    found: &[Found],
    channels: &mut [Seen],
) {
    let gpus: std::collections::BTreeSet<u32> = found.iter().map(|f| f.gpu).collect();
    // Notifiers do not say whose GPU they are.
    if gpus.len() != 1
        || channels
            .iter()
            .any(|c| c.found.proof.place != find::Place::Habit)
    {
        return;
    }
    let places = Places::new(areas);
    let Some(first) = channels.first().and_then(|c| places.at(c.found.ring)) else {
        return;
    };
    // Slots of one mapping: of several nobody knows which came first.
    if channels
        .iter()
        .any(|c| !(first.start..first.end).contains(&c.found.ring))
    {
        return;
    }
    let slots: Vec<(usize, Option<bool>)> = channels
        .iter()
        .map(|c| {
            let slot = (c.found.ring - first.start) / find::SLOT;
            (slot as usize, graphics(c))
        })
        .collect();
    let notifiers = notifier::notifiers(memory, areas);
    for (seen, notifier) in channels.iter_mut().zip(notifier::pair(&notifiers, &slots)) {
        seen.notifier = notifier;
        seen.channel.token = notifier.map(|n| n.token);
        for s in &mut seen.submissions {
            s.token = seen.channel.token;
        }
    }
}

/// Whether a channel feeds the graphics engine, by the subchannel that its newest entries use.
fn graphics(seen: &Seen) -> Option<bool> {
    for s in seen.submissions.iter().rev().take(8) {
        for segment in &s.segments {
            if !segment.holes.is_empty() {
                continue;
            }
            let mut stream = Stream::default();
            for item in stream.runs(&segment.bytes, segment.bytes.len() as u32, &[]) {
                if let Item::Run(run) = item
                    && run.address >= 0x100
                {
                    return Some(run.subchannel < 4);
                }
            }
        }
    }
    None
}
