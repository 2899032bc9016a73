//! Keeps each rank's work and its calls of collectives, of one recording or live trace.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::rc::Rc;

use super::analysis::Analysis;
use super::job::{Call, Class, Comm, Job, Rank, Work};
use super::kinds;
use super::unmet::{self, Launched};
use crate::output::gpu_time::when::{When, is_at_doorbell};
use crate::output::gpu_time::work::{Done, Entries, elapsed};
use crate::output::names::{is_timed, known_name};
use crate::output::{Detail, Sink, kernels};
use nvcap_decode::decode::event::{Body, Context, Engine, Event, Launch, LaunchKind, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, Kernel, Life, Lost, Process, Record, Submission};
use nvcap_decode::wire::entry;

/// The most works and calls that are kept, where nothing else is said.
const MOST: usize = 1 << 23;
/// The most communicators of all ranks, and of one rank: each is compared with all others.
const MOST_COMMUNICATORS: usize = 1 << 10;
const MOST_OF_A_RANK: usize = 1 << 7;

/// Tells the rank of a process, and the number of ranks of its job.
pub type RankOf = Box<dyn Fn(u32) -> Option<(u32, Option<u32>)>>;

/// Options of collecting.
pub struct Options {
    /// Patterns of the names of kernels that are collectives, beside NCCL's.
    pub patterns: Vec<String>,
    /// Ranks that the user gave, by process: those that fit no process are told.
    pub given: Vec<(u32, u32)>,
    /// Tells the rank of a process.
    pub rank_of: RankOf,
    /// The most works and calls that are kept.
    pub most: usize,
    /// Works that are kept beside calls: for shares of time and for causes.
    pub works: Works,
}

/// Works that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Works {
    /// No works: arrivals alone count.
    None,
    /// Works of ranks that have called a collective before.
    OfCallers,
    /// All works.
    All,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            patterns: Vec::new(),
            given: Vec::new(),
            rank_of: Box::new(|_| None),
            most: MOST,
            works: Works::All,
        }
    }
}

pub(super) struct All {
    pub(super) job: Job,
    places: HashMap<(usize, u32, Option<u32>), usize>,
    options: Options,
    /// Ranks by process, where they are told.
    told: HashMap<u32, Option<(u32, Option<u32>)>>,
    /// Kernels by the names that the compiler wrote.
    kernels: HashMap<String, Named>,
    launched: Launched,
    /// Communicators by rank.
    communicators: HashMap<usize, HashSet<Comm>>,
    /// Number of communicators of all ranks.
    all_communicators: usize,
    kept: usize,
    left_out: u64,
    pub(super) files: usize,
}

/// Number of a kernel's name; number of its kind, if it is a collective; and whether its first argument is the communicator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) name: u32,
    pub(super) collective: Option<(u32, bool)>,
}

/// All that the [`Collector`]s of one job keep.
#[derive(Clone)]
pub struct Gathered(pub(super) Rc<RefCell<All>>);

