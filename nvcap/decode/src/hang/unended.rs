//! Work of a channel that may not have ended: the suspects of a fault.
//!
//! A kernel or copy is left out only if its end is proven: by its own release, or by the channel's semaphore, which has passed a later step
//! (a channel runs its work one after the other). Work that is not fetched, or that is behind a wait, has not begun.

use super::analysis::Judged;
use super::ring_state::{ChannelState, Step, Values, acquire, releases};
use crate::decode::event::{Engine, Launch, LaunchKind, Operation};
use crate::record::{ChannelId, Suspect, SuspectKind};

/// Work of a channel that may not have ended.
#[derive(Clone, Debug, Default)]
pub struct Unended<'a> {
    /// Kernels and copies with their steps, in ring order.
    pub works: Vec<(&'a Step, &'a Operation)>,
    /// True if the channel has no other such work: all that may run was read and understood.
    pub is_whole: bool,
}

/// Finds the work of a channel whose end is not proven. `judged` is the channel's judgement with the same values.
#[must_use]
pub fn unended<'a>(channel: &'a ChannelState, judged: &Judged, values: &Values) -> Unended<'a> {
    let line = judged.semaphore.filter(|s| s.value.is_some());
    let done = line.and_then(|s| s.done);
    let wait = judged.wait.as_ref().filter(|w| w.value.is_some());
    let mut found = Unended {
        works: Vec::new(),
        is_whole: done.is_some() || has_all(channel),
    };
    let mut before: Option<u64> = None;
    for step in &channel.steps {
        let is_past = done.is_some_and(|d| d > step.position);
        let follows = before.is_none_or(|b| b.checked_add(1) == Some(step.position));
        let is_read = step.missing == 0 && step.stop.is_none() && follows;
        found.is_whole &= is_read || is_past;
        before = Some(step.position);
        let waits = wait.filter(|w| w.position == step.position);
        for op in &step.operations {
            // Work after this acquire has not begun.
            if waits.is_some_and(|w| acquire(op).is_some_and(|a| a.address == w.address)) {
                break;
            }
            let Some(is_resolved) = is_open(op, channel, step, done, values) else {
                continue;
            };
            found.works.push((step, op));
            found.is_whole &= is_resolved;
        }
        // The step at GP_GET may have begun; no later step has.
        if step.pending || waits.is_some() {
            break;
        }
    }
    found
}

/// Returns the suspect for a kernel or copy that was submitted on this channel by the ring entry with this index; `None` for other
/// operations.
#[must_use]
pub fn suspect(channel: ChannelId, index: u32, op: &Operation) -> Option<Suspect> {
    let bare = Suspect {
        channel,
        index,
        kind: SuspectKind::Copy,
        program: None,
        grid: [0; 3],
        block: [0; 3],
        near: None,
        kernel: None,
    };
    match op {
        Operation::Launch(l) => Some(Suspect {
            kind: SuspectKind::Kernel,
            program: l.program,
            grid: l.grid.unwrap_or_default(),
            block: l.block.unwrap_or_default(),
            kernel: l.kernel.clone(),
            ..bare
        }),
        Operation::Copy(_) => Some(bare),
        _ => None,
    }
}

/// Tells whether the steps are all that the channel was ever given.
fn has_all(channel: &ChannelState) -> bool {
    let begins = channel.steps.first().is_some_and(|s| s.index == 0);
    begins && channel.steps.len() as u64 == u64::from(channel.put)
}

/// Tells, for a kernel or copy whose end is not proven, whether its effect is known; `None` for everything else.
fn is_open(
    op: &Operation,
    channel: &ChannelState,
    step: &Step,
    done: Option<u64>,
    values: &Values,
) -> Option<bool> {
    let is_passed = done.is_some_and(|d| d >= step.position);
    let is_past = done.is_some_and(|d| d > step.position);
    let is_resolved = match op {
        Operation::Launch(l) if l.kind == LaunchKind::Companion => return None,
        Operation::Launch(l) => l.kind != LaunchKind::Unresolved && l.program.is_some(),
        Operation::Copy(c) if c.bytes > 0 => true,
        _ => return None,
    };
    let own: Vec<bool> = releases(op)
        .iter()
        .filter_map(|r| {
            let value = values.get(channel.pid, r.address, false)?;
            Some((value as u32).wrapping_sub(r.payload as u32) as i32 >= 0)
        })
        .collect();
    let has_ended = match op {
        _ if own.contains(&true) => true,
        Operation::Launch(l) if !own.is_empty() => is_used_again(l, channel, step, done),
        // A copy engine writes the channel's semaphore after the copy.
        Operation::Copy(_) if matches!(channel.engine, Engine::Copy(_)) => is_passed,
        _ => is_past,
    };
    (!has_ended).then_some(is_resolved)
}

/// Tells whether a later step that is done writes a semaphore of the launch: libcuda reuses it once the kernel has ended.
fn is_used_again(launch: &Launch, channel: &ChannelState, step: &Step, done: Option<u64>) -> bool {
    let later = channel.steps.iter().filter(|s| s.position > step.position);
    let mut done = later.filter(|s| done.is_some_and(|d| d >= s.position));
    done.any(|s| {
        let mut all = s.operations.iter().flat_map(releases);
        all.any(|r| launch.releases.iter().any(|own| own.address == r.address))
    })
}
