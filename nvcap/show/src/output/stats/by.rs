//! The one table of `--by`, each of whose rows is a kernel, a channel, a thread, a phase or a GPU.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::output::gpu_time::{Durations, told};
use crate::output::kernels;
use crate::output::names::{EngineName, Who, gpu_name, is_timed, token_name};
use crate::output::units::Nanoseconds;
use nvcap_decode::decode::event::{
    Context, Engine, GpuTime, LaunchKind, Operation, SemaphoreAction,
};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::ChannelId;

use super::sum::Sum;

/// Kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A kernel; other operations are not counted.
    Kernel,
    /// A channel.
    Channel,
    /// A thread.
    Thread,
    /// A phase.
    Phase,
    /// A GPU.
    Gpu,
}

impl By {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Channel => "channel",
            Self::Thread => "thread",
            Self::Phase => "phase",
            Self::Gpu => "gpu",
        }
    }
}

/// The most rows that are kept apart, and the bytes of their names.
const MOST_ROWS: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;

/// A row's channel, as far as it is known by the trace's end.
#[derive(Debug)]
struct OfChannel {
    id: ChannelId,
    token: Option<u32>,
    engine: Engine,
}

impl OfChannel {
    fn learn(&mut self, token: Option<u32>, engine: Engine) {
        self.token = self.token.or(token);
        if self.engine == Engine::Unknown {
            self.engine = engine;
        }
    }
}

#[derive(Debug, Default)]
struct Row {
    channel: Option<OfChannel>,
    submissions: Sum,
    launches: u64,
    copies: Sum,
    waits: u64,
    durations: Durations,
    /// The submission that was counted last.
    serial: Option<u64>,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    by: By,
    rows: HashMap<String, Row>,
    /// The bytes of their names.
    name_bytes: usize,
    /// The bytes of the submission under way.
    bytes: u64,
    /// The entry whose GPU time was counted last: its submission's serial number, and its index.
    timed: Option<(u64, u32)>,
}

impl Table {
    pub(super) fn new(by: By) -> Self {
        Self {
            by,
            rows: HashMap::new(),
            name_bytes: 0,
            bytes: 0,
            timed: None,
        }
    }

    fn row(&mut self, c: &Context, name: String) -> &mut Row {
        let is_full = self.rows.len() >= MOST_ROWS || self.name_bytes >= MOST_BYTES;
        let is_new = !self.rows.contains_key(&name);
        let name = match is_full && is_new {
            true => "(others)".to_owned(),
            false => name,
        };
        self.name_bytes += if is_new { name.len() } else { 0 };
        let row = self.rows.entry(name).or_default();
        if self.by == By::Channel && (!is_full || !is_new) {
            let channel = row.channel.get_or_insert(OfChannel {
                id: c.channel,
                token: None,
                engine: Engine::Unknown,
            });
            channel.learn(c.token, c.engine);
        }
        row
    }

    /// Takes what was learnt of channels behind their last submissions.
    pub(super) fn finish(&mut self, ledger: &Ledger) {
        for channel in self.rows.values_mut().filter_map(|r| r.channel.as_mut()) {
            if let Some(known) = ledger.channel(channel.id) {
                channel.learn(known.token, known.engine);
            }
        }
    }

    /// The name of the row that counts everything that a submission does; `None` if rows are kernels.
    fn name(&self, c: &Context) -> Option<String> {
        Some(match self.by {
            By::Kernel => return None,
            By::Channel => format!("ch{}", c.channel.0),
            By::Thread => Who(c).to_string(),
            By::Phase => c
                .phase
                .as_deref()
                .unwrap_or("(outside of phases)")
                .to_owned(),
            By::Gpu => gpu_name(c.gpu),
        })
    }

    pub(super) fn submission(&mut self, c: &Context, bytes: u64) {
        self.bytes = bytes;
        if let Some(name) = self.name(c) {
            self.row(c, name).submissions.add(bytes);
        }
    }

    pub(super) fn operation(&mut self, c: &Context, entry: u32, op: &Operation) {
        // The GPU time of an entry is counted once. If several launches share it, it is no kernel's time.
        let first =
            is_timed(op) && self.timed.replace((c.serial, entry)) != Some((c.serial, entry));
        let time = c.gpu_time_of(entry).filter(|_| first);
        let time = time.filter(|t| self.by != By::Kernel || t.alone().is_some());
        let bytes = self.bytes;
        let row = match (self.by, op) {
            (By::Kernel, Operation::Launch(l)) => {
                if matches!(l.kind, LaunchKind::Companion | LaunchKind::Unresolved) {
                    return;
                }
                let Some(name) = kernel(l) else { return };
                let row = self.row(c, name);
                if row.serial.replace(c.serial) != Some(c.serial) {
                    row.submissions.add(bytes);
                }
                row
            }
            (By::Kernel, _) => return,
            _ => {
                let Some(name) = self.name(c) else { return };
                self.row(c, name)
            }
        };
        row.take(op, time, c.part_of(entry).is_none());
    }

