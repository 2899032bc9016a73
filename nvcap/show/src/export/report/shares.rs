//! Shares of the GPUs by process, from the driver's record of context switches.

use serde_json::{Value, json};

use crate::shares::{Shares, lacks, title, unnamed, verdicts};
use nvcap_decode::switches::{EngineView, GpuView, Who};

/// The most processes of each engine that the page shows.
const MOST: usize = 30;

fn engine(view: &GpuView, engine: &EngineView, all: &Shares) -> Value {
    let rows = engine.holders.iter().take(MOST).map(|(who, held, contexts)| {
        let (pid, name) = match who {
            Who::Process(pid) => (Some(*pid), all.identity(*pid).map(|who| who.comm.as_str())),
            who => (None, unnamed(*who)),
        };
        json!({
            "pid": pid, "name": name, "share": engine.share(held.resident_ns), "slices": held.slices, "contexts": contexts,
            "mean_ns": held.resident_ns / held.slices.max(1), "longest_ns": held.longest_ns,
        })
    });
    json!({
        "title": title(view, engine), "ns": engine.ns, "rows": rows.collect::<Vec<_>>(), "more": engine.holders.len().saturating_sub(MOST),
        "switches": engine.switches, "switching": engine.share(engine.switch_ns), "nobody": engine.share(engine.nobody_ns),
        "unknown": engine.share(engine.unknown_ns),
    })
}

/// The engines, with sentences on each GPU; null where no context switches were recorded.
pub(super) fn value(all: &Shares) -> Value {
    if all.is_empty() {
        return Value::Null;
    }
    let views = all.views();
    let of = |view: &GpuView| -> Vec<Value> {
        view.engines.iter().map(|e| engine(view, e, all)).collect()
    };
    json!({
        "engines": views.iter().flat_map(of).collect::<Vec<_>>(),
        "said": views.iter().flat_map(verdicts).collect::<Vec<_>>(),
        "lacks": views.iter().flat_map(lacks).collect::<Vec<_>>(),
    })
}
