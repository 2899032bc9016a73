//! The ledger as a human reads it and as JSON. Knows how it is shown, not how it is counted.

use std::fmt::Write as _;

use nvcap_decode::ledger::{
    ChannelLedger, Ledger, Observed, STATUS_COMPLETE, Totals, Understanding,
};

use nvcap_decode::record::Origin;

use super::fault;
use super::names::{pid_name, token_name};
use super::plural::plural_of;
use super::style::{Formatter, Plain, Role};
use super::units::{Bytes, Nanoseconds};

mod json;
mod table;
mod trap;

pub use json::json;
pub(crate) use json::json_so_far;
pub(crate) use table::Fit;

/// The most programs that are named where none used a GPU.
const PROGRAMS: usize = 8;

/// Returns the one line that says whether anything is missing, and what.
#[must_use]
pub fn verdict(ledger: &Ledger) -> String {
    if let Some(programs) = ledger.without_gpu() {
        return no_gpu(&programs);
    }
    let seen = seen(ledger);
    let not_understood = ledger.understood().map(not_understood).unwrap_or_default();
    let but = match not_understood.as_str() {
        "" => String::new(),
        what => format!(", but NOT ALL UNDERSTOOD: {what}"),
    };
    let faulted = fault::verdict(ledger);
    let unread = fault::unread(ledger);
    match missing(ledger) {
        None if trap::left_out(ledger) => {
            format!("{}{faulted}: {seen}{but}{unread}", trap::verdict(ledger))
        }
        None => format!(
            "complete{faulted}: {seen}, nothing missing{but}{}{unread}",
            before(ledger)
        ),
        Some(missing) => format!("{missing}; captured {seen}{but}{faulted}{unread}"),
    }
}

/// The verdict on processes of which none used a GPU, by the names of their programs.
pub fn no_gpu(programs: &[&str]) -> String {
    let shown: Vec<String> = programs
        .iter()
        .take(PROGRAMS)
        .map(|p| Plain(p).to_string())
        .collect();
    let more = match programs.len() - shown.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!(
        "no GPU was used: nothing was submitted, and no channel was made ({}{more})",
        shown.join(", ")
    )
}

/// Returns words behind the verdict of a trace without a submission: the GPU may be at work on what was submitted before.
fn before(ledger: &Ledger) -> &'static str {
    let was_there = ledger.channels().any(|(_, c)| {
        matches!(
            c.origin,
            Some(Origin::Found | Origin::Notified | Origin::Given)
        )
    });
    match was_there && ledger.totals().submissions == 0 {
        true => {
            "; what was submitted before is not seen and may run on (nvcap dump shows what of it is not done)"
        }
        false => "",
    }
}

/// Describes what was captured, in words.
fn seen(ledger: &Ledger) -> String {
    let t = ledger.totals();
    // Why there are fewer submissions than entries, where the doorbells of each are not known.
    let merged = match t.merged {
        0 => String::new(),
        1 => " (1 was read late with the one before it, as one submission)".to_owned(),
        n => format!(" ({n} were read late with those before them, as one submission)"),
    };
    format!(
        "{} on {}, {}{merged}, {}",
        plural_of(t.submissions, "submission", "submissions"),
        plural_of(t.channels, "channel", "channels"),
        plural_of(t.entries, "entry", "entries"),
        Bytes(t.bytes as f64)
    )
}

