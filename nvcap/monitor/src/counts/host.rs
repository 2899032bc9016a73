//! All processes that are counted: it finds them, reads them in turn, and keeps the sums of those that have ended.
//!
//! Nothing is lost or counted twice. The sums of a process that ends stay with its owner (its container, or the host). A forked process
//! with its parent's channels in its memory is not counted beside the parent, and takes the channels over when the parent ends. A process
//! that executes another program counts as a new process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::channel::From;
use super::decoding::Shared;
use super::detail::busy::{Busy, Moments};
use super::detail::{Detail, Samples};
use super::exited::Kept;
use super::followed::Followed;
use super::pace::{Pace, Sampling};
use super::process::{Channels, Outcome};
use super::source::{Opened, System};
use super::view::{ChannelView, Clocks, GpuView, Key, LastSeen, Named, ProcessView, Refused, View};

mod look;
mod watched;

use watched::Watched;

const SECOND: u64 = 1_000_000_000;
/// Time after which a process whose memory cannot be read is tried again.
const RETRY: u64 = 30 * SECOND;
/// Number of images of ended processes that are remembered.
const MOST_DEPARTED: usize = 256;
/// Number of readings between two checks that a forked process still has its parent's memory.
const HEIR_EACH: u64 = 5;

/// A process that was found and cannot be opened.
struct Shut {
    refused: Refused,
    /// True if its memory did not answer in time.
    is_given_up: bool,
    since: u64,
    tried: u64,
}

/// Options of counting a host.
#[derive(Clone, Copy, Debug)]
pub struct HostOptions {
    /// Time from one reading to the next.
    pub interval: Duration,
    /// The part of a core that nvcap may use.
    pub budget: Option<f64>,
    /// The part of a core that may be spent on samples of what submissions are; none: no samples are taken.
    pub sample: Option<f64>,
    /// True if each process has sums of its own.
    pub by_process: bool,
    /// The most keys with sums of their own. With more of them, new processes get none, and those without a process are folded, the oldest
    /// first.
    pub most: usize,
    /// Time for which the sums of what has ended are kept apart.
    pub keep: Duration,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            budget: None,
            sample: None,
            by_process: false,
            most: 1000,
            keep: Duration::from_secs(600),
        }
    }
}

/// All processes that are counted, and the sums of those that have ended.
pub struct Host<S: System> {
    pub(crate) system: S,
    processes: BTreeMap<u32, Watched<S::Memory>>,
    refused: BTreeMap<u32, Shut>,
    options: HostOptions,
    kept: Kept,
    sampling: Sampling,
    busy: Busy,
    moments: Moments,
    decoder: Shared,
    /// Program images of ended processes, and their ends, ns since the epoch. A process that had begun by then and is found later with the same image
    /// may have inherited their channels by fork.
    departed: VecDeque<(Vec<u8>, u64)>,
    /// Processes that are found still, and had ended when they were to be opened or read.
    ended: BTreeSet<u32>,
    blind: BTreeMap<&'static str, u64>,
    ended_unseen: BTreeMap<LastSeen, u64>,
    pace: Pace,
    rounds: u64,
    began_ns: u64,
    last_ns: u64,
}

impl<S: System> Host<S> {
    /// Creates the counts of a system.
    pub fn new(mut system: S, options: HostOptions) -> Self {
        let (now, cpu) = system.clocks();
        Self {
            system,
            processes: BTreeMap::new(),
            refused: BTreeMap::new(),
            options,
            kept: Kept::default(),
            sampling: Sampling::default(),
            busy: Busy::default(),
            moments: Moments::default(),
            decoder: Shared::default(),
            departed: VecDeque::new(),
            ended: BTreeSet::new(),
            blind: BTreeMap::new(),
            ended_unseen: BTreeMap::new(),
            pace: Pace::new(options.interval, options.budget, now, cpu),
            rounds: 0,
            began_ns: now,
            last_ns: now,
        }
    }

    /// Finds and reads processes. Returns the time to wait until the next round.
    pub fn round(&mut self) -> Duration {
        self.rounds += 1;
        let (now, _) = self.system.clocks();
        self.find(now);
        let mut pids: Vec<u32> = self.processes.keys().copied().collect();
        // Another process is the first in each round: where the time for samples does not suffice for all, each gets its turn.
        let first = self.rounds as usize % pids.len().max(1);
        pids.rotate_left(first);
        for pid in pids {
            if !self.read(pid) {
                self.gone(pid, now);
            }
        }
        self.last_ns = now;
        self.fold(now);
        let (now, cpu) = self.system.clocks();
        self.pace.next(now, cpu)
    }

