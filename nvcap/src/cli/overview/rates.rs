//! Submissions per second of each process, and its state, found by two looks that must not delay the command.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nvcap_monitor::counts::channel::State;
use nvcap_monitor::counts::host::{Host, HostOptions};
use nvcap_monitor::counts::patient::Readers;
use nvcap_monitor::counts::system::Machine;
use nvcap_monitor::counts::view::{GpuView, View};
use nvcap_process::host::choice::Whom;

/// Time between the two looks.
pub(super) const APART: Duration = Duration::from_millis(300);
/// Time after which a process whose memory does not answer is no longer waited for.
const PATIENCE: Duration = Duration::from_millis(100);

/// Pace of a process's submissions.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Pace {
    /// A process without a channel.
    NoChannel,
    /// A process that has the channels of this one by fork, and is counted with it.
    Like(u32),
    /// A process with channels of its own.
    Submits {
        /// Number of submissions per second that the GPU has completed.
        rate: f64,
        /// True if the rate is only a lower bound.
        is_least: bool,
        /// State of the channels, and its words.
        state: (State, String),
    },
}

/// Looks twice at the processes of each user. Processes that could not be looked at before `end` have no result. A user whose process does
/// not answer hides no other user's processes.
pub(super) fn of(users: Vec<Vec<u32>>, end: Instant) -> BTreeMap<u32, Pace> {
    let looks = users.into_iter().map(|pids| move || twice(pids, end));
    within_time(end, looks).into_iter().flatten().collect()
}

/// Looks twice at processes.
fn twice(pids: Vec<u32>, end: Instant) -> BTreeMap<u32, Pace> {
    let machine = Machine::new(Whom::Named(pids)).patient(Readers::new(PATIENCE));
    let mut host = Host::new(machine, HostOptions::default());
    host.round();
    let first = host.view();
    // A look lasts about as long as the previous one.
    thread::sleep(APART.min(end.saturating_duration_since(Instant::now()) / 2));
    host.round();
    between(&first, &host.view())
}

/// Runs each piece of work in a thread of its own. Returns the results of those that end in time; the others are left alone.
fn within_time<T: Send + 'static>(
    end: Instant,
    works: impl Iterator<Item = impl FnOnce() -> T + Send + 'static>,
) -> Vec<T> {
    let (to, from) = mpsc::channel();
    for work in works {
        let (to, name) = (
            to.clone(),
            thread::Builder::new().name("nvcap-looks".into()),
        );
        // Without further threads there is no result.
        let _ = name.spawn(move || to.send(work()));
    }
    drop(to);
    let left = || end.saturating_duration_since(Instant::now());
    std::iter::from_fn(|| from.recv_timeout(left()).ok()).collect()
}

/// Returns the pace of processes between two readings.
fn between(first: &View, second: &View) -> BTreeMap<u32, Pace> {
    let passed = second.unix_ns.saturating_sub(first.unix_ns).max(1) as f64;
    let done = |view: &GpuView| view.sums.done;
    let before: BTreeMap<u32, u64> = { first.processes.iter() }
        .map(|p| (p.pid, done(&p.whole())))
        .collect();
    let pace = |process: &nvcap_monitor::counts::view::ProcessView| {
        if let Some(parent) = process.shares {
            return Some(Pace::Like(parent));
        }
        let now = process.whole();
        if now.channels() == 0 {
            return Some(Pace::NoChannel);
        }
        let ahead = done(&now).saturating_sub(*before.get(&process.pid)?);
        Some(Pace::Submits {
            rate: ahead as f64 * 1e9 / passed,
            is_least: !now.doubts.is_empty(),
            state: (now.state(), now.words()),
        })
    };
    { second.processes.iter() }
        .filter_map(|p| Some((p.pid, pace(p)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_monitor::counts::channel::Sums;
    use nvcap_monitor::counts::view::ProcessView;

    const SECOND: u64 = 1_000_000_000;

    fn process(pid: u32, done: &[u64], states: [u64; 4]) -> ProcessView {
        let gpu = |(n, done): (usize, &u64)| {
            let sums = Sums {
                submitted: 0,
                done: *done,
            };
            let view = GpuView {
                sums,
                states,
                ..GpuView::default()
            };
            (Some(n as u32), view)
        };
        ProcessView {
            pid,
            gpus: done.iter().enumerate().map(gpu).collect(),
            ..ProcessView::default()
        }
    }

    fn view(unix_ns: u64, processes: Vec<ProcessView>) -> View {
        View {
            unix_ns,
            processes,
            ..View::default()
        }
    }

    #[test]
    fn rates_are_those_of_all_gpus_between_two_looks() {
        let first = vec![
            process(1, &[10, 20], [0, 1, 0, 0]),
            process(2, &[5], [0, 0, 1, 0]),
            process(3, &[], [0; 4]),
        ];
        let mut second = vec![
            process(1, &[40, 50], [0, 1, 1, 0]),
            process(2, &[5], [0, 0, 0, 1]),
            process(3, &[], [0; 4]),
            process(4, &[9], [0, 1, 0, 0]),
            process(5, &[], [0; 4]),
        ];
        second[1].gpus.get_mut(&Some(0)).unwrap().errors = [31].into();
        second[4].shares = Some(1);
        let all = between(&view(SECOND, first), &view(3 * SECOND / 2, second));
        let submits = |rate, state, words: &str| Pace::Submits {
            rate,
            is_least: false,
            state: (state, words.to_owned()),
        };
        // A process or channel that was not there at the first look has no rate.
        let expected = [
            (1, submits(120.0, State::Working, "working")),
            (2, submits(0.0, State::Stopped, "Xid 31")),
            (3, Pace::NoChannel),
            (5, Pace::Like(1)),
        ];
        assert_eq!(all, BTreeMap::from(expected));
    }

    #[test]
    fn a_look_that_does_not_end_is_left_alone() {
        let (keeps, waits) = mpsc::channel::<()>();
        let never = move || waits.recv().is_ok();
        assert!(within_time(Instant::now(), [never].into_iter()).is_empty());
        let guard = Instant::now() + Duration::from_secs(60);
        let mut all = within_time(guard, (1..=3).map(|n| move || n));
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
        drop(keeps);
    }
}
