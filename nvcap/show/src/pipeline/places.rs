//! Facts that the pipeline adds to the decoder's: addresses by the driver model, and engines of channels that nothing else tells.

use nvcap_decode::decode::Places;
use nvcap_decode::decode::event::{Engine, Memory, Place};
use nvcap_decode::driver::Model;
use nvcap_decode::record::{ChannelId, Submission};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::engine::{EngineEvidence, Feeds};
use nvcap_decode::wire::entry;
use nvcap_decode::wire::stream::{Item, Stream};

/// Address lookup by the driver model: in the channel's own address space.
pub(super) struct ByModel<'a> {
    pub(super) model: &'a Model,
    pub(super) channel: ChannelId,
    /// True if some sink shows memory objects.
    pub(super) shows_memory: bool,
}

impl Places for ByModel<'_> {
    fn place(&self, pid: u32, va: GpuVa) -> Option<Place> {
        self.model
            .place_for(self.channel, va)
            .or_else(|| self.model.place(pid, va))
    }

    fn is_unmapped(&self, pid: u32, va: GpuVa) -> bool {
        let own = self.model.resolve_for(self.channel, va);
        own.or_else(|| self.model.resolve(pid, va)).is_none()
    }

    fn is_reserved(&self, pid: u32, va: GpuVa) -> bool {
        self.model.is_reserved(pid, va)
    }

    fn memory(&self, pid: u32, va: GpuVa) -> Option<Memory> {
        if !self.shows_memory {
            return None;
        }
        let found = self
            .model
            .resolve_for(self.channel, va)
            .or_else(|| self.model.resolve(pid, va))?;
        let object = found.object?;
        Some(Memory {
            place: self.place(pid, va),
            client: object.client,
            handle: object.handle,
            class: found.class?,
            size: found.size,
            offset: found.offset,
            cpu: found.cpu,
        })
    }
}

/// The engine of an otherwise unknown channel, by what the submission does: [`nvcap_decode::wire::engine`]. Subchannel 4 alone is
/// no evidence where the runlist is unknown, nor where an unidentified video engine is used.
pub(crate) fn engine_by_stream(s: &Submission, token: Option<u32>) -> Engine {
    let runlist = token.map(|t| (t >> 16) & 0x7f);
    let mut stream = Stream::default();
    let mut evidence = EngineEvidence::default();
    for segment in &s.segments {
        let len = entry::len(segment.entry);
        for item in stream.runs(&segment.bytes, len, &segment.holes) {
            if let Item::Run(run) = item {
                evidence.take(&run);
            }
        }
        if evidence.by_class() == Some(Feeds::Graphics) {
            break;
        }
    }
    let used = evidence
        .by_subchannel(runlist)
        .filter(|f| !evidence.video && (runlist.is_some() || *f == Feeds::Graphics));
    evidence
        .by_class()
        .or(used)
        .map_or(Engine::Unknown, Engine::from)
}
