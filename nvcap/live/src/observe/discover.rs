//! A process that is observed: finds, at little cost, what of it has changed since the last look: mappings, channels, tokens.

mod missed;

pub(crate) use nvcap_process::procfs::{self, mem::Peek as _};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use super::changes::{Changes, NewChannel};
use super::{
    channel::Begin,
    followed::Dropped,
    mm_identity::Image,
    process::{self, Process, now},
    slots::{Polite, Unresolved, slots},
};
use nvcap_decode::record::{At, ChannelId, CpuVa, Device, Record, Unmapping};
use nvcap_process::{
    channels_file::ChannelsFile,
    memory::{
        maps::{self, Area},
        scan::{self, Effort},
        snapshot,
    },
};

/// Shortest time between two looks after a process, ns.
const SHORTEST_NS: u64 = 3_000_000;
/// A context is not made, used and given up in less time than this, ns (on an H200 making one takes over 100 ms).
const CONTEXT_NS: u64 = 20_000_000;
/// Longest time between two looks after a process, ns.
const LONGEST_NS: u64 = 1_000_000_000;
/// Most processor time that looking after a process may take: one part in so many of a core.
const PART: u64 = 100;
/// The same of a process that sleeps, whenever it has run.
const SLEEPER_PART: u64 = 20 * PART;
const SLEEPER_LONGEST_NS: u64 = 4_000_000_000;
/// Time between two searches for rings in mappings that have not changed, while channels are expected to appear, ns.
const SEARCH_NS: u64 = 3_000_000;
/// The same when none is expected any more, ns; only if the process has run at all.
const SEARCH_LATE_NS: u64 = 20_000_000;
/// Shortest time between two searches by structure, ns: they cost more.
const THOROUGH_NS: u64 = 50_000_000;
/// CPU time in which nothing can be submitted, ns: a submission takes over a microsecond.
const NOTHING_NS: u64 = 1_000;
/// Time for which channels are expected to appear, from the first on, ns.
const APPEAR_NS: u64 = 5_000_000_000;

/// Time for which no channel must have appeared before tokens are looked for, ns.
const TOKENS_NS: u64 = 250_000_000;

/// A process that is observed.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Its memory and clock; `None` while it cannot be read.
    pub process: Option<Arc<Process>>,
    /// Who made it, where that is observed too.
    pub parent: Option<u32>,
    /// Something of it could not be read: look after it at once.
    pub suspect: bool,
    pid: u32,
    begin: Begin,
    /// Its program image; empty where that is not known yet.
    pub image: Arc<Image>,
    /// True if it ran its parent's program still when it was last looked at.
    forked: bool,
    pages: u64,
    areas: Vec<Area>,
    rings: BTreeSet<u64>,
    next_maps: u64,
    next_search: u64,
    /// CPU time that it had used at the last search, ns; none where the next search must not be left out.
    searched_at: Option<u64>,
    /// Begin of the last search for rings at whose end all known ones were still there, ns; 0 where there was none.
    sought_at: u64,
    /// Longest time between that and finding a channel gone, ns, as far as it has not been said.
    unsought: u64,
    /// Until when channels are expected to appear.
    appear_until: u64,
    /// Time from which the search by structure may be made again, ns.
    next_thorough: u64,
    /// Time at which tokens are looked for, ns, and number of times that this may be done again.
    next_tokens: u64,
    token_tries: u32,
    /// Slots whose ring was not believed, by the address of USERD.
    unresolved: BTreeMap<u64, Unresolved>,
    doorbell: bool,
    /// Time at which it was first seen to have a GPU's file open, ns.
    files_since: Option<u64>,
    /// Time at which that is looked for again, ns.
    next_files: u64,
    /// Its mappings were looked at, ns; 0 where they never were.
    mapped_at: u64,
    /// Its program was seen to begin, ns.
    pub began_at: u64,
    /// Time from which it may be looked after again, ns: the more the last time cost, the later.
    not_before: u64,
    /// It was born under observation.
    launched: bool,
    /// Rings that could not be read and were forgotten.
    forgotten: u32,
    /// Its channels that nobody has any more.
    dropped: Vec<Dropped>,
    /// Time at which something last came on a channel that nobody has any more, ns.
    moved: u64,
    /// Its program's memory is gone: it is ending, or executing another program.
    gone: bool,
    /// At least one of its channels was found.
    found: bool,
    /// Rings that were found and could not be read.
    unread: Vec<CpuVa>,
    /// Rings that were found while it was not certain to which program they belong. They are followed when they are found again.
    put_off: BTreeSet<u64>,
    /// Rings that could not be read, and are not looked for again before the mappings are read anew.
    stale: BTreeSet<u64>,
    /// It was looked at when it stood at its end.
    seen_to_its_end: bool,
    /// It came to its end with a GPU's file open and no doorbell mapped, and either the file was opened after the last look but
    /// one at its mappings, or more than [`CONTEXT_NS`] lay between these two looks: a context may have come and gone.
    opened_late: bool,
}

