//! A sink that sums up a trace in steps of time, so that any part of it can be shown.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

use super::faults::{Faulted, Faults};
use nvcap_decode::decode::event::{
    Body, Context, Engine, Event, GpuTime, Operation, SubmissionHead,
};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, Life, Loss, Lost, Record};
use nvcap_show::output::fault;
use nvcap_show::output::gpu_time::work::{self, Done, Entries, What};
use nvcap_show::output::names::is_timed;
use nvcap_show::output::{Detail, Sink};

/// Length of a step at first, ns.
const STEP: u64 = 100_000_000;
/// The most steps that are kept. When there are more, each becomes twice as long.
const MOST_STEPS: usize = 4096;
/// The most faults that are kept.
const MOST_FAULTS: usize = 1024;
/// The most kernels that are kept apart.
const MOST_WORKS: usize = 1 << 16;

/// Name and user of a process.
#[derive(Clone, Debug, Default)]
pub struct NamedProcess {
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: String,
}

/// A channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channel {
    /// Its process.
    pub pid: u32,
    /// Its GPU.
    pub gpu: Option<u32>,
    /// Its token.
    pub token: Option<u32>,
    /// Its engine.
    pub engine: Engine,
    /// Entries of its ring.
    entries: Option<u32>,
}

/// A unit of work: a kernel of a process, or a kind of copy.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Process that does it.
    pub pid: u32,
    /// Its name.
    pub text: String,
    /// True if the work is a copy.
    pub is_copy: bool,
}

/// Work of a channel in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Submissions.
    pub submissions: u64,
    /// Bytes of the submissions.
    pub bytes: u64,
    /// Launches.
    pub launches: u64,
    /// Copies.
    pub copies: u64,
    /// Number of submissions whose end is known.
    pub timed: u64,
    /// Number of submissions that ended in this step.
    pub ended: u64,
    /// Number of entries that the GPU had not fetched at the last submission.
    pub unfetched: Option<u32>,
    /// Time for which the GPU worked, ns, as far as it is known.
    pub gpu_ns: u64,
    /// Number of launches and copies, those of an entry as one; and of those without a known time.
    pub works: u64,
    pub untimed: u64,
    /// Number of entries that were not read, or not whole: what they did is in none of these numbers.
    pub unread: u64,
}

/// Cost of a work in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Number of times that it was done.
    pub count: u64,
    /// Number of these that have a known duration.
    pub timed: u64,
    /// Time of those that have a known duration, ns.
    pub ns: u64,
    /// Bytes of those that have a known duration.
    pub timed_bytes: u64,
    /// Bytes of all.
    pub bytes: u64,
}

impl Flow {
    pub(super) fn add(&mut self, later: &Self) {
        self.submissions += later.submissions;
        self.bytes += later.bytes;
        self.launches += later.launches;
        self.copies += later.copies;
        self.timed += later.timed;
        self.ended += later.ended;
        self.unfetched = later.unfetched.or(self.unfetched);
        self.gpu_ns += later.gpu_ns;
        self.works += later.works;
        self.untimed += later.untimed;
        self.unread = self.unread.saturating_add(later.unread);
    }
}

impl Spent {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.timed += other.timed;
        self.ns += other.ns;
        self.timed_bytes += other.timed_bytes;
        self.bytes += other.bytes;
    }

    /// Returns the time of those whose duration is known: the least that all can have taken. Nothing is concluded of the others, for they are no
    /// sample like these (the time stamps of the shortest are the first that are overwritten).
    pub(crate) fn known_ns(&self) -> Option<u64> {
        (self.timed > 0).then_some(self.ns)
    }
}

/// A step of time, or several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    /// Work by channel.
    pub channels: HashMap<ChannelId, Flow>,
    /// Cost by number of the work.
    pub works: HashMap<u32, Spent>,
}

impl Step {
    fn add(&mut self, later: &Self) {
        for (id, flow) in &later.channels {
            self.channels.entry(*id).or_default().add(flow);
        }
        for (id, spent) in &later.works {
            self.works.entry(*id).or_default().add(spent);
        }
    }
}

/// A trace summed up in steps of time.
#[derive(Debug)]
pub struct Tally {
    step_ns: u64,
    origin: Option<u64>,
    newest: u64,
    steps: BTreeMap<u64, Step>,
    processes: BTreeMap<u32, NamedProcess>,
    channels: BTreeMap<ChannelId, Channel>,
    works: Vec<Work>,
    numbers: HashMap<(u32, What), u32>,
    entries: Entries,
    /// The time, process and channel of the submission that the next work to end belongs to.
    of: (u64, u32, ChannelId),
    has_times: bool,
    /// Faults by their times: words, and the process.
    faults: VecDeque<(u64, u32, String)>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            step_ns: STEP,
            origin: None,
            newest: 0,
            steps: BTreeMap::new(),
            processes: BTreeMap::new(),
            channels: BTreeMap::new(),
            works: Vec::new(),
            numbers: HashMap::new(),
            entries: Entries::default(),
            of: (0, 0, ChannelId(0)),
            has_times: false,
            faults: VecDeque::new(),
        }
    }
}

