//! Entries whose times may still come, and times that are settled before their turn.

use super::asked::Asked;
use super::{Clock, MOST_ERROR_NS, Noted, Place, TimeSources, Timeline, Value, Words};
use crate::decode::event::GpuTime;

/// Number of entries behind one that are examined. A later entry that runs shows that this one has ended, even if its own stamp was
/// overwritten before it was read.
const LATER: usize = 4;
/// Time of reading, after the end of the last entry, by which the next entry's stamp would have been seen, ns.
const SEEN_NS: u64 = 10_000_000;
/// Time of reading, after the end of an entry, by which everything about it has been seen, ns. Later its semaphores may have other numbers,
/// and the clocks another difference.
const SETTLED_NS: u64 = 1_000_000_000;

/// Sources of the facts that were seen about an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub pid: u32,
    pub words: &'a Words,
    /// Time up to which semaphores were read, ns.
    pub read_ns: u64,
    /// Number of records of reads.
    pub reads: u64,
}

/// End of an entry, by its own semaphores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The entry has nothing that tells its times.
    Nothing,
    NotYet,
    /// Time at which the end was seen, ns.
    At(u64),
}

impl Seen<'_> {
    /// Returns the time at which a semaphore was seen to have reached a number that an entry writes, ns.
    fn reached(self, of: &Noted, value: Value) -> Option<u64> {
        let stamp = self.words.reached(self.pid, value)?;
        (stamp.seen_ns >= of.not_before()).then_some(stamp.seen_ns)
    }

    fn ended(self, of: &Noted) -> Told {
        let told = |seen: Option<u64>| seen.map_or(Told::NotYet, Told::At);
        if let Some(pair) = of.unit.pair {
            let end = self.words.get(self.pid, pair.end).map(|s| s.seen_ns);
            return told(end.filter(|seen| *seen >= of.not_before()));
        }
        let Some((stamp, place)) = of.unit.stamp else {
            return Told::Nothing;
        };
        let stamped = self.reached(of, stamp);
        if place == Place::Behind || !of.unit.works {
            return told(stamped);
        }
        if of.unit.ends.is_empty() {
            return Told::NotYet;
        }
        let ends = of.unit.ends.iter().map(|end| self.reached(of, *end));
        told(ends.fold(stamped, |last, end| Some(last?.max(end?))))
    }

    /// Returns the time at which an entry's stamp was seen, ns. All earlier entries have then ended.
    fn begun(self, of: &Noted) -> Option<u64> {
        let (stamp, _) = of.unit.stamp?;
        self.reached(of, stamp)
    }
}

impl Timeline {
    /// Returns the time at which one of the first entries from a place on was seen to have begun, ns.
    fn later(&self, from: usize, seen: Seen<'_>) -> Option<u64> {
        let mut later = self.noted.range(from.min(self.noted.len())..).take(LATER);
        later.find_map(|n| seen.begun(n))
    }

    /// Tells whether further times of a submission's entries, which are noted, may be seen: the last entry that tells times has not ended,
    /// and no later entry has begun.
    pub(crate) fn awaits(&mut self, position: u64, entries: usize, seen: Seen<'_>) -> bool {
        let asked = self.asked.filter(|a| a.position == position);
        if asked.is_some_and(|a| a.reads == seen.reads) {
            return true;
        }
        let place = |at: u64| self.noted.partition_point(|n| n.position < at);
        let first = place(position);
        let behind = place(position.saturating_add(entries as u64)).max(first);
        let own = match asked {
            Some(asked) => asked.own,
            None => { self.noted.range(first..behind).rev() }
                .find(|n| seen.ended(n) != Told::Nothing)
                .map(|n| n.position),
        };
        let noted = own.and_then(|at| self.noted.get(place(at)).filter(|n| n.position == at));
        let is_awaited = match noted.map(|n| seen.ended(n)) {
            Some(Told::NotYet) => self.later(behind, seen).is_none(),
            Some(Told::At(ended)) => {
                let next = self.noted.get(behind).is_some();
                next && seen.read_ns < ended.saturating_add(SEEN_NS)
                    && self.later(behind, seen).is_none()
            }
            Some(Told::Nothing) | None => false,
        };
        self.asked = is_awaited.then_some(Asked {
            position,
            own,
            reads: seen.reads,
        });
        is_awaited
    }

    /// Returns the latest time of the GPU at which the last entry of a submission that tells times may have ended, ns; `None` if no end was
    /// seen.
    pub(crate) fn ended_by(
        &self,
        position: u64,
        entries: usize,
        seen: Seen<'_>,
        clock: &Clock,
    ) -> Option<u64> {
        let end = position.saturating_add(entries as u64);
        let place = |at: u64| self.timed.partition_point(|(of, _)| *of < at);
        let settled = self
            .timed
            .range(place(position)..place(end).max(place(position)));
        let settled = settled.filter_map(|(_, time)| time.end_gpu_ns()).max();
        let place = |at: u64| self.noted.partition_point(|n| n.position < at);
        let first = place(position);
        let behind = place(end).max(first);
        let mut ends = { self.noted.range(first..behind).rev() }.map(|n| seen.ended(n));
        let seen_ns = match ends.find(|end| *end != Told::Nothing) {
            Some(Told::At(ended)) => Some(ended),
            // The next entry's stamp shows the end.
            Some(Told::NotYet) => self.later(behind, seen),
            Some(Told::Nothing) | None => None,
        };
        let latest = seen_ns.and_then(|ns| {
            let by = clock.gpu(ns)?;
            let error_ns = clock.host(by).map_or(0, |at| at.error_ns);
            Some(by.saturating_add(error_ns.min(MOST_ERROR_NS)))
        });
        settled.max(latest)
    }

    /// Settles the times of the first entries that ended so long ago that nothing more is seen of them. The times are kept until the
    /// entries' turn.
    pub(crate) fn settle<'a>(&mut self, seen: Seen<'a>, sources: impl Fn(u64) -> TimeSources<'a>) {
        while let Some(front) = self.noted.front() {
            let ended = match seen.ended(front) {
                Told::At(ended) => Some(ended),
                Told::Nothing => Some(front.doorbell),
                Told::NotYet => self.later(1, seen),
            };
            let Some(ended) = ended.map(|ended| ended.max(front.doorbell)) else {
                return;
            };
            if seen.read_ns < ended.saturating_add(SETTLED_NS) {
                return;
            }
            let (position, works) = (front.position, front.unit.count);
            let sources = sources(front.doorbell);
            let time = GpuTime {
                works,
                ..self.time_now(position, sources)
            };
            self.noted.pop_front();
            if self.timed.len() >= super::MOST {
                self.timed.pop_front();
            }
            self.timed.push_back((position, time));
        }
    }

    /// Takes the time of an entry that was settled before its turn, if it was.
    pub(super) fn settled(&mut self, position: u64) -> Option<GpuTime> {
        while self.timed.front().is_some_and(|(at, _)| *at < position) {
            self.timed.pop_front();
        }
        let is_own = self.timed.front().is_some_and(|(at, _)| *at == position);
        let own = if is_own { self.timed.pop_front() } else { None };
        own.map(|(_, time)| time)
    }
}
