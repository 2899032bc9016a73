//! The wait graph, on scenes put together by hand: pure data in, judgements out.

use nvcap_decode::decode::event::{
    Launch, LaunchHow, LaunchKind, Operation, QmdFrom, QmdRelease, Semaphore, SemaphoreAction,
    SemaphoreUnit,
};
use nvcap_decode::decode::pcas::PcasAction;
use nvcap_decode::hang::WaitMode;
use nvcap_decode::hang::{
    Analysis, ChannelState, RingState, Root, State, Step, Values, WorkKind, analyse, compare,
    done as done_of, unended,
};
use nvcap_decode::record::ChannelId;
use nvcap_decode::wire::GpuVa;

const PID: u32 = 42;

fn line(channel: u32) -> u64 {
    0x2_0460_0000 + 16 * u64::from(channel)
}

fn semaphore(action: SemaphoreAction, address: u64, payload: u64) -> Operation {
    Operation::Semaphore(Semaphore {
        unit: SemaphoreUnit::Host,
        action,
        address: GpuVa(address),
        payload,
        wide: false,
        timestamp: false,
        reduction: None,
        wait_for_idle: false,
        // ACQ_CIRC_GEQ of SEM_EXECUTE.
        execute: 3,
    })
}

fn release(address: u64, payload: u64) -> Operation {
    semaphore(SemaphoreAction::Release, address, payload)
}

fn acquire(address: u64, payload: u64) -> Operation {
    semaphore(SemaphoreAction::AcquireGreaterEqual, address, payload)
}

fn kernel(grid: u32, releases: Vec<QmdRelease>) -> Operation {
    Operation::Launch(Box::new(Launch {
        kind: LaunchKind::User,
        how: LaunchHow::Scheduled,
        pcas: Some(PcasAction::InvalidatePrefetchCopySchedule),
        replay: None,
        place: None,
        qmd: Some(GpuVa(0x1000)),
        qmd_version: Some((4, 0)),
        qmd_from: Some(QmdFrom::Stream),
        grid: Some([grid, 1, 1]),
        block: Some([32, 1, 1]),
        cluster: None,
        cooperative: false,
        registers: None,
        shared_bytes: None,
        shared_reserved_bytes: None,
        local_bytes: None,
        barriers: None,
        program: Some(GpuVa(0x7f00_0000 + u64::from(grid))),
        program_bytes: None,
        stand_in: None,
        kernel: None,
        arg_memory: Vec::new(),
        moves: None,
        args: None,
        constant_banks: Vec::new(),
        releases,
        dependent: None,
    }))
}

/// A channel whose step n ends with the release of its own semaphore with n + 1; `get` steps are fetched.
fn channel(id: u32, get: u32, steps: Vec<Vec<Operation>>) -> ChannelState {
    let put = steps.len() as u32;
    let mut scene = ChannelState::new(ChannelId(id), PID, get, put, 1024);
    for (n, mut operations) in steps.into_iter().enumerate() {
        operations.push(release(line(id), n as u64 + 1));
        scene.steps.push(Step {
            position: n as u64,
            index: n as u32,
            pending: n as u32 >= get,
            operations,
            stop: None,
            bytes: 100,
            missing: 0,
        });
    }
    scene
}

fn values(pairs: &[(u64, u64)]) -> Values {
    let mut values = Values::default();
    for (address, value) in pairs {
        values.set(PID, GpuVa(*address), *value);
    }
    values
}

fn judged(channels: Vec<ChannelState>, pairs: &[(u64, u64)]) -> Analysis {
    analyse(&RingState { channels }, &values(pairs))
}

fn root(analysis: &Analysis, id: u32) -> Option<Root> {
    let all = analysis.blocked.iter();
    all.filter(|b| b.channel == ChannelId(id))
        .map(|b| b.root)
        .next()
}

#[test]
fn all_done_is_idle() {
    let a = judged(
        vec![channel(0, 3, vec![vec![], vec![], vec![]])],
        &[(line(0), 3)],
    );
    assert_eq!(a.channels[0].state, State::Idle);
    assert!(a.channels[0].running.is_none() && a.blocked.is_empty());
}

