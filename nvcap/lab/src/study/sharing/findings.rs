//! Findings of the scenes that no rule covers: priorities, the null stream, grids that fill the GPU. They have figures without a
//! verdict.

use std::collections::BTreeSet;

use serde::Serialize;

use super::joined::{Channel, Ran, Scene};
use super::rules::known;
use crate::study::ms;

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub about: &'static str,
    pub text: String,
}

/// Returns all findings of the scenes.
pub(crate) fn findings(scenes: &[Scene], channels: &[Channel]) -> Vec<Finding> {
    let scene = |name: &str| scenes.iter().find(|s| s.name == name);
    let finding = |about, text: Option<String>| Some(Finding { about, text: text? });
    let all = [
        finding(
            "priorities",
            scene("priorities").map(|s| priorities(s, channels)),
        ),
        finding(
            "a full GPU, the same priority",
            scene("fill_same").and_then(behind_a_full_gpu),
        ),
        finding(
            "a full GPU, a higher priority",
            scene("fill_higher").and_then(behind_a_full_gpu),
        ),
        finding(
            "the null stream",
            scene("null_stream").and_then(null_stream),
        ),
    ];
    all.into_iter().flatten().collect()
}

fn priorities(scene: &Scene, channels: &[Channel]) -> String {
    let of = |kernel: &Ran| channels.iter().find(|c| Some(c.number) == kernel.channel);
    let found: Vec<&Channel> = scene.kernels.iter().filter_map(of).collect();
    let count = |values: BTreeSet<Option<u32>>| {
        let values: Vec<String> = values.into_iter().map(known).collect();
        values.join(", ")
    };
    let groups: BTreeSet<Option<usize>> = found.iter().map(|c| c.group).collect();
    let numbers: BTreeSet<u32> = found.iter().map(|c| c.number).collect();
    format!(
        "streams of {} priorities in {} channels of {} groups on runlist {}; {} kernels ran at the same time",
        scene.streams,
        numbers.len(),
        groups.len(),
        count(found.iter().map(|c| c.runlist).collect()),
        scene.at_once
    )
}

/// Tells when a kernel started that was behind a kernel which fills the GPU several times over.
fn behind_a_full_gpu(scene: &Scene) -> Option<String> {
    let [first, second] = scene.kernels.as_slice() else {
        return None;
    };
    let before = first.starts_ns.iter().filter(|t| **t < second.start_ns);
    Some(format!(
        "a kernel launched {} ms after one of {} blocks (on {} SMs) started {} ms after that one's first block, when {} of its blocks had started; it had ended {} ms {} the other",
        ms(second.called_ns.saturating_sub(first.called_ns)),
        first.blocks,
        first.sms,
        ms(second.start_ns.saturating_sub(first.start_ns)),
        before.count(),
        ms(second.end_ns.abs_diff(first.end_ns)),
        match second.end_ns < first.end_ns {
            true => "before",
            false => "after",
        }
    ))
}

fn null_stream(scene: &Scene) -> Option<String> {
    let of = |stream: &str| scene.kernels.iter().find(|k| k.stream == stream);
    let (first, null) = (of("blocking 1")?, of("null")?);
    let (second, free) = (of("blocking 2")?, of("non-blocking")?);
    Some(format!(
        "its kernel started {} after the end of a blocking stream's that was launched before it, the next blocking stream's {} after its own end; a non-blocking stream's kernel ran {} ms beside the first",
        after(null, first),
        after(second, null),
        ms(first
            .end_ns
            .min(free.end_ns)
            .saturating_sub(first.start_ns.max(free.start_ns)))
    ))
}

/// Describes the time from the end of one kernel to the start of another.
fn after(kernel: &Ran, before: &Ran) -> String {
    match kernel.start_ns.checked_sub(before.end_ns) {
        Some(gap) => format!("{} ms", ms(gap)),
        None => format!("minus {} ms", ms(before.end_ns - kernel.start_ns)),
    }
}
