//! A server that never ran, with times that are known: it replays a graph of two kernels again and again, the first of which fills all SMs, and
//! launches the first kernel alone, too. The GPU samples program counters. Semaphores are read as nvcap reads them.

use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::event::QmdRelease;
use nvcap_decode::decode::view::{Dependent, DependentAction, View};
use nvcap_decode::record::{
    At, Channel, ChannelId, How, Kernel, Life, Origin, Process, Record, Samples, Stamp, Stamps,
    Submission,
};
use nvcap_decode::samples::Counter;
use nvcap_decode::wire::GpuVa;

const CLASS: u32 = 0xcbc0;
pub const PID: u32 = 4711;
/// Time of day less CLOCK_MONOTONIC is the recording's; host less GPU, ns.
const OFFSET: u64 = 600_000;
pub const BEGIN: u64 = 1_000_000_000;
const STAMP: u64 = 0x2_0460_fff0;
const ENDS: u64 = 0x2_0463_7000;
const QMDS: u64 = 0x2_04c0_0000;
/// PCAS_ACTION: SCHEDULE with the attributes that libcuda gives.
const SCHEDULE: u32 = 0xa;

/// Programs and names of the kernels.
pub const LONG: (u64, &str) = (0x7f00_0000_0000, "_Z9attentionPKfPfi");
pub const SHORT: (u64, &str) = (0x7f00_0001_0000, "_Z6samplePKfPi");
/// Times of the two within a replay, ns, and the blocks of the second one.
pub const LONG_NS: u64 = 400_000;
pub const SHORT_NS: u64 = 100_000;
pub const SHORT_BLOCKS: u32 = 16;
/// SMs of the GPU, which the first kernel fills.
pub const SMS: u64 = 132;
/// Time of a node in which no SM works, ns.
pub const GAP_NS: u64 = 600;
pub const REPLAY_NS: u64 = LONG_NS + SHORT_NS + 2 * GAP_NS;
/// Cycles of 2^19 at 1.98 GHz, ns.
const PERIOD_NS: u64 = 264_792;

/// The server's only channel.
struct Server {
    position: u64,
    /// Time at which the GPU is done, by its clock.
    free: u64,
    writes: Vec<(u64, u64, u32, bool)>,
    records: Vec<Record>,
}

fn at(time_ns: u64) -> At {
    At::of_process(time_ns, PID)
}

fn view((program, _): (u64, &str), blocks: u32) -> View {
    View {
        version: (4, 0),
        grid: [blocks, 1, 1],
        block: [256, 1, 1],
        registers: 64,
        program: GpuVa(program),
        ..View::default()
    }
}

impl Server {
    /// Makes a submission whose work takes `ns` once it begins; `lag`: from its end to the stamp of the next.
    fn submit(&mut self, doorbell: u64, ns: u64, lag: u64, form: impl FnOnce(&mut Pushbuffer)) {
        let begin = (doorbell + 4_000).max(self.free);
        self.free = begin + ns + lag;
        let number = self.position as u32 + 1;
        self.writes.push((begin, STAMP, number, true));
        let mut p = Pushbuffer::new();
        p.bind(1, CLASS);
        form(&mut p);
        p.release(1, CLASS, GpuVa(STAMP), number).expect("methods");
        let put = |position: u64| (position % 1024) as u32;
        self.records.push(Record::Submission(Submission {
            absent_ns: None,
            at: at(doorbell + OFFSET),
            channel: ChannelId(0),
            token: Some(10),
            position: self.position,
            gp_get: None,
            prev_put: put(self.position),
            gp_put: put(self.position + 1),
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: Some("server".into()),
            segments: vec![p.segment(GpuVa(0x2_0080_0000))],
        }));
        self.position += 1;
    }

    /// Writes the graph's QMDs.
    fn upload(&mut self, doorbell: u64) {
        let second = GpuVa(QMDS + 0x200);
        let first = View {
            dependents: vec![Dependent {
                address: second,
                action: DependentAction::Schedule,
            }],
            ..view(LONG, 264)
        };
        let then = View {
            requires_pcas: true,
            ..view(SHORT, SHORT_BLOCKS)
        };
        self.submit(doorbell, 1_000, 1_000, |p| {
            for (address, view) in [(GpuVa(QMDS), first), (second, then)] {
                let qmd = Qmd::of(&view).expect("a layout");
                p.inline(1, CLASS, address, qmd.bytes()).expect("data");
            }
        });
    }

    fn replay(&mut self, doorbell: u64) {
        self.submit(doorbell, REPLAY_NS, 1_190, |p| {
            p.named(1, CLASS, "SEND_PCAS_A", &[(QMDS >> 8) as u32])
                .expect("a method");
            p.named(1, CLASS, "SEND_SIGNALING_PCAS2_B", &[SCHEDULE])
                .expect("a method");
        });
    }

