//! Every form of the pushbuffer and every kind of operation, formed by hand and read back.

use nvcap::{
    decode::{
        Decoder, Options, Places,
        defaults::Chip,
        encode::{Pushbuffer, Qmd},
        entry::{self, Opcode},
        event::{
            Body, Direction, Draw, Engine, EntryKind, Evidence, InlineContent, LaunchHow,
            LaunchKind, MethodWrite, Operation, Place, SemaphoreAction, SemaphoreUnit, Stop,
            StopReason,
        },
        stream::{Header, Step},
        view::View,
    },
    record::{At, Channel, ChannelId, GpuVa, Hole, How, Origin, Segment, Submission},
};

const CODE: GpuVa = GpuVa(0x2_0080_0000);

/// A decoder with one channel, and what it was told.
struct Bench {
    decoder: Decoder,
    position: u64,
    channel: ChannelId,
    pid: u32,
    token: u32,
    places: Box<dyn Places>,
    writes: Vec<MethodWrite>,
    operations: Vec<Operation>,
    stops: Vec<Stop>,
    entries: Vec<EntryKind>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        Self {
            decoder: Decoder::new(options),
            position: 0,
            channel: ChannelId(0),
            pid: 100,
            token: 0xa,
            places: Box::new(()),
            writes: Vec::new(),
            operations: Vec::new(),
            stops: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// A channel of this class on this engine (NV2080_ENGINE_TYPE).
    fn channel(mut self, class: u32, engine: u32) -> Self {
        let at = At {
            time_ns: 0,
            pid: self.pid,
            tid: 0,
        };
        self.decoder.channel(&Channel {
            at,
            id: self.channel,
            gpu: Some(0),
            token: None,
            class: Some(class),
            engine: Some(engine),
            handle: None,
            ring_gpu: None,
            ring: None,
            entries: None,
            userd: None,
            origin: Origin::Allocated,
        });
        self
    }

    fn submit(&mut self, segments: Vec<Segment>) -> &mut Self {
        let s = Submission {
            at: At {
                time_ns: 1,
                pid: self.pid,
                tid: self.pid,
            },
            channel: self.channel,
            token: Some(self.token),
            position: self.position,
            gp_get: None,
            prev_put: 0,
            gp_put: 0,
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: None,
            segments,
        };
        self.position += s.segments.len() as u64;
        let context = self.decoder.context(&s, 0);
        let Self {
            decoder,
            places,
            writes,
            operations,
            stops,
            entries,
            ..
        } = self;
        decoder.submission(&s, &context, &**places, &mut |e| match e.body {
            Body::Method(w) => writes.push(w),
            Body::Operation(o) => operations.push(o.clone()),
            Body::Stop(s) => stops.push(s),
            Body::Entry(e) => entries.push(e.kind),
            Body::Submission(_) => {}
        });
        self
    }

    fn words(&mut self, form: impl FnOnce(&mut Pushbuffer)) -> &mut Self {
        let mut p = Pushbuffer::new();
        form(&mut p);
        self.submit(vec![p.segment(CODE)])
    }

    /// Operations since the last time, binds left out.
    fn told(&mut self) -> Vec<Operation> {
        let mut told = std::mem::take(&mut self.operations);
        told.retain(|o| !matches!(o, Operation::Bind(_)));
        told
    }

    /// The only operation since the last time.
    fn one(&mut self) -> Operation {
        let mut told = self.told();
        assert_eq!(told.len(), 1, "{told:#?}");
        told.remove(0)
    }
}

fn named(p: &mut Pushbuffer, subchannel: u8, class: u32, list: &[(&str, u32)]) {
    for (name, data) in list {
        p.named(subchannel, class, name, &[*data])
            .unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn subdevice_masks() {
    let mut b = Bench::new();
    b.words(|p| {
        p.control(Header::StoreSubdeviceMask(0b10));
        p.method(Step::Immediate, 4, 0x300, &[1]);
        p.control(Header::SetSubdeviceMask(0xffe));
        p.method(Step::Immediate, 4, 0x304, &[2]);
        p.control(Header::SetSubdeviceMask(0xfff));
        p.method(Step::Immediate, 4, 0x308, &[3]);
        p.control(Header::UseSubdeviceMask);
        p.method(Step::Same, 4, 0x30c, &[4, 5]);
    });
    let masked: Vec<_> = b.writes.iter().map(|w| (w.data, w.masked)).collect();
    assert_eq!(
        masked,
        [(1, false), (2, true), (3, false), (4, true), (5, true)]
    );
    assert_eq!(b.decoder.counts().masked, 3);
    // What is masked does nothing, and the mask outlives the submission.
    b.words(|p| {
        p.bind(4, 0xc8b5);
    });
    assert!(b.operations.is_empty());
    // The other GPU of the group sees the opposite.
    let mut b = Bench::with(Options {
        subdevice: 1,
        ..Options::default()
    });
    b.words(|p| {
        p.control(Header::SetSubdeviceMask(0b10))
            .method(Step::Immediate, 4, 0x300, &[1]);
    });
    assert!(!b.writes[0].masked);
}

#[test]
fn a_masked_out_subdevice_does_not_fetch_conditional_entries() {
    let mut b = Bench::new();
    let conditional = |p: &Pushbuffer| {
        let bytes = p.bytes();
        let entry = entry::segment(CODE, bytes.len() as u32, true, false, false);
        Segment {
            entry,
            bytes,
            holes: Vec::new(),
        }
    };
    let mut p = Pushbuffer::new();
    p.method(Step::Immediate, 4, 0x300, &[1]);
    b.submit(vec![conditional(&p)]);
    assert_eq!(b.writes.len(), 1);
    b.words(|p| {
        p.control(Header::SetSubdeviceMask(0b10));
    });
    b.submit(vec![conditional(&p)]);
    assert_eq!(b.writes.len(), 1);
}

#[test]
fn the_end_of_a_segment_and_control_entries() {
    let mut b = Bench::new();
    let mut p = Pushbuffer::new();
    p.method(Step::Immediate, 4, 0x300, &[1])
        .control(Header::EndSegment)
        .raw(0xdead_beef);
    let control = |opcode, operand| Segment {
        entry: entry::control(opcode, operand, true),
        ..Segment::default()
    };
    b.submit(vec![
        p.segment(CODE),
        control(Opcode::NOP, 7),
        control(Opcode::SET_PB_SEGMENT_EXTENDED_BASE, 0x155 << 8),
        p.segment(CODE),
        control(Opcode(9), 0),
    ]);
    assert_eq!((b.writes.len(), b.stops.len()), (2, 0));
    let EntryKind::Segment { address, .. } = b.entries[3] else {
        panic!()
    };
    assert_eq!(address, GpuVa(0x155 << 40 | CODE.0));
    assert_eq!(
        b.entries[1],
        EntryKind::Control {
            opcode: 0,
            operand: 7,
            sync: true
        }
    );
    // The base is the channel's, for good.
    b.submit(vec![p.segment(CODE)]);
    assert_eq!(b.entries[3], b.entries[5]);
    assert_eq!(b.decoder.counts().controls, 3);
}

#[test]
fn illegal_headers_stop_their_entry_only() {
    let mut b = Bench::new();
    let mut bad = Pushbuffer::new();
    bad.method(Step::Immediate, 4, 0x300, &[1])
        .raw(0xc000_0000)
        .method(Step::Immediate, 4, 0x300, &[2]);
    let mut good = Pushbuffer::new();
    good.method(Step::Immediate, 4, 0x300, &[3]);
    b.submit(vec![bad.segment(CODE), good.segment(CODE)]);
    assert_eq!(
        b.writes
            .iter()
            .map(|w| (w.entry, w.data))
            .collect::<Vec<_>>(),
        [(0, 1), (1, 3)]
    );
    assert_eq!(
        b.stops,
        [Stop {
            entry: 0,
            offset: 4,
            why: StopReason::IllegalHeader(0xc000_0000)
        }]
    );
}

#[test]
fn data_goes_on_over_entries_and_submissions_but_not_over_gaps() {
    let split = |words: &[u32]| {
        let mut p = Pushbuffer::new();
        for &word in words {
            p.raw(word);
        }
        p.segment(CODE)
    };
    // ONE_INC of four words to 0x300 on subchannel 4.
    let header = 5 << 29 | 4 << 16 | 4 << 13 | 0x300 >> 2;
    let mut b = Bench::new();
    b.submit(vec![split(&[header, 1]), split(&[2])]);
    b.submit(vec![split(&[3, 4, 0])]);
    let addresses: Vec<_> = b.writes.iter().map(|w| (w.method, w.data)).collect();
    assert_eq!(addresses, [(0x300, 1), (0x304, 2), (0x304, 3), (0x304, 4)]);
    // A submission that does not begin where the last ended: the method in progress is given up.
    b.submit(vec![split(&[header, 1])]);
    b.position += 1;
    b.submit(vec![split(&[header, 9])]);
    assert_eq!(
        b.writes.last().map(|w| (w.method, w.data)),
        Some((0x300, 9))
    );
    b.decoder.gap(ChannelId(0));
    b.submit(vec![split(&[0, 0])]);
    assert_eq!(b.writes.len(), 6);
}

#[test]
fn a_hole_in_inline_data() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0);
    });
    let data: Vec<u8> = (0..=255).collect();
    let mut p = Pushbuffer::new();
    p.inline(1, 0xcbc0, 0x1000_0000, &data).expect("inline");
    p.release(1, 0xcbc0, 0x2000_0000, 5).expect("a semaphore");
    let mut segment = p.segment(CODE);
    // Header and data of the inline run begin at byte 32; 64 bytes from byte 100 on are missing.
    let at = segment
        .bytes
        .windows(4)
        .position(|w| w == [0, 1, 2, 3])
        .expect("the data") as u32;
    segment.holes = vec![Hole {
        offset: at + 66,
        len: 60,
    }];
    b.submit(vec![segment]);
    assert_eq!(
        b.stops,
        [Stop {
            entry: 0,
            offset: at + 64,
            why: StopReason::Missing { bytes: 64 }
        }]
    );
    let told = b.told();
    let [Operation::Inline(inline), Operation::Semaphore(semaphore)] = &told[..] else {
        panic!("{told:#?}")
    };
    assert_eq!((inline.bytes, inline.content), (256, None));
    assert_eq!(semaphore.payload, 5);
    // Memory: what came, and not the hole.
    let shadow = b.decoder.shadow();
    assert_eq!(shadow.known(100, 0x1000_0000, 256), 64);
    assert_eq!(shadow.known(100, 0x1000_0080, 256), 128);
    let mut rest = [0; 128];
    assert!(shadow.read(100, 0x1000_0080, &mut rest));
    assert_eq!(rest[..], data[128..]);
}

