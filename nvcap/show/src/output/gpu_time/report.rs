//! The sums as tables.

use std::cmp::Reverse;
use std::fmt::Arguments;

use super::intervals::{Idle, Intervals};
use super::{Account, ChannelTime, Durations, Row, Total, What, Whose};
use crate::output::names::{EngineName, pid_name};
use crate::output::plural::{plural, plural_of};
use crate::output::style::{Formatter, Plain, Role};
use crate::output::units::Nanoseconds;

/// A terminal with fewer columns is narrow.
const NARROW: usize = 110;
/// Rows of a table in text.
const SHOWN: usize = 20;
/// Shares from which on they are told, per cent.
const TOLD: f64 = 5.0;
/// A GPU that is busy for at least this share of the time limits the program.
const GPU_BOUND: f64 = 0.9;

fn share(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// Names the limit of the program: the GPU, if it was nearly always busy; else waits for semaphores or missing submissions, if one of them
/// fills half of the GPU's idle time. `None` where no time is known.
pub(super) fn verdict(work: &Intervals, parts: Parts) -> Option<&'static str> {
    if work.known_ns() == 0 {
        return None;
    }
    let known = work.known_ns() as f64;
    let useful = work.busy_ns.saturating_sub(parts.peers_ns) as f64;
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
        "launch-bound, or bound by waits between submissions"
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
    /// Copies alone ran.
    pub(super) copies_ns: u64,
    /// Graphs' replays.
    pub(super) replays_ns: u64,
    /// Collectives waited for other ranks.
    pub(super) peers_ns: u64,
}

/// Tells whether the bounds of the time in which nothing was submitted are so far apart that they tell little.
fn is_vague(work: &Intervals) -> bool {
    let (least, most) = work.idle.empty_ns;
    2 * (most - least) > work.idle.ns
}

/// Per cent from a least to a greatest value.
fn range(least: f64, most: f64) -> String {
    match (format!("{least:.0}"), format!("{most:.0}")) {
        (least, most) if least == most => least,
        (least, most) => format!("{least}..{most}"),
    }
}

/// Shares of the time, per cent: with work, waiting for a semaphore, and nothing submitted.
fn shares(work: &Intervals) -> [String; 3] {
    let of = work.known_ns();
    if of == 0 {
        return ["?", "?", "?"].map(str::to_owned);
    }
    let (least, most) = work.idle.empty_ns;
    [
        format!("{:.1}", share(work.busy_ns, of)),
        format!("{:.1}", share(work.idle.waited_ns, of)),
        range(share(least, of), share(most, of)),
    ]
}

/// `sample`: the share of the time in which stamps were read, where it is not all.
fn sentence(work: &Intervals, parts: Parts, sample: Option<f64>) -> String {
    let known = work.known_ns();
    let Some(verdict) = verdict(work, parts) else {
        let unknown = Nanoseconds(work.unknown_ns);
        return format!("how busy it was is not known ({unknown})");
    };
    let busy = share(work.busy_ns, known);
    let span = Nanoseconds(known);
    let worked = match (sample, work.share_error()) {
        (None, _) => format!("{busy:.1} % of {span}"),
        (Some(_), None) => format!("{busy:.1} % of the {span} that were looked at"),
        (Some(_), Some(error)) => format!(
            "{busy:.1} % (+- {:.1}) of the {span} that were looked at",
            100.0 * error
        ),
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
    if work.idle.ns > 0 {
        text += &rest(work);
    }
    if work.unknown_ns > 0 {
        text += &format!("; {} more are not known", Nanoseconds(work.unknown_ns));
    }
    text
}

/// Tells what the GPU lacked while nothing ran. Bounds that tell little are left out.
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

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpu(gpu) => write!(f, "GPU {gpu}"),
            Self::Process(pid) => write!(f, "the GPU of process {}", pid_name(*pid)),
        }
    }
}

/// A sum as text, `~` before an estimate, and by how much it may be wrong.
fn total(of: Option<Total>, whole: bool) -> (String, String) {
    let Some(of) = of else {
        return ("?".to_owned(), "?".to_owned());
    };
    let about = if whole { "" } else { "~" };
    let error = Nanoseconds(of.error_ns()).to_string();
    (format!("{about}{}", Nanoseconds(of.about_ns)), error)
}

impl Row {
    /// The time of all for comparisons, ns: 0 where it is not known.
    pub(super) fn total_ns(&self) -> u64 {
        self.total.map_or(0, |t| t.about_ns)
    }

