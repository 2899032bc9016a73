//! A scene drawn over time: one row a stream. The rows of one channel are adjacent.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::joined::{Ran, Scene};
use crate::study::ms;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 20.0;
const ROW: f64 = 16.0;
const FOOT: f64 = 26.0;
/// Colours that remain distinct with the common kinds of colour blindness (after Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#8a8a00",
];

/// A row: its label and its bars. Rows with the same key have the same colour.
struct Row {
    /// Key for sorting and colouring: process, channel.
    key: (u32, Option<u32>),
    label: String,
    bars: Vec<Bar>,
}

struct Bar {
    from: u64,
    to: u64,
    /// Time at which the kernel's last block started, ns.
    dispatched: Option<u64>,
    says: String,
}

/// Draws a scene.
pub(crate) fn drawing(scene: &Scene, escaped: impl Fn(&str) -> String) -> String {
    let rows = rows(scene);
    let ends = rows.iter().flat_map(|r| &r.bars).map(|b| b.to);
    let end = ends.max().unwrap_or(1).max(1) as f64;
    let at = |time: u64| LEFT + time as f64 / end * (WIDTH - LEFT - RIGHT);
    let foot = rows.len() as f64 * ROW;
    let height = foot + FOOT;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n"
    );
    let mut top = 0.0;
    let of_a_key = rows.chunk_by(|a, b| a.key == b.key);
    for (rows, colour) in of_a_key.zip(COLOURS.iter().cycle()) {
        for row in rows {
            let label = escaped(&row.label);
            let (x, y) = (LEFT - 6.0, top + 12.0);
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{label}</text>"
            );
            for bar in &row.bars {
                bar.draw(&mut out, (top, colour), &escaped(&bar.says), &at);
            }
            top += ROW;
        }
    }
    axis(&mut out, foot, end, &at);
    out.push_str("</svg>\n");
    out
}

impl Bar {
    fn draw(
        &self,
        out: &mut String,
        (top, colour): (f64, &str),
        says: &str,
        at: &dyn Fn(u64) -> f64,
    ) {
        let (from, to) = (at(self.from), at(self.to));
        let (y, width, height) = (top + 2.0, (to - from).max(0.5), ROW - 4.0);
        let _ = writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"><title>{says}</title></rect>"
        );
        if let Some(dispatched) = self.dispatched {
            let x = at(dispatched);
            let _ = writeln!(out, "<path d=\"M{x:.1} {y}v{height}\" stroke=\"#000000\"/>");
        }
    }
}

/// Draws the times below the rows.
fn axis(out: &mut String, top: f64, end: f64, at: &dyn Fn(u64) -> f64) {
    let _ = writeln!(
        out,
        "<path d=\"M{LEFT} {top}H{}\" stroke=\"#888888\"/>",
        WIDTH - RIGHT
    );
    for fifth in 0..=5 {
        let time = (end * f64::from(fifth) / 5.0) as u64;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{} ms</text>",
            at(time),
            top + 16.0,
            ms(time)
        );
    }
}

fn rows(scene: &Scene) -> Vec<Row> {
    let kernels = scene.kernels.iter().map(|k| k.pid);
    let pids: BTreeSet<u32> = kernels.chain(scene.copies.iter().map(|c| c.pid)).collect();
    let of_process = |pid: u32| match pids.len() > 1 {
        true => format!("process {pid} "),
        false => String::new(),
    };
    let label = |pid: u32, channels: &str, stream: &str| {
        format!("{}channel {channels}, stream {stream}", of_process(pid))
    };
    let mut rows: Vec<Row> = Vec::new();
    for kernel in &scene.kernels {
        let number = kernel
            .channel
            .map_or_else(|| "?".to_owned(), |c| c.to_string());
        let label = label(kernel.pid, &number, &kernel.stream);
        match rows.iter_mut().find(|r| r.label == label) {
            Some(row) => row.bars.extend(bars(kernel)),
            None => rows.push(Row {
                key: (kernel.pid, kernel.channel),
                label,
                bars: bars(kernel),
            }),
        }
    }
    for copies in &scene.copies {
        let numbers: Vec<String> = copies.channels.iter().map(u32::to_string).collect();
        let slices = copies.busy.slices();
        rows.push(Row {
            key: (copies.pid, copies.channels.first().copied()),
            label: label(copies.pid, &numbers.join("+"), &copies.stream),
            bars: slices.iter().map(|s| bar(*s, &copies.way)).collect(),
        });
    }
    rows.sort_by_key(|row| row.key);
    rows
}

fn bar((from, to): (u64, u64), what: &str) -> Bar {
    Bar {
        from,
        to,
        dispatched: None,
        says: format!("{what}: {} to {} ms", ms(from), ms(to)),
    }
}

/// Makes the bars of a kernel: one for each time between its pauses.
fn bars(kernel: &Ran) -> Vec<Bar> {
    let slices = kernel.busy.slices();
    let whole = (kernel.start_ns, kernel.end_ns);
    let shown = match kernel.blocks {
        1 => slices,
        _ => vec![whole],
    };
    let bar = |slice: &(u64, u64)| {
        let mut bar = bar(
            *slice,
            &format!("stream {}, kernel {}", kernel.stream, kernel.nth),
        );
        if let Some(behind) = &kernel.behind {
            let _ = write!(bar.says, ", behind stream {}", behind.stream);
        }
        bar.dispatched = (kernel.blocks > 1).then_some(kernel.dispatched_ns);
        bar
    };
    shown.iter().map(bar).collect()
}
