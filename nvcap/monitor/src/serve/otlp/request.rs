//! A reading as OTLP's messages: the same metrics as at `/metrics`, with OpenTelemetry's names for whose they are.
//!
//! A container's metrics are those of a resource of its own (`k8s.*`, `container.*`), beside the host's. Sums are cumulative, and each
//! says when it was 0, so that a missed request loses nothing.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Metric,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exponential_histogram_data_point::Buckets,
    metric::Data, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::super::metrics::{self, Constants, Errors};
use super::super::writer::{Kind, Labels, Writer};
use crate::counts::delay::{Delays, SCALE};
use crate::counts::view::{self as counts, View};

/// The request with the metrics of a reading; `resource` describes this host.
pub fn request(
    view: &View,
    errors: Option<&Errors>,
    constants: &Constants,
    resource: &[(String, String)],
) -> ExportMetricsServiceRequest {
    let mut batch = Batch {
        unix_ns: view.unix_ns,
        family: None,
        container_ids: &view.container_ids,
        resources: BTreeMap::new(),
    };
    metrics::write(&mut batch, view, errors, constants);
    batch.request(resource, &constants.version)
}

/// The owner of a metric, as attributes of a resource of its own, beside the host's.
type Owner = Vec<(&'static str, String)>;

struct Family {
    name: String,
    help: &'static str,
    unit: &'static str,
    kind: Kind,
}

struct Batch<'a> {
    unix_ns: u64,
    container_ids: &'a BTreeMap<counts::Owner, String>,
    family: Option<Family>,
    resources: BTreeMap<Owner, Vec<Metric>>,
}

/// Returns the name without its unit, and OTLP's word for the unit, which is a field of its own in OTLP. A translation to Prometheus joins both to
/// the name that is at `/metrics`.
fn named(name: &str, unit: &'static str) -> (String, &'static str) {
    let name = name.strip_suffix(unit).unwrap_or(name);
    let name = name.trim_end_matches('_').replacen('_', ".", 1);
    let unit = match unit {
        "seconds" => "s",
        "bytes" => "By",
        "ratio" => "1",
        other => other,
    };
    (name, unit)
}

/// Tells whether a container's name is its id, by which it is called where it has no other name.
fn is_container_id(container: &str) -> bool {
    container.len() >= 12 && container.bytes().all(|b| b.is_ascii_hexdigit())
}

/// OpenTelemetry's name for a label that is no owner's.
fn attribute(label: &str) -> &str {
    match label {
        "UUID" => "hw.id",
        "modelName" => "hw.model",
        "pid" => "process.pid",
        "comm" => "process.executable.name",
        other => other,
    }
}

fn key_value(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    key_value(key, Value::StringValue(value.to_owned()))
}

fn value_of<'a>(labels: &Labels<'a>, name: &str) -> &'a str {
    let value = labels.iter().find(|(label, _)| *label == name);
    value.map_or("", |(_, value)| *value)
}

/// Divides labels into those of the metric's owner and the others, as attributes.
fn divided(labels: &Labels<'_>) -> (Owner, Vec<KeyValue>) {
    let of = |name| value_of(labels, name);
    let container = match (of("pod"), of("container")) {
        ("", id) if is_container_id(id) => "container.id",
        ("", _) => "container.name",
        _ => "k8s.container.name",
    };
    let (mut owner, mut attributes) = (Owner::new(), Vec::new());
    for (label, value) in labels.iter().filter(|(_, value)| !value.is_empty()) {
        match *label {
            "namespace" => owner.push(("k8s.namespace.name", (*value).to_owned())),
            "pod" => owner.push(("k8s.pod.name", (*value).to_owned())),
            "container" => owner.push((container, (*value).to_owned())),
            "pid" => attributes.push(match value.parse() {
                Ok(pid) => key_value(attribute(label), Value::IntValue(pid)),
                Err(_) => text(attribute(label), value),
            }),
            label => attributes.push(text(attribute(label), value)),
        }
    }
    (owner, attributes)
}

