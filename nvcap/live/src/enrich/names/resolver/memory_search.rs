//! Search of a process's memory for new programs, from the likeliest place outward, until their names are found.
//!
//! Two kinds of places are looked at first: the known records, and the places where a search has already seen the program's address ([`super::noted`]).
//!
//! 1. Memory near the records and images that were found last: an allocator puts the next ones beside them.
//! 2. Areas that are new or have grown, then other pages that are new.
//! 3. Memory near all known records and images.
//! 4. All memory, in slices, in turn.
//!
//! The first search of a process goes through all its memory, the smallest areas first, and ends early if all names are found and certain enough.
//! Once all memory has been searched, processor time is limited: to some time at once, and to a share of a core. The limit is lower for 3 and 4,
//! which are done in slices and continue when there is time again.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{Ask, Resolver, known::CLOSE};
use crate::enrich::names::scan::{self, Run};
use nvcap_decode::record::Kernel;

/// The most bytes near the last finds that are searched.
const MOST_CLOSE: u64 = 8 << 20;
/// Distance from each record and image within which memory is searched before all other, B.
const AROUND: u64 = 1 << 20;
/// Number of bytes after which the time limit is checked.
const SLICE: u64 = 64 << 20;
/// Number of programs for which the layout of records must hold before the first search may end early.
const ENOUGH: usize = 4;

/// Pause after a listing of all pages, in multiples of the listing's duration.
const LISTING_RESTS: u32 = 20;

/// A limit of processor time once all memory was searched: the time that may be taken at once, and the share of one core, in thousandths.
struct Limit {
    at_once: Duration,
    per_mille: u32,
}

/// Limit of all searches together.
const ANY: Limit = Limit {
    at_once: Duration::from_secs(3),
    per_mille: 4,
};
/// Limit of searches of old memory in which the known records and images do not lead to the program.
const WIDE: Limit = Limit {
    at_once: Duration::from_secs(2),
    per_mille: 2,
};

impl Resolver {
    /// Looks in the process's memory for the requested programs; without a request, for those that are left.
    pub(super) fn in_memory(
        &mut self,
        wanted: &mut Vec<&Ask>,
        found: &mut Vec<Kernel>,
        asks: &[Ask],
    ) {
        let again = asks.is_empty();
        self.known.driving = match again {
            true => wanted.iter().map(|a| a.program.0).collect(),
            false => asks.iter().map(|a| a.program.0).collect(),
        };
        self.in_known_records(wanted, found);
        self.in_noted(wanted, found);
        if self.goes_on(wanted) && self.may(&ANY) {
            self.look(wanted, found, again);
        }
        self.conclude(wanted, found, true);
        self.learn_again(wanted, found);
        self.by_code(wanted, found);
        self.by_named_code(wanted, found);
    }

    /// Looks for programs at the places where their addresses were seen.
    fn in_noted(&mut self, wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>) {
        let seen: Vec<(u64, u64)> = wanted
            .iter()
            .flat_map(|ask| self.noted.take(ask.program.0))
            .collect();
        if !seen.is_empty() {
            let from = self.note_places(&seen);
            self.take_places(from, wanted, found);
            // Their modules' other records are known now.
            self.in_known_records(wanted, found);
        }
    }

    /// Tells whether another search of memory that was searched before is within its limit.
    pub(super) fn may_search_again(&self) -> bool {
        self.may(&WIDE)
    }

    fn may(&self, limit: &Limit) -> bool {
        !self.known.is_whole
            || self.spent() < limit.at_once + self.since(self.began) * limit.per_mille / 1000
    }

    fn since(&self, then: Instant) -> Duration {
        (self.clocks.now)().saturating_duration_since(then)
    }

    /// Tells whether one of the programs that drive the search is still wanted.
    fn goes_on(&self, wanted: &[&Ask]) -> bool {
        let driving = &self.known.driving;
        wanted.iter().any(|a| driving.contains(&a.program.0))
    }

