//! Hand-made events for the tests of the sinks, and a writer whose content can be read back.

use nvcap_decode::decode::event::{CopyEngine, CopyMode};
use nvcap_decode::record::CpuVa;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use nvcap_decode::decode::event::{
    Barrier, Bind, Body, ChipBy, ChipSettled, ConstantBank, Context, Copy, Direction, Engine,
    EntryHead, Event, Evidence, Graph, HostOp, Inline, InlineContent, InlineData, Launch,
    LaunchHow, LaunchKind, Memory, MethodWrite, Moves, Operation, Place, QmdFrom, QmdRelease,
    Semaphore, SemaphoreAction, SemaphoreUnit, SemaphoreWrite, Stop, SubmissionHead,
};
use nvcap_decode::decode::pcas::PcasAction;
use nvcap_decode::record::{At, ChannelId, How};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::{entry::EntryKind, stream::StopReason};
use nvcap_show::output::writer::Output;

/// Output of a sink.
#[derive(Clone, Default)]
pub struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    pub fn output(&self) -> Output {
        Output::to(Box::new(self.clone()))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn context(serial: u64) -> Context {
    Context {
        absent_ns: None,
        at: At {
            time_ns: 1_000_000_000 + serial * 1_234_567,
            pid: 4711,
            tid: 4712,
        },
        thread: Some("py\"thon".into()),
        gpu: Some(0),
        channel: ChannelId(3),
        token: Some(0xa),
        class: Some(0xc86f),
        engine: Engine::Graphics,
        serial,
        how: How::Trapped,
        late: false,
        phase: Some("warm up".into()),
        stack: None,
        gpu_time: None,
        parts: None,
        identity: None,
    }
}

pub fn launch() -> Operation {
    Operation::Launch(Box::new(Launch {
        kind: LaunchKind::User,
        how: LaunchHow::Scheduled,
        pcas: Some(PcasAction::InvalidatePrefetchCopySchedule),
        replay: None,
        place: None,
        qmd: Some(GpuVa(0x2_0100_0100)),
        qmd_version: Some((4, 0)),
        qmd_from: Some(QmdFrom::Stream),
        grid: Some([4096, 1, 1]),
        block: Some([256, 1, 1]),
        cluster: None,
        cooperative: false,
        registers: Some(16),
        shared_bytes: Some(0),
        shared_reserved_bytes: Some(1024),
        local_bytes: Some(0),
        barriers: Some(0),
        program: Some(GpuVa(0x7f00_0000_1000)),
        program_bytes: Some(640),
        stand_in: None,
        kernel: None,
        arg_memory: Vec::new(),
        moves: None,
        args: Some(vec![
            0, 0, 0xa0, 0, 0x7f, 0, 0, 0, 0, 0, 0xc0, 0, 0x7f, 0, 0, 0, 0, 0, 0x10, 0,
        ]),
        constant_banks: vec![ConstantBank {
            index: 0,
            address: GpuVa(0x2_0300_0000),
            size: 0x240,
        }],
        releases: vec![QmdRelease {
            address: GpuVa(0x2_0400_0000),
            payload: 5,
        }],
        dependent: None,
    }))
}

pub fn companion() -> Operation {
    let Operation::Launch(mut l) = launch() else {
        unreachable!()
    };
    l.kind = LaunchKind::Companion;
    l.grid = Some([0, 0, 0]);
    l.args = None;
    Operation::Launch(l)
}

/// A node of a replay: a memset kernel of the driver's, which another node leads to.
pub fn memset_node() -> Operation {
    let Operation::Launch(mut l) = launch() else {
        unreachable!()
    };
    l.kind = LaunchKind::DriverMemset;
    l.how = LaunchHow::Dependent;
    l.pcas = None;
    l.replay = Some(7);
    l.place = Some(2);
    l.qmd = Some(GpuVa(0x2_0100_0400));
    l.qmd_from = Some(QmdFrom::Image);
    l.shared_reserved_bytes = Some(0);
    l.moves = Some(Moves {
        dst: Some(GpuVa(0x7f00_00d0_0000)),
        src: None,
        bytes: Some(8192),
        value: Some(0x5a5a_5a5a),
    });
    l.args = Some(memset_args());
    Operation::Launch(l)
}

/// Arguments of the driver's memset kernel: address, pattern, elements, pitch.
fn memset_args() -> Vec<u8> {
    [0x7f00_00d0_0000u64, 0x5a5a_5a5a, 2048, 0]
        .map(u64::to_le_bytes)
        .concat()
}

/// A cooperative launch in clusters whose QMD was let go by another PCAS.
pub fn cooperative() -> Operation {
    let Operation::Launch(mut l) = launch() else {
        unreachable!()
    };
    l.how = LaunchHow::Released;
    l.pcas = Some(PcasAction::DecrementDependence);
    l.cluster = Some([4, 1, 1]);
    l.cooperative = true;
    Operation::Launch(l)
}

/// A launch of which nothing but the QMD's address is known.
pub fn unresolved() -> Operation {
    let Operation::Launch(mut l) = launch() else {
        unreachable!()
    };
    l.kind = LaunchKind::Unresolved;
    l.how = LaunchHow::Dependent;
    l.pcas = None;
    l.replay = Some(7);
    l.place = Some(3);
    l.qmd_version = None;
    l.qmd_from = None;
    (l.grid, l.block) = (None, None);
    (l.registers, l.local_bytes, l.barriers) = (None, None, None);
    (l.shared_bytes, l.shared_reserved_bytes) = (None, None);
    (l.program, l.program_bytes, l.args) = (None, None, None);
    l.constant_banks.clear();
    l.releases.clear();
    Operation::Launch(l)
}

pub fn graph() -> Operation {
    Operation::Graph(Box::new(Graph {
        replay: 7,
        nodes: 4,
        kernels: 2,
        memsets: 1,
        copies: 0,
        driver: 0,
        unresolved: 1,
        channels: vec![ChannelId(3), ChannelId(4)],
        submissions: vec![0, 1],
        bytes: 5120,
        uploaded: true,
        conditional: false,
    }))
}

pub fn copy() -> Operation {
    Operation::Copy(Box::new(Copy {
        bytes: 1 << 20,
        src: Some(GpuVa(0x7f00_0020_0000)),
        dst: Some(GpuVa(0x7f00_00a0_0000)),
        physical: (false, false),
        mode: CopyMode::Linear,
        engine: CopyEngine::Copy(Some(2)),
        direction: Some(Direction::HostToDevice),
        direction_from: Some(Evidence::Habit),
        line_bytes: 1 << 20,
        lines: 1,
        pitch: None,
        pattern: None,
        semaphore: Some(SemaphoreWrite {
            address: GpuVa(0x2_0400_0010),
            payload: 9,
            timestamp: true,
        }),
        launch_dma: 0x182,
        src_memory: Some(Memory {
            place: Some(Place::Host),
            client: 0xc1d0_0020,
            handle: 0x5c00_0019,
            class: 0x3e,
            size: Some(56 << 20),
            offset: 0x1234,
            cpu: Some(CpuVa(0x7f00_0020_0000)),
        }),
        dst_memory: None,
    }))
}

pub fn fill() -> Operation {
    let Operation::Copy(mut c) = copy() else {
        unreachable!()
    };
    c.src = None;
    c.mode = CopyMode::Fill;
    c.direction = None;
    c.pattern = Some(vec![0xdead_beef]);
    c.semaphore = None;
    Operation::Copy(c)
}

pub fn inline() -> Operation {
    Operation::Inline(Inline {
        dst: GpuVa(0x7f00_00b0_0000),
        bytes: 5,
        line_bytes: 5,
        lines: 1,
        content: Some(InlineContent::Data),
        data: InlineData::Stream,
        fill: None,
        src: None,
        direction: Direction::HostToDevice,
        head: b"hello".to_vec(),
        src_memory: None,
        dst_memory: None,
    })
}

/// A memset that a macro of the driver's makes the data of.
pub fn inline_fill() -> Operation {
    let Operation::Inline(mut i) = inline() else {
        unreachable!()
    };
    i.fill = Some(0xfeed_face);
    i.data = InlineData::Fill;
    i.head = vec![0xce, 0xfa, 0xed, 0xfe, 0xce];
    Operation::Inline(i)
}

pub fn semaphore() -> Operation {
    Operation::Semaphore(Semaphore {
        unit: SemaphoreUnit::Host,
        action: SemaphoreAction::AcquireGreaterEqual,
        address: GpuVa(0x2_0400_0020),
        payload: 77,
        wide: true,
        timestamp: false,
        reduction: None,
        wait_for_idle: false,
        execute: 0x3,
    })
}

pub fn operations() -> Vec<Operation> {
    vec![
        launch(),
        companion(),
        copy(),
        fill(),
        inline(),
        inline_fill(),
        memset_node(),
        cooperative(),
        unresolved(),
        graph(),
        semaphore(),
        Operation::Barrier(Barrier {
            what: "wfi",
            class: 0xc86f,
            method: 0x78,
            data: 0,
            address: None,
        }),
        Operation::Bind(Bind {
            subchannel: 1,
            class: 0xcbc0,
        }),
        Operation::Host(HostOp {
            what: "yield",
            data: 0,
        }),
    ]
}

pub fn head() -> Body<'static> {
    Body::Submission(SubmissionHead {
        position: 41,
        gp_get: Some(40),
        prev_put: 41,
        gp_put: 42,
        entries: 1,
        bytes: 12,
        missing: 0,
        ip: Some(0x7f12_3456),
    })
}

