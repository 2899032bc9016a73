//! Sums of the GPU's time where a part of it was not seen, compared with what ran: 200 simulated traces, with every kind of starvation of the thread
//! that reads time stamps, and of the looks that find submissions. No clock, no thread; each trace has its seed.

use std::collections::BTreeMap;

use super::kept::Kept;
use super::{Pipeline, PipelineOptions};
use crate::output::gpu_time::TimeReport;
use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::event::QmdRelease;
use nvcap_decode::decode::view::View;
use nvcap_decode::gpu_time::made_up::{CLASS, FETCH, OFFSET, PID, submission};
use nvcap_decode::record::{
    At, Channel, ChannelId, Gpu, How, Life, Origin, Process, Record, Stamp, Stamps,
};
use nvcap_decode::wire::GpuVa;

/// Time from one read to the next, ns.
const PERIOD: u64 = 1_100;
const TRACES: u64 = 200;

/// Pseudo-random numbers, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n.max(1)
    }

    fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// Draws a pause from an exponential distribution, ten times the mean at most.
    fn pause(&mut self, mean: u64) -> u64 {
        let chance = (self.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30);
        (mean as f64 * (-chance.ln()).min(10.0)) as u64
    }
}

/// Cause that keeps stamps from being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Nothing,
    ShortPauses,
    LongPauses,
    /// Reads are rare.
    Hardly,
    /// Single reads are as far apart as kernels are long.
    SlowReads,
    /// Reads pause while long, or short, work runs.
    AtLong,
    AtShort,
    /// Reads pause while a queue is full.
    AtDeep,
    /// Reads come in bursts by choice.
    Bursts,
    /// Reads come in bursts by choice, with pauses within them.
    BurstsWithPauses,
}

const KINDS: [Kind; 10] = [
    Kind::Nothing,
    Kind::ShortPauses,
    Kind::LongPauses,
    Kind::Hardly,
    Kind::SlowReads,
    Kind::AtLong,
    Kind::AtShort,
    Kind::AtDeep,
    Kind::Bursts,
    Kind::BurstsWithPauses,
];

impl Kind {
    fn is_chosen(self) -> bool {
        matches!(self, Self::Bursts | Self::BurstsWithPauses)
    }
}

/// Work as it ran, GPU clock.
#[derive(Clone, Copy, Debug)]
struct Ran {
    channel: u32,
    n: u32,
    /// The program of a kernel; none of a copy.
    program: Option<u64>,
    doorbell: u64,
    /// Number of entries that were in the ring before it.
    depth: u64,
    begin: u64,
    reset: u64,
    end: u64,
}

fn stamp_of(channel: u32) -> u64 {
    0x2_0460_fff0 - u64::from(channel) * 16
}

/// The word that a kernel releases at its end, and the number.
fn word_of(channel: u32, n: u32) -> (u64, u32) {
    let word = 0x2_0463_7000 + u64::from(channel * 256 + n % 16 * 16);
    (word, n * 2 + 1)
}

fn pushbuffer(ran: &Ran) -> Pushbuffer {
    let mut p = Pushbuffer::new();
    let stamp = stamp_of(ran.channel) as u32;
    let Some(program) = ran.program else {
        p.copy(4, 0xc8b5, GpuVa(0x2_0000_1000), GpuVa(0x2_0000_9000), 4096)
            .expect("methods");
        p.named(4, 0xc8b5, "SET_SEMAPHORE_A", &[2, stamp, ran.n + 1])
            .expect("methods");
        p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x14]).expect("a method");
        return p;
    };
    let before = [16, 1].into_iter().filter_map(|b| ran.n.checked_sub(b));
    for before in before {
        let (address, number) = word_of(ran.channel, before);
        let acquire = [address as u32, (address >> 32) as u32, number, 0, 3];
        p.named(0, 0xc86f, "SEM_ADDR_LO", &acquire)
            .expect("methods");
    }
    let (word, number) = word_of(ran.channel, ran.n);
    let view = View {
        version: (4, 0),
        grid: [4, 1, 1],
        block: [64, 1, 1],
        registers: 24,
        program: GpuVa(program),
        releases: vec![QmdRelease {
            address: GpuVa(word),
            payload: number.into(),
        }],
        ..View::default()
    };
    let qmd = Qmd::of(&view).expect("a layout");
    p.bind(1, CLASS);
    p.inline(1, CLASS, GpuVa(0x2_04c0_0000), qmd.bytes())
        .expect("inline data");
    p.pcas(1, CLASS, GpuVa(0x2_04c0_0000)).expect("methods");
    p.named(
        1,
        CLASS,
        "SET_REPORT_SEMAPHORE_A",
        &[2, stamp, ran.n + 1, 0],
    )
    .expect("methods");
    p
}

