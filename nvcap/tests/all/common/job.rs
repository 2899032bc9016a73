//! A job of several ranks that never ran, with times that are known: each step a rank has its kernels, and then all meet in an all-reduce,
//! which ends 20 us after the last one has come. Each rank is a process on a GPU of its own, whose clock has an offset of its own. Semaphores
//! are read as nvcap reads them.

use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::event::{ConstantBank, QmdRelease};
use nvcap_decode::decode::view::View;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{
    At, Channel, ChannelId, How, Kernel, Life, Origin, Process, Record, Stamp, Stamps, Submission,
};
use nvcap_decode::wire::GpuVa;
use nvcap_recording::recording::{EndInfo, TraceInfo, Writer};

const CLASS: u32 = 0xcbc0;
/// Time from a doorbell to the begin of the work on an idle GPU, ns.
const FETCH: u64 = 4_000;
pub const BEGIN: u64 = 1_000_000_000;
const STAMP: u64 = 0x2_0460_fff0;
const ENDS: u64 = 0x2_0463_7000;
const BANK: u64 = 0x2_0500_0000;
/// Offset of the arguments from the begin of a kernel's constant bank, on Hopper.
const ARGUMENTS: u64 = 0x210;
/// Time of an all-reduce after the last rank's arrival, ns.
const REDUCE: u64 = 20_000;

pub const GEMM_NS: u64 = 70_000;
pub const FIRST_PID: u32 = 4711;

const GEMM: (u64, &str) = (0x7f00_0000_0000, "_Z4gemmPKfS0_Pfiii");
const ALL_REDUCE: (u64, &str) = (
    0x7f00_0001_0000,
    "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
);

/// The state of a rank; times are the host's.
struct Rank {
    number: u32,
    position: u64,
    entries: u32,
    free: u64,
    /// Semaphores: time, address, number, whether it is stamped.
    writes: Vec<(u64, u64, u32, bool)>,
    /// Begins of its all-reduces.
    arrivals: Vec<u64>,
    records: Vec<Record>,
}

impl Rank {
    fn at(&self, time_ns: u64) -> At {
        At::of_process(time_ns, FIRST_PID + self.number)
    }

    /// Time of its GPU's clock.
    fn gpu_ns(&self, host: u64) -> u64 {
        host - 600_000 - 123_456 * u64::from(self.number)
    }

    /// Time at which a kernel that is submitted at `doorbell` begins.
    fn begin(&self, doorbell: u64) -> u64 {
        (doorbell + FETCH).max(self.free + 1_300)
    }

    fn launch(&mut self, doorbell: u64, (program, name): (u64, &str), end: u64) {
        let n = self.entries;
        let begin = self.begin(doorbell);
        if name == ALL_REDUCE.1 {
            self.arrivals.push(begin);
        }
        self.free = end;
        let done = ENDS + u64::from(n % 64) * 16;
        self.writes.push((begin, STAMP, n + 1, true));
        self.writes.push((begin + 2_100, done, n * 2, false));
        self.writes.push((end + 1_800, done, n * 2 + 1, false));
        let view = View {
            version: (4, 0),
            grid: [64, 1, 1],
            block: [256, 1, 1],
            registers: 64,
            program: GpuVa(program),
            constant_banks: vec![ConstantBank {
                index: 0,
                address: GpuVa(BANK),
                size: 0x1000,
            }],
            releases: vec![QmdRelease {
                address: GpuVa(done),
                payload: u64::from(n * 2 + 1),
            }],
            ..View::default()
        };
        // The communicator has another address in each rank.
        let communicator = 0x7f44_0000_0000_u64 + 0x30_0000 * u64::from(self.number);
        let qmd = Qmd::of(&view).expect("a layout");
        let mut p = Pushbuffer::new();
        p.bind(1, CLASS);
        p.inline(
            1,
            CLASS,
            GpuVa(BANK + ARGUMENTS),
            &communicator.to_le_bytes(),
        )
        .expect("inline data");
        p.inline(1, CLASS, GpuVa(0x2_04c0_0000), qmd.bytes())
            .expect("inline data");
        p.pcas(1, CLASS, GpuVa(0x2_04c0_0000)).expect("methods");
        p.release(1, CLASS, GpuVa(STAMP), n + 1).expect("methods");
        let put = |position: u64| (position % 1024) as u32;
        self.records.push(Record::Submission(Submission {
            absent_ns: None,
            at: self.at(doorbell),
            channel: ChannelId(self.number),
            token: Some(10 + self.number),
            position: self.position,
            gp_get: None,
            prev_put: put(self.position),
            gp_put: put(self.position + 1),
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: Some("trainer".into()),
            segments: vec![p.segment(GpuVa(0x2_0080_0000))],
        }));
        self.position += 1;
        self.entries += 1;
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
                gpu_ns: stamped.then(|| self.gpu_ns(*made)),
                before_ns: seen - PERIOD,
                seen_ns: seen + 300,
            }
        };
        Record::Stamps(Box::new(Stamps {
            at: self.at(self.free + 100_000),
            from_ns: BEGIN,
            reads: (self.free - BEGIN) / PERIOD,
            stamps: self.writes.iter().map(of).collect(),
        }))
    }
}

