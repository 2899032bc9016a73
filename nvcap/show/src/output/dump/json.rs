//! The look as one JSON object; docs/dump.schema.json has its form.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};

use super::verdict::verdict;
use super::{ReportOptions, Shown};
use crate::output::json::{operation_value, write};
use crate::output::names::{known_engine, known_name};
use crate::output::redact::Redactor;
use nvcap_decode::decode::event::{Operation, Stop};
use nvcap_decode::hang::{
    ChannelFacts, ChannelState, Judged, ProcessReport, Progress, Root, State, Step, Thread,
    TrackingSemaphore, Wait, Work, WorkKind, Xid,
};
use nvcap_decode::record::ChannelId;

#[derive(Serialize)]
struct Dump<'a> {
    r#type: &'static str,
    version: u32,
    time_ns: u64,
    took_ns: u64,
    trace_ns: Option<u64>,
    processes: Vec<ProcessJson<'a>>,
    cycles: Vec<&'a [ChannelId]>,
    moved: Option<&'a Progress>,
}

#[derive(Serialize)]
struct ProcessJson<'a> {
    pid: u32,
    name: Option<&'a str>,
    rank: Option<u32>,
    ranks: Option<u32>,
    python: Option<&'a str>,
    xids: Vec<XidJson<'a>>,
    verdict: &'static str,
    says: Vec<String>,
    channels: Vec<ChannelJson<'a>>,
    threads: &'a [Thread],
    unused: usize,
    notes: &'a [String],
    finding_ns: u64,
    reading_ns: u64,
}

#[derive(Serialize)]
struct XidJson<'a> {
    #[serde(flatten)]
    xid: &'a Xid,
    symbol: Option<&'static str>,
    meaning: &'static str,
    /// True for an error of the process's GPU of which no message names the process.
    unknown_process: bool,
}

#[derive(Serialize)]
struct ChannelJson<'a> {
    channel: ChannelId,
    gpu: Option<u32>,
    token: Option<u32>,
    engine: Option<String>,
    classes: &'a BTreeSet<u32>,
    gp_get: u32,
    gp_put: u32,
    entries: u32,
    pending: u32,
    state: Option<State>,
    semaphore: Option<TrackingSemaphore>,
    running: Option<Running<'a>>,
    wait: Option<&'a Wait>,
    root: Option<Root>,
    found: Option<&'a ChannelFacts>,
    last: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Running<'a> {
    kind: &'static str,
    position: u64,
    index: u32,
    others: u32,
    behind: u64,
    certain: bool,
    operation: Option<Shaped<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    position: u64,
    index: u32,
    fetched: bool,
    done: bool,
    bytes: u64,
    missing: u64,
    stop: Option<Stop>,
    operations: Vec<Shaped<'a>>,
}

/// An operation, with users' data hidden where that is asked for.
struct Shaped<'a>(std::borrow::Cow<'a, Operation>, Option<&'a Redactor>);

impl Serialize for Shaped<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        operation_value(&self.0, self.1).serialize(s)
    }
}

/// Appends the look as an object on a line.
pub fn json(out: &mut Vec<u8>, shown: &Shown<'_>, options: &ReportOptions) {
    let look = shown.report;
    let dump = Dump {
        r#type: "dump",
        version: 1,
        time_ns: look.time_ns,
        took_ns: look.took_ns,
        trace_ns: look.trace_ns,
        processes: look
            .processes
            .iter()
            .map(|p| process(shown, p, options))
            .collect(),
        cycles: look
            .analysis
            .cycles
            .iter()
            .map(|c| c.channels.as_slice())
            .collect(),
        moved: shown.moved,
    };
    write(out, &dump);
    out.push(b'\n');
}

fn process<'a>(
    shown: &Shown<'a>,
    p: &'a ProcessReport,
    options: &'a ReportOptions,
) -> ProcessJson<'a> {
    let verdict = verdict(shown, p);
    ProcessJson {
        pid: p.pid,
        name: known_name(&p.name),
        rank: p.rank,
        ranks: p.ranks,
        python: p.python.as_deref(),
        xids: { p.xids.iter() }
            .map(|xid| XidJson {
                xid,
                symbol: xid.symbol(),
                meaning: xid.meaning(),
                unknown_process: xid.is_of_unknown_process(),
            })
            .collect(),
        verdict: verdict.word.name(),
        says: std::iter::once(verdict.head).chain(verdict.lines).collect(),
        channels: shown
            .report
            .rings
            .channels
            .iter()
            .filter(|c| c.pid == p.pid)
            .map(|c| channel(shown, c, options))
            .collect(),
        threads: &p.threads,
        unused: p.unused,
        notes: &p.notes,
        finding_ns: p.finding_ns,
        reading_ns: p.reading_ns,
    }
}

fn channel<'a>(
    shown: &Shown<'a>,
    c: &'a ChannelState,
    options: &'a ReportOptions,
) -> ChannelJson<'a> {
    let look = shown.report;
    let judged = look.analysis.of(c.id);
    ChannelJson {
        channel: c.id,
        gpu: c.gpu,
        token: c.token,
        engine: known_engine(c.engine),
        classes: &c.classes,
        gp_get: c.get,
        gp_put: c.put,
        entries: c.entries,
        pending: c.pending(),
        state: judged.map(|j| j.state),
        semaphore: judged.and_then(|j| j.semaphore),
        running: judged
            .and_then(|j| j.running.as_ref())
            .map(|w| running(w, options)),
        wait: judged.and_then(|j| j.wait.as_ref()),
        root: look
            .analysis
            .blocked
            .iter()
            .find(|b| b.channel == c.id)
            .map(|b| b.root),
        found: look.facts(c.id),
        last: options
            .steps(c, judged)
            .iter()
            .map(|s| entry(s, judged, options))
            .collect(),
    }
}

fn running<'a>(w: &'a Work, options: &'a ReportOptions) -> Running<'a> {
    let (kind, operation) = match &w.kind {
        WorkKind::Kernel(l) => ("kernel", Some(Operation::Launch(l.clone()))),
        WorkKind::Copy(c) => ("copy", Some(Operation::Copy(c.clone()))),
        WorkKind::Other => ("other", None),
    };
    Running {
        kind,
        position: w.position,
        index: w.index,
        others: w.others,
        behind: w.behind,
        certain: w.certain,
        operation: operation.map(|op| Shaped(std::borrow::Cow::Owned(op), options.redact.as_ref())),
    }
}

fn entry<'a>(s: &'a Step, judged: Option<&Judged>, options: &'a ReportOptions) -> Entry<'a> {
    let done = judged.is_some_and(|j| j.has_done(s.position));
    Entry {
        position: s.position,
        index: s.index,
        fetched: !s.pending,
        done,
        bytes: s.bytes,
        missing: s.missing,
        stop: s.stop,
        operations: s
            .operations
            .iter()
            .map(|op| Shaped(std::borrow::Cow::Borrowed(op), options.redact.as_ref()))
            .collect(),
    }
}