/// Returns the time at which the GPU had done all of a submission, on the host's clock, ns.
fn end_of(times: &[GpuTime]) -> Option<u64> {
    let ends = times
        .iter()
        .filter_map(|t| Some(t.start?.host_ns + t.duration?.ns));
    ends.max()
}

impl Tally {
    /// Returns the time at which it began, on the clock of the trace, ns.
    pub fn origin(&self) -> u64 {
        self.origin.unwrap_or(0)
    }

    /// Returns its length, ns.
    pub fn length_ns(&self) -> u64 {
        self.newest.saturating_sub(self.origin())
    }

    /// Tells whether the GPU's times are known.
    pub fn has_times(&self) -> bool {
        self.has_times
    }

    /// Faults until a moment after the begin, ns; `offset` is what makes its times times of day, 0 where that is not known.
    pub fn faults(&self, until: u64, offset: u64) -> Faults {
        let origin = self.origin();
        let mut all = Faults::default();
        for (time, pid, text) in &self.faults {
            if time.saturating_sub(origin) > until {
                continue;
            }
            let name = self.processes.get(pid).map(|p| p.name.clone());
            all.add(Faulted {
                time_ns: match offset {
                    0 => time.saturating_sub(origin),
                    offset => time.saturating_add(offset),
                },
                of_day: offset > 0,
                pid: *pid,
                name: name.unwrap_or_default(),
                gpu: None,
                text: text.clone(),
            });
        }
        all
    }

    /// The processes.
    pub fn processes(&self) -> &BTreeMap<u32, NamedProcess> {
        &self.processes
    }

    /// The channels.
    pub(crate) fn channels(&self) -> &BTreeMap<ChannelId, Channel> {
        &self.channels
    }

    /// A work by its number.
    pub(crate) fn work(&self, number: u32) -> Option<&Work> {
        self.works.get(number as usize)
    }

    /// Sums up a part, from and to these times from the beginning, ns. Steps that lie in it in part count as a whole.
    pub(crate) fn sums(&self, (from, to): (u64, u64)) -> Step {
        let mut all = Step::default();
        let steps = from / self.step_ns..=to / self.step_ns;
        for (_, step) in self.steps.range(steps) {
            all.add(step);
        }
        all
    }

    /// Returns, for each channel, how many of the submissions from the beginning until `to` had not ended then. Submissions without a known end are
    /// left out.
    pub(crate) fn queued(&self, to: u64) -> HashMap<ChannelId, u64> {
        let until = self.sums((0, to));
        let known = { until.channels.iter() }.filter(|(_, flow)| flow.timed > 0);
        known
            .map(|(id, flow)| (*id, flow.timed.saturating_sub(flow.ended)))
            .collect()
    }

    fn step(&mut self, time: u64) -> &mut Step {
        let origin = *self.origin.get_or_insert(time);
        self.newest = self.newest.max(time);
        let at = time.saturating_sub(origin);
        if self.steps.len() >= MOST_STEPS && !self.steps.contains_key(&(at / self.step_ns)) {
            self.step_ns *= 2;
            for (at, step) in std::mem::take(&mut self.steps) {
                self.steps.entry(at / 2).or_default().add(&step);
            }
        }
        self.steps.entry(at / self.step_ns).or_default()
    }

    fn flow(&mut self, time: u64, channel: ChannelId) -> &mut Flow {
        self.step(time).channels.entry(channel).or_default()
    }

