//! Decodes some entries of a process's rings, chosen anywhere: the entries before them were not decoded.
//!
//! One decoder serves all processes, each in an address space of its own, so that memory does not grow with their number: the contents
//! of GPU memory have one bound for all, and of channels those that were decoded last are kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvcap_decode::decode::event::{Body, ChipBy, Operation, Place};
use nvcap_decode::decode::{DecodeOptions, Decoder, Places, Wants};
use nvcap_decode::record::{At, Channel, ChannelId, How, Segment, Submission};
use nvcap_decode::wire::GpuVa;
use nvcap_process::memory::scan::FoundRing;
use nvcap_process::memory::{chip, maps::Area, snapshot};
use nvcap_process::procfs::mem::ReadMemory;

/// Number of a process's submissions after which the decoder forgets what it has seen of it.
const FORGET_EACH: u64 = 20_000;
/// Number of channels whose state the decoder keeps, about 50 KiB each. Entries of any other channel are decoded as if they were its first.
const MOST_CHANNELS: usize = 1024;

/// The decoder of all processes. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Mutex<Pool>>);

#[derive(Default)]
struct Pool {
    /// The decoder, made when something is first decoded: the driver is asked for its GPUs then.
    decoder: Option<Decoder>,
    /// Moment at which each channel was last decoded, by the count of decoded blocks.
    used: HashMap<ChannelId, u64>,
    blocks: u64,
    channels: u32,
    spaces: u32,
}

impl Shared {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn decoder(&mut self) -> &mut Decoder {
        self.decoder.get_or_insert_with(|| {
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
            decoder
        })
    }

    /// Returns a number that no process has had.
    fn space(&mut self) -> u32 {
        self.spaces = self.spaces.wrapping_add(1);
        self.spaces
    }

    /// Returns a number that no channel has had.
    fn channel(&mut self) -> ChannelId {
        self.channels = self.channels.wrapping_add(1);
        ChannelId(self.channels)
    }

    /// Notes that a channel is decoded now. Where too many are kept, the half that was decoded longest ago is forgotten at once, so that each costs
    /// little.
    fn uses(&mut self, id: ChannelId) {
        self.blocks += 1;
        self.used.insert(id, self.blocks);
        if self.used.len() > MOST_CHANNELS {
            let mut all: Vec<u64> = self.used.values().copied().collect();
            let middle = all.len() / 2;
            let (_, since, _) = all.select_nth_unstable(middle);
            let since = *since;
            let old = self.used.extract_if(|_, at| *at < since);
            let old: Vec<ChannelId> = old.map(|(id, _)| id).collect();
            self.forget(old);
        }
    }

    fn forget(&mut self, channels: impl IntoIterator<Item = ChannelId>) {
        for id in channels {
            self.used.remove(&id);
            self.decoder().forget_channel(id);
        }
    }
}

/// A channel, as the decoder knows it.
struct Known {
    id: ChannelId,
    is_announced: bool,
}

/// The decoder of a process's entries.
#[derive(Default)]
pub(super) struct Decoding {
    shared: Shared,
    /// The process, as the decoder knows it.
    space: Option<u32>,
    /// Channels by the address of their ring.
    channels: HashMap<u64, Known>,
    /// Tokens by the address of the channel's ring.
    tokens: HashMap<u64, u32>,
    directions: Directions,
    decoded: u64,
}

impl std::fmt::Debug for Decoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoding").finish_non_exhaustive()
    }
}

/// Kinds of memory at a process's addresses, by its mappings.
#[derive(Default)]
struct Directions(Vec<(u64, u64, Place)>);

