//! Samples of a process's submissions: launches, copies and bytes of blocks of entries that lie in the rings still,
//! and the work of the GPU at moments chosen by chance. Nothing is followed, and nothing stops.
//!
//! - *Blocks*: at a reading, of all that a channel submitted since the reading before (as far as the ring holds it) a block is
//!   chosen by chance, read and decoded; `estimate` has the arithmetic.
//! - *Moments*: the number in the tracking semaphore says which submission the GPU is at. Of all moments at which a channel has work, the share at
//!   which it is at a kernel is the kernel's share of the channel's time.

pub mod busy;
pub mod estimate;
mod moment;
mod submission;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::block;
use super::channel::How;
use super::decoding::{Decoding, Shared};
use super::delay::{Delays, Looks, SubmissionNumbers};
use super::find::Readable;
use super::followed::Followed;
use super::process::Channels;
use busy::Unit;
use estimate::{Block, Estimate, Share};
use nvcap_decode::decode::event::Operation;
use nvcap_decode::record::Segment;
use nvcap_decode::wire::{GpuVa, release};
use nvcap_process::memory::maps::Area;
use nvcap_process::procfs::mem::ReadMemory;
use submission::Decoded;
#[cfg(all(test, feature = "serve"))]
pub(crate) use submission::Mover;
pub use submission::{Doing, What};

/// Entries of a block, and blocks of a channel at a reading.
const BLOCK: u32 = 12;
const BLOCKS: u32 = 4;
/// The most kernels that are kept apart for each process; the others are counted as one.
const MOST_KERNELS: usize = 4096;

/// Totals of a process's samples.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// Totals.
    pub sums: BTreeMap<What, Estimate>,
    /// Number of submissions that came between readings, and number of them that were decoded.
    pub submissions: (u64, u64),
    /// Number of submissions that came between two readings and of which no block could be read.
    pub unread: u64,
    /// Least number of submissions that their ring did not hold any more when it was sampled.
    pub lapped: u64,
    /// Number of submissions that were there before the first sample of their channel.
    pub early: u64,
    /// Longest times that submissions can have taken.
    pub delays: Delays,
    /// Number of moments that were taken, and number of them at which a channel had work.
    pub moments: (u64, u64),
    /// Work of the channels: how often each kind was met, summed over all moments and channels.
    pub at: BTreeMap<Doing, f64>,
}

/// The samples of a process; and, for each of its programs, the number of registers.
pub type Samples<'a> = (&'a Sampled, &'a HashMap<GpuVa, Option<u32>>);

impl Sampled {
    /// Adds another's totals.
    pub(super) fn add(&mut self, other: &Self) {
        self.submissions.0 += other.submissions.0;
        self.submissions.1 += other.submissions.1;
        self.unread += other.unread;
        self.lapped += other.lapped;
        self.early += other.early;
        self.delays.join(&other.delays);
        for (what, estimate) in &other.sums {
            self.sums.entry(*what).or_default().add(*estimate);
        }
    }

    /// Tells whether nothing was sampled.
    pub(crate) fn is_empty(&self) -> bool {
        let (came, _) = self.submissions;
        came + self.early + self.delays.count == 0
    }

    /// The share of moments at which the GPU had work of this process.
    pub fn busy(&self) -> Option<Share> {
        Share::new(self.moments.1 as f64, self.moments.0 as f64)
    }

    /// A kernel's share of the time in which channels had work.
    pub fn share(&self, at: Doing) -> Option<Share> {
        let all = self.at.values().sum();
        Share::new(self.at.get(&at).copied().unwrap_or(0.0), all)
    }
}

/// State of one channel, kept from sample to sample.
#[derive(Default)]
struct Of {
    /// Number of submissions that were counted when the channel was last sampled; none before.
    submitted: Option<u64>,
    /// GP_PUT and the number, when a moment last found the channel without work.
    idle: Option<moment::Idle>,
    looks: Option<Looks>,
}

/// Sampler of one process's submissions, by blocks of entries and by moments.
pub(super) struct Detail {
    decoding: Decoding,
    words: moment::Words,
    /// Channels by the address of their ring.
    channels: HashMap<u64, Of>,
    random: fastrand::Rng,
    buffer: Vec<u8>,
    /// The registers of programs, which are needed to find their names.
    programs: HashMap<GpuVa, Option<u32>>,
    sampled: Sampled,
    /// Samples since they were last taken, by GPU.
    new: BTreeMap<Option<u32>, Sampled>,
}

