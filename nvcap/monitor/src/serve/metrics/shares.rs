//! Metrics of who had the GPUs, by the driver's record of context switches.

use super::super::writer::{Kind, Writer};
use super::labels::{Constants, NS, Of};
use crate::counts::view::{EngineShares, View};

/// Writes the metrics, where the driver is asked.
pub(super) fn metrics(text: &mut impl Writer, view: &View, constants: &Constants) {
    let Some(shares) = &view.shares else {
        return;
    };
    text.family(
        "nvcap_gpu_context_seconds",
        Kind::Counter,
        "seconds",
        "Time for which contexts were resident on the graphics and compute engine, whether or not they worked.",
    );
    for (key, ns) in &shares.resident_ns {
        let labels = Of::new(key, constants);
        text.counter(&labels.labels(&[]), *ns as f64 * NS, constants.began);
    }
    type Value = fn(&EngineShares) -> f64;
    let mut engines = |name, kind, unit, help, of: Value| {
        text.family(name, kind, unit, help);
        for (key, engine) in &shares.engines {
            let labels = Of::new(key, constants);
            text.counter(&labels.labels(&[]), of(engine), constants.began);
        }
    };
    engines(
        "nvcap_gpu_switch_seconds",
        Kind::Counter,
        "seconds",
        "Time between a context's end on the engine and the next one's begin.",
        |of| of.switch_ns as f64 * NS,
    );
    engines(
        "nvcap_gpu_switches",
        Kind::Count,
        "",
        "Context switches.",
        |of| of.switches as f64,
    );
    engines(
        "nvcap_gpu_unknown_context_seconds",
        Kind::Counter,
        "seconds",
        "Time of which it is not known who had the engine.",
        |of| of.unknown_ns as f64 * NS,
    );
    engines(
        "nvcap_gpu_lost_switch_records",
        Kind::Count,
        "",
        "Records of context switches that the driver has lost, at least.",
        |of| of.missing as f64,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::view::{Key, Owner, Shares};
    use crate::serve::metrics::metrics;

    #[test]
    fn shares_are_counters_by_owner_and_absent_where_nobody_asks() {
        let constants = Constants::made_up();
        let text = metrics(&View::default(), None, &constants);
        assert!(!text.contains("nvcap_gpu_context"), "{text}");
        let gpu = Key {
            gpu: Some(0),
            ..Key::default()
        };
        let owner = Owner {
            namespace: "research".to_owned(),
            pod: "notebook".to_owned(),
            container: "main".to_owned(),
        };
        let mut shares = Shares::default();
        let pod = Key {
            owner,
            ..gpu.clone()
        };
        shares.resident_ns.insert(pod, 2_500_000_000);
        let engine = EngineShares {
            switches: 540,
            switch_ns: 2_500_000_000,
            unknown_ns: 0,
            missing: 3,
        };
        shares.engines.insert(gpu, engine);
        let view = View {
            shares: Some(shares),
            ..View::default()
        };
        let text = metrics(&view, None, &constants);
        for line in [
            "nvcap_gpu_context_seconds_total{UUID=\"GPU-1\",gpu=\"0\",namespace=\"research\",pod=\"notebook\",container=\"main\"} 2.5",
            "nvcap_gpu_switch_seconds_total{UUID=\"GPU-1\",gpu=\"0\"} 2.5",
            "nvcap_gpu_switches_total{UUID=\"GPU-1\",gpu=\"0\"} 540",
            "nvcap_gpu_lost_switch_records_total{UUID=\"GPU-1\",gpu=\"0\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }
}