impl Batch<'_> {
    /// Returns the metric of the current family for its owner, and a point's attributes.
    fn metric(&mut self, labels: &Labels<'_>) -> Option<(Kind, &mut Metric, Vec<KeyValue>)> {
        let family = self.family.as_ref()?;
        let (mut owner, attributes) = divided(labels);
        owner.extend(self.container_id(labels));
        let metrics = self.resources.entry(owner).or_default();
        if metrics.last().is_none_or(|last| last.name != family.name) {
            metrics.push(family.metric());
        }
        Some((family.kind, metrics.last_mut()?, attributes))
    }

    /// Returns the container's id as an attribute, where it is not the name as well.
    fn container_id(&self, labels: &Labels<'_>) -> Option<(&'static str, String)> {
        let of = |name| value_of(labels, name).to_owned();
        let owner = counts::Owner {
            namespace: of("namespace"),
            pod: of("pod"),
            container: of("container"),
        };
        let id = self.container_ids.get(&owner)?;
        let is_name = owner.pod.is_empty() && is_container_id(&owner.container);
        (!is_name).then(|| ("container.id", id.clone()))
    }

    /// Returns the time at which a sum was 0, ns since the epoch: no later than this reading.
    fn start(&self, created: Option<f64>) -> u64 {
        created.map_or(0, |s| ((s * 1e9) as u64).min(self.unix_ns))
    }

    /// Adds a point to the metric of the current family.
    fn point(&mut self, labels: &Labels<'_>, value: f64, created: Option<f64>) {
        let (start, now) = (self.start(created), self.unix_ns);
        let Some((kind, metric, attributes)) = self.metric(labels) else {
            return;
        };
        let value = match kind {
            Kind::Count => number_data_point::Value::AsInt(value as i64),
            _ => number_data_point::Value::AsDouble(value),
        };
        let point = NumberDataPoint {
            attributes,
            start_time_unix_nano: start,
            time_unix_nano: now,
            value: Some(value),
            ..NumberDataPoint::default()
        };
        match &mut metric.data {
            Some(Data::Sum(sum)) => sum.data_points.push(point),
            Some(Data::Gauge(gauge)) => gauge.data_points.push(point),
            _ => {}
        }
    }

    fn request(self, host: &[(String, String)], version: &str) -> ExportMetricsServiceRequest {
        let of_owner = |(owner, metrics): (Owner, Vec<Metric>)| {
            let host = host.iter().map(|(key, value)| text(key, value));
            let owner = owner.iter().map(|(key, value)| text(key, value));
            ResourceMetrics {
                resource: Some(Resource {
                    attributes: host.chain(owner).collect(),
                    ..Resource::default()
                }),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(InstrumentationScope {
                        name: "nvcap".to_owned(),
                        version: version.to_owned(),
                        ..InstrumentationScope::default()
                    }),
                    metrics,
                    ..ScopeMetrics::default()
                }],
                ..ResourceMetrics::default()
            }
        };
        ExportMetricsServiceRequest {
            resource_metrics: self.resources.into_iter().map(of_owner).collect(),
        }
    }
}

impl Family {
    fn metric(&self) -> Metric {
        let data = match self.kind {
            Kind::Count | Kind::Counter => Data::Sum(Sum {
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                is_monotonic: true,
                ..Sum::default()
            }),
            Kind::Gauge | Kind::Info => Data::Gauge(Gauge::default()),
            Kind::Histogram => Data::ExponentialHistogram(ExponentialHistogram {
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                ..ExponentialHistogram::default()
            }),
        };
        Metric {
            name: self.name.clone(),
            description: self.help.to_owned(),
            unit: self.unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        }
    }
}

impl Writer for Batch<'_> {
    fn family(&mut self, name: &'static str, kind: Kind, unit: &'static str, help: &'static str) {
        let (mut name, unit) = named(name, unit);
        if kind == Kind::Info {
            name.push_str(".info");
        }
        self.family = Some(Family {
            name,
            help,
            unit,
            kind,
        });
    }

    fn gauge(&mut self, labels: &Labels<'_>, value: f64) {
        self.point(labels, value, None);
    }

    fn counter(&mut self, labels: &Labels<'_>, value: f64, created: f64) {
        self.point(labels, value, Some(created));
    }

    fn histogram(&mut self, labels: &Labels<'_>, delays: &Delays, created: f64) {
        let (start, now) = (self.start(Some(created)), self.unix_ns);
        let Some((_, metric, attributes)) = self.metric(labels) else {
            return;
        };
        // All buckets from the first to the last that has something.
        let first = delays.buckets.keys().next().copied().unwrap_or(0);
        let end = delays
            .buckets
            .keys()
            .next_back()
            .map_or(first, |last| last + 1);
        let counts = (first..end).map(|n| delays.buckets.get(&n).copied().unwrap_or(0));
        let point = ExponentialHistogramDataPoint {
            attributes,
            start_time_unix_nano: start,
            time_unix_nano: now,
            count: delays.count,
            sum: Some(delays.sum),
            scale: SCALE,
            positive: Some(Buckets {
                offset: first,
                bucket_counts: counts.collect(),
            }),
            ..ExponentialHistogramDataPoint::default()
        };
        if let Some(Data::ExponentialHistogram(all)) = &mut metric.data {
            all.data_points.push(point);
        }
    }

    fn info(&mut self, labels: &Labels<'_>) {
        self.point(labels, 1.0, None);
    }
}
