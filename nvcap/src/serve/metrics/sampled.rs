//! What samples tell (`--sample`): estimated totals, each with the error that it may have, and how busy GPUs are.

use super::super::writer::{Kind, Writer};
use super::labels::{Constants, NS, Of};
use crate::counts::detail::What;
use crate::counts::view::{Key, View};

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

/// Writes the estimated metrics, if samples are taken.
pub(super) fn metrics(text: &mut impl Writer, view: &View, constants: &Constants) {
    if view.sampled.is_empty() && view.busy.is_empty() {
        return;
    }
    let created = |key: &Key| {
        let of = view.sums.get(key).map(|c| c.created_unix_ns);
        of.map_or(constants.began, |ns| ns as f64 * NS)
    };
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