    /// The first kernel, outside of the graph.
    fn launch(&mut self, doorbell: u64, ns: u64) {
        let n = self.position as u32;
        let end = ENDS + u64::from(n % 64) * 16;
        let begin = (doorbell + 4_000).max(self.free);
        self.writes.push((begin + 2_100, end, n * 2, false));
        self.writes
            .push((begin + ns + 1_800, end, n * 2 + 1, false));
        let view = View {
            releases: vec![QmdRelease {
                address: GpuVa(end),
                payload: u64::from(n * 2 + 1),
            }],
            ..view(LONG, 264)
        };
        self.submit(doorbell, ns, 900, |p| {
            let qmd = Qmd::of(&view).expect("a layout");
            let at = GpuVa(QMDS + 0x1000);
            p.inline(1, CLASS, at, qmd.bytes()).expect("data");
            p.pcas(1, CLASS, at).expect("methods");
        });
    }

    /// The stamps of a reader that reads every 1.1 us and sees each write 400 ns after it was made at the earliest.
    fn stamps(&mut self) -> Record {
        const PERIOD: u64 = 1_100;
        self.writes.sort_unstable();
        let of = |(made, address, payload, stamped): &(u64, u64, u32, bool)| {
            let seen = (made + 400).div_ceil(PERIOD) * PERIOD;
            Stamp {
                address: GpuVa(*address),
                payload: *payload,
                gpu_ns: stamped.then_some(*made),
                before_ns: seen - PERIOD + OFFSET,
                seen_ns: seen + OFFSET + 300,
            }
        };
        Record::Stamps(Box::new(Stamps {
            at: at(self.free + OFFSET + 100_000),
            from_ns: BEGIN + OFFSET,
            reads: (self.free - BEGIN) / PERIOD,
            stamps: self.writes.iter().map(of).collect(),
        }))
    }
}

/// Samples of the SMs' time: of each kernel at two instructions, three quarters at the second one.
fn samples(from_ns: u64, to_ns: u64, sm_ns: [u64; 2]) -> Record {
    let mut counters = Vec::new();
    let mut bytes = 0;
    for ((program, _), ns) in [LONG, SHORT].into_iter().zip(sm_ns) {
        let all = ns / PERIOD_NS;
        for (offset, samples, reason) in [(0x40, all / 4, 8), (0x130, all - all / 4, 10)] {
            if samples == 0 {
                continue;
            }
            let mut counter = Counter {
                samples,
                not_issued: samples / 10,
                ..Counter::default()
            };
            counter.reasons[reason] = samples as u32;
            bytes += 9 * samples;
            counters.push((program + offset, counter));
        }
    }
    Record::Samples(Box::new(Samples {
        at: at(to_ns),
        from_ns,
        gpu: Some(0),
        client: 0xc1d0_0001,
        group: 0x5c00_0002,
        period: Some(19),
        sms: [u64::MAX, u64::MAX, 0xf, 0, 0, 0, 0, 0],
        counters,
        bytes,
        ..Samples::default()
    }))
}

/// Makes the records of `replays` and of `launches` of the first kernel behind them, of `ns` each; with samples of both in windows of half a second
/// where that is asked for.
pub fn records(replays: u64, (launches, ns): (u64, u64), sampled: bool) -> Vec<Record> {
    let mut server = Server {
        position: 0,
        free: BEGIN - 100_000,
        writes: Vec::new(),
        records: Vec::new(),
    };
    let before = at(BEGIN - 1_000_000);
    server.records.push(Record::Process(Process {
        at: before,
        life: Life::Present {
            name: "server".to_owned(),
        },
    }));
    server.records.push(Record::Channel(Box::new(Channel {
        at: before,
        id: ChannelId(0),
        gpu: Some(0),
        token: Some(10),
        class: Some(0xc86f),
        engine: Some(1),
        handle: None,
        ring_gpu: None,
        ring: None,
        entries: Some(1024),
        userd: None,
        origin: Origin::Allocated,
    })));
    for (program, name) in [LONG, SHORT] {
        server.records.push(Record::Kernel(Box::new(Kernel {
            bytes: Some(0x800),
            ..Kernel::called(before, program, name)
        })));
    }
    server.upload(BEGIN);
    // The host is far ahead of the GPU.
    let mut doorbell = BEGIN + 100_000;
    for _ in 0..replays {
        server.replay(doorbell);
        doorbell += 100_000;
    }
    for _ in 0..launches {
        server.launch(doorbell, ns);
        doorbell += 100_000;
    }
    // The last one's end is told by a stamp behind it.
    server.upload(doorbell);
    let stamps = server.stamps();
    server.records.push(stamps);
    if sampled {
        let end = server.free + OFFSET;
        let long = SMS * (replays * LONG_NS + launches * ns);
        let all = [long, u64::from(SHORT_BLOCKS) * replays * SHORT_NS];
        let length = end - BEGIN;
        let mut from = BEGIN;
        while from < end {
            let to = end.min(from + 500_000_000);
            let part =
                all.map(|ns| (u128::from(ns) * u128::from(to - from) / u128::from(length)) as u64);
            server.records.push(samples(from, to, part));
            from = to;
        }
    }
    server.records
}
