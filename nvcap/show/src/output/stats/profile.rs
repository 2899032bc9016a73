//! Output of `nvcap stats` beyond that of `-s`: how bytes were moved, graphs, what a launch costs, waits, histograms, and `--by`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::output::gpu_time::told;
use crate::output::plural::{plural, plural_of};
use crate::output::releases::Releases;
use crate::output::style::{Formatter, Plain, Role};
use crate::output::units::{Bytes, Nanoseconds};
use nvcap_decode::decode::event::{Body, Context, Event, LaunchKind, Operation};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::ChannelId;
use nvcap_decode::wire::GpuVa;

use super::by::{By, Table, is_wait};
use super::graphs::Graphs;
use super::histogram::Histogram;
use super::moves::Moves;
use super::thresholds;

/// Rows of a table in text.
const SHOWN: usize = 40;
/// The most semaphores whose waits are kept apart.
const MOST_WAITS: usize = 1 << 16;

/// The channel that waits, the one that releases (where a release was seen), process and address of the semaphore.
type Waited = (ChannelId, Option<ChannelId>, u32, GpuVa);

/// Launches of the program's kernels that are not nodes of graphs, and the submissions that they were in.
#[derive(Clone, Copy, Debug, Default)]
struct Launches {
    launches: u64,
    submissions: u64,
    bytes: u64,
    /// Launches in the submission under way.
    current: u64,
    current_bytes: u64,
}

impl Launches {
    fn submission(&mut self, bytes: u64) {
        if self.current > 0 {
            self.launches += self.current;
            self.submissions += 1;
            self.bytes = self.bytes.saturating_add(self.current_bytes);
        }
        (self.current, self.current_bytes) = (0, bytes);
    }
}

/// Output of `nvcap stats` beyond that of `-s`.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    table: Option<Table>,
    moves: Moves,
    graphs: Graphs,
    launches: Launches,
    releases: Releases,
    waits: BTreeMap<Waited, u64>,
    other_waits: u64,
    copied: Histogram,
    submitted: Histogram,
    apart: Histogram,
    worked: Histogram,
    last_ns: Option<u64>,
    timed: Option<(u64, u32)>,
}

impl Profile {
    /// Begins a profile; with `by`, it is one table of its rows instead of all the others.
    pub(crate) fn new(by: Option<By>) -> Self {
        Self {
            table: by.map(Table::new),
            ..Self::default()
        }
    }

    /// Tells whether the table of `--by` is shown instead of all others.
    pub(super) fn is_one_table(&self) -> bool {
        self.table.is_some()
    }

    /// Takes note of an event that a filter did not let through.
    pub(crate) fn passed_over(&mut self, event: &Event<'_>) {
        self.releases.passed_over(event);
    }

