//! The ledger as JSON.

use serde_json::{Value, json};

use super::{reasons, verdict};
use crate::output::fault::blames_json;
use crate::output::json::{text_of, write};
use crate::output::names::{known_engine, known_name};
use nvcap_decode::ledger::{Estimate, Ledger};

/// Appends the ledger as one JSON object with its line end.
pub fn json(out: &mut Vec<u8>, ledger: &Ledger) {
    let value = json_value(ledger);
    // `type` and the members that all objects have come first, as in all objects.
    let t = ledger.totals();
    let _ = std::io::Write::write_fmt(
        out,
        format_args!(
            "{{\"type\":\"ledger\",\"time_ns\":{},\"pid\":null,\"tid\":null,\"token\":null,\"complete\":{},\
             \"verdict\":{},\"submissions\":{},\"entries\":{},\"bytes\":{},\"gaps\":{},\"unreadable_bytes\":{},\
             \"late\":{},\"merged\":{},\"repeated\":{},\"contradictions\":{},\"unshown\":{}",
            Value::from((ledger.end_ns() != 0).then(|| ledger.end_ns())),
            ledger.is_complete(),
            text_of(&verdict(ledger)),
            t.submissions,
            t.entries,
            t.bytes,
            t.gaps,
            t.unreadable,
            t.late,
            t.merged,
            t.repeated,
            t.contradictions,
            ledger.unshown(),
        ),
    );
    for (name, value) in value {
        let _ = std::io::Write::write_fmt(out, format_args!(",\"{name}\":"));
        write(out, &value);
    }
    out.extend_from_slice(b"}\n");
}

/// Writes as [`json()`] does, for a ledger that was kept while the trace goes on, which one more member says.
pub(crate) fn json_so_far(out: &mut Vec<u8>, ledger: &Ledger) {
    json(out, ledger);
    out.truncate(out.len().saturating_sub(2));
    out.extend_from_slice(b",\"so_far\":true}\n");
}

fn json_value(ledger: &Ledger) -> Vec<(&'static str, Value)> {
    let channels: Vec<Value> = ledger
        .channels()
        .map(|(id, c)| {
            json!({
                "channel": id.0,
                "pid": (c.pid != 0).then_some(c.pid),
                "process": c.process.as_deref().and_then(known_name),
                "gpu": c.gpu,
                "token": c.token,
                "class": c.class,
                "engine": known_engine(c.engine),
                "origin": c.origin,
                "complete": c.is_complete(),
                "from_start": c.from_start(),
                "first_position": c.first,
                "first_ns": c.times.map(|t| t.0),
                "last_ns": c.times.map(|t| t.1),
                "submissions": c.submissions,
                "entries": c.entries,
                "bytes": c.bytes,
                "gaps": c.gaps,
                "missing": c.missing_ranges().iter().map(|r| json!([r.start, r.end])).collect::<Vec<_>>(),
                "unreadable_bytes": c.unreadable,
                "late": c.late,
                "merged": c.merged,
                "repeated": c.repeated,
                "contradictions": c.contradictions,
                "passed": c.skipped,
                "doorbells_counted": c.doorbells,
            })
        })
        .collect();
    let dropped: serde_json::Map<String, Value> = ledger
        .dropped()
        .map(|(kind, n)| (kind.name().to_owned(), n.into()))
        .collect();
    let unknown: Vec<Value> = ledger
        .unknown_doorbells()
        .map(|u| json!({"pid": (u.pid != 0).then_some(u.pid), "token": u.token, "count": u.count}))
        .collect();
    let untraced: Vec<Value> = ledger
        .untraced()
        .iter()
        .map(|b| json!({"pid": (b.pid != 0).then_some(b.pid), "why": b.why, "count": b.count}))
        .collect();
    let left_out: Vec<Value> = ledger
        .left_out_of_stacks()
        .map(|(what, count)| json!({"what": what, "count": count}))
        .collect();
    let stacks = match (ledger.stacks(), ledger.stack_sample()) {
        ((0, 0), None) if left_out.is_empty() => Value::Null,
        ((taken, lost), sample) => {
            let (every, skipped) = sample.unwrap_or((1, 0));
            json!({"taken": taken, "lost": lost, "every": every, "passed": skipped, "left_out": left_out})
        }
    };
    vec![
        ("duration_ns", ledger.duration_ns().into()),
        ("dropped_records", Value::Object(dropped)),
        ("unknown_doorbells", unknown.into()),
        ("untraced", untraced.into()),
        ("observed", observed_json(ledger)),
        ("trapped", trapped_json(ledger)),
        ("understood", understood_json(ledger)),
        ("stacks", stacks),
        ("samples", samples_json(ledger)),
        ("switches", switches_json(ledger)),
        ("faults", blames_json(ledger)),
        ("unread_notifiers", ledger.unread_notifiers().0.into()),
        ("channels", channels.into()),
    ]
}

