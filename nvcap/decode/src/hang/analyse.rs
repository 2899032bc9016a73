//! Judgement of each step: done, running or waiting, and the channel for which it waits. The rules are in [`super`].

use std::collections::BTreeMap;

use super::analysis::{
    Analysis, Blocked, Judged, Releaser, State, TrackingSemaphore, Wait, WaitMode, Work, WorkKind,
};
use super::graph::follow;
use super::ring_state::{Acquire, ChannelState, RingState, Step, Values, acquire, releases};
use crate::decode::event::{Launch, LaunchKind, Operation, SemaphoreAction};
use crate::wire::GpuVa;

/// Judges every channel and follows every wait to its end.
#[must_use]
pub fn analyse(scene: &RingState, values: &Values) -> Analysis {
    let progress: Vec<Position> = scene
        .channels
        .iter()
        .map(|c| Position::of(c, values))
        .collect();
    let all = All { scene, progress };
    let mut analysis = Analysis {
        channels: (0..scene.channels.len())
            .map(|at| all.judge(at, values))
            .collect(),
        ..Analysis::default()
    };
    for at in 0..analysis.channels.len() {
        if let Some(root) = follow(&mut analysis, at) {
            let channel = analysis.channels[at].id;
            analysis.blocked.push(Blocked { channel, root });
        }
    }
    analysis
}

/// Returns the ring position of the newest step that a channel's own semaphore shows as done; `None` if nothing shows one.
#[must_use]
pub fn done(channel: &ChannelState, values: &Values) -> Option<u64> {
    Position::of(channel, values).line?.done
}

/// Progress of a channel.
struct Position {
    line: Option<TrackingSemaphore>,
    /// Position of the first step that is not done; `None` if it is unknown, or if all are done.
    first: Option<u64>,
    /// True if the progress is known from the semaphore; false if only from GP_GET.
    certain: bool,
}

/// Returns the payload of the last release of `address` in a step.
fn payload_of(step: &Step, address: GpuVa) -> Option<u64> {
    step.operations
        .iter()
        .flat_map(releases)
        .filter(|r| r.address == address)
        .map(|r| r.payload)
        .next_back()
}

/// Tells whether a value has reached the payload of a semaphore whose payloads grow by one.
fn reached(value: u64, payload: u64) -> bool {
    (value as u32).wrapping_sub(payload as u32) as i32 >= 0
}

impl Position {
    fn of(channel: &ChannelState, values: &Values) -> Self {
        let mut count: BTreeMap<GpuVa, (u32, u64)> = BTreeMap::new();
        for step in &channel.steps {
            // The last release in a step, by the channel or a class, marks the end of the step.
            let last = step.operations.iter().rev().find_map(|op| match op {
                Operation::Semaphore(_) | Operation::Copy(_) => releases(op).pop(),
                _ => None,
            });
            if let Some(r) = last {
                let slot = count.entry(r.address).or_default();
                *slot = (slot.0 + 1, step.position);
            }
        }
        let line = count
            .iter()
            .max_by_key(|(_, rank)| **rank)
            .and_then(|(&address, _)| {
                let mut told = channel
                    .steps
                    .iter()
                    .filter_map(|s| Some((s.position, payload_of(s, address)?)));
                let value = values.get(channel.pid, address, false);
                let newest = told.clone().next_back()?.1;
                let done = value.and_then(|v| {
                    told.rfind(|(_, payload)| reached(v, *payload))
                        .map(|(position, _)| position)
                });
                Some(TrackingSemaphore {
                    address,
                    value,
                    newest,
                    done,
                })
            });
        let pending = channel.steps.iter().find(|s| s.pending).map(|s| s.position);
        let Some(line) = line.filter(|l| l.value.is_some()) else {
            return Self {
                line,
                first: pending,
                certain: false,
            };
        };
        // The first step after the last done one, if it has a release.
        let waiting = channel
            .steps
            .iter()
            .filter(|s| line.done.is_none_or(|d| s.position > d));
        let open = waiting
            .clone()
            .any(|s| payload_of(s, line.address).is_some());
        let first = waiting.clone().map(|s| s.position).next();
        Self {
            first: if open { first } else { pending },
            certain: open,
            line: Some(line),
        }
    }

    fn is_done(&self, position: u64) -> bool {
        match self.line.and_then(|l| l.done) {
            Some(done) if position <= done => true,
            _ => self.first.is_none_or(|first| position < first),
        }
    }
}

struct All<'a> {
    scene: &'a RingState,
    progress: Vec<Position>,
}