#[test]
fn the_first_kernel_that_has_not_released_runs() {
    let steps = vec![
        vec![kernel(1, vec![])],
        vec![kernel(2, vec![])],
        vec![kernel(3, vec![])],
    ];
    for get in [2, 3] {
        let a = judged(vec![channel(0, get, steps.clone())], &[(line(0), 1)]);
        let work = a.channels[0].running.as_ref().unwrap();
        assert!(work.certain);
        assert_eq!((work.position, work.behind, work.others), (1, 1, 0));
        let WorkKind::Kernel(l) = &work.kind else {
            panic!("{:?}", work.kind)
        };
        assert_eq!(
            (l.grid, l.program),
            (Some([2, 1, 1]), Some(GpuVa(0x7f00_0002)))
        );
        assert_eq!(a.channels[0].state, State::Running);
    }
}

/// The semaphore has a submission's number before its kernel starts: the submission is done when the kernel has ended, as `nvcap counts` has
/// it.
#[test]
fn a_submission_whose_kernel_runs_is_not_done() {
    let end = QmdRelease {
        address: GpuVa(0x9000),
        payload: 7,
    };
    let steps = vec![vec![], vec![kernel(1, vec![end.clone()])]];
    for (word, done, state) in [(6, 1, State::Running), (7, 2, State::Idle)] {
        let a = judged(
            vec![channel(0, 2, steps.clone())],
            &[(line(0), 2), (0x9000, word)],
        );
        let judged = &a.channels[0];
        assert_eq!((judged.done(), judged.state), (Some(done), state));
        assert_eq!((judged.has_done(0), judged.has_done(1)), (true, done == 2));
    }
}

#[test]
fn payloads_go_round_the_circle() {
    let mut scene = channel(0, 3, vec![vec![], vec![], vec![]]);
    for (n, step) in scene.steps.iter_mut().enumerate() {
        step.operations = vec![release(
            line(0),
            u64::from(0xffff_fffe_u32.wrapping_add(n as u32)),
        )];
    }
    // 0xfffffffe, 0xffffffff, 0.
    let state = |value| {
        judged(vec![scene.clone()], &[(line(0), value)]).channels[0]
            .running
            .as_ref()
            .map(|w| w.position)
    };
    assert_eq!(
        (state(0xffff_fffe), state(0xffff_ffff), state(0)),
        (Some(1), Some(2), None)
    );
}

#[test]
fn kernels_of_a_step_that_have_released_are_left_out() {
    let r = |address, payload| vec![QmdRelease { address, payload }];
    let steps = vec![vec![
        kernel(1, r(GpuVa(0x9000), 5)),
        kernel(2, r(GpuVa(0x9010), 5)),
        kernel(3, r(GpuVa(0x9020), 5)),
    ]];
    let a = judged(
        vec![channel(0, 1, steps)],
        &[(line(0), 0), (0x9000, 5), (0x9010, 4)],
    );
    let work = a.channels[0].running.as_ref().unwrap();
    let WorkKind::Kernel(l) = &work.kind else {
        panic!()
    };
    assert_eq!((l.grid, work.others), (Some([2, 1, 1]), 1));
}

