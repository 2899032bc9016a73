use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point};
use prost::Message as _;
use tokio::time::Instant;

use super::push::{Sender, due, push};
use super::request::request;
use super::target::{Target, resource};
use crate::counts::delay::Delays;
use crate::counts::detail::Sampled;
use crate::counts::fakes::{FakeProcess, Fakes};
use crate::counts::host::{Host, HostOptions};
use crate::counts::view::{Key, Owner, View};
use crate::serve::metrics::{Constants, Errors, metrics};

fn owner(namespace: &str, pod: &str, container: &str) -> Owner {
    Owner {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        container: container.to_owned(),
    }
}

/// A host with processes in a pod, in two containers and in none.
fn view() -> View {
    let options = HostOptions {
        by_process: true,
        ..HostOptions::default()
    };
    let mut host = Host::new(Fakes::default(), options);
    let owners = [
        owner("ml", "train-0", "main"),
        owner("", "", "0123456789abcdef"),
        owner("", "", "registry"),
        Owner::default(),
    ];
    for (n, owner) in (1..).zip(owners) {
        let mut process = FakeProcess::new(n);
        process.memory.submit(0, 1, 10 * u64::from(n));
        process.memory.done(0, 4);
        if owner.pod == "train-0" {
            process.container_id = "fedcba9876543210".to_owned();
        }
        process.owner = owner;
        host.system.processes.insert(100 + n, process);
    }
    for _ in 0..2 {
        host.system.now += 1_000_000_000;
        host.round();
    }
    host.view()
}

fn attributes(of: &[KeyValue]) -> BTreeMap<String, String> {
    let value = |kv: &KeyValue| match kv.value.clone().and_then(|v| v.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let pairs: Vec<_> = of.iter().map(|kv| (kv.key.clone(), value(kv))).collect();
    let map: BTreeMap<_, _> = pairs.iter().cloned().collect();
    assert_eq!(map.len(), pairs.len(), "a key twice: {pairs:?}");
    map
}

/// Every point as it is at `/metrics`, by the rules for translating OTLP to Prometheus; with its labels sorted.
fn translated(request: &ExportMetricsServiceRequest) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    for of in &request.resource_metrics {
        let resource = attributes(&of.resource.as_ref().unwrap().attributes);
        assert_eq!(resource["service.name"], "nvcap");
        let resource_is_pod = resource.contains_key("k8s.pod.name");
        for metric in &of.scope_metrics[0].metrics {
            let unit = match metric.unit.as_str() {
                "s" => "_seconds",
                "By" => "_bytes",
                "1" => "_ratio",
                "" => "",
                other => panic!("{other}"),
            };
            let (suffix, points) = match metric.data.as_ref().unwrap() {
                Data::Sum(sum) => {
                    assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
                    ("_total", &sum.data_points)
                }
                Data::Gauge(gauge) => ("", &gauge.data_points),
                other => panic!("{other:?}"),
            };
            assert!(!points.is_empty(), "{}", metric.name);
            let name = format!("{}{unit}{suffix}", metric.name.replace('.', "_"));
            for point in points {
                let labels = attributes(&point.attributes).into_iter();
                let resource = resource.clone().into_iter();
                let label = |(key, value): (String, String)| {
                    let key = match key.as_str() {
                        "hw.id" => "UUID",
                        "hw.model" => "modelName",
                        "process.pid" => "pid",
                        "process.executable.name" => "comm",
                        "k8s.namespace.name" => "namespace",
                        "k8s.pod.name" => "pod",
                        // Of a container of Kubernetes it is no label at /metrics.
                        "container.id" if resource_is_pod => return None,
                        "k8s.container.name" | "container.name" | "container.id" => "container",
                        "service.name" | "service.version" | "host.name" | "os.type" => {
                            return None;
                        }
                        other => other,
                    };
                    Some(format!("{key}=\"{value}\""))
                };
                let mut labels: Vec<_> = labels.chain(resource).filter_map(label).collect();
                labels.sort();
                let value = match point.value.unwrap() {
                    number_data_point::Value::AsInt(count) => count as f64,
                    number_data_point::Value::AsDouble(value) => value,
                };
                assert!(point.start_time_unix_nano <= point.time_unix_nano);
                assert_eq!(suffix == "_total", point.start_time_unix_nano > 0, "{name}");
                let before = series.insert(format!("{name}{{{}}}", labels.join(",")), value);
                assert_eq!(before, None, "{name} {labels:?} twice");
            }
        }
    }
    series
}

fn host() -> Vec<(String, String)> {
    resource("1", Some("a\n"), None, "").unwrap()
}

#[test]
fn the_same_as_at_metrics() {
    let view = view();
    let errors = Errors::from([((Key::default(), 31), 2)]);
    let text = metrics(&view, Some(&errors), &Constants::made_up());
    let mut expected = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let mut labels: Vec<&str> = labels.trim_end_matches('}').split(',').collect();
        labels.sort_unstable();
        let series = format!("{name}{{{}}}", labels.join(","));
        if !name.ends_with("_created") {
            expected.insert(series, value.parse::<f64>().unwrap());
        }
    }
    assert!(expected.len() > 40, "{text}");
    let request = request(&view, Some(&errors), &Constants::made_up(), &host());
    assert_eq!(translated(&request), expected);
}

