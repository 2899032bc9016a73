//! One channel that is counted: its numbers, read again and again.

use super::block::{self, Newest};
use super::channel::{Another, Count, Doubt, From, How, Reading};
use super::decoding::Decoding;
use super::ends::Ends;
use super::find::{self, Channel, Readable, Tracking};
use nvcap_decode::decode::event::Operation;
use nvcap_decode::wire::GpuVa;
use nvcap_process::memory::scan::{self, FoundRing};
use nvcap_process::procfs::mem::ReadMemory;

/// Number of reads of a channel whose newest entry does not release the tracking semaphore, before the reading counts as senseless.
const TRIES: u32 = 3;
/// Number of readings in a row without sense after which the channel is looked for anew.
pub(super) const STRIKES: u32 = 3;

/// A channel that is counted.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    /// GPU by device file minor number.
    pub gpu: Option<u32>,
    /// Its ring.
    pub ring: u64,
    /// Its counts.
    pub count: Count,
    /// The GPU's time beside the number in the semaphore, ns, if it has one: that of the last release.
    pub stamp_ns: Option<u64>,
    /// Number of the error after which the driver has stopped the channel.
    pub(super) stopped: Option<u32>,
    pub(super) found: FoundRing,
    pub(super) tracking: Option<Tracking>,
    pub(super) put: u32,
    pub(super) strikes: u32,
    /// Beginning of its counting.
    pub(super) from: From,
    /// True if the last reading was not taken.
    pub(super) is_unread: bool,
    /// Number of searches in a row that did not prove the channel.
    pub(super) unproven: u32,
    at_semaphore: Kernels,
}

/// The kernels of the submission whose number a channel's semaphore has.
#[derive(Clone, Debug, Default)]
enum Kernels {
    /// Not looked at.
    #[default]
    Unknown,
    /// Kernels of the submission with this number.
    Of(u32, Ends),
    /// Submission that has none, or whose kernels have ended.
    Ended(u32),
}

impl Followed {
    /// Begins to count a channel that a search found; none where its memory cannot be read.
    pub(super) fn begin(
        memory: &impl ReadMemory,
        (readable, decoding): (&Readable, &mut Decoding),
        channel: &Channel,
        from: From,
        now_ns: u64,
    ) -> Option<Self> {
        let found = &channel.found;
        let number = match &channel.tracking {
            Some(tracking) => Some(find::number(memory, tracking.address.0)?),
            None => None,
        };
        let (get, put) = scan::get_put(memory, found.userd).ok()?;
        let mut followed = Self {
            gpu: found.gpu,
            ring: found.ring,
            count: Count::new(
                How::Ring(found.entries),
                false,
                From::Now,
                Reading {
                    at_ns: now_ns,
                    done: get,
                    submitted: put,
                    unfetched: unfetched(get, put, found.entries),
                },
            ),
            stamp_ns: None,
            stopped: None,
            found: *found,
            tracking: channel.tracking,
            put,
            strikes: 0,
            from,
            is_unread: false,
            unproven: 0,
            at_semaphore: Kernels::Unknown,
        };
        if let (Some(tracking), Some(done)) = (channel.tracking, number) {
            // What was submitted since the semaphore was proven is counted with the next reading.
            let first = Reading {
                done,
                submitted: tracking.newest,
                ..followed.count.last()
            };
            // `done` was read after the newest entry, so it may be ahead of that entry's number.
            let first = if tracking.newest.wrapping_sub(done).cast_signed() < 0 {
                Reading {
                    submitted: done,
                    ..first
                }
            } else {
                first
            };
            let newest = Newest {
                put,
                number: first.submitted,
            };
            let runs = followed.runs(memory, (readable, decoding), newest, first.done);
            let first = Reading {
                done: first.done.wrapping_sub(u32::from(runs)),
                ..first
            };
            followed.count = Count::new(How::Semaphore, tracking.whole, from, first);
            // GP_PUT can never be this: the newest entry is read again at the next reading.
            followed.put = u32::MAX;
        }
        Some(followed)
    }

    /// Four words that tell the channel from another one at the same place: GP_GET and GP_PUT, newest entry, semaphore's number and time.
    pub(super) fn words(&self, memory: &impl ReadMemory) -> Option<[u64; 4]> {
        let at = self.found.userd + scan::GP_GET;
        let positions = memory.word(at).ok()?;
        let put = (positions >> 32) as u32;
        let index = put.wrapping_sub(1) % self.found.entries.max(1);
        let entry = memory.word(self.found.ring + 8 * u64::from(index)).ok()?;
        let semaphore = |offset: u64| match self.tracking {
            Some(tracking) => memory.word(tracking.address.0 + offset).ok(),
            None => Some(0),
        };
        Some([positions, entry, semaphore(0)?, semaphore(8)?])
    }

    /// Goes on with the channel after a search that proved it again.
    pub(super) fn proven(self) -> Self {
        Self {
            put: u32::MAX,
            strikes: 0,
            unproven: 0,
            ..self
        }
    }

    /// Goes on with the channel after a search that did not prove it again.
    pub(super) fn kept(self) -> Self {
        Self {
            put: u32::MAX,
            strikes: 0,
            unproven: self.unproven + 1,
            ..self
        }
    }

    /// Returns the reasons why its counts are not exact.
    pub(super) fn doubts(&self) -> impl Iterator<Item = Doubt> {
        let is_ring = matches!(self.count.how(), How::Ring(_));
        let lacks = self.from == From::Beginning && !is_ring && self.count.in_all().is_none();
        let all = [
            (is_ring, Doubt::Ring),
            (self.is_unread, Doubt::Unread),
            (lacks, Doubt::Beginning),
        ];
        all.into_iter()
            .filter_map(|(is, doubt)| is.then_some(doubt))
    }

