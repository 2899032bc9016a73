//! The page: the parts of `page/`, put together with the data.
//!
//! Names in a recording are hostile: they stand in JSON without any `<`, `>` or `&`, and the page shows them as text alone. Its policy
//! forbids every connection, and every script and style but those with the nonce, which is new for each page.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::mem;

use serde_json::{Map, Value, json};

use crate::output::ledger;
use nvcap_decode::ledger::Ledger;

use super::{Columns, Report, samples, shares};

pub(super) const PAGE: &str = include_str!("page/page.html");
pub(super) const STYLE: &str = concat!(
    include_str!("page/uplot/uPlot.min.css"),
    "\n",
    include_str!("page/style.css")
);
/// Scripts of the page, in the order in which they need each other.
pub(super) const SCRIPT: &str = concat!(
    "/*\n",
    include_str!("page/uplot/LICENSE"),
    "\n*/\n",
    include_str!("page/uplot/uPlot.iife.min.js"),
    "\n",
    include_str!("page/format.js"),
    include_str!("page/data.js"),
    include_str!("page/lanes.js"),
    include_str!("page/timeline.js"),
    include_str!("page/input.js"),
    include_str!("page/gpu.js"),
    include_str!("page/plots.js"),
    include_str!("page/table.js"),
    include_str!("page/ranks.js"),
    include_str!("page/app.js"),
);

/// Returns a word that nobody who made a recording could know.
fn nonce() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// Appends JSON that neither ends nor begins an element of the page: the characters that could stand in its strings alone, and are escaped there.
fn data(out: &mut Vec<u8>, value: &Value) {
    let mut text = Vec::new();
    crate::output::json::write(&mut text, value);
    for byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"\\u003c"),
            b'>' => out.extend_from_slice(b"\\u003e"),
            b'&' => out.extend_from_slice(b"\\u0026"),
            _ => out.push(byte),
        }
    }
}

fn columns(of: Columns) -> Value {
    let mut all = Map::new();
    for (name, column) in [
        ("channel", of.channel),
        ("begin", of.begin),
        ("duration", of.duration),
        ("behind", of.behind),
        ("kind", of.kind),
        ("name", of.name),
        ("detail", of.detail),
        ("bytes", of.bytes),
        ("serial", of.serial),
        ("thread", of.thread),
        ("phase", of.phase),
        ("entry_channel", of.entry_channel),
        ("entry_there", of.entry_there),
        ("entry_begin", of.entry_begin),
        ("entry_duration", of.entry_duration),
    ] {
        all.insert(name.to_owned(), column.finish().into());
    }
    Value::Object(all)
}

impl Report {
    /// Puts the page into the output, as one object.
    pub(super) fn write(&mut self, ledger: &Ledger) {
        let value = self.value(ledger);
        let nonce = nonce();
        let out = self.out.object();
        // The parts have no {{...}} but these: a test looks.
        for part in PAGE.split("{{") {
            let (mark, text) = part.split_once("}}").unwrap_or(("", part));
            match mark {
                "nonce" => out.extend_from_slice(nonce.as_bytes()),
                "style" => out.extend_from_slice(STYLE.as_bytes()),
                "script" => out.extend_from_slice(SCRIPT.as_bytes()),
                "data" => data(out, &value),
                _ => {}
            }
            out.extend_from_slice(text.as_bytes());
        }
    }

    /// All that the page shows.
    fn value(&mut self, ledger: &Ledger) -> Value {
        let c = self.counts;
        let mut of_ledger = Vec::new();
        ledger::json(&mut of_ledger, ledger);
        let of_ledger: Value = serde_json::from_slice(&of_ledger).unwrap_or_default();
        let phases = self.phases.iter();
        let phases = phases.map(|p| json!([p.name, p.first, p.last]));
        let cut = self.cut.map(|time| time.saturating_sub(1));
        let mut value = json!({
            "program": concat!("nvcap ", env!("CARGO_PKG_VERSION")),
            "file": self.options.file, "filtered": self.options.filtered, "all": self.options.all, "trace": self.options.trace,
            "origin_ns": self.origin, "limit": self.options.limit, "cut_ns": cut,
            "submissions": c.submissions, "submitted": c.submitted, "operations": c.operations, "mechanics": c.mechanics,
            "shown": c.shown, "moved": c.moved, "entries": c.entries, "entries_shown": c.entries_shown,
            "names": self.names.json(), "full_names": self.names.longer_json(), "details": self.details.json(), "threads": self.threads.json(),
            "phase_names": self.phase_names.json(), "phases": phases.collect::<Value>(), "more_phases": c.phases,
            "channels": self.channels(), "losses": self.losses.json(), "faults": self.faults.json(),
            "samples": samples::value(self.account.samples()), "shares": shares::value(&self.shares),
            "kernels": self.kernels.json(), "ledger": of_ledger, "exit_status": ledger.exit_status(),
            "missing": ledger::missing(ledger), "verdict": ledger::verdict(ledger),
            "columns": columns(mem::take(&mut self.columns)),
        });
        if self.account.is_asked() {
            value["gpu_time"] = self.account.json();
            value["gpu_time_notes"] = self.account.notes().into();
        }
        let ranks = self.ranks.as_ref().map(|(gathered, _)| gathered.analysis());
        if let Some(ranks) = ranks.filter(|r| r.rank_count() > 1) {
            value["ranks"] = ranks.json();
        }
        for (name, sums) in self.profile.json() {
            value[name] = sums;
        }
        value
    }
}