#[test]
fn whose_a_metric_is() {
    let request = request(&view(), None, &Constants::made_up(), &host());
    let of = |key: &str| {
        let resources = request.resource_metrics.iter();
        let of = resources.map(|r| attributes(&r.resource.as_ref().unwrap().attributes));
        of.filter_map(|a| a.get(key).cloned())
            .collect::<Vec<String>>()
    };
    assert_eq!(of("host.name"), ["a"; 4]);
    assert_eq!(of("k8s.pod.name"), ["train-0"]);
    assert_eq!(of("k8s.container.name"), ["main"]);
    assert_eq!(of("container.id"), ["0123456789abcdef", "fedcba9876543210"]);
    assert_eq!(of("container.name"), ["registry"]);
}

#[test]
fn urls_and_variables() {
    for (url, whole, host, port, tls) in [
        (
            "http://127.0.0.1:4318",
            "http://127.0.0.1:4318/v1/metrics",
            "127.0.0.1",
            4318,
            false,
        ),
        ("http://a/", "http://a/v1/metrics", "a", 80, false),
        (
            "https://a.b/otlp",
            "https://a.b/otlp/v1/metrics",
            "a.b",
            443,
            true,
        ),
        (
            "https://[::1]:1/v1/metrics",
            "https://[::1]:1/v1/metrics",
            "::1",
            1,
            true,
        ),
    ] {
        let target = Target::new(url, "").unwrap();
        let got = (
            target.uri.to_string(),
            target.host.as_str(),
            target.port,
            target.tls,
        );
        assert_eq!(got, (whole.to_owned(), host, port, tls));
    }
    for bad in [
        "",
        "collector:4318",
        "ftp://a",
        "http://",
        "http://u:p@a",
        "http://a?x=1",
        "http://a b",
    ] {
        let why = Target::new(bad, "").unwrap_err();
        assert!(why.contains("is no collector's URL"), "{why}");
    }
    let target = Target::new("http://a", " authorization=Bearer%20s%2Ct , x=1,").unwrap();
    let headers: Vec<_> = target
        .headers
        .iter()
        .map(|(k, v)| (k.as_str(), v.to_str().unwrap()))
        .collect();
    assert_eq!(headers, [("authorization", "Bearer s,t"), ("x", "1")]);
    assert!(!format!("{target:?}").contains("s,t"), "{target:?}");
    for bad in ["secret", "=secret", "a=%2", "a=%zz", "a b=c", "a=%0a"] {
        let why = Target::new("http://a", bad).unwrap_err();
        assert!(why.contains("OTEL_EXPORTER_OTLP_HEADERS") && !why.contains("secret"));
    }
    let more = "host.name=b,k8s.cluster.name=c%20d";
    let given = resource("1", Some("a"), Some("id"), more).unwrap();
    let given: BTreeMap<_, _> = given.into_iter().collect();
    assert_eq!(
        (given["host.name"].as_str(), given["host.id"].as_str()),
        ("b", "id")
    );
    assert_eq!(given["k8s.cluster.name"], "c d");
    assert!(resource("1", None, None, "x").is_err());
}

/// Request that a collector got: its head, and its body.
type Got = (String, ExportMetricsServiceRequest);

/// Starts a collector that gives these answers, one a connection. Returns its URL and the requests that it gets.
fn collector(answers: Vec<(&'static str, Vec<u8>)>) -> (String, mpsc::Receiver<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (to, got) = mpsc::channel();
    std::thread::spawn(move || {
        for (head, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut asked, mut len) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                let lower = line.to_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    len = value.trim().parse().unwrap();
                }
                asked.push_str(&lower);
            }
            let mut zipped = vec![0; len];
            reader.read_exact(&mut zipped).unwrap();
            let mut bytes = Vec::new();
            GzDecoder::new(&zipped[..]).read_to_end(&mut bytes).unwrap();
            let request = ExportMetricsServiceRequest::decode(&bytes[..]).unwrap();
            let len = body.len();
            write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {len}\r\n\r\n").unwrap();
            stream.write_all(&body).unwrap();
            if to.send((asked, request)).is_err() {
                return;
            }
        }
    });
    (url, got)
}

/// Time enough to be refused and to come again, however busy the machine is.
const LONG: Duration = Duration::from_secs(600);

fn sent(sender: &Sender, limit: Duration) -> Result<Option<String>, String> {
    let request = request(&view(), None, &Constants::made_up(), &host());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(sender.send(&request, Instant::now() + limit))
}

fn sender(url: &str) -> Sender {
    let target = Target::new(url, "authorization=Bearer%20t").unwrap();
    Sender::new(target, None, "1").unwrap()
}

