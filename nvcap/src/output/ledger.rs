//! The ledger as a human reads it and as JSON. Knows how it is shown, not how it is counted.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::decode::event::Engine;
use crate::ledger::{ChannelLedger, Ledger, Observed, Totals};
use crate::record::Origin;

use super::names::EngineName;
use super::style::{Formatter, Plain, Role};

fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// The one line that says whether anything is missing, and what.
#[must_use]
pub fn verdict(ledger: &Ledger) -> String {
    let t = ledger.totals();
    let seen = format!(
        "{} on {}, {}, {} B",
        plural(t.submissions, "submission", "submissions"),
        plural(t.channels, "channel", "channels"),
        plural(t.entries, "entry", "entries"),
        t.bytes
    );
    if ledger.is_complete() {
        return format!("complete: {seen}, nothing missing");
    }
    let mut missing = Vec::new();
    let tokens = |has: fn(&ChannelLedger) -> bool| {
        let mut names: Vec<String> = ledger
            .channels()
            .filter(|(_, c)| has(c))
            .map(|(id, c)| match c.token {
                Some(t) => format!("{t:#07x}"),
                None => format!("number {}", id.0),
            })
            .collect();
        let more = names.len().saturating_sub(4);
        names.truncate(4);
        let mut text = names.join(", ");
        if more > 0 {
            let _ = write!(text, " and {more} more");
        }
        text
    };
    if t.gaps > 0 {
        missing.push(format!(
            "{} missing (channel {})",
            plural(t.gaps, "entry", "entries"),
            tokens(|c| c.gaps > 0)
        ));
    }
    if t.unreadable > 0 {
        missing.push(format!(
            "{} B could not be read (channel {})",
            t.unreadable,
            tokens(|c| c.unreadable > 0)
        ));
    }
    if t.repeated > 0 {
        missing.push(format!(
            "{} captured twice (channel {})",
            plural(t.repeated, "entry", "entries"),
            tokens(|c| c.repeated > 0)
        ));
    }
    if t.contradictions > 0 {
        missing.push(format!(
            "{} whose GP_PUT contradicts the one before (channel {})",
            plural(t.contradictions, "submission", "submissions"),
            tokens(|c| c.contradictions > 0)
        ));
    }
    for (kind, count) in ledger.dropped().filter(|(_, n)| *n > 0) {
        missing.push(format!("{count} {kind} records dropped"));
    }
    let unknown: u64 = ledger.unknown_doorbells().map(|u| u.count).sum();
    if unknown > 0 {
        missing.push(format!(
            "{} of unknown channels",
            plural(unknown, "doorbell", "doorbells")
        ));
    }
    if !ledger.blindness().is_empty() {
        let first = &ledger.blindness()[0].why;
        let more = ledger.blindness().len() - 1;
        let more = if more > 0 {
            format!(
                " and {}",
                plural(more as u64, "reason more", "reasons more")
            )
        } else {
            String::new()
        };
        missing.push(format!("blind: {}{more}", Plain(first)));
    }
    if ledger.unshown() > 0 {
        missing.push(format!(
            "{} captured but not written out",
            plural(ledger.unshown(), "object", "objects")
        ));
    }
    format!("INCOMPLETE: {}; captured {seen}", missing.join("; "))
}