impl Gathered {
    /// Begins with nothing.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self(Rc::new(RefCell::new(All {
            job: Job::default(),
            places: HashMap::new(),
            options,
            told: HashMap::new(),
            kernels: HashMap::new(),
            launched: Launched::default(),
            communicators: HashMap::new(),
            all_communicators: 0,
            kept: 0,
            left_out: 0,
            files: 0,
        })))
    }

    /// Makes a sink for the next recording, or for a live trace.
    #[must_use]
    pub fn collector(&self) -> Collector {
        let mut all = self.0.borrow_mut();
        let file = all.files;
        all.files += 1;
        Collector {
            all: self.0.clone(),
            file,
            entries: Entries::default(),
            now: None,
            losses: HashMap::new(),
            losses_of_all: 0,
            next: HashMap::new(),
            copies: HashSet::new(),
            names: HashMap::new(),
            uids: HashMap::new(),
            ended: HashSet::new(),
            newest: 0,
            open: HashMap::new(),
            first_losses: HashMap::new(),
        }
    }

    /// Number of works that were left out because there were too many.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.0.borrow().left_out
    }

    /// Analyses what was gathered.
    #[must_use]
    pub fn analysis(&self) -> Analysis {
        let mut job = std::mem::take(&mut self.0.borrow_mut().job);
        job.left_out = self.left_out();
        let calling: HashSet<(usize, u32)> = { job.ranks.iter() }
            .filter(|r| !r.calls.is_empty())
            .map(|r| (r.file, r.pid))
            .collect();
        let others = || { job.ranks.iter() }.filter(|r| !calling.contains(&(r.file, r.pid)));
        let unnamed = others().map(|r| r.unnamed).sum();
        let others = others().map(|r| (r.file, r.pid));
        let others = others.collect::<HashSet<_>>().len() as u64;
        (job.others, job.others_unnamed) = (others, unnamed);
        let all = self.0.borrow();
        job.unmet = unmet::ranks(&job, &all.options.given);
        job.unmet.extend(all.launched.unmet(&all.options.patterns));
        job.ranks.retain(|r| !r.calls.is_empty());
        job.ranks
            .sort_by_key(|r| (r.number.is_none(), r.number, r.file, r.gpu, r.pid));
        Analysis::of(job)
    }
}

impl All {
    fn rank(&mut self, file: usize, c: &Context) -> usize {
        let pid = c.at.pid;
        let key = (file, pid, c.gpu);
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let told = self.told(pid);
        self.job.ranks.push(Rank {
            number: told.map(|(rank, _)| rank),
            world_size: told.and_then(|(_, size)| size),
            pid,
            gpu: c.gpu,
            file,
            ..Rank::default()
        });
        let place = self.job.ranks.len() - 1;
        self.places.insert(key, place);
        place
    }

    /// Asks for the rank of a process while it is there to be asked.
    fn told(&mut self, pid: u32) -> Option<(u32, Option<u32>)> {
        let rank_of = &self.options.rank_of;
        *self.told.entry(pid).or_insert_with(|| rank_of(pid))
    }

    pub(super) fn kernel(&mut self, kernel: &Kernel) -> Named {
        if let Some(named) = self.kernels.get(&kernel.name) {
            return *named;
        }
        let forms = kernels::name(kernel);
        let patterns = &self.options.patterns;
        self.launched.see(patterns, &forms.full, &forms.short);
        let collective = kinds::of(&forms.full, &forms.short, patterns);
        let named = Named {
            name: self.job.names.number(&kernels::text(kernel, false)),
            collective: collective.map(|of| (self.job.names.number(&of.kind), of.has_address)),
        };
        self.kernels.insert(kernel.name.clone(), named);
        named
    }

    /// Tells whether there is room for a call of a rank on a communicator.
    pub(super) fn keeps_call(&mut self, rank: usize, comm: Comm) -> bool {
        let of = self.communicators.entry(rank).or_default();
        if !of.contains(&comm) {
            if of.len() >= MOST_OF_A_RANK || self.all_communicators >= MOST_COMMUNICATORS {
                self.left_out += 1;
                return false;
            }
            of.insert(comm);
            self.all_communicators += 1;
        }
        self.keeps()
    }

    /// Tells whether there is room for one more.
    pub(super) fn keeps(&mut self) -> bool {
        let keeps = self.kept < self.options.most;
        self.kept += usize::from(keeps);
        self.left_out += u64::from(!keeps);
        keeps
    }
}

/// The entry whose operations come now.
struct Now {
    context: Context,
    entry: u32,
    rank: usize,
    /// Its calls, by their places among the rank's.
    calls: Vec<usize>,
    /// The name of its only kernel.
    name: Option<u32>,
}

