//! Graphs: what their replays and uploads were made of.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use nvcap_decode::decode::event::{Graph, InlineContent, Operation};

/// The most kinds of replay that are kept apart.
const MOST: usize = 1 << 14;

/// Features that the replays of one row share: nodes, pushbuffer bytes and doorbells of one replay.
type Alike = (u32, u64, usize);

#[derive(Clone, Copy, Debug, Default)]
struct Replays {
    count: u64,
    /// Number of replays among them that wrote their QMDs again.
    uploaded: u64,
    /// Number of replays among them with conditional nodes: the GPU decides what else runs.
    conditional: u64,
    /// Number of nodes of the first of these replays: kernels of the program, memset kernels, copy kernels.
    of: [u32; 3],
}

/// Submissions that write QMDs and launch nothing: graphs that are made ready.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uploads {
    pub submissions: u64,
    pub bytes: u64,
    pub qmds: u64,
}

/// Counts of the submission under way so far.
#[derive(Clone, Copy, Debug, Default)]
struct Current {
    serial: u64,
    bytes: u64,
    qmds: u64,
    launches: u64,
}

/// All replays and uploads.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    replays: BTreeMap<Alike, Replays>,
    pub uploads: Uploads,
    current: Current,
    /// Sums over all replays: replays, nodes, bytes, doorbells.
    pub all: [u64; 4],
    /// Replays of kinds that are not kept apart.
    others: u64,
}

impl Graphs {
    /// Begins a submission, and counts the one before if it was an upload.
    pub(super) fn submission(&mut self, serial: u64, bytes: u64) {
        let ended = std::mem::take(&mut self.current);
        if ended.qmds > 0 && ended.launches == 0 {
            self.uploads.submissions += 1;
            self.uploads.bytes = self.uploads.bytes.saturating_add(ended.bytes);
            self.uploads.qmds += ended.qmds;
        }
        (self.current.serial, self.current.bytes) = (serial, bytes);
    }

    /// Counts an operation of the submission with this serial number. A graph's replay is told when its end is known: a later submission may be under
    /// way by then.
    pub(super) fn operation(&mut self, serial: u64, op: &Operation) {
        let current = serial == self.current.serial;
        match op {
            Operation::Inline(i) if current && i.content == Some(InlineContent::Qmd) => {
                self.current.qmds += 1;
            }
            Operation::Launch(_) if current => self.current.launches += 1,
            Operation::Graph(g) => self.replay(g),
            _ => {}
        }
    }

    fn replay(&mut self, g: &Graph) {
        let doorbells = g.submissions.len();
        let of = [1, u64::from(g.nodes), g.bytes, doorbells as u64];
        for (sum, of) in self.all.iter_mut().zip(of) {
            *sum = sum.saturating_add(of);
        }
        let alike = (g.nodes, g.bytes, doorbells);
        if self.replays.len() >= MOST && !self.replays.contains_key(&alike) {
            self.others += 1;
            return;
        }
        let replays = self.replays.entry(alike).or_insert_with(|| Replays {
            of: [g.kernels, g.memsets, g.copies],
            ..Replays::default()
        });
        replays.count += 1;
        replays.uploaded += u64::from(g.uploaded);
        replays.conditional += u64::from(g.conditional);
    }

    /// The table's head and its lines; `None` if there were neither replays nor uploads.
    pub(super) fn lines(&self, most: usize) -> Option<(String, Vec<String>)> {
        if self.replays.is_empty() && self.uploads.submissions == 0 {
            return None;
        }
        let head = format!(
            "{:>10} {:>7} {:>14} {:>14} {:>12}  graph of",
            "replays", "nodes", "bytes each", "doorbells each", "QMDs again"
        );
        let mut lines = Vec::new();
        for ((nodes, bytes, doorbells), r) in self.replays.iter().take(most) {
            let [kernels, memsets, copies] = r.of;
            let mut of = Vec::new();
            for (n, what) in [
                (kernels, "kernel"),
                (memsets, "memset"),
                (copies, "copy kernel"),
            ] {
                if n > 0 {
                    of.push(crate::output::plural::plural(u64::from(n), what));
                }
            }
            if r.conditional > 0 {
                of.push("the GPU decides what else runs".to_owned());
            }
            lines.push(format!(
                "{:>10} {nodes:>7} {bytes:>14} {doorbells:>14} {:>12}  {}",
                r.count,
                r.uploaded,
                of.join(", ")
            ));
        }
        let more = self.replays.len().saturating_sub(most);
        if more > 0 || self.others > 0 {
            lines.push(format!(
                "{:>10} {:>7} {more} more kinds of replay (--json has them), {} replays of still others",
                "", "", self.others
            ));
        }
        let u = self.uploads;
        if u.submissions > 0 {
            lines.push(format!(
                "uploads: {} that wrote {} and launched nothing, {} B",
                crate::output::plural::plural(u.submissions, "submission"),
                crate::output::plural::plural(u.qmds, "QMD"),
                u.bytes
            ));
        }
        Some((head, lines))
    }

    pub(super) fn json(&self) -> Value {
        let replays = self.replays.iter().map(|((nodes, bytes, doorbells), r)| {
            let [kernels, memsets, copies] = r.of;
            json!({
                "nodes": nodes, "kernels": kernels, "memsets": memsets, "copies": copies, "bytes_each": bytes,
                "doorbells_each": doorbells, "replays": r.count, "uploaded": r.uploaded, "conditional": r.conditional,
            })
        });
        let u = self.uploads;
        json!({
            "replays": replays.collect::<Value>(), "other_replays": self.others,
            "uploads": {"submissions": u.submissions, "bytes": u.bytes, "qmds": u.qmds},
        })
    }
}