    /// Returns the place of the channel.
    pub(super) fn found(&self) -> &FoundRing {
        &self.found
    }

    /// Its tracking semaphore, where it is proven.
    pub(super) fn tracking_address(&self) -> Option<GpuVa> {
        self.tracking.map(|t| t.address)
    }

    /// GP_PUT at the reading to which the counts belong; none where the newest entry could not be read since.
    pub(super) fn counted_put(&self) -> Option<u32> {
        let put = match self.tracking {
            Some(_) => self.put,
            None => self.count.last().submitted,
        };
        (put < self.found.entries).then_some(put)
    }

    /// Returns the address of its semaphore.
    pub(super) fn semaphore(&self) -> Option<u64> {
        self.tracking.map(|t| t.address.0)
    }

    /// Tells whether the channel that a search found at this USERD is the same one as before.
    pub(super) fn goes_on_as(&self, channel: &Channel) -> bool {
        let same_semaphore = match (self.tracking, channel.tracking) {
            (Some(mine), Some(its)) => {
                let ahead = its.newest.wrapping_sub(self.count.last().submitted);
                mine.address == its.address && ahead.cast_signed() >= 0
            }
            (None, None) => true,
            _ => false,
        };
        self.ring == channel.found.ring && same_semaphore
    }

    /// Tells whether a kernel of the submission with the semaphore's number still runs: libcuda's release of it is not ordered behind a kernel.
    fn runs(
        &mut self,
        memory: &impl ReadMemory,
        (readable, decoding): (&Readable, &mut Decoding),
        newest: Newest,
        number: u32,
    ) -> bool {
        let Some(tracking) = self.tracking_address() else {
            return false;
        };
        let ends = match &self.at_semaphore {
            Kernels::Ended(of) if *of == number => return false,
            Kernels::Of(of, ends) if *of == number => Some(ends.clone()),
            _ => {
                let of = (&self.found, tracking);
                let entries = block::submission(memory, readable, of, newest, number);
                entries.and_then(|entries| {
                    let mut ends = Ends::default();
                    let mut to = |operation: &Operation| ends.operation(operation);
                    let of = (&self.found, self.gpu);
                    decoding.decode(of, entries.position, entries.segments, &mut to);
                    (!entries.is_doubtful || ends.agree()).then_some(ends)
                })
            }
        };
        match ends {
            Some(ends) if ends.run(memory, readable) == Some(true) => {
                self.at_semaphore = Kernels::Of(number, ends);
                true
            }
            _ => {
                self.at_semaphore = Kernels::Ended(number);
                false
            }
        }
    }

    /// Reads it. `done` is the number of its semaphore, read before.
    pub(super) fn read(
        &mut self,
        memory: &impl ReadMemory,
        (readable, decoding): (&Readable, &mut Decoding),
        done: Option<u32>,
        now_ns: u64,
    ) -> Read {
        let Ok((mut get, mut put)) = scan::get_put(memory, self.found.userd) else {
            return Read::Failed;
        };
        let Some(tracking) = self.tracking else {
            return self.take(Reading {
                at_ns: now_ns,
                done: get,
                submitted: put,
                unfetched: unfetched(get, put, self.found.entries),
            });
        };
        let Some(done) = done else {
            return Read::Failed;
        };
        for _ in 0..TRIES {
            let last = self.count.last();
            let newest = if put == self.put {
                Some(last.submitted)
            } else {
                let index = put.wrapping_sub(1) % self.found.entries.max(1);
                let raw = memory.word(self.ring + 8 * u64::from(index));
                let release = raw
                    .ok()
                    .and_then(|raw| find::release_of(memory, readable, raw));
                release
                    .filter(|r| r.address == tracking.address)
                    .map(|r| r.payload)
            };
            // No more submissions than the ring has entries can be pending; the factor is for those that came since `done` was read.
            let fits =
                |newest: &u32| newest.wrapping_sub(done) <= self.found.entries.saturating_mul(4);
            if let Some(newest) = newest.filter(fits) {
                self.put = put;
                let number = newest;
                // What was done once is not undone.
                let is_new = last.done != done;
                let newest = Newest { put, number };
                let runs = is_new && self.runs(memory, (readable, decoding), newest, done);
                let done = done.wrapping_sub(u32::from(runs));
                return self.take(Reading {
                    at_ns: now_ns,
                    done,
                    submitted: number,
                    unfetched: unfetched(get, put, self.found.entries),
                });
            }
            // The newest entry's memory was used again already, or this is another channel.
            self.put = u32::MAX;
            match scan::get_put(memory, self.found.userd) {
                Ok(now) => (get, put) = now,
                Err(_) => return Read::Failed,
            }
        }
        self.strikes += 1;
        if self.strikes >= STRIKES {
            Read::Senseless
        } else {
            Read::Fine
        }
    }

    fn take(&mut self, reading: Reading) -> Read {
        match self.count.take(reading) {
            Ok(()) => {
                self.strikes = 0;
                Read::Fine
            }
            Err(Another) => Read::Senseless,
        }
    }
}

fn unfetched(get: u32, put: u32, entries: u32) -> u32 {
    let entries = entries.max(1);
    (put % entries + entries - get % entries) % entries
}

/// Outcome of reading a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Fine,
    /// Its memory is not there any more.
    Failed,
    /// The numbers that were read do not fit those read before.
    Senseless,
}
