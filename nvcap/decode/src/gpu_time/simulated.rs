//! Tests on simulated streams on one GPU, each a channel with semaphores of its own: two at the same time, replays of graphs in a row, a
//! program that launches too slowly, steps of a clock. The computed times are compared with the true ones, within the limits that a real
//! GPU must meet (docs/verification.md).

use std::slice;

use super::GpuTimes;
use super::made_up::{CLASS, FETCH, OFFSET, PID, Writes, read, submission, trap};
use super::rules::Rules;
use crate::decode::encode::{Pushbuffer, Qmd};
use crate::decode::event::{GpuTime, QmdRelease};
use crate::decode::view::View;
use crate::record::{At, ChannelId, Gpu, How, Record, Stamp, Stamps};
use crate::wire::GpuVa;

/// Pseudo-random numbers, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }

    /// Returns a number that is at most `spread` away from `middle`.
    fn about(&mut self, middle: u64, spread: u64) -> u64 {
        middle - spread + self.below(2 * spread + 1)
    }
}

/// A submission: the time from the previous doorbell to its own, and its running time, ns.
#[derive(Clone, Copy, Debug)]
struct Work {
    pause: u64,
    length: u64,
    replay: bool,
}

/// True times of a piece of work, on the GPU's clock, and its computed times.
#[derive(Clone, Copy, Debug)]
struct Ran {
    stamp: u64,
    /// Time of the first instruction.
    start: u64,
    end: u64,
    told: GpuTime,
}

fn stamp_of(stream: u64) -> u64 {
    0x2_0460_fff0 - stream * 16
}

/// Returns the word that a submission releases at its end, and the number.
fn word_of(stream: u64, n: u32) -> (u64, u32) {
    let word = 0x2_0463_7000 + stream * 256 + u64::from(n % 16) * 16;
    (word, n * 2 + 1)
}

/// Makes a submission as libcuda does: a wait for the word's last user and for the previous submission, then the work, then the stamp.
fn pushbuffer(stream: u64, n: u32, replay: bool) -> Pushbuffer {
    let mut p = Pushbuffer::new();
    for before in [n.checked_sub(16), n.checked_sub(1)].into_iter().flatten() {
        let (address, number) = word_of(stream, before);
        let acquire = [address as u32, (address >> 32) as u32, number, 0, 3];
        p.named(0, 0xc86f, "SEM_ADDR_LO", &acquire)
            .expect("methods");
    }
    let (word, number) = word_of(stream, n);
    let (word, qmd) = (GpuVa(word), GpuVa(0x2_04c0_0000));
    if replay {
        // The QMDs are in memory: the first one, the number before the last one's, the first node.
        p.named(1, CLASS, "SEND_PCAS_A", &[(qmd.0 >> 8) as u32])
            .expect("a method");
        p.inline(1, CLASS, word, &(number - 1).to_le_bytes())
            .expect("inline data");
        p.named(1, CLASS, "SEND_PCAS_A", &[(qmd.0 >> 8) as u32 + 4])
            .expect("a method");
    } else {
        let view = View {
            version: (4, 0),
            grid: [4, 1, 1],
            block: [64, 1, 1],
            registers: 24,
            program: GpuVa(0x7f00_0000_0000),
            releases: vec![QmdRelease {
                address: word,
                payload: number.into(),
            }],
            ..View::default()
        };
        let bytes = Qmd::of(&view).expect("a layout");
        p.inline(1, CLASS, qmd, bytes.bytes()).expect("inline data");
        p.pcas(1, CLASS, qmd).expect("methods");
    }
    let stamp = [2, stamp_of(stream) as u32, n + 1, 0];
    p.named(1, CLASS, "SET_REPORT_SEMAPHORE_A", &stamp)
        .expect("methods");
    p
}