/// Returns the program and the length of a work. Of three programs the lengths are nearly the same, evenly spread, and rarely very long; they come by
/// turns or in phases.
fn length(random: &mut Random, n: u32, in_phases: bool) -> (u64, u64) {
    let program = match in_phases {
        true => u64::from(n / 97 % 3),
        false => random.below(3),
    };
    let length = match program {
        0 => random.within(4_900, 5_100),
        1 => random.within(20_000, 80_000),
        _ if random.below(12) == 0 => random.within(300_000, 900_000),
        _ => random.within(8_000, 16_000),
    };
    (program, length)
}

/// The works of a channel, in order.
fn works(random: &mut Random, channel: u32, is_copy: bool, shared: bool, until: u64) -> Vec<Ran> {
    let (pattern, in_phases) = (random.below(3), random.below(2) == 0);
    let (end_ns, start_ns) = if shared { (1_000, 730) } else { (900, 576) };
    let mut all: Vec<Ran> = Vec::new();
    let (mut doorbell, mut free) = (1_000_000 + random.below(50_000), 0u64);
    for n in 0.. {
        let (program, length) = length(random, n, in_phases);
        doorbell += match pattern {
            // Bursts, each waited for.
            0 if n % 40 == 0 => random
                .within(100_000, 2_000_000)
                .max(free.saturating_sub(doorbell)),
            0 => random.within(1_500, 3_000),
            // A queue that is full most of the time.
            1 if n > 64 => (all[n as usize - 64].end)
                .saturating_sub(doorbell)
                .max(2_000),
            1 => 2_000,
            // One at a time.
            _ => free.saturating_sub(doorbell) + random.within(3_000, 120_000),
        };
        if doorbell > until {
            return all;
        }
        let depth = all.iter().rev().take_while(|r| r.end > doorbell).count() as u64;
        let ran = match is_copy {
            true => {
                let begin = (doorbell + FETCH).max(free + 300);
                let end = begin + length;
                (begin, 0, end)
            }
            false => {
                let stamp = (doorbell + FETCH).max(free + random.within(end_ns - 60, end_ns + 60));
                let start = stamp + random.within(start_ns - 40, start_ns + 40);
                let reset = start + 1_500.min(length * 3 / 4);
                (stamp, reset, start + length)
            }
        };
        free = ran.2;
        all.push(Ran {
            channel,
            n,
            program: (!is_copy).then_some(0x7f00_0000_0000 + program * 0x1000),
            doorbell,
            depth,
            begin: ran.0,
            reset: ran.1,
            end: ran.2,
        });
    }
    all
}