    /// Rows with the most GPU time first, then those with the most work.
    fn sorted(&self) -> Vec<(String, &Row)> {
        let named = |name: &String, row: &Row| match &row.channel {
            Some(OfChannel { token, engine, .. }) => format!(
                "{name} {} token {}",
                EngineName(*engine),
                token_name(*token)
            ),
            None => name.clone(),
        };
        let mut rows: Vec<_> = { self.rows.iter() }
            .map(|(name, row)| (named(name, row), row))
            .collect();
        rows.sort_by_key(|(name, r)| {
            let work = (r.durations.sum_ns, r.launches, r.submissions.count);
            (std::cmp::Reverse(work), name.clone())
        });
        rows
    }

    fn has_times(&self) -> bool {
        self.rows.values().any(|r| r.durations.count > 0)
    }

    /// The table's head and its lines.
    pub(super) fn lines(&self) -> (String, Vec<String>) {
        let timed = self.has_times();
        let mut head = format!(
            "{:>11} {:>15} {:>9} {:>7} {:>14} {:>6}",
            "submissions", "bytes submitted", "launches", "copies", "bytes copied", "waits"
        );
        if timed {
            head += &format!(" {:>9} {:>9} {:>9} {:>9}", "GPU time", "p50", "p99", "most");
        }
        head = format!("{head}  {}", self.by.name());
        let mut lines = Vec::new();
        for (name, r) in self.sorted() {
            let mut line = format!(
                "{:>11} {:>15} {:>9} {:>7} {:>14} {:>6}",
                r.submissions.count,
                r.submissions.bytes,
                r.launches,
                r.copies.count,
                r.copies.bytes,
                r.waits
            );
            if timed {
                let d = &r.durations;
                for ns in [d.sum_ns, d.quantile_ns(0.5), d.quantile_ns(0.99), d.most_ns] {
                    let shown = match d.count {
                        0 => "?".to_owned(),
                        _ => Nanoseconds(ns).to_string(),
                    };
                    line += &format!(" {shown:>9}");
                }
            }
            lines.push(format!("{line}  {name}"));
        }
        (head, lines)
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.sorted().into_iter().map(|(name, r)| {
            let d = &r.durations;
            let gpu = (d.count > 0).then(|| {
                json!({
                    "timed": d.count, "sum_ns": d.sum_ns, "mean_ns": d.mean_ns(), "least_ns": d.least_ns,
                    "p50_ns": d.quantile_ns(0.5), "p90_ns": d.quantile_ns(0.9), "p99_ns": d.quantile_ns(0.99),
                    "most_ns": d.most_ns,
                })
            });
            json!({
                "name": name, "submissions": r.submissions.count, "bytes": r.submissions.bytes, "launches": r.launches,
                "copies": r.copies.count, "bytes_copied": r.copies.bytes, "waits": r.waits, "gpu": gpu,
            })
        });
        json!({"by": self.by.name(), "rows": rows.collect::<Value>()})
    }
}

/// A kernel's name, or its program's address.
fn kernel(l: &nvcap_decode::decode::event::Launch) -> Option<String> {
    match (l.kernel.as_deref(), l.program) {
        (Some(kernel), _) => Some(kernels::text(kernel, true)),
        (None, program) => program.map(|program| format!("program {program:#x}")),
    }
}

impl Row {
    /// Takes an operation. `is_own`: it is the program's own, and not part of what the driver does on its own account.
    fn take(&mut self, op: &Operation, time: Option<&GpuTime>, is_own: bool) {
        if let Some(duration) = time.and_then(told) {
            self.durations.add(duration.ns);
        }
        match op {
            Operation::Launch(l) => {
                self.launches += u64::from(l.kind != LaunchKind::Companion);
            }
            Operation::Copy(copy) if copy.dst.is_some() && is_own => self.copies.add(copy.bytes),
            Operation::Semaphore(s) => {
                self.waits += u64::from(is_wait(s.action));
            }
            _ => {}
        }
    }
}

/// Tells whether a semaphore operation waits.
pub(super) fn is_wait(action: SemaphoreAction) -> bool {
    match action {
        SemaphoreAction::AcquireEqual
        | SemaphoreAction::AcquireGreaterEqual
        | SemaphoreAction::AcquireAnd
        | SemaphoreAction::AcquireNor => true,
        SemaphoreAction::Release | SemaphoreAction::Reduction | SemaphoreAction::Other(_) => false,
    }
}