    fn find(&mut self, now: u64) {
        let system = &mut self.system;
        self.refused.retain(|pid, _| !system.has_ended(*pid));
        let unseen = (self.refused.len() + self.system.hidden().len()) as u64;
        if unseen > 0 {
            let passed = unseen * now.saturating_sub(self.last_ns);
            *self.blind.entry("unreadable").or_default() += passed;
        }
        let (processes, refused) = (&self.processes, &self.refused);
        let known = |pid: u32| {
            let waits = |r: &Shut| now.saturating_sub(r.tried) < RETRY;
            processes.contains_key(&pid) || refused.get(&pid).is_some_and(waits)
        };
        let found = self.system.find(&known);
        self.ended.retain(|pid| found.contains(pid));
        for pid in found {
            self.open(pid, now);
        }
    }

    /// Deals with a process of which nothing can be read any more: it has ended, runs another program, or has given up its channels.
    fn gone(&mut self, pid: u32, now: u64) {
        let opened = match self.system.has_ended(pid) {
            true => None,
            false => self.system.open(pid).ok(),
        };
        let Some(opened) = opened else {
            self.end(pid, now);
            return;
        };
        match self.processes.get_mut(&pid) {
            // It has answered at last. Its channels were counted from another beginning.
            Some(same) if same.is_given_up => {
                self.end(pid, now);
                self.insert(pid, opened, From::Now, now);
            }
            Some(same) if same.image == opened.image && same.shares.is_none() => {
                same.memory = opened.memory;
                (same.wants_search, same.is_lost) = (true, true);
                self.search_if_due(pid, now);
            }
            _ => {
                self.end(pid, now);
                // All that the new program has done is new.
                self.insert(pid, opened, From::Beginning, now);
            }
        }
    }

    fn open(&mut self, pid: u32, now: u64) {
        let opened = match self.system.open(pid) {
            Ok(opened) => opened,
            Err(_) if self.system.has_ended(pid) => {
                // Nothing of what it did was seen.
                if self.ended.insert(pid) {
                    *self.blind.entry("ended").or_default() += now.saturating_sub(self.last_ns);
                    *self.ended_unseen.entry(LastSeen::Searched).or_default() += 1;
                }
                return;
            }
            Err(e) => {
                let refused = self.system.refused(pid, e.to_string());
                let since = self.refused.get(&pid).map_or(now, |r| r.since);
                let shut = Shut {
                    refused,
                    is_given_up: e.kind() == std::io::ErrorKind::TimedOut,
                    since,
                    tried: now,
                };
                self.refused.insert(pid, shut);
                return;
            }
        };
        self.ended.remove(&pid);
        let late = self.refused.remove(&pid).is_some_and(|r| r.since != now);
        let from = match opened.is_new && !late {
            true => From::Beginning,
            false => From::Now,
        };
        self.insert(pid, opened, from, now);
    }

    fn insert(&mut self, pid: u32, opened: Opened<S::Memory>, from: From, now: u64) {
        let shares = self.parent(&opened);
        // The times are those of ticks of the kernel's accounting.
        let heir_of = |(image, end): &(Vec<u8>, u64)| {
            *image == opened.image && opened.began_unix_ns <= end + SECOND / 50
        };
        let may_inherit = self.departed.iter().any(heir_of);
        let may_inherit = may_inherit && from == From::Beginning;
        let from = if may_inherit { From::Now } else { from };
        let named =
            (self.options.by_process && self.processes.len() < self.options.most).then(|| Named {
                pid,
                name: opened.name.clone(),
            });
        let watched = Watched {
            named,
            memory: opened.memory,
            name: opened.name,
            owner: opened.owner,
            container_id: opened.container_id,
            instances: BTreeMap::new(),
            image: opened.image,
            detail: self.options.sample.map(|_| Detail::new(&self.decoder)),
            from,
            began_unix_ns: opened.began_unix_ns,
            since_unix_ns: self.system.unix_ns(),
            channels: Channels::of(&self.decoder),
            shares,
            pages: 0,
            opened: now,
            first_found: None,
            searched: 0,
            search_cost: 0,
            of_gpus: Vec::new(),
            glanced: 0,
            glance_cost: 0,
            doubtful: 0,
            wants_search: true,
            has_grown: false,
            is_lost: false,
            may_inherit,
            is_given_up: false,
            read_ns: now,
        };
        self.processes.insert(pid, watched);
        if shares.is_none() {
            self.search(pid);
        }
    }

    /// Returns the process from which a new one has its channels by fork: it has the same program image and the same rings and semaphores, with the
    /// same contents.
    fn parent(&self, new: &Opened<S::Memory>) -> Option<u32> {
        let alike = self
            .processes
            .iter()
            .filter(|(_, p)| p.shares.is_none() && !new.image.is_empty() && p.image == new.image);
        let has_same = |p: &Watched<S::Memory>| p.channels.are_in(&p.memory, &new.memory);
        alike
            .into_iter()
            .find(|(_, p)| has_same(p))
            .map(|(pid, _)| *pid)
    }

