//! The sums as tables and as JSON.

use std::cmp::Reverse;
use std::fmt::Arguments;

use serde_json::{Value, json};

use super::intervals::Intervals;
use super::{Account, ChannelTime, Row, What, Whose};
use crate::output::names::{EngineName, pid_name};
use crate::output::plural::plural_of;
use crate::output::style::{Formatter, Plain, Role};
use crate::output::units::Nanoseconds;

/// Rows of a table in text.
const SHOWN: usize = 20;
/// From this share of the time on a GPU is the limit.
const GPU_BOUND: f64 = 0.9;
/// From this share of the idle time on in which nothing was there, the program is.
const LAUNCH_BOUND: f64 = 0.5;

fn share(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// What a GPU's time says of the program.
fn verdict(work: &Intervals) -> &'static str {
    let busy = work.busy_ns as f64 / work.span_ns().max(1) as f64;
    let nothing_there = work.nothing_there_ns as f64 / work.idle_ns.max(1) as f64;
    if busy >= GPU_BOUND {
        "GPU-bound"
    } else if nothing_there >= LAUNCH_BOUND {
        "launch-bound"
    } else {
        "bound by waits between submissions"
    }
}

fn sentence(work: &Intervals) -> String {
    let span = work.span_ns();
    let busy = share(work.busy_ns, span);
    let idle = share(work.nothing_there_ns, work.idle_ns);
    let rest = match work.idle_ns {
        0 => String::new(),
        _ => format!(
            "; in {idle:.0} % of the rest nothing was submitted, in {:.0} % what was submitted waited",
            100.0 - idle
        ),
    };
    format!(
        "worked {busy:.1} % of {}{rest}: {}",
        Nanoseconds(span),
        verdict(work)
    )
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpu(gpu) => write!(f, "GPU {gpu}"),
            Self::Process(pid) => write!(f, "the GPU of process {pid}"),
        }
    }
}

impl Row {
    /// What all of them took, ns: an estimate where not all are timed.
    pub(super) fn total_ns(&self) -> u64 {
        self.durations.estimate_ns(self.count).0
    }

    /// The same as text, `~` before an estimate.
    fn total(&self) -> String {
        let about = if self.durations.count < self.count {
            "~"
        } else {
            ""
        };
        format!("{about}{}", Nanoseconds(self.total_ns()))
    }
}

impl ChannelTime {
    /// Mean number of entries in the ring that wait or run.
    fn depth(&self) -> f64 {
        let all = self.queued.sum_ns.saturating_add(self.work.sum_ns);
        all as f64 / self.work.span_ns().max(1) as f64
    }
}

