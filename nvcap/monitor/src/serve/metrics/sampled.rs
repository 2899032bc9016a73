//! Metrics from samples (`--sample`): estimated totals, each with the error that it may have, and how busy GPUs are.

use super::super::writer::{Kind, Writer};
use super::labels::{Constants, NS, Of};
use super::lost;
use crate::counts::detail::What;
use crate::counts::view::{Folded, Key, View};

type Labels = Vec<(&'static str, &'static str)>;

/// A counter that is estimated.
struct Family {
    name: &'static str,
    help: &'static str,
    /// The labels of a sum that belongs to it.
    labels: fn(What) -> Option<Labels>,
}

const FAMILIES: [Family; 5] = [
    Family {
        name: "nvcap_kernel_launches",
        help: "Launches of kernels, estimated from samples.",
        labels: |what| (what == What::Launches).then(Vec::new),
    },
    Family {
        name: "nvcap_graph_launches",
        help: "Launches of CUDA graphs, estimated from samples.",
        labels: |what| (what == What::Graphs).then(Vec::new),
    },
    Family {
        name: "nvcap_pushbuffer_bytes",
        help: "Bytes of pushbuffers, estimated from samples.",
        labels: |what| (what == What::PushbufferBytes).then(Vec::new),
    },
    Family {
        name: "nvcap_copy_operations",
        help: "Copies and memsets, estimated from samples.",
        labels: |what| match what {
            What::Copies(by, path) => Some(vec![("kind", by.word()), ("path", path)]),
            _ => None,
        },
    },
    Family {
        name: "nvcap_copy_bytes",
        help: "Bytes of copies and memsets, estimated from samples.",
        labels: |what| match what {
            What::CopyBytes(by, path) => Some(vec![("kind", by.word()), ("path", path)]),
            _ => None,
        },
    },
];

/// The unit that a name ends with.
fn unit(name: &str) -> &'static str {
    if name.ends_with("_bytes") {
        "bytes"
    } else {
        ""
    }
}

/// Writes how long submissions took.
fn delays(text: &mut impl Writer, view: &View, constants: &Constants) {
    let mut all = view
        .sampled
        .iter()
        .filter(|(_, s)| s.delays.count > 0)
        .peekable();
    if all.peek().is_none() {
        return;
    }
    text.family(
        "nvcap_completion_delay_seconds",
        Kind::Histogram,
        "seconds",
        "How long submissions took at most: from the last look at which they were not there to the first at which they were done.",
    );
    for (key, sampled) in all {
        let of = Of::new(key, constants);
        text.histogram(
            &of.labels(&[]),
            &sampled.delays,
            created(view, key, constants),
        );
    }
}

/// Writes the sums that counters of samples had of keys that have no series any more.
fn ended(text: &mut impl Writer, view: &View, constants: &Constants) {
    let is_any = |of: &Folded| of.left > 0 || !of.sampled.is_empty();
    if !view.folded.values().any(is_any) {
        return;
    }
    text.family(
        "nvcap_ended_counters",
        Kind::Counter,
        "",
        "What other counters had of processes and containers that ended long ago and have no series of their own any more.",
    );
    for (gpu, folded) in &view.folded {
        let key = Key {
            gpu: *gpu,
            ..Key::default()
        };
        let of = Of::new(&key, constants);
        let mut write = |metric: &'static str, labels: Labels, value: f64| {
            if value > 0.0 {
                let labels: Vec<_> = [("metric", metric)].into_iter().chain(labels).collect();
                text.counter(&of.labels(&labels), value, constants.began);
            }
        };
        let sampled = &folded.sampled;
        for (what, estimate) in &sampled.sums {
            for family in &FAMILIES {
                if let Some(labels) = (family.labels)(*what) {
                    write(family.name, labels, estimate.total);
                }
            }
        }
        write(
            "nvcap_sampled_submissions",
            Vec::new(),
            sampled.submissions.1 as f64,
        );
        write(
            "nvcap_completion_delay_seconds_count",
            Vec::new(),
            sampled.delays.count as f64,
        );
        write(
            "nvcap_completion_delay_seconds_sum",
            Vec::new(),
            sampled.delays.sum,
        );
        let lost = lost::of_samples(sampled);
        for (reason, count) in lost.into_iter().chain([("ended", folded.left)]) {
            write(lost::NAME, vec![("reason", reason)], count as f64);
        }
    }
}

fn created(view: &View, key: &Key, constants: &Constants) -> f64 {
    let of = view.sums.get(key).map(|c| c.created_unix_ns);
    of.map_or(constants.began, |ns| ns as f64 * NS)
}