#[test]
fn processes_do_not_mix() {
    let qmd = Qmd::of(&View {
        version: (4, 0),
        grid: [1, 2, 3],
        block: [4, 1, 1],
        shared_bytes: 1024,
        ..View::default()
    });
    let qmd = qmd.expect("a layout");
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0)
            .inline(1, 0xcbc0, 0x10_0000, qmd.bytes())
            .expect("inline");
    });
    assert!(matches!(b.one(), Operation::Inline(i) if i.content == Some(InlineContent::Qmd)));
    (b.pid, b.channel, b.position) = (200, ChannelId(1), 0);
    b.words(|p| {
        p.bind(1, 0xcbc0)
            .pcas(1, 0xcbc0, 0x10_0000)
            .expect("launches");
    });
    let Operation::Launch(launch) = b.one() else {
        panic!()
    };
    assert_eq!(
        (launch.kind, launch.grid, launch.qmd),
        (LaunchKind::Unresolved, None, Some(0x10_0000))
    );
    (b.pid, b.channel, b.position) = (100, ChannelId(0), 1);
    b.words(|p| {
        p.pcas(1, 0xcbc0, 0x10_0000).expect("launches");
    });
    let Operation::Launch(launch) = b.one() else {
        panic!()
    };
    assert_eq!(
        (launch.kind, launch.grid),
        (LaunchKind::User, Some([1, 2, 3]))
    );
    b.decoder.forget_process(100);
    b.words(|p| {
        p.bind(1, 0xcbc0)
            .pcas(1, 0xcbc0, 0x10_0000)
            .expect("launches");
    });
    let Operation::Launch(launch) = b.one() else {
        panic!()
    };
    assert_eq!(launch.kind, LaunchKind::Unresolved);
}

