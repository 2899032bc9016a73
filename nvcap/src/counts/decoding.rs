//! Decodes some entries of a process's rings, chosen anywhere: the entries before them were not decoded.

use std::collections::HashMap;

use crate::decode::event::{Body, ChipBy, Operation, Place};
use crate::decode::{DecodeOptions, Decoder, Places, Wants};
use crate::procfs::mem::Peek;
use crate::record::{At, Channel, ChannelId, Device, How, Segment, Submission};
use crate::source::memory::scan::Found;
use crate::source::memory::{chip, maps::Area, snapshot};
use crate::wire::GpuVa;

/// The decoder has one process, whichever it is.
const PROCESS: u32 = 1;
/// Submissions after which the decoder forgets what it has seen: it bounds its memory.
const FORGET_EACH: u64 = 20_000;

/// A channel, as the decoder knows it.
struct Known {
    id: ChannelId,
    is_announced: bool,
}

/// The decoder of a process's entries.
pub(super) struct Decoding {
    decoder: Decoder,
    /// By the address of the ring.
    channels: HashMap<u64, Known>,
    next: u32,
    /// The tokens of rings.
    tokens: HashMap<u64, u32>,
    directions: Directions,
    decoded: u64,
}

impl std::fmt::Debug for Decoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoding").finish_non_exhaustive()
    }
}

/// Where memory is, by the mappings.
#[derive(Default)]
struct Directions(Vec<(u64, u64, Place)>);

impl Directions {
    fn new(areas: &[Area]) -> Self {
        let place = |a: &Area| match a.device() {
            Some(Device::Gpu(_)) => Some((a.start, a.end, Place::Device)),
            Some(Device::Control) | None => Some((a.start, a.end, Place::Host)),
            Some(_) => None,
        };
        let mut all: Vec<_> = areas.iter().filter_map(place).collect();
        all.sort_unstable_by_key(|a| a.0);
        Self(all)
    }
}

impl Places for Directions {
    fn place(&self, _: u32, va: GpuVa) -> Option<Place> {
        let behind = self.0.partition_point(|(start, ..)| *start <= va.0);
        let (_, end, place) = self.0.get(behind.checked_sub(1)?)?;
        (va.0 < *end).then_some(*place)
    }
}

impl Decoding {
    /// Of a process.
    pub(super) fn new() -> Self {
        let mut decoder = Decoder::new(DecodeOptions {
            wants: Wants {
                entries: false,
                methods: false,
                operations: true,
            },
            ..DecodeOptions::default()
        });
        for (minor, chip) in chip::chips() {
            decoder.chip(Some(minor), chip, ChipBy::Pci);
        }
        Self {
            decoder,
            channels: HashMap::new(),
            next: 0,
            tokens: HashMap::new(),
            directions: Directions::default(),
            decoded: 0,
        }
    }

    /// The process's mappings were looked at.
    pub(super) fn mapped(&mut self, memory: &impl Peek, areas: &[Area]) {
        self.directions = Directions::new(areas);
        // The decoder needs a channel's token to tell which way its copy engine copies.
        let tokens = snapshot::tokens(memory, areas).into_iter();
        self.tokens = tokens.map(|t| (t.ring.0, t.token)).collect();
        self.announce_again();
    }

    fn announce_again(&mut self) {
        for known in self.channels.values_mut() {
            known.is_announced = false;
        }
    }

    /// Forgets the channels of rings that are gone.
    pub(super) fn retain(&mut self, there: impl Fn(u64) -> bool) {
        self.channels.retain(|ring, _| there(*ring));
    }

    /// The decoder's number for a channel. Announces the channel to the decoder, if that is not done yet.
    fn channel(&mut self, found: &Found, gpu: Option<u32>) -> ChannelId {
        let next = &mut self.next;
        let known = self.channels.entry(found.ring).or_insert_with(|| {
            let id = ChannelId(*next);
            *next += 1;
            Known {
                id,
                is_announced: false,
            }
        });
        if !known.is_announced {
            known.is_announced = true;
            self.decoder.channel(&Channel {
                gpu,
                token: self.tokens.get(&found.ring).copied(),
                ..found.channel(at(), known.id)
            });
        }
        known.id
    }

    /// Decodes entries that lie one behind the other, the first at `position`.
    pub(super) fn decode(
        &mut self,
        (found, gpu): (&Found, Option<u32>),
        position: u64,
        segments: Vec<Segment>,
        to: &mut dyn FnMut(&Operation),
    ) {
        let id = self.channel(found, gpu);
        let size = u64::from(found.entries.max(1));
        self.decoder.gap(id);
        for (segment, position) in segments.into_iter().zip(position..) {
            let submission = Submission {
                at: at(),
                channel: id,
                token: None,
                position,
                gp_get: None,
                prev_put: (position % size) as u32,
                gp_put: ((position + 1) % size) as u32,
                ip: None,
                doorbell: None,
                how: How::Observed,
                late: false,
                thread: None,
                segments: vec![segment],
            };
            let context = self.decoder.context(&submission, 0);
            self.decoder
                .submission(&submission, &context, &self.directions, &mut |event| {
                    if let Body::Operation(operation) = &event.body {
                        to(operation);
                    }
                });
            self.decoded += 1;
        }
        self.decoder.end(Some(PROCESS), &mut |event| {
            if let Body::Operation(operation) = &event.body {
                to(operation);
            }
        });
        if self.decoded >= FORGET_EACH {
            self.decoded = 0;
            self.decoder.forget_process(PROCESS);
            self.announce_again();
        }
    }
}

fn at() -> At {
    At {
        pid: PROCESS,
        ..At::default()
    }
}
