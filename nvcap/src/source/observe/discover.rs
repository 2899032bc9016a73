//! A process that is observed: what of it may have changed since the last look, found cheaply.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs, io,
    sync::Arc,
};

use super::{
    channel::Begin,
    process::{self, Process, now},
};
use crate::record::{At, Channel, ChannelId, CpuVa, Device, Record, Unmapping};
use crate::source::{
    given::Given,
    memory::{
        find::{self, Effort, Found, Places},
        maps::{self, Area},
        process::Peek,
        tokens,
    },
};

/// Shortest time between two looks after a process, ns.
const SHORTEST_NS: u64 = 3_000_000;
/// Longest, ns.
const LONGEST_NS: u64 = 1_000_000_000;
/// What looking after a process may cost: one part in so many of a core.
const PART: u64 = 100;
/// Time between two searches for rings in mappings that have not changed, ns: while none was found, or some were
/// just now; and later, if the process has run at all.
const SEARCH_NS: [u64; 2] = [3_000_000, 50_000_000];
/// How long channels are expected to appear, from the first on, ns.
const APPEAR_NS: u64 = 5_000_000_000;

/// How long no channel must have appeared before tokens are looked for, ns.
const TOKENS_NS: u64 = 250_000_000;

/// A channel that was seen, and where following it begins.
#[derive(Debug)]
pub struct Seen {
    /// The channel; its number is still to be given.
    pub channel: Channel,
    /// Where.
    pub begin: Begin,
}

/// What a look after a process found.
#[derive(Debug, Default)]
pub struct Changes {
    /// Mappings made and given up.
    pub records: Vec<Record>,
    /// Channels that were not there before.
    pub channels: Vec<Seen>,
    /// Tokens that are known now, by ring.
    pub tokens: Vec<(u64, u32)>,
}

/// A process that is observed.
#[derive(Debug)]
pub struct Watched {
    /// Its memory and clock; `None` while it cannot be read.
    pub process: Option<Arc<Process>>,
    /// Who made it, where that is observed too.
    pub parent: Option<u32>,
    /// Something of it could not be read: look after it at once.
    pub suspect: bool,
    /// When to look after it, ns.
    pub due: u64,
    pid: u32,
    begin: Begin,
    /// Tells one program image from the next.
    image: Vec<u8>,
    pages: u64,
    areas: Vec<Area>,
    rings: BTreeSet<u64>,
    next_maps: u64,
    next_search: u64,
    /// CPU time it had used at the last search, ns.
    searched_at: u64,
    /// Until when channels are expected to appear.
    appear_until: u64,
    /// When the search by structure may be made again.
    next_thorough: u64,
    /// When tokens are looked for, and how often that may be done again.
    next_tokens: u64,
    token_tries: u32,
    /// USERDs of slots whose ring was not believed: GP_PUT seen there, whether it moved, and the ring.
    unresolved: BTreeMap<u64, (u32, bool, u64)>,
    doorbell: bool,
    /// Rings that could not be read and were forgotten.
    forgotten: u32,
    /// Its channels that nobody has any more.
    dropped: Vec<Dropped>,
    /// There is no memory of its program any more.
    gone: bool,
    /// Some of its channels were found.
    found: bool,
}

/// A channel that nobody has any more.
#[derive(Debug)]
pub struct Dropped {
    /// The last look at it found something.
    pub hot: bool,
    /// What is to be said if it has merely been unmapped.
    pub said: Record,
    /// When it was last read, ns.
    pub looked: u64,
    /// Something had come shortly before: more may have come since.
    pub busy: bool,
}

/// For how long nothing must have come before the last look, ns, so that a process that ends is taken to have been
/// done with a channel: twice as long as it has paused of late (`pause`), for it may have been about to go on; 20 ms at
/// least, for a pause may be nothing but another program's time on the processor; and 100 ms at most.
pub fn quiet(pause: u64) -> u64 {
    (2 * pause).clamp(20_000_000, 100_000_000)
}

/// How often a ring that could not be read is looked for again, all rings of a process together.
const AGAIN: u32 = 200;

impl Watched {
    /// Opens a process.
    ///
    /// # Errors
    /// Those of opening its memory.
    pub fn open(pid: u32, begin: Begin) -> io::Result<Self> {
        Ok(Self {
            process: Some(Arc::new(Process::open(pid)?)),
            parent: None,
            suspect: false,
            due: 0,
            pid,
            begin,
            image: image(pid),
            pages: 0,
            areas: Vec::new(),
            rings: BTreeSet::new(),
            next_maps: 0,
            next_search: 0,
            searched_at: 0,
            appear_until: now() + APPEAR_NS,
            next_thorough: 0,
            next_tokens: u64::MAX,
            token_tries: 0,
            unresolved: BTreeMap::new(),
            doorbell: false,
            forgotten: 0,
            dropped: Vec::new(),
            gone: false,
            found: false,
        })
    }