    /// Reads a process. Returns false where it is gone, or does not have its parent's channels any more.
    fn read(&mut self, pid: u32) -> bool {
        let (now, _) = self.system.clocks();
        if let Some(heir) = self.processes.get(&pid).filter(|p| p.shares.is_some()) {
            let parent = heir.shares.and_then(|parent| self.processes.get(&parent));
            let is_due = self.rounds.is_multiple_of(HEIR_EACH);
            return !is_due || parent.is_some_and(|p| p.channels.are_there(&heir.memory));
        }
        let Some(watched) = self.processes.get_mut(&pid) else {
            return true;
        };
        match watched.lend(move |memory, channels, _| channels.read(memory, now)) {
            None | Some(Outcome::Gone) => return false,
            Some(Outcome::Search) => {
                (watched.wants_search, watched.is_lost) = (true, true);
                watched.doubtful = 0;
            }
            Some(Outcome::Fine) => {}
        }
        watched.read_ns = now;
        if let Some(share) = self.options.sample
            && self.sampling.may_read(now, share)
        {
            let mut clocks = self.system.lent_clocks();
            let spent = watched.lend(move |memory, channels, detail| {
                let (_, cpu) = clocks();
                let Some(detail) = detail else { return 0 };
                detail.blocks(memory, channels);
                let (ended, after) = clocks();
                detail.look(channels, (now, ended));
                after.saturating_sub(cpu)
            });
            match spent {
                Some(spent) => self.sampling.spent(spent),
                None => return false,
            }
        }
        watched.keep_samples(&mut self.kept);
        let pages = self.system.pages(pid);
        let none = watched.channels.is_empty();
        if pages == 0 || none && self.system.has_ended(pid) {
            return false;
        }
        watched.has_grown |= pages != watched.pages;
        self.glance_if_due(pid, now);
        self.search_if_due(pid, now);
        true
    }

    /// Ends the counting of a process that has ended, or runs another program: its sums stay.
    fn end(&mut self, pid: u32, now: u64) {
        let Some(mut gone) = self.processes.remove(&pid) else {
            return;
        };
        self.moments.ended(pid);
        if gone.shares.is_some() {
            return;
        }
        let unseen = now.saturating_sub(gone.read_ns);
        let last_seen = gone.last_seen(unseen);
        self.ended.insert(pid);
        for (gpu, sums) in gone.channels.rebase() {
            self.kept.end(gone.key(gpu), sums);
        }
        gone.keep_samples(&mut self.kept);
        let had_channels = !gone.channels.is_empty() || gone.is_given_up;
        if !gone.image.is_empty() && had_channels {
            let image = std::mem::take(&mut gone.image);
            self.departed.push_back((image, self.system.unix_ns()));
            if self.departed.len() > MOST_DEPARTED {
                self.departed.pop_front();
            }
        }
        // Of the forked processes that have its channels, the oldest counts them from now on.
        let heirs = self.processes.iter().filter(|(_, p)| p.shares == Some(pid));
        let Some(first) = heirs
            .min_by_key(|(_, p)| p.began_unix_ns)
            .map(|(pid, _)| *pid)
        else {
            for (gpu, left) in gone.channels.take_left(true) {
                self.kept.left(gone.key(gpu), left);
            }
            // What it did after the last reading was not seen.
            let why = match last_seen {
                LastSeen::Idle => "ended_idle",
                LastSeen::Busy | LastSeen::Searched => "ended",
            };
            *self.blind.entry(why).or_default() += unseen;
            *self.ended_unseen.entry(last_seen).or_default() += 1;
            return;
        };
        for (heir, p) in &mut self.processes {
            if *heir == first {
                p.channels = std::mem::take(&mut gone.channels);
                p.instances = std::mem::take(&mut gone.instances);
                (p.first_found, p.pages, p.shares) = (gone.first_found, gone.pages, None);
            } else if p.shares == Some(pid) {
                p.shares = Some(first);
            }
        }
    }

    /// Leaves this CPU time out of the budget.
    pub fn forgive(&mut self, cpu_ns: u64) {
        self.pace.forgive(cpu_ns);
    }

