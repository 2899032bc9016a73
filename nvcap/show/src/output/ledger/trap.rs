//! Account of the trap, and of what it left out because the user asked for it.

use super::super::plural::plural_of;
use super::super::style::{Formatter, Role};
use nvcap_decode::ledger::{Duty, Estimate, Ledger, Trapped};

/// Tells whether something was left out on purpose: then the trace is not said to be complete.
pub(super) fn left_out(ledger: &Ledger) -> bool {
    let t = ledger.totals();
    t.skipped > 0 || t.doorbells > 0
}

/// Describes what was left out on purpose, in words.
pub(super) fn verdict(ledger: &Ledger) -> String {
    let t = ledger.totals();
    match ledger.trapped().and_then(|t| t.duty) {
        Some(duty) => format!(
            "a sample, of {:.1} % of the time (--duty), nothing missing in it",
            100.0 * share(&duty)
        ),
        None if t.doorbells > 0 => format!(
            "{} counted (--count), of which nothing was captured; captured until their channels were known",
            plural_of(t.doorbells, "doorbell", "doorbells")
        ),
        None => format!(
            "{} passed over on purpose, nothing else missing",
            plural_of(t.skipped, "entry", "entries")
        ),
    }
}

fn share(duty: &Duty) -> f64 {
    duty.watched_ns as f64 / duty.all_ns.max(1) as f64
}

/// The lines of the trap: hits that ran no program, entries that were fetched late, what a sample tells of the whole.
pub(super) fn text(f: &mut Formatter<'_>, t: &Trapped) {
    let mut line = |text: String| {
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!("{text}"));
        f.end();
    };
    if t.without_program() > 0 {
        line(format!(
            "{} of {} ran no program, for the processor was in another program; what was rung for was fetched from the rings later, or is \
             counted as missing",
            t.without_program(),
            plural_of(t.hits, "breakpoint hit", "breakpoint hits")
        ));
    }
    if t.stray_traps > 0 {
        line(format!(
            "{} that nobody asked for: the machine lost as many breakpoint hits, which are not among the {} counted; what was rung for was \
             fetched from the rings later, or is counted as missing (nvcap doctor --trap measures how often; --how observe sets no breakpoint)",
            plural_of(t.stray_traps, "SIGTRAP came", "SIGTRAPs came"),
            t.hits
        ));
    }
    if t.deferred > 0 {
        line(format!(
            "{} found the buffer full, for nvcap was behind: what was rung for was fetched from the rings later (a larger --buffer, -s \
             or -q help)",
            plural_of(t.deferred, "doorbell", "doorbells")
        ));
    }
    if t.put_off > 0 {
        line(format!(
            "{} left to a later one of the same channel (--batch)",
            plural_of(t.put_off, "doorbell was", "doorbells were")
        ));
    }
    if let Some(d) = &t.duty {
        line(format!(
            "watched for {:.3} of {:.3} s, in {}: in all that time {}, so {} submissions and {} bytes",
            d.watched_ns as f64 / 1e9,
            d.all_ns as f64 / 1e9,
            plural_of(d.windows, "window", "windows"),
            plural_of(d.entries, "entry", "entries"),
            about(d.submissions),
            about(d.bytes)
        ));
        if d.doubtful > 0 {
            line(format!(
                "there may have been more entries: a ring may have gone round between two of nvcap's looks, {}",
                plural_of(d.doubtful, "time", "times")
            ));
        }
    }
}

fn about(e: Estimate) -> String {
    match e.margin {
        Some(margin) => format!("{:.0} +- {margin:.0} (95 %)", e.about),
        None if e.about == 0.0 => "an unknown number of (no window saw any)".to_owned(),
        None => format!(
            "about {:.0} (too few windows to say how certain that is)",
            e.about
        ),
    }
}