/// A job that ran: by rank, its records and the begins of its all-reduces.
pub struct Job {
    pub records: Vec<Vec<Record>>,
    pub arrivals: Vec<Vec<u64>>,
}

/// Runs `steps` steps of as many ranks as `gemms` has, which tells how many gemms each has in a step.
pub fn run(steps: u32, gemms: &[u32]) -> Job {
    let mut ranks: Vec<Rank> = (0..gemms.len() as u32).map(begun).collect();
    let mut done = BEGIN;
    for step in 0..steps {
        let mut doorbells = Vec::new();
        for (rank, gemms) in ranks.iter_mut().zip(gemms) {
            // The host is ahead of the GPU.
            let mut doorbell = done - 50_000;
            for _ in 0..*gemms {
                let end = rank.begin(doorbell) + GEMM_NS + u64::from(step % 7) * 900;
                rank.launch(doorbell, GEMM, end);
                doorbell += 3_000;
            }
            doorbells.push(doorbell);
        }
        let begins = ranks.iter().zip(&doorbells).map(|(r, d)| r.begin(*d));
        done = begins.max().expect("a rank") + REDUCE;
        for (rank, doorbell) in ranks.iter_mut().zip(doorbells) {
            rank.launch(doorbell, ALL_REDUCE, done);
        }
    }
    let mut job = Job {
        records: Vec::new(),
        arrivals: Vec::new(),
    };
    for mut rank in ranks {
        let stamps = rank.stamps();
        rank.records.push(stamps);
        job.records.push(rank.records);
        job.arrivals.push(rank.arrivals);
    }
    job
}

fn begun(number: u32) -> Rank {
    let mut rank = Rank {
        number,
        position: 0,
        entries: 0,
        free: BEGIN - 100_000,
        writes: Vec::new(),
        arrivals: Vec::new(),
        records: Vec::new(),
    };
    let at = rank.at(BEGIN - 1_000_000);
    rank.records.push(Record::Process(Process {
        at,
        life: Life::Present {
            name: "train".to_owned(),
        },
    }));
    rank.records.push(Record::Channel(Box::new(Channel {
        at,
        id: ChannelId(number),
        gpu: Some(number),
        token: Some(10 + number),
        class: Some(0xc86f),
        engine: Some(1),
        handle: None,
        ring_gpu: None,
        ring: None,
        entries: Some(1024),
        userd: None,
        origin: Origin::Allocated,
    })));
    for (program, name) in [GEMM, ALL_REDUCE] {
        let kernel = Kernel::called(at, program, name);
        rank.records.push(Record::Kernel(Box::new(kernel)));
    }
    rank
}

/// The bytes of a recording of these records, the trace's number being `number`; booted at `booted`, ns of the time of day.
pub fn written<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    number: u32,
    gpu_time: bool,
    booted: u64,
) -> Vec<u8> {
    let info = TraceInfo {
        program: "nvcap's tests".to_owned(),
        driver: Some("580.159.04".to_owned()),
        monotonic_ns: BEGIN,
        realtime_ns: booted + BEGIN,
        how: "trap".to_owned(),
        gpu_time,
        in_order: false,
        command: vec!["train".to_owned()],
        ..TraceInfo::default()
    };
    recorded(records, number, info)
}

/// The bytes of a recording of these records, with what it says of the trace.
pub fn recorded<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    number: u32,
    info: TraceInfo,
) -> Vec<u8> {
    let (mut out, mut ledger) = (Vec::new(), Ledger::new());
    let mut writer = Writer::new(info, number);
    writer.begin_section(&mut out);
    for record in records {
        ledger.record(record);
        writer.record(record, &mut out);
    }
    writer.end(EndInfo::default(), &ledger, b"{}", &mut out);
    out
}
