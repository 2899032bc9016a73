//! Work-submit tokens of a process's channels, by the order of channels and error notifiers. Used by a look at a process,
//! and by a source that follows the channels by other means.

use nvcap_decode::wire::{engine::Feeds, method::FIRST_OF_ENGINE};

use super::{
    captured::ChannelSnapshot,
    maps::Area,
    notifier,
    scan::{self, FoundRing, Places},
};
use crate::procfs::mem::ReadMemory;
use nvcap_decode::wire::stream::{Item, Stream};

/// Gives channels their tokens where the order of their slots and notifiers tells them.
pub(super) fn name_tokens(
    memory: &impl ReadMemory,
    areas: &[Area],
    found: &[FoundRing],
    channels: &mut [ChannelSnapshot],
) {
    let gpus: std::collections::BTreeSet<Option<u32>> = found.iter().map(|f| f.gpu).collect();
    // Notifiers do not say whose GPU they are.
    if gpus.len() != 1
        || channels
            .iter()
            .any(|c| c.found.proof.place != scan::Place::Habit)
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
            let slot = (c.found.ring - first.start) / scan::SLOT;
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

/// Tells whether a channel feeds the graphics engine, by the subchannel of its newest entries.
fn graphics(seen: &ChannelSnapshot) -> Option<bool> {
    for s in seen.submissions.iter().rev().take(8) {
        for segment in &s.segments {
            if !segment.holes.is_empty() {
                continue;
            }
            let mut stream = Stream::default();
            for item in stream.runs(&segment.bytes, segment.bytes.len() as u32, &[]) {
                if let Item::Run(run) = item
                    && run.address >= FIRST_OF_ENGINE
                {
                    return Some(Feeds::of_subchannel(run.subchannel) == Some(Feeds::Graphics));
                }
            }
        }
    }
    None
}
