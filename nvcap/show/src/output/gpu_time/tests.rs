//! Tests of the sums.

use std::sync::Arc;

use super::*;
use nvcap_decode::decode::event::{
    Copy, CopyEngine, CopyMode, Direction, DurationBy, GpuDuration, GpuMoment, Graph, PartOf,
};
use nvcap_decode::record::{At, How, Kernel, Life, Process, Stamps};
use nvcap_decode::wire::GpuVa;

fn context(serial: u64, ns: u64) -> Context {
    let time = GpuTime {
        duration: Some(GpuDuration {
            ns,
            error_ns: 1,
            by: DurationBy::NextStamp,
        }),
        ..GpuTime::default()
    };
    Context {
        absent_ns: None,
        at: At::default(),
        thread: None,
        gpu: Some(0),
        channel: ChannelId(0),
        token: None,
        class: None,
        engine: Engine::Graphics,
        serial,
        how: How::Trapped,
        late: false,
        phase: None,
        stack: None,
        gpu_time: Some(Arc::from([time])),
        parts: None,
        identity: None,
    }
}

fn replay() -> Operation {
    Operation::Graph(Box::new(Graph {
        replay: 0,
        nodes: 1,
        kernels: 1,
        memsets: 0,
        copies: 0,
        driver: 0,
        unresolved: 0,
        channels: Vec::new(),
        submissions: Vec::new(),
        bytes: 0,
        uploaded: false,
        conditional: false,
    }))
}

/// Times of several processes are read at the same time: their sum may be more than the trace is long.
#[test]
fn a_sum_over_processes_says_so() {
    let said = |pids: &[u32]| {
        let mut account = Account::default();
        for pid in pids {
            account.record(&Record::Stamps(Box::new(Stamps {
                at: At::of_process(2_000, *pid),
                from_ns: 1_000,
                reads: 5,
                stamps: Vec::new(),
            })));
        }
        account.summary(&Summary {
            stamps: StampReads {
                reads: 10,
                ns: 2_000,
                ..StampReads::default()
            },
            ..Summary::default()
        });
        account.finish();
        let mut out = Vec::new();
        account.text(&mut out, false, None);
        String::from_utf8(out).unwrap()
    };
    let line = "time stamps: read 10 times in 2.00 us, 0 seen\n";
    assert!(said(&[7]).contains(line), "{}", said(&[7]));
    let line = "time stamps: read 10 times in 2.00 us (the sum of 2 processes), 0 seen\n";
    assert!(said(&[7, 8]).contains(line), "{}", said(&[7, 8]));
}

/// Work of before that has not ended is told where nothing was submitted.
#[test]
fn earlier_work_is_told() {
    let mut account = Account::default();
    account.finish();
    let none = "no work was submitted to the GPU in this time";
    assert_eq!(account.notes(), [none]);
    account.record(&Record::Process(Process {
        at: At::of_process(1, 7),
        life: Life::Present { name: "x".into() },
    }));
    account.earlier.look(Box::new(|pids| {
        let says = "a kernel".to_owned();
        vec![earlier::Work { pid: pids[0], says }]
    }));
    let head = format!("{none}: earlier work has not ended");
    assert_eq!(account.notes(), [&*head, "process 7: a kernel"]);
}

#[test]
fn works_of_one_entry_have_a_row_of_their_own() {
    let mut account = Account::default();
    for (serial, works) in [(0, 1), (1, 3), (2, 1), (3, 3)] {
        for _ in 0..works {
            account.operation(&context(serial, 100 + serial), 0, &replay());
        }
    }
    account.finish();
    let rows: Vec<_> = account
        .sorted(false)
        .into_iter()
        .map(|(what, row)| (row.text.as_str(), row.count, what.works(), row.total_ns()))
        .collect();
    let one = "graph replay (all its kernels)";
    let three = format!("3 in one entry: 3 x {one}");
    assert_eq!(rows, [(three.as_str(), 2, 3, 204), (one, 2, 1, 202)]);
    assert_eq!((account.known.entries, account.known.durations), (4, 4));
    assert!(account.sorted(true).is_empty());
}