/// As CUDA 13.0 does it on an H200: the channel's own semaphore is released while the kernel still runs, and the next
/// launch of the stream waits for the one that the kernel releases at its end.
#[test]
fn a_kernel_that_the_front_end_has_left_behind() {
    let ends = |address, payload| vec![QmdRelease { address, payload }];
    let (first, second) = (0x2_0463_7aac, 0x2_0463_7aa4);
    let steps = [
        vec![kernel(1, ends(GpuVa(first), 2))],
        vec![kernel(9, ends(GpuVa(first), 6))],
        vec![acquire(first, 6), kernel(2, ends(GpuVa(second), 6))],
        vec![acquire(second, 6), kernel(3, ends(GpuVa(first), 10))],
    ];
    // GP_GET is behind the entry that waits.
    let channels = |get| {
        vec![
            channel(0, get, steps[..if get == 2 { 2 } else { 4 }].to_vec()),
            channel(1, 1, vec![vec![acquire(first, 6)], vec![]]),
        ]
    };
    let a = judged(
        channels(3),
        &[(line(0), 2), (line(1), 0), (first, 5), (second, 5)],
    );
    let work = a.channels[0].running.as_ref().unwrap();
    let WorkKind::Kernel(l) = &work.kind else {
        panic!()
    };
    assert_eq!(
        (l.grid, work.position, work.behind, work.certain),
        (Some([9, 1, 1]), 1, 2, true)
    );
    assert_eq!(a.channels[0].state, State::RunningAndWaiting);
    for n in 0..2 {
        let wait = a.channels[n].wait.as_ref().unwrap();
        assert_eq!((wait.address, wait.value), (GpuVa(first), Some(5)));
        let r = wait.releasers[0];
        assert_eq!(
            (r.channel, r.position, r.kernel, r.done),
            (ChannelId(0), 1, true, false)
        );
        assert_eq!(
            root(&a, n as u32),
            Some(Root::Work {
                channel: ChannelId(0)
            })
        );
    }
    assert!(a.cycles.is_empty());
    // Nothing behind it, and everything fetched and "done": only the kernel's own semaphore tells.
    let a = judged(channels(2), &[(line(0), 2), (line(1), 2), (first, 5)]);
    assert_eq!(a.channels[0].state, State::Running);
    let a = judged(channels(2), &[(line(0), 2), (line(1), 2), (first, 6)]);
    assert_eq!(a.channels[0].state, State::Idle);
}

#[test]
fn a_chain_of_waits_ends_at_the_kernel() {
    let channels = vec![
        channel(0, 1, vec![vec![kernel(9, vec![])], vec![]]),
        channel(1, 0, vec![vec![acquire(line(0), 1)]]),
        channel(2, 0, vec![vec![acquire(line(1), 1)]]),
    ];
    let a = judged(channels, &[(line(0), 0), (line(1), 0), (line(2), 0)]);
    assert_eq!(
        a.channels.iter().map(|c| c.state).collect::<Vec<_>>(),
        [State::Running, State::Waiting, State::Waiting]
    );
    let work = Some(Root::Work {
        channel: ChannelId(0),
    });
    assert_eq!((root(&a, 1), root(&a, 2)), (work, work));
    let wait = a.channels[2].wait.as_ref().unwrap();
    assert_eq!(
        (wait.address, wait.payload, wait.value),
        (GpuVa(line(1)), 1, Some(0))
    );
    assert_eq!(wait.owner, Some(ChannelId(1)));
    assert_eq!(wait.releasers[0].channel, ChannelId(1));
}

#[test]
fn a_wait_that_nothing_releases_names_who_wrote_there_last() {
    let channels = vec![
        channel(
            0,
            2,
            vec![vec![release(0x5000, 3)], vec![release(0x5000, 4)]],
        ),
        channel(1, 0, vec![vec![acquire(0x5000, 5)]]),
    ];
    let a = judged(channels, &[(line(0), 2), (line(1), 0), (0x5000, 4)]);
    assert_eq!(
        root(&a, 1),
        Some(Root::NobodyReleases {
            channel: ChannelId(1)
        })
    );
    let last = a.channels[1].wait.as_ref().unwrap().last.unwrap();
    assert_eq!(
        (last.channel, last.payload, last.done),
        (ChannelId(0), 4, true)
    );
}

#[test]
fn a_release_that_something_wrote_over_is_named() {
    let channels = vec![
        channel(0, 1, vec![vec![release(0x5000, 5)]]),
        channel(
            1,
            0,
            vec![vec![semaphore(SemaphoreAction::AcquireEqual, 0x5000, 5)]],
        ),
    ];
    let a = judged(channels, &[(line(0), 1), (line(1), 0), (0x5000, 6)]);
    let wait = a.channels[1].wait.as_ref().unwrap();
    assert_eq!(
        (wait.releasers.len(), wait.overwritten.len(), wait.mode),
        (0, 1, WaitMode::Equal)
    );
}

