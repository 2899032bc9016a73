//! A study as one HTML file that needs no other file.

use std::fmt::Write as _;

use super::{dma, graph, sharing, versions};
use crate::bench::{
    Measured,
    measure::{Point, Series, Times, Way},
    plot,
};

/// Style sheet of every page.
const STYLE: &str = "body{font-family:sans-serif;max-width:75em;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}code{background:#f4f4f4}";

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

struct Page(String);

impl Page {
    fn new(title: &str) -> Self {
        let title = escaped(title);
        Self(format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head><body>\n\
             <h1>{title}</h1>\n"
        ))
    }

    fn text(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escaped(text));
    }

    fn head(&mut self, text: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>", escaped(text));
    }

    fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        self.0 += "<table><tr>";
        for cell in head {
            let _ = write!(self.0, "<th>{}</th>", escaped(cell));
        }
        self.0 += "</tr>\n";
        for row in rows {
            self.0 += "<tr>";
            for cell in row {
                let _ = write!(self.0, "<td>{}</td>", escaped(cell));
            }
            self.0 += "</tr>\n";
        }
        self.0 += "</table>\n";
    }

    fn end(mut self) -> String {
        self.0 += "</body></html>\n";
        self.0
    }
}

/// Figures of the paper that these studies repeat; they were measured on an A40.
const PAPER_DMA: &str = "The paper's A40: inline below 24 KiB (start-up about 24 ns, 17.5 GiB/s at 8 KiB), a copy engine from 24 KiB on (start-up about \
500 ns, 22 GiB/s at 1 MiB); of 8 B 94.87 % of the time is not the engine's, of 32 MiB 0.36 %.";
const PAPER_GRAPH: &str = "The paper's A40, chains of 1 to 2,000 nodes: with CUDA 11.8 a launch has 328 to 45,476 B of pushbuffer, many doorbells, and takes \
1.8 to 209 us; with CUDA 13.0 340 to 2,216 B, one doorbell, and 1.9 to 5.9 us.";
/// The paper's figures for chains of these two sizes: CUDA's version, bytes of pushbuffer and ns of a launch.
const PAPER_NODES: [f64; 2] = [1.0, 2000.0];
const PAPER_CHAINS: [(&str, [f64; 2], [f64; 2]); 2] = [
    ("A40, CUDA 11.8", [328.0, 45_476.0], [1_800.0, 209_000.0]),
    ("A40, CUDA 13.0", [340.0, 2_216.0], [1_900.0, 5_900.0]),
];

/// Makes the page of [`dma`].
pub fn of_dma(study: &dma::Study, raw: &Measured) -> String {
    let mut page = Page::new("nvcap study dma: CUDA's copies");
    page.text(&versions(study.cuda, study.empty_call_ns));
    page.text(
        "By: what the trace of the program shows. Done: from CUDA's call until the stream has nothing left to do, by the processor's clock, \
         undisturbed. Engine: what that engine needs for as many bytes without CUDA (nvcap bench), less two releases alone. The rest of the \
         time is the driver's, the bus's and the program's.",
    );
    page.text(PAPER_DMA);
    page.head("Where CUDA changes its means");
    for change in &study.changes {
        page.text(&change.line());
    }
    for (kind, rows) in study.kinds() {
        page.head(kind);
        let rows: Vec<Vec<String>> = rows.iter().map(dma::Row::cells).collect();
        page.table(&dma::HEAD, &rows);
    }
    page.head("CUDA's time, and the engines' alone");
    page.0 += &plot::drawing(&drawn(study, raw));
    page.text(&format!("The trace: {}", study.ledger));
    page.end()
}

/// Makes the page of [`graph`].
pub fn of_graph(study: &graph::Study) -> String {
    let mut page = Page::new("nvcap study graph: CUDA's graphs");
    page.text(&versions(study.cuda, study.empty_call_ns));
    page.text(
        "Upload: what instantiating and uploading the graph submits, and until the upload is done. First and later: launches, what one submits, \
         and until the call returns; done: until the GPU has run it. Bytes are those of the pushbuffer. chain: kernels in a row; branch: one kernel, \
         four branches, one that waits for all; copy: a copy of 4 KiB to the GPU and a kernel by turns.",
    );
    page.text(PAPER_GRAPH);
    page.head("Over the number of nodes");
    page.text("Of the A40's chains the paper gives the first and the last point; there is nothing behind the line between them.");
    page.0 += &plot::panels(&graphs_drawn(study));
    for (shape, rows) in study.shapes() {
        page.head(shape);
        let rows: Vec<Vec<String>> = rows.iter().map(graph::Row::cells).collect();
        page.table(&graph::HEAD, &rows);
    }
    page.text(&format!("The trace: {}", study.ledger));
    page.end()
}

/// Makes the page of [`sharing`].
pub fn of_sharing(study: &sharing::Study) -> String {
    let mut page = Page::new("nvcap study sharing: who shares what of a GPU");
    page.text(&study.head());
    page.text(
        "Kernels spin for some milliseconds and write down when they began, ended and stood still, by the GPU's clock; the trace shows the \
         channel of each. Late: the first kernel of a stream, which depends on no other, started more than a quarter of its length after \
         its launch. The rules are those of Bakita and Anderson, Demystifying NVIDIA GPU Internals to Enable Reliable GPU Management (RTAS \
         2024), in other words.",
    );
    page.head("Rules");
    for lines in study.rule_lines() {
        for line in lines {
            page.text(&line);
        }
    }
    page.head("Beside the rules");
    for finding in &study.findings {
        page.text(&format!("{}: {}", finding.about, finding.text));
    }
    for note in &study.notes {
        page.text(&format!("Not done: {note}"));
    }
    page.head("Many streams");
    page.table(&sharing::STREAMS, &study.stream_rows());
    page.head("Channels with work");
    page.table(&sharing::CHANNELS, &study.channel_rows());
    page.head("Copies");
    page.table(&sharing::COPIES, &study.copy_rows());
    for scene in &study.scenes {
        page.head(&scene.name);
        page.0 += &sharing::timeline::drawing(scene, escaped);
    }
    for scene in study.shown() {
        page.head(&format!("{}: kernels", scene.name));
        page.table(&sharing::KERNELS, &study.kernel_rows(scene));
    }
    page.text(&format!("The trace: {}", study.ledger));
    page.end()
}

