//! A report: one HTML page that needs nothing beside it and no network, with a timeline, tables and plots. docs/report.md says what is on
//! it.
//!
//! - `words`: kind, name and parts of an operation; nothing of users' data.
//! - `columns`, `texts`: how operations are stored: columns of numbers, and each text once.
//! - `losses`, `faults`: what was lost, and faults of the GPU, as marks on the timeline.
//! - `samples`: kernels and instructions with the most samples of program counters.
//! - `shares`: who had which GPU.
//! - `page`: the page: the parts of `page/` and the data, put together.
//!
//! Sums (kernels, moves and thresholds, graphs, the GPU's time) are those of `nvcap stats` and `nvcap time`, made by the same code.

mod columns;
mod faults;
mod losses;
mod page;
mod samples;
mod shares;
mod texts;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};

use crate::output::fold::bytes_of;
use crate::output::gpu_time::Account;
use crate::output::gpu_time::when::When;
use crate::output::names::{EngineName, Who, is_timed, known_pid};
use crate::output::releases::Releases;
use crate::output::stats::{Kernels, Profile};
use crate::output::text::{is_mechanics, is_wait};
use crate::output::writer::Output;
use crate::output::{Detail, Sink, Summary};
use nvcap_decode::decode::event::{Body, Context, Engine, Event, GpuTime, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, Life, Record};

use crate::ranks::{Collector, Gathered, Options as RanksOptions};
use crate::shares::Shares;

use columns::Column;
use faults::Faults;
use losses::Losses;
use texts::Texts;
use words::Kind;

/// The most operations that the timeline shows, unless the user says otherwise: a browser draws about this many fluently.
pub const MOST_OPERATIONS: u64 = 1_000_000;
/// The most stretches of phases.
const MOST_PHASES: usize = 10_000;

/// Options of the page that is written.
#[derive(Debug)]
pub struct ReportOptions {
    /// True for all operations, those of the driver's mechanics too.
    pub all: bool,
    /// The most operations that the timeline shows.
    pub limit: u64,
    /// Name of the recording, as the user gave it.
    pub file: String,
    /// True if a filter chooses what is shown.
    pub filtered: bool,
    /// Facts about the trace that the recording states.
    pub trace: Value,
}

/// A channel of the timeline.
#[derive(Debug)]
struct Channel {
    /// Its place among the channels of the page.
    number: u32,
    pid: u32,
    gpu: Option<u32>,
    engine: Engine,
    token: Option<u32>,
    who: String,
    /// The entry that was drawn last, by submission and entry.
    drawn: Option<(u64, u32)>,
}

/// The columns of operations, and of ring entries whose times on the GPU are known. `page.rs` names them.
#[derive(Default)]
struct Columns {
    channel: Column,
    begin: Column,
    /// Duration plus 1; 0 where it is not known.
    duration: Column,
    /// Begin less the time of the submission.
    behind: Column,
    /// Kind of the operation, plus 16 where the begin is the GPU's, plus 32 where the time is that of an earlier operation of the entry.
    kind: Column,
    name: Column,
    detail: Column,
    bytes: Column,
    serial: Column,
    thread: Column,
    phase: Column,
    entry_channel: Column,
    entry_there: Column,
    entry_begin: Column,
    /// Duration plus 1; 0 where it is not known.
    entry_duration: Column,
}

/// Counts that the page shows.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    submissions: u64,
    /// Bytes of the submissions' pushbuffers.
    submitted: u64,
    /// Number of operations, without those that are not shown because they are mechanics.
    operations: u64,
    mechanics: u64,
    /// Number of operations in the timeline.
    shown: u64,
    moved: u64,
    /// Number of entries with times of the GPU, and of those in the page.
    entries: u64,
    entries_shown: u64,
    /// Number of phases that there was no room for.
    phases: u64,
}

/// A stretch of operations of one phase.
#[derive(Debug)]
struct Phase {
    name: u32,
    first: i64,
    last: i64,
}

/// The sink.
pub struct Report {
    out: Output,
    options: ReportOptions,
    columns: Columns,
    counts: Counts,
    names: Texts,
    details: Texts,
    threads: Texts,
    phase_names: Texts,
    phases: Vec<Phase>,
    channels: BTreeMap<ChannelId, Channel>,
    processes: BTreeMap<u32, String>,
    losses: Losses,
    faults: Faults,
    kernels: Kernels,
    profile: Profile,
    account: Account,
    shares: Shares,
    /// Collectives of several ranks, unless a filter hides some of their work.
    ranks: Option<(Gathered, Collector)>,
    releases: Releases,
    /// The time of the first record, from which the page counts, and the latest.
    origin: Option<u64>,
    now: u64,
    newest: Option<u64>,
    /// The time of the first operation that had no room.
    cut: Option<u64>,
}