#[test]
fn a_collector_that_is_busy_is_asked_again() {
    let partial = ExportMetricsServiceResponse {
        partial_success: Some(ExportMetricsPartialSuccess {
            rejected_data_points: 3,
            error_message: "too old".to_owned(),
        }),
    };
    let (url, got) = collector(vec![
        ("503 Busy\r\nRetry-After: 0", Vec::new()),
        ("429 Too Many\r\nRetry-After: 0", Vec::new()),
        ("200 OK", partial.encode_to_vec()),
    ]);
    let said = sent(&sender(&url), LONG).unwrap();
    assert_eq!(said.as_deref(), Some("3 points were not taken: too old"));
    let all: Vec<Got> = got.iter().take(3).collect();
    for (head, request) in &all {
        assert!(head.starts_with("post /v1/metrics http/1.1\r\n"), "{head}");
        for line in [
            "content-type: application/x-protobuf",
            "content-encoding: gzip",
            "user-agent: nvcap/1",
            "authorization: bearer t",
        ] {
            assert!(head.contains(line), "{head}");
        }
        assert_eq!(translated(request), translated(&all[0].1));
    }
}

#[test]
fn what_is_not_taken_is_not_sent_again() {
    let (url, got) = collector(vec![("400 Bad Request", Vec::new())]);
    let why = sent(&sender(&url), LONG).unwrap_err();
    assert!(why.contains("400"), "{why}");
    assert_eq!(got.iter().count(), 1);
    // Nobody is there; there is no time to try once more.
    let why = sent(&sender("http://127.0.0.1:1"), Duration::from_secs(5)).unwrap_err();
    assert!(why.contains("cannot connect"), "{why}");
    // An answer that asks for a pause that is longer than the time that is left.
    let (url, _got) = collector(vec![("503 Busy\r\nRetry-After: 3600", Vec::new())]);
    let why = sent(&sender(&url), LONG).unwrap_err();
    assert!(why.contains("503"), "{why}");
    // A wrong file of certificates is told.
    let target = Target::new("https://a", "").unwrap();
    let file = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    assert!(Sender::new(target, Some(file), "1").is_err());
}

/// A failure is told once, and so is its end.
#[test]
fn goes_on_after_failures() {
    let (url, got) = collector(vec![
        ("200 OK", Vec::new()),
        ("400 Bad", Vec::new()),
        ("400 Bad", Vec::new()),
        ("200 OK", Vec::new()),
        ("200 OK", Vec::new()),
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (tell, told) = mpsc::channel();
    let made = || Some(request(&view(), None, &Constants::made_up(), &host()));
    let say = move |text| tell.send(text).unwrap();
    runtime.spawn(push(
        Arc::new(sender(&url)),
        Duration::from_millis(1),
        made,
        say,
    ));
    runtime.block_on(async {
        tokio::task::spawn_blocking(move || assert_eq!(got.iter().take(5).count(), 5))
            .await
            .unwrap();
    });
    drop(runtime);
    let told: Vec<String> = told.iter().collect();
    assert!(
        told.len() == 2 && told[0].contains("400") && told[1].contains("missed before: 2"),
        "{told:?}"
    );
}

#[test]
fn metrics_are_due_each_interval_and_not_several_times_after_a_delay() {
    let (begun, second) = (Instant::now(), Duration::from_secs(1));
    let next = due(begun, 10 * second, begun + second);
    assert_eq!(next, begun + 10 * second);
    let next = due(next, 10 * second, begun + 45 * second);
    assert_eq!(next, begun + 45 * second);
    let next = due(next, 10 * second, begun + 46 * second);
    assert_eq!(next, begun + 55 * second);
}

/// Times are sent as a histogram whose buckets grow by a factor.
#[test]
fn a_histogram() {
    let mut view = view();
    let key = view.sums.keys().next().unwrap().clone();
    let delays = Delays {
        buckets: [(-41, 2), (-39, 3)].into(),
        count: 5,
        sum: 0.25,
    };
    let sampled = Sampled {
        delays,
        ..Sampled::default()
    };
    view.sampled.insert(key, sampled);
    let request = request(&view, None, &Constants::made_up(), &host());
    let metrics = request.resource_metrics.iter();
    let mut metrics = metrics.flat_map(|r| &r.scope_metrics[0].metrics);
    let metric = metrics
        .find(|m| m.name == "nvcap.completion_delay")
        .unwrap();
    assert_eq!(metric.unit, "s");
    let Some(Data::ExponentialHistogram(all)) = &metric.data else {
        panic!("{metric:?}");
    };
    assert_eq!((all.aggregation_temporality, all.data_points.len()), (2, 1));
    let point = &all.data_points[0];
    assert_eq!((point.scale, point.count, point.sum), (2, 5, Some(0.25)));
    assert!(0 < point.start_time_unix_nano && point.start_time_unix_nano <= point.time_unix_nano);
    let positive = point.positive.as_ref().unwrap();
    assert_eq!(
        (positive.offset, &positive.bucket_counts[..]),
        (-41, &[2, 0, 3][..])
    );
}
