//! Statistics (`-s`): sums of what was submitted, as `strace -c` makes them of system calls.

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};

use nvcap_decode::decode::event::{
    Body, Context, Engine, Event, LaunchKind, Operation, PartOf, SemaphoreAction,
};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, Record};
use nvcap_decode::wire::hash::NumberMap;

mod by;
mod graphs;
mod histogram;
mod kernels;
mod moves;
mod operations;
mod profile;
mod sum;
mod thresholds;

pub use by::By;
pub(crate) use kernels::Kernels;
use operations::Operations;
pub(crate) use profile::Profile;
use sum::Sum;

use super::gpu_time::Account;
use crate::output::units::{Bytes, Nanoseconds};

use super::method::{class_name, method_name};
use super::names::{EngineName, direction, known_engine};
use super::names::{known_pid, pid_name, token_name};
use super::plural::{plural, plural_of};
use super::style::{Formatter, Plain, Role};
use super::writer::Output;
use super::{Detail, Sink, Summary};

/// Form in which the statistics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables.
    Text {
        /// True for colour.
        color: bool,
    },
    /// One JSON object of type `stats`.
    Json,
}

#[derive(Clone, Debug, Default)]
struct ChannelCounts {
    token: Option<u32>,
    pid: u32,
    engine: Engine,
    submissions: Sum,
    operations: u64,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
}

impl ChannelCounts {
    fn saw(&mut self, time: Option<u64>) {
        let Some(time) = time else { return };
        self.first_ns = Some(self.first_ns.map_or(time, |t| t.min(time)));
        self.last_ns = self.last_ns.max(Some(time));
    }
}

fn in_order(channels: &NumberMap<ChannelId, ChannelCounts>) -> BTreeMap<ChannelId, &ChannelCounts> {
    channels.iter().map(|(id, c)| (*id, c)).collect()
}

/// Lines of text, each with its role.
#[derive(Default)]
struct Lines(Vec<(Option<Role>, String)>);

impl Lines {
    /// Adds the head of a table, or its sums.
    fn head(&mut self, text: String) {
        self.0.push((Some(Role::Operation), text));
    }

    fn row(&mut self, text: String) {
        self.0.push((None, text));
    }

    fn write(self, f: &mut Formatter<'_>) {
        for (role, text) in self.0 {
            f.line("", 0, role);
            f.text(format_args!("{text}"));
            f.end();
        }
    }
}

/// The statistics sink. It shows nothing until the end.
pub struct Stats {
    out: Output,
    form: Form,
    detail: Detail,
    operations: Operations,
    channels: NumberMap<ChannelId, ChannelCounts>,
    kernels: Kernels,
    gpu_time: Account,
    /// Output of `nvcap stats` beyond that of `-s`; `None` for `-s`.
    profile: Option<Profile>,
    phases: BTreeMap<String, (Sum, u64)>,
    methods: NumberMap<(u32, u16), u64>,
    method_writes: u64,
    stops: u64,
    /// Counts of the decoder; `None` with a filter, because the decoder also counts what the filter holds back.
    summary: Option<Summary>,
    filtered: bool,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
}

impl Stats {
    /// Writes to `out` at the end. With [`Detail::Methods`] method writes are shown too. `filtered` says that not
    /// all events come.
    #[must_use]
    pub fn new(out: Output, form: Form, detail: Detail, filtered: bool) -> Self {
        Self {
            out,
            form,
            detail: detail.min(Detail::Methods),
            operations: Operations::default(),
            channels: NumberMap::default(),
            kernels: Kernels::default(),
            gpu_time: Account::default(),
            profile: None,
            phases: BTreeMap::new(),
            methods: NumberMap::default(),
            method_writes: 0,
            stops: 0,
            summary: None,
            filtered,
            first_ns: None,
            last_ns: None,
        }
    }

