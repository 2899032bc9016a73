//! Made-up traces for tests of this crate and of those above it: kernels on one compute channel, copies on another, and their semaphores as
//! nvcap reads them.

use crate::decode::encode::{Pushbuffer, Qmd};
use crate::decode::event::QmdRelease;
use crate::decode::view::View;
use crate::record::{
    At, Channel, ChannelId, Gpu, How, Life, Origin, Process, Record, Stamp, Stamps, Submission,
};
pub use crate::switches::made_up::OFFSET;
use crate::wire::GpuVa;

pub const PID: u32 = 7;
pub const CLASS: u32 = 0xcbc0;
pub const KERNELS: ChannelId = ChannelId(0);
pub const COPIES: ChannelId = ChannelId(1);
pub const KERNEL_STAMP: u64 = 0x2_0460_fff0;
pub const COPY_STAMP: u64 = 0x2_0460_ffe0;
pub const ENDS: u64 = 0x2_0463_7000;
/// Time from a doorbell to the stamp on an idle GPU, ns. On the H200 such stamps lie between 4 us before and 1 us after the doorbell's
/// trap.
pub const FETCH: u64 = 2_500;
/// Time from a kernel's end to the stamp of the next kernel, ns.
pub const NEXT: u64 = 900;

/// Returns the time from a doorbell to its trap, ns: the processor traps after the store.
pub fn trap(n: u32) -> u64 {
    1_000 + u64::from(n % 7) * 400
}

/// Returns the word that a kernel releases at its end, and the released number.
pub fn end_of(n: u32) -> (u64, u32) {
    (ENDS + u64::from(n % 16) * 16, n * 2 + 1)
}

pub fn kernel(n: u32) -> Pushbuffer {
    let view = View {
        version: (4, 0),
        grid: [4, 1, 1],
        block: [64, 1, 1],
        registers: 24,
        program: GpuVa(0x7f00_0000_0000),
        releases: vec![QmdRelease {
            address: GpuVa(end_of(n).0),
            payload: end_of(n).1.into(),
        }],
        ..View::default()
    };
    let mut p = Pushbuffer::new();
    // First the previous user of the word, then the previous kernel, must have ended.
    for before in [n.checked_sub(16), n.checked_sub(1)].into_iter().flatten() {
        let (address, number) = end_of(before);
        let acquire = [address as u32, (address >> 32) as u32, number, 0, 3];
        p.named(0, 0xc86f, "SEM_ADDR_LO", &acquire)
            .expect("methods");
    }
    let qmd = Qmd::of(&view).expect("a layout");
    p.inline(1, CLASS, GpuVa(0x2_04c0_0000), qmd.bytes())
        .expect("inline data");
    p.pcas(1, CLASS, GpuVa(0x2_04c0_0000)).expect("methods");
    let stamp = [2, KERNEL_STAMP as u32, n + 1, 0];
    p.named(1, CLASS, "SET_REPORT_SEMAPHORE_A", &stamp)
        .expect("methods");
    p
}

pub fn copy(n: u32) -> Pushbuffer {
    let mut p = Pushbuffer::new();
    p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x182])
        .expect("a method");
    p.named(4, 0xc8b5, "SET_SEMAPHORE_A", &[2, COPY_STAMP as u32, n + 1])
        .expect("methods");
    p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x14]).expect("a method");
    p
}

pub fn submission(
    channel: ChannelId,
    position: u64,
    time_ns: u64,
    how: How,
    p: &Pushbuffer,
) -> Submission {
    Submission {
        absent_ns: None,
        at: At {
            time_ns,
            pid: PID,
            tid: 0,
        },
        channel,
        token: None,
        position,
        gp_get: None,
        prev_put: 0,
        gp_put: 1,
        ip: None,
        doorbell: None,
        how,
        late: false,
        thread: None,
        segments: vec![p.segment(GpuVa(0x2_0080_0000))],
    }
}

