//! Times of the GPU's work on each submission, computed from the semaphores that the submission writes: timestamps and releases that
//! another processor saw ([`crate::record::Stamps`]). No I/O, no clock, no panic.
//!
//! - [`mod@unit`]: the commands of an entry that concern its times: its stamp, the releases of its kernels, its waits.
//! - [`pair`]: the stamps that Vulkan and OpenGL write around a submission.
//! - [`words`]: the numbers that were seen in semaphores.
//! - `clock`: conversion between the GPU's clock and the host's.
//! - `end`: ends of work, and durations.
//! - `rules`: distances of stamps from the beginning and the end of work, by GPU.
//! - `timeline`: the entries of a channel, and their times.
//! - `preempted`: the parts of the entries' times in which others had the GPU.
//!
//! docs/gpu-time.md has the rules with their evidence.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::decode::defaults::Chip;
use crate::decode::event::GpuTime;
use crate::record::{ChannelId, How, Record, Stamps, Submission};
use crate::switches::Turns;
use crate::wire::GpuVa;

mod clock;
mod end;
pub mod pair;
mod preempted;
mod rules;
mod timeline;
pub mod unit;
pub mod words;

#[cfg(test)]
mod known_by;
#[doc(hidden)]
pub mod made_up;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

use clock::Clock;
use pair::Pair;
use rules::Rules;
use timeline::{Seen, TimeSources, Timeline};
use unit::{Place, Unit};
use words::Words;

/// Owner of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose {
    /// The GPU with this device file minor number.
    Gpu(u32),
    /// A process that is assumed to use only one GPU, the clock's.
    Process(u32),
}

/// Number of reads of the semaphores, their time in ns, and the number of stamps seen.
#[derive(Clone, Copy, Debug, Default)]
struct Coverage {
    reads: u64,
    ns: u64,
    stamps: u64,
}

/// Facts of one process.
#[derive(Debug, Default)]
struct OfProcess {
    channels: BTreeSet<ChannelId>,
    /// Time at which the process ended or began another program, ns. No further stamps come for what it submitted before.
    ended_ns: Option<u64>,
    /// Time of the process's newest submission, ns.
    newest_ns: u64,
    /// Time up to which semaphores had been read when the process's times were last settled, ns.
    settled_ns: u64,
}

/// The times of all channels.
#[derive(Debug, Default)]
pub struct GpuTimes {
    classes: Classes,
    words: Words,
    /// Clocks: each GPU has its own, and so has each process whose channels' GPUs are not known.
    clocks: HashMap<Whose, Clock>,
    gpus: HashMap<ChannelId, u32>,
    /// Owner of the clock of a semaphore's stamps, by process and address.
    semaphores: HashMap<(u32, GpuVa), Whose>,
    channels: HashMap<ChannelId, (u32, Timeline)>,
    /// Channels that launch kernels, by process.
    launching: HashMap<u32, Launching>,
    /// Processes of which anything is known. Of other processes there is nothing to forget.
    processes: HashMap<u32, OfProcess>,
    /// Time up to which semaphores were read, ns, and the number of records of reads.
    read_ns: u64,
    reads: u64,
    coverage: Coverage,
    /// Turns of all processes on the GPUs, if they are recorded.
    turns: Turns,
}

/// The compute class of each GPU, by device file minor number; `None` if the tables do not have the chip.
#[derive(Debug, Default)]
struct Classes(HashMap<u32, Option<u32>>);

impl Classes {
    /// Returns the compute class of a GPU. If it is not known which GPU is meant, it is the class of all GPUs, provided that they are of
    /// one kind.
    fn of(&self, gpu: Option<u32>) -> Option<u32> {
        if let Some(class) = gpu.and_then(|g| self.0.get(&g)) {
            return *class;
        }
        let mut all = self.0.values();
        let first = *all.next()?;
        first.filter(|_| all.all(|c| *c == first))
    }
}

/// Length of a time slot, ns: launches in the same or in adjacent slots count as simultaneous.
const AT_ONCE_NS: u64 = 20_000_000;
/// Interval of reading after which times whose turn has not come are settled again, ns.
const SETTLES_NS: u64 = 50_000_000;
/// The most time slots that are kept.
const MOST_TIMES: usize = 64;

/// Channel of a process that launches kernels, by time slot; `None` if several channels do.
#[derive(Clone, Debug, Default)]
struct Launching(BTreeMap<u64, Option<ChannelId>>);

impl Launching {
    fn add(&mut self, time_ns: u64, channel: ChannelId) {
        let only = self.0.entry(time_ns / AT_ONCE_NS).or_insert(Some(channel));
        if *only != Some(channel) {
            *only = None;
        }
        if self.0.len() > MOST_TIMES {
            self.0.pop_first();
        }
    }

    /// Tells whether several channels launched at about that time.
    fn is_shared(&self, time_ns: u64) -> bool {
        let now = time_ns / AT_ONCE_NS;
        let about = now.saturating_sub(1)..=now.saturating_add(1);
        let mut all = self.0.range(about).map(|(_, channel)| channel);
        let first = all.clone().next();
        all.any(|c| c.is_none() || Some(c) != first)
    }
}