impl Detail {
    /// Creates the samples of a process.
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            decoding: Decoding::of(shared),
            words: moment::Words::default(),
            channels: HashMap::new(),
            random: fastrand::Rng::new(),
            buffer: Vec::new(),
            programs: HashMap::new(),
            sampled: Sampled::default(),
            new: BTreeMap::new(),
        }
    }

    /// Takes the samples since the last call, by GPU.
    pub(super) fn take(&mut self) -> BTreeMap<Option<u32>, Sampled> {
        std::mem::take(&mut self.new)
    }

    /// Returns the totals of the samples.
    pub(super) fn samples(&self) -> Samples<'_> {
        (&self.sampled, &self.programs)
    }

    /// Takes the mappings of the process, which were just read.
    pub(super) fn mapped(&mut self, memory: &impl ReadMemory, areas: &[Area]) {
        self.decoding.mapped(memory, areas);
    }

    /// Samples the submissions that came to each channel since the last call.
    pub(super) fn blocks(&mut self, memory: &impl ReadMemory, channels: &Channels) {
        for followed in channels.iter() {
            let submitted = followed.count.sums().submitted;
            let of = self.channels.entry(followed.ring).or_default();
            let Some(before) = of.submitted else {
                of.submitted = Some(submitted);
                self.sampled.early += submitted;
                self.new.entry(followed.gpu).or_default().early += submitted;
                continue;
            };
            let came = submitted.saturating_sub(before);
            let put = followed.counted_put();
            if let (1.., Some(put)) = (came, put) {
                of.submitted = Some(submitted);
                let readable = channels.readable();
                let sampled = self.of_channel(memory, readable, (followed, put), came);
                self.sampled.add(&sampled);
                self.new.entry(followed.gpu).or_default().add(&sampled);
            }
        }
        let there: Vec<u64> = channels.iter().map(|f| f.ring).collect();
        self.channels.retain(|ring, _| there.contains(ring));
        self.decoding.retain(|ring| there.contains(&ring));
    }

    /// Takes from a reading, which began and ended at these times, what each channel has done.
    pub(super) fn look(&mut self, channels: &Channels, (began, ended): (u64, u64)) {
        for followed in channels.iter() {
            let last = followed.count.last();
            if followed.count.how() != How::Semaphore || last.at_ns != began {
                continue;
            }
            let seen = SubmissionNumbers {
                done: last.done,
                submitted: last.submitted,
            };
            self.seen(followed, (began, ended), seen);
        }
    }

    fn seen(&mut self, followed: &Followed, at: (u64, u64), seen: SubmissionNumbers) {
        let Some(of) = self.channels.get_mut(&followed.ring) else {
            return;
        };
        let mut delays = Delays::default();
        Looks::take(&mut of.looks, at, seen, &mut delays);
        if delays.count > 0 {
            self.sampled.delays.join(&delays);
            self.new
                .entry(followed.gpu)
                .or_default()
                .delays
                .join(&delays);
        }
    }

    /// Reads and decodes blocks of the last `came` submissions of a channel before this GP_PUT.
    fn of_channel(
        &mut self,
        memory: &impl ReadMemory,
        readable: &Readable,
        (followed, put): (&Followed, u32),
        came: u64,
    ) -> Sampled {
        let held = block::held(followed.found(), came);
        let blocks = match held <= BLOCK * BLOCKS {
            // So few that they are all read, as one block.
            true => vec![(held, held)],
            // The entries are divided into equal parts. Of each part one block is read, at a place that chance chooses.
            false => {
                let part = held / BLOCKS;
                let first = |n: u32| (n + 1) * part - self.random.u32(..=part - BLOCK);
                (0..BLOCKS).map(first).map(|back| (back, BLOCK)).collect()
            }
        };
        let mut all: Vec<(u64, Decoded)> = Vec::new();
        let tracking = followed.tracking_address();
        for (back, count) in blocks {
            let at = block::At {
                readable,
                found: followed.found(),
                tracking,
                put,
                back,
                count,
                number: None,
            };
            let Ok(entries) = block::read(memory, at, &mut self.buffer) else {
                continue;
            };
            let ends = |s: &&Segment| match tracking {
                Some(address) => release::at_end(&s.bytes).is_some_and(|r| r.address == address),
                None => true,
            };
            let read = entries.segments.iter().filter(ends).count() as u64;
            let bytes: usize = entries.segments.iter().map(|s| s.bytes.len()).sum();
            let mut decoded = self.decode(followed, entries.position, entries.segments);
            decoded.add(What::PushbufferBytes, bytes as f64);
            if read > 0 {
                all.push((read, decoded));
            }
        }
        self.estimate((came, held), &all)
    }

    fn estimate(&mut self, (came, held): (u64, u32), all: &[(u64, Decoded)]) -> Sampled {
        let read: u64 = all.iter().map(|(read, _)| read).sum();
        let mut sampled = Sampled {
            submissions: (came, read.min(came)),
            unread: if read == 0 { came } else { 0 },
            lapped: match read {
                0 => 0,
                _ => came.saturating_sub(held.into()),
            },
            ..Sampled::default()
        };
        let mut whats = BTreeSet::new();
        for (_, decoded) in all {
            self.learn(&decoded.programs);
            whats.extend(decoded.sums.keys().copied());
        }
        for what in whats {
            let block = |(read, decoded): &(u64, Decoded)| Block {
                read: *read,
                found: decoded.sums.get(&what).copied().unwrap_or(0.0),
            };
            let blocks: Vec<Block> = all.iter().map(block).collect();
            let what = match what {
                What::Kernel(Some(program)) if !self.programs.contains_key(&program) => {
                    What::Kernel(None)
                }
                what => what,
            };
            let estimate = estimate::estimate(came, &blocks);
            sampled.sums.entry(what).or_default().add(estimate);
        }
        sampled
    }

    /// Keeps programs with their registers.
    fn learn(&mut self, programs: &[(GpuVa, Option<u32>)]) {
        for (program, registers) in programs {
            if self.programs.len() < MOST_KERNELS {
                self.programs.insert(*program, *registers);
            }
        }
    }

    /// Decodes entries that lie one behind the other.
    fn decode(&mut self, followed: &Followed, position: u64, segments: Vec<Segment>) -> Decoded {
        let mut decoded = Decoded::default();
        let of = (followed.found(), followed.gpu);
        let mut to = |operation: &Operation| decoded.operation(operation);
        self.decoding.decode(of, position, segments, &mut to);
        decoded
    }

    /// Takes a moment: finds out what each channel with work is doing now. Adds the GPUs and engines that have work to `busy`.
    pub(super) fn moment(
        &mut self,
        memory: &impl ReadMemory,
        channels: &Channels,
        clock: &mut impl FnMut() -> u64,
        busy: &mut BTreeSet<Unit>,
    ) {
        let mut works = false;
        for followed in channels.iter() {
            let idle = &mut self.channels.entry(followed.ring).or_default().idle;
            let readable = channels.readable();
            let kept = moment::Kept {
                decoding: &mut self.decoding,
                words: &mut self.words,
                idle,
            };
            let began = clock();
            let moment::Moment { seen, at: now } = moment::now(memory, readable, followed, kept);
            if let Some(seen) = seen {
                self.seen(followed, (began, clock()), seen);
            }
            let Some((mut at, programs)) = now else {
                continue;
            };
            works = true;
            busy.insert((followed.gpu, "any"));
            self.learn(&programs);
            for at in &mut at {
                if matches!(at, Doing::Kernel(program) if !self.programs.contains_key(program)) {
                    *at = Doing::Other;
                }
            }
            let each = 1.0 / at.len().max(1) as f64;
            for at in at {
                *self.sampled.at.entry(at).or_default() += each;
                match at {
                    Doing::Kernel(_) | Doing::Graph => busy.insert((followed.gpu, "compute")),
                    Doing::Copy(_) => busy.insert((followed.gpu, "copy")),
                    _ => false,
                };
            }
        }
        self.sampled.moments.0 += 1;
        self.sampled.moments.1 += u64::from(works);
    }
}