    /// It could submit, and nobody saw whether it did.
    pub fn unseen(&self) -> bool {
        self.doorbell && !self.found
    }

    /// Its rings are others than were seen: all are to be found anew, from their beginning.
    pub fn forget_rings(&mut self) {
        self.rings.clear();
        self.areas.clear();
        self.begin = Begin::First;
        self.suspect = true;
        (self.next_maps, self.next_search) = (0, 0);
    }

    /// A ring is not to be followed yet: it is looked for again.
    pub fn unsee(&mut self, ring: Option<CpuVa>) {
        if let Some(ring) = ring {
            self.rings.remove(&ring.0);
        }
    }

    /// Nobody has one of its channels any more.
    pub fn drop_channel(&mut self, dropped: Dropped) {
        self.dropped.push(dropped);
    }

    /// It lives on without the channels that were dropped.
    pub fn unmapped(&mut self) -> Vec<Record> {
        if self.gone {
            // It is ending, or executing another program: the next look tells which.
            return Vec::new();
        }
        let dropped = std::mem::take(&mut self.dropped);
        dropped
            .into_iter()
            .filter(|d| d.hot)
            .map(|d| d.said)
            .collect()
    }

    /// All its memory is gone. `Some`: it was submitting then, and so many ns have passed since the last look.
    pub fn ended_busy(&mut self, now: u64) -> Option<u64> {
        let dropped = std::mem::take(&mut self.dropped);
        let last = dropped.iter().map(|d| d.looked).max()?;
        let busy = dropped.iter().any(|d| d.busy);
        busy.then(|| now.saturating_sub(last))
    }

    /// It executes another program than the one that was looked at: its name.
    pub fn executes(&mut self) -> Option<String> {
        if !self.suspect && !self.gone && process::pages(self.pid) == self.pages {
            return None;
        }
        let image = image(self.pid);
        if image == self.image || image.is_empty() {
            return None;
        }
        let first = self.image.is_empty();
        self.image = image;
        if first && !self.gone {
            // It was taken on in the middle of an exec: which of the two memories was opened is not known.
            self.process = Process::open(self.pid).ok().map(Arc::new);
            return None;
        }
        // Of the old program nothing can be read, and what is at its addresses is not its.
        self.process = None;
        Some(process::name(self.pid))
    }

    /// Begins with the program that it executes now.
    pub fn begin_anew(&mut self) {
        self.process = Process::open(self.pid).ok().map(Arc::new);
        self.dropped.clear();
        self.gone = false;
        self.forget_rings();
    }

    /// A ring could not be read: it was unmapped, and another may be mapped in its place.
    pub fn forget(&mut self, ring: Option<CpuVa>, why: io::ErrorKind) {
        self.suspect = true;
        // The kernel's way of saying that there is no memory of that program any more.
        self.gone |= why == io::ErrorKind::UnexpectedEof;
        self.forgotten += 1;
        if let (Some(ring), true) = (ring, self.forgotten < AGAIN) {
            self.rings.remove(&ring.0);
            self.begin = Begin::First;
            self.next_search = 0;
        }
    }

    /// What looking may cost now: more while channels are about to appear and nothing of them may be missed.
    fn part(&self) -> u64 {
        if self.begin == Begin::First && now() < self.appear_until {
            PART / 10
        } else {
            PART
        }
    }

    /// Places that look like a channel's and could not be resolved: submissions to them would not have been seen.
    pub fn unresolved(&self) -> usize {
        let moved = self.unresolved.values().filter(|u| u.1);
        moved.filter(|u| !self.rings.contains(&u.2)).count()
    }

    /// Looks for other mappings and new rings, and calls `between` after each small piece of that: rings that are known
    /// must be looked at meanwhile.
    pub fn look(&mut self, given: &Given, between: &mut dyn FnMut()) -> Changes {
        let mut changes = Changes::default();
        let now = now();
        let pages = process::pages(self.pid);
        let changed = std::mem::take(&mut self.suspect) || pages != self.pages;
        if changed && now >= self.next_maps || now >= self.next_maps + 10 * LONGEST_NS {
            self.pages = pages;
            let begun = process::thread_cpu();
            self.read_maps(now, &mut changes, between);
            let cost = process::thread_cpu().saturating_sub(begun);
            self.next_maps = now + (cost * self.part()).clamp(SHORTEST_NS, LONGEST_NS);
        }
        if given.channels.is_empty() {
            self.search(now, &mut changes, between);
        } else {
            self.take_given(given, &mut changes);
        }
        self.find_tokens(now, &mut changes, between);
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
        changes.tokens = tokens::tokens(&memory, &self.areas);
        // A busy ring may have moved too fast to be judged.
        let all = changes.tokens.len() >= self.rings.len();
        self.token_tries = self.token_tries.saturating_sub(1);
        self.next_tokens = if all || self.token_tries == 0 {
            u64::MAX
        } else {
            now + 4 * TOKENS_NS
        };
    }