impl All<'_> {
    fn judge(&self, at: usize, values: &Values) -> Judged {
        let channel = &self.scene.channels[at];
        let progress = &self.progress[at];
        let wait = self.wait(at, values);
        // Work behind a wait is not reached.
        let until = wait.as_ref().filter(|w| w.value.is_some());
        let running = running(channel, progress, values, until.map(|w| w.position));
        let state = match (&running, &wait) {
            (Some(_), Some(_)) => State::RunningAndWaiting,
            (None, Some(_)) => State::Waiting,
            (Some(_), None) => State::Running,
            (None, None) if channel.pending() > 0 => State::Queued,
            (None, None) => State::Idle,
        };
        Judged {
            id: channel.id,
            state,
            semaphore: progress.line,
            pending: channel.pending(),
            running,
            wait,
        }
    }

    /// Returns the first acquire whose condition is not met, up to the step at GP_GET.
    fn wait(&self, at: usize, values: &Values) -> Option<Wait> {
        let channel = &self.scene.channels[at];
        let progress = &self.progress[at];
        let head = channel.steps.iter().position(|s| s.pending);
        // If the done steps are unknown, the step before GP_GET may still be at its acquire.
        let first = if progress.certain {
            channel
                .steps
                .iter()
                .position(|s| Some(s.position) >= progress.first)?
        } else {
            head?.saturating_sub(1)
        };
        let last = head.unwrap_or(channel.steps.len().checked_sub(1)?);
        let mut possible = None;
        for step in channel.steps.get(first..=last)? {
            for wanted in step.operations.iter().filter_map(acquire) {
                let value = values.get(channel.pid, wanted.address, wanted.wide);
                match value {
                    Some(v) if wanted.is_met_by(v) => {}
                    Some(_) => return Some(self.wait_for(channel, step, wanted, value)),
                    None => {
                        possible.get_or_insert_with(|| self.wait_for(channel, step, wanted, None));
                    }
                }
            }
        }
        possible
    }

    fn wait_for(
        &self,
        channel: &ChannelState,
        step: &Step,
        wanted: Acquire,
        value: Option<u64>,
    ) -> Wait {
        let mut wait = Wait {
            position: step.position,
            index: step.index,
            address: wanted.address,
            payload: wanted.payload,
            mode: match wanted.action {
                SemaphoreAction::AcquireEqual => WaitMode::Equal,
                SemaphoreAction::AcquireGreaterEqual => WaitMode::GreaterEqual,
                SemaphoreAction::AcquireAnd => WaitMode::And,
                _ => WaitMode::Nor,
            },
            wide: wanted.wide,
            value,
            releasers: Vec::new(),
            overwritten: Vec::new(),
            last: None,
            owner: None,
        };
        for (other, progress) in self.scene.channels.iter().zip(&self.progress) {
            if other.pid != channel.pid {
                continue;
            }
            if progress.line.is_some_and(|l| l.address == wanted.address) {
                wait.owner = Some(other.id);
            }
            let all = other
                .steps
                .iter()
                .flat_map(|s| s.operations.iter().map(move |op| (s, op)))
                .flat_map(|(s, op)| releases(op).into_iter().map(move |r| (s, op, r)));
            for (s, op, r) in all {
                if r.address != wanted.address {
                    continue;
                }
                let releaser = Releaser {
                    channel: other.id,
                    position: s.position,
                    index: s.index,
                    payload: r.payload,
                    // A kernel's own release comes at its end, not when the GPU has passed its launch.
                    done: match (op, value) {
                        (Operation::Launch(_), Some(v)) => !s.pending && reached(v, r.payload),
                        _ => progress.is_done(s.position),
                    },
                    fetched: !s.pending,
                    kernel: matches!(op, Operation::Launch(_)),
                };
                if !wanted.is_met_by(r.payload) {
                    wait.last = Some(releaser);
                } else if releaser.done {
                    wait.overwritten.push(releaser);
                } else {
                    wait.releasers.push(releaser);
                }
            }
        }
        wait
    }
}

/// Returns the first work that is fetched and not done, before the wait at `until`.
fn running(
    channel: &ChannelState,
    progress: &Position,
    values: &Values,
    until: Option<u64>,
) -> Option<Work> {
    proven(channel, values, until).or_else(|| suspected(channel, progress, values, until))
}

/// Tells whether the GPU reaches a step if it waits at `until`.
fn is_reachable(step: &Step, until: Option<u64>) -> bool {
    until.is_none_or(|w| step.position < w)
}

/// Returns the number of steps behind a position.
fn behind(channel: &ChannelState, position: u64) -> u64 {
    channel
        .steps
        .last()
        .map_or(0, |last| last.position.saturating_sub(position))
}

/// Returns the first kernel that runs by its own release. A kernel that releases a semaphore at its end proves its own progress, and
/// meanwhile the GPU goes on to the next entry.
fn proven(channel: &ChannelState, values: &Values, until: Option<u64>) -> Option<Work> {
    for (n, step) in channel.steps.iter().enumerate() {
        if step.pending || !is_reachable(step, until) {
            break;
        }
        let later = channel.steps.get(n + 1..).unwrap_or_default();
        let kernel = step.operations.iter().find_map(|op| match op {
            Operation::Launch(l) if is_running(l, channel.pid, values, later) => Some(l),
            _ => None,
        });
        if let Some(kernel) = kernel {
            let unproven = |op: &&Operation| is_open(op, channel.pid, values);
            return Some(Work {
                position: step.position,
                index: step.index,
                kind: WorkKind::Kernel(kernel.clone()),
                others: (step.operations.iter().filter(unproven).count() as u32).saturating_sub(1),
                behind: behind(channel, step.position),
                certain: true,
            });
        }
    }
    None
}

