//! Samples of program counters: kernels and instructions with the most.

use serde_json::{Value, json};

use crate::output::kernels;
use crate::samples::{ContextSums, Gathered, half_interval, rows, share};
use nvcap_decode::samples::{Counter, reason};

/// The most contexts that the page shows, and the most kernels and instructions of each.
const MOST_CONTEXTS: usize = 8;
const MOST_KERNELS: usize = 20;
const MOST_INSTRUCTIONS: usize = 20;

/// The most frequent stall reason, and its share of the samples there.
fn stall(counter: &Counter) -> Value {
    let reasons = (0u8..).zip(counter.reasons);
    let most = reasons.max_by_key(|(number, samples)| (*samples, std::cmp::Reverse(*number)));
    let Some((number, samples)) = most.filter(|(_, samples)| *samples > 0) else {
        return Value::Null;
    };
    let name = reason(number).map_or_else(|| format!("raw {number}"), str::to_owned);
    json!({"name": name, "share": share(samples.into(), counter.samples)})
}

fn context(sums: &ContextSums, all: &Gathered) -> Value {
    let (rows, unknown) = rows(&sums.counters, all.kernels(sums.key.pid));
    let whole = sums.samples();
    let outside = unknown.iter().map(|(_, c)| c.samples).sum::<u64>() + sums.others;
    let kernels = rows.iter().take(MOST_KERNELS).map(|row| {
        let part = share(row.all.samples, whole);
        json!({
            "kernel": kernels::text(row.kernel, true), "samples": row.all.samples, "share": part, "half": half_interval(part, whole),
            "not_issued": share(row.all.not_issued, row.all.samples), "stall": stall(&row.all),
        })
    });
    let mut hottest: Vec<_> = { rows.iter() }
        .flat_map(|row| {
            row.instructions
                .iter()
                .take(MOST_INSTRUCTIONS)
                .map(move |i| (row, i))
        })
        .collect();
    hottest.sort_by_key(|(_, (pc, c))| (std::cmp::Reverse(c.samples), *pc));
    let instructions = hottest.iter().take(MOST_INSTRUCTIONS).map(|(row, (pc, c))| {
        json!({
            "kernel": kernels::text(row.kernel, true), "offset": pc - row.kernel.program.0, "share": share(c.samples, whole),
            "of_kernel": share(c.samples, row.all.samples), "not_issued": share(c.not_issued, c.samples), "stall": stall(c),
        })
    });
    json!({
        "pid": sums.key.pid, "process": all.name(sums.key.pid), "gpu": sums.key.gpu, "ns": sums.ns, "samples": whole, "sms": sums.sm_count(),
        "lost": sums.lost(), "strange_bytes": sums.strange_bytes, "unknown": share(outside, whole),
        "more_kernels": rows.len().saturating_sub(MOST_KERNELS),
        "kernels": kernels.collect::<Vec<_>>(), "instructions": instructions.collect::<Vec<_>>(),
    })
}

/// The contexts with the most samples; null where there are none.
pub(super) fn value(all: &Gathered) -> Value {
    let mut contexts: Vec<&ContextSums> = all.contexts().iter().collect();
    contexts.sort_by_key(|sums| (std::cmp::Reverse(sums.samples()), sums.key));
    if contexts.is_empty() {
        return Value::Null;
    }
    let more = contexts.len().saturating_sub(MOST_CONTEXTS);
    let shown = contexts.iter().take(MOST_CONTEXTS);
    json!({"contexts": shown.map(|sums| context(sums, all)).collect::<Vec<_>>(), "more": more})
}
