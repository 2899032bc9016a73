//! An observed process. Finds its changes since the last look at little cost: mappings, channels, tokens.

mod missed;
mod parts;

pub(crate) use nvcap_process::procfs::{self, mem::ReadMemory};
use std::{cell::RefCell, collections::BTreeSet, io, sync::Arc};

use super::changes::{Changes, NewChannel};
use super::{
    channel::Begin,
    mm_identity::MmIdentity,
    process::{self, OpenedProcess, now},
    slots::{Polite, slots},
};
use nvcap_decode::record::{At, ChannelId, CpuVa, Device, Record, Unmapping};
use nvcap_process::{
    channels_file::ChannelsFile,
    memory::{
        maps::{self, Area},
        scan::{self, Effort, FoundRing},
        snapshot,
    },
};
use parts::{
    Channels, Descent, GivenUp, GpuFiles, GpuUse, Life, Mappings, NotFollowed, Program, Search,
    TokenSearch,
};

/// Shortest time between two looks at a process, ns.
const SHORTEST_NS: u64 = 3_000_000;
/// Least time in which a context can be made, used and given up, ns. (On an H200 making one takes over 100 ms.)
const CONTEXT_NS: u64 = 20_000_000;
/// Longest time between two looks at a process, ns.
const LONGEST_NS: u64 = 1_000_000_000;
/// Share of a core that looking at a process may take: one part in this number.
const PART: u64 = 100;
/// Share of a core that looking at a process that sleeps may take each time that it has run: one part in this number.
const SLEEPER_PART: u64 = 20 * PART;
const SLEEPER_LONGEST_NS: u64 = 4_000_000_000;
/// Time between two searches for rings in unchanged mappings, while channels are expected to appear, ns.
const SEARCH_NS: u64 = 3_000_000;
/// Time between two searches for rings in unchanged mappings when no channel is expected any more, ns. There is no search unless the process has run.
const SEARCH_LATE_NS: u64 = 20_000_000;
/// Shortest time between two searches by structure, which cost more, ns.
const THOROUGH_NS: u64 = 50_000_000;
/// CPU time in which a process can submit nothing, ns: a submission takes over a microsecond.
const NOTHING_NS: u64 = 1_000;
/// Time after the first channel for which further ones are expected, ns.
const APPEAR_NS: u64 = 5_000_000_000;

/// Time without a new channel after which tokens are looked for, ns.
const TOKENS_NS: u64 = 250_000_000;

/// Number of times that tokens are looked for after a channel has appeared.
const TOKEN_TRIES: u32 = 5;

/// An observed process.
#[derive(Debug)]
pub(crate) struct Watched {
    pid: u32,
    descent: Descent,
    /// True if something of the process could not be read, so that a look is due at once.
    pub suspect: bool,
    /// Earliest time of the next look, ns: the later, the more the last look cost.
    not_before: u64,
    /// Program that the process executes.
    pub program: Program,
    mappings: Mappings,
    files: GpuFiles,
    channels: Channels,
    search: Search,
    not_followed: NotFollowed,
    given_up: GivenUp,
}

impl Watched {
    /// Opens a process.
    ///
    /// # Errors
    /// Those of opening the process's memory.
    pub(crate) fn open(pid: u32, begin: Begin) -> io::Result<Self> {
        let (process, mm) = opened(pid)?;
        let forked = process::state(pid).forked;
        let search = Search::new(now() + APPEAR_NS);
        Ok(Self {
            pid,
            descent: Descent::of(begin),
            suspect: false,
            not_before: 0,
            program: Program {
                process: Some(process),
                mm: Arc::new(mm),
                began_at: now(),
                forked,
                life: Life::Running,
            },
            mappings: Mappings::default(),
            files: GpuFiles::default(),
            channels: Channels {
                rings: BTreeSet::new(),
                found: false,
                begin,
            },
            search,
            not_followed: NotFollowed::default(),
            given_up: GivenUp::default(),
        })
    }

