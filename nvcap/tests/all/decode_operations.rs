//! Every kind of operation, formed by hand and read back.

use crate::decode_common::{Bench, copy, named};
use nvcap_decode::{
    decode::{
        Places,
        encode::{Pushbuffer, Qmd},
        event::{
            Direction, Draw, Evidence, InlineContent, InlineData, LaunchHow, LaunchKind, Operation,
            Place,
        },
        pcas::PcasAction,
        view::View,
    },
    wire::{GpuVa, header::Step},
};

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
            (LaunchHow::InlineQmd, Some(GpuVa(0x1_0000_1234 << 8)))
        );
        assert_eq!(
            (launch.qmd_version, launch.block),
            (Some(version), Some([32, 0, 0]))
        );
        assert_eq!(launch.grid.map(|g| g[0]), Some(9));
    }
}

/// Batched copies of libcuda (cudaMemcpyBatchAsync, CUDA 13): several inline writes in one entry, one release behind them.
#[test]
fn inline_writes_of_a_batch_are_copies() {
    const CLASS: u32 = 0xcbc0;
    let contents = |behind: fn(&mut Pushbuffer)| {
        let mut b = Bench::new();
        b.words(|p| {
            p.bind(1, CLASS);
        });
        b.words(|p| {
            for i in 1..=3u64 {
                let data = vec![1; 1000 * i as usize];
                let to = GpuVa(0x7f00_0000_0000 + 0x1_0000 * i);
                p.inline(1, CLASS, to, &data).expect("inline data");
            }
            behind(p);
        });
        let all = b.told().into_iter().filter_map(|o| match o {
            Operation::Inline(i) => Some((i.bytes, i.content)),
            _ => None,
        });
        all.collect::<Vec<_>>()
    };
    let data = Some(InlineContent::Data);
    let copies = [(1000, data), (2000, data), (3000, data)];
    assert_eq!(contents(|_| {}), copies);
    let released = contents(|p| {
        p.release(1, CLASS, GpuVa(0x2_0460_fff0), 7).expect("named");
    });
    assert_eq!(released, copies);
    // What prepares a launch, or is followed by an invalidation, is not known.
    let launched = contents(|p| {
        p.pcas(1, CLASS, GpuVa(0x2_04c0_0000)).expect("named");
    });
    let unknown = [(1000, None), (2000, None), (3000, None)];
    assert_eq!(launched, unknown);
    let invalidated = contents(|p| {
        p.named(1, CLASS, "INVALIDATE_SHADER_CACHES_NO_WFI", &[0x1000])
            .expect("named");
    });
    assert_eq!(invalidated, unknown);
}

/// The first 64 words of Hopper's QMD: what graphics drivers send of it.
fn short_qmd(grid: [u32; 3]) -> Vec<u32> {
    let view = View {
        version: (4, 0),
        grid,
        block: [64, 1, 1],
        registers: 16,
        program: GpuVa(0xde_fdfe_ba00),
        ..View::default()
    };
    let qmd = Qmd::of(&view).expect("a layout");
    let words = qmd.bytes().as_chunks::<4>().0;
    words[..64].iter().map(|w| u32::from_le_bytes(*w)).collect()
}

#[test]
fn a_qmd_of_which_64_words_are_sent() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0);
        named(p, 1, 0xcbc0, &[("SET_INLINE_QMD_ADDRESS_B", 0x4_5a00)]);
        p.named(1, 0xcbc0, "LOAD_INLINE_QMD_DATA", &short_qmd([5, 3, 1]))
            .expect("named");
    });
    let Operation::Launch(launch) = b.one() else {
        panic!()
    };
    assert_eq!(launch.how, LaunchHow::InlineQmd);
    assert_eq!(
        (launch.qmd, launch.grid),
        (Some(GpuVa(0x45a_0000)), Some([5, 3, 1]))
    );
    assert_eq!(launch.registers, Some(16));
}