/// Number of times that rings which could not be read are looked for again; all rings of a process count together.
const AGAIN: u32 = 200;

impl Watched {
    /// Opens a process.
    ///
    /// # Errors
    /// Those of opening its memory.
    pub(crate) fn open(pid: u32, begin: Begin) -> io::Result<Self> {
        let (process, image) = opened(pid)?;
        Ok(Self {
            process: Some(process),
            parent: None,
            suspect: false,
            pid,
            begin,
            image: Arc::new(image),
            forked: process::state(pid).forked,
            pages: 0,
            areas: Vec::new(),
            rings: BTreeSet::new(),
            next_maps: 0,
            next_search: 0,
            searched_at: Some(0),
            sought_at: 0,
            unsought: 0,
            appear_until: now() + APPEAR_NS,
            next_thorough: 0,
            next_tokens: u64::MAX,
            token_tries: 0,
            unresolved: BTreeMap::new(),
            doorbell: false,
            files_since: None,
            next_files: 0,
            mapped_at: 0,
            began_at: now(),
            not_before: 0,
            launched: begin == Begin::First,
            forgotten: 0,
            dropped: Vec::new(),
            moved: 0,
            gone: false,
            found: false,
            unread: Vec::new(),
            put_off: BTreeSet::new(),
            stale: BTreeSet::new(),
            seen_to_its_end: false,
            opened_late: false,
        })
    }

    /// Returns the time at which its mappings were last looked at, ns.
    pub(crate) fn mapped_at(&self) -> u64 {
        self.mapped_at.max(self.began_at)
    }

    /// The next look looks at everything, however short a time ago that was done.
    pub(crate) fn look_at_all(&mut self) {
        self.suspect = true;
        (self.next_maps, self.next_search, self.next_thorough) = (0, 0, 0);
        self.next_files = 0;
        self.searched_at = None;
    }

    /// The next look looks at its mappings, where they have changed, and for rings, however short a time ago that was done.
    pub(crate) fn look_now(&mut self) {
        (self.next_maps, self.next_search, self.next_files) = (0, 0, 0);
    }

    /// Its rings are not those that were found: all are looked for anew, and followed from their first entry.
    pub(crate) fn forget_rings(&mut self) {
        self.rings.clear();
        self.areas.clear();
        self.begin = Begin::First;
        self.look_at_all();
    }

    /// A ring was found and is not followed yet: it is looked for again. `own`: the process has it from no forebear.
    pub(crate) fn unsee(&mut self, ring: Option<CpuVa>, own: bool) {
        if let Some(ring) = ring {
            self.rings.remove(&ring.0);
            if own {
                self.put_off.insert(ring.0);
            }
        }
    }

    /// Tells whether any channel of the process was ever found.
    pub(crate) fn has_had_channels(&self) -> bool {
        self.found
    }