/// Writes the estimated metrics, if samples are taken.
pub(super) fn metrics(text: &mut impl Writer, view: &View, constants: &Constants) {
    ended(text, view, constants);
    if view.sampled.is_empty() && view.busy.is_empty() {
        return;
    }
    let created = |key: &Key| created(view, key, constants);
    for family in &FAMILIES {
        text.family(family.name, Kind::Counter, unit(family.name), family.help);
        for (key, sampled) in &view.sampled {
            let of = Of::new(key, constants);
            for (what, estimate) in &sampled.sums {
                if let Some(labels) = (family.labels)(*what) {
                    text.counter(&of.labels(&labels), estimate.total, created(key));
                }
            }
        }
    }
    text.family(
        "nvcap_estimate_error_ratio",
        Kind::Gauge,
        "ratio",
        "Half of the 95 % interval of an estimated total, as a part of it.",
    );
    for (key, sampled) in &view.sampled {
        let of = Of::new(key, constants);
        for (what, estimate) in sampled.sums.iter().filter(|(_, e)| e.total > 0.0) {
            let families = FAMILIES.iter();
            for (family, labels) in families.filter_map(|f| Some((f.name, (f.labels)(*what)?))) {
                let labels: Vec<_> = [("metric", family)].into_iter().chain(labels).collect();
                text.gauge(&of.labels(&labels), estimate.error() / estimate.total);
            }
        }
    }
    text.family(
        "nvcap_sampled_submissions",
        Kind::Count,
        "",
        "Submissions that were decoded for the estimates.",
    );
    for (key, sampled) in &view.sampled {
        let of = Of::new(key, constants);
        text.counter(&of.labels(&[]), sampled.submissions.1 as f64, created(key));
    }
    delays(text, view, constants);
    text.family(
        "nvcap_gpu_busy_ratio",
        Kind::Gauge,
        "ratio",
        "The part of the last minute in which a GPU had work of the processes that are counted: on any engine, kernels, copies.",
    );
    let units: Vec<_> = { view.busy.iter() }
        .map(|((gpu, engine), share)| (of_gpu(*gpu), *engine, share))
        .collect();
    for (key, engine, share) in &units {
        let of = Of::new(key, constants);
        text.gauge(&of.labels(&[("engine", engine)]), share.share);
    }
    text.family(
        "nvcap_gpu_busy_bound_ratio",
        Kind::Gauge,
        "ratio",
        "The ends of the 95 % interval of nvcap_gpu_busy_ratio.",
    );
    for (key, engine, share) in &units {
        let of = Of::new(key, constants);
        for (bound, value) in [("lower", share.interval.0), ("upper", share.interval.1)] {
            text.gauge(&of.labels(&[("engine", engine), ("bound", bound)]), value);
        }
    }
}