/// The times in which stamps are read without a pause, GPU clock.
fn awake(random: &mut Random, kind: Kind, all: &[Ran], until: u64) -> Vec<(u64, u64)> {
    let mut windows = Vec::new();
    let mut at = 0;
    while at < until {
        let (on, off) = match kind {
            Kind::Nothing | Kind::AtLong | Kind::AtShort | Kind::AtDeep => (until, 0),
            Kind::ShortPauses => (random.pause(2_000_000), random.within(100_000, 1_000_000)),
            Kind::LongPauses => {
                let on = random.within(1_000_000, 10_000_000);
                (on, random.within(5_000_000, 20_000_000))
            }
            Kind::Hardly => {
                let on = random.within(20_000, 200_000);
                (on, random.within(1_000_000, 5_000_000))
            }
            Kind::SlowReads => (0, random.within(20_000, 300_000)),
            Kind::Bursts | Kind::BurstsWithPauses => (2_000_000, random.pause(6_000_000)),
        };
        windows.push((at, at + on));
        at += on + off + 2 * PERIOD;
    }
    let mut holes: Vec<(u64, u64)> = all
        .iter()
        .filter_map(|r| {
            let length = r.end - r.begin;
            let chosen = match kind {
                Kind::AtLong => length > 50_000,
                Kind::AtShort => length < 20_000 && r.n % 5 == 0,
                Kind::AtDeep => r.depth > 20,
                Kind::BurstsWithPauses => r.n % 11 == 0,
                _ => false,
            };
            chosen.then(|| {
                let after = random.within(0, length);
                (r.begin + after, r.end + random.within(5_000, 400_000))
            })
        })
        .collect();
    holes.sort_unstable();
    let mut left = Vec::new();
    for (from, to) in windows {
        let mut at = from;
        for hole in holes.iter().filter(|h| h.1 > from && h.0 < to) {
            if hole.0 > at {
                left.push((at, hole.0));
            }
            at = at.max(hole.1);
        }
        if at <= to {
            left.push((at, to));
        }
    }
    left
}

/// The stamps that are seen by reads in these times.
fn seen(all: &[Ran], windows: &[(u64, u64)]) -> Vec<Stamp> {
    let reads = |t: u64| -> Option<(u64, u64)> {
        let at = windows.partition_point(|w| w.1 < t);
        let last = |(from, to): (u64, u64)| from + (to - from) / PERIOD * PERIOD;
        let before = |i: usize| i.checked_sub(1).map_or(0, |i| last(windows[i]));
        for (i, window) in windows.iter().enumerate().skip(at) {
            let steps = t.saturating_sub(window.0).div_ceil(PERIOD);
            let read = window.0 + steps * PERIOD;
            if read <= window.1 {
                let earlier = if steps > 0 { read - PERIOD } else { before(i) };
                return Some((read, earlier));
            }
        }
        None
    };
    // By read and address, the last number.
    let mut found = BTreeMap::new();
    let mut write = |at: u64, address: u64, payload: u32, stamped: bool| {
        if let Some((read, before)) = reads(at + 400) {
            found.insert((read, address), (payload, stamped.then_some(at), before));
        }
    };
    for r in all {
        match r.program {
            None => write(r.end, stamp_of(r.channel), r.n + 1, true),
            Some(_) => {
                let (address, number) = word_of(r.channel, r.n);
                write(r.begin, stamp_of(r.channel), r.n + 1, true);
                write(r.reset, address, number - 1, false);
                write(r.end + 300, address, number, false);
            }
        }
    }
    let stamps = found.into_iter().map(|((read, address), of)| Stamp {
        address: GpuVa(address),
        payload: of.0,
        gpu_ns: of.1,
        before_ns: of.2 + OFFSET,
        seen_ns: read + OFFSET + 300,
    });
    stamps.collect()
}

fn at(time_ns: u64, tid: u32) -> At {
    At {
        time_ns,
        pid: PID,
        tid,
    }
}

