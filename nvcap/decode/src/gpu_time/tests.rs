//! Tests on a simulated GPU: kernels on one compute channel, copies on another, and their semaphores as nvcap reads them. The computed
//! times are compared with the times at which the work really ran.

use super::GpuTimes;
use super::made_up::*;
use crate::decode::encode::Pushbuffer;
use crate::decode::event::{DurationBy, GpuTime};
use crate::record::{At, Channel, Gpu, How, Origin, Record, Stamp, Stamps, Submission};
use crate::wire::GpuVa;

/// True times of a submission, on the GPU's clock.
#[derive(Clone, Copy, Debug)]
struct Truth {
    stamp: u64,
    /// Time of the first instruction.
    start: u64,
    end: u64,
    /// True if the next submission was in the ring when this one ended.
    followed: bool,
}

/// Runs kernels, each given by the pause after the previous doorbell and its duration, ns.
fn run(kernels: &[(u64, u64)], how: How, gaps: bool) -> Vec<(Truth, GpuTime)> {
    let mut times = GpuTimes::default();
    times.note(&Record::Gpu(Gpu {
        at: At::default(),
        minor: 0,
        pci_device: 0x2335,
    }));
    let (mut doorbell, mut free) = (1_000_000, 0);
    let mut writes = Writes::new();
    let mut truth: Vec<Truth> = Vec::new();
    let mut submissions = Vec::new();
    for (n, (pause, length)) in (0u32..).zip(kernels) {
        doorbell += pause;
        let stamp = (doorbell + FETCH).max(free + NEXT);
        if let Some(before) = truth.last_mut() {
            before.followed = doorbell + FETCH <= before.end + NEXT;
        }
        let start = stamp + 576;
        let end = start + length;
        free = end;
        writes.push((stamp, KERNEL_STAMP, n + 1, true));
        let (at, number) = end_of(n);
        writes.push((start + 1_500, at, number - 1, false));
        writes.push((end + 300, at, number, false));
        truth.push(Truth {
            stamp,
            start,
            end,
            followed: false,
        });
        // A look comes up to 300 us later.
        let seen = match how {
            How::Observed => (doorbell / 300_000 + 1) * 300_000,
            _ => doorbell + trap(n),
        };
        submissions.push(submission(
            KERNELS,
            n.into(),
            seen + OFFSET,
            how,
            &kernel(n),
        ));
    }
    for s in &submissions {
        times.note(&Record::Submission(s.clone()));
    }
    let stamps = read(writes, 1_100, gaps);
    times.note(&Record::Stamps(Box::new(Stamps {
        at: At {
            time_ns: doorbell + OFFSET,
            pid: PID,
            tid: 0,
        },
        from_ns: OFFSET,
        reads: 1,
        stamps,
    })));
    let found = submissions.iter().map(|s| times.take(s)[0]);
    truth.into_iter().zip(found).collect()
}

fn check(all: &[(Truth, GpuTime)]) {
    for (truth, time) in all {
        if let Some(start) = time.start {
            assert_eq!(start.gpu_ns, truth.stamp, "{truth:?} {time:?}");
            let exec = time.exec.expect("an execution").start;
            let wrong = exec.gpu_ns.abs_diff(truth.start);
            assert!(wrong <= exec.gpu_error_ns, "{truth:?} {time:?}");
            let wrong = start.host_ns.abs_diff(truth.stamp + OFFSET);
            assert!(wrong <= start.host_error_ns, "{truth:?} {time:?}");
            assert!(start.host_error_ns < 8_000, "{time:?}");
        }
        if let Some(duration) = time.duration {
            let wrong = duration.ns.abs_diff(truth.end - truth.stamp);
            assert!(wrong <= duration.error_ns, "{truth:?} {time:?}");
            let executed = time.exec.and_then(|e| e.duration).expect("a duration");
            let wrong = executed.ns.abs_diff(truth.end - truth.start);
            assert!(wrong <= executed.error_ns, "{truth:?} {time:?}");
            if !truth.followed {
                assert_eq!(duration.by, DurationBy::Release, "{truth:?} {time:?}");
            }
        }
    }
}

fn share(all: &[(Truth, GpuTime)], of: impl Fn(&GpuTime) -> bool) -> f64 {
    all.iter().filter(|(_, t)| of(t)).count() as f64 / all.len() as f64
}