/// The sink.
pub struct Collector {
    all: Rc<RefCell<All>>,
    file: usize,
    entries: Entries,
    now: Option<Now>,
    /// Number of losses by process, and of those that may be any process's.
    losses: HashMap<u32, u32>,
    losses_of_all: u32,
    /// Number of losses when a rank was first seen.
    first_losses: HashMap<usize, u32>,
    /// The next position of each ring.
    next: HashMap<ChannelId, u64>,
    /// Channels of copy engines: no kernel is lost there.
    copies: HashSet<ChannelId>,
    names: HashMap<u32, String>,
    /// Users by process, where they are told.
    uids: HashMap<u32, u32>,
    ended: HashSet<u32>,
    newest: u64,
    /// Channels with works that may have run at unknown times: the rank, and the time from which on they may have.
    open: HashMap<ChannelId, (usize, u64)>,
}

impl Collector {
    fn losses(&self, pid: u32) -> u32 {
        self.losses_of_all + self.losses.get(&pid).copied().unwrap_or(0)
    }

    fn loss(&mut self, pid: u32) {
        match pid {
            0 => self.losses_of_all += 1,
            pid => *self.losses.entry(pid).or_default() += 1,
        }
    }

    /// Notes a gap before a submission, and bytes of it that are missing.
    fn submission(&mut self, s: &Submission) {
        let end = s.position.saturating_add(s.segments.len() as u64);
        let next = self.next.insert(s.channel, end);
        let has_gap = next.is_some_and(|next| next != s.position);
        let lacks = |g: &nvcap_decode::record::Segment| {
            !g.holes.is_empty() || g.bytes.len() < entry::len(g.entry) as usize
        };
        if (has_gap || s.segments.iter().any(lacks)) && !self.copies.contains(&s.channel) {
            self.loss(s.at.pid);
        }
    }

    fn life(&mut self, p: &Process) {
        match &p.life {
            Life::Present { name } | Life::Exec { name } => {
                if let Some(name) = known_name(name)
                    && (p.at.tid == 0 || p.at.tid == p.at.pid)
                {
                    self.names.insert(p.at.pid, name.to_owned());
                }
            }
            Life::Identity(who) => {
                self.uids.extend(who.uid.map(|uid| (p.at.pid, uid)));
            }
            Life::Exit { process: true } => {
                self.ended.insert(p.at.pid);
            }
            _ => {}
        }
    }

    fn rank(&mut self, c: &Context) -> usize {
        let rank = self.all.borrow_mut().rank(self.file, c);
        let losses = self.losses(c.at.pid);
        self.first_losses.entry(rank).or_insert(losses);
        rank
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &Operation) {
        if let Engine::Copy(_) = c.engine {
            self.copies.insert(c.channel);
        }
        let timed = is_timed(op);
        if timed {
            let time = c.gpu_time_of(entry).copied().unwrap_or_default();
            if let Some(done) = self.entries.operation(c, entry, &time, op) {
                self.done(&done);
            }
        }
        let launch = match op {
            Operation::Launch(l) => Some(l).filter(|l| l.kind != LaunchKind::Companion),
            _ => None,
        };
        if !timed && launch.is_none() {
            return;
        }
        let rank = self.rank(c);
        let named = launch.and_then(|l| self.launch(rank, l));
        let call = named.and_then(|named| self.call(rank, c, launch?, named));
        if !timed {
            // A node of a graph's replay.
            self.all.borrow_mut().job.ranks[rank].shared += u64::from(call.is_some());
            return;
        }
        match &mut self.now {
            Some(now) if (now.context.serial, now.entry) == (c.serial, entry) => {
                now.calls.extend(call);
            }
            now => {
                *now = Some(Now {
                    context: c.clone(),
                    entry,
                    rank,
                    calls: call.into_iter().collect(),
                    name: named.map(|n| n.name),
                });
            }
        }
    }