#[test]
fn a_qmd_handed_to_a_macro() {
    // As Vulkan dispatches on Hopper: the macro gets its argument, two addresses and 64 words of a QMD.
    const MACRO: u16 = 0x3bc0;
    let call = |p: &mut Pushbuffer, grid, cut: Option<usize>| {
        let mut words = vec![0, 0x55d_ea08, 0x5_5deb];
        words.extend(short_qmd(grid));
        words.truncate(cut.unwrap_or(usize::MAX));
        p.method(Step::Once, 1, MACRO, &words);
    };
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0);
        call(p, [5, 3, 2], None);
        // One word less is no QMD, and the next call begins anew.
        call(p, [7, 1, 1], Some(66));
        call(p, [9, 1, 1], None);
    });
    let launches: Vec<_> = b
        .told()
        .into_iter()
        .map(|o| match o {
            Operation::Launch(l) => (l.how, l.qmd, l.grid, l.block),
            other => panic!("{other:?}"),
        })
        .collect();
    let launch = |grid| {
        (
            LaunchHow::Macro,
            Some(GpuVa(0x55d_eb00)),
            Some(grid),
            Some([64, 1, 1]),
        )
    };
    assert_eq!(launches, [launch([5, 3, 2]), launch([9, 1, 1])]);

    // Cut between two entries, as pushbuffers of graphics are.
    let mut whole = Pushbuffer::new();
    call(&mut whole, [2, 2, 2], None);
    let (first, second) = whole.words().split_at(30);
    let segments = [first, second].map(|words| {
        let mut p = Pushbuffer::new();
        for word in words {
            p.raw(*word);
        }
        p.segment(GpuVa(0x1000))
    });
    b.submit(segments.into());
    let Operation::Launch(l) = b.one() else {
        panic!()
    };
    assert_eq!(l.grid, Some([2, 2, 2]));

    // Words that are no QMD, and a class that has no QMDs, launch nothing.
    b.words(|p| {
        p.method(Step::Once, 1, MACRO, &[0x40; 140]);
        p.bind(0, 0xcb97);
        let mut words = vec![0, 1, 2];
        words.extend(short_qmd([1, 1, 1]));
        p.method(Step::Once, 0, MACRO, &words);
    });
    assert_eq!(b.told(), []);
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
            ("pcas_invalidate", Some(GpuVa(0x7700))),
            ("pcas_prefetch", Some(GpuVa(0x7700)))
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
    let [invalidate, schedule, Operation::Launch(launch)] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(
        [invalidate, schedule].map(what),
        [
            ("pcas_invalidate", Some(GpuVa(0x7700))),
            ("pcas_schedule", Some(GpuVa(0x7700)))
        ]
    );
    // Nothing was seen written there: what it launches is told when the submission is read.
    assert_eq!(
        (launch.kind, launch.qmd, launch.pcas),
        (
            LaunchKind::Unresolved,
            Some(GpuVa(0x7700)),
            Some(PcasAction::Schedule)
        )
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
        (Some(GpuVa(0x1_0000_1100)), Some(512))
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
        (GpuVa(0x9000), &[1, 2, 3, 4, 5, 6, 7, 8][..])
    );
    assert_eq!(
        (copy.src, copy.dst, copy.bytes),
        (Some(GpuVa(0x1_0000_8000)), Some(GpuVa(0x9000)), 8)
    );
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
        (c.mode.name(), c.bytes, c.lines, c.pitch),
        ("linear", 300, 1, None)
    );
    assert_eq!(
        (c.src, c.dst),
        (Some(GpuVa(0x1_0000_0100)), Some(GpuVa(0x2_0000_0200)))
    );
    let c = mode(copy(&lines, 0x382));
    assert_eq!(
        (c.mode.name(), c.bytes, c.pitch),
        ("pitch", 12_000, Some((512, -1024)))
    );
    assert_eq!(mode(copy(&lines, 0x202)).mode.name(), "block_linear");
    assert_eq!(
        mode(copy(&lines, 0x282)).mode.name(),
        "pitch_to_block_linear"
    );
    assert_eq!(
        mode(copy(&lines, 0x302)).mode.name(),
        "block_linear_to_pitch"
    );
    assert_eq!(mode(copy(&lines, 0x182 | 1 << 23)).mode.name(), "scrub");
    assert_eq!(mode(copy(&lines, 0x182 | 1 << 20)).mode.name(), "encrypt");
    assert_eq!(
        mode(copy(
            &[lines[0], ("SET_SECURE_COPY_MODE", 1)],
            0x182 | 1 << 20
        ))
        .mode
        .name(),
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
        (c.mode.name(), c.bytes, c.src, c.pattern),
        ("fill", 800, None, Some(vec![0x11, 0x22]))
    );
    // One of the components from the source: a remap.
    let remap = [
        ("LINE_LENGTH_IN", 100),
        ("SET_REMAP_COMPONENTS", 1 << 24 | 1 << 16 | 4),
    ];
    let c = mode(copy(&remap, 0x182 | 1 << 10));
    assert_eq!(
        (c.mode.name(), c.bytes, c.src.is_some()),
        ("remap", 400, true)
    );
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
    assert_eq!((c.mode.name(), c.bytes, c.dst), ("none", 0, None));
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
                c.mode.name()
            } else {
                ""
            }
        })
        .collect();
    assert_eq!(modes, ["decompress", "compress"]);
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
    assert_eq!(
        told,
        [
            (GpuVa(0x1_0000_1010), 12, bank),
            (GpuVa(0x1_0000_101c), 8, bank)
        ]
    );
    let mut memory = [0; 20];
    assert!(
        b.decoder
            .shadow()
            .read(100, GpuVa(0x1_0000_1010), &mut memory)
    );
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
    let class = nvcap_decode::decode::classes::class(class).expect("there");
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

        fn is_unmapped(&self, _: u32, va: GpuVa) -> bool {
            matches!(va.0 >> 32, 4 | 5)
        }

        fn is_reserved(&self, _: u32, va: GpuVa) -> bool {
            va.0 >> 32 == 5
        }
    }
    let direction = |src: u64, dst: u64, token: u32| {
        let mut b = Bench::new();
        b.token = token;
        b.places = Box::new(Map);
        b.words(|p| {
            p.bind(4, 0xc8b5)
                .copy(4, 0xc8b5, GpuVa(src << 32), GpuVa(dst << 32), 64)
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
    // Of an attached process the host's memory is mapped, the device's is not. What else may be there tells nothing.
    assert_eq!(direction(1, 4, 0), Some((HostToDevice, Habit)));
    assert_eq!(direction(4, 1, 0), Some((DeviceToHost, Habit)));
    assert_eq!(direction(4, 1, 0x10012), Some((DeviceToHost, Habit)));
    for (src, dst) in [(1, 9), (9, 1), (4, 4), (4, 2), (4, 9)] {
        assert_eq!(direction(src, dst, 0xa001a), None, "{src} {dst}");
    }
    // Where neither side is mapped, what is reserved for the device tells it; nothing else does but the runlist.
    assert_eq!(direction(4, 5, 0), Some((HostToDevice, Habit)));
    assert_eq!(direction(5, 4, 0), Some((DeviceToHost, Habit)));
    assert_eq!(direction(1, 5, 0), Some((HostToDevice, Habit)));
    assert_eq!(direction(5, 5, 0x10012), Some((DeviceToDevice, Habit)));
    assert_eq!(direction(2, 5, 0x30016), Some((DeviceToDevice, Habit)));
    assert_eq!(direction(4, 4, 0x10012), Some((HostToDevice, Habit)));
    // A runlist never says what a known side contradicts.
    for (src, dst, token) in [
        (2, 9, 0x10012),
        (2, 4, 0x10012),
        (9, 1, 0x10012),
        (5, 9, 0x10012),
        (1, 9, 0x30016),
        (9, 2, 0x30016),
        (4, 2, 0x30016),
        (9, 5, 0x30016),
    ] {
        assert_eq!(direction(src, dst, token), None, "{src} {dst} {token:#x}");
    }
    // Another GPU's memory is enough, whatever the other side is.
    assert_eq!(direction(3, 4, 0x10012), Some((PeerToPeer, Mappings)));
    assert_eq!(direction(9, 3, 0x30016), Some((PeerToPeer, Mappings)));
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
        p.release(1, 0xcbc0, GpuVa(0x2000), 1).expect("a semaphore");
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
    assert_eq!(
        (&inline.head[..], inline.fill),
        (&[0x11; 10][..], Some(0x1111_1111))
    );
    // Another count is another macro: no data is made up, and the write is told.
    b.words(|p| form(p, 4));
    let told = b.told();
    let [Operation::Inline(inline), Operation::Semaphore(_)] = &told[..] else {
        panic!("{told:#?}")
    };
    assert_eq!(
        (inline.bytes, inline.content, inline.data, inline.fill),
        (10, None, InlineData::Macro, None)
    );
    assert!(inline.head.is_empty());
}

#[test]
fn the_macro_that_fetches() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0);
    });
    b.told();
    let mut run = |words: u32, upper: u32| {
        b.words(|p| {
            p.named(1, 0xcbc0, "LINE_LENGTH_IN", &[63, 1])
                .expect("named");
            p.named(1, 0xcbc0, "OFFSET_OUT_UPPER", &[0, 0x4000])
                .expect("named");
            p.named(1, 0xcbc0, "LAUNCH_DMA", &[0x41]).expect("named");
            p.method(Step::Once, 1, 0x3808, &[upper, 0x73e0_0000])
                .method(Step::Same, 1, 0x380c, &[words]);
            p.release(1, 0xcbc0, GpuVa(0x2000), 1).expect("a semaphore");
        });
        let told = b.told();
        let [Operation::Inline(inline), Operation::Semaphore(_)] = &told[..] else {
            panic!("{told:#?}")
        };
        inline.clone()
    };
    // An upper half that is the number of words, too: the second macro is no memset.
    for upper in [0x7f33, 16] {
        let inline = run(16, upper);
        assert_eq!(
            (inline.bytes, inline.content, inline.data, inline.fill),
            (63, Some(InlineContent::Data), InlineData::Fetched, None)
        );
        assert_eq!(
            (inline.dst, inline.src),
            (
                GpuVa(0x4000),
                Some(GpuVa(u64::from(upper) << 32 | 0x73e0_0000))
            )
        );
        assert!(inline.head.is_empty(), "its bytes are not in the stream");
    }
    let other = run(17, 0x7f33);
    assert_eq!(
        (other.bytes, other.data, other.src),
        (63, InlineData::Macro, None)
    );
}

