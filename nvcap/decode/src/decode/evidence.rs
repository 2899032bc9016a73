//! Evidence of the chip in a stream, used if no chip was given: a class that the stream binds or the version of a QMD that it writes, else
//! the methods that it uses. The conclusion from methods is an assumption, and is emitted as one.

use super::{
    classes,
    defaults::{CHIPS, Chip},
    event::{ChipBy, Engine},
    qmd,
    view::plausible,
};
use crate::record::Submission;
use crate::wire::method::{FIRST_OF_ENGINE, LOAD_INLINE_DATA, SET_OBJECT, class_of};
use crate::wire::{
    entry,
    header::Step,
    stream::{Item, Stream},
};

/// Subchannel to which compute is bound by convention.
const COMPUTE: u8 = 1;

/// Finds evidence of the chip in a submission. `stream` is the channel's state before the submission. `channel` is the chip whose newest
/// channel class this channel has; it is accepted unless the methods contradict it.
pub(super) fn chip(
    s: &Submission,
    mut stream: Stream,
    engine: Engine,
    channel: Option<&'static Chip>,
) -> Option<(&'static Chip, ChipBy)> {
    let mut used: Vec<(u8, u16)> = Vec::new();
    for segment in &s.segments {
        let len = entry::len(segment.entry);
        for item in stream.runs(&segment.bytes, len, &segment.holes) {
            let Item::Run(run) = item else { continue };
            if run.is_empty() || run.masked {
                continue;
            }
            if run.address == SET_OBJECT
                && let Some(class) = run.word(0)
                && let Some(chip) = Chip::with_class(class_of(class))
            {
                // This evidence is read first: the methods before it in the submission are for the same chip.
                return Some((chip, ChipBy::Bound));
            }
            let inline = (run.subchannel, run.address) == (COMPUTE, LOAD_INLINE_DATA);
            if inline
                && engine != Engine::Copy(None)
                && let Some(chip) = by_qmd(run.data)
            {
                return Some((chip, ChipBy::QmdVersion));
            }
            let steps = match run.step {
                Step::Increment => run.len(),
                Step::Once => run.len().min(2),
                Step::Same | Step::Immediate => 1,
            };
            for i in 0..steps {
                let method = (run.subchannel, run.address_of(i));
                if method.1 >= FIRST_OF_ENGINE && !used.contains(&method) && used.len() < 256 {
                    used.push(method);
                }
            }
        }
    }
    by_methods(&used, engine, channel)
}

/// Returns the chip whose compute class has QMDs of this version and size.
fn by_qmd(data: &[u8]) -> Option<&'static Chip> {
    if data.len() != qmd::MAX_BYTES && data.len() != 256 {
        return None;
    }
    CHIPS.iter().find(|chip| {
        let version = qmd::version_of(chip.compute, data);
        let listed = qmd::versions_of(chip.compute);
        version.is_some_and(|v| listed.first() == Some(&v)) && plausible(chip.compute, data)
    })
}

/// Returns the chip whose classes name most of the methods. If several do, it is the channel's, or else the oldest.
fn by_methods(
    used: &[(u8, u16)],
    engine: Engine,
    channel: Option<&'static Chip>,
) -> Option<(&'static Chip, ChipBy)> {
    let named = |chip: &Chip| {
        let of = |&(subchannel, method): &(u8, u16)| {
            classes::method(chip.subchannel(engine, subchannel), method).is_some()
        };
        used.iter().filter(|m| of(m)).count()
    };
    let best = CHIPS.iter().rev().max_by_key(|chip| named(chip))?;
    if named(best) == 0 {
        return None;
    }
    match channel.filter(|c| named(c) == named(best)) {
        Some(channel) => Some((channel, ChipBy::Channel)),
        None => Some((best, ChipBy::Methods)),
    }
}