    /// Sets the next look by what this one cost.
    pub fn pause(&mut self, cost_ns: u64) {
        self.due = now() + (cost_ns * self.part()).clamp(SHORTEST_NS, LONGEST_NS);
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
        for gone in self.areas.iter().filter(|a| !areas.contains(a)) {
            if gone.device().is_some() {
                changes.records.push(Record::Unmapping(Unmapping {
                    at,
                    start: CpuVa(gone.start),
                    len: gone.end - gone.start,
                }));
                self.next_search = 0;
            }
            // Not where it has merely become part of a larger mapping, or been split.
            let still = |r: &u64| {
                let mut at = areas.iter().filter(|a| (a.start..a.end).contains(r));
                at.any(|a| a.path == gone.path)
            };
            self.rings
                .retain(|r| !(gone.start..gone.end).contains(r) || still(r));
        }
        for new in areas.iter().filter(|a| !self.areas.contains(a)) {
            if let Some(mapping) = new.record(at) {
                changes.records.push(Record::Mapping(mapping));
                self.next_search = 0;
            }
            self.doorbell |= new.is_doorbell_shape();
        }
        self.areas = areas;
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
        if !self.rings.is_empty() && run.saturating_sub(self.searched_at) < 1_000_000 {
            self.next_search = now + SEARCH_NS[1];
            return;
        }
        self.searched_at = run;
        let cpu = process::thread_cpu();
        let mut found = slots(&memory, &self.areas, &self.rings, &mut self.unresolved);
        if found.is_empty() && self.rings.is_empty() && now >= self.next_thorough {
            // Not laid out as libcuda does: by structure, which costs more.
            found = find::search(&memory, &self.areas, Effort::Usual).found;
            found.retain(|f| f.used);
            let cost = process::thread_cpu().saturating_sub(cpu);
            self.next_thorough = now + (cost * PART).max(SEARCH_NS[1]);
        }
        let cost = process::thread_cpu().saturating_sub(cpu);
        let begin = self.begin;
        for f in found {
            if !self.rings.insert(f.ring) {
                continue;
            }
            let soon = if begin == Begin::Here { 0 } else { TOKENS_NS };
            (self.next_tokens, self.token_tries) = (now + soon, 5);
            changes.channels.push(Seen {
                channel: f.channel(self.at(now), ChannelId(0)),
                begin,
            });
        }
        if self.rings.is_empty() {
            self.appear_until = now + APPEAR_NS;
        }
        let least = SEARCH_NS[usize::from(now > self.appear_until)];
        self.next_search = now + least.max(cost * self.part());
        // What appears from now on appears under observation.
        if !self.rings.is_empty() {
            self.begin = Begin::First;
            self.found = true;
        }
    }

    fn take_given(&mut self, given: &Given, changes: &mut Changes) {
        let now = now();
        let mapped =
            |areas: &[Area], at: u64| areas.iter().any(|a| a.read && a.start <= at && at < a.end);
        for c in &given.channels {
            if !mapped(&self.areas, c.ring) || !mapped(&self.areas, c.userd) {
                continue;
            }
            if !self.rings.insert(c.ring) {
                continue;
            }
            changes.channels.push(Seen {
                channel: c.channel(self.at(now), ChannelId(0)),
                begin: self.begin,
            });
        }
        if !self.rings.is_empty() {
            self.begin = Begin::First;
            self.found = true;
        }
    }
}

/// Memory that is searched while something else must go on: called between any two reads.
struct Polite<'a, P> {
    memory: &'a P,
    between: RefCell<&'a mut dyn FnMut()>,
}

impl<P: Peek> Peek for Polite<'_, P> {
    fn peek(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        (self.between.borrow_mut())();
        self.memory.peek(at, to)
    }
}

/// Slots behind the last used one that are looked at.
const UNUSED: u32 = 24;

