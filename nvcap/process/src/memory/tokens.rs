//! Work-submit tokens of a process's channels, by the order of channels and error notifiers. The module is used by a look at a process, and
//! by a source that follows the channels by other means.

use nvcap_decode::wire::{engine::Feeds, method::FIRST_OF_ENGINE};

use super::{
    captured::ChannelSnapshot,
    maps::Area,
    notifier,
    scan::{self, FoundRing, Places},
};
use crate::procfs::mem::ReadMemory;
use nvcap_decode::wire::stream::{Item, Stream};

/// Gives channels their tokens if the order of their slots and notifiers determines them.
pub(super) fn name_tokens(
    memory: &impl ReadMemory,
    areas: &[Area],
    found: &[FoundRing],
    channels: &mut [ChannelSnapshot],
) {
    // Notifiers do not name their GPU, so channels of which nothing is captured count, too.
    if found
        .iter()
        .any(|f| Some(f.gpu) != found.first().map(|f| f.gpu))
    {
        return;
    }
    let of_channels: Vec<FoundRing> = channels.iter().map(|c| c.found).collect();
    let Some(slots) = slots(areas, &of_channels) else {
        return;
    };
    let slots: Vec<(usize, Option<bool>)> = { slots.into_iter().zip(channels.iter()) }
        .map(|(slot, c)| (slot, graphics(c)))
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

/// Returns the number of each channel's slot, in the order in which CUDA makes channels; `None` if no order is known: with several GPUs,
/// with several mappings, or with channels at places that CUDA does not use.
#[must_use]
pub fn slots(areas: &[Area], found: &[FoundRing]) -> Option<Vec<usize>> {
    let first = found.first()?;
    let mapping = Places::new(areas).at(first.ring)?;
    let slot = |f: &FoundRing| {
        let is_known = f.gpu == first.gpu
            && f.proof.place == scan::Place::Habit
            && (mapping.start..mapping.end).contains(&f.ring);
        is_known.then(|| ((f.ring - mapping.start) / scan::SLOT) as usize)
    };
    found.iter().map(slot).collect()
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