#[test]
fn cycles_of_one_two_and_three() {
    let zero: Vec<(u64, u64)> = (0..4).map(|n| (line(n), 0)).collect();
    // To itself: what it waits for comes later in its own ring.
    let a = judged(
        vec![channel(0, 0, vec![vec![acquire(line(0), 2)], vec![]])],
        &zero,
    );
    assert_eq!(a.cycles[0].channels, [ChannelId(0)]);
    for size in [2, 3] {
        let channels = (0..size)
            .map(|n| channel(n, 0, vec![vec![acquire(line((n + 1) % size), 1)]]))
            .collect();
        let a = judged(channels, &zero);
        assert_eq!(a.cycles.len(), 1, "each cycle once");
        assert_eq!(
            a.cycles[0].channels,
            (0..size).map(ChannelId).collect::<Vec<_>>()
        );
        assert!((0..size).all(|n| root(&a, n) == Some(Root::Cycle { index: 0 })));
    }
    // One that waits for a cycle is not in it.
    let channels = vec![
        channel(0, 0, vec![vec![acquire(line(1), 1)]]),
        channel(1, 0, vec![vec![acquire(line(2), 1)]]),
        channel(2, 0, vec![vec![acquire(line(1), 1)]]),
    ];
    let a = judged(channels, &zero);
    assert_eq!(a.cycles[0].channels, [ChannelId(1), ChannelId(2)]);
    assert_eq!(root(&a, 0), Some(Root::Cycle { index: 0 }));
}

#[test]
fn a_releaser_that_nothing_holds_up_is_taken_before_one_that_waits() {
    let channels = vec![
        channel(0, 0, vec![vec![acquire(0x5000, 1)]]),
        channel(1, 0, vec![vec![acquire(line(0), 1), release(0x5000, 1)]]),
        channel(2, 0, vec![vec![release(0x5000, 1)]]),
    ];
    let a = judged(
        channels,
        &[(line(0), 0), (line(1), 0), (line(2), 0), (0x5000, 0)],
    );
    assert!(a.cycles.is_empty());
    // It has its own release to come and runs towards it.
    assert!(matches!(
        root(&a, 0),
        Some(
            Root::AboutTo { .. }
                | Root::Work {
                    channel: ChannelId(2)
                }
        )
    ));
}

#[test]
fn a_wait_behind_the_head_is_not_reached() {
    let steps = vec![
        vec![kernel(1, vec![])],
        vec![],
        vec![],
        vec![acquire(0x5000, 1)],
    ];
    let a = judged(vec![channel(0, 1, steps)], &[(line(0), 0), (0x5000, 0)]);
    assert_eq!(a.channels[0].state, State::Running);
    assert!(a.channels[0].wait.is_none());
}

#[test]
fn a_wait_with_work_before_it_is_both() {
    let steps = vec![vec![kernel(1, vec![])], vec![acquire(0x5000, 1)], vec![]];
    let a = judged(vec![channel(0, 1, steps)], &[(line(0), 0), (0x5000, 0)]);
    assert_eq!(a.channels[0].state, State::RunningAndWaiting);
}

#[test]
fn without_values_nothing_is_claimed() {
    let channels = vec![
        channel(0, 1, vec![vec![kernel(1, vec![])], vec![]]),
        channel(1, 0, vec![vec![acquire(line(0), 1)]]),
    ];
    let a = judged(channels, &[]);
    assert!(!a.channels[0].running.as_ref().unwrap().certain);
    let wait = a.channels[1].wait.as_ref().unwrap();
    assert_eq!((wait.value, root(&a, 1)), (None, Some(Root::Unknown)));
}

/// Kernels of a channel that may have faulted, by their grids, and whether they are all.
fn suspects(of: ChannelState, pairs: &[(u64, u64)]) -> (Vec<u32>, bool) {
    let values = values(pairs);
    let scene = RingState { channels: vec![of] };
    let analysis = analyse(&scene, &values);
    let found = unended(&scene.channels[0], &analysis.channels[0], &values);
    let grid = |(_, op): &(&Step, &Operation)| match op {
        Operation::Launch(l) => l.grid.map(|g| g[0]),
        _ => None,
    };
    (
        found.works.iter().filter_map(grid).collect(),
        found.is_whole,
    )
}