/// The channels that lie as libcuda lays them out, however fast they move: the entry before GP_PUT is a segment in
/// mapped memory, which stays so whatever comes behind it. Slots that are all zero are channels where a used one lies
/// behind them; what looks like a USERD and has no such entry is `unresolved`. Slots that are `known` are not read again:
/// while this looks, nothing is followed.
fn slots(
    memory: &impl Peek,
    areas: &[Area],
    known: &BTreeSet<u64>,
    unresolved: &mut BTreeMap<u64, (u32, bool, u64)>,
) -> Vec<Found> {
    let places = Places::new(areas);
    let mut all = Vec::new();
    for area in areas {
        let Some(Device::Gpu(gpu)) = area.device() else {
            continue;
        };
        let fits = (find::SLOT..=64 << 20).contains(&(area.end - area.start));
        if !area.read || !area.write || !fits || area.is_doorbell_shape() {
            continue;
        }
        let mut zero = Vec::new();
        let mut unused = 0;
        let mut ring = area.start;
        while ring + find::SLOT <= area.end && unused < UNUSED {
            let userd = ring + find::USERD;
            unused += 1;
            if known.contains(&ring) {
                unused = 0;
                all.append(&mut zero);
            } else if let Some((get, put, used)) = slot(memory, &places, ring, known.is_empty()) {
                let found = Found {
                    gpu,
                    ring,
                    entries: find::ENTRIES,
                    userd,
                    get,
                    put,
                    used,
                    proof: find::Proof::default(),
                };
                if used {
                    unused = 0;
                    all.append(&mut zero);
                    all.push(found);
                    unresolved.remove(&userd);
                } else if (get, put) == (0, 0) {
                    zero.push(found);
                } else {
                    let seen = unresolved.entry(userd).or_insert((put, false, ring));
                    seen.1 |= seen.0 != put;
                }
            }
            ring += find::SLOT;
        }
    }
    all
}

/// GP_GET and GP_PUT of a slot where both are possible, and whether the entry before GP_PUT is one.
fn slot(
    memory: &impl Peek,
    places: &Places<'_>,
    ring: u64,
    thorough: bool,
) -> Option<(u32, u32, bool)> {
    let both = memory.word(ring + find::USERD + find::GP_GET).ok()?;
    let (get, put) = (both as u32, (both >> 32) as u32);
    if get >= find::ENTRIES || put >= find::ENTRIES {
        return None;
    }
    let newest = u64::from(put.wrapping_sub(1) % find::ENTRIES);
    // All zero, most likely: only where nothing is known yet it may have gone round exactly.
    if (get, put) == (0, 0) && !thorough {
        return Some((0, 0, false));
    }
    let entry = memory.word(ring + 8 * newest).ok()?;
    let (address, len) = (entry & 0xff_ffff_fffc, super::proof::length(entry) as u64);
    Some((get, put, len != 0 && places.holds(address, len)))
}

/// What the kernel told a program image when it began: where its loader and its random bytes lie. Empty while that is
/// being put together.
fn image(pid: u32) -> Vec<u8> {
    const LEAST: usize = 128;
    let mut image = fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    if image.len() < LEAST {
        image.clear();
    }
    image
}

/// Whether a forked child's ring is its parent's, by the mapping's identity or, for device memory, by what is in it.
pub fn same_memory(parent: u32, child: u32, channel: &Channel) -> bool {
    let (Some(ring), Some(userd)) = (channel.ring, channel.userd) else {
        return false;
    };
    let identities = (
        process::shared_identity(parent, ring.0),
        process::shared_identity(child, ring.0),
    );
    match identities {
        (Some(a), Some(b)) => return a == b,
        (None, None) => {}
        _ => return false,
    }
    let (Ok(parent), Ok(child)) = (Process::open(parent), Process::open(child)) else {
        return false;
    };
    let mask = channel.entries.unwrap_or(1).saturating_sub(1);
    let put = |p: &Process| {
        let both = p.memory.word(userd.0 + find::GP_GET).ok();
        both.map(|b| (b >> 32) as u32)
    };
    let same = || {
        // However fast it moves: the child's GP_PUT lies between the parent's before and after it, and the entry
        // before it is one and the same.
        let (before, theirs, after) = (put(&parent)?, put(&child)?, put(&parent)?);
        let newest = ring.0 + 8 * u64::from(theirs.wrapping_sub(1) & mask);
        let (mine, its) = (
            parent.memory.word(newest).ok()?,
            child.memory.word(newest).ok()?,
        );
        let between = theirs.wrapping_sub(before) & mask <= after.wrapping_sub(before) & mask;
        Some(between && mine == its)
    };
    (0..3).any(|_| same() == Some(true))
}
