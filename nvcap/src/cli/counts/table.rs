//! The table of `nvcap counts`, and its JSON.

use std::collections::BTreeMap;
use std::io::Write as _;

use serde_json::{Value, json};

use nvcap_monitor::counts::channel::{Age, Sums};
use nvcap_monitor::counts::view::{ChannelView, GpuView, NAMED, ProcessView, Refused, View};
use nvcap_show::output::json::write_line;
use nvcap_show::output::plural::plural_of;
use nvcap_show::output::style::Plain;
use nvcap_show::output::units::Nanoseconds;

/// Number of lines after which the heading is shown again.
const HEADING_EACH: usize = 20;

/// The table, with the counts that were shown before: rates are computed from the difference.
#[derive(Debug, Default)]
pub(super) struct Table {
    done: BTreeMap<(u32, Option<u32>), u64>,
    unix_ns: u64,
    cpu_ns: u64,
    lines: Option<usize>,
    /// Processes that cannot be looked into.
    refused: BTreeMap<u32, Refused>,
}

impl Table {
    /// Writes a line for all processes, then a line for each process and GPU.
    pub(super) fn text(
        &mut self,
        out: &mut Vec<u8>,
        view: &View,
        mut channels: impl FnMut(u32) -> Vec<ChannelView>,
        mut sampled: impl FnMut(&mut Vec<u8>, u32),
    ) {
        let passed = match self.unix_ns {
            0 => 0,
            before => view.unix_ns.saturating_sub(before),
        };
        if self.lines.is_none_or(|n| n >= HEADING_EACH) {
            self.lines = Some(0);
            let _ = writeln!(
                out,
                "{:>8} {:<15} {:>3} {:>4} {:>14} {:>14} {:>9} {:>8} {:>9} {:>10}  STATE",
                "PID",
                "COMM",
                "GPU",
                "CHAN",
                "DONE",
                "IN ALL",
                "/s",
                "PENDING",
                "OLDEST",
                "LAST DONE"
            );
        }
        self.all(out, view, passed);
        let before = std::mem::take(&mut self.done);
        for process in &view.processes {
            if let Some(parent) = process.shares {
                let name = Plain(&process.name).to_string();
                let _ = writeln!(
                    out,
                    "{:>8} {name:<15} has the channels of process {parent} by fork: counted there",
                    process.pid
                );
                continue;
            }
            if process.gpus.is_empty() {
                let name = Plain(&process.name).to_string();
                let _ = writeln!(out, "{:>8} {name:<15} no channel yet", process.pid);
            }
            for (gpu, of) in &process.gpus {
                let key = (process.pid, *gpu);
                let last = before.get(&key).copied();
                let rate = rate(last, of.sums.done, passed);
                self.done.insert(key, of.sums.done);
                let head = format!(
                    "{:>8} {:<15}",
                    process.pid,
                    Plain(&process.name).to_string()
                );
                line(out, &head, *gpu, of, &rate, view.unix_ns);
            }
            for channel in channels(process.pid) {
                let head = format!("{:>8} ring {:<#10x}", "", channel.ring);
                line(out, &head, channel.gpu, &channel.view, "", view.unix_ns);
            }
            sampled(out, process.pid);
        }
        let others = self.others(out, view);
        self.lines = self.lines.map(|n| n + 1 + view.processes.len() + others);
        (self.unix_ns, self.cpu_ns) = (view.unix_ns, view.cpu_ns);
    }

    /// Writes a line for each process that cannot be looked into and was not shown before. Returns the number of lines.
    fn others(&mut self, out: &mut Vec<u8>, view: &View) -> usize {
        let before = std::mem::replace(&mut self.refused, view.refused.clone());
        let is_new = |(pid, r): &(&u32, &Refused)| before.get(*pid) != Some(*r);
        let mut new: Vec<(&u32, &Refused)> = view.refused.iter().filter(is_new).collect();
        new.sort_by_key(|(_, r)| !r.uses_gpu);
        for (pid, r) in new.iter().take(NAMED) {
            let name = Plain(&r.name).to_string();
            let user = match r.user.as_str() {
                "" => "an unknown user".to_owned(),
                user => format!("user {}", Plain(user)),
            };
            let uses = match r.uses_gpu {
                true => "it uses a GPU",
                false => "whether it uses a GPU is not known",
            };
            let why = &r.why;
            let _ = writeln!(
                out,
                "{pid:>8} {name:<15} of {user} is not counted: {uses}; {why}"
            );
        }
        match new.len().saturating_sub(NAMED) {
            0 => new.len(),
            more => {
                let more = plural_of(more as u64, "other", "others");
                let _ = writeln!(out, "{:>8} and {more}; --json names all", "");
                NAMED + 1
            }
        }
    }

    fn all(&self, out: &mut Vec<u8>, view: &View, passed: u64) {
        let second = view.unix_ns / 1_000_000_000 % 86_400;
        let mut all = Sums::default();
        for of in view.processes.iter().flat_map(|p| p.gpus.values()) {
            all.add(of.sums);
        }
        all.add(view.ended.unwrap_or_default());
        let _ = write!(
            out,
            "{:02}:{:02}:{:02} UTC  {}, {} done",
            second / 3600,
            second / 60 % 60,
            second % 60,
            plural_of(view.processes.len() as u64, "process", "processes"),
            plural_of(all.done, "submission", "submissions"),
        );
        if let Some(ended) = view.ended {
            let least = match view.ended_unseen.is_empty() {
                true => "",
                false => "at least ",
            };
            let done = ended.done;
            let _ = write!(out, " ({least}{done} by processes that have ended)");
        }
        if !view.refused.is_empty() {
            let _ = write!(out, "; {} not counted", view.refused.len());
        }
        if passed > 0 {
            let share = view.cpu_ns.saturating_sub(self.cpu_ns) as f64 / passed as f64;
            let _ = write!(out, "; nvcap {:.3} % of a core", share * 100.0);
        }
        let _ = writeln!(out);
    }
}