#[test]
fn suspects_are_kernels_whose_end_is_not_proven() {
    const END: u64 = 0x2_0463_7000;
    let end = |n: u64, payload| {
        vec![QmdRelease {
            address: GpuVa(END + 4 * n),
            payload,
        }]
    };
    // The front end is past all; the second kernel has not released.
    let steps = || {
        vec![
            vec![kernel(1, end(0, 6))],
            vec![kernel(2, end(1, 6))],
            vec![kernel(3, end(2, 6))],
        ]
    };
    let ends = |a, b, c| [(line(0), 3), (END, a), (END + 4, b), (END + 8, c)];
    assert_eq!(
        suspects(channel(0, 3, steps()), &ends(6, 5, 6)),
        (vec![2], true)
    );
    assert_eq!(
        suspects(channel(0, 3, steps()), &ends(6, 5, 5)),
        (vec![2, 3], true)
    );
    assert_eq!(
        suspects(channel(0, 3, steps()), &ends(6, 6, 6)),
        (vec![], true)
    );
    // Without releases of their own all but the newest have ended: the works of a channel run one after the other.
    let plain = vec![vec![kernel(1, vec![])], vec![kernel(2, vec![])]];
    assert_eq!(
        suspects(channel(0, 2, plain.clone()), &[(line(0), 2)]),
        (vec![2], true)
    );
    // The first is not passed; the second is fetched too.
    assert_eq!(
        suspects(channel(0, 2, plain), &[(line(0), 0)]),
        (vec![1, 2], true)
    );
}

#[test]
fn what_waits_has_not_begun_and_what_is_not_read_is_said() {
    const END: u64 = 0x2_0463_7000;
    let release = vec![QmdRelease {
        address: GpuVa(END),
        payload: 6,
    }];
    let steps = vec![
        vec![],
        vec![kernel(1, release)],
        vec![acquire(END, 6), kernel(2, vec![])],
        vec![kernel(3, vec![])],
    ];
    let pairs = [(line(0), 2), (END, 5)];
    // Fetched and not, what stands behind the wait is none.
    for get in [3, 4] {
        let found = suspects(channel(0, get, steps.clone()), &pairs);
        assert_eq!(found, (vec![1], true), "{get}");
    }
    // The step at GP_GET may have begun where nothing is waited for.
    let plain = vec![vec![], vec![kernel(1, vec![])], vec![kernel(2, vec![])]];
    let found = suspects(channel(0, 1, plain.clone()), &[(line(0), 1)]);
    assert_eq!(found, (vec![1], true));
    // Something that could not be read, or where decoding stopped; and a gap.
    let mut holed = channel(0, 3, plain.clone());
    holed.steps[2].missing = 4;
    let all = [(line(0), 2)];
    assert_eq!(suspects(holed, &all), (vec![1, 2], false));
    let mut gap = channel(0, 3, plain.clone());
    gap.steps.remove(1);
    assert!(!suspects(gap, &[(line(0), 1)]).1);
    // A ring whose beginning is not known, and no semaphore that was read.
    let mut later = channel(0, 3, plain);
    later.steps.remove(0);
    assert!(!suspects(later, &[]).1);
    // A launch whose QMD was not seen.
    let mut unresolved = kernel(1, vec![]);
    if let Operation::Launch(l) = &mut unresolved {
        (l.kind, l.program) = (LaunchKind::Unresolved, None);
    }
    assert!(!suspects(channel(0, 1, vec![vec![unresolved]]), &[(line(0), 1)]).1);
}

#[test]
fn every_condition() {
    use SemaphoreAction::{AcquireAnd, AcquireEqual, AcquireGreaterEqual, AcquireNor};
    let passes = |action, payload, value| {
        let channels = vec![channel(
            0,
            0,
            vec![vec![semaphore(action, 0x5000, payload)]],
        )];
        let a = judged(channels, &[(line(0), 0), (0x5000, value)]);
        a.channels[0].wait.is_none()
    };
    assert!(passes(AcquireEqual, 5, 5) && !passes(AcquireEqual, 5, 6));
    assert!(passes(AcquireGreaterEqual, 5, 6) && !passes(AcquireGreaterEqual, 5, 4));
    assert!(passes(AcquireGreaterEqual, 0xffff_fff0, 3), "on the circle");
    assert!(passes(AcquireAnd, 6, 2) && !passes(AcquireAnd, 6, 9));
    assert!(passes(AcquireNor, 6, 9) && !passes(AcquireNor, 0xffff_fff0, 0xf));
}