/// A trace that is shown as it comes finds a name some milliseconds behind the first launch.
#[test]
fn a_name_that_comes_late_is_that_of_the_launches_before_it() {
    let unnamed = || {
        let Operation::Launch(mut l) = graphs::tests::launch(None, Some(0x1000), 1) else {
            unreachable!()
        };
        l.kernel = None;
        Operation::Launch(l)
    };
    let rows = |by_process, pids: [u32; 2], found_ns, certain| {
        let mut account = Account {
            by_process,
            ..Account::default()
        };
        let launch = |account: &mut Account, pid, ns: u64, op: &Operation| {
            let mut c = context(ns, 100);
            c.at = At::of_process(ns, pid);
            account.operation(&c, 0, op);
        };
        launch(&mut account, pids[0], 10, &unnamed());
        launch(&mut account, pids[1], 20, &unnamed());
        let kernel = Kernel {
            certain,
            ..Kernel::called(At::of_process(found_ns, 7), 0x1000, "f")
        };
        account.record(&Record::Kernel(Box::new(kernel.clone())));
        let Operation::Launch(mut named) = unnamed() else {
            unreachable!()
        };
        named.kernel = Some(Arc::new(kernel));
        launch(&mut account, 7, 30, &Operation::Launch(named));
        account.finish();
        let all = account.sorted(false).into_iter();
        let mut all: Vec<_> = all
            .map(|(_, row)| (row.text.clone(), row.count, row.total_ns()))
            .collect();
        all.sort();
        all
    };
    let row = |text: &str, count: u64| (text.to_owned(), count, count * 100);
    assert_eq!(rows(false, [7, 7], 10, true), [row("f", 3)]);
    assert_eq!(
        rows(true, [7, 7], 10, true),
        [row("f, process 7", 3)],
        "a row for each process"
    );
    // Other code may have been there, or be there in another process; a guess is none.
    let apart = [row("f", 1), row("program 0x1000", 2)];
    assert_eq!(rows(false, [7, 7], 11, true), apart);
    assert_eq!(rows(false, [7, 8], 10, true), apart);
    assert_eq!(rows(false, [7, 7], 10, false).len(), 2);
}

/// Copies by which the driver loads a module are no copies of the program.
#[test]
fn the_driver_s_copies_have_a_row_of_their_own() {
    let mut account = Account::default();
    let copy = |src| {
        Operation::Copy(Box::new(Copy {
            bytes: 8,
            src,
            dst: Some(GpuVa(0x1000)),
            direction: Some(Direction::HostToDevice),
            physical: (false, false),
            mode: CopyMode::Linear,
            engine: CopyEngine::Copy(None),
            direction_from: None,
            line_bytes: 8,
            lines: 1,
            pitch: None,
            pattern: None,
            semaphore: None,
            launch_dma: 0,
            src_memory: None,
            dst_memory: None,
        }))
    };
    for (serial, part) in [
        (0, None),
        (1, Some(PartOf::Module)),
        (2, Some(PartOf::Module)),
    ] {
        let mut c = context(serial, 100);
        c.parts = part.map(|part| Arc::from([Some(part)]));
        account.operation(&c, 0, &copy((serial < 2).then_some(GpuVa(0x2000))));
    }
    account.finish();
    let rows: Vec<_> = { account.sorted(true).into_iter() }
        .map(|(_, row)| (row.text.as_str(), row.count))
        .collect();
    assert_eq!(rows, [("the driver, for a module", 2), ("copy h2d", 1)]);
}