/// Describes what is missing, in one line without what was captured; `None` if nothing is missing.
pub fn missing(ledger: &Ledger) -> Option<String> {
    if ledger.is_complete() {
        return None;
    }
    let t = ledger.totals();
    let mut missing = Vec::new();
    let channels = |has| channels_with(ledger, has);
    if t.gaps > 0 {
        missing.push(format!(
            "{} missing ({})",
            plural_of(t.gaps, "entry", "entries"),
            channels(|c| c.gaps > 0)
        ));
    }
    if t.unreadable > 0 {
        missing.push(format!(
            "{} could not be read ({})",
            Bytes(t.unreadable as f64),
            channels(|c| c.unreadable > 0)
        ));
    }
    if t.repeated > 0 {
        missing.push(format!(
            "{} captured twice ({})",
            plural_of(t.repeated, "entry", "entries"),
            channels(|c| c.repeated > 0)
        ));
    }
    if t.contradictions > 0 {
        missing.push(format!(
            "{} whose GP_PUT contradicts the one before ({})",
            plural_of(t.contradictions, "submission", "submissions"),
            channels(|c| c.contradictions > 0)
        ));
    }
    for (kind, count) in ledger.dropped().filter(|(_, n)| *n > 0) {
        missing.push(format!(
            "{} dropped ({kind})",
            plural_of(count, "record", "records")
        ));
    }
    let unknown: u64 = ledger.unknown_doorbells().map(|u| u.count).sum();
    if unknown > 0 {
        missing.push(format!(
            "{} of unknown channels",
            plural_of(unknown, "doorbell", "doorbells")
        ));
    }
    if let [first, more @ ..] = ledger.untraced() {
        // As the ledger tells them: the same reason of several processes is one.
        let mut more: Vec<&str> = more.iter().map(|m| &*m.why).collect();
        more.retain(|why| *why != first.why);
        more.sort_unstable();
        more.dedup();
        let more = match more.len() as u64 {
            0 => String::new(),
            n => format!(" and {}", plural_of(n, "reason more", "reasons more")),
        };
        missing.push(format!("untraced: {}{more}", Plain(&first.why)));
    }
    if ledger.unshown() > 0 {
        missing.push(format!(
            "{} captured but not written out",
            plural_of(ledger.unshown(), "object", "objects")
        ));
    }
    Some(format!("INCOMPLETE: {}", missing.join("; ")))
}

/// Lists the first channels for which `has` is true, in words.
fn channels_with(ledger: &Ledger, has: fn(&ChannelLedger) -> bool) -> String {
    let mut names: Vec<String> = ledger
        .channels()
        .filter(|(_, c)| has(c))
        .map(|(id, _)| id.0.to_string())
        .collect();
    let more = names.len().saturating_sub(4);
    names.truncate(4);
    let noun = if names.len() + more == 1 {
        "channel"
    } else {
        "channels"
    };
    let mut text = format!("{noun} {}", names.join(", "));
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Describes what could not be understood, in words; empty where all was.
fn not_understood(u: &Understanding) -> String {
    let mut what = Vec::new();
    if u.unresolved > 0 {
        what.push(format!(
            "the QMD of {} of {} was not seen",
            u.unresolved,
            plural_of(u.launches, "launch", "launches")
        ));
    }
    if u.classless > 0 {
        what.push(format!(
            "{} of {} to a class that is not known (-v shows them; --chip NAME names the chip)",
            u.classless,
            plural_of(u.methods, "method write", "method writes")
        ));
    }
    if u.stops > 0 {
        what.push(format!(
            "{} could not be read to the end",
            plural_of(u.stops, "entry", "entries")
        ));
    }
    what.join("; ")
}

/// Writes what was understood, in one line: what a profiler would count.
fn understood(f: &mut Formatter<'_>, u: &Understanding) {
    if u.launches == 0 {
        return;
    }
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "launched {}",
        plural_of(u.kernels, "kernel", "kernels")
    ));
    let driver = u.launches - u.kernels - u.unresolved;
    if driver > 0 {
        f.text(format_args!(
            " and {} of the driver's own",
            plural_of(driver, "kernel", "kernels")
        ));
    }
    if u.unresolved > 0 {
        f.text(format_args!(
            " and {} of which no QMD was seen",
            plural_of(u.unresolved, "launch", "launches")
        ));
    }
    if u.graphs > 0 {
        f.text(format_args!(
            "; {} of all in {}",
            u.nodes,
            plural_of(u.graphs, "graph replay", "graph replays")
        ));
    }
    if u.qmds_from_memory > 0 {
        f.text(format_args!(
            "; {} known from the process's memory",
            plural_of(u.qmds_from_memory, "QMD", "QMDs")
        ));
    }
    f.end();
}

/// Shortest time for which a rate is shown, ns: the rate of a shorter one would depend on the resolution of the times.
const SHORTEST_OF_A_RATE: u64 = 1_000_000;