#[test]
fn inline_qmds() {
    // 64 words on Ampere, 96 on Hopper where INLINE_SIZE says so.
    for (class, version, words) in [(0xc6c0, (3, 0), 64usize), (0xcbc0, (4, 0), 96)] {
        let mut qmd = Qmd::new(version).expect("a layout");
        for (name, old, value) in [
            ("GRID_WIDTH", "CTA_RASTER_WIDTH", 9),
            ("CTA_THREAD_DIMENSION0", "", 32),
        ] {
            qmd.set(name, 0, value)
                .or_else(|_| qmd.set(old, 0, value))
                .expect("a field");
        }
        let words_of: Vec<u32> = qmd
            .bytes()
            .chunks_exact(4)
            .map(|w| u32::from_le_bytes(w.try_into().expect("4")))
            .collect();
        assert_eq!(words_of.len(), words);
        let mut b = Bench::new();
        let size = if words == 96 { 1 << 30 } else { 0 };
        b.words(|p| {
            p.bind(1, class);
            p.named(1, class, "SET_INLINE_QMD_ADDRESS_A", &[size | 1, 0x1234])
                .expect("named");
            p.named(1, class, "LOAD_INLINE_QMD_DATA", &words_of)
                .expect("named");
        });
        let Operation::Launch(launch) = b.one() else {
            panic!()
        };
        assert_eq!(
            (launch.how, launch.qmd),
            (LaunchHow::InlineQmd, Some(0x1_0000_1234 << 8))
        );
        assert_eq!(
            (launch.qmd_version, launch.block),
            (Some(version), Some([32, 0, 0]))
        );
        assert_eq!(launch.grid.map(|g| g[0]), Some(9));
    }
}

#[test]
fn pcas_that_schedules_nothing() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0);
        named(
            p,
            1,
            0xcbc0,
            &[
                ("SEND_PCAS_A", 0x77),
                ("SEND_SIGNALING_PCAS2_B", 1),
                ("SEND_SIGNALING_PCAS2_B", 8),
            ],
        );
    });
    let told = b.told();
    let what = |o: &Operation| match o {
        Operation::Barrier(b) => (b.what, b.address),
        _ => panic!("{o:?}"),
    };
    assert_eq!(
        told.iter().map(what).collect::<Vec<_>>(),
        [
            ("pcas_invalidate", Some(0x7700)),
            ("pcas_prefetch", Some(0x7700))
        ]
    );
    // Kepler: bits INVALIDATE and SCHEDULE.
    b.words(|p| {
        p.bind(1, 0xa0c0);
        named(
            p,
            1,
            0xa0c0,
            &[
                ("SEND_PCAS_A", 0x77),
                ("SEND_SIGNALING_PCAS_B", 1),
                ("SEND_SIGNALING_PCAS_B", 3),
            ],
        );
    });
    let told = b.told();
    assert!(
        matches!(&told[..], [Operation::Barrier(_), Operation::Launch(_)]),
        "{told:?}"
    );
}