    /// Adds what `nvcap stats` shows: moves, graphs, waits and histograms, or with `by` (`--by`) that one table instead.
    pub fn with_profile(self, by: Option<By>) -> Self {
        Self {
            profile: Some(Profile::new(by)),
            ..self
        }
    }

    fn channel(&mut self, c: &Context) -> &mut ChannelCounts {
        let channel = self
            .channels
            .entry(c.channel)
            .or_insert_with(|| ChannelCounts {
                pid: c.at.pid,
                ..ChannelCounts::default()
            });
        channel.saw(c.at.time());
        if channel.token.is_none() {
            channel.token = c.token;
        }
        channel
    }

    /// The time from the first submission to the last, ns; none where their times are not known.
    fn span(&self) -> Option<u64> {
        Some(self.last_ns?.saturating_sub(self.first_ns?))
    }

    /// Returns the time and the rate of these bytes: `3.50 s, 11.4 MiB/s`.
    fn time_and_rate(&self, bytes: u64) -> String {
        let Some(span) = self.span() else {
            return "? s, ? B/s".to_owned();
        };
        let time = Nanoseconds(span);
        match span {
            0 => format!("{time}, ? B/s"),
            _ => format!("{time}, {}/s", Bytes(bytes as f64 * 1e9 / span as f64)),
        }
    }

    /// Method writes, most frequent first.
    fn frequent_methods(&self) -> Vec<((u32, u16), u64)> {
        let mut methods: Vec<_> = match &self.summary {
            Some(s) => s.methods.iter().map(|&(c, m, n)| ((c, m), n)).collect(),
            None => self.methods.iter().map(|(k, n)| (*k, *n)).collect(),
        };
        methods.sort_by_key(|(k, n)| (u64::MAX - n, *k));
        methods
    }

    /// Writes kernels and moves of bytes, then all operations by channel and phase.
    fn text(&mut self, color: bool) {
        let mut lines = Lines::default();
        self.kernel_lines(&mut lines);
        std::mem::take(&mut lines).write(&mut Formatter::new(self.out.object(), color));
        if let Some(profile) = &mut self.profile {
            profile.moves_text(&mut Formatter::new(self.out.object(), color));
        }
        let all = self.operation_lines(&mut lines);
        self.channel_lines(&mut lines, all);
        self.phase_lines(&mut lines);
        if self.detail >= Detail::Methods {
            self.method_lines(&mut lines);
        }
        if self.stops > 0 {
            let entries = plural_of(self.stops, "entry", "entries");
            let their = if self.stops == 1 { "its" } else { "their" };
            let alarm = format!("{entries} could not be decoded to {their} end");
            lines.0.push((Some(Role::Alarm), alarm));
        }
        lines.row(String::new());
        lines.write(&mut Formatter::new(self.out.object(), color));
    }

    /// Adds the table of operations. Returns the number of them all.
    fn operation_lines(&self, lines: &mut Lines) -> u64 {
        let operations = self.operations.by_kind();
        let all: u64 = operations.values().map(|s| s.count).sum();
        lines.head(format!(
            "{:>10} {:>7} {:>16}  operation",
            "count", "%", "bytes moved"
        ));
        let mut rows: Vec<_> = operations.into_iter().collect();
        rows.sort_by_key(|(name, s)| (u64::MAX - s.count, *name));
        for ((op, of), s) in rows {
            let share = 100.0 * s.count as f64 / all.max(1) as f64;
            let name = format!("{op} {of}");
            let (count, bytes, name) = (s.count, s.bytes, name.trim_end());
            lines.row(format!("{count:>10} {share:>7.2} {bytes:>16}  {name}"));
        }
        lines.head(format!("{all:>10} {:>7} {:>16}  total", "", ""));
        all
    }