/// Appends the ledger as text: a table of the channels that submitted or lost something, and the verdict.
pub fn text(out: &mut Vec<u8>, ledger: &Ledger, color: bool) {
    let mut rows: Vec<(bool, Vec<String>)> = Vec::new();
    let mut silent = 0;
    for (id, c) in ledger.channels() {
        if c.submissions == 0 && c.is_complete() {
            silent += 1;
            continue;
        }
        let name = c.process.as_deref().unwrap_or("?");
        rows.push((
            c.is_complete(),
            vec![
                id.0.to_string(),
                match c.pid {
                    0 => name.to_owned(),
                    pid => format!("{}/{pid}", Plain(name)),
                },
                c.gpu.map_or_else(|| "?".into(), |g| g.to_string()),
                c.token.map_or_else(|| "?".into(), |t| format!("{t:#07x}")),
                EngineName(c.engine).to_string(),
                c.submissions.to_string(),
                c.entries.to_string(),
                c.bytes.to_string(),
                c.gaps.to_string(),
                c.unreadable.to_string(),
                c.late.to_string(),
                started(c),
            ],
        ));
    }
    let t = ledger.totals();
    let mut f = Formatter::new(out, color);
    if !rows.is_empty() {
        let header = [
            "channel",
            "process",
            "gpu",
            "token",
            "engine",
            "submissions",
            "entries",
            "bytes",
            "gaps",
            "unreadable",
            "late",
            "seen from",
        ];
        let total = [
            "total".to_owned(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            t.submissions.to_string(),
            t.entries.to_string(),
            t.bytes.to_string(),
            t.gaps.to_string(),
            t.unreadable.to_string(),
            t.late.to_string(),
            String::new(),
        ];
        let mut widths = header.map(str::len);
        for row in rows
            .iter()
            .map(|(_, r)| r.as_slice())
            .chain([total.as_slice()])
        {
            for (w, cell) in widths.iter_mut().zip(row) {
                *w = (*w).max(cell.chars().count());
            }
        }
        row(&mut f, &header, &widths, Some(Role::Operation));
        for (complete, cells) in &rows {
            row(&mut f, cells, &widths, (!complete).then_some(Role::Alarm));
        }
        row(&mut f, &total, &widths, Some(Role::Operation));
    }
    if silent > 0 {
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!(
            "{} that submitted nothing",
            plural(silent, "channel", "channels")
        ));
        f.end();
    }
    for (id, c) in ledger.channels().filter(|(_, c)| c.gaps > 0) {
        f.line("", 0, Some(Role::Alarm));
        f.text(format_args!("channel {} lacks positions", id.0));
        for r in c.missing_ranges().iter().take(8) {
            f.text(format_args!(" {}..{}", r.start, r.end));
        }
        if c.missing_ranges().len() > 8 {
            f.text(format_args!(" and more"));
        }
        f.end();
    }
    if let Some(o) = ledger.observed() {
        observed(&mut f, &t, o);
    }
    for u in ledger.unknown_doorbells() {
        f.line("", 0, Some(Role::Alarm));
        let token = u
            .token
            .map_or_else(|| "unknown".into(), |t| format!("{t:#07x}"));
        f.text(format_args!(
            "{} of token {token} of process {}: no channel with it is known",
            plural(u.count, "doorbell", "doorbells"),
            u.pid
        ));
        f.end();
    }
    for b in ledger.blindness() {
        f.line("", 0, Some(Role::Alarm));
        f.text(format_args!("blind"));
        if b.pid != 0 {
            f.text(format_args!(" in process {}", b.pid));
        }
        f.text(format_args!(": {}", Plain(&b.why)));
        if b.count > 1 {
            f.text(format_args!(" ({} times)", b.count));
        }
        f.end();
    }
    f.line(
        "",
        0,
        Some(if ledger.is_complete() {
            Role::Good
        } else {
            Role::Alarm
        }),
    );
    f.text(format_args!("{}", verdict(ledger)));
    f.end();
}

/// How near observing came to missing something, channel by channel. Nothing where nothing was observed.
pub fn margins(out: &mut Vec<u8>, ledger: &Ledger, color: bool) {
    let Some(o) = ledger.observed() else {
        return;
    };
    let mut f = Formatter::new(out, color);
    let ms = |ns: u64| ns as f64 / 1e6;
    for m in &o.margins {
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!(
            "channel {}: {} and {}, at most {:.1} % of its ring and {:.2} ms between two",
            m.channel.0,
            plural(m.looks, "look", "looks"),
            plural(m.glances, "glance", "glances"),
            100.0 * m.largest_part,
            ms(m.longest_ns)
        ));
        f.end();
    }
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "a look came at most {:.2} ms late and took at most {:.2} ms; a search beside them at most {:.2} ms",
        ms(o.latest_ns),
        ms(o.longest_look_ns),
        ms(o.longest_search_ns)
    ));
    f.end();
}

/// How observing went: the margin it had, what it cost, and why what is missing is missing.
fn observed(f: &mut Formatter<'_>, t: &Totals, o: &Observed) {
    let ms = |ns: u64| ns as f64 / 1e6;
    let share = |ns: u64| 100.0 * ns as f64 / o.wall_ns.max(1) as f64;
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "observed {} on {} without a trap in {}: at most {:.1} ms and {:.1} % of a ring passed between two",
        plural(t.submissions, "submission", "submissions"),
        plural(t.channels, "channel", "channels"),
        plural(o.looks, "look", "looks"),
        ms(o.longest_ns),
        100.0 * o.largest_part
    ));
    f.end();
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "CPU used: {:.1} % of one core, {:.1} % to look",
        share(o.cpu_ns),
        share(o.reader_ns)
    ));
    if let Some(budget) = o.budget {
        f.text(format_args!(" (budget {} %", 100.0 * budget));
        if o.throttled_ns > 0 {
            f.text(format_args!(
                ", used up for {:.1} ms in all",
                ms(o.throttled_ns)
            ));
        }
        f.text(format_args!(")"));
    }
    if o.tail_ns > 0 {
        f.text(format_args!(
            "; the last look at a ring that went away was {:.1} ms before that was seen",
            ms(o.tail_ns)
        ));
    }
    f.end();
    for why in reasons(o) {
        f.line("", 0, Some(Role::Alarm));
        f.text(format_args!("{why}"));
        f.end();
    }
}