/// Writes the time from the first submission to the last, and the rates of submissions and bytes, in one line.
fn rate(f: &mut Formatter<'_>, t: &Totals, duration_ns: u64) {
    if duration_ns < SHORTEST_OF_A_RATE {
        return;
    }
    let seconds = duration_ns as f64 / 1e9;
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "{} in {}, from the first submission to the last: {:.0} submissions/s, {}/s",
        Bytes(t.bytes as f64),
        Nanoseconds(duration_ns),
        t.submissions as f64 / seconds,
        Bytes(t.bytes as f64 / seconds)
    ));
    f.end();
}

/// Appends the ledger as text: a table of the channels that submitted or lost something, and the verdict.
pub fn text(out: &mut Vec<u8>, ledger: &Ledger, color: bool) {
    fitted(out, ledger, color, Fit::default());
}

/// Appends the ledger as [`text`] does, with the table fitted.
pub(crate) fn fitted(out: &mut Vec<u8>, ledger: &Ledger, color: bool, fit: Fit) {
    let t = ledger.totals();
    let mut f = Formatter::new(out, color);
    if !fit.without_table {
        table::write(&mut f, ledger, &t, fit);
    }
    gaps(&mut f, ledger);
    if let Some(ns) = ledger.duration_ns() {
        rate(&mut f, &t, ns);
    }
    if let Some(o) = ledger.observed() {
        observed(&mut f, &t, o);
    }
    if let Some(t) = ledger.trapped() {
        trap::text(&mut f, t);
    }
    if let Some(u) = ledger.understood() {
        understood(&mut f, u);
    }
    stacks(&mut f, ledger);
    samples(&mut f, ledger);
    switches(&mut f, ledger);
    unknown_doorbells(&mut f, ledger);
    untraced(&mut f, ledger);
    let role = match ledger.exit_status() {
        STATUS_COMPLETE => Role::Good,
        _ => Role::Alarm,
    };
    f.line("", 0, Some(role));
    f.text(format_args!("{}", verdict(ledger)));
    f.end();
}

/// Writes the positions that are missing, a line for each channel.
fn gaps(f: &mut Formatter<'_>, ledger: &Ledger) {
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
}

/// Writes the number of context switches, and what they lack.
fn switches(f: &mut Formatter<'_>, ledger: &Ledger) {
    let Some(switched) = ledger.switched() else {
        return;
    };
    let is_whole = switched.missing == 0 && switched.strange == 0;
    f.line("", 0, Some(if is_whole { Role::Dim } else { Role::Alarm }));
    f.text(format_args!(
        "{} of context switches",
        plural_of(switched.records, "record", "records")
    ));
    if switched.missing > 0 {
        f.text(format_args!(
            ", at least {} missing: the driver lost them (no submission is missing for that)",
            switched.missing
        ));
    }
    if switched.strange > 0 {
        f.text(format_args!(", {} not understood", switched.strange));
    }
    f.end();
}

/// Writes the number of samples of program counters, and what they lack.
fn samples(f: &mut Formatter<'_>, ledger: &Ledger) {
    let Some(sampled) = ledger.sampled() else {
        return;
    };
    let strange = sampled.strange_bytes;
    let is_whole = !sampled.lost() && strange == 0;
    f.line("", 0, Some(if is_whole { Role::Dim } else { Role::Alarm }));
    f.text(format_args!(
        "{} of program counters in {}",
        plural_of(sampled.samples, "sample", "samples"),
        Nanoseconds(sampled.ns)
    ));
    if sampled.lost() {
        f.text(format_args!(
            ", some lost (no submission is missing for that; a longer period loses none)"
        ));
    }
    if strange > 0 {
        f.text(format_args!(
            ", {} of their stream not understood",
            plural_of(strange, "byte", "bytes")
        ));
    }
    f.end();
}