    /// Sets the process's parent, which is observed too.
    pub(crate) fn set_parent(&mut self, parent: u32) {
        self.descent = Descent::ChildOf(parent);
    }

    /// Returns the process's parent, if it is observed too.
    pub(crate) fn parent(&self) -> Option<u32> {
        self.descent.parent()
    }

    /// Returns the time of the last look at the process's mappings, ns.
    pub(crate) fn mapped_at(&self) -> u64 {
        let began_at = self.program.began_at;
        let looked_at = self.mappings.looked_at;
        looked_at.map_or(began_at, |at| at.max(began_at))
    }

    /// Makes the next look go through everything, however recent the last look was.
    pub(crate) fn look_at_all(&mut self) {
        self.suspect = true;
        self.look_now();
        self.search.next_thorough = 0;
        self.search.cpu_then = None;
    }

    /// Makes the next look check the mappings for changes and search for rings, however recent the last look was.
    pub(crate) fn look_now(&mut self) {
        (self.mappings.next, self.search.next, self.files.next) = (0, 0, 0);
    }

    /// Forgets the rings that were found, which are not the process's: all are searched for anew, and followed from their first entry.
    pub(crate) fn forget_rings(&mut self) {
        self.channels.rings.clear();
        self.mappings.areas.clear();
        self.channels.begin = Begin::First;
        self.look_at_all();
    }

    /// Makes a ring that was found and is not followed yet be searched for again. `own`: the process does not have it from a forebear.
    pub(crate) fn unsee(&mut self, ring: Option<CpuVa>, own: bool) {
        if let Some(ring) = ring {
            self.channels.rings.remove(&ring.0);
            if own {
                self.not_followed.put_off.insert(ring.0);
            }
        }
    }

    /// Tells whether any channel of the process was ever found.
    pub(crate) fn has_had_channels(&self) -> bool {
        self.channels.found
    }

    /// Takes note that a ring was found, and whether it could be read.
    pub(crate) fn found_ring(&mut self, ring: Option<CpuVa>, readable: bool) {
        self.not_followed.found(ring, readable);
    }

    /// Returns the identity of the process's memory, if it executes another program than at the last look. `forked`: it still runs its parent's
    /// program.
    pub(crate) fn executes(&mut self, forked: bool) -> Option<MmIdentity> {
        let turned = self.program.forked && !forked;
        let same = !turned && procfs::pages(self.pid) == self.mappings.pages;
        let gone = self.program.life.is_memory_gone();
        if !self.suspect && !gone && same {
            return None;
        }
        let mm = MmIdentity::of(self.pid).unwrap_or_default();
        if mm.is_empty() {
            return None;
        }
        self.program.forked = forked;
        if mm == *self.program.mm {
            return None;
        }
        if self.program.mm.is_empty() && !gone {
            // It was taken on in the middle of an exec: which of the two memories was opened is not known.
            self.open_again(mm);
            return None;
        }
        if mm.looks_like(&self.program.mm) && !gone && !turned {
            // It has written over its random bytes.
            return None;
        }
        // Of the old program nothing can be read, and what is at its addresses is not its.
        self.program.process = None;
        Some(mm)
    }

    fn open_again(&mut self, mm: MmIdentity) {
        let (process, mm) = match opened(self.pid) {
            Ok((process, mm)) => (Some(process), mm),
            Err(_) => (None, mm),
        };
        (self.program.process, self.program.mm) = (process, Arc::new(mm));
    }

    /// True if it still ran its parent's program at the last look.
    pub(crate) fn is_forked(&self) -> bool {
        self.program.forked
    }