#[test]
fn fermi() {
    let mut b = Bench::new().channel(0x906f, 1);
    b.words(|p| {
        p.bind(1, 0x90c0);
        named(
            p,
            1,
            0x90c0,
            &[
                ("SET_CTA_RASTER_SIZE_A", 3 << 16 | 2),
                ("SET_CTA_RASTER_SIZE_B", 4),
                ("SET_CTA_THREAD_DIMENSION_A", 8 << 16 | 16),
                ("SET_CTA_THREAD_DIMENSION_B", 1),
                ("SET_CTA_REGISTER_COUNT", 20),
                ("SET_SHADER_SHARED_MEMORY_SIZE", 512),
                ("SET_PROGRAM_REGION_A", 1),
                ("SET_PROGRAM_REGION_B", 0x1000),
                ("SET_CTA_PROGRAM_START", 0x100),
                ("LAUNCH", 0),
            ],
        );
    });
    let Operation::Launch(launch) = b.one() else {
        panic!()
    };
    assert_eq!(
        (launch.grid, launch.block),
        (Some([2, 3, 4]), Some([16, 8, 1]))
    );
    assert_eq!(
        (launch.program, launch.shared_bytes),
        (Some(0x1_0000_1100), Some(512))
    );
    // Memory to memory: by inline data, and by a copy.
    b.words(|p| {
        p.bind(2, 0x9039);
        let operands = [
            ("OFFSET_OUT_UPPER", 0),
            ("OFFSET_OUT", 0x9000),
            ("LINE_LENGTH_IN", 8),
            ("LINE_COUNT", 1),
        ];
        named(p, 2, 0x9039, &operands);
        named(p, 2, 0x9039, &[("LAUNCH_DMA", 0x111)]);
        p.method(Step::Same, 2, 0x304, &[0x0403_0201, 0x0807_0605]);
        named(
            p,
            2,
            0x9039,
            &[
                ("OFFSET_IN_UPPER", 1),
                ("OFFSET_IN", 0x8000),
                ("LAUNCH_DMA", 0x110),
            ],
        );
    });
    let told = b.told();
    let [Operation::Inline(inline), Operation::Copy(copy)] = &told[..] else {
        panic!("{told:#?}")
    };
    assert_eq!(
        (inline.dst, &inline.head[..]),
        (0x9000, &[1, 2, 3, 4, 5, 6, 7, 8][..])
    );
    assert_eq!(
        (copy.src, copy.dst, copy.bytes),
        (Some(0x1_0000_8000), Some(0x9000), 8)
    );
}

/// A copy with LAUNCH_DMA `data` after these methods.
fn copy(before: &[(&str, u32)], data: u32) -> Operation {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(4, 0xc8b5);
        let address = [
            ("OFFSET_IN_UPPER", 1),
            ("OFFSET_IN_LOWER", 0x100),
            ("OFFSET_OUT_UPPER", 2),
            ("OFFSET_OUT_LOWER", 0x200),
        ];
        named(p, 4, 0xc8b5, &address);
        named(p, 4, 0xc8b5, before);
        named(p, 4, 0xc8b5, &[("LAUNCH_DMA", data)]);
    });
    b.one()
}

#[test]
fn copies() {
    let lines = [
        ("LINE_LENGTH_IN", 300),
        ("LINE_COUNT", 40),
        ("PITCH_IN", 512),
        ("PITCH_OUT", (-1024i32) as u32),
    ];
    let mode = |o: Operation| match o {
        Operation::Copy(c) => *c,
        o => panic!("{o:?}"),
    };
    let c = mode(copy(&lines, 0x182));
    assert_eq!(
        (c.mode, c.bytes, c.lines, c.pitch),
        ("linear", 300, 1, None)
    );
    assert_eq!((c.src, c.dst), (Some(0x1_0000_0100), Some(0x2_0000_0200)));
    let c = mode(copy(&lines, 0x382));
    assert_eq!(
        (c.mode, c.bytes, c.pitch),
        ("pitch", 12_000, Some((512, -1024)))
    );
    assert_eq!(mode(copy(&lines, 0x202)).mode, "block_linear");
    assert_eq!(mode(copy(&lines, 0x282)).mode, "pitch_to_block_linear");
    assert_eq!(mode(copy(&lines, 0x302)).mode, "block_linear_to_pitch");
    assert_eq!(mode(copy(&lines, 0x182 | 1 << 23)).mode, "scrub");
    assert_eq!(mode(copy(&lines, 0x182 | 1 << 20)).mode, "encrypt");
    assert_eq!(
        mode(copy(
            &[lines[0], ("SET_SECURE_COPY_MODE", 1)],
            0x182 | 1 << 20
        ))
        .mode,
        "decrypt"
    );
    // A fill: two components of four bytes, CONST_A and CONST_B; LINE_LENGTH_IN counts elements.
    let fill = [
        ("LINE_LENGTH_IN", 100),
        ("SET_REMAP_CONST_A", 0x11),
        ("SET_REMAP_CONST_B", 0x22),
        ("SET_REMAP_COMPONENTS", 1 << 24 | 3 << 16 | 5 << 4 | 4),
    ];
    let c = mode(copy(&fill, 0x182 | 1 << 10));
    assert_eq!(
        (c.mode, c.bytes, c.src, c.pattern),
        ("fill", 800, None, Some(vec![0x11, 0x22]))
    );
    // One of the components from the source: a remap.
    let remap = [
        ("LINE_LENGTH_IN", 100),
        ("SET_REMAP_COMPONENTS", 1 << 24 | 1 << 16 | 4),
    ];
    let c = mode(copy(&remap, 0x182 | 1 << 10));
    assert_eq!((c.mode, c.bytes, c.src.is_some()), ("remap", 400, true));
    // Physical: where the modes say.
    let physical = [
        ("LINE_LENGTH_IN", 4),
        ("SET_SRC_PHYS_MODE", 1),
        ("SET_DST_PHYS_MODE", 0),
    ];
    let c = mode(copy(&physical, 0x182 | 3 << 12));
    assert_eq!(
        (c.physical, c.direction, c.direction_from),
        (
            (true, true),
            Some(Direction::HostToDevice),
            Some(Evidence::Stated)
        )
    );
    // Nothing is moved, nothing is released.
    let c = mode(copy(&lines, 0x180));
    assert_eq!((c.mode, c.bytes, c.dst), ("none", 0, None));
}