/// The records of a trace, and the time of each program's kernels (0: copies).
fn trace(seed: u64, kind: Kind) -> (Vec<Record>, BTreeMap<u64, u64>) {
    let mut random = Random(seed * 7_919 + 13);
    let flat = all_works(&mut random, kind);
    let mut truth = BTreeMap::new();
    for r in &flat {
        *truth.entry(r.program.unwrap_or(0)).or_default() += r.end - r.begin;
    }
    let end = flat.iter().map(|r| r.end).max().expect("works") + 1_000_000;
    let windows = awake(&mut random, kind, &flat, end);
    let stamps = seen(&flat, &windows);
    let (how, look) = match random.below(3) {
        0 => (How::Trapped, 0),
        1 => (How::Observed, 300_000),
        _ => (How::Observed, random.within(1_000_000, 4_000_000)),
    };
    let submissions = flat.iter().map(|r| submitted(r, how, look));
    let mut records: Vec<Record> = submissions.collect();
    records.extend(handed_on(kind, stamps, &windows, end));
    records.sort_by_key(|r| r.at().time_ns);
    let mut first = beginning();
    first.append(&mut records);
    (first, truth)
}

/// The works of one to three channels, in the order in which they begin.
fn all_works(random: &mut Random, kind: Kind) -> Vec<Ran> {
    let until = if kind.is_chosen() {
        320_000_000
    } else {
        40_000_000
    };
    let shared = random.below(2) == 0;
    let mut all = works(random, 0, false, shared, until);
    if shared {
        all.append(&mut works(random, 1, false, shared, until));
    }
    if random.below(2) == 0 {
        all.append(&mut works(random, 2, true, shared, until));
    }
    all.sort_by_key(|r| r.begin);
    all
}

/// The submission of a work, as nvcap finds it: in a trap, or by a look every `look` ns.
fn submitted(r: &Ran, how: How, look: u64) -> Record {
    let found = match look {
        0 => r.doorbell + 1_000 + u64::from(r.n % 7) * 400,
        look => (r.doorbell / look + 1) * look,
    };
    let p = pushbuffer(r);
    let mut s = submission(ChannelId(r.channel), r.n.into(), found + OFFSET, how, &p);
    (s.prev_put, s.gp_put) = (r.n % 1024, (r.n + 1) % 1024);
    s.at.tid = if how == How::Observed { 0 } else { PID };
    Record::Submission(s)
}

/// The stamps, as they are handed on: at the ends of bursts, or each millisecond in which stamps are read.
fn handed_on(kind: Kind, stamps: Vec<Stamp>, windows: &[(u64, u64)], end: u64) -> Vec<Record> {
    let mut stamps = stamps.into_iter().peekable();
    let mut hand_on = |from: u64, until: u64| {
        let mut now = Vec::new();
        while let Some(s) = stamps.next_if(|s| s.seen_ns <= until) {
            now.push(s);
        }
        Record::Stamps(Box::new(Stamps {
            at: at(until, 0),
            from_ns: from,
            reads: 1,
            stamps: now,
        }))
    };
    if !kind.is_chosen() {
        let times = (0..end / 1_000_000).map(|ms| ms * 1_000_000 + OFFSET);
        return times.map(|from| hand_on(from, from + 1_000_000)).collect();
    }
    let mut records = Vec::new();
    // A pause within a burst is none by choice: the burst is what lies between two chosen pauses.
    let mut burst = windows[0];
    for w in &windows[1..] {
        if w.0 - burst.0 < 2_000_000 {
            burst.1 = w.1;
            continue;
        }
        records.push(hand_on(burst.0 + OFFSET, burst.1 + OFFSET + 300));
        burst = *w;
    }
    records.push(hand_on(burst.0 + OFFSET, burst.1 + OFFSET + 300));
    records
}

/// The records before the first submission: the GPU, the process and its channels.
fn beginning() -> Vec<Record> {
    let channel = |id, engine| {
        Record::Channel(Box::new(Channel {
            gpu: Some(0),
            engine: Some(engine),
            entries: Some(1024),
            ..Channel::bare(at(OFFSET, PID), ChannelId(id), Origin::Given)
        }))
    };
    vec![
        Record::Gpu(Gpu {
            at: at(OFFSET, 0),
            minor: 0,
            pci_device: 0x2335,
        }),
        Record::Process(Process {
            at: at(OFFSET, PID),
            life: Life::Present {
                name: "simulated".to_owned(),
            },
        }),
        channel(0, 1),
        channel(1, 1),
        channel(2, 11),
    ]
}