/// Makes one entry of a submission stand for all entries that the pair of stamps encloses: the first that launches or copies, else the
/// last. The other entries have no times of their own.
fn stand_for(units: &mut [Unit], pair: Pair) {
    let Some(within) = units.get_mut(pair.first..=pair.last) else {
        return;
    };
    let count = within.iter().map(|u| u.count).sum();
    let works = within.iter().position(|u| u.works);
    for unit in &mut *within {
        unit.stamp = None;
        unit.ends.clear();
    }
    let last = within.len().saturating_sub(1);
    if let Some(unit) = within.get_mut(works.unwrap_or(last)) {
        (unit.pair, unit.count) = (Some(pair), count);
    }
}

/// Returns the position of each entry of a submission. A recording may have any position; positions that would exceed the greatest number
/// are that number.
fn positions(s: &Submission) -> impl Iterator<Item = u64> {
    (0..s.segments.len() as u64).map(|n| s.position.saturating_add(n))
}

impl GpuTimes {
    /// Takes in a record as it comes, before its turn in the order of the pipeline.
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::Submission(s) => self.submission(s),
            Record::Stamps(s) => self.stamps(s),
            Record::Switches(window) => self.turns.window(window),
            Record::Gpu(g) => {
                let chip = Chip::with_pci_device(g.pci_device);
                self.classes.0.insert(g.minor, chip.map(|c| c.compute));
            }
            Record::Channel(c) => {
                if let Some(gpu) = c.gpu {
                    self.gpus.insert(c.id, gpu);
                }
            }
            Record::Process(p) if p.life.ends_work() => {
                if let Some(own) = self.processes.get_mut(&p.at.pid) {
                    own.ended_ns = Some(p.at.time_ns);
                }
            }
            _ => {}
        }
    }

    fn submission(&mut self, s: &Submission) {
        let of = self.processes.entry(s.at.pid).or_default();
        of.newest_ns = of.newest_ns.max(s.at.time_ns);
        let whose = self.whose(s.at.pid, s.channel);
        let class = self.class(s.channel);
        let steps = self.clocks.get(&whose).map_or(0, Clock::steps);
        let (_, timeline) = self.channels.entry(s.channel).or_insert_with(|| {
            let own = self.processes.entry(s.at.pid).or_default();
            own.channels.insert(s.channel);
            (s.at.pid, Timeline::default())
        });
        // The doorbell that found these entries came after their own doorbell.
        let after = s.how.is_after() || s.late;
        // A trap after the store means that the doorbell was rung up to `Rules::trap_ns` before; a trap before the store, up to as much
        // later.
        let rung = match s.how {
            How::Precommit => s.at.time_ns.saturating_add(rules::TRAP_NS),
            _ => s.at.time_ns,
        };
        let units = s.segments.iter();
        let mut units: Vec<_> = units.map(|g| Unit::of(&g.bytes, class)).collect();
        if let Some(pair) = Pair::of(s.segments.iter().map(|g| &*g.bytes)) {
            stand_for(&mut units, pair);
        }
        for (position, unit) in positions(s).zip(units) {
            let stamps = unit.pair.map(|p| [p.begin, p.end]);
            for stamp in stamps.into_iter().flatten().chain(unit.stamp.map(|s| s.0)) {
                self.semaphores.insert((s.at.pid, stamp.address), whose);
            }
            if unit.works && matches!(unit.stamp, Some((_, Place::FrontEnd))) {
                let launching = self.launching.entry(s.at.pid).or_default();
                launching.add(s.at.time_ns, s.channel);
            }
            timeline.note(position, (rung, after), s.absent_ns, unit, steps);
        }
    }

    fn stamps(&mut self, s: &Stamps) {
        self.processes.entry(s.at.pid).or_default();
        let c = &mut self.coverage;
        c.reads = c.reads.saturating_add(s.reads);
        c.ns = (c.ns).saturating_add(s.at.time_ns.saturating_sub(s.from_ns));
        self.read_ns = self.read_ns.max(s.at.time_ns);
        self.reads += 1;
        for stamp in &s.stamps {
            if let Some(gpu_ns) = stamp.gpu_ns {
                let whose = self.semaphores.get(&(s.at.pid, stamp.address));
                let whose = whose.copied().unwrap_or(Whose::Process(s.at.pid));
                let clock = self.clocks.entry(whose).or_default();
                clock.learn(gpu_ns, stamp.before_ns, stamp.seen_ns);
                self.coverage.stamps += 1;
            }
            self.words.put(s.at.pid, stamp);
        }
    }

    /// Tells whether further times of a submission, which was noted, may still be seen, because the GPU has not finished it. Nothing is
    /// awaited from a GPU of which no stamp was seen yet.
    #[must_use]
    pub fn awaits(&mut self, s: &Submission) -> bool {
        let ended = self.processes.get(&s.at.pid).and_then(|p| p.ended_ns);
        if ended.is_some_and(|ended| s.at.time_ns <= ended) {
            return false;
        }
        let whose = self.whose(s.at.pid, s.channel);
        let clock = self.clocks.get(&whose);
        let (Some(clock), Some((pid, timeline))) = (clock, self.channels.get_mut(&s.channel))
        else {
            return false;
        };
        let seen = Seen {
            pid: *pid,
            words: &self.words,
            read_ns: self.read_ns,
            reads: self.reads,
        };
        let entries = s.segments.len();
        if timeline.awaits(s.position, entries, seen) {
            return true;
        }
        // The holders of the GPU in that time become known only later.
        let gpu = self.gpus.get(&s.channel);
        let Some(known) = gpu.and_then(|gpu| self.turns.known_until(*gpu)) else {
            return false;
        };
        let ended = timeline.ended_by(s.position, entries, seen, clock);
        ended.is_some_and(|ended| ended > known)
    }

    /// Settles the times of a process's entries whose turn has not come, because others are awaited, and that had ended some time before
    /// the first of these stamps. The stamps are not noted yet: once they are, the entries' semaphores may have other numbers.
    pub fn settle(&mut self, stamps: &Stamps) {
        let pid = stamps.at.pid;
        let first = stamps.stamps.iter().map(|s| s.seen_ns).min();
        let read_ns = first.unwrap_or(stamps.at.time_ns);
        let Some(of) = self.processes.get_mut(&pid) else {
            return;
        };
        if read_ns < of.settled_ns.saturating_add(SETTLES_NS) {
            return;
        }
        of.settled_ns = read_ns;
        let channels: Vec<ChannelId> = of.channels.iter().copied().collect();
        for channel in channels {
            let whose = self.whose(pid, channel);
            let rules = Rules::of(self.class(channel));
            let clock = self.clocks.get(&whose);
            let (Some(clock), Some((_, timeline))) = (clock, self.channels.get_mut(&channel))
            else {
                continue;
            };
            let seen = Seen {
                pid,
                words: &self.words,
                read_ns,
                reads: self.reads,
            };
            let launching = self.launching.get(&pid);
            timeline.settle(seen, |at_ns| TimeSources {
                pid,
                words: &self.words,
                clock,
                rules: &rules,
                shared: launching.is_some_and(|l| l.is_shared(at_ns)),
                read_ns,
            });
        }
    }

    /// Returns the times of a submission's entries when its turn has come.
    pub fn take(&mut self, s: &Submission) -> Vec<GpuTime> {
        let unknown = vec![GpuTime::default(); s.segments.len()];
        let whose = self.whose(s.at.pid, s.channel);
        let rules = Rules::of(self.class(s.channel));
        let Some((pid, timeline)) = self.channels.get_mut(&s.channel) else {
            return unknown;
        };
        let Some(clock) = self.clocks.get(&whose) else {
            let works = |position| GpuTime {
                works: timeline.works(position),
                ..GpuTime::default()
            };
            let all = positions(s).map(works).collect();
            // Without a clock no stamps come, so nothing may wait for them.
            timeline.forget(s.position.saturating_add(s.segments.len() as u64));
            return all;
        };
        let sources = TimeSources {
            pid: *pid,
            words: &self.words,
            clock,
            rules: &rules,
            shared: self
                .launching
                .get(pid)
                .is_some_and(|l| l.is_shared(s.at.time_ns)),
            read_ns: self.read_ns,
        };
        let gpu = self.gpus.get(&s.channel).copied();
        positions(s)
            .map(|position| {
                let time = GpuTime {
                    works: timeline.works(position),
                    ..timeline.time(position, sources)
                };
                let preempted = preempted::of(&time, gpu, s.at.pid, &self.turns);
                GpuTime { preempted, ..time }
            })
            .collect()
    }

    /// Forgets a process that ended at a time. A later process with the same number keeps its facts.
    pub fn forget(&mut self, pid: u32, time_ns: u64) {
        let is_over = |of: &OfProcess| of.newest_ns <= time_ns;
        if !self.processes.get(&pid).is_some_and(is_over) {
            return;
        }
        self.processes.remove(&pid);
        self.words.forget(pid);
        self.clocks.remove(&Whose::Process(pid));
        self.semaphores.retain(|(of, _), _| *of != pid);
        self.channels.retain(|_, (of, _)| *of != pid);
        self.launching.remove(&pid);
    }

    /// Returns the number of reads of the processes' semaphores, their time in ns, the number of stamps seen, and the number of steps of
    /// the clocks.
    pub fn coverage(&self) -> (u64, u64, u64, u64) {
        let steps = self.clocks.values().map(Clock::steps).sum();
        let c = self.coverage;
        (c.reads, c.ns, c.stamps, steps)
    }

    fn class(&self, channel: ChannelId) -> Option<u32> {
        self.classes.of(self.gpus.get(&channel).copied())
    }

    fn whose(&self, pid: u32, channel: ChannelId) -> Whose {
        let gpu = self.gpus.get(&channel);
        gpu.map_or(Whose::Process(pid), |gpu| Whose::Gpu(*gpu))
    }
}