/// Writes the number of stacks that were taken, and what they lack.
fn stacks(f: &mut Formatter<'_>, ledger: &Ledger) {
    let (taken, lost) = ledger.stacks();
    if taken + lost > 0 {
        f.line("", 0, Some(if lost > 0 { Role::Alarm } else { Role::Dim }));
        f.text(format_args!(
            "{} taken",
            plural_of(taken, "stack", "stacks")
        ));
        if let Some((every, skipped)) = ledger.stack_sample() {
            f.text(format_args!(
                ": a sample, of one in {every} doorbells ({skipped} passed over)"
            ));
        }
        if lost > 0 {
            f.text(format_args!(
                ", {lost} lost: nvcap was behind (no submission is missing for that; a smaller --stack-size costs less)"
            ));
        }
        f.end();
    }
    for (what, count) in ledger.left_out_of_stacks() {
        f.line("", 0, Some(Role::Alarm));
        f.text(format_args!(
            "stacks lack names or callers (no submission is missing for that): not read: {} ({count})",
            Plain(what)
        ));
        f.end();
    }
}

fn unknown_doorbells(f: &mut Formatter<'_>, ledger: &Ledger) {
    for u in ledger.unknown_doorbells() {
        f.line("", 0, Some(Role::Alarm));
        let token = token_name(u.token);
        f.text(format_args!(
            "{} of token {token} of process {}: no channel with it is known",
            plural_of(u.count, "doorbell", "doorbells"),
            pid_name(u.pid)
        ));
        f.end();
    }
}

/// Appends the reasons why something could not be followed, each once with all its processes.
fn untraced(f: &mut Formatter<'_>, ledger: &Ledger) {
    let mut all: Vec<(&str, Vec<String>, u64)> = Vec::new();
    for of in ledger.untraced() {
        let pid = (of.pid != 0).then(|| of.pid.to_string());
        match all.iter_mut().find(|(why, ..)| *why == of.why) {
            Some((_, pids, count)) => {
                pids.extend(pid);
                *count = count.saturating_add(of.count);
            }
            None => all.push((&of.why, pid.into_iter().collect(), of.count)),
        }
    }
    for (why, pids, count) in all {
        f.line("", 0, Some(Role::Alarm));
        f.text(format_args!("untraced"));
        match &pids[..] {
            [] => {}
            [pid] => f.text(format_args!(" in process {pid}")),
            pids => f.text(format_args!(" in processes {}", pids.join(", "))),
        }
        f.text(format_args!(": {}", Plain(why)));
        if count > 1 {
            f.text(format_args!(" ({count} times)"));
        }
        f.end();
    }
}

/// Appends the margin by which observing was ahead of missing an entry, a line for each channel; no line without `--how observe`.
pub(crate) fn margins(out: &mut Vec<u8>, ledger: &Ledger, color: bool) {
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
            plural_of(m.looks, "look", "looks"),
            plural_of(m.peeks, "peek", "peeks"),
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

/// Appends the account of observing: its margin, its cost, and the reasons why entries are missing.
fn observed(f: &mut Formatter<'_>, t: &Totals, o: &Observed) {
    let ms = |ns: u64| ns as f64 / 1e6;
    let share = |ns: u64| 100.0 * ns as f64 / o.wall_ns.max(1) as f64;
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "observed {} on {} without a trap in {}",
        plural_of(t.submissions, "submission", "submissions"),
        plural_of(t.channels, "channel", "channels"),
        plural_of(o.looks, "look", "looks")
    ));
    // Both are 0 if no entry came between any two looks.
    if o.longest_ns > 0 {
        f.text(format_args!(
            ": at most {} and {:.1} % of a ring passed between two",
            Nanoseconds(o.longest_ns),
            100.0 * o.largest_part
        ));
    }
    f.end();
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "CPU used: {:.1} % of one core, {:.1} % to look",
        share(o.cpu_ns),
        share(o.reader_ns)
    ));
    if !o.readers.is_empty() {
        let each = o
            .readers
            .iter()
            .map(|r| format!("{:.1}", share(r.cpu_ns)))
            .collect::<Vec<_>>();
        f.text(format_args!(
            " ({} beside the first: {} %)",
            plural_of(o.readers.len() as u64, "thread", "threads"),
            each.join(", ")
        ));
    }
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

/// Returns the reasons why observed entries are missing.
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
            plural_of(o.laps, "time", "times")
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
            all.push(format!("{} {what}", plural_of(count, "entry", "entries")));
        }
    }
    all
}