/// Draws the costs of graphs over their nodes, with the paper's chains for comparison.
fn graphs_drawn(study: &graph::Study) -> [plot::Panel<'static>; 4] {
    let lines = |value: fn(&graph::Row) -> f64| -> Vec<plot::Line> {
        let line = |(shape, rows): (&str, &[graph::Row])| plot::Line {
            name: escaped(shape),
            points: rows.iter().map(|r| (r.nodes as f64, value(r))).collect(),
        };
        study.shapes().map(line).collect()
    };
    let with_paper = |mut lines: Vec<plot::Line>, of: fn(usize) -> [f64; 2]| {
        let paper = PAPER_CHAINS
            .iter()
            .enumerate()
            .map(|(i, (name, ..))| plot::Line {
                name: (*name).to_owned(),
                points: PAPER_NODES.into_iter().zip(of(i)).collect(),
            });
        lines.extend(paper);
        lines
    };
    let panel = |title, lines| plot::Panel {
        title,
        marks: [1, 10, 100, 1000]
            .map(|n: u32| (f64::from(n), n.to_string()))
            .into(),
        lines,
    };
    [
        panel(
            "bytes of pushbuffer of a later launch",
            with_paper(lines(|r| r.later.pushbuffer_bytes), |i| PAPER_CHAINS[i].1),
        ),
        panel(
            "time of a later launch's call, ns",
            with_paper(lines(|r| r.later.times.call_ns), |i| PAPER_CHAINS[i].2),
        ),
        panel(
            "bytes of pushbuffer of the upload",
            lines(|r| r.instantiate.pushbuffer_bytes + r.upload.pushbuffer_bytes),
        ),
        panel(
            "time until the upload is done, ns",
            lines(|r| r.upload.times.done_ns),
        ),
    ]
}

/// Makes series of CUDA's times, with the series of the engines that it uses.
fn drawn(study: &dma::Study, raw: &Measured) -> Vec<Series> {
    let mut all = Vec::new();
    for (kind, rows) in study.kinds() {
        let (way, engine) = match kind {
            "h2d_pinned" => (Way::H2D, "CUDA"),
            "d2h_pinned" => (Way::D2H, "CUDA"),
            "d2d" => (Way::D2D, "CUDA"),
            _ => continue,
        };
        let times = Times::one;
        let points = rows
            .iter()
            .map(|row| Point::new(row.bytes, times(row.done_ns)));
        all.push(Series {
            engine: engine.to_owned(),
            engine_type: 0,
            way,
            nothing: times(study.empty_call_ns),
            points: points.collect(),
        });
    }
    let used = |s: &&Series| {
        s.way == Way::Inline
            || study.rows.iter().any(|row| {
                let name = row.means.iter().any(|m| m.to_string() == s.engine);
                name && row.kind.starts_with(&s.way.name().to_lowercase())
            })
    };
    all.extend(raw.transfers.iter().filter(used).cloned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::graph::{Row, Step, Study, Times as Time};

    /// Chains from the table in docs/studies.md: nodes, bytes and ns of the upload, bytes and ns of a later launch.
    const CHAINS: [[f64; 5]; 5] = [
        [1.0, 1012.0, 25_836.0, 76.0, 2870.0],
        [32.0, 32_448.0, 45_764.0, 108.0, 2943.0],
        [256.0, 256_448.0, 296_853.0, 316.0, 3659.0],
        [1000.0, 1_000_448.0, 1_227_594.0, 1020.0, 7161.0],
        [2000.0, 2_000_448.0, 2_653_917.0, 1964.0, 13_734.0],
    ];

    fn step(bytes: f64, ns: f64) -> Step {
        let times = Time {
            call_ns: ns,
            done_ns: ns,
        };
        Step {
            submissions: 1.0,
            pushbuffer_bytes: bytes,
            kernels: 1.0,
            times,
        }
    }

    #[test]
    fn graphs_are_drawn_beside_the_papers() {
        let rows = ["chain", "<branch>"].iter().flat_map(|shape| {
            CHAINS.map(|[nodes, uploaded, upload, launched, launch]| Row {
                shape: (*shape).to_owned(),
                nodes: nodes as u64,
                instantiate: step(0.0, 0.0),
                upload: step(uploaded, upload),
                first: step(launched, launch),
                later: step(launched, launch),
            })
        });
        let study = Study {
            cuda: 13_000,
            empty_call_ns: 376.0,
            rows: rows.collect(),
            ledger: "complete".to_owned(),
        };
        let page = of_graph(&study);
        // Two shapes in four panels, two lines of the paper's in two of them.
        assert_eq!(page.matches("<polyline").count(), 4 * 2 + 2 * 2);
        assert!(page.contains("&lt;branch&gt;</text>") && !page.contains("<branch>"));
        for (lines, points) in [(8, 5), (4, 2)] {
            let of_so_many = page.split("points=\"").skip(1).filter(|rest| {
                let line = rest.split('"').next().unwrap_or_default();
                line.split(' ').count() == points
            });
            assert_eq!(of_so_many.count(), lines);
        }
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }
}