/// Runs streams side by side, each from a thread of its own. `change` alters the stamps before they are recorded.
fn run(streams: &[Vec<Work>], change: impl Fn(&mut Stamp)) -> (Vec<Vec<Ran>>, GpuTimes) {
    let rules = Rules::of(Some(CLASS));
    let mut random = Random(11);
    let mut times = GpuTimes::default();
    times.note(&Record::Gpu(Gpu {
        at: At::default(),
        minor: 0,
        pci_device: 0x2335,
    }));
    let mut writes = Writes::new();
    let mut all = Vec::new();
    let mut last = 0;
    for (stream, works) in (0u64..).zip(streams) {
        let channel = ChannelId(stream as u32);
        let (mut doorbell, mut free) = (1_000_000 + stream * 700, 0);
        for (n, work) in (0u32..).zip(works) {
            doorbell += work.pause;
            let behind = match (work.replay, streams.len() > 1) {
                (true, _) => random.about(rules.replay_end_ns, 100),
                (false, false) => random.about(rules.end_ns, 100),
                (false, true) => random.about(rules.shared_end_ns, 100),
            };
            let stamp = (doorbell + FETCH).max(free + behind);
            // Beside another stream, one submission in twenty starts later (H200).
            let late = match streams.len() > 1 && random.below(20) == 0 {
                true => 400,
                false => 0,
            };
            let start = match (work.replay, streams.len() > 1) {
                (true, _) => stamp + random.about(rules.replay_start_ns, 100),
                (false, false) => stamp + random.about(rules.start_ns, 60),
                (false, true) => stamp + random.about(rules.shared_start_ns, 60) + late,
            };
            let end = start + work.length;
            free = end;
            writes.push((stamp, stamp_of(stream), n + 1, true));
            let (word, number) = word_of(stream, n);
            // A kernel resets its word when it has begun; for a replay, the submission does so before.
            let reset = if work.replay {
                stamp
            } else {
                start + 1_500.min(work.length * 3 / 4)
            };
            writes.push((reset, word, number - 1, false));
            writes.push((end + random.about(300, 200), word, number, false));
            let at = doorbell + trap(n) + OFFSET;
            last = last.max(at).max(end + OFFSET);
            let p = pushbuffer(stream, n, work.replay);
            let s = submission(channel, n.into(), at, How::Trapped, &p);
            all.push((s, stream as usize, [stamp, start, end]));
        }
    }
    all.sort_by_key(|(s, ..)| s.at.time_ns);
    for (s, ..) in &all {
        times.note(&Record::Submission(s.clone()));
    }
    let mut stamps = read(writes, 1_100, false);
    stamps.iter_mut().for_each(change);
    times.note(&Record::Stamps(Box::new(Stamps {
        at: At {
            time_ns: last,
            pid: PID,
            tid: 0,
        },
        from_ns: OFFSET,
        reads: 1,
        stamps,
    })));
    let mut ran = vec![Vec::new(); streams.len()];
    for (s, stream, [stamp, start, end]) in all {
        let told = times.take(&s)[0];
        ran[stream].push(Ran {
            stamp,
            start,
            end,
            told,
        });
    }
    (ran, times)
}

/// Returns the value that this share of all (0 to 1) does not exceed.
fn quantile(of: &mut [u64], share: f64) -> u64 {
    of.sort_unstable();
    of[((of.len() - 1) as f64 * share) as usize]
}

/// Returns the share of known durations, the errors of starts and of durations in ns, and the share of claims whose error is greater than
/// stated.
fn errors(all: &[Ran]) -> (f64, Vec<u64>, Vec<u64>, f64) {
    let (mut starts, mut durations, mut claims, mut wrong) = (Vec::new(), Vec::new(), 0, 0);
    for ran in all {
        if let Some((start, exec)) = ran.told.start.zip(ran.told.exec) {
            assert_eq!(start.gpu_ns, ran.stamp);
            let off = exec.start.gpu_ns.abs_diff(ran.start);
            starts.push(off);
            let host = start.host_ns.abs_diff(ran.stamp + OFFSET);
            claims += 2;
            wrong += u32::from(off > exec.start.gpu_error_ns);
            wrong += u32::from(host > start.host_error_ns);
        }
        let executed = ran.told.exec.and_then(|e| e.duration);
        if let Some((duration, executed)) = ran.told.duration.zip(executed) {
            let off = duration.ns.abs_diff(ran.end - ran.stamp);
            durations.push(off);
            claims += 2;
            wrong += u32::from(off > duration.error_ns);
            let off = executed.ns.abs_diff(ran.end - ran.start);
            wrong += u32::from(off > executed.error_ns);
        }
    }
    let known = durations.len() as f64 / all.len() as f64;
    (
        known,
        starts,
        durations,
        f64::from(wrong) / f64::from(claims),
    )
}

#[test]
fn two_streams_at_once() {
    let of = |length| {
        let work = Work {
            pause: length * 9 / 10,
            length,
            replay: false,
        };
        vec![work; 2_000]
    };
    for length in [5_000, 20_000] {
        let (ran, _) = run(&[of(length), of(length + 700)], |_| ());
        for stream in ran {
            let (known, mut starts, mut durations, wrong) = errors(&stream);
            assert!(known > 0.98 && wrong < 0.01, "{length}: {known} {wrong}");
            // The cost of a late start is within the stated error, and no more than that (docs/gpu-time.md, limits).
            assert!(quantile(&mut starts, 0.9) <= 200, "{length}");
            assert!(quantile(&mut starts, 1.0) <= 500, "{length}");
            assert!(quantile(&mut durations, 0.5) <= 300, "{length}");
            assert!(quantile(&mut durations, 0.99) <= 2_000, "{length}");
        }
    }
}

