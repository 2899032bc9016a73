//! Sums of the GPU's time: the durations of kernels and copies, the busy time of GPUs, engines, processes and channels, and the longest waits. For
//! `nvcap time` and, with `--gpu-time`, the statistics (`-s`).

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::releases::Releases;
use super::writer::Output;
use super::{Detail, Sink, StampReads, Summary};
use crate::ranks::{self, Collector, Options, Works as Kept};
use crate::samples::Gathered;
use nvcap_decode::decode::event::{Body, Context, Engine, Event, GpuTime, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, Record};

mod channel_time;
mod coverage;
mod durations;
pub mod earlier;
mod graphs;
mod hidden;
mod intervals;
pub mod kernel_times;
mod late_names;
mod objects;
mod open;
mod preempted;
mod report;
mod sentence;
mod total;
mod unfinished;
mod untimed;
pub mod verdicts;
mod waits;
pub(crate) mod when;
pub mod work;

use channel_time::ChannelTime;
use coverage::Coverage;
pub(crate) use durations::Durations;
use earlier::{Earlier, Look};
pub use graphs::Evidence;
use graphs::Graphs;
use hidden::Hidden;
use intervals::{Intervals, Stretch};
use open::End;
use preempted::Preemptions;
use total::{Total, Works};
use unfinished::Unfinished;
use untimed::{Bounds, Channel, GROUPS, Run, Work};
use waits::Wait;
pub(in crate::output) use work::told;
use work::{Done, Entries, What, elapsed};

/// The most processes of a row that are kept apart.
const MOST_PROCESSES: usize = 1 << 10;
/// The most rows by name that are kept apart, and the bytes of their names.
const MOST_ROWS: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;

/// Place where work ran: the GPU by its device number, or the process where the GPU is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Whose {
    Gpu(u32),
    Process(u32),
}

#[derive(Clone, Debug, Default)]
struct Row {
    /// Its place among all rows.
    number: usize,
    text: String,
    /// Time of its first work's submission, where all of its works have such.
    since: Option<u64>,
    durations: Durations,
    /// Number of entries that did this work, timed or not.
    count: u64,
    /// Bytes moved by the entries that are timed.
    bytes: u64,
    /// Time in which others had the GPU while the timed entries were under way.
    preempted: Preemptions,
    /// Number of entries, of timed ones, and their time, ns, by process.
    of: BTreeMap<u32, (u64, u64, u64)>,
    /// Known times of all these entries, and their total time; `None` until the end, and where none is timed.
    works: Works,
    total: Option<Total>,
}

/// Number of entries with work, and of those whose times are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    entries: u64,
    starts: u64,
    durations: u64,
}

/// Sums up events with the GPU's times.
#[derive(Debug, Default)]
pub(crate) struct Account {
    rows: HashMap<What, Row>,
    /// Bytes of the rows' names.
    row_bytes: usize,
    /// True if a filter leaves something out.
    leaves_out: bool,
    channels: BTreeMap<ChannelId, ChannelTime>,
    engines: BTreeMap<(Whose, String), Intervals>,
    gpus: BTreeMap<Whose, Intervals>,
    processes: BTreeMap<u32, Intervals>,
    /// Work that is no copy, by GPU; time of graphs' replays; and time in which collectives waited for other ranks, ns.
    kernels: BTreeMap<Whose, Intervals>,
    replays: BTreeMap<Whose, u64>,
    peers: BTreeMap<Whose, u64>,
    /// Time in which others had the GPU while kernels were under way.
    preempted: BTreeMap<Whose, Preemptions>,
    /// True if the waits of collectives for other ranks are not told, because there were too many works.
    peers_left_out: bool,
    /// True if rows are by process, too.
    by_process: bool,
    waits: Vec<Wait>,
    known: Known,
    releases: Releases,
    entries: Entries,
    graphs: Graphs,
    /// True if some submission came with GPU times, known or not.
    asked: bool,
    /// True if kernels are timed from their first instruction (`--exec-time`).
    exec_time: bool,
    /// Reads of time stamps, and their times.
    stamps: StampReads,
    coverage: Coverage,
    /// The work of each channel in its order, with the part that is not timed.
    order: HashMap<ChannelId, Channel>,
    runs: Vec<Run>,
    /// Works whose begins were not seen.
    hidden: Hidden,
    unfinished: Unfinished,
    earlier: Earlier,
    /// Works that are not timed, by row: within the time in which stamps were read, and beyond it.
    untimed: Vec<[Bounds; 2]>,
    /// The time of all kernels, and of all copies.
    totals: [Option<Total>; GROUPS],
    /// Time of the newest record.
    newest: Option<u64>,
    /// Time of the trace's first record: text counts from there.
    origin: Option<u64>,
    /// Submissions seen to begin within this time of the host, ns.
    span: Option<(u64, u64)>,
}

