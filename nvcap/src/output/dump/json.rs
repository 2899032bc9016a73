//! The look as one JSON object; docs/dump.schema.json has its form.

use serde_json::{Value as Json, json};

use super::verdict::verdict;
use super::{Options, Shown};
use crate::hang::{ChannelScene, Judged, ProcessLook, Step, Work, WorkKind};
use crate::output::json::operation_value;
use crate::output::names::EngineName;

/// The look as an object.
#[must_use]
pub fn json(shown: &Shown<'_>, options: &Options) -> Json {
    let look = shown.look;
    json!({
        "type": "dump",
        "version": 1,
        "time_ns": look.time_ns,
        "took_ns": look.took_ns,
        "processes": look.processes.iter().map(|p| process(shown, p, options)).collect::<Vec<_>>(),
        "cycles": look.analysis.cycles.iter().map(|c| &c.channels).collect::<Vec<_>>(),
        "moved": shown.moved,
    })
}

fn process(shown: &Shown<'_>, p: &ProcessLook, options: &Options) -> Json {
    let look = shown.look;
    let verdict = verdict(shown, p);
    let channels: Vec<Json> = look
        .scene
        .channels
        .iter()
        .filter(|c| c.pid == p.pid)
        .map(|c| channel(shown, c, options))
        .collect();
    json!({
        "pid": p.pid,
        "name": p.name,
        "verdict": verdict.word,
        "says": std::iter::once(&verdict.head).chain(&verdict.lines).collect::<Vec<_>>(),
        "channels": channels,
        "threads": p.threads,
        "unused": p.unused,
        "notes": p.notes,
        "finding_ns": p.finding_ns,
        "reading_ns": p.reading_ns,
    })
}

fn channel(shown: &Shown<'_>, c: &ChannelScene, options: &Options) -> Json {
    let look = shown.look;
    let judged = look.analysis.of(c.id);
    let root = look.analysis.blocked.iter().find(|b| b.channel == c.id);
    let wanted = (options.last as usize).max(c.pending() as usize + 1);
    let steps = c
        .steps
        .get(c.steps.len().saturating_sub(wanted)..)
        .unwrap_or_default();
    json!({
        "channel": c.id.0,
        "gpu": c.gpu,
        "token": c.token,
        "engine": EngineName(c.engine).to_string(),
        "classes": c.classes,
        "gp_get": c.get,
        "gp_put": c.put,
        "entries": c.entries,
        "pending": c.pending(),
        "state": judged.map(|j| j.state),
        "semaphore": judged.and_then(|j| j.line),
        "running": judged.and_then(|j| j.running.as_ref()).map(|w| work(w, options)),
        "wait": judged.and_then(|j| j.wait.as_ref()),
        "root": root.map(|b| b.root),
        "found": look.facts(c.id),
        "last": steps.iter().map(|s| step(s, judged, options)).collect::<Vec<_>>(),
    })
}

fn work(w: &Work, options: &Options) -> Json {
    let (kind, operation) = match &w.kind {
        WorkKind::Kernel(l) => (
            "kernel",
            Some(crate::decode::event::Operation::Launch(l.clone())),
        ),
        WorkKind::Copy(c) => (
            "copy",
            Some(crate::decode::event::Operation::Copy((**c).clone().into())),
        ),
        WorkKind::Other => ("other", None),
    };
    json!({
        "kind": kind,
        "position": w.position,
        "index": w.index,
        "others": w.others,
        "behind": w.behind,
        "certain": w.certain,
        "operation": operation.map(|op| operation_value(&op, options.redact.as_ref())),
    })
}

fn step(s: &Step, judged: Option<&Judged>, options: &Options) -> Json {
    let done = judged
        .and_then(|j| j.line)
        .and_then(|l| l.done)
        .is_some_and(|d| s.position <= d);
    json!({
        "position": s.position,
        "index": s.index,
        "fetched": !s.pending,
        "done": done,
        "bytes": s.bytes,
        "missing": s.missing,
        "stop": s.stop,
        "operations": s
            .operations
            .iter()
            .map(|op| operation_value(op, options.redact.as_ref()))
            .collect::<Vec<_>>(),
    })
}
