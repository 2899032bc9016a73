//! Notes beside events that are no operations: doorbells, times, losses, the ledger.

use super::packets::{Notes, Value};
use super::proto::{Callstack, StackFrame};
use crate::output::fault;
use crate::output::ledger::verdict;
use crate::output::stack::word_of;
use nvcap_decode::decode::event::{Context, GpuTime, Preempted, QueuedBy, StartBy, SubmissionHead};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Calls, Fault, Loss, Lost};

/// Returns the values of a doorbell. `head` is none where a filter hides it.
pub(super) fn of_doorbell(c: &Context, head: Option<&SubmissionHead>) -> Notes {
    let mut notes = vec![
        ("submission", Value::Number(c.serial)),
        ("channel", Value::Number(c.channel.0.into())),
    ];
    notes.extend(c.token.map(|t| ("token", Value::Address(t.into()))));
    if let Some(head) = head {
        notes.push(("entries", Value::Number(head.entries.into())));
        notes.push(("bytes", Value::Number(head.bytes)));
        if head.missing > 0 {
            notes.push(("missing_bytes", Value::Number(head.missing)));
        }
    }
    if let Some(api) = c.stack.as_ref().and_then(|s| s.api.as_deref()) {
        notes.push(("api", Value::Text(api.to_owned())));
    }
    notes
}

/// Returns the known times of an entry, as values.
pub(super) fn of_times(time: &GpuTime) -> Notes {
    let mut notes = Notes::new();
    let mut number = |name, value: Option<u64>| {
        notes.extend(value.map(|n| (name, Value::Number(n))));
    };
    number("gpu_clock_ns", time.start.map(|s| s.gpu_ns));
    number("begin_error_ns", time.start.map(|s| s.host_error_ns));
    number("duration_ns", time.duration.map(|d| d.ns));
    number("duration_error_ns", time.duration.map(|d| d.error_ns));
    // Part of the slice, and no work.
    if let Preempted::Ns(ns) = time.preempted {
        number("preempted_ns", Some(ns));
    }
    let exec = time.by_stamp().exec;
    number("launch_ns", time.launch());
    number("exec_ns", exec.and_then(|e| e.duration).map(|d| d.ns));
    let error = exec.and_then(|e| e.duration).map(|d| d.error_ns);
    number("exec_error_ns", error);
    number("queued_least_ns", time.queued.map(|q| q.0));
    number("queued_most_ns", time.queued.map(|q| q.1));
    // The slice is of so many launches and copies together.
    number("works", Some(time.works.into()).filter(|w| *w > 1));
    let words = [
        ("begin_by", time.start_by.map(StartBy::name)),
        ("duration_by", time.duration.map(|d| d.by.name())),
        ("queued_by", time.queued_by.map(QueuedBy::name)),
    ];
    let known = words.into_iter().filter_map(|(key, w)| Some((key, w?)));
    notes.extend(known.map(|(key, word)| (key, Value::Word(word))));
    notes
}

/// Returns the details of a fault.
pub(super) fn of_fault(f: &Fault) -> Notes {
    let number = |n: u32| Value::Number(n.into());
    let mut notes = vec![
        ("xid", number(f.code)),
        ("text", Value::Once(fault::line(f))),
    ];
    notes.extend((f.at.pid != 0).then(|| ("pid", number(f.at.pid))));
    notes.extend(f.channel.map(|c| ("channel", number(c.0))));
    notes
}

/// Returns the name of a loss, in a word or two, and the details.
pub(super) fn of_loss(loss: &Loss) -> (&'static str, Notes) {
    let mut notes = Notes::new();
    let name = match &loss.what {
        Lost::Entries { position, count } => {
            notes.push(("count", Value::Number(*count)));
            notes.push(("position", Value::Number(*position)));
            "lost entries"
        }
        Lost::Records { kind, count } => {
            notes.push(("count", Value::Number(*count)));
            notes.push(("kind", Value::Word(kind.name())));
            "lost records"
        }
        Lost::UnknownChannel { token, count } => {
            notes.push(("count", Value::Number(*count)));
            notes.extend(token.map(|t| ("token", Value::Address(t.into()))));
            "lost doorbells"
        }
        Lost::Stacks { count } => {
            notes.push(("count", Value::Number(*count)));
            "lost stacks"
        }
        Lost::Notifiers { count } => {
            notes.push(("count", Value::Number(*count)));
            "unread error notifiers"
        }
        Lost::Untraced { why } => {
            notes.push(("why", Value::Once(why.clone())));
            "untraced"
        }
    };
    let number = |n: u32| Value::Number(n.into());
    notes.extend(loss.channel.map(|c| ("channel", number(c.0))));
    notes.extend((loss.at.pid != 0).then(|| ("pid", number(loss.at.pid))));
    (name, notes)
}

/// The ledger.
pub(super) fn of_ledger(ledger: &Ledger) -> Notes {
    let t = ledger.totals();
    let mut notes = vec![
        ("complete", Value::Truth(ledger.is_complete())),
        ("verdict", Value::Once(verdict(ledger))),
    ];
    for (name, value) in [
        ("channels", t.channels),
        ("submissions", t.submissions),
        ("entries", t.entries),
        ("bytes", t.bytes),
        ("missing_entries", t.gaps),
        ("unreadable_bytes", t.unreadable),
        ("late", t.late),
        ("unshown", ledger.unshown()),
        ("exit_status", ledger.exit_status().into()),
    ] {
        notes.push((name, Value::Number(value)));
    }
    let why = ledger.untraced().iter().map(|u| u.why.clone());
    let why: Vec<String> = why.collect();
    if !why.is_empty() {
        notes.push(("untraced", Value::List(why)));
    }
    notes
}

/// The calls that led to a doorbell, the outermost first.
pub(super) fn callstack(calls: &Calls) -> Callstack {
    let frames = calls.frames.iter().rev().map(|f| StackFrame {
        function_name: Some(word_of(f)),
        source_file: f.file.as_deref().map(str::to_owned),
        line_number: f.line,
    });
    Callstack {
        frames: frames.collect(),
    }
}
