//! tests/fixtures/training.pcapng: a training that never ran, with times that are known: for each of 40 steps a copy of 4 MiB to the
//! device by one thread, two or three kernels by another, and a copy of 64 KiB back; every tenth step the program pauses for 3 ms. Three
//! ring entries of the second copy channel are missing. Semaphores are read as nvcap reads them.

use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::event::QmdRelease;
use nvcap_decode::decode::view::View;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{
    At, Bytes, Channel, ChannelId, Device, Gpu, How, Ioctl, Kernel, Life, NamedBy, Origin, Process,
    Record, Stamp, Stamps, Submission,
};
use nvcap_decode::wire::GpuVa;
use nvcap_recording::recording::{EndInfo, TraceInfo, Writer};

const PID: u32 = 4711;
const TRAINER: u32 = PID;
const LOADER: u32 = PID + 1;
const CLASS: u32 = 0xcbc0;
const COPY_CLASS: u32 = 0xc8b5;
/// Host less GPU, ns.
const OFFSET: u64 = 600_000;
/// Time from a doorbell to the begin of the work on an idle GPU, ns.
const FETCH: u64 = 4_000;
const BEGIN: u64 = 1_000_000_000;
const ENDS: u64 = 0x2_0463_7000;
/// Steps of the fixture.
pub const STEPS: u32 = 40;

/// Programs and names of the kernels.
const GEMM: (u64, &str) = (0x7f00_0000_0000, "_Z5sgemmPKfS0_Pfiii");
const SOFTMAX: (u64, &str) = (0x7f00_0001_0000, "_Z7softmaxIfEvPKT_PS0_i");
const UPDATE: (u64, &str) = (0x7f00_0002_0000, "update");

/// A channel of the simulation.
struct Queue {
    id: ChannelId,
    token: u32,
    stamp: u64,
    position: u64,
    entries: u32,
    /// Time at which its engine is done, by the GPU's clock.
    free: u64,
}

impl Queue {
    const fn new(id: u32, token: u32) -> Self {
        Self {
            id: ChannelId(id),
            token,
            stamp: 0x2_0460_fff0 - id as u64 * 0x1000,
            position: 0,
            entries: 0,
            free: 0,
        }
    }

    /// The next submission; `skipped` entries before it are missing.
    fn submit(&mut self, doorbell: u64, tid: u32, skipped: u64, p: &Pushbuffer) -> Submission {
        self.position += skipped;
        let put = |position: u64| (position % 1024) as u32;
        let s = Submission {
            absent_ns: None,
            at: at(doorbell + OFFSET, tid),
            channel: self.id,
            token: Some(self.token),
            position: self.position,
            gp_get: None,
            prev_put: put(self.position),
            gp_put: put(self.position + 1),
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: Some(if tid == LOADER { "loader" } else { "trainer" }.into()),
            segments: vec![p.segment(GpuVa(0x2_0080_0000))],
        };
        self.position += 1;
        self.entries += 1;
        s
    }
}

const fn at(time_ns: u64, tid: u32) -> At {
    At {
        time_ns,
        pid: PID,
        tid,
    }
}

/// A kernel or copy that ran, with times of CLOCK_MONOTONIC, ns: what a reader of the recording should find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    pub channel: u32,
    pub tid: u32,
    pub doorbell: u64,
    pub begin: u64,
    pub length: u64,
    /// Name of a kernel as the compiler writes it, and its grid.
    pub kernel: Option<(&'static str, [u32; 3])>,
    /// Bytes of a copy.
    pub bytes: u32,
}

/// Writes to memory, as (time on the GPU's clock, address, number, whether it is stamped).
type Writes = Vec<(u64, u64, u32, bool)>;

/// Returns the stamps of a reader that reads every 1.1 us and sees each write 400 ns after it was made at the earliest.
fn read(mut writes: Writes) -> Vec<Stamp> {
    const PERIOD: u64 = 1_100;
    writes.sort_unstable();
    let mut stamps = Vec::new();
    for (made, address, payload, stamped) in writes {
        let seen = (made + 400).div_ceil(PERIOD) * PERIOD;
        stamps.push(Stamp {
            address: GpuVa(address),
            payload,
            gpu_ns: stamped.then_some(made),
            before_ns: seen - PERIOD + OFFSET,
            seen_ns: seen + OFFSET + 300,
        });
    }
    stamps
}

