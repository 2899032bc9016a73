//! The columns of tables that are known at the end: what was captured, and what is missing, so that completeness travels with the
//! data.

use crate::output::ledger::verdict;
use crate::output::names::{known_engine, known_name, known_pid};
use nvcap_decode::ledger::{Ledger, Understanding};

use super::schema::{Column, Loss, column_list};

/// Channels.
pub(super) const CHANNEL: &[Column] = column_list!(Channel(c) {
    channel: Int required "" Doorbell, "its number in the trace" => c.id.0;
    pid: Int optional "" Driver, "the process" => known_pid(c.ledger.pid);
    process: Text optional "" Doorbell, "the process's name" => c.ledger.process.as_deref().and_then(known_name);
    gpu: Int optional "" Driver, "N of /dev/nvidiaN" => c.ledger.gpu;
    token: Int optional "" Driver, "the work-submit token" => c.ledger.token;
    class: Int optional "" Driver, "class of the channel" => c.ledger.class;
    engine: Text optional "" Driver, "the engine that it feeds" => known_engine(c.ledger.engine);
    origin: Text optional "" Driver, "how it was learnt: allocated, found, notified, given or recorded" => c.ledger.origin.map(|o| o.name());
    complete: Bool required "" Ledger, "nothing of it is known to be missing" => c.ledger.is_complete();
    from_start: Bool required "" Ledger, "it was seen from its first ring entry on" => c.ledger.from_start();
    first_position: Int optional "entries" Ledger, "position of the first entry that was seen or is known to be missing" => c.ledger.first;
    first_ns: Int optional "ns" Ledger, "time of its first submission, CLOCK_MONOTONIC" => c.ledger.times.map(|t| t.0);
    last_ns: Int optional "ns" Ledger, "time of its last submission" => c.ledger.times.map(|t| t.1);
    submissions: Int required "" Ledger, "submissions captured" => c.ledger.submissions;
    entries: Int required "entries" Ledger, "ring entries captured" => c.ledger.entries;
    bytes: Int required "bytes" Ledger, "pushbuffer bytes captured" => c.ledger.bytes;
    gaps: Int required "entries" Ledger, "ring entries known to be missing" => c.ledger.gaps;
    unreadable_bytes: Int required "bytes" Ledger, "pushbuffer bytes that could not be read" => c.ledger.unreadable;
    late: Int required "" Ledger, "submissions caught up later than at their own doorbell; no loss" => c.ledger.late;
    repeated: Int required "entries" Ledger, "ring entries captured twice" => c.ledger.repeated;
    contradictions: Int required "" Ledger, "submissions whose GP_PUT does not fit the one before" => c.ledger.contradictions;
});

/// Losses: what is missing.
pub(super) const LOSS: &[Column] = column_list!(Loss(l) {
    what: Text required "" Ledger, "entries, unreadable_bytes, repeated, contradictions, records, unknown_channel, untraced, unshown, stacks or notifiers; left_out_of_stacks of names and callers that stacks lack; of what was not understood: qmds_not_seen, methods_of_unknown_class or stops" => l.what;
    pid: Int optional "" Ledger, "the process" => l.pid;
    channel: Int optional "" Ledger, "the channel" => l.channel;
    token: Int optional "" Ledger, "of doorbells of unknown channels: the token" => l.token;
    position: Int optional "entries" Ledger, "of missing ring entries: position of the first" => l.position;
    count: Int required "" Ledger, "how many" => l.count;
    why: Text optional "" Ledger, "why, or which records" => l.why.as_deref();
});