impl Account {
    /// Takes the next event.
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        let c = event.context;
        match &event.body {
            Body::Submission(_) => {
                self.graphs.submission(c);
                self.submission(c);
            }
            Body::Operation(op) => {
                self.graphs.operation(c, event.entry, op);
                self.operation(c, event.entry, op);
            }
            _ => {}
        }
    }

    /// Takes note of an event that a filter did not let through.
    pub(crate) fn passed_over(&mut self, event: &Event<'_>) {
        self.leaves_out = true;
        self.releases.passed_over(event);
    }

    /// Takes the next record: the first one with a time begins the trace.
    pub(crate) fn record(&mut self, record: &Record) {
        if self.origin.is_none() {
            self.origin = record.at().time();
        }
        self.newest = self.newest.max(record.at().time());
        self.graphs.record(record);
        self.unfinished.record(record);
        self.earlier.record(record);
        match record {
            Record::Stamps(s) => self.coverage.add(s.at.pid, s.from_ns, s.at.time_ns),
            Record::Kernel(kernel) => self.name(kernel),
            _ => {}
        }
    }

    /// Takes the trace's summary: how often time stamps were read.
    pub(crate) fn summary(&mut self, summary: &Summary) {
        self.stamps = summary.stamps;
    }

    /// The samples of program counters.
    pub(crate) fn samples(&self) -> &Gathered {
        self.graphs.samples()
    }

    /// Tells whether any times were asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked
    }

    fn submission(&mut self, c: &Context) {
        let Some(times) = &c.gpu_time else { return };
        self.asked = true;
        if let Some(ns) = c.at.time() {
            let (first, last) = self.span.unwrap_or((ns, ns));
            self.span = Some((first.min(ns), last.max(ns)));
        }
        for time in times.iter() {
            self.exec_time |= time.is_by_exec();
            self.entry(c, time);
        }
    }

    fn entry(&mut self, c: &Context, time: &GpuTime) {
        let channel = self.channels.entry(c.channel).or_default();
        channel.pid = c.at.pid;
        channel.gpu = c.gpu.or(channel.gpu);
        if channel.engine == Engine::Unknown {
            channel.engine = c.engine;
        }
        while let Some((id, stretch)) = self.hidden.held_for_long(c.at.time().unwrap_or(0)) {
            self.stretch(id, stretch);
        }
        let Some(start) = time.start else {
            if time.works > 0 {
                let channel = self.channels.get(&c.channel);
                let about = channel.map_or(u64::MAX, ChannelTime::mean_ns);
                let stretch = self.hidden.hide(c, time, self.origin, about);
                self.stretch(c.channel, stretch);
            }
            return;
        };
        let before = self.hidden.reveal(c.channel, start);
        self.stretch(c.channel, before);
        let channel = self.channels.entry(c.channel).or_default();
        if let Some((least, most)) = time.queued {
            channel.queued.add(least.midpoint(most));
            channel.queued_least.add(least);
            channel.queued_most.add(most);
        }
        if let Some(wait) = time.wait {
            channel.waited_ns = channel.waited_ns.saturating_add(wait.ns);
            let wait = Wait {
                channel: c.channel,
                pid: c.at.pid,
                by: self.releases.channel(c, wait.semaphore),
                semaphore: wait.semaphore,
                ns: wait.ns,
                at_host_ns: start.host_ns,
            };
            waits::add(&mut self.waits, wait);
        }
        let end = match (elapsed(time), time.duration) {
            (Some(duration), _) => End::At(start.gpu_ns.saturating_add(duration.ns)),
            (None, Some(vague)) => {
                let length = vague.ns.saturating_add(vague.error_ns);
                End::Before(start.gpu_ns.saturating_add(length))
            }
            (None, None) if time.works > 0 => End::Unknown,
            (None, None) => return,
        };
        if let End::At(end) = end {
            let ns = end.saturating_sub(start.gpu_ns);
            self.hidden.ended(c.channel, ns);
            channel.timed = (channel.timed.0 + 1, channel.timed.1.saturating_add(ns));
        }
        let before = |ns: u64| start.gpu_ns.saturating_sub(ns);
        let waited = time.wait.zip(time.ready_gpu_ns);
        let stretch = Stretch {
            begin: start.gpu_ns,
            end,
            there: time
                .queued
                .map(|(least, most)| (before(most), before(least))),
            waited: waited.map(|(wait, until)| (until.saturating_sub(wait.ns), until)),
            host: start.host_ns,
            submitted: c.at.time().unwrap_or(start.host_ns),
            channel: c.channel,
            is_copy: matches!(c.engine, Engine::Copy(_)),
            about: channel.mean_ns(),
        };
        self.stretch(c.channel, Some(stretch));
    }

    /// Adds a stretch of a channel's work to the sums.
    fn stretch(&mut self, id: ChannelId, stretch: Option<Stretch>) {
        let (Some(stretch), Some(channel)) = (stretch, self.channels.get_mut(&id)) else {
            return;
        };
        let coverage = &self.coverage;
        channel.work.add(stretch, coverage);
        let whose = match channel.gpu {
            Some(gpu) => Whose::Gpu(gpu),
            None => Whose::Process(channel.pid),
        };
        let engine = super::names::EngineName(channel.engine).to_string();
        self.engines
            .entry((whose, engine))
            .or_default()
            .add(stretch, coverage);
        let of_gpu = self.gpus.entry(whose).or_default();
        of_gpu.add(stretch, coverage);
        if !stretch.is_copy {
            let kernels = self.kernels.entry(whose).or_default();
            kernels.add(stretch, coverage);
        }
        let of_process = self.processes.entry(channel.pid).or_default();
        of_process.add(stretch, coverage);
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &Operation) {
        self.releases.note(c, op);
        let Some(time) = c.gpu_time_of(entry) else {
            return;
        };
        if let Some(done) = self.entries.operation(c, entry, time, op) {
            self.done(done);
        }
    }

    /// Sums up the work of an entry.
    fn done(&mut self, mut of: Done) {
        self.unfinished.take(&of);
        let whose = of.gpu.map_or(Whose::Process(of.pid), Whose::Gpu);
        if of.what == What::Graph {
            let ns = of.duration.map_or(0, |d| d.ns);
            let all = self.replays.entry(whose).or_default();
            *all = all.saturating_add(ns);
        }
        if let Some(duration) = of.duration.filter(|_| !of.what.is_copy()) {
            let preempted = self.preempted.entry(whose).or_default();
            preempted.add(of.time.preempted, duration.ns);
        }
        if self.by_process {
            of.what = What::Of(of.pid, Box::new(of.what));
            of.text = self.whose(of.pid, of.text);
        }
        self.known.entries += 1;
        self.known.starts += u64::from(of.time.start.is_some());
        self.known.durations += u64::from(of.duration.is_some());
        let order = self.order.entry(of.channel).or_default();
        let mut work = Work {
            row: usize::MAX,
            group: usize::from(of.what.is_copy()),
            time: &of.time,
            mean_ns: 0,
            absent: of.absent,
        };
        let has_room = self.rows.len() < MOST_ROWS && self.row_bytes < MOST_BYTES;
        let is_new = !self.rows.contains_key(&of.what);
        if has_room || !is_new {
            self.row_bytes += if is_new {
                of.what.bytes() + of.text.len()
            } else {
                0
            };
            let number = GROUPS + self.rows.len();
            let row = self.rows.entry(of.what).or_insert_with(|| Row {
                number,
                text: of.text,
                since: of.submitted,
                ..Row::default()
            });
            row.since = row.since.min(of.submitted);
            row.count += 1;
            if row.of.len() < MOST_PROCESSES || row.of.contains_key(&of.pid) {
                let its = row.of.entry(of.pid).or_default();
                its.0 += 1;
                its.1 += u64::from(of.duration.is_some());
                its.2 = its.2.saturating_add(of.duration.map_or(0, |d| d.ns));
            }
            if let Some(duration) = of.duration {
                row.durations.add(duration.ns);
                row.bytes = row.bytes.saturating_add(of.bytes);
                row.preempted.add(of.time.preempted, duration.ns);
                let end = of.time.start.zip(elapsed(&of.time));
                let end = end.map(|(s, elapsed)| s.host_ns.saturating_add(elapsed.ns));
                let burst = end.and_then(|end| self.coverage.burst(end));
                row.works.add(burst, duration.ns, duration.error_ns);
            }
            work.row = row.number;
            work.mean_ns = row.durations.mean_ns();
        }
        order.take(work, self.origin, &mut self.runs);
        self.put_runs();
    }

    /// Returns the time of all rows of kernels, or of copies: where several of them share a time, their sum is known better than each.
    fn total_of(&self, copies: bool) -> Option<Total> {
        let untimed = self.untimed.get(usize::from(copies))?;
        let mut timed = Works::default();
        let mut sum = Total::default();
        for (_, row) in self.rows.iter().filter(|(w, _)| w.is_copy() == copies) {
            timed.timed += row.works.timed;
            timed.sum_ns = timed.sum_ns.saturating_add(row.works.sum_ns);
            timed.error_ns = timed.error_ns.saturating_add(row.works.error_ns);
            // Of a row without any times nothing but what its stretches say is known.
            let unknown = || Total::from(row.works.within).and(row.works.between.into());
            sum = sum.and(row.total.unwrap_or_else(unknown));
        }
        [timed.within, timed.between] = *untimed;
        Some(sum.within(timed.total(false)?))
    }

    /// Sums up stretches that are not timed.
    fn put_runs(&mut self) {
        self.untimed
            .resize(GROUPS + self.rows.len(), Default::default());
        for run in self.runs.drain(..) {
            let (from, until) = run.span;
            let is_read = self.coverage.is_whole(from, until);
            if let Some(row) = self.untimed.get_mut(run.row) {
                row[usize::from(!is_read)].add(run.bounds);
            }
        }
    }

    /// Sums up the last entry, and the stretches that were held back to be put in order: no more events will come.
    pub(crate) fn finish(&mut self) {
        // Observed, the submission that releases may be shown behind the one that waits.
        for wait in &mut self.waits {
            wait.by = wait.by.or(self.releases.of(wait.pid, wait.semaphore));
        }
        if let Some(done) = self.entries.finish() {
            self.done(done);
        }
        for order in self.order.values_mut() {
            order.end(self.newest, &mut self.runs);
        }
        self.put_runs();
        self.graphs.finish();
        let sampled = self.coverage.sample().is_some();
        for row in self.rows.values_mut() {
            let untimed = self.untimed.get(row.number).copied();
            [row.works.within, row.works.between] = untimed.unwrap_or_default();
            row.total = row.works.total(sampled);
        }
        self.totals = [false, true].map(|copies| self.total_of(copies));
        let channels = self.channels.values_mut().map(|c| &mut c.work);
        let all = channels
            .chain(self.engines.values_mut())
            .chain(self.gpus.values_mut())
            .chain(self.kernels.values_mut())
            .chain(self.processes.values_mut());
        all.for_each(|work| work.finish(&self.coverage));
    }
}