#[test]
fn decompression() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(4, 0xc9b5);
        let all = [
            ("LINE_LENGTH_IN", 64),
            ("SET_COMPRESSION_PARAMETERS", 0),
            ("LAUNCH_DMA", 0x182 | 1 << 11),
        ];
        named(p, 4, 0xc9b5, &all);
        named(
            p,
            4,
            0xc9b5,
            &[
                ("SET_COMPRESSION_PARAMETERS", 1),
                ("LAUNCH_DMA", 0x182 | 1 << 11),
            ],
        );
    });
    let told = b.told();
    let modes: Vec<_> = told
        .iter()
        .map(|o| {
            if let Operation::Copy(c) = o {
                c.mode
            } else {
                ""
            }
        })
        .collect();
    assert_eq!(modes, ["decompress", "compress"]);
}

#[test]
fn semaphores_of_a_copy_class() {
    let at = [
        ("SET_SEMAPHORE_A", 3),
        ("SET_SEMAPHORE_B", 0x40),
        ("SET_SEMAPHORE_PAYLOAD", 9),
        ("SET_SEMAPHORE_PAYLOAD_UPPER", 1),
    ];
    let Operation::Semaphore(s) = copy(&at, 0x14) else {
        panic!()
    };
    assert_eq!(
        (s.unit, s.action, s.address, s.payload),
        (
            SemaphoreUnit::Copy,
            SemaphoreAction::Release,
            0x3_0000_0040,
            9
        )
    );
    assert!(s.timestamp && !s.wide);
    let Operation::Semaphore(s) = copy(&at, 0x0c | 1 << 27 | 1 << 19 | 5 << 14) else {
        panic!()
    };
    assert_eq!(
        (s.action, s.reduction, s.payload, s.timestamp),
        (
            SemaphoreAction::Reduction,
            Some("iadd"),
            0x1_0000_0009,
            false
        )
    );
    // With a transfer it is the copy's.
    let Operation::Copy(c) = copy(&[at[0], at[1], at[2], ("LINE_LENGTH_IN", 4)], 0x18a) else {
        panic!()
    };
    let write = c.semaphore.expect("released");
    assert_eq!(
        (write.address, write.payload, write.timestamp),
        (0x3_0000_0040, 9, false)
    );
}

#[test]
fn semaphores_of_the_channel() {
    let execute = |list: &[(&str, u32)]| {
        let mut b = Bench::new();
        b.words(|p| named(p, 0, 0xc86f, list));
        match b.one() {
            Operation::Semaphore(s) => s,
            o => panic!("{o:?}"),
        }
    };
    let at = |data| {
        [
            ("SEM_ADDR_LO", 0x80),
            ("SEM_ADDR_HI", 1),
            ("SEM_PAYLOAD_LO", 7),
            ("SEM_PAYLOAD_HI", 2),
            ("SEM_EXECUTE", data),
        ]
    };
    let s = execute(&at(1 | 1 << 20 | 1 << 24 | 1 << 25));
    assert_eq!(
        (s.action, s.address, s.payload),
        (SemaphoreAction::Release, 0x1_0000_0080, 0x2_0000_0007)
    );
    assert!(s.wide && s.timestamp && s.wait_for_idle && s.unit == SemaphoreUnit::Host);
    let actions = [
        (0, SemaphoreAction::AcquireEqual),
        (2, SemaphoreAction::AcquireGreaterEqual),
        (3, SemaphoreAction::AcquireGreaterEqual),
        (4, SemaphoreAction::AcquireAnd),
        (5, SemaphoreAction::AcquireNor),
        (7, SemaphoreAction::Other(7)),
    ];
    for (data, action) in actions {
        let s = execute(&at(data));
        assert_eq!((s.action, s.payload, s.timestamp), (action, 7, false));
    }
    let s = execute(&at(6 | 5 << 27));
    assert_eq!(
        (s.action, s.reduction),
        (SemaphoreAction::Reduction, Some("iadd"))
    );
    let old = |data| {
        execute(&[
            ("SEMAPHOREA", 1),
            ("SEMAPHOREB", 0x40),
            ("SEMAPHOREC", 3),
            ("SEMAPHORED", data),
        ])
    };
    let s = old(2);
    assert_eq!(
        (s.action, s.address, s.payload),
        (SemaphoreAction::Release, 0x1_0000_0040, 3)
    );
    assert!(s.timestamp && s.wait_for_idle);
    let s = old(2 | 1 << 20 | 1 << 24);
    assert!(!s.timestamp && !s.wait_for_idle);
    assert_eq!(old(4).action, SemaphoreAction::AcquireGreaterEqual);
    assert_eq!(old(0x10 | 6 << 27).reduction, Some("inc"));
}