    /// Returns the name of a launch's kernel. Counts the program's own kernels that have none.
    fn launch(&self, rank: usize, l: &Launch) -> Option<Named> {
        let mut all = self.all.borrow_mut();
        match (&l.kernel, l.kind) {
            (Some(kernel), _) => Some(all.kernel(kernel)),
            (None, LaunchKind::User | LaunchKind::Unresolved) => {
                all.job.ranks[rank].unnamed += 1;
                None
            }
            (None, _) => None,
        }
    }

    /// Keeps the call, if the kernel is a collective; returns its place.
    fn call(&self, rank: usize, c: &Context, l: &Launch, named: Named) -> Option<usize> {
        let (kind, has_address) = named.collective?;
        let epoch = self.losses(c.at.pid);
        let mut all = self.all.borrow_mut();
        let address = l.args.as_ref().and_then(|args| args.first_chunk::<8>());
        let address = address.map(|a| u64::from_le_bytes(*a));
        let comm = match address.filter(|a| has_address && *a != 0) {
            Some(address) => Comm::Argument(address),
            None => Comm::Channel(c.channel.0),
        };
        if !all.keeps_call(rank, comm) {
            return None;
        }
        let calls = &mut all.job.ranks[rank].calls;
        calls.push(Call {
            comm,
            kind,
            begin: None,
            error: 0,
            end: None,
            end_error: 0,
            submitted: c.at.time(),
            epoch,
        });
        Some(calls.len() - 1)
    }

    /// Notes that a channel's work began at this time: what came before it has ended.
    fn known_from(&mut self, channel: ChannelId, begin: u64) {
        let Some((rank, since)) = self.open.remove(&channel) else {
            return;
        };
        let mut all = self.all.borrow_mut();
        if since >= begin {
            return;
        }
        // Channels take turns: stretches that follow each other are one.
        let last = all.job.ranks[rank].unknown.last_mut();
        if let Some((_, to)) = last.filter(|(from, to)| *from <= since && since <= *to) {
            *to = begin.max(*to);
        } else if all.keeps() {
            all.job.ranks[rank].unknown.push((since, begin));
        }
    }

    /// Takes the work of the entry before.
    fn done(&mut self, done: &Done) {
        let Some(now) = self.now.take() else { return };
        let c = &now.context;
        let begin = When::of(c, &done.time).begin;
        if let Some(begin) = begin {
            self.known_from(c.channel, begin);
        }
        let mut all = self.all.borrow_mut();
        all.job.has_times |= c.gpu_time.is_some();
        let end = begin
            .zip(elapsed(&done.time))
            .map(|(b, d)| b.saturating_add(d.ns));
        let works = done.what.works();
        let rank = &mut all.job.ranks[now.rank];
        if works == 1 {
            for &call in &now.calls {
                let call = &mut rank.calls[call];
                (call.begin, call.end) = (begin, end);
                call.error = done.time.start.map_or(0, |s| s.host_error_ns);
                let of_duration = done.duration.map_or(0, |d| d.error_ns);
                call.end_error = call.error.saturating_add(of_duration);
            }
        } else {
            rank.shared += now.calls.len() as u64;
        }
        let (Some(begin), Some(end)) = (begin, end) else {
            rank.untimed += 1;
            if let Some(since) = begin.or(c.at.time()) {
                self.open.entry(c.channel).or_insert((now.rank, since));
            }
            return;
        };
        let is_kept = match all.options.works {
            Works::None => false,
            Works::OfCallers => !all.job.ranks[now.rank].calls.is_empty(),
            Works::All => true,
        };
        if !is_kept || !all.keeps() {
            return;
        }
        let there = match done.time.queued {
            Some((least, _)) => Some(begin.saturating_sub(least)),
            None => c.at.time().filter(|_| is_at_doorbell(c)),
        };
        let class = match () {
            () if !now.calls.is_empty() && now.calls.len() == works => Class::Collective,
            () if done.what.is_copy() => Class::Copy,
            () => Class::Kernel,
        };
        let name = match now.name.filter(|_| works == 1) {
            Some(name) => name,
            None => all.job.names.number(&done.text),
        };
        all.job.ranks[now.rank].works.push(Work {
            begin,
            end,
            there,
            name,
            class,
        });
    }
}