    fn submission(&mut self, c: &Context, head: &SubmissionHead) {
        let time = c.at.time().unwrap_or(self.newest);
        self.of = (time, c.at.pid, c.channel);
        let process = self.processes.entry(c.at.pid).or_default();
        if let Some(name) = c.thread.as_deref().filter(|_| process.name.is_empty()) {
            name.clone_into(&mut process.name);
        }
        let channel = self.channels.entry(c.channel).or_default();
        channel.pid = c.at.pid;
        channel.gpu = c.gpu.or(channel.gpu);
        channel.token = c.token.or(channel.token);
        channel.engine = c.engine;
        let unfetched = head.gp_get.zip(channel.entries).map(|(get, entries)| {
            let entries = entries.max(1);
            (head.gp_put + entries - get % entries) % entries
        });
        let end = c.gpu_time.as_deref().and_then(end_of);
        self.has_times |= c.gpu_time.is_some();
        let flow = self.flow(time, c.channel);
        flow.submissions += 1;
        flow.bytes += head.bytes;
        flow.unread += u64::from(head.missing > 0);
        flow.unfetched = unfetched.or(flow.unfetched);
        flow.timed += u64::from(end.is_some());
        if let Some(end) = end {
            // A clock that is a little wrong must not have it end before it was submitted.
            self.flow(end.max(time), c.channel).ended += 1;
        }
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &Operation) {
        if let Some(time) = c.gpu_time_of(entry) {
            if let Some(done) = self.entries.operation(c, entry, time, op) {
                self.done(done);
            }
        } else if is_timed(op) {
            self.of = (c.at.time().unwrap_or(self.newest), c.at.pid, c.channel);
            let (what, bytes) = work::what(c, entry, op);
            let text = work::text(&what, op);
            self.done(Done {
                what,
                text,
                time: GpuTime::default(),
                duration: None,
                bytes,
                channel: c.channel,
                pid: c.at.pid,
                gpu: c.gpu,
                absent: None,
                submitted: None,
            });
        }
        // A work that ended above belongs to the submission before; from here on, works belong to this one.
        self.of = (c.at.time().unwrap_or(self.newest), c.at.pid, c.channel);
    }

    fn done(&mut self, done: Done) {
        let (submitted, pid, channel) = self.of;
        let time = done.time.start.map_or(submitted, |s| s.host_ns);
        let (is_copy, works) = (done.what.is_copy(), done.what.works() as u64);
        let number = self.number(pid, done.what, done.text);
        let spent = Spent {
            count: 1,
            timed: u64::from(done.duration.is_some()),
            ns: done.duration.map_or(0, |d| d.ns),
            timed_bytes: done.duration.map_or(0, |_| done.bytes),
            bytes: done.bytes,
        };
        let step = self.step(time);
        step.works.entry(number).or_default().add(&spent);
        let flow = step.channels.entry(channel).or_default();
        flow.gpu_ns += spent.ns;
        flow.works += 1;
        flow.untimed += 1 - spent.timed;
        match is_copy {
            true => flow.copies += works,
            false => flow.launches += works,
        }
    }

    fn number(&mut self, pid: u32, what: What, text: String) -> u32 {
        let has_room = self.works.len() < MOST_WORKS;
        let key = match has_room {
            true => (pid, what),
            false => (0, What::Unknown),
        };
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let number = self.works.len() as u32;
        self.works.push(match has_room {
            true => Work {
                pid,
                text,
                is_copy: key.1.is_copy(),
            },
            false => Work {
                pid: 0,
                text: "(kernels that were not kept apart)".to_owned(),
                is_copy: false,
            },
        });
        self.numbers.insert(key, number);
        number
    }

    /// Takes note of entries of a channel that were overwritten before they were read.
    fn lost(&mut self, loss: &Loss) {
        if let (Some(channel), Lost::Entries { count, .. }) = (loss.channel, &loss.what) {
            let flow = self.flow(loss.at.time().unwrap_or(self.newest), channel);
            flow.unread = flow.unread.saturating_add(*count);
        }
    }

    fn life(&mut self, pid: u32, life: &Life) {
        match life {
            Life::Present { name } | Life::Exec { name } if !name.is_empty() => {
                self.processes.entry(pid).or_default().name = name.clone();
            }
            Life::Identity(who) => {
                let process = self.processes.entry(pid).or_default();
                process.user = match (&who.user, who.uid) {
                    (Some(user), _) => user.clone(),
                    (None, uid) => uid.map(|uid| uid.to_string()).unwrap_or_default(),
                };
            }
            _ => {}
        }
    }
}

impl Sink for Tally {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        match &event.body {
            Body::Submission(head) => {
                if let Some(done) = self.entries.finish() {
                    self.done(done);
                }
                self.submission(event.context, head);
            }
            Body::Operation(op) => self.operation(event.context, event.entry, op),
            _ => {}
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        if let Some(time) = record.at().time() {
            let origin = *self.origin.get_or_insert(time);
            self.newest = self.newest.max(time).max(origin);
        }
        match record {
            Record::Process(p) => self.life(p.at.pid, &p.life),
            Record::Loss(loss) => self.lost(loss),
            Record::Fault(f) => {
                if self.faults.len() == MOST_FAULTS {
                    self.faults.pop_front();
                }
                let fault = (f.at.time_ns, f.at.pid, fault::in_short(f));
                self.faults.push_back(fault);
            }
            Record::Channel(c) => {
                let channel = self.channels.entry(c.id).or_default();
                channel.pid = c.at.pid;
                channel.gpu = c.gpu.or(channel.gpu);
                channel.token = c.token.or(channel.token);
                channel.entries = c.entries.or(channel.entries);
            }
            _ => {}
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _ledger: &Ledger, _model: &Model) -> io::Result<()> {
        if let Some(done) = self.entries.finish() {
            self.done(done);
        }
        Ok(())
    }
}
