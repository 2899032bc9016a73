//! The engine that a channel feeds, found from the entries of its ring.

use nvcap_decode::decode::event::Engine;
use nvcap_decode::record::Submission;
use nvcap_decode::wire::engine::{EngineEvidence, Feeds};
use nvcap_decode::wire::stream::{Item, Stream};

/// Returns the engine of a channel: by the classes that it binds, else by the subchannels that it uses.
pub fn engine<'a>(submissions: impl Iterator<Item = &'a Submission>) -> Engine {
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
