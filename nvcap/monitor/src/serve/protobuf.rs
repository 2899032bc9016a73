//! Prometheus's own format: messages of `io.prometheus.client`, each with its length before it. The only one that has native histograms. Pure.
//!
//! Tags and names are those of `metrics.proto` of github.com/prometheus/client_model.

use prost::Message;

use super::open_metrics::POWERS;
use super::writer::{Kind, Labels, Writer};
use crate::counts::delay::{Delays, SCALE};

/// HTTP content type of this form.
pub(crate) const CONTENT_TYPE: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// `MetricType`.
const COUNTER: i32 = 0;
const GAUGE: i32 = 1;
const HISTOGRAM: i32 = 4;
/// Delays up to this one, seconds, would be in the bucket of zero: none is so short.
const ZERO: f64 = 1e-9;

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
    #[prost(string, optional, tag = "5")]
    unit: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Gauge>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Counter>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Gauge {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Counter {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    created: Option<Time>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sum: Option<f64>,
    /// Buckets of the classic histogram, for readers without native ones.
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<Span>,
    /// Differences of the buckets' counts, each from the one before.
    #[prost(sint64, repeated, tag = "13")]
    positive_delta: Vec<i64>,
    #[prost(message, optional, tag = "15")]
    created: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
}

/// Buckets one behind the other.
#[derive(Clone, Copy, PartialEq, Message)]
struct Span {
    /// Number of empty buckets before it: from bucket 0 on, later from the span before.
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

fn time(seconds: f64) -> Option<Time> {
    Some(Time {
        seconds: seconds as i64,
        nanos: (seconds.fract() * 1e9) as i32,
    })
}

/// Writes metrics, a family after the other.
#[derive(Debug, Default)]
pub(super) struct Families {
    out: Vec<u8>,
    family: Option<MetricFamily>,
}

impl Writer for Families {
    fn family(&mut self, name: &'static str, kind: Kind, unit: &'static str, help: &'static str) {
        self.put();
        let (ending, kind) = match kind {
            Kind::Count | Kind::Counter => ("_total", COUNTER),
            Kind::Gauge => ("", GAUGE),
            Kind::Histogram => ("", HISTOGRAM),
            Kind::Info => ("_info", GAUGE),
        };
        self.family = Some(MetricFamily {
            name: Some(format!("{name}{ending}")),
            help: Some(help.to_owned()),
            kind: Some(kind),
            metric: Vec::new(),
            unit: (!unit.is_empty()).then(|| unit.to_owned()),
        });
    }

    fn gauge(&mut self, labels: &Labels<'_>, value: f64) {
        let gauge = Some(Gauge { value: Some(value) });
        self.metric(labels, |metric| metric.gauge = gauge);
    }

    fn counter(&mut self, labels: &Labels<'_>, value: f64, created: f64) {
        let counter = Some(Counter {
            value: Some(value),
            created: time(created),
        });
        self.metric(labels, |metric| metric.counter = counter);
    }

    fn histogram(&mut self, labels: &Labels<'_>, delays: &Delays, created: f64) {
        let ends =
            { POWERS.into_iter() }.map(|power| (delays.within(power), f64::from(power).exp2()));
        let bucket = |(count, end)| Bucket {
            cumulative_count: Some(count),
            upper_bound: Some(end),
        };
        let (spans, deltas) = spans(delays);
        let histogram = Histogram {
            count: Some(delays.count),
            sum: Some(delays.sum),
            bucket: ends.map(bucket).collect(),
            schema: Some(SCALE),
            zero_threshold: Some(ZERO),
            zero_count: Some(0),
            positive_span: spans,
            positive_delta: deltas,
            created: time(created),
        };
        self.metric(labels, |metric| metric.histogram = Some(histogram));
    }

    fn info(&mut self, labels: &Labels<'_>) {
        self.gauge(labels, 1.0);
    }
}

/// The buckets as spans, and the differences of their counts.
fn spans(delays: &Delays) -> (Vec<Span>, Vec<i64>) {
    let (mut spans, mut deltas): (Vec<Span>, Vec<i64>) = Default::default();
    let (mut next, mut before) = (0, 0);
    for (index, count) in &delays.buckets {
        // Prometheus names a bucket by its end: longer than base^(index - 1), and no longer than base^index.
        let index = index + 1;
        match spans.last_mut() {
            Some(Span {
                length: Some(length),
                ..
            }) if index == next => *length += 1,
            _ => spans.push(Span {
                offset: Some(index - next),
                length: Some(1),
            }),
        }
        next = index + 1;
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        deltas.push(count - before);
        before = count;
    }
    (spans, deltas)
}

impl Families {
    fn metric(&mut self, labels: &Labels<'_>, set: impl FnOnce(&mut Metric)) {
        let there = labels.iter().filter(|(_, value)| !value.is_empty());
        let label = |(name, value): &(&str, &str)| Label {
            name: Some((*name).to_owned()),
            value: Some((*value).to_owned()),
        };
        let mut metric = Metric {
            label: there.map(label).collect(),
            ..Metric::default()
        };
        set(&mut metric);
        if let Some(family) = &mut self.family {
            family.metric.push(metric);
        }
    }

    fn put(&mut self) {
        if let Some(family) = self.family.take() {
            self.out.extend(family.encode_length_delimited_to_vec());
        }
    }

    /// Returns all messages.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.put();
        self.out
    }
}

/// Tells whether a client that sent this header wants this format more than text.
pub(crate) fn is_wanted(accept: &str) -> bool {
    let (mut own, mut others) = (0.0, 0.0_f64);
    for entry in accept.split(',') {
        let mut parts = entry.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let mut weight = 1.0;
        let (mut of_families, mut delimited) = (false, false);
        for parameter in parts {
            match parameter.split_once('=') {
                Some(("q", q)) => weight = q.parse().unwrap_or(0.0),
                Some(("proto", proto)) => {
                    of_families = proto == "io.prometheus.client.MetricFamily"
                }
                Some(("encoding", encoding)) => delimited = encoding == "delimited",
                _ => {}
            }
        }
        if kind == "application/vnd.google.protobuf" {
            if of_families && delimited {
                own = weight;
            }
        } else {
            others = others.max(weight);
        }
    }
    own > 0.0 && own >= others
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests requests as Prometheus makes them with and without native histograms, and as browsers and curl do.
    #[test]
    fn who_wants_it() {
        let own = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let text = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert!(is_wanted(&format!("{own},{text}")));
        assert!(is_wanted(&format!("{text},{own};q=0.8")));
        assert!(!is_wanted(&format!("{text},{own};q=0.7")) && !is_wanted(&format!("{own};q=0")));
        for other in [
            text,
            "*/*",
            "",
            "application/vnd.google.protobuf;encoding=text",
            ";;=,q",
        ] {
            assert!(!is_wanted(other), "{other}");
        }
    }

    /// Messages read back have names with their endings, labels that have a value, and buckets as they were.
    #[test]
    fn families() {
        let mut all = Families::default();
        all.family("a", Kind::Counter, "", "A.");
        all.counter(&[("x", "1"), ("y", "")], 3e15, 1.5);
        all.family("b", Kind::Info, "", "B.");
        all.info(&[]);
        all.family("d_seconds", Kind::Histogram, "seconds", "D.");
        let delays = Delays {
            buckets: [(-41, 2), (-1, 3), (0, 1), (24, 1)].into(),
            count: 7,
            sum: 70.5,
        };
        all.histogram(&[("x", "1")], &delays, 1.5);
        let bytes = all.end();
        let mut rest = &bytes[..];
        let mut read = || MetricFamily::decode_length_delimited(&mut rest).unwrap();
        let (a, b, d) = (read(), read(), read());
        assert_eq!(
            (a.name.as_deref(), a.kind),
            (Some("a_total"), Some(COUNTER))
        );
        let [one] = &a.metric[..] else {
            panic!("{a:?}")
        };
        assert_eq!(one.label.len(), 1);
        let counter = one.counter.unwrap();
        let created = Some(Time {
            seconds: 1,
            nanos: 500_000_000,
        });
        assert_eq!((counter.value, counter.created), (Some(3e15), created));
        assert_eq!(
            (b.name.as_deref(), b.metric[0].gauge.unwrap().value),
            (Some("b_info"), Some(1.0))
        );
        assert_eq!(
            (d.name.as_deref(), d.unit.as_deref()),
            (Some("d_seconds"), Some("seconds"))
        );
        let histogram = d.metric[0].histogram.as_ref().unwrap();
        let spans: Vec<_> = { histogram.positive_span.iter() }
            .map(|s| (s.offset.unwrap(), s.length.unwrap()))
            .collect();
        // Buckets -40; 0 and 1; 25.
        assert_eq!(spans, [(-40, 1), (39, 2), (23, 1)]);
        assert_eq!(histogram.positive_delta, [2, 1, -2, 0]);
        assert_eq!(
            (histogram.count, histogram.sum, histogram.schema),
            (Some(7), Some(70.5), Some(2))
        );
        let last = histogram.bucket.last().unwrap();
        assert_eq!(
            (last.cumulative_count, last.upper_bound),
            (Some(6), Some(64.0))
        );
        assert!(rest.is_empty());
    }
}