    /// Adds the table of channels; `operations` are those of all.
    fn channel_lines(&self, lines: &mut Lines, operations: u64) {
        lines.row(String::new());
        lines.head(format!(
            "{:>11} {:>16} {:>10}  {:<7} {:<6} process",
            "submissions", "bytes submitted", "operations", "token", "engine"
        ));
        let (mut submissions, mut submitted) = (0, 0u64);
        for c in in_order(&self.channels).into_values() {
            let token = token_name(c.token);
            lines.row(format!(
                "{:>11} {:>16} {:>10}  {token:<7} {:<6} {}",
                c.submissions.count,
                c.submissions.bytes,
                c.operations,
                EngineName(c.engine),
                pid_name(c.pid)
            ));
            submissions += c.submissions.count;
            submitted = submitted.saturating_add(c.submissions.bytes);
        }
        let span = self.time_and_rate(submitted);
        let writes = match self.method_writes {
            0 => String::new(),
            n => format!(", {}", plural(n, "method write")),
        };
        lines.head(format!(
            "{submissions:>11} {submitted:>16} {operations:>10}  total in {span} of command stream{writes}"
        ));
    }

    fn kernel_lines(&self, lines: &mut Lines) {
        let kernels = self.kernels.lines();
        if kernels.is_empty() {
            return;
        }
        lines.head(format!("{:>10} {:>7}  kernel", "launches", "%"));
        for kernel in kernels {
            lines.row(Plain(&kernel).to_string());
        }
        lines.row(String::new());
    }

    fn phase_lines(&self, lines: &mut Lines) {
        if self.phases.is_empty() {
            return;
        }
        lines.row(String::new());
        lines.head(format!(
            "{:>11} {:>16} {:>10}  phase",
            "submissions", "bytes submitted", "operations"
        ));
        for (name, (s, operations)) in &self.phases {
            let (count, bytes, name) = (s.count, s.bytes, Plain(name));
            lines.row(format!("{count:>11} {bytes:>16} {operations:>10}  {name}"));
        }
    }

    fn method_lines(&self, lines: &mut Lines) {
        let all = self.method_writes;
        lines.row(String::new());
        lines.head(format!("{:>10} {:>7}  method", "writes", "%"));
        for ((class, method), n) in self.frequent_methods() {
            let share = 100.0 * n as f64 / all.max(1) as f64;
            let name = method_name(class, method).unwrap_or_default();
            let class =
                class_name(class).map_or_else(|| format!("{class:#06x}"), ToOwned::to_owned);
            lines.row(format!(
                "{n:>10} {share:>7.2}  {class} {method:#06x} {name}"
            ));
        }
        lines.head(format!("{all:>10} {:>7}  total", ""));
    }

    fn json(&mut self) {
        let operations: Vec<Value> = self
            .operations
            .by_kind()
            .iter()
            .map(|((op, of), s)| json!({"op": op, "of": of, "count": s.count, "bytes": s.bytes}))
            .collect();
        let channels: Vec<Value> = in_order(&self.channels)
            .iter()
            .map(|(id, c)| {
                json!({
                    "channel": id.0, "token": c.token, "pid": known_pid(c.pid), "engine": known_engine(c.engine),
                    "submissions": c.submissions.count, "bytes": c.submissions.bytes, "operations": c.operations,
                    "first_ns": c.first_ns, "last_ns": c.last_ns,
                })
            })
            .collect();
        let phases: serde_json::Map<String, Value> = self
            .phases
            .iter()
            .map(|(name, (s, n))| {
                let sums = json!({"submissions": s.count, "bytes": s.bytes, "operations": n});
                (name.clone(), sums)
            })
            .collect();
        let methods: Vec<Value> = self
            .frequent_methods()
            .into_iter()
            .map(|((class, method), n)| {
                json!({"class": class, "method": method, "name": method_name(class, method), "writes": n})
            })
            .collect();
        let mut object = json!({
            "type": "stats", "time_ns": self.last_ns, "pid": null, "tid": null, "token": null,
            "first_ns": self.first_ns, "last_ns": self.last_ns,
            "operations": operations, "channels": channels, "phases": phases, "kernels": self.kernels.json(), "stops": self.stops,
        });
        if self.summary.is_some() || self.detail >= Detail::Methods {
            object["method_writes"] = self.method_writes.into();
        }
        if self.detail >= Detail::Methods {
            object["methods"] = methods.into();
        }
        if self.gpu_time.is_asked() {
            self.gpu_time.finish();
            object["gpu_time"] = self.gpu_time.json();
        }
        for (name, value) in self.profile.iter_mut().flat_map(Profile::json) {
            object[name] = value;
        }
        let out = self.out.object();
        super::json::write(out, &object);
        out.push(b'\n');
    }
}

