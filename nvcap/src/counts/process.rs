//! One process: its channels, found once and then read, as cheaply as can be.
//!
//! A reading reads three things: the memory that holds the tracking semaphores (mostly one page for all channels of a context); GP_GET and
//! GP_PUT of each channel, 8 bytes of video memory; and, for each channel that has moved, its newest entry and the end of that entry's
//! pushbuffer. When the semaphore says that the newest submission is done, this submission is decoded, too: its kernel may still run
//! (`ends`), and then it does not count as done.

use std::collections::{BTreeMap, BTreeSet};

use super::block::{self, Newest};
use super::channel::{Another, Count, Doubt, From, How, Reading, Sums};
use super::decoding::{Decoding, Shared};
use super::ends::Ends;
use super::find::{self, Channel, Readable, Slot, Tracking};
use crate::decode::event::Operation;
use crate::procfs::mem::Peek;
use crate::source::memory::scan::{self, Found, Place};
use crate::wire::GpuVa;
use crate::wire::words::{u32_at, u64_at};

/// Semaphores that lie so near are read together.
const TOGETHER: u64 = 4096;
/// How often a channel is read, if its newest entry does not release the tracking semaphore, before the reading counts as senseless.
const TRIES: u32 = 3;
/// So many readings in a row without sense, and the channel is looked for anew.
const STRIKES: u32 = 3;
/// So many searches in a row keep a channel that could not be proven again.
const KEPT: u32 = 3;

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
    found: Found,
    tracking: Option<Tracking>,
    put: u32,
    strikes: u32,
    /// Where its counting began.
    from: From,
    /// The last reading was not taken.
    is_unread: bool,
    /// Searches in a row that did not prove it.
    unproven: u32,
    newest: Kernels,
}

/// The kernels of a channel's newest submission, once its semaphore says that it is done.
#[derive(Clone, Debug, Default)]
enum Kernels {
    /// Not looked at.
    #[default]
    Unknown,
    /// Those of the submission with this number.
    Of(u32, Ends),
    /// That one has none, or they have ended.
    Ended(u32),
}