/// Writes to memory: time on the GPU's clock, address, number, and whether it is stamped.
pub type Writes = Vec<(u64, u64, u32, bool)>;

/// Returns the stamps seen by a reader that reads every `period` ns, and sees a write 400 ns after it was made at the earliest.
pub fn read(mut writes: Writes, period: u64, gaps: bool) -> Vec<Stamp> {
    writes.sort_unstable();
    let mut stamps: Vec<Stamp> = Vec::new();
    let mut last_read = 0;
    let mut all = writes.into_iter().peekable();
    let mut time = 0;
    while all.peek().is_some() {
        time += period;
        let pause = gaps && (time / 1_000_000) % 3 == 2;
        if pause {
            continue;
        }
        let mut seen: Vec<(u64, u64, u32, bool)> = Vec::new();
        while let Some(write) = all.next_if(|w| w.0 + 400 <= time) {
            // Of two writes to one place, the later one is read.
            seen.retain(|s| s.1 != write.1);
            seen.push(write);
        }
        for (at, address, payload, stamped) in seen {
            stamps.push(Stamp {
                address: GpuVa(address),
                payload,
                gpu_ns: stamped.then_some(at),
                before_ns: last_read,
                seen_ns: time + OFFSET + 300,
            });
        }
        last_read = time + OFFSET;
    }
    stamps
}

fn at(time_ns: u64, tid: u32) -> At {
    At {
        time_ns,
        pid: PID,
        tid,
    }
}

/// Returns the records before the first submission: the GPU, the process and its two channels.
fn beginning() -> Vec<Record> {
    let time_ns = OFFSET + 900_000;
    let channel = |id, engine, entries| {
        Record::Channel(Box::new(Channel {
            gpu: Some(0),
            engine: Some(engine),
            entries: Some(entries),
            ..Channel::bare(at(time_ns, PID), id, Origin::Given)
        }))
    };
    vec![
        Record::Gpu(Gpu {
            at: at(time_ns, 0),
            minor: 0,
            pci_device: 0x2335,
        }),
        Record::Process(Process {
            at: at(time_ns, PID),
            life: Life::Present {
                name: "simulated".to_owned(),
            },
        }),
        channel(KERNELS, 1, 1024),
        channel(COPIES, 11, 512),
    ]
}

/// Kernels and copies that are submitted and run one after the other.
struct Works {
    how: How,
    writes: Writes,
    submissions: Vec<Submission>,
    /// Ends of the last kernel and of the last copy.
    ended: (u64, u64),
    /// Number of copies so far.
    copies: u32,
}

impl Works {
    fn new(how: How) -> Self {
        Self {
            how,
            writes: Writes::new(),
            submissions: Vec::new(),
            ended: (0, 0),
            copies: 0,
        }
    }

    /// Returns submission `n` of a channel whose ring has `entries` entries, as nvcap finds it.
    fn found(
        &self,
        channel: ChannelId,
        n: u32,
        entries: u32,
        doorbell: u64,
        p: &Pushbuffer,
    ) -> Submission {
        let (time_ns, tid) = match self.how {
            How::Observed => ((doorbell / 300_000 + 1) * 300_000 + OFFSET, 0),
            _ => (doorbell + trap(0) + OFFSET, PID + 1),
        };
        let mut s = submission(channel, n.into(), time_ns, self.how, p);
        (s.prev_put, s.gp_put) = (n % entries, (n + 1) % entries);
        s.at.tid = tid;
        s
    }

