//! Copies: for each kind and size the time that CUDA needs, the means by which it copies, and the time that the means need alone.

use serde::{Deserialize, Serialize};

use super::{
    grouped,
    phases::{Means, Phase, PhaseTotals},
    report, rest_of, table, versions,
    work::Said,
};
use crate::bench::{
    Measured,
    measure::{Series, Way},
    report::size,
};

/// Times of one kind and size.
#[derive(Clone, Debug, Deserialize)]
pub struct Timed {
    /// Kind of copy, such as `h2d_pinned`.
    pub kind: String,
    /// Size of a copy, B.
    pub bytes: u64,
    /// Number of copies that were timed.
    pub runs: u64,
    /// Time until the call returned, ns.
    pub call_ns: f64,
    /// Time until the copy was done, ns.
    pub done_ns: f64,
}

/// Result for one kind and size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Kind of copy, such as `h2d_pinned`.
    pub kind: String,
    /// Size of a copy, B.
    pub bytes: u64,
    /// Means of the copies, each once; empty where the trace does not show them.
    pub means: Vec<Means>,
    /// Number of doorbells a copy.
    pub submissions: f64,
    /// Bytes of pushbuffer a copy.
    pub pushbuffer_bytes: f64,
    /// Time until CUDA's call returned, ns.
    pub call_ns: f64,
    /// Time until the copy was done, ns, by the processor's clock.
    pub done_ns: f64,
    /// Time that the means need for the copy without CUDA, ns: the time between the engine's releases less that of the releases
    /// alone.
    pub engine_ns: Option<f64>,
    /// The share of `done_ns` in which the engine does not work, percent.
    pub rest_percent: Option<f64>,
}

/// Size at which CUDA changes to other means.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Kind of copy, such as `h2d_pinned`.
    pub kind: String,
    /// The largest size before the change.
    pub from: u64,
    /// Means of copies of size `from`.
    pub from_means: Vec<Means>,
    /// The next larger size that was measured, after the change.
    pub to: u64,
    /// Means of copies of size `to`.
    pub to_means: Vec<Means>,
}

/// The study.
#[derive(Clone, Debug, Serialize)]
pub struct Study {
    /// CUDA's version, 13000 for 13.0.
    pub cuda: u32,
    /// Cost of a call of the program that does nothing, ns. It is a part of every `call_ns`, and twice a part of every `done_ns`.
    pub empty_call_ns: f64,
    /// Rows of all kinds and sizes, those of a kind together, in the order of the measurement.
    pub rows: Vec<Row>,
    /// Changes of CUDA's means between neighbouring sizes of a kind.
    pub changes: Vec<Change>,
    /// Account of what is missing in the trace, in words.
    pub ledger: String,
}

/// Joins the times that the program reports, the trace of it, and the measurement without CUDA.
pub fn study(said: &Said<Timed>, seen: &PhaseTotals, raw: &Measured, ledger: String) -> Study {
    let none = Phase::default();
    let rows: Vec<Row> = said
        .rows
        .iter()
        .map(|timed| {
            let phase = seen.phases.get(&format!("{}_{}", timed.kind, timed.bytes));
            let phase = phase.unwrap_or(&none);
            let runs = timed.runs.max(1) as f64;
            let means: Vec<Means> = phase.moved.keys().cloned().collect();
            let engine_ns = match means.as_slice() {
                [one] => alone(raw, one, &timed.kind, timed.bytes),
                _ => None,
            };
            Row {
                kind: timed.kind.clone(),
                bytes: timed.bytes,
                submissions: phase.submissions as f64 / runs,
                pushbuffer_bytes: phase.bytes as f64 / runs,
                means,
                call_ns: timed.call_ns,
                done_ns: timed.done_ns,
                rest_percent: engine_ns.and_then(|ns| rest_of(ns, timed.done_ns)),
                engine_ns,
            }
        })
        .collect();
    Study {
        cuda: said.cuda,
        empty_call_ns: said.empty_call_ns,
        changes: changes(&rows),
        rows,
        ledger,
    }
}

/// Returns the time that these means need for this many bytes without CUDA, ns.
fn alone(raw: &Measured, means: &Means, kind: &str, bytes: u64) -> Option<f64> {
    let way = match means {
        Means::Inline => Way::Inline,
        Means::Engine(_) if kind.starts_with("h2d") => Way::H2D,
        Means::Engine(_) if kind.starts_with("d2h") => Way::D2H,
        Means::Engine(_) => Way::D2D,
        Means::Kernel => return None,
    };
    let is_it = |s: &&Series| match means {
        Means::Engine(name) => s.way == way && s.engine == *name,
        _ => s.way == way,
    };
    let series = raw.transfers.iter().find(is_it)?;
    let point = series.points.iter().find(|p| p.bytes == bytes)?;
    Some((point.times.ns - series.nothing.ns).max(0.0))
}

fn changes(rows: &[Row]) -> Vec<Change> {
    let pairs = rows.iter().zip(rows.iter().skip(1));
    let differ = |(a, b): &(&Row, &Row)| a.kind == b.kind && a.means != b.means;
    let change = |(a, b): (&Row, &Row)| Change {
        kind: a.kind.clone(),
        from: a.bytes,
        from_means: a.means.clone(),
        to: b.bytes,
        to_means: b.means.clone(),
    };
    pairs.filter(differ).map(change).collect()
}

/// Names the means in words.
pub(crate) fn by(means: &[Means]) -> String {
    let all: Vec<String> = means.iter().map(ToString::to_string).collect();
    match all.is_empty() {
        true => "?".to_owned(),
        false => all.join(" + "),
    }
}

/// Headings of the table.
pub(crate) const HEAD: [&str; 8] = [
    "bytes",
    "by",
    "doorbells",
    "pushbuffer B",
    "call ns",
    "done ns",
    "engine ns",
    "not engine",
];

impl Row {
    pub(crate) fn cells(&self) -> Vec<String> {
        vec![
            size(self.bytes),
            by(&self.means),
            format!("{:.1}", self.submissions),
            grouped(self.pushbuffer_bytes),
            grouped(self.call_ns),
            grouped(self.done_ns),
            self.engine_ns.map_or_else(String::new, grouped),
            self.rest_percent
                .map_or_else(String::new, |p| format!("{p:.2} %")),
        ]
    }
}

impl Change {
    /// Returns a line of text: the kind, and each means with its size, B.
    pub fn line(&self) -> String {
        format!(
            "{}: {} up to {} B, {} from {} B",
            self.kind,
            by(&self.from_means),
            self.from,
            by(&self.to_means),
            self.to
        )
    }
}

impl Study {
    /// Returns the kinds of copies, in their order.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (&str, &[Row])> {
        self.rows
            .chunk_by(|a, b| a.kind == b.kind)
            .filter_map(|rows| Some((rows.first()?.kind.as_str(), rows)))
    }

    /// Formats the tables.
    pub fn text(&self) -> String {
        let tables = self.kinds().map(|(kind, rows)| {
            let rows: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
            (kind.to_owned(), table(&HEAD, &rows))
        });
        let mut sections: Vec<_> = tables.collect();
        let changes = self.changes.iter().map(|change| change.line() + "\n");
        let head = "where CUDA changes its means".to_owned();
        sections.push((head, changes.collect()));
        report(
            versions(self.cuda, self.empty_call_ns),
            &sections,
            &self.ledger,
        )
    }
}
