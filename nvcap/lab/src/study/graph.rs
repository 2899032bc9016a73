//! Graphs: for each shape and number of nodes the submissions by which CUDA makes the graph ready and launches it, and
//! their times.

use serde::{Deserialize, Serialize};

use super::{
    grouped,
    phases::{Phase, PhaseTotals},
    report, table, versions,
    work::Said,
};

/// Times of a call.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Times {
    /// Time until the call returned, ns.
    pub call_ns: f64,
    /// Time until the GPU had done the work, ns.
    pub done_ns: f64,
}

/// Times of one graph.
#[derive(Clone, Debug, Deserialize)]
pub struct Timed {
    /// Shape of the graph: `chain`, `branch` or `copy`.
    pub shape: String,
    /// Number of the graph's nodes.
    pub nodes: u64,
    /// Number of later launches that were timed.
    pub runs: u64,
    /// Times of instantiating the graph, which makes it executable.
    pub instantiate: Times,
    /// Times of uploading the graph to the GPU.
    pub upload: Times,
    /// Times of the first launch.
    pub first: Times,
    /// Times of a later launch: the mean of the middle half.
    pub later: Times,
}

/// One step of a graph's life.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    /// Number of doorbells; for later launches, of one launch.
    pub submissions: f64,
    /// Bytes of pushbuffer.
    pub pushbuffer_bytes: f64,
    /// Number of kernels that ran.
    pub kernels: f64,
    /// Times of the call, ns.
    #[serde(flatten)]
    pub times: Times,
}

/// Result for one graph.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Shape of the graph: `chain`, `branch` or `copy`.
    pub shape: String,
    /// Number of the graph's nodes.
    pub nodes: u64,
    /// Step that makes the graph executable.
    pub instantiate: Step,
    /// Step that uploads the graph to the GPU.
    pub upload: Step,
    /// Step of the first launch.
    pub first: Step,
    /// Step of a later launch.
    pub later: Step,
}

/// The study.
#[derive(Clone, Debug, Serialize)]
pub struct Study {
    /// CUDA's version, 13000 for 13.0.
    pub cuda: u32,
    /// Cost of a call of the program that does nothing, ns. It is a part of every time.
    pub empty_call_ns: f64,
    /// Rows of all graphs, those of a shape together.
    pub rows: Vec<Row>,
    /// Account of what is missing in the trace, in words.
    pub ledger: String,
}

/// Joins the times that the program reports with the trace of it.
pub fn study(said: &Said<Timed>, seen: &PhaseTotals, ledger: String) -> Study {
    let none = Phase::default();
    let step = |timed: &Timed, what: &str, times: Times, runs: u64| {
        let name = format!("{}_{what}_{}", timed.shape, timed.nodes);
        let phase = seen.phases.get(&name).unwrap_or(&none);
        let runs = runs.max(1) as f64;
        Step {
            submissions: phase.submissions as f64 / runs,
            pushbuffer_bytes: phase.bytes as f64 / runs,
            kernels: phase.kernels as f64 / runs,
            times,
        }
    };
    let rows = said.rows.iter().map(|timed| Row {
        shape: timed.shape.clone(),
        nodes: timed.nodes,
        instantiate: step(timed, "instantiate", timed.instantiate, 1),
        upload: step(timed, "upload", timed.upload, 1),
        first: step(timed, "first", timed.first, 1),
        later: step(timed, "later", timed.later, timed.runs),
    });
    Study {
        cuda: said.cuda,
        empty_call_ns: said.empty_call_ns,
        rows: rows.collect(),
        ledger,
    }
}

/// Headings of the table. `first` and `later` are launches.
pub(crate) const HEAD: [&str; 13] = [
    "nodes",
    "instantiate ns",
    "upload B",
    "doorbells",
    "upload ns",
    "first B",
    "doorbells",
    "first ns",
    "later B",
    "doorbells",
    "kernels",
    "later ns",
    "later done ns",
];

impl Row {
    pub(crate) fn cells(&self) -> Vec<String> {
        let doorbells = |step: &Step| format!("{:.1}", step.submissions);
        vec![
            self.nodes.to_string(),
            grouped(self.instantiate.times.call_ns),
            grouped(self.instantiate.pushbuffer_bytes + self.upload.pushbuffer_bytes),
            format!(
                "{:.1}",
                self.instantiate.submissions + self.upload.submissions
            ),
            grouped(self.upload.times.done_ns),
            grouped(self.first.pushbuffer_bytes),
            doorbells(&self.first),
            grouped(self.first.times.call_ns),
            grouped(self.later.pushbuffer_bytes),
            doorbells(&self.later),
            format!("{:.1}", self.later.kernels),
            grouped(self.later.times.call_ns),
            grouped(self.later.times.done_ns),
        ]
    }
}

impl Study {
    /// Returns the shapes, in their order.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (&str, &[Row])> {
        self.rows
            .chunk_by(|a, b| a.shape == b.shape)
            .filter_map(|rows| Some((rows.first()?.shape.as_str(), rows)))
    }

    /// Formats the tables.
    pub fn text(&self) -> String {
        let tables = self.shapes().map(|(shape, rows)| {
            let rows: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
            (shape.to_owned(), table(&HEAD, &rows))
        });
        let sections: Vec<_> = tables.collect();
        report(
            versions(self.cuda, self.empty_call_ns),
            &sections,
            &self.ledger,
        )
    }
}