/// The most calls of collectives, and works between them, that are kept.
const MOST_OF_RANKS: usize = 1 << 22;

/// Sink of `nvcap time`, which shows nothing until the end.
pub struct TimeReport {
    out: Output,
    json: bool,
    color: bool,
    account: Account,
    ranks: Option<(ranks::Gathered, Collector)>,
    look: Option<Look>,
}

impl TimeReport {
    /// Takes times for the nodes of graphs from another trace ([`kernel_times`]), where this one tells none.
    #[must_use]
    pub fn with_times(mut self, evidence: Evidence) -> Self {
        self.account.graphs.with_evidence(evidence);
        self
    }

    /// Writes to `out` at the end: as one JSON object, or as tables.
    pub fn new(out: Output, json: bool, color: bool) -> Self {
        let gathered = ranks::Gathered::new(Options {
            most: MOST_OF_RANKS,
            works: Kept::OfCallers,
            ..Options::default()
        });
        let collector = gathered.collector();
        Self {
            out,
            json,
            color,
            account: Account::default(),
            ranks: Some((gathered, collector)),
            look: None,
        }
    }

    /// Adds a look at the end at the processes that have submitted nothing: work from before the trace may run on.
    #[must_use]
    pub fn with_earlier(mut self, look: Look) -> Self {
        self.look = Some(look);
        self
    }

