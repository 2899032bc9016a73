//! The sums as tables.

use std::cmp::Reverse;
use std::fmt::Arguments;

use super::intervals::{Idle, Intervals};
use super::sentence::{Parts, range, sentence, share};
use super::{Account, ChannelTime, Durations, Preemptions, Row, Total, What, Whose};
use crate::output::names::{EngineName, pid_name};
use crate::output::plural::{plural, plural_of};
use crate::output::style::{Formatter, Plain, Role};
use crate::output::units::Nanoseconds;

/// Number of columns below which a terminal is narrow.
const NARROW: usize = 110;
/// Part of a line's time, per cent, from which on it is told that this part is not known.
const UNKNOWN_TOLD: f64 = 1.0;
/// Part of the longest line's time below which a line tells its own time.
const SHORT: f64 = 0.9;
/// The most rows of a table in text.
const SHOWN: usize = 20;

/// Returns shares of the time, per cent: with work, waiting for a semaphore, and with nothing submitted.
fn shares(work: &Intervals) -> [String; 3] {
    let of = work.span_ns();
    if work.known_ns() == 0 {
        return ["?", "?", "?"].map(str::to_owned);
    }
    let (least, most) = work.idle.empty_ns;
    [
        format!("{:.1}", share(work.busy_ns, of)),
        format!("{:.1}", share(work.idle.waited_ns, of)),
        range(share(least, of), share(most, of)),
    ]
}

/// Explains the table of shares.
fn shares_legend(
    line: &mut impl FnMut(Option<Role>, Arguments<'_>),
    some_are_short: bool,
    some_unknown: bool,
) {
    let told = [
        "(parts of each line's own time, which begins with its first work; worked:",
        " something ran; waited: work was there and waited for a semaphore;",
        " empty: nothing was submitted; the rest: work was on its way; depth: mean",
        " number of entries that wait or run; queued: median from doorbell to start)",
    ];
    for part in told {
        line(Some(Role::Dim), format_args!("{part}"));
    }
    if some_are_short {
        let told = "(over: a line's own time, where it is much less than another's)";
        line(Some(Role::Dim), format_args!("{told}"));
    }
    if some_unknown {
        let told = "(unknown: works may have run, whose times were not seen)";
        line(Some(Role::Dim), format_args!("{told}"));
    }
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpu(gpu) => write!(f, "GPU {gpu}"),
            Self::Process(pid) => write!(f, "the GPU of process {}", pid_name(*pid)),
        }
    }
}

/// Returns a sum as text, with `~` before an estimate, and the error of it.
fn total(of: Option<Total>, whole: bool) -> (String, String) {
    let Some(of) = of else {
        return ("?".to_owned(), "?".to_owned());
    };
    let about = if whole { "" } else { "~" };
    let error = Nanoseconds(of.error_ns()).to_string();
    (format!("{about}{}", Nanoseconds(of.about_ns)), error)
}

impl Row {
    /// Returns the time of all for comparisons, ns; 0 where it is not known.
    pub(super) fn total_ns(&self) -> u64 {
        self.total.map_or(0, |t| t.about_ns)
    }

    /// Returns the least and the most timed duration of one process, where several have times: `10.2..14.1 ms`.
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