fn line(out: &mut Vec<u8>, head: &str, gpu: Option<u32>, of: &GpuView, rate: &str, now: u64) {
    let gpu = gpu.map_or("?".to_owned(), |gpu| gpu.to_string());
    let least = if of.doubts.is_empty() { "" } else { "~" };
    let done = format!("{least}{}", of.sums.done);
    let in_all = of.in_all.map_or("-".to_owned(), |all| all.done.to_string());
    let oldest = of.oldest.map_or("-".to_owned(), age);
    let last = of.progress_unix_ns.map_or("-".to_owned(), |then| {
        Nanoseconds(now.saturating_sub(then) / 1_000_000 * 1_000_000).to_string()
    });
    let _ = writeln!(
        out,
        "{head} {gpu:>3} {:>4} {done:>14} {in_all:>14} {rate:>9} {:>8} {oldest:>9} {last:>10}  {}",
        of.channels(),
        of.pending,
        of.words()
    );
}

/// Returns the age of the oldest pending submission: the least age if two readings had it, else the greatest.
fn age(Age { least_ns, most_ns }: Age) -> String {
    match most_ns {
        Some(most) if least_ns == 0 => format!("<={}", Nanoseconds(most)),
        _ => format!(">={}", Nanoseconds(least_ns)),
    }
}

fn rate(before: Option<u64>, now: u64, passed: u64) -> String {
    match before {
        Some(before) if passed > 0 => {
            let rate = now.saturating_sub(before) as f64 * 1e9 / passed as f64;
            format!("{rate:.0}")
        }
        _ => "-".to_owned(),
    }
}

fn seconds(ns: u64) -> f64 {
    // Microseconds suffice: more digits would suggest a precision that the measurement does not have.
    (ns / 1000) as f64 / 1e6
}

fn gpu_json(of: &GpuView) -> Value {
    let [idle, working, waiting, stopped] = of.states;
    let mut value = json!({
        "submitted": of.sums.submitted,
        "done": of.sums.done,
        "pending": of.pending,
        "unfetched": of.unfetched,
        "channels": {"idle": idle, "working": working, "waiting": waiting, "stopped": stopped},
        "exact": of.doubts.is_empty(),
        "state": of.state().word(),
        "errors": of.errors,
    });
    if !of.doubts.is_empty() {
        let why: Vec<&str> = of.doubts.iter().map(|doubt| doubt.word()).collect();
        value["not_exact"] = why.into();
    }
    if let Some(all) = of.in_all {
        value["submitted_in_all"] = all.submitted.into();
        value["done_in_all"] = all.done.into();
    }
    if let Some(age) = of.oldest {
        value["oldest_pending_seconds_least"] = seconds(age.least_ns).into();
        value["oldest_pending_seconds_most"] = age.most_ns.map(seconds).into();
    }
    if let Some(then) = of.progress_unix_ns {
        value["last_done_unix_seconds"] = seconds(then).into();
    }
    value
}

/// Writes an object for each process, and one for all.
pub(super) fn json(
    out: &mut Vec<u8>,
    view: &View,
    mut channels: impl FnMut(u32) -> Vec<ChannelView>,
    mut sampled: impl FnMut(u32) -> Option<Value>,
) {
    let time = seconds(view.unix_ns);
    for process in &view.processes {
        let ProcessView { pid, name, .. } = process;
        let gpus: Vec<Value> = process
            .gpus
            .iter()
            .map(|(gpu, of)| {
                let mut value = gpu_json(of);
                value["gpu"] = (*gpu).into();
                value
            })
            .collect();
        let mut value = json!({
            "type": "process",
            "time": time,
            "pid": pid,
            "comm": name,
            "began": seconds(process.began_unix_ns),
            "counted_since": seconds(process.since_unix_ns),
            "gpus": gpus,
        });
        if let Some(parent) = process.shares {
            value["counted_with"] = parent.into();
        }
        let all: Vec<Value> = channels(*pid)
            .iter()
            .map(|channel| {
                let mut value = gpu_json(&channel.view);
                value["gpu"] = channel.gpu.into();
                value["ring"] = channel.ring.into();
                value
            })
            .collect();
        if !all.is_empty() {
            value["rings"] = all.into();
        }
        if let Some(sampled) = sampled(*pid).filter(|_| process.shares.is_none()) {
            value["sampled"] = sampled;
        }
        write_line(out, &value);
    }
    let ended = view.ended.unwrap_or_default();
    let blind: BTreeMap<&str, f64> = view
        .blind_ns
        .iter()
        .map(|(w, ns)| (*w, seconds(*ns)))
        .collect();
    let unseen: BTreeMap<&str, u64> = { view.ended_unseen.iter() }
        .map(|(last, count)| (last.word(), *count))
        .collect();
    let refused: Vec<Value> = view
        .refused
        .iter()
        .map(|(pid, r)| {
            let word = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            json!({
                "pid": pid,
                "comm": word(&r.name),
                "user": word(&r.user),
                "why": r.why,
                "uses_gpu": r.uses_gpu.then_some(true),
            })
        })
        .collect();
    let all = json!({
        "type": "host",
        "time": time,
        "processes": view.processes.len(),
        "ended_submitted": ended.submitted,
        "ended_done": ended.done,
        "ended_exact": view.ended_unseen.is_empty(),
        "ended_unseen": unseen,
        "not_readable": refused,
        "blind_seconds": blind,
        "cpu_seconds": seconds(view.cpu_ns),
        "late_readings": view.stretched,
    });
    write_line(out, &all);
}