    /// Tells whether a process is counted.
    pub fn has(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// The key under which a process's submissions to a GPU are summed up.
    pub fn key(&self, pid: u32, gpu: Option<u32>) -> Option<Key> {
        self.processes.get(&pid).map(|p| p.key(gpu))
    }

    /// Adds time in which nvcap did not run, for this reason.
    pub fn was_blind(&mut self, why: &'static str, ns: u64) {
        *self.blind.entry(why).or_default() += ns;
    }

    /// Returns the number of processes that are counted.
    #[expect(
        clippy::len_without_is_empty,
        reason = "nobody asks whether there is none"
    )]
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Returns the processes that cannot be counted: those that use a GPU, and those of which it is not known whether they do.
    pub fn refused(&self) -> BTreeMap<u32, Refused> {
        let hidden = self.system.hidden().iter();
        let mut all: BTreeMap<u32, Refused> = hidden.map(|(pid, r)| (*pid, r.clone())).collect();
        let shut = self.refused.iter();
        all.extend(shut.map(|(pid, shut)| (*pid, shut.refused.clone())));
        all
    }

    /// Notes for each key the time from which it counts and the time at which it last had a process, and folds the sums of those that have had none
    /// for long.
    fn fold(&mut self, now: u64) {
        let unix_ns = self.system.unix_ns();
        for p in self.processes.values_mut().filter(|p| p.shares.is_none()) {
            let created = match p.from {
                From::Now => p.since_unix_ns,
                From::Beginning => p
                    .began_unix_ns
                    .max(unix_ns.saturating_sub(now.saturating_sub(self.began_ns))),
            };
            for gpu in p.channels.sums().into_keys() {
                self.kept.lives(p.key(gpu), &p.container_id, created, now);
            }
            for (gpu, left) in p.channels.take_left(false) {
                self.kept.left(p.key(gpu), left);
            }
        }
        self.kept.fold(now, self.options.keep, self.options.most);
    }

    /// The counts of all processes now.
    pub fn view(&mut self) -> View {
        let (now, cpu_ns) = self.system.clocks();
        let unix_ns = self.system.unix_ns();
        let clocks = Clocks { now, unix_ns };
        let mut view = View {
            unix_ns,
            refused: self.refused(),
            given_up: self.refused.values().filter(|r| r.is_given_up).count(),
            busy: self.busy.shares(),
            moments: self.moments.clone(),
            blind_ns: self.blind.clone(),
            ended_unseen: self.ended_unseen.clone(),
            cpu_ns,
            stretched: self.pace.stretched(),
            ..View::default()
        };
        self.kept.show(&mut view);
        for (pid, p) in &self.processes {
            let gpus = p.gpus(&clocks);
            for (gpu, of) in &gpus {
                let key = p.key(*gpu);
                view.sums.entry(key.clone()).or_default().sums.add(of.sums);
                view.live.entry(key).or_default().push(of.clone());
            }
            view.processes.push(ProcessView {
                pid: *pid,
                name: p.name.clone(),
                owner: p.owner.clone(),
                began_unix_ns: p.began_unix_ns,
                since_unix_ns: p.since_unix_ns,
                shares: p.shares,
                gpus,
                has_series: p.named.is_some(),
            });
        }
        for (key, counted) in &mut view.sums {
            counted.created_unix_ns = self.kept.created(key).unwrap_or(unix_ns);
        }
        view
    }

    /// Takes a moment, if samples are asked for: looks what each GPU does. Returns how long to wait until the next moment.
    pub fn moment(&mut self) -> Option<Duration> {
        let share = self.options.sample?;
        let all = self.processes.iter_mut();
        let all = all.filter(|(_, p)| p.shares.is_none() && p.detail.is_some());
        let (mut each, mut spent) = (Vec::new(), 0);
        for (pid, p) in all {
            let mut clocks = self.system.lent_clocks();
            let its = p.lend(move |memory, channels, detail| {
                let mut busy = BTreeSet::new();
                let (_, cpu) = clocks();
                if let Some(detail) = detail {
                    detail.moment(memory, channels, &mut || clocks().0, &mut busy);
                }
                (busy, clocks().1.saturating_sub(cpu))
            });
            let (its, cpu) = its.unwrap_or_default();
            each.push((*pid, its));
            spent += cpu;
        }
        let (now, _) = self.system.clocks();
        self.moments.take(&each);
        let busy = each.into_iter().flat_map(|(_, its)| its).collect();
        self.busy.take(now, &busy);
        Some(self.sampling.next(spent, share))
    }

    /// Returns the totals of a process's samples.
    pub fn samples(&self, pid: u32) -> Option<Samples<'_>> {
        let detail = self.processes.get(&pid)?.detail.as_ref()?;
        Some(detail.samples())
    }

    /// Each channel of a process.
    pub fn channels(&mut self, pid: u32) -> Vec<ChannelView> {
        let (now, _) = self.system.clocks();
        let unix_ns = self.system.unix_ns();
        let clocks = Clocks { now, unix_ns };
        let of = self.processes.get(&pid);
        let channels = of.into_iter().flat_map(|p| p.channels.iter());
        let view = |c: &Followed| ChannelView {
            gpu: c.gpu,
            ring: c.ring,
            view: GpuView {
                sums: c.count.sums(),
                ..clocks.channel(c)
            },
        };
        channels.map(view).collect()
    }
}