fn switches_json(ledger: &Ledger) -> Value {
    let Some(s) = ledger.switched() else {
        return Value::Null;
    };
    json!({
        "windows": s.windows,
        "records": s.records,
        "missing": s.missing,
        "strange": s.strange,
    })
}

fn samples_json(ledger: &Ledger) -> Value {
    let Some(s) = ledger.sampled() else {
        return Value::Null;
    };
    json!({
        "windows": s.windows,
        "ns": s.ns,
        "samples": s.samples,
        "overflows": s.overflows,
        "cut_bytes": s.cut_bytes,
        "strange_bytes": s.strange_bytes,
    })
}

fn understood_json(ledger: &Ledger) -> Value {
    let Some(u) = ledger.understood() else {
        return Value::Null;
    };
    json!({
        "whole": u.is_whole(),
        "kernels": u.kernels,
        "launches": u.launches,
        "graph_nodes": u.nodes,
        "graph_replays": u.graphs,
        "qmds_from_memory": u.qmds_from_memory,
        "qmds_not_seen": u.unresolved,
        "methods": u.methods,
        "methods_of_unknown_class": u.classless,
        "stops": u.stops,
    })
}

fn trapped_json(ledger: &Ledger) -> Value {
    let Some(t) = ledger.trapped() else {
        return Value::Null;
    };
    let estimate = |e: Estimate| json!({"about": e.about, "margin": e.margin});
    let duty = t.duty.map(|d| {
        json!({
            "windows": d.windows,
            "watched_ns": d.watched_ns,
            "all_ns": d.all_ns,
            "entries": d.entries,
            "doubtful": d.doubtful,
            "submissions": estimate(d.submissions),
            "bytes": estimate(d.bytes),
        })
    });
    json!({
        "hits": t.hits,
        "runs": t.runs,
        "without_program": t.without_program(),
        "before": t.before,
        "deferred": t.deferred,
        "put_off": t.put_off,
        "counted": t.counted,
        "stray_traps": t.stray_traps,
        "duty": duty,
    })
}

fn observed_json(ledger: &Ledger) -> Value {
    let Some(o) = ledger.observed() else {
        return Value::Null;
    };
    json!({
        "looks": o.looks,
        "peeks": o.peeks,
        "longest_ns": o.longest_ns,
        "largest_part": o.largest_part,
        "latest_ns": o.latest_ns,
        "longest_look_ns": o.longest_look_ns,
        "longest_search_ns": o.longest_search_ns,
        "tail_ns": o.tail_ns,
        "wall_ns": o.wall_ns,
        "cpu_ns": o.cpu_ns,
        "reader_ns": o.reader_ns,
        "readers": o.readers.iter().map(|r| json!({
            "channels": r.channels,
            "cpu_ns": r.cpu_ns,
        })).collect::<Vec<_>>(),
        "budget": o.budget,
        "throttled_ns": o.throttled_ns,
        "laps": o.laps,
        "rounds_unseen": o.rounds_unseen,
        "overwritten": o.overwritten,
        "reused": o.reused,
        "unparsable": o.unparsable,
        "jumps": o.jumps,
        "reasons": reasons(o),
        "margins": o.margins.iter().map(|m| json!({
            "channel": m.channel.0,
            "looks": m.looks,
            "peeks": m.peeks,
            "largest_part": m.largest_part,
            "longest_ns": m.longest_ns,
        })).collect::<Vec<_>>(),
    })
}
