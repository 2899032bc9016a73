//! One process: its channels, found once and then read, as cheaply as can be.
//!
//! A reading reads three things: the memory that holds the tracking semaphores (mostly one page for all channels of a context); GP_GET and
//! GP_PUT of each channel, 8 bytes of video memory; and, for each channel that has moved, its newest entry and the end of that entry's
//! pushbuffer. When the semaphore says that the newest submission is done, this submission is decoded, too: its kernel may still run
//! (`ends`), and then it does not count as done.

use std::collections::{BTreeMap, BTreeSet};

use super::channel::{Count, Doubt, From, How, Sums};
use super::decoding::{Decoding, Shared};
use super::errors::Errors;
use super::find::{self, Channel, Readable, Slot};
use super::followed::{Followed, Read, STRIKES};
use nvcap_decode::wire::words::{u32_at, u64_at};
use nvcap_process::memory::scan::{self, Place};
use nvcap_process::procfs::mem::ReadMemory;

/// Length of memory in which semaphores are read together, bytes.
const TOGETHER: u64 = 4096;
/// The most comparisons of two memories whose channels go on meanwhile.
const TRIES: u32 = 3;
/// Number of searches in a row for which a channel is kept that could not be proven again.
const KEPT: u32 = 3;

/// Outcome of a reading of a process.
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
    /// True if the last reading succeeded.
    is_read: bool,
}

/// The channels of a process.
#[derive(Debug, Default)]
pub(super) struct Channels {
    /// Channels by the address of their USERD.
    all: BTreeMap<u64, Followed>,
    /// Slots that may come into use.
    watched: Vec<Slot>,
    readable: Readable,
    /// The ranges that together hold all semaphores, with their bytes as last read.
    spans: Vec<Span>,
    /// The channels' error notifiers.
    errors: Errors,
    /// The sums of channels that are gone, by GPU.
    gone: BTreeMap<Option<u32>, Sums>,
    /// Submissions that were pending when a channel that is gone was read for the last time, by GPU.
    left: BTreeMap<Option<u32>, u64>,
    /// Reasons why the counts are not exact any more, by GPU.
    doubts: BTreeMap<Option<u32>, BTreeSet<Doubt>>,
    /// Decoding of channels' newest submissions, which are asked for their kernels.
    decoding: Decoding,
}

impl Channels {
    /// Creates the channels of a process; there are none yet.
    pub(super) fn of(shared: &Shared) -> Self {
        Self {
            decoding: Decoding::of(shared),
            ..Self::default()
        }
    }

    /// Its sums and nothing else: what stays where a reading is given up with the channels in it.
    pub(super) fn sums_alone(&self) -> Self {
        let mut alone = Self {
            gone: self.sums(),
            left: self.left.clone(),
            doubts: self.doubts.clone(),
            ..Self::default()
        };
        for followed in self.all.values() {
            alone.leave(followed.gpu, &followed.count);
            let own = followed.doubts().filter(|doubt| *doubt != Doubt::Unread);
            own.for_each(|doubt| alone.doubt(followed.gpu, doubt));
            alone.doubt(followed.gpu, Doubt::Gone);
        }
        alone
    }

    /// Takes the result of a search. A known channel that is still the same is counted on; the sums of one that is gone are kept. `from`:
    /// where counting of a new channel begins. Returns whether another search may find more.
    pub(super) fn found(
        &mut self,
        memory: &impl ReadMemory,
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
            is_doubtful |= channel.tracking.is_none();
            if let Some(same) = known.take_if(|k| k.goes_on_as(channel)) {
                self.all.insert(userd, same.proven());
                continue;
            }
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
        self.errors = Errors::of(search);
        self.watched.clone_from(&search.watched);
        self.watched
            .retain(|slot| !self.all.contains_key(&slot.userd));
        self.plan();
        is_doubtful
    }

    /// Counts a channel by its number, which counts from the channel's beginning, instead of by its ring.
    fn goes_on_by_number(
        &mut self,
        memory: &impl ReadMemory,
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

    /// Returns the reasons why the counts are not exact any more, by GPU, beside those of each channel.
    pub(super) fn doubts(&self) -> &BTreeMap<Option<u32>, BTreeSet<Doubt>> {
        &self.doubts
    }

    /// Takes the memory that entries and semaphores may lie in, which has changed.
    pub(super) fn mapped(&mut self, readable: Readable) {
        self.readable = readable;
    }

    /// Keeps the counts of a channel that is gone.
    fn gone(&mut self, known: Option<Followed>) {
        if let Some(known) = known {
            let sums = known.count.sums();
            self.gone.entry(known.gpu).or_default().add(sums);
            self.leave(known.gpu, &known.count);
            // What its sums lacked they lack for ever.
            let own = known.doubts().filter(|doubt| *doubt != Doubt::Unread);
            own.for_each(|doubt| self.doubt(known.gpu, doubt));
            self.doubt(known.gpu, Doubt::Gone);
        }
    }

    /// Keeps what is pending of a channel that is read no more: it is not seen to be done.
    fn leave(&mut self, gpu: Option<u32>, count: &Count) {
        if count.how() == How::Semaphore {
            *self.left.entry(gpu).or_default() += count.pending();
        }
    }

    /// Takes the number of submissions that were pending at the last readings of channels that are gone, since the last call. `all`: no channel is
    /// read any more.
    pub(super) fn take_left(&mut self, all: bool) -> BTreeMap<Option<u32>, u64> {
        if all {
            for followed in std::mem::take(&mut self.all).into_values() {
                self.leave(followed.gpu, &followed.count);
            }
        }
        std::mem::take(&mut self.left)
    }

    /// Plans the ranges that are read.
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

    /// Reads all channels.
    pub(super) fn read(&mut self, memory: &impl ReadMemory, now_ns: u64) -> Outcome {
        for span in &mut self.spans {
            span.is_read = memory.read_bytes(span.start, &mut span.bytes).is_ok();
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
        self.errors.look(memory, &mut self.all);
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

    /// Returns the sums counted so far, by GPU; counting begins anew.
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

    /// Tells whether there is no channel.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Completes a search that looked only where libcuda usually has channels: adds known channels that lie elsewhere and are still there.
    pub(super) fn keep_others(&self, search: &mut find::Search, memory: &impl ReadMemory) {
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

    /// Tells whether GP_GET and GP_PUT of the first channel can be read in this memory; true if there is no channel.
    pub(super) fn are_there(&self, memory: &impl ReadMemory) -> bool {
        let first = self.all.keys().next();
        first.is_none_or(|userd| scan::get_put(memory, *userd).is_ok())
    }

    /// Tells whether another memory has the very same channels: the same words in all of them, at the same time.
    pub(super) fn are_in(&self, mine: &impl ReadMemory, other: &impl ReadMemory) -> bool {
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

    /// The reading since which nothing is pending and nothing has come, ns: 0 without a channel. None where something is pending.
    pub(super) fn rests_since(&self) -> Option<u64> {
        let all = self.all.values().map(|followed| &followed.count);
        let since = |count: &Count| (count.pending() == 0).then(|| count.moved_ns());
        all.map(since)
            .try_fold(0, |latest, at| Some(latest.max(at?)))
    }
}
