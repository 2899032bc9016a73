//! The verdict on a GPU's time, and the sentence that gives it with its reasons.

use super::intervals::Intervals;
use crate::output::units::Nanoseconds;

/// Least share that is told, per cent.
const TOLD: f64 = 5.0;
/// Share of the time that the GPU must be busy to be the limit of the program.
const GPU_BOUND: f64 = 0.9;
/// Share of the starts of all work below which there is no verdict.
const LEAST: f64 = 0.5;
/// Share of the time of which nothing is known from which on it may decide whether the GPU was the limit.
const DECIDES: f64 = 0.25;

/// Returns a part as a share, per cent.
pub(super) fn share(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// Names the limit of the program: the GPU, if it was nearly always busy; else waits for semaphores or missing submissions, if one of them
/// fills half of the GPU's idle time. `None` where too little is known: less than half of the time, or of the starts of all work, or where a great part
/// that nothing tells of decides whether it is the GPU. Works that are not timed are taken to be like the timed ones of their channels. `starts`: the
/// share of the starts that is known, 0 to 1.
pub(super) fn verdict(work: &Intervals, parts: Parts, starts: f64) -> Option<&'static str> {
    let told = work.span_ns().saturating_sub(work.untold_ns());
    if work.known_ns() == 0 || work.untold_ns() > told || starts < LEAST {
        return None;
    }
    let known = told as f64;
    let busy = work.busy_ns.saturating_add(work.unknown_about_ns);
    let useful = busy.saturating_sub(parts.peers_ns) as f64;
    let (untold, span) = (work.untold_ns() as f64, work.span_ns() as f64);
    let may_be = (useful / span..=(useful + untold) / span).contains(&GPU_BOUND);
    if may_be && untold >= DECIDES * span {
        return None;
    }
    let half = work.idle.ns as f64 / 2.0;
    // Of all that the GPU lacked.
    let lacked = (work.idle.ns + parts.peers_ns) as f64;
    let (least, most) = work.idle.empty_ns;
    let middle = least.midpoint(most) as f64;
    let dry = work.idle.dry_ns.0.midpoint(work.idle.dry_ns.1) as f64;
    Some(if parts.copies_ns as f64 >= 0.5 * known {
        "copy-bound"
    } else if useful >= GPU_BOUND * known {
        match parts.replays_ns as f64 >= 0.5 * work.busy_ns as f64 {
            true => "GPU-bound by graph replays",
            false => "GPU-bound",
        }
    } else if parts.peers_ns as f64 >= 0.5 * lacked {
        "waiting for peers"
    } else if work.idle.waited_ns as f64 >= half {
        "bound by waits for semaphores"
    } else if is_vague(work) && (least as f64) < half && most as f64 >= half {
        // All that lacked behind work submitted ahead is no launch's.
        match work.idle.dry_ns.1 as f64 >= 0.5 * most as f64 {
            true => "waiting for the host, or bound by waits between submissions",
            false => "launch-bound, or bound by waits between submissions",
        }
    } else if middle < half {
        "bound by waits between submissions"
    } else if dry >= 0.5 * middle {
        "waiting for the host"
    } else {
        "launch-bound"
    })
}

/// Parts of a GPU's work, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Time in which copies alone ran.
    pub(super) copies_ns: u64,
    /// Time of graphs' replays.
    pub(super) replays_ns: u64,
    /// Time in which collectives waited for other ranks.
    pub(super) peers_ns: u64,
}

/// Tells whether the bounds of the time in which nothing was submitted are so far apart that they tell little.
fn is_vague(work: &Intervals) -> bool {
    let (least, most) = work.idle.empty_ns;
    2 * (most - least) > work.idle.ns
}

/// Returns a range from a least to a greatest value, per cent.
pub(super) fn range(least: f64, most: f64) -> String {
    match (format!("{least:.0}"), format!("{most:.0}")) {
        (least, most) if least == most => least,
        (least, most) => format!("{least}..{most}"),
    }
}