/// A sum that was stated, with its error, and the true sum, ns.
#[derive(Clone, Copy, Debug)]
struct Stated {
    about: u64,
    error: u64,
    truth: u64,
}

impl Stated {
    fn holds(&self) -> bool {
        self.about.abs_diff(self.truth) <= self.error
    }

    fn part(&self) -> f64 {
        self.error as f64 / self.truth.max(1) as f64
    }
}

/// The sums that are stated of a trace.
fn stated(seed: u64, kind: Kind) -> Vec<Stated> {
    let (records, truth) = trace(seed, kind);
    let kept = Kept::default();
    let sink = TimeReport::new(kept.output(), true, false);
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(sink)])
        .with_gpu_time()
        .in_time_order();
    for record in records {
        pipeline.record(record).expect("taken");
    }
    pipeline.finish().expect("taken");
    let sums = &kept.objects()[0];
    let rows = ["kernels", "copies"].map(|rows| sums[rows].as_array().expect("rows"));
    // Of all kernels and all copies, then of each row.
    let of_copies = truth.get(&0).copied().unwrap_or(0);
    let of_kernels = truth.values().sum::<u64>() - of_copies;
    let all = [("all_kernels", of_kernels), ("all_copies", of_copies)];
    let all = all.into_iter().filter_map(|(name, truth)| {
        Some(Stated {
            about: sums[name]["total_ns"].as_u64()?,
            error: sums[name]["total_error_ns"].as_u64()?,
            truth,
        })
    });
    let stated = rows.into_iter().flatten().filter_map(|row| {
        let of = &row["gpu"];
        let number = |name: &str| of[name].as_u64();
        Some(Stated {
            // Of what is not known nothing is stated.
            about: number("total_ns")?,
            error: number("total_error_ns")?,
            truth: truth[&row["program"].as_u64().unwrap_or(0)],
        })
    });
    all.chain(stated).collect()
}

/// Nineteen of twenty sums lie within the error that is stated with them, whatever kept stamps from being read; where little did, the error is small.
#[test]
fn sums_are_right_within_their_errors() {
    let mut all: BTreeMap<Kind, Vec<Stated>> = BTreeMap::new();
    for seed in 0..TRACES {
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        all.entry(kind).or_default().extend(stated(seed, kind));
    }
    let held = |of: &[Stated]| of.iter().filter(|s| s.holds()).count() as f64 / of.len() as f64;
    let median = |of: &[Stated]| {
        let mut parts: Vec<f64> = of.iter().map(Stated::part).collect();
        parts.sort_by(f64::total_cmp);
        parts[parts.len() / 2]
    };
    let mut table = String::new();
    for (kind, of) in &all {
        table += &format!(
            "{kind:?}: {:.1} % of {} hold, error {:.1} % in the median\n",
            100.0 * held(of),
            of.len(),
            100.0 * median(of)
        );
    }
    println!("{table}");
    let every: Vec<Stated> = all.values().flatten().copied().collect();
    assert!(every.len() > 400, "{}", every.len());
    assert!(
        held(&every) >= 0.94,
        "{:.3} of all hold\n{table}",
        held(&every)
    );
    for (kind, of) in &all {
        assert!(held(of) >= 0.94, "{kind:?}\n{table}");
    }
    // What is stated is of use, too.
    assert!(median(&all[&Kind::Nothing]) < 0.08, "{table}");
    assert!(median(&all[&Kind::ShortPauses]) < 0.5, "{table}");
    assert!(median(&all[&Kind::Bursts]) < 0.5, "{table}");
}