impl Followed {
    /// Begins to count a channel that a search found; none where its memory cannot be read.
    fn begin(
        memory: &impl Peek,
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
            found: *found,
            tracking: channel.tracking,
            put,
            strikes: 0,
            from,
            is_unread: false,
            unproven: 0,
            newest: Kernels::Unknown,
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
            let runs = first.done == first.submitted
                && followed.runs(memory, (readable, decoding), newest);
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
    fn words(&self, memory: &impl Peek) -> Option<[u64; 4]> {
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

    /// A search did not prove it again; it is read on all the same.
    fn kept(self) -> Self {
        Self {
            put: u32::MAX,
            strikes: 0,
            unproven: self.unproven + 1,
            ..self
        }
    }

    /// Why its counts are not exact.
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

    /// Where it lies.
    pub(super) fn found(&self) -> &Found {
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

    /// Where its semaphore is.
    fn semaphore(&self) -> Option<u64> {
        self.tracking.map(|t| t.address.0)
    }

    /// Whether the channel that a search found at this USERD is the same one as before.
    fn goes_on_as(&self, channel: &Channel) -> bool {
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

    /// Whether a kernel of the newest submission still runs. To be asked when the semaphore has that submission's number.
    fn runs(
        &mut self,
        memory: &impl Peek,
        (readable, decoding): (&Readable, &mut Decoding),
        newest: Newest,
    ) -> bool {
        let Some(tracking) = self.tracking_address() else {
            return false;
        };
        let ends = match &self.newest {
            Kernels::Ended(number) if *number == newest.number => return false,
            Kernels::Of(number, ends) if *number == newest.number => Some(ends.clone()),
            _ => {
                let of = (&self.found, tracking);
                let entries = block::submission(memory, readable, of, newest, newest.number);
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
                self.newest = Kernels::Of(newest.number, ends);
                true
            }
            _ => {
                self.newest = Kernels::Ended(newest.number);
                false
            }
        }
    }

    /// Reads it. `done` is the number of its semaphore, read before.
    fn read(
        &mut self,
        memory: &impl Peek,
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
                let runs = done == number
                    && is_new
                    && self.runs(memory, (readable, decoding), Newest { put, number });
                return self.take(Reading {
                    at_ns: now_ns,
                    done: done.wrapping_sub(u32::from(runs)),
                    submitted: newest,
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

/// What reading a channel came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Fine,
    /// Its memory is not there any more.
    Failed,
    /// What was read does not fit what was read before.
    Senseless,
}

/// What a reading of a process came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All channels were read.
    Fine,
    /// Channels are gone or new, or are not what they were: look for them again.
    Search,
    /// Nothing of it could be read: it has ended or runs another program.
    Gone,
}

/// Memory that is read at once.
#[derive(Clone, Debug)]
struct Span {
    start: u64,
    bytes: Vec<u8>,
    /// The last reading succeeded.
    is_read: bool,
}

/// The channels of a process.
#[derive(Debug, Default)]
pub(super) struct Channels {
    /// By the address of their USERD.
    all: BTreeMap<u64, Followed>,
    /// Slots that may come into use.
    watched: Vec<Slot>,
    readable: Readable,
    /// The ranges that together hold all semaphores, with their bytes as last read.
    spans: Vec<Span>,
    /// The sums of channels that are gone, by GPU.
    gone: BTreeMap<Option<u32>, Sums>,
    /// Submissions that were pending when a channel that is gone was read for the last time, by GPU.
    left: BTreeMap<Option<u32>, u64>,
    /// Why the counts are not exact any more, by GPU.
    doubts: BTreeMap<Option<u32>, BTreeSet<Doubt>>,
    /// Of channels' newest submissions, which are asked for their kernels.
    decoding: Decoding,
}

impl Channels {
    /// Of a process, none yet.
    pub(super) fn of(shared: &Shared) -> Self {
        Self {
            decoding: Decoding::of(shared),
            ..Self::default()
        }
    }

    /// Takes the result of a search. A known channel that is still the same is counted on; the sums of one that is gone are kept. `from`:
    /// where counting of a new channel begins. Returns whether another search may find more.
    pub(super) fn found(
        &mut self,
        memory: &impl Peek,
        readable: Readable,
        search: &find::Search,
        from: From,
        now_ns: u64,
    ) -> bool {
        let mut old = std::mem::take(&mut self.all);
        self.readable = readable;
        let mut is_doubtful = search.watched.iter().any(|slot| slot.may_be_a_channel());
        for channel in &search.channels {
            let userd = channel.found.userd;
            let mut known = old.remove(&userd);
            if let Some(same) = known.take_if(|k| k.goes_on_as(channel)) {
                let followed = Followed {
                    put: u32::MAX,
                    strikes: 0,
                    unproven: 0,
                    ..same
                };
                self.all.insert(userd, followed);
                continue;
            }
            is_doubtful |= channel.tracking.is_none();
            // Its ring went on too fast for its number to be proven again.
            let too_fast = |k: &Followed| {
                let same = k.ring == channel.found.ring && k.unproven < KEPT;
                same && k.tracking.is_some() && channel.tracking.is_none()
            };
            if let Some(known) = known.take_if(|k| too_fast(k)) {
                self.all.insert(userd, known.kept());
                continue;
            }
            // Until now its ring was counted from its beginning on: its number says how many those were in truth.
            let was_ring = |k: &Followed| {
                let is_ring = k.tracking.is_none() && k.from == From::Beginning;
                is_ring && k.ring == channel.found.ring
            };
            if channel.tracking.is_some_and(|t| t.whole)
                && let Some(ring) = known.take_if(|k| was_ring(k))
            {
                self.goes_on_by_number(memory, channel, &ring, now_ns);
                continue;
            }
            // A new channel in an old place counts as `from` says. The same channel, now counted in another way, counts from now on.
            let other_way = |k: &Followed| k.tracking.is_some() != channel.tracking.is_some();
            let from = match known.as_ref().is_some_and(other_way) {
                true => From::Now,
                false => from,
            };
            self.gone(known);
            let with = (&self.readable, &mut self.decoding);
            if let Some(new) = Followed::begin(memory, with, channel, from, now_ns) {
                self.all.insert(userd, new);
            }
        }
        for (userd, known) in old {
            // A ring that went on too fast to be proven again is no channel that is gone.
            let at_work = |slot: &Slot| slot.userd == userd && slot.may_be_a_channel();
            if known.unproven < KEPT && search.watched.iter().any(at_work) {
                self.all.insert(userd, known.kept());
                continue;
            }
            self.gone(Some(known));
        }
        self.watched.clone_from(&search.watched);
        self.watched
            .retain(|slot| !self.all.contains_key(&slot.userd));
        self.plan();
        is_doubtful
    }

    /// A channel whose ring was counted has a number that counts from its beginning.
    fn goes_on_by_number(
        &mut self,
        memory: &impl Peek,
        channel: &Channel,
        ring: &Followed,
        now_ns: u64,
    ) {
        let counted = ring.count.sums();
        self.gone.entry(ring.gpu).or_default().add(counted);
        let with = (&self.readable, &mut self.decoding);
        match Followed::begin(memory, with, channel, From::Beginning, now_ns) {
            Some(mut new) => {
                if !new.count.without(counted) {
                    self.doubt(ring.gpu, Doubt::Ring);
                }
                self.all.insert(channel.found.userd, new);
            }
            None => self.doubt(ring.gpu, Doubt::Gone),
        }
    }

    fn doubt(&mut self, gpu: Option<u32>, why: Doubt) {
        self.doubts.entry(gpu).or_default().insert(why);
    }

    /// Why the counts are not exact any more, by GPU; beside what its channels tell.
    pub(super) fn doubts(&self) -> &BTreeMap<Option<u32>, BTreeSet<Doubt>> {
        &self.doubts
    }

    /// Memory that entries and semaphores may lie in is another.
    pub(super) fn mapped(&mut self, readable: Readable) {
        self.readable = readable;
    }

    /// Keeps the counts of one that is gone.
    fn gone(&mut self, known: Option<Followed>) {
        if let Some(known) = known {
            let sums = known.count.sums();
            self.gone.entry(known.gpu).or_default().add(sums);
            self.leave(known.gpu, &known.count);
            self.doubt(known.gpu, Doubt::Gone);
        }
    }

    /// A channel is read no more: what is pending is not seen to be done.
    fn leave(&mut self, gpu: Option<u32>, count: &Count) {
        if count.how() == How::Semaphore {
            *self.left.entry(gpu).or_default() += count.pending();
        }
    }

    /// How many submissions of channels that are gone were pending at their last readings, since the last call. `all`: no channel is read
    /// any more.
    pub(super) fn take_left(&mut self, all: bool) -> BTreeMap<Option<u32>, u64> {
        if all {
            for followed in std::mem::take(&mut self.all).into_values() {
                self.leave(followed.gpu, &followed.count);
            }
        }
        std::mem::take(&mut self.left)
    }

    /// Which ranges are read.
    fn plan(&mut self) {
        let mut at: Vec<u64> = self.all.values().filter_map(Followed::semaphore).collect();
        at.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for at in at {
            match ranges.last_mut() {
                Some((start, end)) if at + 16 - *start <= TOGETHER && at <= *end + 512 => {
                    *end = at + 16;
                }
                _ => ranges.push((at, at + 16)),
            }
        }
        let span = |(start, end): (u64, u64)| Span {
            start,
            bytes: vec![0; (end - start) as usize],
            is_read: false,
        };
        self.spans = ranges.into_iter().map(span).collect();
    }

    /// Reads all of them.
    pub(super) fn read(&mut self, memory: &impl Peek, now_ns: u64) -> Outcome {
        for span in &mut self.spans {
            span.is_read = memory.peek(span.start, &mut span.bytes).is_ok();
        }
        let mut search = false;
        let mut failed = 0;
        for followed in self.all.values_mut() {
            let at = followed.semaphore().and_then(|address| {
                let behind = self.spans.partition_point(|s| s.start <= address);
                let span = self.spans.get(behind.checked_sub(1)?)?;
                span.is_read
                    .then(|| (&span.bytes, (address - span.start) as usize))
            });
            let done = at.and_then(|(bytes, at)| u32_at(bytes, at));
            let stamped = followed.tracking.is_some_and(|t| t.stamped);
            let stamp = at
                .filter(|_| stamped)
                .and_then(|(bytes, at)| u64_at(bytes, at + 8));
            followed.stamp_ns = stamp.filter(|ns| *ns != 0);
            let with = (&self.readable, &mut self.decoding);
            let before = followed.count.last().at_ns;
            let read = followed.read(memory, with, done, now_ns);
            // Both where this reading was not taken, and where the first one was made at this moment.
            followed.is_unread = followed.count.last().at_ns == before && before != now_ns;
            match read {
                Read::Fine => {}
                Read::Senseless => {
                    followed.strikes = STRIKES;
                    search = true;
                }
                Read::Failed => {
                    failed += 1;
                    search = true;
                }
            }
        }
        if !self.all.is_empty() && failed == self.all.len() {
            return Outcome::Gone;
        }
        let moved = |slot: &Slot| {
            let positions = memory.word(slot.userd + scan::GP_GET);
            positions.is_ok_and(|now| now != slot.positions)
        };
        search |= self.watched.iter().any(moved);
        if search {
            Outcome::Search
        } else {
            Outcome::Fine
        }
    }

    /// What was counted so far, by GPU; counting begins anew.
    pub(super) fn rebase(&mut self) -> BTreeMap<Option<u32>, Sums> {
        let sums = self.sums();
        self.gone.clear();
        for followed in self.all.values_mut() {
            followed.count.rebase();
        }
        sums
    }

    /// The channels, by address.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Followed> {
        self.all.values()
    }

    /// The counts by GPU, of those that are gone too.
    pub(super) fn sums(&self) -> BTreeMap<Option<u32>, Sums> {
        let mut sums = self.gone.clone();
        for followed in self.all.values() {
            let of = sums.entry(followed.gpu).or_default();
            of.add(followed.count.sums());
        }
        sums
    }

    /// Memory that entries and semaphores may lie in.
    pub(super) fn readable(&self) -> &Readable {
        &self.readable
    }

    /// Whether there is no channel.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Completes a search that looked only where libcuda usually has channels: adds known channels that lie elsewhere and are still there.
    pub(super) fn keep_others(&self, search: &mut find::Search, memory: &impl Peek) {
        for known in self.all.values() {
            let elsewhere = known.found.proof.place != Place::Habit;
            if elsewhere && scan::get_put(memory, known.found.userd).is_ok() {
                search.channels.push(Channel {
                    found: known.found,
                    tracking: find::tracking(memory, &self.readable, &known.found),
                });
            }
        }
    }

    /// Whether GP_GET and GP_PUT of the first channel can be read in this memory; true where there is no channel.
    pub(super) fn are_there(&self, memory: &impl Peek) -> bool {
        let first = self.all.keys().next();
        first.is_none_or(|userd| scan::get_put(memory, *userd).is_ok())
    }

    /// Whether another memory has the very same channels: the same words in all of them, at the same time.
    pub(super) fn are_in(&self, mine: &impl Peek, other: &impl Peek) -> bool {
        let number = |words: [u64; 4]| words[2] as u32;
        let same = |followed: &Followed| {
            (0..TRIES).any(|_| {
                let before = followed.words(mine);
                let its = followed.words(other);
                match (before, its, followed.words(mine)) {
                    (Some(before), Some(its), Some(after)) if before == after => its == before,
                    // It goes on: the other's number lies between the two.
                    (Some(before), Some(its), Some(after)) if followed.tracking.is_some() => {
                        let all = number(after).wrapping_sub(number(before));
                        number(its).wrapping_sub(number(before)) <= all
                    }
                    _ => false,
                }
            })
        };
        let count = self.all.len();
        count > 0 && self.all.values().all(same)
    }

    /// Whether a channel moved at the last reading.
    pub(super) fn is_busy(&self) -> bool {
        let mut all = self.all.values();
        all.any(|f| {
            let moved = f
                .count
                .progress()
                .is_some_and(|(_, at)| at == f.count.last().at_ns);
            moved || f.count.pending() > 0
        })
    }
}