impl Sink for Collector {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        if let Body::Operation(op) = &event.body {
            self.operation(event.context, event.entry, op);
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.newest = self.newest.max(record.at().time_ns);
        match record {
            Record::Submission(s) => self.submission(s),
            Record::Process(p) => self.life(p),
            Record::Channel(c) if c.at.pid != 0 => {
                self.all.borrow_mut().told(c.at.pid);
            }
            Record::Skipped(s) => {
                self.next
                    .insert(s.channel, s.position.saturating_add(s.entries));
                self.loss(s.at.pid);
            }
            Record::Loss(loss) => match (&loss.what, loss.channel) {
                (Lost::Stacks { .. } | Lost::Notifiers { .. }, _) => {}
                (Lost::Entries { position, count }, Some(channel)) => {
                    // The submission behind them has no gap more.
                    self.next.insert(channel, position.saturating_add(*count));
                    if !self.copies.contains(&channel) {
                        self.loss(loss.at.pid);
                    }
                }
                _ => self.loss(loss.at.pid),
            },
            _ => {}
        }
        Ok(())
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _ledger: &Ledger, _model: &Model) -> io::Result<()> {
        if let Some(done) = self.entries.finish() {
            self.done(&done);
        }
        let open: Vec<ChannelId> = self.open.keys().copied().collect();
        let newest = self.newest;
        open.into_iter().for_each(|c| self.known_from(c, newest));
        let mut all = self.all.borrow_mut();
        for (n, rank) in all.job.ranks.iter_mut().enumerate() {
            if rank.file != self.file {
                continue;
            }
            rank.until = self.newest;
            rank.has_ended = self.ended.contains(&rank.pid);
            rank.process = self.names.get(&rank.pid).cloned();
            rank.uid = self.uids.get(&rank.pid).copied();
            let first = self.first_losses.get(&n).copied().unwrap_or(0);
            rank.losses = self.losses(rank.pid).saturating_sub(first);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that passes ever new communicators has a bounded number, and the job's are kept.
    #[test]
    fn communicators_have_a_bound() {
        let gathered = Gathered::new(Options::default());
        let mut all = gathered.0.borrow_mut();
        let of = |all: &mut All, rank, n: u64| all.keeps_call(rank, Comm::Argument(n));
        let kept = (0..1_000).filter(|n| of(&mut all, 0, *n)).count();
        assert_eq!((kept, all.left_out), (MOST_OF_A_RANK, 1_000 - kept as u64));
        assert!(of(&mut all, 0, 0), "a known one goes on");
        assert!(of(&mut all, 1, 5), "another rank's");
        let kept: usize = (2..100)
            .map(|rank| (0..1_000).filter(|n| of(&mut all, rank, *n)).count())
            .sum();
        assert_eq!(kept + MOST_OF_A_RANK + 1, MOST_COMMUNICATORS);
    }

    /// Work without times is unknown from the first such work of a channel to the next one that begins there; stretches that meet are one.
    #[test]
    fn work_without_times_leaves_unknown_stretches() {
        let gathered = Gathered::new(Options::default());
        gathered.0.borrow_mut().job.ranks.push(Rank::default());
        let mut collector = gathered.collector();
        for (channel, since, begin) in [(1, 10, 50), (2, 40, 60), (1, 70, 80), (2, 90, 85)] {
            let channel = ChannelId(channel);
            collector.open.insert(channel, (0, since));
            collector.known_from(channel, begin);
        }
        collector.known_from(ChannelId(3), 99);
        assert!(collector.open.is_empty());
        let all = gathered.0.borrow();
        assert_eq!(all.job.ranks[0].unknown, [(10, 60), (70, 80)]);
        assert_eq!(all.kept, 2);
    }
}
