//! Drawings of time and bandwidth over size, or of other lines: SVG, both axes logarithmic.

use std::fmt::Write as _;

use super::{
    Measured,
    measure::{Point, Series},
    report::size,
};

/// A panel's place in the drawing and its plot area.
const WIDTH: f64 = 900.0;
const PANEL: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// Colours that remain distinct with the common kinds of colour blindness (after Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#8a8a00",
];

/// Draws all transfers.
pub fn svg(measured: &Measured) -> String {
    drawing(&measured.transfers)
}

/// Draws these series.
pub(crate) fn drawing(series: &[Series]) -> String {
    let lines = |value: fn(&Point) -> f64| {
        let line = |one: &Series| Line {
            name: format!("{} {}", one.way.name(), one.engine),
            points: one
                .points
                .iter()
                .map(|p| (p.bytes as f64, value(p)))
                .collect(),
        };
        series.iter().map(line).collect()
    };
    let sizes: Vec<(f64, String)> = (0..=40)
        .step_by(4)
        .map(|power| (f64::from(power).exp2(), size(1u64 << power)))
        .collect();
    let panel = |title, lines| Panel {
        title,
        marks: sizes.clone(),
        lines,
    };
    panels(&[
        panel("time, ns", lines(|point| point.times.ns)),
        panel("bandwidth, GB/s", lines(|point| point.gb_per_s)),
    ])
}

/// A line and its name. Only positive values are drawn.
#[derive(Debug)]
pub(crate) struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines with the same axes.
#[derive(Debug)]
pub(crate) struct Panel<'a> {
    /// Quantity of the vertical axis, with its unit.
    pub title: &'a str,
    /// Marked values of the horizontal axis, with their names.
    pub marks: Vec<(f64, String)>,
    pub lines: Vec<Line>,
}

/// Draws panels, one below the other.
pub(crate) fn panels(all: &[Panel<'_>]) -> String {
    let mut out = String::new();
    let height = all.len() as f64 * PANEL;
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (i, one) in all.iter().enumerate() {
        panel(&mut out, i as f64 * PANEL, one);
    }
    out.push_str("</svg>\n");
    out
}

/// A logarithmic axis that covers some values.
#[derive(Clone, Copy)]
struct Axis {
    first: f64,
    last: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Option<Self> {
        let positive = values.filter(|v| *v > 0.0 && v.is_finite());
        let first = positive.clone().reduce(f64::min)?.log10();
        let last = positive.reduce(f64::max)?.log10();
        Some(Self {
            first,
            last: if last > first { last } else { first + 1.0 },
            from,
            to,
        })
    }

    fn at(self, value: f64) -> f64 {
        let part = (value.log10() - self.first) / (self.last - self.first);
        self.from + part * (self.to - self.from)
    }

    /// Returns the powers of ten on the axis.
    fn tens(self) -> impl Iterator<Item = f64> {
        let powers = self.first.ceil() as i32..=self.last.floor() as i32;
        powers.map(|power| 10f64.powi(power))
    }
}

fn panel(out: &mut String, top: f64, panel: &Panel<'_>) {
    let points = panel.lines.iter().flat_map(|l| &l.points);
    let (bottom, right) = (top + PANEL - BOTTOM, WIDTH - RIGHT);
    let x = Axis::of(points.clone().map(|p| p.0), LEFT, right);
    let y = Axis::of(points.map(|p| p.1), bottom, top + TOP);
    let (Some(x), Some(y)) = (x, y) else {
        return;
    };
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\" font-size=\"14\">{}</text>",
        top + TOP - 14.0,
        panel.title
    );
    for ten in y.tens() {
        let at = y.at(ten);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{ten}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (value, name) in &panel.marks {
        let at = x.at(*value);
        if at < LEFT - 0.5 || at > right + 0.5 {
            continue;
        }
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} {}V{bottom}\" stroke=\"#dddddd\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            top + TOP,
            bottom + 18.0
        );
    }
    for (i, one) in panel.lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        // The same colour again has another dash.
        let dash = ["", "6 3", "2 3"][i / COLOURS.len() % 3];
        let drawn = one.points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0);
        let line: Vec<String> = drawn
            .map(|p| format!("{:.1},{:.1}", x.at(p.0), y.at(p.1)))
            .collect();
        let legend = top + TOP + 16.0 * i as f64;
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" stroke-dasharray=\"{dash}\"/>\n\
             <path d=\"M{} {legend}h20\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            line.join(" "),
            right + 12.0,
            right + 38.0,
            legend + 4.0,
            one.name
        );
    }
}
