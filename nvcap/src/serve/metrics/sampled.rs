//! What samples tell (`--sample`): estimated totals, each with the error that it may have, and how busy GPUs are.

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

/// Writes what the counters of samples had of those that have no series any more.
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
    for ((gpu, engine), share) in &view.busy {
        let key = Key {
            gpu: *gpu,
            ..Key::default()
        };
        text.gauge(
            &Of::new(&key, constants).labels(&[("engine", engine)]),
            share.share,
        );
    }
}