pub const RAW: u64 = 0x2_0080_0000 | (3 << 42);

pub fn entry(bytes: &[u8]) -> Body<'_> {
    Body::Entry(EntryHead {
        index: 0,
        raw: RAW,
        kind: EntryKind::Segment {
            address: GpuVa(0x2_0080_0000),
            len: 12,
            conditional: false,
            subroutine: false,
            sync: true,
        },
        bytes,
    })
}

pub fn method() -> Body<'static> {
    Body::Method(MethodWrite {
        entry: 0,
        offset: 4,
        subchannel: 4,
        class: 0xc8b5,
        method: 0x300,
        data: 0x182,
        masked: false,
    })
}

pub fn inline_method() -> Body<'static> {
    Body::Method(MethodWrite {
        entry: 0,
        offset: 8,
        subchannel: 1,
        class: 0xcbc0,
        method: 0x1b4,
        data: 0x6c6c_6568,
        masked: false,
    })
}

pub fn stop() -> Body<'static> {
    Body::Stop(Stop {
        entry: 0,
        offset: 8,
        why: StopReason::Cut { needs: 3 },
    })
}

pub fn chip() -> Body<'static> {
    Body::Chip(ChipSettled {
        chip: "GH100",
        by: ChipBy::QmdVersion,
    })
}

/// Every body there is, in stream order.
pub fn with_each(mut f: impl FnMut(Event<'_>)) {
    let context = context(0);
    let operations = operations();
    let bytes = [0x11; 12];
    let mut bodies = vec![head(), chip(), entry(&bytes), method(), inline_method()];
    bodies.extend(operations.iter().map(Body::Operation));
    bodies.push(stop());
    for body in bodies {
        f(Event {
            context: &context,
            entry: 0,
            body,
        });
    }
}