    /// Returns the median time from doorbell to start: the least and the most that it can be.
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
        let all = self.gpus.get(&whose);
        let busy = all.map_or(0, |w| w.busy_ns);
        // All but copies, whether it is known to have run or may have: what is left of the time is copies'.
        let maybe = all.map_or(0, |w| w.unknown_kernels_ns);
        let kernels = self.kernels.get(&whose);
        let kernels = kernels.map_or(0, |w| w.busy_ns.saturating_add(w.unknown_ns));
        let part = |of: &std::collections::BTreeMap<Whose, u64>| {
            of.get(&whose).copied().unwrap_or(0).min(busy)
        };
        Parts {
            copies_ns: busy.saturating_add(maybe).saturating_sub(kernels).min(busy),
            replays_ns: part(&self.replays),
            peers_ns: part(&self.peers),
        }
    }

    /// Returns the share of all work whose start is known, 0 to 1; 1 where stamps were read in bursts, of which shares are samples.
    pub(super) fn starts(&self) -> f64 {
        match (self.coverage.sample(), self.known.entries) {
            (Some(_), _) | (_, 0) => 1.0,
            (None, all) => self.known.starts as f64 / all as f64,
        }
    }

    /// Returns sentences on each GPU's time, and on work of which too little is known.
    fn sentences(&self) -> (Vec<String>, Vec<String>) {
        let sample = self.coverage.sample().map(|s| s.1);
        let mut all = Vec::new();
        for (whose, work) in &self.gpus {
            let sentence = sentence(work, self.parts(*whose), self.starts(), sample);
            all.push(format!("{whose}: {sentence}"));
            let preempted = self.preempted.get(whose);
            let told = preempted.and_then(Preemptions::sentence);
            all.extend(told.map(|told| format!("{whose}: {told}")));
        }
        let mut doubts = Vec::new();
        if self.peers_left_out {
            doubts.push("for how long collectives waited for other ranks is not told: there are too many works (nvcap ranks, or a shorter trace)".to_owned());
        }
        // Of what a filter leaves out the GPU's time is not known.
        if self.gpus.is_empty() && self.known.durations == 0 {
            doubts.push(match self.known.entries {
                0 if self.leaves_out => {
                    "no work of the GPU passes the filter".to_owned()
                }
                0 if self.earlier.is_some() => {
                    "no work was submitted to the GPU in this time: earlier work has not ended"
                        .to_owned()
                }
                0 => "no work was submitted to the GPU in this time".to_owned(),
                n => format!(
                    "no time on the GPU is known of {} with work: none has ended (nvcap dump says what it waits for, where it still does), there are too few to tell the GPU's clock, or time stamps could not be read (those of OpenGL and Vulkan can be where nvcap traces from the program's start)",
                    plural_of(n, "entry", "entries"),
                ),
            });
        }
        let some_are_known = self.known.starts > 0;
        doubts.extend(self.earlier.lines(self.known.entries == 0));
        doubts.extend(self.unfinished.lines(self.newest, some_are_known));
        (all, doubts)
    }

    /// Returns these sentences as lines of a page.
    pub(crate) fn notes(&self) -> Vec<String> {
        let (mut all, doubts) = self.sentences();
        all.extend(doubts);
        all
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
        let (sentences, doubts) = self.sentences();
        let roles = [(sentences, Role::Operation), (doubts, Role::Alarm)];
        for (text, role) in roles
            .iter()
            .flat_map(|(all, role)| all.iter().map(move |t| (t, role)))
        {
            f.line("", 0, Some(*role));
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
        let of_all = match self.coverage.processes() {
            0 | 1 => String::new(),
            n => format!(" (the sum of {n} processes)"),
        };
        let sampled = sample.map_or_else(String::new, |(bursts, share)| {
            format!(" ({:.1} % of the time, in {bursts} bursts)", 100.0 * share)
        });
        f.line("", 0, None);
        f.text(format_args!(
            "time stamps: read {} times in {}{of_all}{sampled}, {} seen",
            reads.reads,
            Nanoseconds(reads.ns),
            reads.stamps,
        ));
        if reads.steps > 0 {
            let steps = plural(reads.steps, "time");
            f.text(format_args!(
                "; {steps} they contradicted those before: one of the clocks stepped, or they were written late"
            ));
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
        let recorded = rows.iter().any(|(_, r)| r.preempted.is_recorded());
        let columns = |cells: [String; 8]| {
            let few = !narrow;
            let is_shown = [true, sampled && few, true, true, few, few, true, recorded];
            let shown = cells.into_iter().zip(is_shown).filter(|(_, is)| *is);
            let shown = shown.map(|(cell, _)| format!(" {cell:>7}"));
            shown.collect::<Vec<_>>().concat()
        };
        let heads = [
            "+-",
            "timed",
            "count",
            "mean",
            "median",
            "least",
            "most",
            "preempted",
        ];
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
                format!("{:>9}", row.preempted.cell()),
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
        let mut told = Vec::new();
        if sampled {
            told.push(
                "(~: the time of some is not known; where those that are known tell little of",
            );
            told.push(" them, +- is wide; the total is right within it in 95 %)");
        }
        if recorded {
            told.push("(preempted: others had the GPU while they ran; no part of their time)");
        }
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
        let is_told = |work: &Intervals| share(work.unknown_ns, work.span_ns()) >= UNKNOWN_TOLD;
        let some_unknown = rows.iter().any(|(work, ..)| is_told(work));
        line(None, format_args!(""));
        line(
            Some(Role::Operation),
            format_args!(
                "{:>7}{:>8}{:>8}{}{:>7}  {:<17}of",
                "worked%",
                "waited%",
                "empty%",
                if some_unknown { " unknown%" } else { "" },
                "depth",
                "queued"
            ),
        );
        let longest = rows.iter().map(|(work, ..)| work.span_ns()).max();
        let is_short =
            |work: &Intervals| (work.span_ns() as f64) < SHORT * longest.unwrap_or(0) as f64;
        let some_are_short = rows.iter().any(|(work, ..)| is_short(work));
        for (work, channel, mut of) in rows {
            // Parts of another time than those of the other lines.
            if is_short(work) {
                of += &format!(", over {}", Nanoseconds(work.span_ns()));
            }
            let [worked, waited, empty] = shares(work);
            let unknown = match some_unknown {
                true => format!("{:>9.1}", share(work.unknown_ns, work.span_ns())),
                false => String::new(),
            };
            let depth = channel.map_or_else(String::new, |c| format!("{:.1}", c.depth()));
            let queued = channel.map_or_else(String::new, ChannelTime::queued);
            line(
                None,
                format_args!(
                    "{worked:>7}{waited:>8}{empty:>8}{unknown}{depth:>7}  {queued:<17}{of}"
                ),
            );
        }
        shares_legend(line, some_are_short, some_unknown);
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