/// Test of several entries that one look finds: none of them was there at the look before.
#[test]
fn each_entry_of_a_look_has_a_time_in_the_queue() {
    let kernels = [(0, 20_000); 1].into_iter();
    let kernels: Vec<_> = kernels
        .chain([(700_000, 20_000)])
        .chain([(1_000, 20_000); 40])
        .collect();
    let all = run(&kernels, How::Observed, false);
    let with = all[2..].iter().filter(|(_, t)| t.queued.is_some());
    assert_eq!(with.count(), 40);
    for (n, (truth, time)) in all.iter().enumerate().skip(2) {
        let (least, most) = time.queued.expect("a time in the queue");
        let doorbell = 1_700_000 + (n as u64 - 1) * 1_000;
        let queued = truth.stamp - doorbell;
        assert!(
            least <= queued && queued <= most,
            "{n}: {least}..{most}, {queued}"
        );
    }
}

#[test]
fn kernels_in_a_row_are_timed_by_the_next_stamp() {
    for (pause, length) in [
        (1_500, 2_000),
        (3_000, 5_000),
        (2_000, 20_000),
        (5_000, 100_000),
    ] {
        for how in [How::Trapped, How::Observed] {
            let all = run(&vec![(pause, length); 2_000], how, false);
            check(&all);
            assert!(share(&all, |t| t.start.is_some()) > 0.99, "{how:?}");
            assert!(share(&all, |t| t.duration.is_some()) > 0.99, "{how:?}");
            let by_next = |t: &GpuTime| t.duration.is_some_and(|d| d.by == DurationBy::NextStamp);
            // In observed traces, short kernels are often over when the next one is found.
            let least = if length < 5_000 { 0.3 } else { 0.97 };
            assert!(share(&all, by_next) > least, "{length} {how:?}");
        }
    }
}

#[test]
fn kernels_with_pauses_are_timed_by_their_releases() {
    for how in [How::Trapped, How::Observed] {
        let all = run(&vec![(60_000, 20_000); 1_000], how, false);
        check(&all);
        assert!(share(&all, |t| t.duration.is_some()) > 0.99, "{how:?}");
        let queued = |t: &GpuTime| {
            t.queued
                .is_some_and(|(least, most)| least <= FETCH && most >= FETCH)
        };
        if how == How::Trapped {
            assert!(share(&all, queued) > 0.99);
        }
    }
}

#[test]
fn what_was_not_read_has_no_time() {
    let all = run(&vec![(3_000, 5_000); 3_000], How::Trapped, true);
    check(&all);
    let timed = share(&all, |t| t.start.is_some());
    assert!((0.6..0.75).contains(&timed), "{timed}");
    let mut times = GpuTimes::default();
    let s = submission(KERNELS, 0, 1, How::Trapped, &kernel(0));
    assert!(times.take(&s)[0].is_unknown());
    times.note(&Record::Submission(s.clone()));
    assert!(times.take(&s)[0].is_unknown());
    let waiting = times.channels.values().map(|(_, t)| t.waiting());
    assert_eq!(waiting.sum::<usize>(), 0, "of a trace without stamps");
}

#[test]
fn a_copy_lasts_from_its_doorbell_or_the_copy_before_to_its_own_stamp() {
    let mut times = GpuTimes::default();
    let channel = Channel {
        gpu: Some(0),
        ..Channel::bare(At::default(), COPIES, Origin::Given)
    };
    times.note(&Record::Channel(Box::new(channel)));
    // The first copy finds an idle engine; the second is behind it.
    let doorbells = [1_000_000u64, 1_010_000];
    let ends = [1_050_000u64, 1_090_000];
    let writes: Writes = (0u32..)
        .zip(ends)
        .map(|(n, end)| (end, COPY_STAMP, n + 1, true))
        .collect();
    let all: Vec<Submission> = (0u32..)
        .zip(doorbells)
        .map(|(n, at)| submission(COPIES, n.into(), at + OFFSET, How::Trapped, &copy(n)))
        .collect();
    for s in &all {
        times.note(&Record::Submission(s.clone()));
    }
    times.note(&Record::Stamps(Box::new(Stamps {
        at: At {
            time_ns: 2_000_000,
            pid: PID,
            tid: 0,
        },
        from_ns: 1_000_000,
        reads: 1,
        stamps: read(writes, 1_100, false),
    })));
    let found: Vec<GpuTime> = all.iter().map(|s| times.take(s)[0]).collect();
    let duration = |i: usize| found[i].duration.expect("a duration");
    assert_eq!(duration(0).by, DurationBy::OwnStamp);
    assert!(duration(0).ns.abs_diff(48_000) <= duration(0).error_ns);
    assert!(duration(1).ns.abs_diff(40_000) <= duration(1).error_ns);
    assert_eq!(found[1].ready_gpu_ns, Some(ends[0]));
}