#[test]
fn texture_headers_are_no_copies_of_the_program() {
    let content = |pool: Option<[u32; 3]>, dst: u64, bytes: usize| {
        let mut b = Bench::new();
        b.words(|p| {
            p.bind(1, 0xcbc0);
            if let Some(pool) = pool {
                p.named(1, 0xcbc0, "SET_TEX_HEADER_POOL_A", &pool)
                    .expect("named");
            }
        });
        b.told();
        b.words(|p| {
            p.inline(1, 0xcbc0, GpuVa(dst), &vec![7; bytes])
                .expect("inline data");
        });
        match &b.told()[..] {
            [Operation::Inline(i)] => i.content,
            told => panic!("{told:#?}"),
        }
    };
    let (header, data) = (
        Some(InlineContent::TextureHeader),
        Some(InlineContent::Data),
    );
    // Where libcuda has the pool: as cudaMemcpyArrayToArray writes them on an H200.
    assert_eq!(content(None, (1 << 40) + 0x60, 32), header);
    assert_eq!(content(None, (1 << 40) + 0xa0, 64), header);
    for (dst, bytes) in [
        ((1 << 40) + 0x64, 32),
        ((1 << 40) + 0x60, 36),
        ((1 << 40) - 32, 64),
        ((1 << 40) + (64 << 20) - 32, 64),
        (0x7f91_d9e0_0000, 32),
    ] {
        assert_eq!(content(None, dst, bytes), data, "{dst:#x} {bytes}");
    }
    // Where the channel was seen to have it: 16 headers.
    let pool = Some([0x7f, 0x4000, 15]);
    assert_eq!(content(pool, 0x7f_0000_4000, 512), header);
    assert_eq!(content(pool, 0x7f_0000_4020, 512), data);
    assert_eq!(content(pool, (1 << 40) + 0x60, 32), data);
}