#[test]
fn semaphores_of_compute_3d_and_video() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0);
        let address = [
            ("SET_REPORT_SEMAPHORE_PAYLOAD_LOWER", 1),
            ("SET_REPORT_SEMAPHORE_PAYLOAD_UPPER", 2),
            ("SET_REPORT_SEMAPHORE_ADDRESS_LOWER", 0x10),
            ("SET_REPORT_SEMAPHORE_ADDRESS_UPPER", 5),
        ];
        named(p, 1, 0xcbc0, &address);
        named(
            p,
            1,
            0xcbc0,
            &[
                ("REPORT_SEMAPHORE_EXECUTE", 1 << 12 | 2 << 3),
                ("REPORT_SEMAPHORE_EXECUTE", 1 << 3 | 1),
                ("REPORT_SEMAPHORE_EXECUTE", 1 << 3 | 1 << 6 | 3 << 7),
            ],
        );
        p.bind(0, 0xcb97);
        named(
            p,
            0,
            0xcb97,
            &[
                ("SET_REPORT_SEMAPHORE_C", 4),
                ("SET_REPORT_SEMAPHORE_D", 1 | 1 << 16),
                ("SET_REPORT_SEMAPHORE_D", 2),
            ],
        );
        p.bind(5, 0xc9d1);
        named(
            p,
            5,
            0xc9d1,
            &[
                ("SEMAPHORE_A", 1),
                ("SEMAPHORE_B", 0x20),
                ("SEMAPHORE_C", 6),
                ("SEMAPHORE_D", 0),
            ],
        );
    });
    let told: Vec<_> = b
        .told()
        .into_iter()
        .map(|o| match o {
            Operation::Semaphore(s) => (
                s.action,
                s.address,
                s.payload,
                s.wide,
                s.timestamp,
                s.reduction,
            ),
            o => panic!("{o:?}"),
        })
        .collect();
    use SemaphoreAction::*;
    let expected = [
        (Release, 0x5_0000_0010, 0x2_0000_0001, true, false, None),
        (AcquireEqual, 0x5_0000_0010, 1, false, false, None),
        (Reduction, 0x5_0000_0010, 1, false, false, Some("inc")),
        (AcquireGreaterEqual, 0, 4, false, false, None),
        (Other(2), 0, 4, false, false, None),
        (Release, 0x1_0000_0020, 6, false, false, None),
    ];
    assert_eq!(told[..], expected);
}

#[test]
fn memory_operations_and_host_operations() {
    let told = |class: u32, list: &[(&str, u32)]| {
        let mut b = Bench::new().channel(class, 1);
        b.words(|p| named(p, 0, class, list));
        b.told()
            .into_iter()
            .map(|o| match o {
                Operation::Barrier(b) => (b.what, b.address),
                Operation::Host(h) => (h.what, None),
                o => panic!("{o:?}"),
            })
            .collect::<Vec<_>>()
    };
    let late = [
        ("MEM_OP_A", 0x1234_5000 | 1 << 11),
        ("MEM_OP_B", 7),
        ("MEM_OP_C", 0),
        ("MEM_OP_D", 0x0a << 27),
        ("MEM_OP_D", 0x05 << 27),
        ("MEM_OP_C", 1),
        ("MEM_OP_D", 0x05 << 27),
        ("MEM_OP_D", 0x09 << 27),
        ("MEM_OP_D", 0x1f << 27),
        ("WFI", 0),
        ("FB_FLUSH", 0),
        ("YIELD", 3),
        ("NON_STALL_INTERRUPT", 0),
        ("SET_REFERENCE", 1),
        ("CLEAR_FAULTED", 1),
    ];
    let expected = [
        ("tlb_invalidate_targeted", Some(0x7_1234_5000)),
        ("membar_sys", None),
        ("membar", None),
        ("tlb_invalidate", None),
        ("mem_op", None),
        ("wfi", None),
        ("fb_flush", None),
        ("yield", None),
        ("non_stall_interrupt", None),
        ("set_reference", None),
        ("clear_faulted", None),
    ];
    assert_eq!(told(0xc86f, &late), expected);
    // Kepler: MEM_OP_B sets it off.
    assert_eq!(
        told(
            0xa16f,
            &[
                ("MEM_OP_A", 0),
                ("MEM_OP_B", 0x10 << 27),
                ("MEM_OP_B", 5 << 27)
            ]
        ),
        [("l2_flush_dirty", None), ("sysmembar_flush", None)]
    );
    // Maxwell has both pairs; MEM_OP_D sets it off.
    assert_eq!(
        told(0xb06f, &[("MEM_OP_C", 1), ("MEM_OP_D", 9 << 27)]),
        [("tlb_invalidate", None)]
    );
}