/// Between two copies that are timed lie some whose stamps were written over: whether the engine worked in that time is not known.
#[test]
fn works_without_a_begin_are_no_time_without_work() {
    let moment = |host_ns: u64| GpuMoment {
        host_ns,
        host_error_ns: 0,
        gpu_ns: host_ns - 1_000_000,
        gpu_error_ns: 0,
    };
    let duration = |ns| GpuDuration {
        ns,
        error_ns: 0,
        by: DurationBy::Release,
    };
    let timed = |start: u64, ns: u64| GpuTime {
        start: Some(moment(start)),
        duration: Some(duration(ns)),
        works: 1,
        ..GpuTime::default()
    };
    let hidden = GpuTime {
        works: 1,
        ..GpuTime::default()
    };
    let ended = |at: u64| GpuTime {
        ended: Some(moment(at)),
        ..hidden
    };
    let second = 1_000_000_000;
    // All of the first five are in the ring before the first of them begins.
    let early = |n: u64| 2 * second + n;
    let works = [
        (early(0), timed(2 * second + 100_000, 500_000)),
        (early(1), hidden),
        (early(2), hidden),
        // From the end of the first to the begin of this one nothing is known: 2.4 ms.
        (early(3), timed(2 * second + 3_000_000, 1_000_000)),
        (early(4), hidden),
        // This one's end is known: up to it another 1 ms.
        (early(5), ended(2 * second + 5_000_000)),
        // Nothing is there for 5 ms; then comes what began at some time of the 2 ms until the next one.
        (2 * second + 10_010_000, hidden),
        (
            2 * second + 10_020_000,
            timed(2 * second + 12_000_000, 1_000_000),
        ),
    ];
    let mut account = Account {
        origin: Some(second),
        ..Account::default()
    };
    for (serial, (at, time)) in (0..).zip(works) {
        let c = Context {
            at: At::of_process(at, 7),
            engine: Engine::Copy(Some(0)),
            gpu_time: Some(Arc::from([time])),
            ..context(serial, 0)
        };
        account.submission(&c);
    }
    account.finish();
    let of = |work: &Intervals| (work.busy_ns, work.idle.ns, work.unknown_ns);
    let channel = &account.channels[&ChannelId(0)].work;
    assert_eq!(of(channel), (2_500_000, 5_000_000, 5_400_000));
    // Four are like those that are timed, 500 and then 750 us each: the third of the stretches has one, the second no room for its two.
    assert_eq!(
        (channel.unknown_about_ns, channel.untold_ns()),
        (1_000_000 + 1_000_000 + 750_000, 0)
    );
    // Of the idle time it is known that nothing was there.
    assert_eq!(channel.idle.empty_ns, (5_000_000, 5_000_000));
    assert_eq!(of(&account.gpus[&Whose::Gpu(0)]), of(channel));
    let gaps: Vec<u64> = channel.gaps.iter().map(|gap| gap.idle.ns).collect();
    assert_eq!(gaps, [5_000_000]);
}

/// Works of which nothing tells for long when they had ended are not waited for: what other channels do is summed up meanwhile.
#[test]
fn works_without_a_begin_nor_an_end_are_open() {
    let second = 1_000_000_000;
    let moment = |host_ns: u64| GpuMoment {
        host_ns,
        host_error_ns: 0,
        gpu_ns: host_ns,
        gpu_error_ns: 0,
    };
    let timed = |start: u64| GpuTime {
        start: Some(moment(start)),
        duration: Some(GpuDuration {
            ns: second / 10,
            error_ns: 0,
            by: DurationBy::Release,
        }),
        works: 1,
        ..GpuTime::default()
    };
    let hidden = GpuTime {
        works: 1,
        ..GpuTime::default()
    };
    let mut account = Account {
        origin: Some(second),
        ..Account::default()
    };
    let mut works = vec![(0, second, timed(second)), (0, 2 * second, hidden)];
    works.extend((0..40).map(|n| (1, (4 + n) * second, timed((4 + n) * second))));
    for (serial, (channel, at, time)) in (0..).zip(works) {
        let c = Context {
            at: At::of_process(at, 7),
            channel: ChannelId(channel),
            gpu_time: Some(Arc::from([time])),
            ..context(serial, 0)
        };
        account.submission(&c);
    }
    account.finish();
    // It may have run for ten seconds, in which four and then six works of the other channel are known.
    let all = &account.gpus[&Whose::Gpu(0)];
    assert_eq!(all.busy_ns, 41 * second / 10);
    assert!(
        all.unknown_ns > 9 * second - second / 10 && all.unknown_ns <= 10 * second,
        "{}",
        all.unknown_ns
    );
    assert!(account.hidden.held_for_long(u64::MAX).is_none());
}