    /// A ring was found, and could be read, or not.
    pub(crate) fn found_ring(&mut self, ring: Option<CpuVa>, readable: bool) {
        if let Some(ring) = ring {
            self.put_off.remove(&ring.0);
        }
        if readable {
            self.unread.retain(|r| Some(*r) != ring);
        } else {
            self.unread
                .extend(ring.filter(|r| !self.unread.contains(r)));
        }
    }

    /// It executes another program than the one that was looked at: its image. `forked`: it runs its parent's program still.
    pub(crate) fn executes(&mut self, forked: bool) -> Option<Image> {
        let turned = self.forked && !forked;
        let same = !turned && procfs::pages(self.pid) == self.pages;
        if !self.suspect && !self.gone && same {
            return None;
        }
        let image = Image::of(self.pid).unwrap_or_default();
        if image.is_empty() {
            return None;
        }
        self.forked = forked;
        if image == *self.image {
            return None;
        }
        if self.image.is_empty() && !self.gone {
            // It was taken on in the middle of an exec: which of the two memories was opened is not known.
            self.open_again(image);
            return None;
        }
        if image.looks_like(&self.image) && !self.gone && !turned {
            // It has written over its random bytes.
            return None;
        }
        // Of the old program nothing can be read, and what is at its addresses is not its.
        self.process = None;
        Some(image)
    }

    fn open_again(&mut self, image: Image) {
        let (process, image) = match opened(self.pid) {
            Ok((process, image)) => (Some(process), image),
            Err(_) => (None, image),
        };
        (self.process, self.image) = (process, Arc::new(image));
    }

    /// It ran its parent's program still when it was last looked at.
    pub(crate) fn is_forked(&self) -> bool {
        self.forked
    }