    /// The least and the most that is timed of one process, where several have times: `10.2..14.1 ms`.
    fn of_each(&self) -> Option<String> {
        let times = || self.of.values().filter(|of| of.1 > 0).map(|of| of.2);
        let (least, most) = (times().min()?, times().max()?);
        (times().count() > 1).then(|| format!("{}..{}", Nanoseconds(least), Nanoseconds(most)))
    }

    fn total_text(&self) -> (String, String) {
        total(self.total, self.durations.count == self.count)
    }

    /// The text that `tell` makes of the durations; `?` where there are none.
    fn timed(&self, tell: impl Fn(&Durations) -> String) -> String {
        match self.durations.count {
            0 => "?".to_owned(),
            _ => tell(&self.durations),
        }
    }
}

impl ChannelTime {
    /// Mean number of entries in the ring that wait or run.
    pub(super) fn depth(&self) -> f64 {
        let all = self.queued.sum_ns.saturating_add(self.work.sum_ns);
        all as f64 / self.work.span_ns().max(1) as f64
    }

    /// The median time from doorbell to start: at least and at most.
    fn queued(&self) -> String {
        let of = |all: &Durations| match all.count {
            0 => "?".to_owned(),
            _ => Nanoseconds(all.quantile_ns(0.5)).to_string(),
        };
        match (of(&self.queued_least), of(&self.queued_most)) {
            (least, most) if least == most => least,
            (least, most) => format!("{least}..{most}"),
        }
    }
}

impl Account {
    /// Parts of a GPU's work.
    pub(super) fn parts(&self, whose: Whose) -> Parts {
        let busy = self.gpus.get(&whose).map_or(0, |w| w.busy_ns);
        // Where ends are not known well, kernels alone may seem to have run longer than all did.
        let kernels = self.kernels.get(&whose).map_or(0, |w| w.busy_ns);
        let part = |of: &std::collections::BTreeMap<Whose, u64>| {
            of.get(&whose).copied().unwrap_or(0).min(busy)
        };
        Parts {
            copies_ns: busy.saturating_sub(kernels),
            replays_ns: part(&self.replays),
            peers_ns: part(&self.peers),
        }
    }

