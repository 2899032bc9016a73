//! The state of a trace's channels at its end, or at a moment before. This sink keeps the newest entries of each channel and makes
//! the same report of them that a look at a live process gives.
//!
//! A trace tells what was submitted. It tells how far the GPU was only where time stamps were read: the newest payload read from a
//! semaphore counts as the semaphore's value.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crate::output::ledger::verdict;
use crate::output::{Detail, Sink};
use nvcap_decode::decode::event::{Body, Event, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::hang::{self, ChannelState, ProcessReport, Report, Step, Values};
use nvcap_decode::ledger::{Ledger, Understanding};
use nvcap_decode::record::{Channel, ChannelId, Fault, Life, Process, Record, Stamps, Submission};
use nvcap_decode::wire::entry;

/// The most entries that are kept for each channel, unless `last` asks for more; of smaller rings all entries are kept.
const MOST: u32 = 4096;

/// The most faults that are kept.
const FAULTS: usize = 64;

/// The sink.
#[derive(Default)]
pub struct LastEntries {
    /// Least number of entries of each channel that are kept.
    last: u32,
    /// Time from the first submission after which submissions and time stamps are ignored.
    until: Option<Duration>,
    /// The times of the first submission, and of the last one that was looked at.
    first_ns: Option<u64>,
    newest_ns: u64,
    /// The latest time of a record.
    end_ns: u64,
    channels: BTreeMap<ChannelId, Kept>,
    processes: BTreeMap<u32, Known>,
    values: Values,
    /// The channel of the submission whose events come now, and the index of the submission's first step; `None` if the submission
    /// is ignored.
    now: Option<(ChannelId, usize)>,
    faults: Vec<Fault>,
    /// A note that the recording is not complete, if the ledger says so.
    lacks: Option<String>,
}

/// A channel.
struct Kept {
    state: ChannelState,
    /// True if GP_GET was read at the channel's newest doorbell.
    has_get: bool,
}

/// A process.
#[derive(Default)]
struct Known {
    name: String,
    ended_ns: Option<u64>,
}

impl LastEntries {
    /// Keeps at least `last` entries of each channel, up to the moment `until` after the first submission.
    #[must_use]
    pub fn new(last: u32, until: Option<Duration>) -> Self {
        Self {
            last,
            until,
            ..Self::default()
        }
    }

    /// Tells whether a time is after the moment `until`.
    fn is_later(&self, ns: u64) -> bool {
        match (self.until, self.first_ns) {
            (Some(until), Some(first)) => u128::from(ns.saturating_sub(first)) > until.as_nanos(),
            _ => false,
        }
    }

    fn channel(&mut self, c: &Channel) {
        let kept = self.channels.entry(c.id).or_insert_with(|| Kept::new(c.id));
        let state = &mut kept.state;
        state.pid = c.at.pid;
        state.gpu = c.gpu.or(state.gpu);
        state.token = c.token.or(state.token);
        state.entries = c.entries.unwrap_or(state.entries);
    }

    fn process(&mut self, p: &Process) {
        let known = self.processes.entry(p.at.pid).or_default();
        match &p.life {
            Life::Present { name } | Life::Exec { name } => known.name.clone_from(name),
            Life::Exit { process: true } => known.ended_ns = Some(p.at.time_ns),
            _ => {}
        }
    }

    fn stamps(&mut self, stamps: &Stamps) {
        for stamp in &stamps.stamps {
            if !self.is_later(stamp.seen_ns) {
                let value = u64::from(stamp.payload);
                self.values.set(stamps.at.pid, stamp.address, value);
            }
        }
    }

    fn submission(&mut self, s: &Submission) {
        self.first_ns.get_or_insert(s.at.time_ns);
        self.now = None;
        if self.is_later(s.at.time_ns) {
            return;
        }
        self.newest_ns = self.newest_ns.max(s.at.time_ns);
        let kept = self.channels.entry(s.channel);
        let kept = kept.or_insert_with(|| Kept::new(s.channel));
        kept.has_get = s.gp_get.is_some();
        let state = &mut kept.state;
        state.pid = s.at.pid;
        state.put = s.gp_put;
        state.get = s.gp_get.unwrap_or(s.gp_put);
        // Old steps are dropped only when there are twice as many as needed: dropping moves all the others.
        let most = self.last.max(state.entries.min(MOST)) as usize;
        if state.steps.len() > most.saturating_mul(2) {
            state.steps.drain(..state.steps.len() - most);
        }
        self.now = Some((s.channel, state.steps.len()));
        for (segment, n) in s.segments.iter().zip(0u32..) {
            let bytes = entry::segment_of(segment.entry, 0).map_or(0, |(_, len)| u64::from(len));
            let holes = segment.holes.iter().map(|h| u64::from(h.len)).sum::<u64>();
            let index = s.prev_put.wrapping_add(n);
            state.steps.push(Step {
                position: s.position.wrapping_add(u64::from(n)),
                index: index.checked_rem(state.entries).unwrap_or(index),
                pending: false,
                operations: Vec::new(),
                stop: None,
                bytes,
                missing: bytes.saturating_sub(segment.bytes.len() as u64) + holes,
            });
        }
    }

    /// Returns the report of the state at the end of the trace, or at the moment `until`. The channels go into it: a second report is empty.
    #[must_use]
    pub fn report(&mut self) -> Report {
        let first = self.first_ns.unwrap_or(0);
        let mut report = Report {
            time_ns: self.newest_ns,
            trace_ns: Some(self.newest_ns.saturating_sub(first)),
            ..Report::default()
        };
        let mut processes: BTreeMap<u32, ProcessReport> = BTreeMap::new();
        let mut without_get: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for (id, mut kept) in std::mem::take(&mut self.channels) {
            if kept.state.steps.is_empty() {
                continue;
            }
            kept.mark(&self.values);
            let pid = kept.state.pid;
            { processes.entry(pid) }.or_insert_with(|| self.of_process(pid));
            if !kept.has_get {
                without_get.entry(pid).or_default().push(id.0.to_string());
            }
            report.rings.channels.push(kept.state);
        }
        for (pid, channels) in without_get {
            if let Some(process) = processes.get_mut(&pid) {
                process.notes.push(format!(
                    "GP_GET is not in the recording, and all entries are shown as fetched: channels {}",
                    channels.join(", ")
                ));
            }
        }
        report.processes = processes.into_values().collect();
        report.analysis = hang::analyse(&report.rings, &self.values);
        report
    }

    fn of_process(&self, pid: u32) -> ProcessReport {
        let known = self.processes.get(&pid);
        let mut notes = Vec::new();
        let ended = known.and_then(|k| k.ended_ns);
        let ended = ended.filter(|ended| !self.is_later(*ended));
        if let (Some(ended), Some(first)) = (ended, self.first_ns) {
            notes.push(format!(
                "the process ended {:.6} s after the trace's first doorbell",
                ended.saturating_sub(first) as f64 / 1e9
            ));
        }
        notes.extend(self.lacks.clone());
        let of = |first: u64| Duration::from_nanos(self.end_ns.saturating_sub(first));
        if let (Some(until), Some(length)) = (self.until, self.first_ns.map(of))
            && until > length
        {
            notes.push(format!(
                "the recording ends {:.6} s after its first doorbell: this is the state at its end, not at {} s",
                length.as_secs_f64(),
                until.as_secs_f64()
            ));
        }
        ProcessReport {
            pid,
            name: known.map_or_else(String::new, |k| k.name.clone()),
            notes,
            faults: { self.faults.iter() }
                .filter(|f| f.at.pid == pid)
                .cloned()
                .collect(),
            has_ended: ended.is_some(),
            ..ProcessReport::default()
        }
    }
}

impl Kept {
    fn new(id: ChannelId) -> Self {
        Self {
            state: ChannelState::new(id, 0, 0, 0, 0),
            has_get: false,
        }
    }

    /// Marks the steps that were not fetched. GP_GET is that of the newest doorbell; steps that the channel's semaphore shows as done since were
    /// fetched, too.
    fn mark(&mut self, values: &Values) {
        let done = hang::done(&self.state, values);
        self.state.fetched_since(self.state.get, done);
    }
}

impl Sink for LastEntries {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let Some((id, first)) = self.now else {
            return Ok(());
        };
        if event.context.channel != id {
            return Ok(());
        }
        let Some(kept) = self.channels.get_mut(&id) else {
            return Ok(());
        };
        kept.state.engine = event.context.engine;
        let Some(step) = kept.state.steps.get_mut(first + event.entry as usize) else {
            return Ok(());
        };
        match &event.body {
            // The summary of a replay belongs to several submissions.
            Body::Operation(Operation::Graph(_)) => {}
            Body::Operation(op) => {
                if let Operation::Bind(b) = op {
                    kept.state.classes.insert(b.class);
                }
                step.operations.push((*op).clone());
            }
            Body::Stop(stop) => step.stop = step.stop.or(Some(*stop)),
            Body::Submission(_) | Body::Entry(_) | Body::Method(_) | Body::Chip(_) => {}
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.end_ns = self.end_ns.max(record.at().time_ns);
        match record {
            Record::Channel(c) => self.channel(c),
            Record::Process(p) => self.process(p),
            Record::Stamps(s) => self.stamps(s),
            Record::Submission(s) => self.submission(s),
            Record::Fault(f) if !self.is_later(f.at.time_ns) && self.faults.len() < FAULTS => {
                self.faults.push((**f).clone());
            }
            _ => {}
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        let understood = ledger.understood().is_none_or(Understanding::is_whole);
        self.lacks = (!ledger.is_complete() || !understood)
            .then(|| format!("what the recording has is not whole: {}", verdict(ledger)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::dump::{self, Shown, Word};
    use nvcap_decode::decode::event::{Semaphore, SemaphoreAction, SemaphoreUnit};
    use nvcap_decode::hang::State;
    use nvcap_decode::record::{At, How, Segment};
    use nvcap_decode::wire::GpuVa;

    fn release(address: GpuVa, payload: u64) -> Operation {
        Operation::Semaphore(Semaphore {
            unit: SemaphoreUnit::Engine,
            action: SemaphoreAction::Release,
            address,
            payload,
            wide: false,
            timestamp: false,
            reduction: None,
            wait_for_idle: false,
            execute: 0,
        })
    }

    fn submission(ns: u64, position: u64, gp_get: Option<u32>) -> Submission {
        let prev_put = (position % 8) as u32;
        Submission {
            absent_ns: None,
            at: At {
                time_ns: ns,
                pid: 7,
                tid: 7,
            },
            channel: ChannelId(3),
            token: None,
            position,
            gp_get,
            prev_put,
            gp_put: (prev_put + 2) % 8,
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: None,
            segments: vec![Segment::default(); 2],
        }
    }

    /// Takes 30 submissions, 1 µs apart, with two entries each, on a ring of 8 entries.
    fn taken(last: u32, until: Option<Duration>, gp_get: Option<u32>) -> Report {
        let mut sink = LastEntries::new(last, until);
        sink.channels.insert(ChannelId(3), Kept::new(ChannelId(3)));
        sink.channels.get_mut(&ChannelId(3)).unwrap().state.entries = 8;
        for n in 0..30 {
            sink.submission(&submission(1000 + n * 1000, n * 2, gp_get));
            sink.end_ns = 1000 + n * 1000;
        }
        sink.report()
    }

    #[test]
    fn the_newest_entries_are_kept() {
        let report = taken(4, None, Some(2));
        let [channel] = &report.rings.channels[..] else {
            panic!("one channel");
        };
        assert_eq!((channel.get, channel.put, channel.pending()), (2, 4, 2));
        assert!(channel.steps.len() <= 18, "{}", channel.steps.len());
        let newest: Vec<_> = { channel.steps.iter().rev().take(3) }
            .map(|s| (s.position, s.index, s.pending))
            .collect();
        assert_eq!(newest, [(59, 3, true), (58, 2, true), (57, 1, false)]);
        assert_eq!((report.time_ns, report.trace_ns), (30_000, Some(29_000)));
        assert!(report.processes[0].notes.is_empty());
        assert_eq!(taken(40, None, Some(2)).rings.channels[0].steps.len(), 60);
    }

    #[test]
    fn a_moment_before_the_end() {
        let report = taken(4, Some(Duration::from_nanos(4_500)), None);
        let channel = &report.rings.channels[0];
        // Five submissions: at 0, 1, ..., 4 µs.
        assert_eq!(channel.steps.last().map(|s| s.position), Some(9));
        assert_eq!((channel.put, channel.pending()), (2, 0));
        assert_eq!(report.trace_ns, Some(4_000));
        let notes = &report.processes[0].notes;
        assert!(notes[0].contains("as fetched: channels 3"), "{notes:?}");
    }

    #[test]
    fn a_moment_behind_the_end_is_told() {
        let notes = |until| {
            let mut sink = LastEntries::new(4, Some(Duration::from_nanos(until)));
            sink.submission(&submission(1000, 0, Some(2)));
            sink.end_ns = 5000;
            sink.report().processes.remove(0).notes
        };
        assert!(notes(4000).is_empty());
        let said = notes(4001);
        assert!(
            said[0].starts_with("the recording ends 0.000004 s after its first doorbell: "),
            "{said:?}"
        );
    }

    /// Steps that the semaphore shows as done were fetched, although the newest doorbell's GP_GET was before it.
    #[test]
    fn what_is_done_was_fetched() {
        const AT: GpuVa = GpuVa(0x5000);
        let pending = |value: u64| {
            let mut sink = LastEntries::new(4, None);
            sink.channels.insert(ChannelId(3), Kept::new(ChannelId(3)));
            sink.channels.get_mut(&ChannelId(3)).unwrap().state.entries = 8;
            for n in 0..4 {
                sink.submission(&submission(1000 + n * 1000, n * 2, Some(3)));
            }
            let kept = sink.channels.get_mut(&ChannelId(3)).unwrap();
            for step in &mut kept.state.steps {
                step.operations = vec![release(AT, step.position)];
            }
            sink.values.set(7, AT, value);
            let report = sink.report();
            let channel = &report.rings.channels[0];
            assert_eq!(
                channel.pending() as usize,
                channel.steps.iter().filter(|s| s.pending).count()
            );
            (channel.get, report.analysis.channels[0].state)
        };
        // GP_PUT is 0: eight entries were submitted.
        assert_eq!(pending(1), (3, State::Running));
        // Of what is not fetched nothing is a kernel or a copy that could run.
        assert_eq!(pending(5), (6, State::Queued));
        assert_eq!(pending(7), (0, State::Idle));
    }

    /// A fault of the recording is the verdict.
    #[test]
    fn a_fault_is_an_error() {
        let mut sink = LastEntries::new(4, None);
        sink.submission(&submission(1000, 0, None));
        let fault = Fault {
            code: 31,
            channel: Some(ChannelId(3)),
            ..Fault::of_notifier(At::of_process(2000, 7), 31)
        };
        sink.faults.push(fault);
        let report = sink.report();
        assert_eq!(report.error_of(ChannelId(3)), Some(31));
        assert_eq!(report.error_of(ChannelId(4)), None);
        let shown = Shown {
            report: &report,
            moved: None,
        };
        let verdict = dump::verdict(&shown, &report.processes[0]);
        assert_eq!(verdict.word, Word::Error);
        assert!(
            verdict
                .head
                .starts_with("the driver has stopped 1 of 1 channel after an error"),
            "{}",
            verdict.head
        );
    }
}