impl Report {
    /// Writes to `out` at the end.
    pub fn new(out: Output, options: ReportOptions) -> Self {
        let ranks = (!options.filtered).then(|| {
            let gathered = Gathered::new(RanksOptions {
                most: usize::try_from(options.limit).unwrap_or(usize::MAX),
                ..RanksOptions::default()
            });
            let collector = gathered.collector();
            (gathered, collector)
        });
        Self {
            ranks,
            out,
            options,
            columns: Columns::default(),
            counts: Counts::default(),
            names: Texts::default(),
            details: Texts::default(),
            threads: Texts::default(),
            phase_names: Texts::default(),
            phases: Vec::new(),
            channels: BTreeMap::new(),
            processes: BTreeMap::new(),
            losses: Losses::default(),
            faults: Faults::default(),
            kernels: Kernels::default(),
            profile: Profile::new(None),
            account: Account::default(),
            shares: Shares::default(),
            releases: Releases::default(),
            origin: None,
            now: 0,
            newest: None,
            cut: None,
        }
    }

    /// A time as the page has it: from the origin on, ns.
    fn since(&self, time: u64) -> i64 {
        let origin = self.origin.unwrap_or_default();
        i64::try_from(i128::from(time) - i128::from(origin)).unwrap_or(i64::MAX)
    }

    /// The time of a submission, ns; that of what came before where it has none.
    fn time(&mut self, c: &Context) -> u64 {
        if let Some(time) = c.at.time() {
            self.origin.get_or_insert(time);
            self.now = time;
        }
        self.now
    }

    fn channel(&mut self, c: &Context) -> &mut Channel {
        let number = self.channels.len() as u32;
        let channel = self.channels.entry(c.channel).or_insert_with(|| Channel {
            number,
            pid: c.at.pid,
            gpu: c.gpu,
            engine: c.engine,
            token: c.token,
            who: String::new(),
            drawn: None,
        });
        if channel.engine == Engine::Unknown {
            channel.engine = c.engine;
        }
        channel.token = channel.token.or(c.token);
        channel.gpu = channel.gpu.or(c.gpu);
        if channel.who.is_empty()
            && let Some(name) = &c.thread
        {
            channel.who = name.to_string();
        }
        channel
    }

    /// Takes a submission that was not seen before.
    fn submission(&mut self, c: &Context) {
        self.newest = Some(c.serial);
        let there = self.time(c);
        let number = self.channel(c).number;
        for time in c.gpu_time.iter().flat_map(|all| all.iter()) {
            self.entry(c, number, time, there);
        }
    }

    /// Takes an entry whose begin is known, for the depth of the queue and for the time in which GPUs are busy.
    fn entry(&mut self, c: &Context, channel: u32, time: &GpuTime, there: u64) {
        let when = When::of(c, time);
        let Some(begin) = when.begin else { return };
        self.counts.entries += 1;
        if self.counts.entries > self.options.limit || self.cut.is_some() {
            return;
        }
        self.counts.entries_shown += 1;
        let (there, begin_since) = (self.since(there.min(begin)), self.since(begin));
        let all = &mut self.columns;
        all.entry_channel.push(channel.into());
        all.entry_there.push(there);
        all.entry_begin.push(begin_since);
        let duration = when
            .end
            .map_or(0, |end| end.saturating_sub(begin).saturating_add(1));
        all.entry_duration.push_unsigned(duration);
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &Operation) {
        if let Operation::Launch(launch) = op {
            self.kernels.add(c.at, launch);
        }
        self.releases.note(c, op);
        let is_mechanics = is_mechanics(c, entry, op, &self.releases);
        if !is_mechanics {
            self.counts.moved = self.counts.moved.saturating_add(bytes_of(op));
        }
        // What takes time of the GPU is drawn, whoever asked for it.
        if !self.options.all && is_mechanics && !is_timed(op) {
            self.counts.mechanics += 1;
            return;
        }
        let submitted = self.time(c);
        let when = c
            .gpu_time_of(entry)
            .map_or_else(When::default, |time| When::of(c, time));
        let waited = match op {
            Operation::Semaphore(s) if is_wait(s.action) => when
                .wait
                .filter(|(_, _, w)| w.semaphore == s.address)
                .map(|(begin, end, _)| (begin, end)),
            _ => None,
        };
        let mut words = words::of(op);
        if let Operation::Semaphore(s) = op
            && words.kind == Kind::Wait
            && let Some(of) = self.releases.channel(c, s.address)
            && of != c.channel
        {
            words.name = format!("wait for channel {}", of.0);
        }
        let drawn = self.channel(c).drawn;
        let is_first = is_timed(op) && drawn != Some((c.serial, entry));
        let (begin, end) = match (waited, is_first) {
            (Some((begin, end)), _) => (Some(begin), Some(end)),
            (None, true) => (when.begin, when.end),
            (None, false) => (when.begin, None),
        };
        if is_timed(op) {
            self.channel(c).drawn = Some((c.serial, entry));
        }
        let later = is_timed(op) && !is_first && when.end.is_some();
        let times = Times {
            submitted,
            begin,
            end,
            later,
        };
        self.show(c, &words, times, bytes_of(op));
    }

