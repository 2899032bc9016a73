//! Metrics of nvcap itself, and of what it watches.

use super::super::writer::{Kind, Writer};
use super::labels::{Constants, NS};
use crate::counts::view::View;

/// Writes the metrics of nvcap itself.
pub(super) fn metrics(text: &mut impl Writer, view: &View, constants: &Constants) {
    blind(text, view, constants);
    text.family(
        "nvcap_cpu_seconds",
        Kind::Counter,
        "seconds",
        "CPU time of nvcap.",
    );
    text.counter(&[], view.cpu_ns as f64 * NS, constants.began);
    text.family(
        "nvcap_late_readings",
        Kind::Count,
        "",
        "Readings that came later than --interval, to keep to --budget.",
    );
    text.counter(&[], view.stretched as f64, constants.began);
    watching(text, view);
    text.family(
        "nvcap_given_up_processes",
        Kind::Gauge,
        "",
        "Processes whose memory did not answer within 4 s: they are not counted until it does, and nobody else waits for them.",
    );
    text.gauge(&[], view.given_up as f64);
    gpus(text, constants);
    processes(text, view);
    text.family("nvcap_build", Kind::Info, "", "This nvcap.");
    text.info(&[("version", &constants.version)]);
}

fn blind(text: &mut impl Writer, view: &View, constants: &Constants) {
    text.family(
        "nvcap_blind_seconds",
        Kind::Counter,
        "seconds",
        "Time in which submissions may have passed unseen, of all processes together.",
    );
    for reason in ["not_running", "unreadable", "ended", "ended_idle"] {
        let ns = view.blind_ns.get(reason).copied().unwrap_or(0);
        text.counter(&[("reason", reason)], ns as f64 * NS, constants.began);
    }
}

fn watching(text: &mut impl Writer, view: &View) {
    let (mut exact, mut by_ring, mut at_least) = (0, 0, 0);
    for process in view.processes.iter().filter(|p| p.shares.is_none()) {
        match () {
            () if process.gpus.values().any(|of| of.by_ring > 0) => by_ring += 1,
            () if process.gpus.values().any(|of| !of.doubts.is_empty()) => at_least += 1,
            () => exact += 1,
        }
    }
    let none = view.refused.len();
    let all = exact + by_ring + at_least + none;
    if all == 0 {
        return;
    }
    text.family(
        "nvcap_watching_ratio",
        Kind::Gauge,
        "ratio",
        "The part of the processes that use a GPU, or may use one as they cannot be looked into, that is counted exactly, by rings that may lap unseen, at least as there may have been more, or not at all.",
    );
    let all_ways = [
        ("exact", exact),
        ("ring", by_ring),
        ("at_least", at_least),
        ("none", none),
    ];
    for (how, count) in all_ways {
        text.gauge(&[("how", how)], count as f64 / all as f64);
    }
}

fn gpus(text: &mut impl Writer, constants: &Constants) {
    if constants.gpus.is_empty() {
        return;
    }
    text.family("nvcap_gpu", Kind::Info, "", "The GPUs of this machine.");
    for (minor, gpu) in &constants.gpus {
        let minor = minor.to_string();
        let labels = [
            ("UUID", gpu.uuid.as_str()),
            ("gpu", &minor),
            ("modelName", &gpu.model),
            ("pci_bus_id", &gpu.bus),
        ];
        text.info(&labels);
    }
}

fn processes(text: &mut impl Writer, view: &View) {
    let named: Vec<_> = view.processes.iter().filter(|p| p.has_series).collect();
    if named.is_empty() {
        return;
    }
    text.family(
        "nvcap_process",
        Kind::Info,
        "",
        "Processes with memory of a GPU.",
    );
    for process in named {
        let (pid, began) = (process.pid.to_string(), process.began_unix_ns as f64 * NS);
        let (owner, began) = (&process.owner, format!("{began:.2}"));
        let shares = process.shares.map_or(String::new(), |pid| pid.to_string());
        let labels = [
            ("namespace", owner.namespace.as_str()),
            ("pod", &owner.pod),
            ("container", &owner.container),
            ("pid", &pid),
            ("comm", &process.name),
            ("began", &began),
            ("counted_with", &shares),
        ];
        text.info(&labels);
    }
}