    /// Rows by time, longest first.
    pub(super) fn sorted(&self, copies: bool) -> Vec<(&What, &Row)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.retain(|(what, _)| what.is_copy() == copies);
        rows.sort_by_key(|(what, row)| (Reverse(row.total_ns()), Reverse(row.count), *what));
        rows
    }

    /// Writes the tables. `width`: columns of the terminal, where there is one.
    pub(crate) fn text(&self, out: &mut Vec<u8>, color: bool, width: Option<usize>) {
        let sample = self.coverage.sample();
        let mut f = Formatter::new(out, color);
        for (whose, work) in &self.gpus {
            let sentence = sentence(work, self.parts(*whose), sample.map(|s| s.1));
            f.line("", 0, Some(Role::Operation));
            f.text(format_args!("{whose}: {sentence}"));
            f.end();
        }
        if self.peers_left_out {
            f.line("", 0, Some(Role::Alarm));
            f.text(format_args!(
                "for how long collectives waited for other ranks is not told: there are too many works (nvcap ranks, or a shorter trace)"
            ));
            f.end();
        }
        // Of what a filter leaves out the GPU's time is not known.
        if self.gpus.is_empty() && self.known.durations == 0 {
            f.line("", 0, Some(Role::Alarm));
            f.text(format_args!(
                "no time on the GPU is known: nothing ran, or its time stamps could not be read (those of OpenGL and Vulkan can be where nvcap traces from the program's start)"
            ));
            f.end();
        }
        for text in self.unfinished.lines(self.newest, self.known.starts > 0) {
            f.line("", 0, Some(Role::Alarm));
            f.text(format_args!("{text}"));
            f.end();
        }
        // The sentences above may wrap in the terminal; the rows of the tables are cut at its width.
        let mut f = Formatter::new(out, color).fitted(width);
        let mut line = |role: Option<Role>, args: Arguments<'_>| {
            f.line("", 0, role);
            f.text(args);
            f.end();
        };
        self.kernels(width.is_some_and(|w| w < NARROW), &mut line);
        self.graphs.write(&mut line);
        self.copies(&mut line);
        self.where_time_went(&mut line);
        self.longest(&mut line);
        let mut f = Formatter::new(out, color);
        let known = self.known;
        let entries = plural_of(known.entries, "entry", "entries");
        f.line("", 0, None);
        f.end();
        if self.exec_time {
            f.line("", 0, None);
            f.text(format_args!(
                "kernels are timed from their first instruction (--exec-time)"
            ));
            f.end();
        }
        f.line("", 0, None);
        match known.entries {
            0 => f.text(format_args!("{entries} with work")),
            all => f.text(format_args!(
                "start known of {:.1} %, duration of {:.1} % of {entries} with work",
                share(known.starts, all),
                share(known.durations, all),
            )),
        }
        f.end();
        let reads = self.stamps;
        let sampled = sample.map_or_else(String::new, |(bursts, share)| {
            format!(" ({:.1} % of the time, in {bursts} bursts)", 100.0 * share)
        });
        f.line("", 0, None);
        f.text(format_args!(
            "time stamps: read {} times in {}{sampled}, {} seen",
            reads.reads,
            Nanoseconds(reads.ns),
            reads.stamps,
        ));
        if reads.steps > 0 {
            let steps = plural(reads.steps, "time");
            f.text(format_args!("; the clocks of GPU and host stepped {steps}"));
        }
        f.end();
        f.line("", 0, None);
        f.end();
    }

    fn kernels(&self, narrow: bool, line: &mut impl FnMut(Option<Role>, Arguments<'_>)) {
        let rows = self.sorted(false);
        if rows.is_empty() {
            return;
        }
        let all = rows.iter().map(|(_, r)| r.total_ns());
        let all = all.fold(0, u64::saturating_add);
        // `timed` is left out if all entries are timed. A narrow terminal has no room for `timed`, `median` and `least`.
        let sampled = rows.iter().any(|(_, r)| r.durations.count < r.count);
        // Rows of several processes: the time of each of them.
        let several = rows.iter().any(|(_, r)| r.of_each().is_some()) && !narrow;
        let columns = |cells: [String; 7]| {
            let is_shown = [true, sampled && !narrow, true, true, !narrow, !narrow, true];
            let shown = cells.into_iter().zip(is_shown).filter(|(_, is)| *is);
            let shown = shown.map(|(cell, _)| format!("{cell:>8}"));
            shown.collect::<Vec<_>>().concat()
        };
        let heads = ["+-", "timed", "count", "mean", "median", "least", "most"];
        line(None, format_args!(""));
        line(
            Some(Role::Operation),
            format_args!(
                "{:>5} {:>8}{}{}  kernel",
                "time%",
                "total",
                columns(heads.map(str::to_owned)),
                if several {
                    format!("{:>19}", "of each process")
                } else {
                    String::new()
                },
            ),
        );
        for (_, row) in rows.iter().take(SHOWN) {
            let (total, error) = row.total_text();
            let ns = |of: fn(&Durations) -> u64| row.timed(|d| Nanoseconds(of(d)).to_string());
            let cells = [
                error,
                row.durations.count.to_string(),
                row.count.to_string(),
                ns(Durations::mean_ns),
                ns(|d| d.quantile_ns(0.5)),
                ns(|d| d.least_ns),
                ns(|d| d.most_ns),
            ];
            line(
                None,
                format_args!(
                    "{:>5} {total:>8}{}{}  {}",
                    row.timed(|_| format!("{:.1}", share(row.total_ns(), all))),
                    columns(cells),
                    if several {
                        format!("{:>19}", row.of_each().unwrap_or_default())
                    } else {
                        String::new()
                    },
                    Plain(&row.text)
                ),
            );
        }
        if let Some(more) = rows.len().checked_sub(SHOWN).filter(|m| *m > 0) {
            line(None, format_args!("{:>5} {more} more (--json has all)", ""));
        }
        if rows.len() > 1 {
            let (text, error) = total(self.totals[0], !sampled);
            line(
                Some(Role::Operation),
                format_args!("{:>5} {text:>8}{error:>8}  all kernels", ""),
            );
        }
        let told: &[&str] = match sampled {
            true => &[
                "(~: the time of some is not known; where those that are known tell little of",
                " them, +- is wide; the total is right within it in 95 %)",
            ],
            false => &[],
        };
        for part in told {
            line(Some(Role::Dim), format_args!("{part}"));
        }
    }

    fn copies(&self, line: &mut impl FnMut(Option<Role>, Arguments<'_>)) {
        let rows = self.sorted(true);
        if rows.is_empty() {
            return;
        }
        line(None, format_args!(""));
        line(
            Some(Role::Operation),
            format_args!(
                "{:>8}{:>8}{:>8}{:>8}{:>8}{:>15}{:>8}  copies",
                "total", "+-", "count", "timed", "mean", "bytes timed", "GB/s"
            ),
        );
        for (_, row) in rows {
            let (total, error) = row.total_text();
            line(
                None,
                format_args!(
                    "{total:>8}{error:>8}{:>8}{:>8}{:>8}{:>15}{:>8}  {}",
                    row.count,
                    row.durations.count,
                    row.timed(|d| Nanoseconds(d.mean_ns()).to_string()),
                    row.bytes,
                    row.timed(|d| format!("{:.2}", row.bytes as f64 / d.sum_ns.max(1) as f64)),
                    Plain(&row.text)
                ),
            );
        }
    }

    /// Tells how GPUs, engines, processes and channels spent the time.
    fn where_time_went(&self, line: &mut impl FnMut(Option<Role>, Arguments<'_>)) {
        let mut rows: Vec<(&Intervals, Option<&ChannelTime>, String)> = Vec::new();
        rows.extend(
            self.gpus
                .iter()
                .map(|(w, work)| (work, None, w.to_string())),
        );
        if self.engines.len() > 1 {
            let engines = self.engines.iter();
            rows.extend(
                engines
                    .map(|((of, engine), work)| (work, None, format!("engine {engine} of {of}"))),
            );
        }
        if self.processes.len() > 1 {
            let processes = self.processes.iter();
            rows.extend(
                processes.map(|(pid, work)| (work, None, format!("process {}", pid_name(*pid)))),
            );
        }
        rows.extend(self.channels.iter().map(|(id, c)| {
            let engine = EngineName(c.engine);
            let text = format!("channel {} ({engine}), process {}", id.0, pid_name(c.pid));
            (&c.work, Some(c), text)
        }));
        rows.retain(|(work, ..)| work.span_ns() > 0);
        if rows.is_empty() {
            return;
        }
        line(None, format_args!(""));
        line(
            Some(Role::Operation),
            format_args!(
                "{:>7}{:>8}{:>8}{:>7}  {:<17}of",
                "worked%", "waited%", "empty%", "depth", "queued"
            ),
        );
        for (work, channel, of) in rows {
            let [worked, waited, empty] = shares(work);
            let depth = channel.map_or_else(String::new, |c| format!("{:.1}", c.depth()));
            let queued = channel.map_or_else(String::new, ChannelTime::queued);
            line(
                None,
                format_args!("{worked:>7}{waited:>8}{empty:>8}{depth:>7}  {queued:<17}{of}"),
            );
        }
        let told = [
            "(parts of each line's own time, which begins with its first work; worked:",
            " something ran; waited: work was there and waited for a semaphore;",
            " empty: nothing was submitted; the rest: work was on its way; depth: mean",
            " number of entries that wait or run; queued: median from doorbell to start)",
        ];
        for part in told {
            line(Some(Role::Dim), format_args!("{part}"));
        }
    }

    fn longest(&self, line: &mut impl FnMut(Option<Role>, Arguments<'_>)) {
        for (whose, work) in &self.gpus {
            if work.gaps.is_empty() {
                continue;
            }
            line(None, format_args!(""));
            line(
                Some(Role::Operation),
                format_args!(
                    "{:>12} {:>8}{:>9}{:>9}  longest gaps of {whose}",
                    "at s", "gap", "waited%", "empty%"
                ),
            );
            for gap in &work.gaps {
                let Idle {
                    ns,
                    empty_ns: (least, most),
                    waited_ns,
                    ..
                } = gap.idle;
                line(
                    None,
                    format_args!(
                        "{:>12} {:>8}{:>9.0}{:>9}",
                        self.seconds(gap.host),
                        Nanoseconds(ns).to_string(),
                        share(waited_ns, ns),
                        range(share(least, ns), share(most, ns))
                    ),
                );
            }
        }
        if self.waits.is_empty() {
            return;
        }
        line(None, format_args!(""));
        line(
            Some(Role::Operation),
            format_args!(
                "{:>12} {:>8}  longest waits for semaphores",
                "until s", "wait"
            ),
        );
        for wait in &self.waits {
            let by = match wait.by {
                Some(by) => format!("channel {}", by.0),
                None => "a release that was not seen".to_owned(),
            };
            line(
                None,
                format_args!(
                    "{:>12} {:>8}  channel {} for {by} ({:#x})",
                    self.seconds(wait.at_host_ns),
                    Nanoseconds(wait.ns).to_string(),
                    wait.channel.0,
                    wait.semaphore
                ),
            );
        }
    }

    /// Seconds since the trace's first record, as text has them.
    fn seconds(&self, at: u64) -> String {
        let first = self.origin.or(self.span.map(|s| s.0)).unwrap_or(at);
        // Rounded down before they are subtracted, as elsewhere.
        let (at, first) = (at / 1000, first / 1000);
        let sign = if at < first { "-" } else { "" };
        let us = at.abs_diff(first);
        format!("{sign}{}.{:06}", us / 1_000_000, us % 1_000_000)
    }
}

#[cfg(test)]
mod tests;