    fn show(&mut self, c: &Context, words: &words::Words, times: Times, bytes: u64) {
        self.counts.operations += 1;
        if self.counts.shown >= self.options.limit {
            self.cut.get_or_insert(times.submitted);
            return;
        }
        self.counts.shown += 1;
        let submitted = self.since(times.submitted);
        let begin = times.begin.map_or(submitted, |begin| self.since(begin));
        let duration = times.end.zip(times.begin);
        let duration = duration.map_or(0, |(end, begin)| {
            end.saturating_sub(begin).saturating_add(1)
        });
        let channel = self.channel(c).number;
        let (name, detail) = (
            self.names.number_of(&words.name, words.full.as_deref()),
            self.details.number(&words.detail),
        );
        let thread = self.threads.number(&Who(c).to_string());
        let phase = self.phase(c, submitted);
        let all = &mut self.columns;
        all.channel.push(channel.into());
        all.begin.push(begin);
        all.duration.push_unsigned(duration);
        all.behind.push(begin.saturating_sub(submitted));
        let flags = 16 * i64::from(times.begin.is_some()) + 32 * i64::from(times.later);
        all.kind.push(words.kind as i64 + flags);
        all.name.push(name.into());
        all.detail.push(detail.into());
        all.bytes.push_unsigned(bytes);
        all.serial.push_unsigned(c.serial);
        all.thread.push(thread.into());
        all.phase.push(phase);
    }

    /// The number of a phase + 1, 0 for none.
    fn phase(&mut self, c: &Context, at: i64) -> i64 {
        let Some(phase) = &c.phase else { return 0 };
        let name = self.phase_names.number(phase);
        if let Some(last) = self.phases.last_mut().filter(|last| last.name == name) {
            last.last = at.max(last.last);
        } else if self.phases.len() < MOST_PHASES {
            self.phases.push(Phase {
                name,
                first: at,
                last: at,
            });
        } else {
            self.counts.phases += 1;
        }
        i64::from(name) + 1
    }

    /// The channels, in the order of their numbers.
    fn channels(&self) -> Vec<Value> {
        let mut all: Vec<_> = self.channels.iter().collect();
        all.sort_by_key(|(_, c)| c.number);
        let json = |(id, c): (&ChannelId, &Channel)| {
            let process = self.processes.get(&c.pid).unwrap_or(&c.who);
            json!({
                "channel": id.0, "pid": known_pid(c.pid), "gpu": c.gpu, "token": c.token,
                "engine": EngineName(c.engine).to_string(), "process": process,
            })
        };
        all.into_iter().map(json).collect()
    }
}

/// The times of an operation, ns.
#[derive(Clone, Copy, Debug)]
struct Times {
    submitted: u64,
    begin: Option<u64>,
    end: Option<u64>,
    /// True if an earlier operation of the same entry stands for the time that the entry took.
    later: bool,
}

impl Sink for Report {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn passed_over(&mut self, event: &Event<'_>) {
        self.account.passed_over(event);
        self.kernels.event(event);
        self.profile.passed_over(event);
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let c = event.context;
        if let Some((_, collector)) = &mut self.ranks {
            collector.event(event)?;
        }
        self.account.event(event);
        self.kernels.event(event);
        self.profile.event(event);
        let is_new = self.newest.is_none_or(|newest| c.serial > newest);
        match &event.body {
            Body::Submission(head) => {
                self.counts.submissions += 1;
                self.counts.submitted = self.counts.submitted.saturating_add(head.bytes);
                self.submission(c);
            }
            Body::Operation(op) => {
                if is_new {
                    self.submission(c);
                }
                self.operation(c, event.entry, op);
            }
            Body::Stop(stop) => {
                let words = words::Words {
                    kind: Kind::NotDecoded,
                    name: "not decoded".to_owned(),
                    full: None,
                    detail: stop.to_string(),
                };
                let submitted = self.time(c);
                let times = Times {
                    submitted,
                    begin: None,
                    end: None,
                    later: false,
                };
                self.show(c, &words, times, 0);
            }
            Body::Entry(_) | Body::Method(_) | Body::Chip(_) => {}
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        if let Some((_, collector)) = &mut self.ranks {
            collector.record(record, model)?;
        }
        self.account.record(record);
        self.shares.record(record);
        if let Some(time) = record.at().time() {
            self.origin.get_or_insert(time);
        }
        match record {
            Record::Kernel(kernel) => self.kernels.learn(kernel),
            Record::Process(p) => {
                if let Life::Present { name } | Life::Exec { name } = &p.life {
                    self.processes.insert(p.at.pid, name.to_string());
                }
            }
            _ => {}
        }
        // A loss without a time of its own stands where it was noticed.
        let noticed = self.now.max(self.origin.unwrap_or_default());
        let time = self.since(record.at().time().unwrap_or(noticed));
        self.losses.record(record, time);
        if let Record::Fault(fault) = record {
            self.faults.add(fault, time);
        }
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
        if let Some((_, collector)) = &mut self.ranks {
            collector.finish(ledger, model)?;
        }
        self.account.finish();
        self.profile.finish(ledger);
        self.write(ledger);
        self.out.end_object()?;
        self.out.flush()
    }
}