fn of_gpu(gpu: Option<u32>) -> Key {
    Key {
        gpu,
        ..Key::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::counts::detail::estimate::{Estimate, Share};
    use crate::counts::detail::{Doing, Mover, Sampled};
    use crate::counts::view::{Counted, Named, Owner};
    use crate::serve::open_metrics::Text;
    use nvcap_decode::wire::GpuVa;

    fn written(view: &View) -> String {
        let mut text = Text::default();
        metrics(&mut text, view, &Constants::made_up());
        text.end()
    }

    /// Every line of a value, `_created` aside.
    fn values(text: &str) -> BTreeMap<&str, f64> {
        let lines = text.lines().filter(|l| !l.starts_with('#'));
        lines
            .filter_map(|l| l.rsplit_once(' '))
            .filter(|(series, _)| !series.contains("_created"))
            .map(|(series, value)| (series, value.parse().unwrap()))
            .collect()
    }

    fn of_pod() -> Key {
        let owner = Owner {
            namespace: "research".to_owned(),
            pod: "train-0".to_owned(),
            container: "worker".to_owned(),
        };
        let mut process = Named::default();
        (process.pid, process.name) = (7, "python3".to_owned());
        Key {
            owner,
            process: Some(process),
            gpu: Some(0),
            instance: None,
        }
    }

    fn estimate(total: f64, half: f64) -> Estimate {
        let deviation = half / crate::counts::detail::estimate::Z95;
        Estimate {
            total,
            variance: deviation * deviation,
        }
    }

    /// Samples of one process: launches, two kinds of copies, a kernel, and what the GPU was at.
    fn made() -> View {
        let sampled = Sampled {
            sums: [
                (What::Launches, estimate(1000.0, 50.0)),
                (What::Graphs, estimate(0.0, 0.0)),
                (What::PushbufferBytes, estimate(4096.0, 0.0)),
                (What::Copies(Mover::Engine, "d2h"), estimate(30.0, 3.0)),
                (
                    What::CopyBytes(Mover::Engine, "d2h"),
                    estimate(3e6, 600_000.0),
                ),
                (What::Copies(Mover::Inline, "h2d"), estimate(5.0, 0.0)),
                (What::CopyBytes(Mover::Inline, "h2d"), estimate(20.0, 0.0)),
                (What::Kernel(Some(GpuVa(0xabc0))), estimate(900.0, 60.0)),
                (What::Kernel(None), estimate(100.0, 60.0)),
            ]
            .into(),
            submissions: (2000, 96),
            unread: 3,
            moments: (400, 100),
            at: [(Doing::Kernel(GpuVa(0xabc0)), 100.0)].into(),
            ..Sampled::default()
        };
        let counted = Counted {
            created_unix_ns: 1_700_000_000_000_000_000,
            ..Counted::default()
        };
        View {
            sums: [(of_pod(), counted)].into(),
            sampled: [(of_pod(), sampled)].into(),
            busy: [
                ((Some(0), "any"), Share::new(25.0, 100.0).unwrap()),
                ((None, "copy"), Share::new(1.0, 100.0).unwrap()),
            ]
            .into(),
            ..View::default()
        }
    }

    #[test]
    fn samples_as_series() {
        const G: &str = r#"UUID="GPU-1",gpu="0",namespace="research",pod="train-0",container="worker",pid="7",comm="python3""#;
        let text = written(&made());
        let mut expected = BTreeMap::new();
        let mut expect = |name: &str, more: &str, value: f64| {
            expected.insert(format!("{name}{{{G}{more}}}"), value);
        };
        let (d2h, h2d) = (
            r#",kind="engine",path="d2h""#,
            r#",kind="inline",path="h2d""#,
        );
        expect("nvcap_kernel_launches_total", "", 1000.0);
        expect("nvcap_graph_launches_total", "", 0.0);
        expect("nvcap_pushbuffer_bytes_total", "", 4096.0);
        expect("nvcap_copy_operations_total", d2h, 30.0);
        expect("nvcap_copy_bytes_total", d2h, 3e6);
        expect("nvcap_copy_operations_total", h2d, 5.0);
        expect("nvcap_copy_bytes_total", h2d, 20.0);
        expect("nvcap_sampled_submissions_total", "", 96.0);
        let mut error = |metric: &str, more: &str, value: f64| {
            let more = format!(",metric=\"{metric}\"{more}");
            expect("nvcap_estimate_error_ratio", &more, value);
        };
        error("nvcap_kernel_launches", "", 0.05);
        error("nvcap_pushbuffer_bytes", "", 0.0);
        error("nvcap_copy_operations", d2h, 0.1);
        error("nvcap_copy_bytes", d2h, 0.2);
        error("nvcap_copy_operations", h2d, 0.0);
        error("nvcap_copy_bytes", h2d, 0.0);
        let mut busy = |labels: &str, share: f64, (lower, upper): (f64, f64)| {
            expected.insert(format!("nvcap_gpu_busy_ratio{{{labels}}}"), share);
            for (bound, value) in [("lower", lower), ("upper", upper)] {
                let name = "nvcap_gpu_busy_bound_ratio";
                expected.insert(format!("{name}{{{labels},bound=\"{bound}\"}}"), value);
            }
        };
        // Wilson's intervals, from a table.
        busy(
            r#"UUID="GPU-1",gpu="0",engine="any""#,
            0.25,
            (0.1755, 0.3430),
        );
        busy(r#"engine="copy""#, 0.01, (0.0018, 0.0545));
        let got = values(&text);
        let names: Vec<&str> = got.keys().copied().collect();
        let expected_names: Vec<&str> = expected.keys().map(String::as_str).collect();
        assert_eq!(names, expected_names);
        for (series, value) in expected {
            let got = got[series.as_str()];
            assert!(
                (got - value).abs() <= 1e-4 * value.max(1.0),
                "{series} {got}, not {value}"
            );
        }
        // Each total is a counter with the time at which it was 0.
        let created = format!("nvcap_kernel_launches_created{{{G}}} 1700000000\n");
        assert!(text.contains(&created), "{text}");
    }

    /// A program has thousands of kernels: their names, and their addresses, are no labels.
    #[test]
    fn kernels_are_no_series() {
        let view = made();
        let mut more = view.clone();
        let sums = &mut more.sampled.get_mut(&of_pod()).unwrap().sums;
        for n in 0..1000 {
            sums.insert(What::Kernel(Some(GpuVa(n))), estimate(1.0, 1.0));
        }
        assert_eq!(written(&view), written(&more));
    }

    #[test]
    fn without_samples_there_is_nothing() {
        let none = View {
            sampled: BTreeMap::new(),
            busy: BTreeMap::new(),
            ..made()
        };
        assert_eq!(written(&none), Text::default().end());
    }
}