/// Number of claims, and of wrong ones.
#[derive(Debug, Default)]
struct Claims {
    made: u64,
    wrong: u64,
}

impl Claims {
    fn note(&mut self, wrong: u64, error: u64) {
        self.made += 1;
        self.wrong += u64::from(wrong > error);
    }
}

/// Test of kernels and pauses of any length. A release that is seen is never contradicted. Of the ends by the next stamp, a few in a
/// million are: those whose following doorbell was rung just before the end (docs/gpu-time.md).
#[test]
fn errors_are_within_their_bounds() {
    let mut state = 7u64;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % n
    };
    let (mut starts, mut next_stamp, mut release) = <(Claims, Claims, Claims)>::default();
    let mut vague = 0;
    for _ in 0..240 {
        let kernels: Vec<(u64, u64)> = (0..50 + random(350))
            .map(|_| (500 + random(79_500), 1_000 + random(59_000)))
            .collect();
        let how = [How::Trapped, How::Observed][random(2) as usize];
        for (truth, time) in run(&kernels, how, false) {
            if let Some(start) = time.start {
                assert_eq!(start.gpu_ns, truth.stamp);
                let wrong = start.host_ns.abs_diff(truth.stamp + OFFSET);
                starts.note(wrong, start.host_error_ns);
                vague += u64::from(start.host_error_ns >= 8_000);
            }
            if let Some(duration) = time.duration {
                let claims = match duration.by {
                    DurationBy::Release => &mut release,
                    _ => &mut next_stamp,
                };
                let wrong = duration.ns.abs_diff(truth.end - truth.stamp);
                claims.note(wrong, duration.error_ns);
            }
        }
    }
    assert!(starts.made > 40_000 && starts.wrong == 0, "{starts:?}");
    assert!(vague * 1_000 < starts.made, "{vague} of {starts:?}");
    assert!(release.made > 20_000 && release.wrong == 0, "{release:?}");
    assert!(next_stamp.made > 12_000, "{next_stamp:?}");
    assert!(
        next_stamp.wrong * 10_000 < next_stamp.made,
        "{next_stamp:?}"
    );
}