#[test]
fn graphics() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(0, 0xcb97).bind(3, 0x902d);
        let list = [
            ("BEGIN", 4),
            ("DRAW_VERTEX_ARRAY", 36),
            ("DRAW_INDEX_BUFFER", 12),
            ("DRAW_INDEX_BUFFER_BEGIN_END_A", 3),
            ("DRAW_INDEX_BUFFER_BEGIN_END_B", 99),
            ("DRAW_VERTEX_ARRAY_BEGIN_END_INSTANCE_FIRST", 7 << 16 | 5),
            ("CLEAR_SURFACE", 0x3c),
            ("DRAW_AUTO", 64),
            ("SET_DRAW_CONTROL_A", 1),
        ];
        named(p, 0, 0xcb97, &list);
        named(
            p,
            3,
            0x902d,
            &[
                ("PIXELS_FROM_MEMORY_SRC_Y0_INT", 1),
                ("RENDER_SOLID_PRIM_POINT_Y", 2),
            ],
        );
    });
    let told = b.told();
    let told: Vec<_> = told
        .iter()
        .map(|o| match o {
            Operation::Draw(Draw { what, count, .. }) => (*what, *count),
            o => panic!("{o:?}"),
        })
        .collect();
    let expected = [
        ("draw", Some(36)),
        ("draw_indexed", Some(12)),
        ("draw_indexed", Some(99)),
        ("draw", Some(7)),
        ("clear", None),
        ("draw_auto", None),
        ("blit", None),
        ("solid", None),
    ];
    assert_eq!(told[..], expected);
    // Constants written in place: one operation a run, at a running offset.
    b.words(|p| {
        named(
            p,
            0,
            0xcb97,
            &[
                ("SET_CONSTANT_BUFFER_SELECTOR_A", 256),
                ("SET_CONSTANT_BUFFER_SELECTOR_B", 1),
                ("SET_CONSTANT_BUFFER_SELECTOR_C", 0x1000),
                ("LOAD_CONSTANT_BUFFER_OFFSET", 16),
            ],
        );
        p.named(0, 0xcb97, "LOAD_CONSTANT_BUFFER", &[1, 2, 3])
            .expect("named");
        let address = b_address(0xcb97, "LOAD_CONSTANT_BUFFER");
        p.method(Step::Same, 0, address, &[4, 5]);
    });
    let told = b.told();
    let told: Vec<_> = told
        .iter()
        .map(|o| match o {
            Operation::Inline(i) => (i.dst, i.bytes, i.content),
            o => panic!("{o:?}"),
        })
        .collect();
    let bank = Some(InlineContent::ConstantBank);
    assert_eq!(told, [(0x1_0000_1010, 12, bank), (0x1_0000_101c, 8, bank)]);
    let mut memory = [0; 20];
    assert!(b.decoder.shadow().read(100, 0x1_0000_1010, &mut memory));
    assert_eq!(
        memory
            .map(u32::from)
            .iter()
            .step_by(4)
            .copied()
            .collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
}

fn b_address(class: u32, name: &str) -> u16 {
    let class = nvcap::decode::classes::class(class).expect("there");
    class
        .methods()
        .find(|m| m.name() == name)
        .expect("named")
        .base()
}

#[test]
fn video() {
    let expected = [
        (0xc9b0, "decode"),
        (0xc9b7, "encode"),
        (0xc9d1, "jpeg"),
        (0xb8fa, "flow"),
        (0xcba2, "sec2"),
    ];
    for (class, what) in expected {
        let mut b = Bench::new();
        b.words(|p| {
            p.bind(4, class)
                .named(4, class, "EXECUTE", &[0x100])
                .expect("named");
        });
        let Operation::Video(video) = b.one() else {
            panic!()
        };
        assert_eq!((video.what, video.class, video.data), (what, class, 0x100));
    }
}

#[test]
fn subchannels_without_a_bind() {
    // Compute and copy on a graphics channel of Hopper: by the host class.
    let class = |b: &mut Bench, subchannel| {
        b.words(|p| {
            p.method(Step::Immediate, subchannel, 0x110, &[0]);
        });
        b.writes.last().expect("one").class
    };
    let mut b = Bench::new().channel(0xc86f, 1);
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(|s| class(&mut b, s)),
        [0xcb97, 0xcbc0, 0xa140, 0x902d, 0xc8b5, 0]
    );
    // A copy engine knows one class.
    let mut b = Bench::new().channel(0xc86f, 0x9);
    assert_eq!([0, 4].map(|s| class(&mut b, s)), [0xc8b5, 0xc8b5]);
    // Hopper takes older channels (Vulkan's are c56f): a class bound elsewhere on the GPU tells the chip.
    let mut b = Bench::new().channel(0xc56f, 1);
    assert_eq!(class(&mut b, 1), 0xc6c0);
    b.words(|p| {
        p.bind(0, 0xcb97);
    });
    assert_eq!(class(&mut b, 1), 0xcbc0);
    // And so does the caller.
    let mut b = Bench::new().channel(0xc56f, 1);
    b.decoder
        .chip(Some(0), Chip::named("AD102").expect("known"));
    assert_eq!(class(&mut b, 1), 0xc9c0);
    b.decoder.engine(ChannelId(0), Engine::Nvdec(0));
    assert_eq!(class(&mut b, 4), 0xc9b0);
    // Nothing is known: the write is told, with no class, and counted.
    let mut b = Bench::new();
    assert_eq!(class(&mut b, 1), 0);
    assert_eq!(b.decoder.counts().classless, 1);
    assert_eq!(b.writes[0].id().to_string(), "0x0110");
}