impl Directions {
    fn new(areas: &[Area]) -> Self {
        let place = |a: &Area| Some((a.start, a.end, a.place()?));
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
    /// Creates the decoding of a process, by the decoder of all.
    pub(super) fn of(shared: &Shared) -> Self {
        Self {
            shared: shared.clone(),
            space: None,
            channels: HashMap::new(),
            tokens: HashMap::new(),
            directions: Directions::default(),
            decoded: 0,
        }
    }

    /// Takes the mappings of the process, which were just read.
    pub(super) fn mapped(&mut self, memory: &impl ReadMemory, areas: &[Area]) {
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
        let gone = self.channels.extract_if(|ring, _| !there(*ring));
        let gone: Vec<ChannelId> = gone.map(|(_, known)| known.id).collect();
        if !gone.is_empty() {
            self.shared.pool().forget(gone);
        }
    }

    /// Decodes entries that lie one behind the other, the first at `position`.
    pub(super) fn decode(
        &mut self,
        (found, gpu): (&FoundRing, Option<u32>),
        position: u64,
        segments: Vec<Segment>,
        to: &mut dyn FnMut(&Operation),
    ) {
        let pool = &mut *self.shared.pool();
        let space = *self.space.get_or_insert_with(|| pool.space());
        let known = self.channels.entry(found.ring).or_insert_with(|| Known {
            id: pool.channel(),
            is_announced: false,
        });
        let id = known.id;
        known.is_announced &= pool.used.contains_key(&id);
        pool.uses(id);
        let decoder = pool.decoder();
        if !known.is_announced {
            known.is_announced = true;
            decoder.channel(&Channel {
                gpu,
                token: self.tokens.get(&found.ring).copied(),
                ..found.channel(at(space), id)
            });
        }
        let size = u64::from(found.entries.max(1));
        decoder.gap(id);
        for (segment, position) in segments.into_iter().zip(position..) {
            let submission = Submission {
                absent_ns: None,
                at: at(space),
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
            let context = decoder.context(&submission, 0);
            decoder.submission(&submission, &context, &self.directions, &mut |event| {
                if let Body::Operation(operation) = &event.body {
                    to(operation);
                }
            });
            self.decoded += 1;
        }
        decoder.end(Some(space), &mut |event| {
            if let Body::Operation(operation) = &event.body {
                to(operation);
            }
        });
        if self.decoded >= FORGET_EACH {
            self.decoded = 0;
            decoder.forget_process(space);
            // Their state is gone, so that they count no more among those whose state is kept.
            for known in self.channels.values_mut() {
                known.is_announced = false;
                pool.used.remove(&known.id);
            }
        }
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        let Some(space) = self.space else {
            return;
        };
        let pool = &mut *self.shared.pool();
        pool.decoder().forget_process(space);
        for known in self.channels.values() {
            pool.used.remove(&known.id);
        }
    }
}

fn at(pid: u32) -> At {
    At {
        pid,
        ..At::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::wire::entry;
    use nvcap_process::memory::scan::Proof;

    fn found(ring: u64) -> FoundRing {
        FoundRing {
            gpu: Some(0),
            ring,
            entries: 1024,
            userd: ring + 0x2000,
            get: 0,
            put: 0,
            used: true,
            proof: Proof::default(),
        }
    }

    /// Decodes SET_OBJECT HOPPER_DMA_COPY_A and a LAUNCH_DMA with `count` words, and returns the number of operations that come of it.
    fn copies(decoding: &mut Decoding, ring: u64, count: usize) -> usize {
        let mut words = vec![0x2001_8000, 0xc8b5];
        words.resize(2 + count, 0x8182_80c0_u32);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let segment = Segment {
            entry: entry::segment(
                GpuVa(0x2_0080_0000),
                bytes.len() as u32,
                false,
                false,
                false,
            ),
            bytes,
            holes: Vec::new(),
        };
        let mut operations = 0;
        let mut to = |_: &Operation| operations += 1;
        decoding.decode((&found(ring), Some(0)), 7, vec![segment], &mut to);
        operations
    }

    /// The state of a bounded number of channels is kept, however many there are; all are decoded, and what ends leaves nothing.
    #[test]
    fn the_state_of_channels_is_bounded() {
        let shared = Shared::default();
        let mut all: Vec<Decoding> = (0..40).map(|_| Decoding::of(&shared)).collect();
        // What a decoder of its own gives.
        let alone = [0, 1].map(|round| copies(&mut Decoding::default(), 0, 1 + round));
        assert!(0 < alone[0] && alone[0] < alone[1], "{alone:?}");
        for (round, wanted) in alone.into_iter().enumerate() {
            for decoding in &mut all {
                for ring in 0..100 {
                    assert_eq!(copies(decoding, ring << 20, 1 + round), wanted);
                }
                assert!(shared.pool().used.len() <= MOST_CHANNELS);
            }
        }
        // Those that were decoded last are among them.
        let last = all.pop().unwrap();
        let newest = { last.channels.values() }.map(|k| shared.pool().used.contains_key(&k.id));
        assert!(newest.into_iter().all(|kept| kept) && last.channels.len() == 100);
        drop(last);
        assert!(shared.pool().used.len() <= MOST_CHANNELS - 100);
        let mut one = all.swap_remove(0);
        one.retain(|ring| ring == 0);
        assert_eq!(one.channels.len(), 1);
        drop((one, all));
        assert_eq!(shared.pool().used.len(), 0);
    }
}