    /// Runs kernel `n`, which takes `length` ns. Returns the time of its stamp.
    fn kernel(&mut self, n: u32, doorbell: u64, length: u64) -> u64 {
        let stamp = (doorbell + FETCH).max(self.ended.0 + NEXT);
        let start = stamp + 576;
        self.ended.0 = start + length;
        self.writes.push((stamp, KERNEL_STAMP, n + 1, true));
        let (end, number) = end_of(n);
        self.writes.push((start + 1_500, end, number - 1, false));
        self.writes.push((self.ended.0 + 300, end, number, false));
        let mut p = Pushbuffer::new();
        p.bind(1, CLASS);
        for word in kernel(n).words() {
            p.raw(*word);
        }
        let mut s = self.found(KERNELS, n, 1024, doorbell, &p);
        s.gp_get = Some(n.saturating_sub(2) % 1024);
        self.submissions.push(s);
        stamp
    }

    /// Runs a copy of 12 us that waits for the stamp of kernel `n`.
    fn copy_behind(&mut self, n: u32, stamp: u64, doorbell: u64) {
        let begin = (doorbell + FETCH).max(stamp + 1_000).max(self.ended.1);
        self.ended.1 = begin + 12_000;
        let number = self.copies + 1;
        self.writes.push((self.ended.1, COPY_STAMP, number, true));
        let mut p = Pushbuffer::new();
        let acquire = [KERNEL_STAMP as u32, 2, n + 1, 0, 3];
        p.named(0, 0xc86f, "SEM_ADDR_LO", &acquire)
            .expect("methods");
        p.copy(4, 0xc8b5, GpuVa(0x2_0000_1000), GpuVa(0x2_0000_9000), 4096)
            .expect("methods");
        p.named(
            4,
            0xc8b5,
            "SET_SEMAPHORE_A",
            &[2, COPY_STAMP as u32, number],
        )
        .expect("methods");
        p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x14]).expect("a method");
        let s = self.found(COPIES, self.copies, 512, doorbell, &p);
        self.submissions.push(s);
        self.copies = number;
    }
}

/// Makes the records of a trace: kernels of 20 us on one channel and, after every fourth, a copy of 12 us on another channel that waits for
/// the kernel's stamp. Every second kernel is in the ring before the previous one has ended.
pub fn records(kernels: u32, how: How) -> Vec<Record> {
    let mut works = Works::new(how);
    let mut doorbell = 1_000_000u64;
    for n in 0..kernels {
        doorbell += if n % 2 == 0 { 40_000 } else { 5_000 };
        let stamp = works.kernel(n, doorbell, 20_000);
        if n % 4 == 1 {
            works.copy_behind(n, stamp, doorbell + 2_000);
        }
    }
    let mut all = beginning();
    all.extend(works.submissions.into_iter().map(Record::Submission));
    all.push(Record::Stamps(Box::new(Stamps {
        at: at(doorbell + OFFSET + 1_000_000, 0),
        from_ns: OFFSET,
        reads: 1,
        stamps: read(works.writes, 1_100, false),
    })));
    all
}

/// Makes the records of a trace in which kernels of `lengths` (ns) are submitted at once, after one of 20 us, and run one after the other.
/// Semaphores are read every 50 us, and the reads are recorded every 100 ms.
pub fn far_ahead(lengths: &[u64], how: How) -> Vec<Record> {
    let mut works = Works::new(how);
    works.kernel(0, 1_000_000, 20_000);
    for (n, length) in (1..).zip(lengths) {
        works.kernel(n, 2_000_000 + u64::from(n) * 5_000, *length);
    }
    let mut all = beginning();
    all.extend(works.submissions.into_iter().map(Record::Submission));
    let ended = works.ended.0 + 1_000_000;
    let stamps = read(works.writes, 50_000, false);
    let mut from_ns = OFFSET;
    while from_ns < ended + OFFSET {
        let until = from_ns + 100_000_000;
        let within = |s: &&Stamp| (from_ns..until).contains(&s.seen_ns);
        all.push(Record::Stamps(Box::new(Stamps {
            at: at(until, 0),
            from_ns,
            reads: 2_000,
            stamps: stamps.iter().filter(within).copied().collect(),
        })));
        from_ns = until;
    }
    all.sort_by_key(|r| r.at().time_ns);
    all
}