    /// True if device memory is mapped at this address.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        maps::at(&self.mappings.areas, address).is_some_and(|a| a.device().is_some())
    }

    /// Takes note that one of the process's rings is followed.
    pub(crate) fn has_ring(&mut self, ring: CpuVa) {
        self.not_followed.put_off.remove(&ring.0);
        self.channels.rings.insert(ring.0);
        self.channels.were_found();
    }

    /// Begins anew with the program that the process executes now.
    pub(crate) fn begin_anew(&mut self, mm: MmIdentity) {
        self.open_again(mm);
        self.given_up = GivenUp::default();
        self.search.sought_at = None;
        self.program.life = Life::Running;
        self.files.seen = GpuUse::Unseen;
        self.channels.found = false;
        self.not_followed.unread.clear();
        self.not_followed.put_off.clear();
        self.mappings.looked_at = None;
        self.program.began_at = now();
        self.forget_rings();
    }

    /// Takes note that a ring could not be read: it was unmapped, and another may be mapped in its place.
    pub(crate) fn forget(&mut self, ring: Option<CpuVa>, why: io::ErrorKind) {
        self.suspect = true;
        // The kernel's way of saying that there is no memory of that program any more.
        if why == io::ErrorKind::UnexpectedEof {
            self.program.life.lose_memory();
        }
        if let Some(ring) = self.not_followed.forget(ring) {
            self.channels.rings.remove(&ring.0);
            self.channels.begin = Begin::First;
            self.search.next = 0;
        }
    }

    /// Returns the share of a core that looking may take now, as one part in this number. The share is larger while channels are about to
    /// appear, because nothing of them may be missed.
    fn part(&self) -> u64 {
        if self.channels.begin == Begin::First && now() < self.search.appear_until {
            PART / 10
        } else {
            PART
        }
    }

    /// Returns the number of places that move as a channel's GP_PUT does and belong to no ring that was found: submissions there are not seen.
    pub(crate) fn unresolved(&self) -> usize {
        let places = self.not_followed.unresolved.values();
        let moved = places.filter(|u| u.moved);
        moved
            .filter(|u| !self.channels.rings.contains(&u.ring))
            .count()
    }

    /// Looks for open files of a GPU, if the process has not mapped a doorbell yet.
    fn look_at_files(&mut self, now: u64) {
        let unseen = self.files.seen == GpuUse::Unseen;
        if self.descent.is_launched() && unseen && now >= self.files.next {
            let begun = process::search_cpu();
            if maps::has_gpu_open(self.pid) {
                self.files.seen = GpuUse::FileOpen { since: now };
            }
            let cost = process::search_cpu().saturating_sub(begun);
            self.files.next = now + (cost * PART).clamp(SHORTEST_NS, LONGEST_NS);
        }
    }

    /// Looks for changed mappings and new rings. Calls `between` after each small piece of work, because known rings must be looked at
    /// meanwhile.
    pub(crate) fn look(&mut self, given: &ChannelsFile, between: &mut dyn FnMut()) -> Changes {
        let mut changes = Changes::default();
        let now = now();
        let pages = procfs::pages(self.pid);
        let changed = std::mem::take(&mut self.suspect) || pages != self.mappings.pages;
        let next = self.mappings.next;
        if changed && now >= next || now >= next + 10 * LONGEST_NS {
            self.mappings.pages = pages;
            let begun = process::search_cpu();
            self.read_maps(now, &mut changes, between);
            let cost = process::search_cpu().saturating_sub(begun);
            self.mappings.next = now + (cost * self.part()).clamp(SHORTEST_NS, LONGEST_NS);
        }
        self.look_at_files(now);
        if given.channels.is_empty() {
            self.search(now, &mut changes, between);
        } else {
            self.take_named(given, &mut changes);
        }
        self.find_tokens(now, &mut changes, between);
        // A running process that has no channel in use: those that it uses later are new, from their first entry on.
        let has_none = self.channels.rings.is_empty() && self.not_followed.unresolved.is_empty();
        if self.mappings.looked_at.is_some() && has_none {
            self.channels.begin = Begin::First;
        }
        changes
    }

    /// Finds tokens once no new channel has appeared for a while. The order in which all channels were made tells which token belongs to which
    /// channel.
    fn find_tokens(&mut self, now: u64, changes: &mut Changes, between: &mut dyn FnMut()) {
        let Some(due) = self.search.tokens.filter(|search| now >= search.at) else {
            return;
        };
        let Some(process) = self.program.process.clone() else {
            return;
        };
        let memory = Polite {
            memory: &process.memory,
            between: RefCell::new(between),
        };
        changes.tokens = snapshot::tokens(&memory, &self.mappings.areas);
        // A busy ring may have moved too fast to be judged.
        let all = changes.tokens.len() >= self.channels.rings.len();
        let tries = due.tries.saturating_sub(1);
        self.search.tokens = (!all && tries > 0).then_some(TokenSearch {
            at: now + 4 * TOKENS_NS,
            tries,
        });
    }

    /// Returns the earliest time from `now` on of the next look, by the cost of the last one.
    pub(crate) fn not_before(&self, now: u64) -> u64 {
        self.not_before.max(now)
    }

    /// Takes note of the CPU time that a look has cost, and returns the time of the next look. `sleeps`: the process runs too little to make a
    /// channel.
    pub(crate) fn pause(&mut self, cost_ns: u64, sleeps: bool) -> u64 {
        let (part, longest) = if sleeps {
            (SLEEPER_PART, SLEEPER_LONGEST_NS)
        } else {
            (self.part(), LONGEST_NS)
        };
        self.not_before = now() + (cost_ns * part).clamp(SHORTEST_NS, longest);
        self.not_before
    }

    fn at(&self, now: u64) -> At {
        At {
            time_ns: now,
            pid: self.pid,
            tid: 0,
        }
    }

    fn read_maps(&mut self, now: u64, changes: &mut Changes, between: &mut dyn FnMut()) {
        let Ok(areas) = maps::areas_in_pieces(self.pid, between) else {
            return;
        };
        let at = self.at(now);
        for gone in self.mappings.areas.iter().filter(|a| !maps::has(&areas, a)) {
            if gone.device_or_memory().is_some() {
                changes.records.push(Record::Unmapping(Unmapping {
                    at,
                    start: CpuVa(gone.start),
                    len: gone.end - gone.start,
                }));
            }
            if gone.device().is_some() {
                self.search.next = 0;
            }
            // Not where it has merely become part of a larger mapping, or been split.
            let still = |r: &u64| maps::at(&areas, *r).is_some_and(|a| a.path == gone.path);
            self.channels
                .rings
                .retain(|r| !(gone.start..gone.end).contains(r) || still(r));
        }
        for new in areas.iter().filter(|a| !maps::has(&self.mappings.areas, a)) {
            if let Some(mapping) = new.record_with_memory(at) {
                changes.records.push(Record::Mapping(mapping));
            }
            if new.device().is_some() {
                self.search.next = 0;
            }
            // Whatever its shape: a doorbell's mapping may have been split since.
            if new.may_submit() {
                self.files.seen = GpuUse::Doorbell;
            }
        }
        self.mappings.areas = areas;
        self.not_followed.stale.clear();
        self.mappings.looked_at = Some(now);
    }

    /// Finds rings by their structure: where the mappings have changed, and from time to time.
    fn search(&mut self, now: u64, changes: &mut Changes, between: &mut dyn FnMut()) {
        let Some(process) = self.program.process.clone() else {
            return;
        };
        let memory = Polite {
            memory: &process.memory,
            between: RefCell::new(between),
        };
        let gpu = |a: &Area| a.read && a.write && matches!(a.device(), Some(Device::Gpu(_)));
        if now < self.search.next || !self.mappings.areas.iter().any(gpu) {
            return;
        }
        let run = process.cpu().unwrap_or(0);
        let has_rested = |before: u64| run.saturating_sub(before) < NOTHING_NS;
        let idle = self.search.cpu_then.is_some_and(has_rested);
        if !self.channels.rings.is_empty() && idle {
            self.search.sought_at = Some(now);
            self.search.next = now + SEARCH_LATE_NS;
            return;
        }
        self.search.cpu_then = Some(run);
        let cpu = process::search_cpu();
        let found = self.find_rings(now, cpu, &memory);
        let is_there = |ring: &u64| memory.word(*ring).is_ok();
        if self.channels.rings.iter().all(is_there) {
            self.search.sought_at = Some(now);
        }
        let cost = process::search_cpu().saturating_sub(cpu);
        let begin = self.channels.begin;
        for f in found {
            if self.not_followed.stale.contains(&f.ring) || !self.channels.rings.insert(f.ring) {
                continue;
            }
            let soon = if begin == Begin::Here { 0 } else { TOKENS_NS };
            self.search.tokens = Some(TokenSearch {
                at: now + soon,
                tries: TOKEN_TRIES,
            });
            changes.channels.push(NewChannel {
                channel: f.channel(self.at(now), ChannelId(0)),
                begin,
            });
        }
        if self.channels.rings.is_empty() {
            self.search.appear_until = now + APPEAR_NS;
        }
        let least = if now > self.search.appear_until {
            SEARCH_LATE_NS
        } else {
            SEARCH_NS
        };
        self.search.next = now + least.max(cost * self.part());
        if !self.channels.rings.is_empty() {
            self.channels.were_found();
        }
    }

    /// Finds rings that are not known yet. `now`: begin of the search. `cpu`: CPU time that this thread had used then, ns.
    fn find_rings(&mut self, now: u64, cpu: u64, memory: &impl ReadMemory) -> Vec<FoundRing> {
        let (areas, rings) = (&self.mappings.areas, &self.channels.rings);
        let unresolved = &mut self.not_followed.unresolved;
        let found = slots(memory, areas, rings, unresolved);
        if !found.is_empty() || !rings.is_empty() || now < self.search.next_thorough {
            return found;
        }
        // Not laid out as libcuda does: by structure, which costs more.
        let mut found = scan::search(memory, areas, Effort::Usual).found;
        found.retain(|f| f.used);
        // What was used for the first time meanwhile is known better by where it lies.
        let lie = slots(memory, areas, rings, unresolved);
        if !found.is_empty() && !lie.is_empty() {
            found = lie;
        }
        let cost = process::search_cpu().saturating_sub(cpu);
        self.search.next_thorough = now + (cost * PART).max(THOROUGH_NS);
        found
    }

    fn take_named(&mut self, given: &ChannelsFile, changes: &mut Changes) {
        let now = now();
        let mapped = |areas: &[Area], at: u64| maps::at(areas, at).is_some_and(|a| a.read);
        for c in &given.channels {
            let areas = &self.mappings.areas;
            if !mapped(areas, c.ring) || !mapped(areas, c.userd) {
                continue;
            }
            if self.not_followed.stale.contains(&c.ring) || !self.channels.rings.insert(c.ring) {
                continue;
            }
            changes.channels.push(NewChannel {
                channel: c.channel(self.at(now), ChannelId(0)),
                begin: self.channels.begin,
            });
        }
        // Others are not looked for.
        self.search.sought_at = None;
        if !self.channels.rings.is_empty() {
            self.channels.were_found();
        }
    }
}

/// Opens a process's memory and clock, and reads its memory's identity, which is empty where another program began meanwhile.
fn opened(pid: u32) -> io::Result<(Arc<OpenedProcess>, MmIdentity)> {
    for _ in 0..3 {
        let before = MmIdentity::of(pid).unwrap_or_default();
        let process = OpenedProcess::open(pid)?;
        if !before.is_empty() && MmIdentity::of(pid).is_ok_and(|after| after == before) {
            return Ok((Arc::new(process), before));
        }
    }
    Ok((Arc::new(OpenedProcess::open(pid)?), MmIdentity::default()))
}
