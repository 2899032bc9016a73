//! Decoder for the entries that a look at a process has read, and for the semaphores in them.

use std::collections::BTreeSet;

use nvcap_decode::decode::{
    DecodeOptions, Decoder, Places, Wants,
    defaults::Chip,
    event::{Engine, Place},
};
use nvcap_decode::hang::{ChannelState, Values};
use nvcap_decode::record::{Channel, Submission};
use nvcap_decode::wire::GpuVa;

use super::{captured::ChannelSnapshot, feeds, maps::Area, scan, snapshot};
use crate::procfs::mem::ReadMemory;

/// The most semaphores whose values are read, which bounds the time of a look.
const MOST_SEMAPHORES: usize = 65_536;

/// A channel of a look that is to be decoded.
pub struct UndecodedChannel<'a> {
    /// Record of the channel.
    pub channel: &'a Channel,
    /// GP_GET at the time the ring was read.
    pub get: u32,
    /// GP_PUT at the time the ring was read.
    pub put: u32,
    /// Number of entries of the ring.
    pub entries: u32,
    /// First entries of the ring, if they are not among the newest.
    pub first: &'a [Submission],
    /// Newest entries of the ring.
    pub newest: &'a [Submission],
}

impl<'a> From<&'a ChannelSnapshot> for UndecodedChannel<'a> {
    fn from(seen: &'a ChannelSnapshot) -> Self {
        Self {
            channel: &seen.channel,
            get: seen.get,
            put: seen.put,
            entries: seen.found.entries,
            first: &seen.first,
            newest: &seen.submissions,
        }
    }
}

/// Makes a decoder that decodes operations only.
#[must_use]
pub fn decoder(chip: Option<&'static Chip>) -> Decoder {
    Decoder::new(DecodeOptions {
        wants: Wants {
            entries: false,
            methods: false,
            operations: true,
        },
        chip,
        ..DecodeOptions::default()
    })
}

/// Address lookup that knows only the mappings.
pub struct ByMaps<'a>(scan::Places<'a>);

impl<'a> ByMaps<'a> {
    /// Looks up in these mappings.
    #[must_use]
    pub fn new(areas: &'a [Area]) -> Self {
        Self(scan::Places::new(areas))
    }
}

impl Places for ByMaps<'_> {
    fn place(&self, _: u32, va: GpuVa) -> Option<Place> {
        self.0.at(va.0)?.place()
    }
}

/// Decodes all channels of a process together.
pub fn decoded(
    decoder: &mut Decoder,
    pid: u32,
    channels: &[UndecodedChannel<'_>],
    places: &dyn Places,
) -> Vec<ChannelState> {
    // The beginnings of rings come first: a class bound by one channel shows the chip of all of them.
    for seen in channels {
        decoder.channel(seen.channel);
        decoder.engine(seen.channel.id, engine(seen));
        for s in seen.first {
            let context = decoder.context(s, 0);
            decoder.submission(s, &context, places, &mut |_| {});
        }
    }
    let mut scenes = Vec::new();
    for seen in channels {
        let mut scene = ChannelState::new(seen.channel.id, pid, seen.get, seen.put, seen.entries);
        scene.gpu = seen.channel.gpu;
        scene.token = seen.channel.token;
        scene.engine = engine(seen);
        for s in seen.newest {
            let context = decoder.context(s, 0);
            scene.decode(decoder, &context, places, s);
        }
        scenes.push(scene);
    }
    scenes
}

fn engine(seen: &UndecodedChannel<'_>) -> Engine {
    feeds::engine(seen.first.iter().chain(seen.newest))
}

/// Reads the values of the semaphores for which an analysis asks ([`addresses`](nvcap_decode::hang::addresses)).
pub fn read_values(
    memory: &impl ReadMemory,
    places: &scan::Places<'_>,
    pid: u32,
    addresses: &BTreeSet<(u32, GpuVa)>,
    to: &mut Values,
) {
    let of = addresses.iter().filter(|(p, _)| *p == pid);
    for (_, address) in of.take(MOST_SEMAPHORES) {
        if let Some(value) = snapshot::read_semaphore(memory, places, address.0) {
            to.set(pid, *address, value);
        }
    }
}