/// The two words under which an operation is counted, and how many bytes it moves.
pub(crate) fn class_of(op: &Operation) -> (&'static str, &'static str, u64) {
    match op {
        Operation::Launch(l) => {
            let kind = match l.kind {
                LaunchKind::User => "",
                LaunchKind::Companion => "(driver: companion)",
                LaunchKind::DriverMemset => "(driver: memset)",
                LaunchKind::DriverCopy => "(driver: copy)",
                LaunchKind::DriverGraph => "(driver: graph)",
                LaunchKind::Driver => "(driver)",
                LaunchKind::Unresolved => "(QMD not seen)",
            };
            let bytes = l.moves.and_then(|m| m.bytes).unwrap_or(0);
            ("launch", kind, bytes)
        }
        Operation::Graph(g) => ("graph", "replay", g.bytes),
        Operation::Copy(c) => match (c.src, c.direction) {
            (None, _) if c.pattern.is_some() => ("copy", "fill", c.bytes),
            (_, Some(d)) => ("copy", direction(d), c.bytes),
            (_, None) => ("copy", "", c.bytes),
        },
        Operation::Load(l) => match l.part_of {
            PartOf::Context => ("load", "of a context", 0),
            PartOf::Module => ("load", "of a module", 0),
        },
        Operation::Inline(i) => {
            let content = match i.content {
                Some(nvcap_decode::decode::event::InlineContent::Data) if i.fill.is_some() => {
                    "memset"
                }
                Some(nvcap_decode::decode::event::InlineContent::Data) => "data",
                Some(nvcap_decode::decode::event::InlineContent::Code) => "code",
                Some(nvcap_decode::decode::event::InlineContent::ConstantBank) => "constants",
                Some(nvcap_decode::decode::event::InlineContent::Qmd) => "qmd",
                Some(nvcap_decode::decode::event::InlineContent::QmdPart) => "part of a qmd",
                Some(nvcap_decode::decode::event::InlineContent::Semaphore) => "semaphore",
                Some(nvcap_decode::decode::event::InlineContent::TextureHeader) => "texture header",
                None => "",
            };
            ("inline", content, i.bytes)
        }
        Operation::Semaphore(s) => {
            let action = match s.action {
                SemaphoreAction::Release => "release",
                SemaphoreAction::AcquireEqual
                | SemaphoreAction::AcquireGreaterEqual
                | SemaphoreAction::AcquireAnd
                | SemaphoreAction::AcquireNor => "acquire",
                SemaphoreAction::Reduction => "reduction",
                SemaphoreAction::Other(_) => "other",
            };
            ("semaphore", action, 0)
        }
        Operation::Barrier(b) => ("barrier", b.what, 0),
        Operation::Bind(_) => ("bind", "", 0),
        Operation::Draw(d) => ("draw", d.what, 0),
        Operation::Video(v) => ("video", v.what, 0),
        Operation::Host(h) => ("host", h.what, 0),
    }
}

impl Sink for Stats {
    fn detail(&self) -> Option<Detail> {
        // Without a filter the decoder's own counts of method writes are used, which cost nothing.
        Some(if self.filtered {
            self.detail
        } else {
            Detail::Operations
        })
    }