#[test]
fn what_moved_tells_a_hang_from_work() {
    let scene = |done: u64, put: u32| {
        let steps = (0..put).map(|n| vec![kernel(n, vec![])]).collect();
        let scene = RingState {
            channels: vec![channel(0, put, steps)],
        };
        let analysis = analyse(&scene, &values(&[(line(0), done)]));
        (scene, analysis)
    };
    let moved = |before: (u64, u32), now: (u64, u32)| {
        let (b, n) = (scene(before.0, before.1), scene(now.0, now.1));
        compare((&b.0, &b.1), (&n.0, &n.1), 1_000_000_000, |b, n| b == n)
    };
    assert!(moved((3, 5), (3, 5)).is_hang());
    assert!(!moved((5, 5), (5, 5)).is_hang(), "idle");
    let work = moved((3, 5), (6, 8));
    assert!(!work.is_hang());
    let c = work.channels[0];
    assert_eq!((c.submitted, c.fetched, c.done), (3, 3, Some(3)));
    // A channel that is new is movement.
    let (b, n) = (scene(3, 5), scene(3, 5));
    assert!(!compare((&b.0, &b.1), (&n.0, &n.1), 1, |_, _| false).is_hang());
}

/// As in a hang of an H200: the channel's semaphore is released before the kernel starts, and others are queued behind it.
#[test]
fn a_kernel_that_the_semaphore_has_passed_is_not_done() {
    const END: u64 = 0x2_0463_7000;
    let end = QmdRelease {
        address: GpuVa(END),
        payload: 6,
    };
    let steps = || {
        vec![
            vec![],
            vec![kernel(1, vec![end.clone()])],
            vec![acquire(END, 6), kernel(2, vec![])],
            vec![kernel(3, vec![])],
        ]
    };
    let done = |value| {
        let a = judged(vec![channel(0, 3, steps())], &[(line(0), 2), (END, value)]);
        a.channels[0].done()
    };
    assert_eq!((done(5), done(6)), (Some(1), Some(2)));
}

/// A kernel whose own release is made does not run, and what is not fetched is not said to be.
#[test]
fn an_entry_that_is_not_fetched_runs_only_if_it_is_a_kernel_or_a_copy() {
    const END: u64 = 0x2_0463_7000;
    let end = QmdRelease {
        address: GpuVa(END),
        payload: 6,
    };
    let steps = || vec![vec![kernel(1, vec![])], vec![kernel(2, vec![end.clone()])]];
    let state = |value| {
        let a = judged(vec![channel(0, 1, steps())], &[(line(0), 1), (END, value)]);
        let running = a.channels[0].running.as_ref().map(|w| w.position);
        (a.channels[0].state, running)
    };
    assert_eq!(state(6), (State::Queued, None));
    assert_eq!(state(5), (State::Running, Some(1)));
}

/// The semaphores are read later than the ring, and GP_GET after them.
#[test]
fn what_was_fetched_while_a_look_was_taken_is_not_pending() {
    let after = |get: u32, done: u64| {
        let mut channel = channel(0, 1, vec![vec![]; 6]);
        let passed = done_of(&channel, &values(&[(line(0), done)]));
        channel.fetched_since(get, passed);
        let pending = channel.steps.iter().filter(|s| s.pending).count() as u32;
        assert_eq!(pending, channel.pending(), "{get} {done}");
        (channel.get, pending)
    };
    assert_eq!(after(1, 0), (1, 5));
    assert_eq!(after(4, 0), (4, 2));
    assert_eq!(after(4, 3), (4, 2));
    // What is done was fetched.
    assert_eq!(after(1, 5), (5, 1));
    // It has passed GP_PUT as it was: more was submitted since.
    assert_eq!(after(9, 6), (6, 0));
    assert_eq!(after(0, 6), (6, 0));
}
