//! A process that is observed: what of it may have changed since the last look, found cheaply.

use std::{collections::BTreeSet, fs, io, time::Duration};

use super::{
    channel::Begin,
    process::{self, Process, now},
};
use crate::record::{At, Channel, ChannelId, CpuVa, Device, Origin, Record, Unmapping};
use crate::source::{
    given::Given,
    memory::{
        find::{self, Effort},
        maps::{self, Area},
        process::Peek,
    },
};

/// Shortest time between two looks after a process, ns.
const SHORTEST_NS: u64 = 10_000_000;
/// Longest, ns.
const LONGEST_NS: u64 = 1_000_000_000;
/// What looking after a process may cost: one part in so many of a core.
const PART: u32 = 40;
/// Time between two searches for rings in mappings that have not changed, ns: none was found yet, or some were.
const SEARCH_NS: [u64; 2] = [10_000_000, 2_000_000_000];

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
    /// It executes another program, of this name.
    pub executes: Option<String>,
    /// Mappings made and given up.
    pub records: Vec<Record>,
    /// Channels that were not there before.
    pub channels: Vec<Seen>,
}

/// A process that is observed.
#[derive(Debug)]
pub struct Watched {
    /// Its memory and clock; `None` while it cannot be read.
    pub process: Option<Process>,
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
    doorbell: bool,
}

impl Watched {
    /// Opens a process.
    ///
    /// # Errors
    /// Those of opening its memory.
    pub fn open(pid: u32, begin: Begin) -> io::Result<Self> {
        Ok(Self {
            process: Some(Process::open(pid)?),
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
            doorbell: false,
        })
    }

    /// CPU time it has used, ns; `None` when it is gone.
    pub fn cpu(&self) -> Option<u64> {
        self.process.as_ref()?.cpu()
    }

    /// It could submit, and nobody saw whether it did.
    pub fn unseen(&self) -> bool {
        self.doorbell && self.rings.is_empty()
    }

    /// Its rings are others than were seen: all are to be found anew, from their beginning.
    pub fn forget_rings(&mut self) {
        self.rings.clear();
        self.areas.clear();
        self.begin = Begin::First;
        self.suspect = true;
        (self.next_maps, self.next_search) = (0, 0);
    }

    /// Looks for another program image, other mappings, new rings.
    pub fn look(&mut self, given: &Given) -> Changes {
        let mut changes = Changes::default();
        let now = now();
        let pages = process::pages(self.pid);
        let changed = std::mem::take(&mut self.suspect) || pages != self.pages;
        if changed {
            let image = image(self.pid);
            if image != self.image && !image.is_empty() {
                changes.executes = Some(process::name(self.pid));
                self.image = image;
                self.process = Process::open(self.pid).ok();
                self.begin = Begin::First;
                self.areas.clear();
                self.rings.clear();
            }
        }
        if changed && now >= self.next_maps || now >= self.next_maps + LONGEST_NS {
            self.pages = pages;
            self.read_maps(now, &mut changes);
            let cost = process::now() - now;
            self.next_maps = now + (cost * u64::from(PART)).clamp(SHORTEST_NS, LONGEST_NS);
        }
        if given.channels.is_empty() {
            self.search(now, &mut changes);
        } else {
            self.take_given(given, &mut changes);
        }
        changes
    }

    /// Sets the next look by what this one cost.
    pub fn pause(&mut self, cost: Duration) {
        let ns = (cost * PART).as_nanos() as u64;
        self.due = now() + ns.clamp(SHORTEST_NS, LONGEST_NS);
    }

    fn at(&self, now: u64) -> At {
        At {
            time_ns: now,
            pid: self.pid,
            tid: 0,
        }
    }

    fn read_maps(&mut self, now: u64, changes: &mut Changes) {
        let Ok(areas) = maps::areas(self.pid) else {
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
            self.rings.retain(|r| !(gone.start..gone.end).contains(r));
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
    fn search(&mut self, now: u64, changes: &mut Changes) {
        let Some(process) = &self.process else {
            return;
        };
        let gpu = |a: &Area| a.read && a.write && matches!(a.device(), Some(Device::Gpu(_)));
        if now < self.next_search || !self.areas.iter().any(gpu) {
            return;
        }
        // The thorough way once, where the cheap one finds nothing in a process that was there before.
        let first = self.begin == Begin::Here && self.rings.is_empty();
        let effort = if first { Effort::Usual } else { Effort::Habit };
        let found = find::search(&process.memory, &self.areas, effort).found;
        let cost = process::now() - now;
        let begin = self.begin;
        for f in found {
            if !self.rings.insert(f.ring) {
                continue;
            }
            changes.channels.push(Seen {
                channel: Channel {
                    at: self.at(now),
                    id: ChannelId(0),
                    gpu: Some(f.gpu),
                    token: None,
                    class: None,
                    engine: None,
                    handle: None,
                    ring_gpu: None,
                    ring: Some(CpuVa(f.ring)),
                    entries: Some(f.entries),
                    userd: Some(CpuVa(f.userd)),
                    origin: Origin::Found,
                },
                begin,
            });
        }
        let least = SEARCH_NS[usize::from(!self.rings.is_empty())];
        self.next_search = now + least.max(cost * u64::from(PART));
        // What appears from now on appears under observation.
        if !self.rings.is_empty() {
            self.begin = Begin::First;
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
                channel: Channel {
                    at: self.at(now),
                    id: ChannelId(0),
                    gpu: Some(c.gpu),
                    token: c.token,
                    class: c.class,
                    engine: c.engine,
                    handle: None,
                    ring_gpu: None,
                    ring: Some(CpuVa(c.ring)),
                    entries: Some(c.entries),
                    userd: Some(CpuVa(c.userd)),
                    origin: Origin::Given,
                },
                begin: self.begin,
            });
        }
        if !self.rings.is_empty() {
            self.begin = Begin::First;
        }
    }
}

/// What the kernel told a program image when it began: where its loader and its random bytes lie.
fn image(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default()
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
    // A submission may come between two reads: three times is no accident.
    (0..3).any(|_| {
        let put = |p: &Process| p.memory.word(userd.0 + find::GP_GET).ok();
        let newest = |p: &Process| {
            let mut b = [0; 512];
            p.memory.peek(ring.0, &mut b).ok().map(|()| b)
        };
        put(&parent).is_some_and(|p| Some(p) == put(&child))
            && newest(&parent).is_some_and(|n| Some(n) == newest(&child))
    })
}