#[test]
fn directions() {
    struct Map;
    impl Places for Map {
        fn place(&self, pid: u32, va: GpuVa) -> Option<Place> {
            assert_eq!(pid, 100);
            match va.0 >> 32 {
                1 => Some(Place::Host),
                2 => Some(Place::Device),
                3 => Some(Place::Peer),
                _ => None,
            }
        }
    }
    let direction = |src: u64, dst: u64, token: u32| {
        let mut b = Bench::new();
        b.token = token;
        b.places = Box::new(Map);
        b.words(|p| {
            p.bind(4, 0xc8b5)
                .copy(4, 0xc8b5, src << 32, dst << 32, 64)
                .expect("copies");
        });
        match b.one() {
            Operation::Copy(c) => c.direction.zip(c.direction_from),
            o => panic!("{o:?}"),
        }
    };
    use {Direction::*, Evidence::*};
    assert_eq!(direction(1, 2, 0x30016), Some((HostToDevice, Mappings)));
    assert_eq!(direction(2, 1, 0x10012), Some((DeviceToHost, Mappings)));
    assert_eq!(direction(2, 2, 0x10012), Some((DeviceToDevice, Mappings)));
    assert_eq!(direction(1, 1, 0), Some((HostToHost, Mappings)));
    assert_eq!(direction(2, 3, 0), Some((PeerToPeer, Mappings)));
    assert_eq!(direction(9, 2, 0x10012), Some((HostToDevice, Habit)));
    assert_eq!(direction(9, 9, 0x30016), Some((DeviceToHost, Habit)));
    assert_eq!(direction(9, 9, 0xa001a), None);
}

#[test]
fn copies_are_followed_through_the_shadow() {
    let qmd = Qmd::of(&View {
        version: (4, 0),
        grid: [5, 1, 1],
        block: [64, 1, 1],
        shared_bytes: 1024,
        ..View::default()
    });
    let qmd = qmd.expect("a layout");
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0).bind(4, 0xc8b5);
        p.inline(1, 0xcbc0, 0x10_0000, qmd.bytes()).expect("inline");
        p.copy(4, 0xc8b5, 0x10_0000, 0x20_0000, 384)
            .expect("copies");
        p.pcas(1, 0xcbc0, 0x20_0000).expect("launches");
        // Something unknown is copied over it.
        p.copy(4, 0xc8b5, 0x90_0000, 0x20_0100, 384)
            .expect("copies");
        p.pcas(1, 0xcbc0, 0x20_0000).expect("launches");
    });
    let told = b.told();
    let launches: Vec<_> = told
        .iter()
        .filter_map(|o| {
            if let Operation::Launch(l) = o {
                Some(l.grid)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(launches, [Some([5, 1, 1]), None]);
}

#[test]
fn the_memset_macro() {
    let mut b = Bench::new();
    let form = |p: &mut Pushbuffer, count: u32| {
        p.named(1, 0xcbc0, "LINE_LENGTH_IN", &[10, 1])
            .expect("named");
        p.named(1, 0xcbc0, "OFFSET_OUT_UPPER", &[0, 0x4000])
            .expect("named");
        p.named(1, 0xcbc0, "LAUNCH_DMA", &[0x41]).expect("named");
        p.named(1, 0xcbc0, "CALL_MME_MACRO", &[count, 0x1111_1111])
            .expect("named");
        p.release(1, 0xcbc0, 0x2000, 1).expect("a semaphore");
    };
    b.words(|p| {
        p.bind(1, 0xcbc0);
        form(p, 3);
    });
    let told = b.told();
    let [Operation::Inline(inline), Operation::Semaphore(_)] = &told[..] else {
        panic!("{told:#?}")
    };
    assert_eq!(
        (inline.bytes, inline.content),
        (10, Some(InlineContent::Data))
    );
    assert_eq!(inline.head, [0x11; 10]);
    // Another count is another macro: no data is made up.
    b.words(|p| form(p, 4));
    assert!(matches!(&b.told()[..], [Operation::Semaphore(_)]));
}

#[test]
fn memory_stays_within_its_bound() {
    let mut b = Bench::with(Options {
        shadow_bytes: 64 * nvcap::decode::shadow::PAGE_COST,
        ..Options::default()
    });
    b.words(|p| {
        p.bind(1, 0xcbc0);
    });
    for i in 0..200u64 {
        b.words(|p| {
            p.inline(1, 0xcbc0, i << 12, &[1; 4096]).expect("inline");
        });
    }
    assert_eq!(b.decoder.shadow_pages(), (64, 136));
}