impl Account {
    /// Rows by time, longest first.
    pub(super) fn sorted(&self, copies: bool) -> Vec<(&What, &Row)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.retain(|(what, _)| what.is_copy() == copies);
        rows.sort_by_key(|(what, row)| (Reverse(row.total_ns()), Reverse(row.count), *what));
        rows
    }

    /// Writes the tables.
    pub(crate) fn text(&self, out: &mut Vec<u8>, color: bool) {
        let mut f = Formatter::new(out, color);
        let mut line = |role: Option<Role>, args: Arguments<'_>| {
            f.line("", 0, role);
            f.text(args);
            f.end();
        };
        let head = Some(Role::Operation);
        for (whose, work) in &self.gpus {
            line(head, format_args!("{whose} {}", sentence(work)));
        }
        if self.gpus.is_empty() {
            line(
                Some(Role::Alarm),
                format_args!(
                    "no time on the GPU is known: nothing ran, or its time stamps could not be read"
                ),
            );
        }
        self.kernels(&mut line);
        self.copies(&mut line);
        self.where_time_went(&mut line);
        self.longest(&mut line);
        let known = self.known;
        line(None, format_args!(""));
        line(
            None,
            format_args!(
                "start known of {:.1} %, duration of {:.1} % of {} with work",
                share(known.starts, known.entries),
                share(known.durations, known.entries),
                plural_of(known.entries, "entry", "entries")
            ),
        );
        let reads = self.stamps;
        line(
            None,
            format_args!(
                "time stamps: read {} times in {}, {} seen; the clocks of GPU and host stepped {} times",
                reads.reads,
                Nanoseconds(reads.ns),
                reads.stamps,
                reads.steps
            ),
        );
        line(None, format_args!(""));
    }

    fn kernels(&self, line: &mut impl FnMut(Option<Role>, Arguments<'_>)) {
        let rows = self.sorted(false);
        if rows.is_empty() {
            return;
        }
        let all: u64 = rows.iter().map(|(_, r)| r.total_ns()).sum();
        line(None, format_args!(""));
        line(
            Some(Role::Operation),
            format_args!(
                "{:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  kernel",
                "time%", "total", "count", "timed", "mean", "median", "least", "most"
            ),
        );
        for (_, row) in rows.iter().take(SHOWN) {
            let d = &row.durations;
            line(
                None,
                format_args!(
                    "{:>6.1} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {}",
                    share(row.total_ns(), all),
                    row.total(),
                    row.count,
                    d.count,
                    Nanoseconds(d.mean_ns()).to_string(),
                    Nanoseconds(d.quantile_ns(0.5)).to_string(),
                    Nanoseconds(d.least_ns).to_string(),
                    Nanoseconds(d.most_ns).to_string(),
                    Plain(&row.text)
                ),
            );
        }
        if let Some(more) = rows.len().checked_sub(SHOWN).filter(|m| *m > 0) {
            line(None, format_args!("{:>6} {more} more (--json has all)", ""));
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
                "{:>9} {:>9} {:>9} {:>9} {:>14} {:>8}  copies",
                "total", "count", "timed", "mean", "bytes", "GB/s"
            ),
        );
        for (_, row) in rows {
            let d = &row.durations;
            line(
                None,
                format_args!(
                    "{:>9} {:>9} {:>9} {:>9} {:>14} {:>8.2}  {}",
                    row.total(),
                    row.count,
                    d.count,
                    Nanoseconds(d.mean_ns()).to_string(),
                    row.bytes,
                    row.bytes as f64 / d.sum_ns.max(1) as f64,
                    row.text
                ),
            );
        }
    }

    fn where_time_went(&self, line: &mut impl FnMut(Option<Role>, Arguments<'_>)) {
        let rows: Vec<_> = self
            .channels
            .iter()
            .filter(|(_, c)| c.work.span_ns() > 0)
            .collect();
        if rows.is_empty() {
            return;
        }
        line(None, format_args!(""));
        line(
            Some(Role::Operation),
            format_args!(
                "{:>7} {:>9} {:>9} {:>7}  {:<8} {:<6} process",
                "worked%", "queued", "waited", "depth", "channel", "engine"
            ),
        );
        for (id, c) in rows {
            line(
                None,
                format_args!(
                    "{:>7.1} {:>9} {:>9} {:>7.1}  {:<8} {:<6} {}",
                    share(c.work.busy_ns, c.work.span_ns()),
                    Nanoseconds(c.queued.quantile_ns(0.5)).to_string(),
                    Nanoseconds(c.waited_ns).to_string(),
                    c.depth(),
                    id.0,
                    EngineName(c.engine),
                    pid_name(c.pid)
                ),
            );
        }
        line(
            Some(Role::Dim),
            format_args!(
                "(queued: median time from doorbell to start; waited: sum of waits for other channels' semaphores; depth: mean of \
                 entries that wait or run)"
            ),
        );
        if self.engines.len() > 1 {
            for ((whose, engine), work) in &self.engines {
                line(
                    None,
                    format_args!(
                        "{:>7.1} {whose}, engine {engine}",
                        share(work.busy_ns, work.span_ns())
                    ),
                );
            }
        }
        if self.processes.len() > 1 {
            for (pid, work) in &self.processes {
                line(
                    None,
                    format_args!(
                        "{:>7.1} process {}",
                        share(work.busy_ns, work.span_ns()),
                        pid_name(*pid)
                    ),
                );
            }
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
                    "{:>12} {:>9} {:>13}  longest gaps of {whose}",
                    "at s", "gap", "nothing there"
                ),
            );
            for gap in &work.gaps {
                line(
                    None,
                    format_args!(
                        "{:>12} {:>9} {:>11.0} %",
                        self.seconds(gap.host),
                        Nanoseconds(gap.ns).to_string(),
                        share(gap.nothing_there_ns, gap.ns)
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
                "{:>12} {:>9}  longest waits for semaphores",
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
                    "{:>12} {:>9}  channel {} for {by} ({:#x})",
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

    /// One object of type `gpu_time`.
    pub(crate) fn json(&self) -> Value {
        let durations = |row: &Row| {
            let d = &row.durations;
            let (total, error) = d.estimate_ns(row.count);
            json!({
                "timed": d.count, "timed_ns": d.sum_ns, "total_ns": total, "total_error_ns": error, "mean_ns": d.mean_ns(), "least_ns": d.least_ns, "most_ns": d.most_ns,
                "p50_ns": d.quantile_ns(0.5), "p90_ns": d.quantile_ns(0.9), "p99_ns": d.quantile_ns(0.99),
            })
        };
        let kernels: Vec<Value> = self
            .sorted(false)
            .into_iter()
            .map(|(what, row)| {
                let mangled = match what {
                    What::Kernel(name) => Some(name),
                    _ => None,
                };
                let program = match what {
                    What::Program(program) => Some(program),
                    _ => None,
                };
                json!({
                    "kernel": row.text, "kernel_mangled": mangled, "program": program,
                    "count": row.count, "works": what.works(), "gpu": durations(row),
                })
            })
            .collect();
        let copies: Vec<Value> = self
            .sorted(true)
            .into_iter()
            .map(|(what, row)| {
                let rate = row.bytes as f64 / row.durations.sum_ns.max(1) as f64;
                json!({"copies": row.text, "count": row.count, "works": what.works(), "bytes": row.bytes, "gb_per_s": rate, "gpu": durations(row)})
            })
            .collect();
        let work = |w: &Intervals| {
            json!({
                "span_ns": w.span_ns(), "busy_ns": w.busy_ns, "sum_ns": w.sum_ns, "idle_ns": w.idle_ns,
                "nothing_there_ns": w.nothing_there_ns,
            })
        };
        let gpus: Vec<Value> = self
            .gpus
            .iter()
            .map(|(whose, w)| {
                let gaps: Vec<Value> = w
                    .gaps
                    .iter()
                    .map(|g| json!({"at_ns": g.host, "gpu_clock_ns": g.begin, "ns": g.ns, "nothing_there_ns": g.nothing_there_ns}))
                    .collect();
                let (gpu, pid) = match whose {
                    Whose::Gpu(gpu) => (Some(gpu), None),
                    Whose::Process(pid) => (None, Some(pid)),
                };
                json!({"gpu": gpu, "pid": pid, "work": work(w), "verdict": verdict(w), "gaps": gaps})
            })
            .collect();
        let engines: Vec<Value> = self
            .engines
            .iter()
            .map(|((whose, engine), w)| json!({"of": whose.to_string(), "engine": engine, "work": work(w)}))
            .collect();
        let processes: Vec<Value> = self
            .processes
            .iter()
            .map(|(pid, w)| json!({"pid": pid, "work": work(w)}))
            .collect();
        let channels: Vec<Value> = self
            .channels
            .iter()
            .map(|(id, c)| {
                json!({
                    "channel": id.0, "pid": c.pid, "gpu": c.gpu, "engine": EngineName(c.engine).to_string(),
                    "work": work(&c.work), "queued_p50_ns": c.queued.quantile_ns(0.5), "queued_ns": c.queued.sum_ns,
                    "waited_ns": c.waited_ns, "depth": c.depth(),
                })
            })
            .collect();
        let waits: Vec<Value> = self
            .waits
            .iter()
            .map(|w| {
                json!({
                    "channel": w.channel.0, "for_channel": w.by.map(|b| b.0), "semaphore": w.semaphore.0, "ns": w.ns,
                    "until_ns": w.at_host_ns,
                })
            })
            .collect();
        json!({
            "type": "gpu_time", "time_ns": self.span.map(|s| s.1), "pid": null, "tid": null, "token": null,
            "first_ns": self.span.map(|s| s.0), "last_ns": self.span.map(|s| s.1),
            "entries": self.known.entries, "starts": self.known.starts, "durations": self.known.durations,
            "stamp_reads": self.stamps.reads, "stamp_read_ns": self.stamps.ns, "stamps": self.stamps.stamps,
            "clock_steps": self.stamps.steps, "kernels": kernels, "copies": copies, "gpus": gpus, "engines": engines, "processes": processes, "channels": channels,
            "waits": waits,
        })
    }
}
