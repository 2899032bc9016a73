//! The engine that a channel feeds, by what was read of its ring.

use crate::decode::event::Engine;
use crate::record::Submission;
use crate::wire::engine::{EngineEvidence, Feeds};
use crate::wire::stream::{Item, Stream};

/// The engine of a channel: by the classes it binds, otherwise by the subchannels it uses.
pub(crate) fn engine<'a>(submissions: impl Iterator<Item = &'a Submission>) -> Engine {
    let mut evidence = EngineEvidence::default();
    for s in submissions {
        for segment in s.segments.iter().filter(|s| s.holes.is_empty()) {
            let mut stream = Stream::default();
            let len = segment.bytes.len() as u32;
            for item in stream.runs(&segment.bytes, len, &[]) {
                if let Item::Run(run) = item {
                    evidence.take(&run);
                }
            }
        }
        // No later class can contradict this.
        let graphics = Some(Feeds::Graphics);
        let by_class = evidence.by_class();
        if by_class == graphics || by_class.is_none() && evidence.by_subchannel(None) == graphics {
            break;
        }
    }
    evidence
        .by_class()
        .or(evidence.by_subchannel(None))
        .map_or(Engine::Unknown, Engine::from)
}