/// Returns the sentence on a GPU's time. `sample` is the share of the time in which stamps were read, where that is not all; `starts` is that of
/// [`verdict`].
pub(super) fn sentence(work: &Intervals, parts: Parts, starts: f64, sample: Option<f64>) -> String {
    let known = work.known_ns();
    if known == 0 {
        let unknown = Nanoseconds(work.unknown_ns);
        return format!("how busy it was is not known ({unknown})");
    }
    let verdict = verdict(work, parts, starts);
    let all = work.span_ns();
    let most = share(work.busy_ns.saturating_add(work.unknown_ns), all);
    let is_told = share(work.unknown_ns, all) >= TOLD;
    let (busy, span) = match is_told {
        true => (range(share(work.busy_ns, all), most), Nanoseconds(all)),
        false => (
            format!("{:.1}", share(work.busy_ns, known)),
            Nanoseconds(known),
        ),
    };
    let worked = match (sample, work.share_error()) {
        (None, _) => format!("{busy} % of {span}"),
        (Some(_), None) => format!("{busy} % of the {span} that were looked at"),
        (Some(_), Some(error)) => format!(
            "{busy} % (+- {:.1}) of the {span} that were looked at",
            100.0 * error
        ),
    };
    let not_known = match work.unknown_ns {
        // No "0.0 %" either.
        ns if share(ns, all) < 0.05 => String::new(),
        ns if is_told && 2 * work.untold_ns() > ns => {
            format!("; of {} nothing is known", Nanoseconds(ns))
        }
        ns if is_told => {
            let about = work.busy_ns.saturating_add(work.unknown_about_ns);
            format!(
                "; in {} works may have run whose times were not seen: if they are like the others of their channels, work ran in about {:.0} %",
                Nanoseconds(ns),
                share(about, all.saturating_sub(work.untold_ns())),
            )
        }
        ns => format!("; {} more are not known", Nanoseconds(ns)),
    };
    let Some(verdict) = verdict else {
        let of = match starts < LEAST {
            true => format!(" (starts of {:.1} % of the work)", 100.0 * starts),
            false => String::new(),
        };
        let ran = match is_told {
            true => "work ran in",
            false => "what is known to have run took",
        };
        return format!("too little is known for a verdict{of}; {ran} {worked}{not_known}");
    };
    let mut text = format!("{verdict}; work ran in {worked}");
    if parts.peers_ns > 0 {
        let of = share(parts.peers_ns, known);
        text += &format!(", and in {of:.1} % it was a collective that waited for another rank");
    }
    if share(parts.copies_ns, known) >= TOLD {
        let of = share(parts.copies_ns, known);
        text += &format!("; in {of:.1} % copies alone ran");
    }
    if share(parts.replays_ns, work.busy_ns) >= TOLD {
        let of = share(parts.replays_ns, work.busy_ns);
        text += &format!("; replays of graphs took {of:.1} % of the work");
    }
    // No rest of "100.0 %".
    if share(work.idle.ns, known) >= 0.05 {
        text += &rest(work);
    }
    text + &not_known
}

/// Says what the GPU lacked while nothing ran. Bounds that tell little are left out.
fn rest(work: &Intervals) -> String {
    let of = |ns| share(ns, work.idle.ns);
    let (least, most) = work.idle.empty_ns;
    let waited = of(work.idle.waited_ns);
    if is_vague(work) {
        return format!(
            "; in {waited:.0} % of the rest work waited for a semaphore, and when other work was submitted is not known well enough"
        );
    }
    let (dry_least, dry_most) = work.idle.dry_ns;
    let dry = match of(dry_most) >= TOLD {
        true => format!(
            " ({} % behind work that had been submitted ahead: the program waited, for the GPU or for something else)",
            range(of(dry_least), of(dry_most))
        ),
        false => String::new(),
    };
    format!(
        "; in {} % of the rest nothing was submitted{dry}, in {waited:.0} % work waited for a semaphore",
        range(of(least), of(most)),
    )
}