/// Returns the work to which the channel's progress points.
fn suspected(
    channel: &ChannelState,
    progress: &Position,
    values: &Values,
    until: Option<u64>,
) -> Option<Work> {
    let (steps, certain) = suspects(channel, progress, until)?;
    let first = *steps.first()?;
    let work = |step: &Step, kind, others| Work {
        position: step.position,
        index: step.index,
        kind,
        others,
        behind: behind(channel, first.position),
        certain,
    };
    for step in &steps {
        let open: Vec<&Operation> = step
            .operations
            .iter()
            .filter(|op| is_open(op, channel.pid, values))
            .collect();
        let count = open.len() as u32;
        match open.first() {
            Some(Operation::Launch(l)) => {
                return Some(work(step, WorkKind::Kernel(l.clone()), count - 1));
            }
            Some(Operation::Copy(c)) => {
                return Some(work(step, WorkKind::Copy(c.clone()), count - 1));
            }
            _ => {}
        }
    }
    // In an entry that is not fetched, only a kernel or a copy is believed to run.
    (!first.pending).then(|| work(first, WorkKind::Other, 0))
}

/// Returns the steps whose work may be running, and whether that is certain.
fn suspects<'a>(
    channel: &'a ChannelState,
    progress: &Position,
    until: Option<u64>,
) -> Option<(Vec<&'a Step>, bool)> {
    let reachable = |s: &&Step| is_reachable(s, until);
    if progress.certain {
        let undone = |s: &&Step| !s.pending && Some(s.position) >= progress.first;
        let fetched = channel.steps.iter().filter(undone).filter(reachable);
        let mut steps: Vec<&Step> = fetched.collect();
        if steps.is_empty() {
            // GP_GET may still be at the entry whose work runs.
            steps.extend(channel.steps.iter().find(|s| s.pending).filter(reachable));
        }
        return Some((steps, true));
    }
    // With GP_GET alone, it is unknown whether the newest fetched step is done; it is blamed if others wait behind it.
    if channel.pending() > 0 && progress.line.is_none_or(|l| l.value.is_none()) {
        let newest = channel.steps.iter().rfind(|s| !s.pending).filter(reachable);
        return Some((newest.into_iter().collect(), false));
    }
    None
}

/// Tells whether a fetched launch has not made the release at its end, provided that no later step of its channel reuses that semaphore.
fn is_running(launch: &Launch, pid: u32, values: &Values, later: &[Step]) -> bool {
    launch.kind != LaunchKind::Companion
        && launch.releases.iter().any(|r| {
            let value = values.get(pid, r.address, false);
            value.is_some_and(|v| !reached(v, r.payload))
                && !later.iter().any(|s| {
                    let mut all = s.operations.iter().flat_map(releases);
                    !s.pending && all.any(|l| l.address == r.address)
                })
        })
}

/// Tells whether an operation is a launch (not a companion of the driver's) or a copy that has not made the release at its end.
fn is_open(op: &Operation, pid: u32, values: &Values) -> bool {
    let done = || {
        let mut all = releases(op).into_iter();
        all.any(|r| {
            values
                .get(pid, r.address, false)
                .is_some_and(|v| reached(v, r.payload))
        })
    };
    match op {
        Operation::Launch(l) => l.kind != LaunchKind::Companion && !done(),
        Operation::Copy(c) => c.bytes > 0 && !done(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::unended::unended;
    use super::*;
    use crate::record::ChannelId;

    /// Test that submissions of a recording may have any positions, in any order.
    #[test]
    fn steps_may_have_any_positions() {
        let ends = [0, 1, 1 << 63, u64::MAX];
        for (first, last) in ends.into_iter().flat_map(|a| ends.map(|b| (a, b))) {
            let step = |position, pending| Step {
                position,
                index: 0,
                pending,
                operations: Vec::new(),
                stop: None,
                bytes: 0,
                missing: 0,
            };
            let mut channel = ChannelState::new(ChannelId(0), 7, 1, 2, 1024);
            channel.steps = vec![step(first, false), step(last, true)];
            let scene = RingState {
                channels: vec![channel],
            };
            let analysis = analyse(&scene, &Values::default());
            let judged = &analysis.channels[0];
            let running = judged.running.as_ref().map(|w| w.behind);
            assert_eq!(running, Some(last.saturating_sub(first)));
            let _ = unended(&scene.channels[0], judged, &Values::default());
        }
    }

    /// Test that a recording may give a ring any size, and its pointers any place.
    #[test]
    fn rings_may_have_any_size() {
        let pending =
            |get, put, entries| ChannelState::new(ChannelId(0), 7, get, put, entries).pending();
        assert_eq!(pending(1020, 4, 1024), 8);
        assert_eq!(pending(1, 4, u32::MAX), 3);
        assert_eq!(pending(u32::MAX - 2, 1, u32::MAX), 3);
        assert_eq!(pending(1 << 31, 3, (1 << 31) + 1), 4);
        assert_eq!(pending(u32::MAX, u32::MAX, 0), 0);
        assert_eq!(pending(u32::MAX, 0, 1), 0);
    }
}