    fn look(&mut self, wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>, again: bool) {
        if !again {
            let close = self.close();
            self.search(&close, wanted, found);
        }
        if !self.goes_on(wanted) {
            return;
        }
        let Ok(areas) = (self.listing.areas)(self.pid) else {
            return;
        };
        let grown = scan::without(&areas, &self.known.areas);
        let fresh = (self.listing.present)(self.pid, &grown);
        let mut present = scan::within(&self.known.present, &areas);
        present.extend(&fresh);
        self.known.keep(present);
        self.known.areas.clone_from(&areas);
        if !self.known.has_begun {
            self.first(&fresh, wanted, found);
            return;
        }
        self.search(&fresh, wanted, found);
        // A name that the code contradicts is uncertain; the record may be left over from a module that is no more. More than this is not
        // done to find another one.
        self.conclude(wanted, found, true);
        if !self.goes_on(wanted) {
            return;
        }
        // Of programs that come one after another and are nowhere, not each is worth the listing of all pages.
        let rests = |(at, took): (Instant, Duration)| self.since(at) < took * LISTING_RESTS;
        if !again && self.known.listed.is_some_and(rests) {
            return;
        }
        let began = (self.clocks.now)();
        let now = (self.listing.present)(self.pid, &areas);
        self.known.listed = Some(((self.clocks.now)(), self.since(began)));
        let fresh = scan::without(&now, &self.known.present);
        self.known.keep(now.clone());
        self.search(&fresh, wanted, found);
        self.wide(&now, wanted, found, again);
    }

    /// The first search.
    fn first(&mut self, all: &[Run], wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>) {
        // Each slice is as large as all before it: what is learnt is learnt anew after each.
        let (mut rest, mut size) = (all.to_vec(), SLICE);
        while !rest.is_empty() {
            let slice = scan::take(&mut rest, size);
            size *= 2;
            self.first_try = 0;
            self.next_try = 0;
            self.search(&slice, wanted, found);
            let holds = self.layout.as_ref().is_some_and(|l| l.agree >= ENOUGH);
            if wanted.is_empty() && holds && found.iter().all(|k| k.certain) {
                break;
            }
        }
        self.known.has_begun = true;
        self.count_as_first();
        self.note_whole(all);
    }

    /// Begins the limits once as many bytes have been searched as there is memory.
    fn note_whole(&mut self, all: &[Run]) {
        let size = all.iter().map(Run::len).sum::<u64>();
        if !self.known.is_whole && self.cost.bytes >= size {
            self.known.is_whole = true;
            self.count_as_first();
        }
    }

    /// Counts the time spent so far as that of the first search.
    fn count_as_first(&mut self) {
        self.cost.first += std::mem::take(&mut self.helpers) + self.began_cpu.elapsed();
        self.cost.first += std::mem::take(&mut self.cost.later);
        self.began_cpu.restart();
    }

    /// Searches memory that was there before.
    fn wide(&mut self, all: &[Run], wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>, again: bool) {
        let may = |resolver: &Self, wanted: &[&Ask]| {
            let others = again && resolver.waiting.load(Ordering::SeqCst) > 0;
            resolver.goes_on(wanted) && resolver.may_search_again() && !others
        };
        if !may(self, wanted) {
            return;
        }
        self.cost.whole += 1;
        let mut around = if again { Vec::new() } else { self.around() };
        let mut rest = scan::without(all, &around);
        while !around.is_empty() && may(self, wanted) {
            self.search(&scan::take(&mut around, SLICE), wanted, found);
        }
        // A round goes on where the one before ended.
        let done = scan::take(&mut rest, self.known.done);
        if rest.is_empty() {
            self.known.done = 0;
        }
        rest.extend(done);
        while !rest.is_empty() && may(self, wanted) {
            let slice = scan::take(&mut rest, SLICE);
            self.known.done += slice.iter().map(Run::len).sum::<u64>();
            self.search(&slice, wanted, found);
            self.note_whole(all);
        }
    }

    /// Returns the memory near the last finds.
    fn close(&self) -> Vec<Run> {
        let places = self.known.recent.iter().rev().copied();
        let most = (MOST_CLOSE / (2 * CLOSE)) as usize;
        let mut windows: Vec<u64> = places.take(most).collect();
        windows.sort_unstable();
        scan::within(
            &scan::windows(windows.into_iter(), CLOSE),
            &self.known.present,
        )
    }

    /// Returns the memory near all records and images.
    fn around(&self) -> Vec<Run> {
        let records = scan::windows(self.records.iter().copied(), AROUND);
        let images = scan::windows(self.images.places(), AROUND);
        let images = scan::without(&images, &records);
        let both: Vec<Run> = records.into_iter().chain(images).collect();
        scan::within(&both, &self.known.present)
    }
}