    /// Device memory is mapped here.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        maps::at(&self.areas, address).is_some_and(|a| a.device().is_some())
    }

    /// One of its rings is followed.
    pub(crate) fn has_ring(&mut self, ring: CpuVa) {
        self.put_off.remove(&ring.0);
        self.rings.insert(ring.0);
        self.begin = Begin::First;
        self.found = true;
    }

    /// Begins with the program that it executes now.
    pub(crate) fn begin_anew(&mut self, image: Image) {
        self.open_again(image);
        self.dropped.clear();
        (self.sought_at, self.unsought) = (0, 0);
        self.moved = 0;
        self.gone = false;
        self.seen_to_its_end = false;
        (self.doorbell, self.files_since, self.found) = (false, None, false);
        self.unread.clear();
        self.put_off.clear();
        self.next_files = 0;
        (self.mapped_at, self.began_at) = (0, now());
        self.forget_rings();
    }

    /// A ring could not be read: it was unmapped, and another may be mapped in its place.
    pub(crate) fn forget(&mut self, ring: Option<CpuVa>, why: io::ErrorKind) {
        self.suspect = true;
        // The kernel's way of saying that there is no memory of that program any more.
        self.gone |= why == io::ErrorKind::UnexpectedEof;
        self.forgotten += 1;
        if let (Some(ring), true) = (ring, self.forgotten < AGAIN) {
            self.rings.remove(&ring.0);
            self.stale.insert(ring.0);
            self.begin = Begin::First;
            self.next_search = 0;
        }
    }

    /// Returns the share of a core that looking may take now, as one part in so many: more while channels are about to appear, of which nothing
    /// may be missed.
    fn part(&self) -> u64 {
        if self.begin == Begin::First && now() < self.appear_until {
            PART / 10
        } else {
            PART
        }
    }

    /// Returns the number of places that moved as a channel's GP_PUT does and have no ring that was found: what was submitted there was
    /// not seen.
    pub(crate) fn unresolved(&self) -> usize {
        let moved = self.unresolved.values().filter(|u| u.moved);
        moved.filter(|u| !self.rings.contains(&u.ring)).count()
    }

    /// Looks whether it has a GPU's file open, where it has not mapped a doorbell yet.
    fn look_at_files(&mut self, now: u64) {
        let known = self.doorbell || self.files_since.is_some();
        if self.launched && !known && now >= self.next_files {
            let begun = process::search_cpu();
            self.files_since = maps::has_gpu_open(self.pid).then_some(now);
            let cost = process::search_cpu().saturating_sub(begun);
            self.next_files = now + (cost * PART).clamp(SHORTEST_NS, LONGEST_NS);
        }
    }

    /// Looks for other mappings and new rings, and calls `between` after each small piece of that: rings that are known
    /// must be looked at meanwhile.
    pub(crate) fn look(&mut self, given: &ChannelsFile, between: &mut dyn FnMut()) -> Changes {
        let mut changes = Changes::default();
        let now = now();
        let pages = procfs::pages(self.pid);
        let changed = std::mem::take(&mut self.suspect) || pages != self.pages;
        if changed && now >= self.next_maps || now >= self.next_maps + 10 * LONGEST_NS {
            self.pages = pages;
            let begun = process::search_cpu();
            self.read_maps(now, &mut changes, between);
            let cost = process::search_cpu().saturating_sub(begun);
            self.next_maps = now + (cost * self.part()).clamp(SHORTEST_NS, LONGEST_NS);
        }
        self.look_at_files(now);
        if given.channels.is_empty() {
            self.search(now, &mut changes, between);
        } else {
            self.take_named(given, &mut changes);
        }
        self.find_tokens(now, &mut changes, between);
        // A running process that has no channel in use: those that it uses later are new, from their first entry on.
        if self.mapped_at > 0 && self.rings.is_empty() && self.unresolved.is_empty() {
            self.begin = Begin::First;
        }
        changes
    }

    /// Finds tokens once no more channels have appeared for a while: which token is whose follows from the order in which
    /// all of them were made.
    fn find_tokens(&mut self, now: u64, changes: &mut Changes, between: &mut dyn FnMut()) {
        if now < self.next_tokens {
            return;
        }
        let Some(process) = self.process.clone() else {
            return;
        };
        let memory = Polite {
            memory: &process.memory,
            between: RefCell::new(between),
        };
        changes.tokens = snapshot::tokens(&memory, &self.areas);
        // A busy ring may have moved too fast to be judged.
        let all = changes.tokens.len() >= self.rings.len();
        self.token_tries = self.token_tries.saturating_sub(1);
        self.next_tokens = if all || self.token_tries == 0 {
            u64::MAX
        } else {
            now + 4 * TOKENS_NS
        };
    }

    /// The first time from `now` on at which it may be looked after again, by what that cost the last time.
    pub(crate) fn not_before(&self, now: u64) -> u64 {
        self.not_before.max(now)
    }

    /// It was looked after, which cost so much CPU time: gives when to do that again. `sleeps`: it runs too little to make a
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
        for gone in self.areas.iter().filter(|a| !maps::has(&areas, a)) {
            if gone.device().is_some() {
                changes.records.push(Record::Unmapping(Unmapping {
                    at,
                    start: CpuVa(gone.start),
                    len: gone.end - gone.start,
                }));
                self.next_search = 0;
            }
            // Not where it has merely become part of a larger mapping, or been split.
            let still = |r: &u64| maps::at(&areas, *r).is_some_and(|a| a.path == gone.path);
            self.rings
                .retain(|r| !(gone.start..gone.end).contains(r) || still(r));
        }
        for new in areas.iter().filter(|a| !maps::has(&self.areas, a)) {
            if let Some(mapping) = new.record(at) {
                changes.records.push(Record::Mapping(mapping));
                self.next_search = 0;
            }
            self.doorbell |= new.is_doorbell_shape();
        }
        self.areas = areas;
        self.stale.clear();
        self.mapped_at = now;
    }

    /// Finds rings by their structure: where the mappings have changed, and now and then.
    fn search(&mut self, now: u64, changes: &mut Changes, between: &mut dyn FnMut()) {
        let Some(process) = self.process.clone() else {
            return;
        };
        let memory = Polite {
            memory: &process.memory,
            between: RefCell::new(between),
        };
        let gpu = |a: &Area| a.read && a.write && matches!(a.device(), Some(Device::Gpu(_)));
        if now < self.next_search || !self.areas.iter().any(gpu) {
            return;
        }
        let run = process.cpu().unwrap_or(0);
        let has_rested = |before: u64| run.saturating_sub(before) < NOTHING_NS;
        let idle = self.searched_at.is_some_and(has_rested);
        if !self.rings.is_empty() && idle {
            self.sought_at = now;
            self.next_search = now + SEARCH_LATE_NS;
            return;
        }
        self.searched_at = Some(run);
        let cpu = process::search_cpu();
        let mut found = slots(&memory, &self.areas, &self.rings, &mut self.unresolved);
        if found.is_empty() && self.rings.is_empty() && now >= self.next_thorough {
            // Not laid out as libcuda does: by structure, which costs more.
            found = scan::search(&memory, &self.areas, Effort::Usual).found;
            found.retain(|f| f.used);
            // What was used for the first time meanwhile is known better by where it lies.
            let lie = slots(&memory, &self.areas, &self.rings, &mut self.unresolved);
            if !found.is_empty() && !lie.is_empty() {
                found = lie;
            }
            let cost = process::search_cpu().saturating_sub(cpu);
            self.next_thorough = now + (cost * PART).max(THOROUGH_NS);
        }
        let is_there = |ring: &u64| memory.word(*ring).is_ok();
        if self.rings.iter().all(is_there) {
            self.sought_at = now;
        }
        let cost = process::search_cpu().saturating_sub(cpu);
        let begin = self.begin;
        for f in found {
            if self.stale.contains(&f.ring) || !self.rings.insert(f.ring) {
                continue;
            }
            let soon = if begin == Begin::Here { 0 } else { TOKENS_NS };
            (self.next_tokens, self.token_tries) = (now + soon, 5);
            changes.channels.push(NewChannel {
                channel: f.channel(self.at(now), ChannelId(0)),
                begin,
            });
        }
        if self.rings.is_empty() {
            self.appear_until = now + APPEAR_NS;
        }
        let least = if now > self.appear_until {
            SEARCH_LATE_NS
        } else {
            SEARCH_NS
        };
        self.next_search = now + least.max(cost * self.part());
        // What appears from now on appears under observation.
        if !self.rings.is_empty() {
            self.begin = Begin::First;
            self.found = true;
        }
    }

    fn take_named(&mut self, given: &ChannelsFile, changes: &mut Changes) {
        let now = now();
        let mapped = |areas: &[Area], at: u64| maps::at(areas, at).is_some_and(|a| a.read);
        for c in &given.channels {
            if !mapped(&self.areas, c.ring) || !mapped(&self.areas, c.userd) {
                continue;
            }
            if self.stale.contains(&c.ring) || !self.rings.insert(c.ring) {
                continue;
            }
            changes.channels.push(NewChannel {
                channel: c.channel(self.at(now), ChannelId(0)),
                begin: self.begin,
            });
        }
        // Others are not looked for.
        self.sought_at = u64::MAX;
        if !self.rings.is_empty() {
            self.begin = Begin::First;
            self.found = true;
        }
    }
}

/// A process's memory and clock, and its program image; the image is empty where another program began meanwhile.
fn opened(pid: u32) -> io::Result<(Arc<Process>, Image)> {
    for _ in 0..3 {
        let before = Image::of(pid).unwrap_or_default();
        let process = Process::open(pid)?;
        if !before.is_empty() && Image::of(pid).is_ok_and(|after| after == before) {
            return Ok((Arc::new(process), before));
        }
    }
    Ok((Arc::new(Process::open(pid)?), Image::default()))
}