/// Why observed entries are missing.
fn reasons(o: &Observed) -> Vec<String> {
    let mut all = Vec::new();
    if o.laps > 0 {
        let why = match o.budget {
            Some(_) if o.throttled_ns > 0 => "the CPU budget was used up: raise --observe-cpu",
            _ => {
                "nvcap came too late: another program had the processor, or the channel was faster than it can read"
            }
        };
        all.push(format!(
            "a ring went round between two looks {}: {why}",
            plural(o.laps, "time", "times")
        ));
    }
    if o.rounds_unseen > 0 {
        all.push(format!(
            "after {} of them it may have gone round more often than was counted: GP_PUT does not tell, and no payloads did",
            o.rounds_unseen
        ));
    }
    for (count, what) in [
        (o.overwritten, "overwritten while being read"),
        (o.reused, "whose memory was used again before it was read"),
        (o.unparsable, "whose words no client writes"),
    ] {
        if count > 0 {
            all.push(format!("{} {what}", plural(count, "entry", "entries")));
        }
    }
    all
}

fn started(c: &ChannelLedger) -> String {
    match (c.from_start(), c.first) {
        (true, _) => "its start".into(),
        (false, Some(first)) => format!("position {first}"),
        (false, None) => "-".into(),
    }
}

/// One row; words to the left, figures to the right.
fn row<S: AsRef<str>>(
    f: &mut Formatter<'_>,
    cells: &[S],
    widths: &[usize; 12],
    role: Option<Role>,
) {
    let mut line = String::new();
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = cell.as_ref();
        let gap = if i == 0 { "" } else { "  " };
        // Writing to a string does not fail.
        let _ = if i == 0 || (5..=10).contains(&i) {
            write!(line, "{gap}{cell:>width$}")
        } else {
            write!(line, "{gap}{cell:<width$}")
        };
    }
    f.line("", 0, role);
    f.text(format_args!("{}", line.trim_end()));
    f.end();
}

/// Appends the ledger as one JSON object with its line end.
pub fn json(out: &mut Vec<u8>, ledger: &Ledger) {
    let value = json_value(ledger);
    // `type` and the members all objects have come first, for those who read along.
    let t = ledger.totals();
    let _ = std::io::Write::write_fmt(
        out,
        format_args!(
            "{{\"type\":\"ledger\",\"time_ns\":{},\"pid\":null,\"tid\":null,\"token\":null,\"complete\":{},\
             \"verdict\":{},\"submissions\":{},\"entries\":{},\"bytes\":{},\"gaps\":{},\"unreadable_bytes\":{},\
             \"late\":{},\"repeated\":{},\"contradictions\":{},\"unshown\":{}",
            ledger.end_ns(),
            ledger.is_complete(),
            Value::String(verdict(ledger)),
            t.submissions,
            t.entries,
            t.bytes,
            t.gaps,
            t.unreadable,
            t.late,
            t.repeated,
            t.contradictions,
            ledger.unshown(),
        ),
    );
    for (name, value) in value {
        let _ = std::io::Write::write_fmt(out, format_args!(",\"{name}\":{value}"));
    }
    out.extend_from_slice(b"}\n");
}

fn json_value(ledger: &Ledger) -> Vec<(&'static str, Value)> {
    let channels: Vec<Value> = ledger
        .channels()
        .map(|(id, c)| {
            json!({
                "channel": id.0,
                "pid": (c.pid != 0).then_some(c.pid),
                "process": c.process,
                "gpu": c.gpu,
                "token": c.token,
                "class": c.class,
                "engine": (c.engine != Engine::Unknown).then(|| EngineName(c.engine).to_string()),
                "origin": c.origin.map(|o| match o {
                    Origin::Allocated => "allocated",
                    Origin::Found => "found",
                    Origin::Notified => "notified",
                    Origin::Given => "given",
                    Origin::Recorded => "recorded",
                }),
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
                "repeated": c.repeated,
                "contradictions": c.contradictions,
            })
        })
        .collect();
    let dropped: serde_json::Map<String, Value> = ledger
        .dropped()
        .map(|(kind, n)| (kind.to_owned(), n.into()))
        .collect();
    let unknown: Vec<Value> = ledger
        .unknown_doorbells()
        .map(|u| json!({"pid": (u.pid != 0).then_some(u.pid), "token": u.token, "count": u.count}))
        .collect();
    let blind: Vec<Value> = ledger
        .blindness()
        .iter()
        .map(|b| json!({"pid": (b.pid != 0).then_some(b.pid), "why": b.why, "count": b.count}))
        .collect();
    vec![
        ("dropped_records", Value::Object(dropped)),
        ("unknown_doorbells", unknown.into()),
        ("blind", blind.into()),
        ("observed", observed_json(ledger)),
        ("channels", channels.into()),
    ]
}

fn observed_json(ledger: &Ledger) -> Value {
    let Some(o) = ledger.observed() else {
        return Value::Null;
    };
    json!({
        "looks": o.looks,
        "glances": o.glances,
        "longest_ns": o.longest_ns,
        "largest_part": o.largest_part,
        "latest_ns": o.latest_ns,
        "longest_look_ns": o.longest_look_ns,
        "longest_search_ns": o.longest_search_ns,
        "tail_ns": o.tail_ns,
        "wall_ns": o.wall_ns,
        "cpu_ns": o.cpu_ns,
        "reader_ns": o.reader_ns,
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
            "glances": m.glances,
            "largest_part": m.largest_part,
            "longest_ns": m.longest_ns,
        })).collect::<Vec<_>>(),
    })
}