#[test]
fn replays_behind_each_other() {
    let work = Work {
        pause: 20_000,
        length: 30_000,
        replay: true,
    };
    let (ran, _) = run(&[vec![work; 2_000]], |_| ());
    let (known, mut starts, mut durations, wrong) = errors(&ran[0]);
    assert!(known > 0.98 && wrong < 0.01, "{known} {wrong}");
    assert!(quantile(&mut starts, 0.99) <= 200);
    assert!(quantile(&mut durations, 0.5) <= 300);
    assert!(quantile(&mut durations, 0.99) <= 2_000);
}

/// Test of kernels with nothing queued behind them: only their words tell their ends.
#[test]
fn a_launch_bound_loop() {
    let mut random = Random(3);
    let works: Vec<Work> = (0..4_000)
        .map(|_| Work {
            pause: 14_000 + random.below(12_000),
            length: 1_000 + random.below(7_000),
            replay: false,
        })
        .collect();
    let (ran, _) = run(&[works], |_| ());
    let (known, mut starts, mut durations, wrong) = errors(&ran[0]);
    assert!(known > 0.98 && wrong < 0.001, "{known} {wrong}");
    assert!(quantile(&mut starts, 0.99) <= 200);
    assert!(quantile(&mut durations, 0.5) <= 1_500);
    assert!(quantile(&mut durations, 0.9) <= 4_000);
    // Errors of single durations cancel in their sum.
    let sum = |of: &dyn Fn(&Ran) -> Option<u64>| ran[0].iter().filter_map(of).sum::<u64>() as f64;
    let told = sum(&|r| r.told.duration.map(|d| d.ns));
    let truth = sum(&|r| r.told.duration.map(|_| r.end - r.stamp));
    assert!((told / truth - 1.0).abs() < 0.1, "{told} {truth}");
}

/// Test of a GPU clock that steps forward or back, or that runs slower or faster from some time on, as NTP makes the host's run. Times of
/// the host and durations stay right, and a step is counted.
#[test]
fn clocks_that_step_or_slew() {
    let work = Work {
        pause: 18_000,
        length: 20_000,
        replay: false,
    };
    let works = vec![work; 5_000];
    let (plain, _) = run(slice::from_ref(&works), |_| ());
    let middle = plain[0][2_500].stamp - 424;
    let step = |by: i64| move |at: u64| if at < middle { 0 } else { by };
    // The clock slews by 400 parts per million for a tenth of a second, which is the most that NTP does.
    let slew = move |at: u64| (at.saturating_sub(middle).min(100_000_000) / 2_500).cast_signed();
    type Moved = Box<dyn Fn(u64) -> i64>;
    let changes: [(Moved, u64); 5] = [
        (Box::new(step(3_000_000)), 1),
        (Box::new(step(-3_000_000)), 1),
        (Box::new(step(40_000_000_000)), 1),
        (Box::new(step(-40_000_000_000)), 1),
        (Box::new(slew), 0),
    ];
    for (n, (moved, steps)) in changes.into_iter().enumerate() {
        let (ran, times) = run(slice::from_ref(&works), |stamp| {
            let long_ago = 1_000_000_000_000;
            let at = stamp
                .gpu_ns
                .map(|at| (at + long_ago).wrapping_add_signed(moved(at)));
            stamp.gpu_ns = at;
        });
        assert_eq!(times.coverage().3, steps, "{n}");
        let (mut known, mut wrong) = (0, 0);
        for (i, r) in ran[0].iter().enumerate() {
            // The end of this kernel follows from the first stamp after the step.
            if i.abs_diff(2_500) <= 2 {
                continue;
            }
            let (Some(start), Some(duration)) = (r.told.start, r.told.duration) else {
                continue;
            };
            known += 1;
            let host = start.host_ns.abs_diff(r.stamp + OFFSET);
            let length = duration.ns.abs_diff(r.end - r.stamp);
            wrong += u32::from(host > start.host_error_ns) + u32::from(length > duration.error_ns);
            assert!(start.host_error_ns < 60_000, "{n}, {i}: {start:?}");
        }
        // No times are computed for a time that the clock had twice, nor for entries not long before a step back by 40 s.
        let least = if n == 3 { 2_400 } else { 4_700 };
        assert!(
            known > least && wrong == 0,
            "{n}: {known} known, {wrong} wrong"
        );
    }
}