/// Test of submissions with stamps around them, as Vulkan's have, in places that are reused.
#[test]
fn a_submission_with_stamps_around_it_has_its_times() {
    const PLACE: u64 = 0x427_8000;
    let mut times = GpuTimes::default();
    times.note(&Record::Gpu(Gpu {
        at: At::default(),
        minor: 0,
        pci_device: 0x2330,
    }));
    let at = |n: u64| 1_000_000_000 + n * 2_000_000;
    let made = |n: u64| {
        let place = PLACE as u32 + (n as u32 % 2) * 32;
        let (mut first, mut work, mut last) = Default::default();
        let begin = [place, 0, 1, 0, 1 | 1 << 25];
        Pushbuffer::named(&mut first, 0, 0xc56f, "SEM_ADDR_LO", &begin).expect("methods");
        Pushbuffer::named(&mut work, 1, CLASS, "SEND_PCAS_A", &[7]).expect("a method");
        Pushbuffer::named(&mut work, 4, 0xc8b5, "LAUNCH_DMA", &[0x182]).expect("a method");
        let end = [0, place + 16, 1, 0xf010];
        let other = [0, 0x41c_0c30, 3, 0x1000_f010];
        for words in [end, other] {
            Pushbuffer::named(&mut last, 1, CLASS, "SET_REPORT_SEMAPHORE_A", &words)
                .expect("methods");
        }
        let mut s = submission(KERNELS, n * 3, at(n), How::Trapped, &first);
        s.segments
            .extend([&work, &last].map(|p| p.segment(GpuVa(0x80_0000))));
        s
    };
    // The stamps of the last submission do not come; its place still has those of the submission two before it.
    for n in 0..6u64 {
        times.note(&Record::Submission(made(n)));
        let place = PLACE + n % 2 * 32;
        let stamps = |address, gpu_ns: u64| Stamp {
            address: GpuVa(address),
            payload: 1,
            gpu_ns: Some(gpu_ns),
            before_ns: gpu_ns + OFFSET - 900,
            seen_ns: gpu_ns + OFFSET + 400,
        };
        let begin = at(n) - OFFSET + 5_000;
        let seen = vec![stamps(place, begin), stamps(place + 16, begin + 70_000 + n)];
        let record = Stamps {
            at: At {
                time_ns: at(n) + 100_000,
                pid: PID,
                tid: 0,
            },
            from_ns: at(n),
            reads: 50,
            stamps: if n < 5 { seen } else { Vec::new() },
        };
        times.note(&Record::Stamps(Box::new(record)));
        let told = times.take(&made(n));
        let ([before, own, behind], 3) = ([told[0], told[1], told[2]], told.len()) else {
            panic!("{told:?}");
        };
        assert!(before.is_unknown() && behind.is_unknown());
        assert_eq!((before.works, own.works, behind.works), (0, 2, 0));
        if n == 5 {
            assert!(own.is_unknown(), "{own:?}");
            continue;
        }
        assert_eq!(own.start.map(|s| s.gpu_ns), Some(begin));
        let duration = own.duration.expect("a duration");
        assert_eq!(
            (duration.ns, duration.by),
            (70_000 + n, DurationBy::OwnStamp)
        );
        let (least, most) = own.queued.expect("a time in the queue");
        assert!(least <= 5_000 && most >= 5_000, "{least} {most}");
    }
}

/// Test that no sum overflows, whatever positions, times and stamps a recording has.
#[test]
fn the_last_positions_and_times_do_not_overflow() {
    let ends = [0, 1, 1 << 63, u64::MAX - 1_000, u64::MAX];
    let hows = [How::Trapped, How::Precommit, How::Observed];
    let all = hows.into_iter().flat_map(|how| {
        let positions = ends.into_iter();
        positions.flat_map(move |at| ends.into_iter().map(move |time| (how, at, time)))
    });
    for (how, position, time_ns) in all {
        let mut times = GpuTimes::default();
        let submissions: Vec<Submission> = (0..3)
            .map(|n| {
                let at = position.saturating_add(n);
                let mut s = submission(KERNELS, at, time_ns, how, &kernel(n as u32 + 16));
                s.segments = vec![s.segments[0].clone(); 2];
                s
            })
            .collect();
        let record = |s: &Submission| Record::Submission(s.clone());
        submissions.iter().for_each(|s| times.note(&record(s)));
        // This process has no stamps.
        for s in &submissions {
            assert_eq!(times.take(s).len(), 2);
        }
        submissions.iter().for_each(|s| times.note(&record(s)));
        for gpu_ns in ends {
            for seen_ns in ends {
                let stamp = |(address, payload), gpu_ns, before_ns| Stamp {
                    address: GpuVa(address),
                    payload,
                    gpu_ns,
                    before_ns,
                    seen_ns,
                };
                let stamps = (16..19).flat_map(|n| {
                    let kernel = (KERNEL_STAMP, n + 1);
                    [
                        stamp(kernel, Some(gpu_ns), 1),
                        stamp(
                            kernel,
                            Some(gpu_ns.wrapping_add(n.into())),
                            seen_ns.wrapping_sub(9),
                        ),
                        stamp(end_of(n), None, seen_ns.wrapping_sub(900)),
                        stamp(end_of(n - 1), None, 0),
                    ]
                });
                times.note(&Record::Stamps(Box::new(Stamps {
                    at: At {
                        time_ns,
                        pid: PID,
                        tid: 0,
                    },
                    from_ns: 0,
                    reads: u64::MAX,
                    stamps: stamps.collect(),
                })));
                let mut taken = times.channels.clone();
                for s in &submissions {
                    for time in times.take(s) {
                        let _ = (time.end_gpu_ns(), time.by_exec().end_gpu_ns());
                    }
                }
                std::mem::swap(&mut times.channels, &mut taken);
            }
        }
    }
}
