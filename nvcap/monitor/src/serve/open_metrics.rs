//! The text of OpenMetrics 1.0. Pure.
//!
//! It is written here and not by the `prometheus-client` crate, whose text encoder does not write when a counter was created. A reader
//! needs that time to see that a counter has begun anew.

use std::fmt::Write as _;

use super::writer::{Kind, Labels, Writer};
use crate::counts::delay::Delays;

/// HTTP content type of this form.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The ends of a classic histogram's buckets, seconds, as powers of 2: each is 4 times the one before.
pub(super) const POWERS: [i32; 9] = [-10, -8, -6, -4, -2, 0, 2, 4, 6];

/// Writes metrics, a family after the other.
#[derive(Debug, Default)]
pub(super) struct Text {
    out: String,
    family: &'static str,
}

impl Writer for Text {
    fn family(&mut self, name: &'static str, kind: Kind, unit: &'static str, help: &'static str) {
        self.family = name;
        let kind = match kind {
            Kind::Count | Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        };
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.out, "# HELP {name} {}", escaped(help));
    }

    fn gauge(&mut self, labels: &Labels<'_>, value: f64) {
        self.sample("", labels, value);
    }

    fn counter(&mut self, labels: &Labels<'_>, value: f64, created: f64) {
        self.sample("_total", labels, value);
        self.sample("_created", labels, created);
    }

    fn histogram(&mut self, labels: &Labels<'_>, delays: &Delays, created: f64) {
        let ends = POWERS.map(|power| {
            (
                format!("{:?}", f64::from(power).exp2()),
                delays.within(power),
            )
        });
        let all = ("+Inf".to_owned(), delays.count);
        for (end, count) in ends.into_iter().chain([all]) {
            let labels: Vec<_> = { labels.iter().copied() }
                .chain([("le", end.as_str())])
                .collect();
            self.sample("_bucket", &labels, count as f64);
        }
        self.sample("_count", labels, delays.count as f64);
        self.sample("_sum", labels, delays.sum);
        self.sample("_created", labels, created);
    }

    fn info(&mut self, labels: &Labels<'_>) {
        self.sample("_info", labels, 1.0);
    }
}

impl Text {
    fn sample(&mut self, suffix: &str, labels: &Labels<'_>, value: f64) {
        let _ = write!(self.out, "{}{suffix}", self.family);
        let mut before = '{';
        for (name, value) in labels.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = write!(self.out, "{before}{name}=\"{}\"", escaped(value));
            before = ',';
        }
        if before == ',' {
            self.out.push('}');
        }
        // A whole number without an exponent, whatever its size: all digits of a count are read.
        let _ = writeln!(self.out, " {value}");
    }

    /// Returns the whole text.
    pub(super) fn end(mut self) -> String {
        self.out.push_str("# EOF\n");
        self.out
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            // A process's name may hold what a terminal obeys.
            c if c.is_control() => out.push_str(&format!("\\\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text() {
        let mut text = Text::default();
        text.family("a_seconds", Kind::Counter, "seconds", "Of \"a\"\nand b.");
        text.counter(&[("x", "1\"\\\n"), ("y", "")], 3e15, 1.5);
        text.counter(&[("y", "")], 0.25, 1_700_000_000.0);
        text.family("b", Kind::Gauge, "", "B.");
        text.gauge(&[("x", "1"), ("y", "2")], 1e-7);
        text.family("c", Kind::Info, "", "C.");
        text.info(&[]);
        text.family("d_seconds", Kind::Histogram, "seconds", "D.");
        let delays = Delays {
            // Up to 2^-10 s, up to 1 s, and longer than 64 s.
            buckets: [(-41, 2), (-1, 3), (24, 1)].into(),
            count: 6,
            sum: 70.5,
        };
        text.histogram(&[("x", "1")], &delays, 1.5);
        assert_eq!(
            text.end(),
            r#"# TYPE a_seconds counter
# UNIT a_seconds seconds
# HELP a_seconds Of \"a\"\nand b.
a_seconds_total{x="1\"\\\n"} 3000000000000000
a_seconds_created{x="1\"\\\n"} 1.5
a_seconds_total 0.25
a_seconds_created 1700000000
# TYPE b gauge
# HELP b B.
b{x="1",y="2"} 0.0000001
# TYPE c info
# HELP c C.
c_info 1
# TYPE d_seconds histogram
# UNIT d_seconds seconds
# HELP d_seconds D.
d_seconds_bucket{x="1",le="0.0009765625"} 2
d_seconds_bucket{x="1",le="0.00390625"} 2
d_seconds_bucket{x="1",le="0.015625"} 2
d_seconds_bucket{x="1",le="0.0625"} 2
d_seconds_bucket{x="1",le="0.25"} 2
d_seconds_bucket{x="1",le="1.0"} 5
d_seconds_bucket{x="1",le="4.0"} 5
d_seconds_bucket{x="1",le="16.0"} 5
d_seconds_bucket{x="1",le="64.0"} 5
d_seconds_bucket{x="1",le="+Inf"} 6
d_seconds_count{x="1"} 6
d_seconds_sum{x="1"} 70.5
d_seconds_created{x="1"} 1.5
# EOF
"#
        );
    }
}