/// A kernel on the compute channel.
fn launch(
    queue: &mut Queue,
    (writes, ran): &mut (&mut Writes, &mut Vec<Ran>),
    doorbell: u64,
    ((program, name), grid, length): ((u64, &'static str), [u32; 3], u64),
) -> Record {
    let n = queue.entries;
    let end = ENDS + u64::from(n % 64) * 16;
    let stamp = (doorbell + FETCH).max(queue.free + 1_300);
    let start = stamp + 576;
    queue.free = start + length;
    ran.push(Ran {
        channel: queue.id.0,
        tid: TRAINER,
        doorbell: doorbell + OFFSET,
        begin: stamp + OFFSET,
        length: queue.free - stamp,
        kernel: Some((name, grid)),
        bytes: 0,
    });
    writes.push((stamp, queue.stamp, n + 1, true));
    writes.push((start + 1_500, end, n * 2, false));
    writes.push((queue.free + 1_800, end, n * 2 + 1, false));
    let view = View {
        version: (4, 0),
        grid,
        block: [256, 1, 1],
        registers: 64,
        program: GpuVa(program),
        releases: vec![QmdRelease {
            address: GpuVa(end),
            payload: u64::from(n * 2 + 1),
        }],
        ..View::default()
    };
    let qmd = Qmd::of(&view).expect("a layout");
    let mut p = Pushbuffer::new();
    p.bind(1, CLASS);
    p.inline(1, CLASS, GpuVa(0x2_04c0_0000), qmd.bytes())
        .expect("inline data");
    p.pcas(1, CLASS, GpuVa(0x2_04c0_0000)).expect("methods");
    p.release(1, CLASS, GpuVa(queue.stamp), n + 1)
        .expect("methods");
    Record::Submission(queue.submit(doorbell, TRAINER, 0, &p))
}

/// A copy on a copy channel, at 50 GB/s.
fn copy(
    queue: &mut Queue,
    (writes, ran): &mut (&mut Writes, &mut Vec<Ran>),
    (doorbell, tid, skipped): (u64, u32, u64),
    (src, dst, bytes): (u64, u64, u32),
) -> Record {
    let n = queue.entries;
    let begin = (doorbell + FETCH).max(queue.free);
    queue.free = begin + u64::from(bytes) / 50 + 1_000;
    ran.push(Ran {
        channel: queue.id.0,
        tid,
        doorbell: doorbell + OFFSET,
        begin: begin + OFFSET,
        length: queue.free - begin,
        kernel: None,
        bytes,
    });
    writes.push((queue.free, queue.stamp, n + 1, true));
    let mut p = Pushbuffer::new();
    p.bind(4, COPY_CLASS);
    p.copy(4, COPY_CLASS, GpuVa(src), GpuVa(dst), bytes)
        .expect("methods");
    let semaphore = [(queue.stamp >> 32) as u32, queue.stamp as u32, n + 1];
    p.named(4, COPY_CLASS, "SET_SEMAPHORE_A", &semaphore)
        .expect("methods");
    p.named(4, COPY_CLASS, "LAUNCH_DMA", &[0x14])
        .expect("a method");
    Record::Submission(queue.submit(doorbell, tid, skipped, &p))
}

/// Makes the records of this number of steps, and tells what ran.
pub fn records(steps: u32) -> (Vec<Record>, Vec<Ran>) {
    let channel = |queue: &Queue, engine| {
        Record::Channel(Box::new(Channel {
            at: at(BEGIN + OFFSET - 1_000_000, PID),
            id: queue.id,
            gpu: Some(0),
            token: Some(queue.token),
            class: Some(0xc86f),
            engine: Some(engine),
            handle: None,
            ring_gpu: None,
            ring: None,
            entries: Some(1024),
            userd: None,
            origin: Origin::Allocated,
        }))
    };
    let kernel = |(program, name): (u64, &str)| {
        Record::Kernel(Box::new(Kernel {
            at: at(BEGIN + OFFSET - 500_000, 0),
            program: GpuVa(program),
            name: name.to_owned(),
            bytes: None,
            params: None,
            by: NamedBy::Record,
            certain: true,
            driver: false,
            variables: Vec::new(),
        }))
    };
    // NV_ESC_RM_CONTROL with NVOS54_PARAMETERS: client, object, command, flags, parameters, their size, status. The second fails.
    let control = |time_ns, command: u32, status: u32| {
        let words = |status| [0xc1d0_0001, 0x5c00_0002, command, 0, 0, 0, 0, status];
        let bytes = |words: [u32; 8]| Bytes {
            data: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            full_len: 32,
        };
        Record::Ioctl(Box::new(Ioctl {
            at: at(time_ns, PID),
            end_ns: Some(time_ns + 2_500),
            device: Device::Control,
            fd: Some(3),
            file: 1,
            named_file: 0,
            request: 0xc020_462a,
            result: Some(0),
            input: bytes(words(0)),
            output: bytes(words(status)),
            nested: None,
        }))
    };
    let mut compute = Queue::new(0, 0x0a);
    let (mut up, mut down) = (Queue::new(1, 0x1_0012), Queue::new(2, 0x3_0016));
    let mut all = vec![
        Record::Gpu(Gpu {
            at: at(BEGIN + OFFSET - 1_000_000, 0),
            minor: 0,
            pci_device: 0x2335,
        }),
        Record::Process(Process {
            at: at(BEGIN + OFFSET - 1_000_000, PID),
            life: Life::Present {
                name: "train".to_owned(),
            },
        }),
        channel(&compute, 1),
        channel(&up, 11),
        channel(&down, 12),
        control(BEGIN + OFFSET - 800_000, 0x2080_1218, 0),
        control(BEGIN + OFFSET - 700_000, 0x2080_0110, 0x57),
        kernel(GEMM),
        kernel(SOFTMAX),
        kernel(UPDATE),
    ];
    let (mut writes, mut ran, mut time) = (Writes::new(), Vec::new(), BEGIN);
    for step in 0..steps {
        let noted = &mut (&mut writes, &mut ran);
        if step % 10 == 9 {
            time += 3_000_000;
        }
        let (host, device) = (0x7fc7_b880_0000, 0x7fc7_b940_0000);
        let loaded = (time, LOADER, 0);
        all.push(copy(&mut up, noted, loaded, (host, device, 4 << 20)));
        time += 90_000;
        let length = 200_000 + u64::from(step % 5) * 10_000;
        let gemm = (GEMM, [64, 64, 1], length);
        all.push(launch(&mut compute, noted, time, gemm));
        time += 5_000;
        let softmax = (SOFTMAX, [512, 1, 1], 30_000);
        all.push(launch(&mut compute, noted, time, softmax));
        time += 5_000;
        if step % 4 == 3 {
            let update = (UPDATE, [1024, 1, 1], 55_000);
            all.push(launch(&mut compute, noted, time, update));
        }
        time += 400_000;
        let skipped = if step == 20 { 3 } else { 0 };
        let back = (device + (8 << 20), host + (8 << 20), 64 << 10);
        all.push(copy(&mut down, noted, (time, TRAINER, skipped), back));
        time += 100_000;
    }
    all.push(Record::Stamps(Box::new(Stamps {
        at: at(time + OFFSET, 0),
        from_ns: BEGIN,
        reads: (time - BEGIN) / 1_100,
        stamps: read(writes),
    })));
    all.push(Record::Process(Process {
        at: at(time + OFFSET + 1_000_000, PID),
        life: Life::Exit { process: true },
    }));
    (all, ran)
}

/// The bytes of the file.
pub fn recording() -> Vec<u8> {
    written(&records(STEPS).0, false)
}

/// The bytes of a recording of these records; with `stacks` it says that stacks were taken.
pub fn written(records: &[Record], stacks: bool) -> Vec<u8> {
    let info = TraceInfo {
        program: "nvcap's tests".to_owned(),
        driver: Some("580.159.04".to_owned()),
        monotonic_ns: BEGIN,
        realtime_ns: 1_700_000_000_000_000_000,
        how: "trap".to_owned(),
        gpu_time: true,
        stacks,
        in_order: false,
        command: vec!["train".to_owned()],
        ..TraceInfo::default()
    };
    let (mut out, mut ledger) = (Vec::new(), Ledger::new());
    let mut writer = Writer::new(info, 1);
    writer.begin_section(&mut out);
    for record in records {
        ledger.record(record);
        writer.record(record, &mut out);
    }
    writer.end(EndInfo::default(), &ledger, b"{}", &mut out);
    out
}