/// The trace as a whole.
pub(super) const LEDGER: &[Column] = column_list!(Ledger(w) {
    complete: Bool required "" Ledger, "nothing is known to be missing" => w.ledger.is_complete();
    verdict: Text required "" Ledger, "the same in words, with all that is missing" => verdict(w.ledger);
    exit_status: Int required "" Ledger, "that of the export: 0 complete, 3 something was lost, 5 not all understood" => w.ledger.exit_status();
    time_ns: Int optional "ns" Ledger, "end of the trace, CLOCK_MONOTONIC" => Some(w.ledger.end_ns()).filter(|ns| *ns != 0);
    duration_ns: Int optional "ns" Ledger, "from the first submission to the last" => w.ledger.duration_ns();
    submissions: Int required "" Ledger, "submissions captured" => w.ledger.totals().submissions;
    entries: Int required "entries" Ledger, "ring entries captured" => w.ledger.totals().entries;
    bytes: Int required "bytes" Ledger, "pushbuffer bytes captured" => w.ledger.totals().bytes;
    gaps: Int required "entries" Ledger, "ring entries known to be missing" => w.ledger.totals().gaps;
    unreadable_bytes: Int required "bytes" Ledger, "pushbuffer bytes that could not be read" => w.ledger.totals().unreadable;
    late: Int required "" Ledger, "submissions caught up later than at their own doorbell; no loss" => w.ledger.totals().late;
    repeated: Int required "entries" Ledger, "ring entries captured twice" => w.ledger.totals().repeated;
    contradictions: Int required "" Ledger, "submissions whose GP_PUT does not fit the one before" => w.ledger.totals().contradictions;
    unshown: Int required "" Ledger, "rows that could not be written" => w.ledger.unshown();
    whole: Bool optional "" Ledger, "all was understood" => w.ledger.understood().map(Understanding::is_whole);
    kernels: Int optional "" Ledger, "kernels of the program that were launched" => w.ledger.understood().map(|u| u.kernels);
    launches: Int optional "" Ledger, "these, kernels of the driver, and qmds_not_seen" => w.ledger.understood().map(|u| u.launches);
    graph_nodes: Int optional "" Ledger, "of the launches, nodes of replays" => w.ledger.understood().map(|u| u.nodes);
    graph_replays: Int optional "" Ledger, "replays" => w.ledger.understood().map(|u| u.graphs);
    qmds_from_memory: Int optional "" Ledger, "launches whose QMD is known from the process's memory" => w.ledger.understood().map(|u| u.qmds_from_memory);
    qmds_not_seen: Int optional "" Ledger, "launches whose QMD was not seen" => w.ledger.understood().map(|u| u.unresolved);
    methods: Int optional "" Ledger, "method writes" => w.ledger.understood().map(|u| u.methods);
    methods_of_unknown_class: Int optional "" Ledger, "of these, to a class that is not known" => w.ledger.understood().map(|u| u.classless);
    stops: Int optional "" Ledger, "entries that could not be read to their end" => w.ledger.understood().map(|u| u.stops);
    monotonic_ns: Int optional "ns" Machine, "CLOCK_MONOTONIC at one moment near the begin" => w.trace.monotonic_ns;
    realtime_ns: Int optional "ns" Machine, "CLOCK_REALTIME at the same moment: a time_ns plus the difference is since 1970" => w.trace.realtime_ns;
    driver: Text optional "" Machine, "release of the driver" => w.trace.driver.as_deref();
    redacted: Bool required "" Machine, "users' data is hidden" => w.trace.redacted;
    filtered: Bool required "" Machine, "a filter (-e) has chosen the events" => w.trace.filtered;
    nvcap: Text required "" Machine, "version of nvcap that wrote the tables" => w.version;
});

const fn of(what: &'static str, count: u64) -> Loss<'static> {
    Loss {
        what,
        pid: None,
        channel: None,
        token: None,
        position: None,
        count,
        why: None,
    }
}

/// All that is missing, or was not understood.
pub(super) fn losses(ledger: &Ledger) -> Vec<Loss<'_>> {
    let mut all = Vec::new();
    for (id, c) in ledger.channels() {
        let mut add = |what, position, count| {
            if count > 0 {
                all.push(Loss {
                    pid: known_pid(c.pid),
                    channel: Some(id.0),
                    token: c.token,
                    position,
                    ..of(what, count)
                });
            }
        };
        let mut located = 0;
        for range in c.missing_ranges() {
            let count = range.end - range.start;
            located += count;
            add("entries", Some(range.start), count);
        }
        // Of very many ranges the oldest are counted and not kept.
        add("entries", None, c.gaps.saturating_sub(located));
        add("unreadable_bytes", None, c.unreadable);
        add("repeated", None, c.repeated);
        add("contradictions", None, c.contradictions);
    }
    for (kind, count) in ledger.dropped() {
        all.push(Loss {
            why: Some(kind.name().into()),
            ..of("records", count)
        });
    }
    for unknown in ledger.unknown_doorbells() {
        all.push(Loss {
            pid: known_pid(unknown.pid),
            token: unknown.token,
            ..of("unknown_channel", unknown.count)
        });
    }
    for untraced in ledger.untraced() {
        all.push(Loss {
            pid: known_pid(untraced.pid),
            why: Some(untraced.why.as_str().into()),
            ..of("untraced", untraced.count)
        });
    }
    for (what, count) in ledger.left_out_of_stacks() {
        all.push(Loss {
            why: Some(what.into()),
            ..of("left_out_of_stacks", count)
        });
    }
    let understood = ledger.understood().copied().unwrap_or_default();
    for (what, count) in [
        ("unshown", ledger.unshown()),
        ("stacks", ledger.stacks().1),
        ("notifiers", ledger.unread_notifiers().1),
        ("qmds_not_seen", understood.unresolved),
        ("methods_of_unknown_class", understood.classless),
        ("stops", understood.stops),
    ] {
        if count > 0 {
            all.push(of(what, count));
        }
    }
    all
}