    /// Adds rows for each process.
    #[must_use]
    pub fn by_process(mut self, by: bool) -> Self {
        self.account.by_process = by;
        self
    }
}

impl Sink for TimeReport {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        if let Some((_, collector)) = &mut self.ranks {
            collector.event(event)?;
        }
        self.account.event(event);
        Ok(())
    }

    fn passed_over(&mut self, event: &Event<'_>) {
        // What a filter leaves out may be a collective.
        self.ranks = None;
        self.account.passed_over(event);
    }

    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        if let Some((_, collector)) = &mut self.ranks {
            collector.record(record, model)?;
        }
        self.account.record(record);
        Ok(())
    }

    fn summary(&mut self, summary: &Summary) {
        self.account.summary(summary);
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, model: &Model) -> io::Result<()> {
        if let Some((gathered, mut collector)) = self.ranks.take() {
            collector.finish(ledger, model)?;
            self.account.peers_left_out = gathered.left_out() > 0;
            let waits = gathered.analysis().waits();
            for (pid, gpu, ns) in waits.into_iter().filter(|_| gathered.left_out() == 0) {
                let whose = gpu.map_or(Whose::Process(pid), Whose::Gpu);
                // Ranks of one GPU may wait at the same time.
                let longest = self.account.peers.entry(whose).or_default();
                *longest = ns.max(*longest);
            }
        }
        self.account.finish();
        if let Some(look) = self.look.take() {
            self.account.earlier.look(look);
        }
        if self.json {
            let object = self.account.json();
            let out = self.out.object();
            super::json::write(out, &object);
            out.push(b'\n');
            super::ledger::json(self.out.object(), ledger);
        } else {
            let width = self.out.width();
            self.account.text(self.out.object(), self.color, width);
            super::ledger::text(self.out.object(), ledger, self.color);
        }
        self.out.end_object()?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