    fn passed_over(&mut self, event: &Event<'_>) {
        self.kernels.event(event);
        self.gpu_time.passed_over(event);
        if let Some(profile) = &mut self.profile {
            profile.passed_over(event);
        }
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let c = event.context;
        self.kernels.event(event);
        self.gpu_time.event(event);
        if let Some(profile) = &mut self.profile {
            profile.event(event);
        }
        match &event.body {
            Body::Method(m) => {
                self.method_writes += 1;
                *self.methods.entry((m.class, m.method)).or_default() += 1;
            }
            Body::Submission(s) => {
                if let Some(time) = c.at.time() {
                    self.first_ns = Some(self.first_ns.map_or(time, |t| t.min(time)));
                    self.last_ns = self.last_ns.max(Some(time));
                }
                let channel = self.channel(c);
                channel.submissions.add(s.bytes);
                if channel.engine == Engine::Unknown {
                    channel.engine = c.engine;
                }
                if let Some(phase) = &c.phase {
                    match self.phases.get_mut(&**phase) {
                        Some((sum, _)) => sum.add(s.bytes),
                        None => {
                            let first = Sum {
                                count: 1,
                                bytes: s.bytes,
                            };
                            self.phases.insert(phase.to_string(), (first, 0));
                        }
                    }
                }
            }
            Body::Operation(op) => {
                let (name, of, bytes) = class_of(op);
                let (name, of) = match (op, c.part_of(event.entry)) {
                    (Operation::Load(_), _) | (_, None) => (name, of),
                    (_, Some(PartOf::Context)) => ("for a context:", name),
                    (_, Some(PartOf::Module)) => ("for a module:", name),
                };
                if let Operation::Launch(launch) = op {
                    self.kernels.add(c.at, launch);
                }
                self.operations.add((name, of), bytes);
                self.channel(c).operations += 1;
                if let Some(phase) = &c.phase {
                    match self.phases.get_mut(&**phase) {
                        Some((_, operations)) => *operations += 1,
                        None => {
                            self.phases.insert(phase.to_string(), (Sum::default(), 1));
                        }
                    }
                }
            }
            Body::Stop(_) => self.stops += 1,
            Body::Entry(_) | Body::Chip(_) => {}
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.gpu_time.record(record);
        if let Record::Kernel(kernel) = record {
            self.kernels.learn(kernel);
        }
        Ok(())
    }

    fn shows_summary(&self) -> bool {
        true
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn summary(&mut self, summary: &Summary) {
        self.gpu_time.summary(summary);
        if !self.filtered {
            self.method_writes = summary.counts.methods;
            self.summary = Some(summary.clone());
        }
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        // What was learnt behind a channel's last submission.
        for (id, channel) in &mut self.channels {
            let known = ledger.channel(*id);
            channel.token = channel.token.or(known.and_then(|k| k.token));
            if channel.engine == Engine::Unknown {
                channel.engine = known.map_or(Engine::Unknown, |k| k.engine);
            }
        }
        if let Some(profile) = &mut self.profile {
            profile.finish(ledger);
        }
        match self.form {
            Form::Text { color } => {
                let one_table = self.profile.as_ref().is_some_and(Profile::is_one_table);
                if !one_table {
                    self.text(color);
                }
                if let Some(profile) = &mut self.profile {
                    profile.text(&mut Formatter::new(self.out.object(), color));
                }
                if self.gpu_time.is_asked() && !one_table {
                    self.gpu_time.finish();
                    let width = self.out.width();
                    self.gpu_time.text(self.out.object(), color, width);
                }
                self.out.end_object()?;
                super::ledger::text(self.out.object(), ledger, color);
            }
            Form::Json => {
                self.json();
                self.out.end_object()?;
                super::ledger::json(self.out.object(), ledger);
            }
        }
        self.out.end_object()?;
        self.out.flush()
    }
}