    /// Takes the next event.
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        let c = event.context;
        match &event.body {
            Body::Submission(s) => {
                if let Some(table) = &mut self.table {
                    return table.submission(c, s.bytes);
                }
                self.graphs.submission(c.serial, s.bytes);
                self.launches.submission(s.bytes);
                self.submitted.add(s.bytes);
                // Another's time is that of a look, which says nothing of the doorbell.
                let at_doorbell = !c.how.is_after() && !c.late;
                if let Some(now) = c.at.time().filter(|_| at_doorbell) {
                    if let Some(gap) = self.last_ns.and_then(|last| now.checked_sub(last)) {
                        self.apart.add(gap);
                    }
                    self.last_ns = self.last_ns.max(Some(now));
                } else {
                    self.last_ns = None;
                }
            }
            Body::Operation(op) => match &mut self.table {
                Some(table) => table.operation(c, event.entry, op),
                None => self.operation(c, event.entry, op),
            },
            _ => {}
        }
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &Operation) {
        self.moves.add(c, entry, op);
        self.graphs.operation(c.serial, op);
        if crate::output::names::is_timed(op)
            && self.timed.replace((c.serial, entry)) != Some((c.serial, entry))
            && let Some(duration) = c.gpu_time_of(entry).and_then(told)
        {
            self.worked.add(duration.ns);
        }
        match op {
            Operation::Launch(l) if l.kind == LaunchKind::User && l.replay.is_none() => {
                self.launches.current += 1;
            }
            // Without those of the driver, as in the table of what was moved.
            Operation::Copy(copy) if copy.dst.is_some() && c.part_of(entry).is_none() => {
                self.copied.add(copy.bytes);
            }
            Operation::Semaphore(s) if is_wait(s.action) => {
                let by = self.releases.channel(c, s.address);
                let waited = (c.channel, by, c.at.pid, s.address);
                if self.waits.len() >= MOST_WAITS && !self.waits.contains_key(&waited) {
                    self.other_waits += 1;
                } else {
                    *self.waits.entry(waited).or_default() += 1;
                }
            }
            _ => {}
        }
        self.releases.note(c, op);
    }

    /// Counts the last submission, and sorts copies into staged and direct ones.
    pub(crate) fn finish(&mut self, ledger: &Ledger) {
        if let Some(table) = &mut self.table {
            table.finish(ledger);
        }
        self.graphs.submission(u64::MAX, 0);
        self.launches.submission(0);
        self.moves.finish();
    }

    /// Writes how bytes were moved.
    pub(super) fn moves_text(&mut self, f: &mut Formatter<'_>) {
        self.moved(&mut Tables(f));
    }

    /// Writes the table of `--by`, or all but [`moves_text`](Self::moves_text).
    pub(super) fn text(&mut self, f: &mut Formatter<'_>) {
        let mut tables = Tables(f);
        if let Some(table) = &self.table {
            let (head, lines) = table.lines();
            return tables.put(&head, &lines);
        }
        if let Some((head, lines)) = self.graphs.lines(SHOWN) {
            tables.put(&head, &lines);
        }
        tables.put("what a launch costs", &self.costs());
        self.waited(&mut tables);
        let bytes = |n: u64| match Bytes(n as f64).to_string() {
            // Bounds are powers of two: `.0` says nothing.
            text if n < 1 << 50 => text.replace(".0 ", " "),
            text => text,
        };
        let time = |n: u64| Nanoseconds(n).to_string();
        tables.put("sizes of copies by copy engines", &self.copied.lines(bytes));
        tables.put("bytes of submissions", &self.submitted.lines(bytes));
        tables.put("times between doorbells", &self.apart.lines(time));
        tables.put("times on the GPU", &self.worked.lines(time));
    }

    fn moved(&mut self, tables: &mut Tables<'_, '_>) {
        let mut lines = Vec::new();
        let found = thresholds::of(self.moves.finish());
        let rows = self.moves.finish();
        let in_series = rows.keys().any(|(series, ..)| series.is_some());
        let size = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        for ((series, what, how), tally) in rows.iter().take(SHOWN) {
            let mut line = format!(
                "{:>10} {:>16} {:>12} {:>12}  {what:<7} {}",
                tally.count,
                tally.bytes,
                size(tally.least()),
                size(tally.most()),
                how
            );
            if let Some(piece) = tally.piece {
                line += &format!(" in pieces of {piece} B");
            }
            if tally.unknown > 0 {
                line += &format!(" ({} of unknown size)", tally.unknown);
            }
            match series {
                Some(series) => line += &format!("  {series}"),
                None if in_series => line += "  (outside of phases)",
                None => {}
            }
            lines.push(line);
        }
        if rows.len() > SHOWN {
            lines.push(format!(
                "{:>10} {} more rows (--json has all)",
                "",
                rows.len() - SHOWN
            ));
        }
        if self.moves.unsorted() > 0 {
            lines.push(format!(
                "{} copies more than are looked at for staging count as not staged",
                self.moves.unsorted()
            ));
        }
        let head = format!(
            "{:>10} {:>16} {:>12} {:>12}  how bytes were moved",
            "count", "bytes moved", "smallest", "largest"
        );
        tables.put(&head, &lines);
        let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
        tables.put("thresholds that these sizes show", &lines);
    }

    fn costs(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let l = self.launches;
        let each = |n: u64, of: u64| n as f64 / of.max(1) as f64;
        if l.launches > 0 {
            lines.push(format!(
                "{} one by one in {}, {} B: {:.2} doorbells and {:.0} B a launch",
                plural_of(l.launches, "launch", "launches"),
                plural(l.submissions, "submission"),
                l.bytes,
                each(l.submissions, l.launches),
                each(l.bytes, l.launches)
            ));
        }
        let [replays, nodes, bytes, doorbells] = self.graphs.all;
        if replays > 0 {
            lines.push(format!(
                "{} in {}, {}, {bytes} B: {:.3} doorbells and {:.1} B a node",
                plural(nodes, "node"),
                plural(replays, "replay"),
                plural(doorbells, "submission"),
                each(doorbells, nodes),
                each(bytes, nodes)
            ));
        }
        lines
    }

    fn waited(&self, tables: &mut Tables<'_, '_>) {
        let lines: Vec<String> = self
            .most_waited()
            .into_iter()
            .take(SHOWN)
            .map(|((channel, by, _, address), n)| {
                let by = match by {
                    Some(by) if by == channel => "a release of its own".to_owned(),
                    Some(by) => format!("ch{}", by.0),
                    None => "a release that was not seen before".to_owned(),
                };
                format!("{n:>10}  ch{:<4} {by}, at {address:#x}", channel.0)
            })
            .collect();
        let head = format!("{:>10}  {:<6} for", "waits", "of");
        tables.put(&head, &lines);
    }

    fn most_waited(&self) -> Vec<(Waited, u64)> {
        let mut waits: Vec<_> = self.waits.iter().map(|(w, n)| (*w, *n)).collect();
        waits.sort_by_key(|(w, n)| (std::cmp::Reverse(*n), *w));
        waits
    }

    /// The members of the JSON object.
    pub(crate) fn json(&mut self) -> Vec<(&'static str, Value)> {
        if let Some(table) = &self.table {
            return vec![("by", table.json())];
        }
        let found = thresholds::of(self.moves.finish());
        let rows = self.moves.finish().iter().map(|((series, what, how), t)| {
            let sizes = t.sizes.iter().map(|(bytes, n)| json!({"bytes": bytes, "count": n}));
            json!({
                "series": series.as_deref(), "what": what, "how": how.to_string(), "count": t.count, "bytes": t.bytes,
                "least": t.least(), "most": t.most(), "unknown_sizes": t.unknown, "in_pieces": t.in_pieces,
                "piece_bytes": t.piece, "sizes": sizes.collect::<Value>(), "more_sizes": t.more_sizes,
            })
        });
        let moves = rows.collect::<Value>();
        let thresholds: Value = found.iter().map(thresholds::Threshold::json).collect();
        let waits = self.most_waited().into_iter().map(|((channel, by, pid, address), n)| {
            json!({
                "channel": channel.0, "for_channel": by.map(|by| by.0), "pid": crate::output::names::known_pid(pid),
                "semaphore": address.0, "count": n,
            })
        });
        let waits = waits.collect::<Value>();
        let l = self.launches;
        let [replays, nodes, bytes, doorbells] = self.graphs.all;
        let costs = json!({
            "launches": l.launches, "launch_submissions": l.submissions, "launch_bytes": l.bytes,
            "replays": replays, "replay_nodes": nodes, "replay_submissions": doorbells, "replay_bytes": bytes,
        });
        let histograms = json!({
            "copy_bytes": self.copied.json(), "submission_bytes": self.submitted.json(),
            "between_doorbells_ns": self.apart.json(), "gpu_ns": self.worked.json(),
        });
        vec![
            ("moves", moves),
            ("thresholds", thresholds),
            ("graphs", self.graphs.json()),
            ("costs", costs),
            ("waits", waits),
            ("histograms", histograms),
        ]
    }
}

/// Writes tables, one below the other.
struct Tables<'a, 'b>(&'a mut Formatter<'b>);

impl Tables<'_, '_> {
    /// Writes a table with its head; nothing if it has no lines.
    fn put(&mut self, head: &str, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        self.line(Some(Role::Operation), head);
        for line in lines {
            self.line(None, line);
        }
        self.line(None, "");
    }

    fn line(&mut self, role: Option<Role>, text: &str) {
        self.0.line("", 0, role);
        self.0.text(format_args!("{}", Plain(text)));
        self.0.end();
    }
}
