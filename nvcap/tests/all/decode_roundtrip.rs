//! Tests that the decoder reads back what the encoder forms, and takes what is cut, damaged or random without a panic.

use nvcap_decode::decode::event::{ConstantBank, QmdRelease};
use nvcap_decode::{
    decode::{
        DecodeOptions, Decoder,
        defaults::Chip,
        encode::{Pushbuffer, Qmd},
        event::{Body, LaunchHow, LaunchKind, MethodWrite, Operation, Stop},
        qmd,
        view::{Dependent, DependentAction, View},
    },
    record::{At, ChannelId, How, Segment, Submission},
    wire::{
        GpuVa, Hole,
        entry::{self, EntryKind},
        header::{Header, Step},
        stream::{Item, StopReason, Stream},
    },
};
use proptest::prelude::*;

fn submission(position: u64, segments: Vec<Segment>) -> Submission {
    Submission {
        absent_ns: None,
        at: At {
            time_ns: 1,
            pid: 2,
            tid: 3,
        },
        channel: ChannelId(4),
        token: Some(0xa),
        position,
        gp_get: None,
        prev_put: 0,
        gp_put: 0,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: false,
        thread: None,
        segments,
    }
}

/// Cuts bytes into segments that end where `cuts` (in words) say.
fn segments(bytes: &[u8], cuts: &[usize]) -> Vec<Segment> {
    let mut ends: Vec<usize> = cuts.iter().map(|c| c * 4 % (bytes.len() + 4)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut begin = 0;
    let mut all = Vec::new();
    for end in ends.into_iter().map(|e| e.min(bytes.len())) {
        if end > begin {
            let part = bytes[begin..end].to_vec();
            let entry = entry::segment(GpuVa(0x2_0000_0000), part.len() as u32, false, true, false);
            all.push(Segment {
                entry,
                bytes: part,
                holes: Vec::new(),
            });
            begin = end;
        }
    }
    all
}

#[derive(Debug, Default, PartialEq)]
struct Told {
    methods: Vec<(u8, u16, u32)>,
    operations: Vec<Operation>,
    stops: Vec<Stop>,
    writes: Vec<MethodWrite>,
}

fn decode(decoder: &mut Decoder, submissions: &[Submission]) -> Told {
    let mut told = Told::default();
    for s in submissions {
        let context = decoder.context(s, 0);
        decoder.submission(s, &context, &(), &mut |e| match e.body {
            Body::Method(w) => {
                told.methods.push((w.subchannel, w.method, w.data));
                told.writes.push(w);
            }
            Body::Operation(o) => told.operations.push(o.clone()),
            Body::Stop(s) => told.stops.push(s),
            _ => {}
        });
    }
    told
}

/// Makes a decoder whose classes do not depend on what there is to see of the stream.
fn decoder_of_a_chip() -> Decoder {
    Decoder::new(DecodeOptions {
        chip: Chip::named("GH100"),
        ..DecodeOptions::default()
    })
}

fn decode_bytes(bytes: &[u8], cuts: &[usize]) -> Told {
    decode(
        &mut Decoder::new(DecodeOptions::default()),
        &[submission(0, segments(bytes, cuts))],
    )
}

#[derive(Clone, Debug)]
struct Run {
    form: u8,
    subchannel: u8,
    address: u16,
    data: Vec<u32>,
}

fn run() -> impl Strategy<Value = Run> {
    let data = prop::collection::vec(any::<u32>(), 1..40);
    // Of the addresses, those below 0x100 (binds among them) and those of a class.
    (0u8..6, 0u8..8, prop_oneof![0u16..0x40, 0u16..0x1000], data).prop_map(
        |(form, subchannel, slot, data)| Run {
            form,
            subchannel,
            // What all forms can hold without running over the end of the address space.
            address: (slot * 4).min(0x1f00),
            data,
        },
    )
}

/// Forms a run and says what writes it must give.
fn form(p: &mut Pushbuffer, run: &Run) -> Vec<(u8, u16, u32)> {
    let address = |i: usize, step: usize| run.address + 4 * (i.min(step) as u16);
    let writes = |step: usize| {
        let write = |(i, data): (usize, &u32)| (run.subchannel, address(i, step), *data);
        run.data.iter().enumerate().map(write).collect::<Vec<_>>()
    };
    match run.form {
        0 => {
            p.method(Step::Increment, run.subchannel, run.address, &run.data);
            writes(usize::MAX)
        }
        1 => {
            p.method(Step::Same, run.subchannel, run.address, &run.data);
            writes(0)
        }
        2 => {
            p.method(Step::Once, run.subchannel, run.address, &run.data);
            writes(1)
        }
        3 => {
            let data = run.data[0] & 0x1fff;
            p.method(Step::Immediate, run.subchannel, run.address, &[data]);
            vec![(run.subchannel, run.address, data)]
        }
        4 => {
            p.old(true, run.subchannel, run.address, &run.data);
            writes(usize::MAX)
        }
        _ => {
            p.old(false, run.subchannel, run.address, &run.data);
            writes(0)
        }
    }
}

fn view() -> impl Strategy<Value = View> {
    let version = prop_oneof![Just((4u8, 0u8)), Just((4, 1)), Just((5, 0))];
    let bank = (any::<u32>(), 1u32..0x1000);
    let release = (any::<u32>(), any::<u64>());
    // QMD_INCREMENT_PUT, and 7, which no header names: what is read as it is.
    let action = prop_oneof![
        Just(DependentAction::Schedule),
        Just(DependentAction::DecrementDependence),
        Just(DependentAction::Other(0)),
        Just(DependentAction::Other(7)),
    ];
    let side = 1u32..=63;
    let cluster = prop::option::of([side.clone(), side.clone(), side]);
    // DEPENDENCE_COUNTER has 16 bits in these layouts.
    let waits = (cluster, any::<u16>(), any::<bool>(), any::<bool>());
    (
        (
            version,
            any::<[u16; 3]>(),
            1u32..=32,
            1u32..=32,
            0u32..=255,
            0u32..=16,
        ),
        (0u32..=228, 0u32..=0xff0, any::<u32>()),
        prop::collection::vec(bank, 0..8),
        prop::collection::vec(release, 0..3),
        prop::collection::vec((any::<u32>(), action), 0..=2),
        waits,
    )
        .prop_map(|(a, b, banks, releases, dependents, waits)| {
            let (version, grid, x, y, registers, barriers) = a;
            let (shared, local, program) = b;
            let (cluster, dependence, requires_pcas, null) = waits;
            // An empty grid has no clusters.
            let cluster = cluster.filter(|_| !null);
            let each = cluster.unwrap_or([1; 3]);
            View {
                version,
                null,
                // What is drawn is what the layout counts: clusters.
                grid: std::array::from_fn(|i| u32::from(grid[i]) * each[i]),
                cluster,
                dependence: dependence.into(),
                requires_pcas,
                block: [x, y, 1],
                registers,
                barriers,
                shared_bytes: shared * 1024,
                local_bytes: local & !15,
                program: GpuVa(u64::from(program) << 8),
                constant_banks: banks
                    .iter()
                    .enumerate()
                    .map(|(i, &(address, size))| ConstantBank {
                        index: i as u32,
                        address: GpuVa(u64::from(address) << 8),
                        size: size << 4,
                    })
                    .collect(),
                releases: releases
                    .iter()
                    .map(|&(address, payload)| QmdRelease {
                        address: GpuVa(u64::from(address) << 4),
                        payload,
                    })
                    .collect(),
                dependents: dependents
                    .iter()
                    .map(|&(d, action)| Dependent {
                        address: GpuVa(u64::from(d) << 8),
                        action,
                    })
                    .collect(),
                ..View::default()
            }
        })
}

fn class_of(version: (u8, u8)) -> u32 {
    if version.0 == 4 && version.1 == 0 {
        0xcbc0
    } else {
        0xcdc0
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn entries(address in 0u64..1 << 40, dwords in 1u32..1 << 21, c: bool, l: bool, s: bool, operand: u32, opcode: u8) {
        let raw = entry::segment(GpuVa(address), dwords * 4, c, l, s);
        let expected = EntryKind::Segment {
            address: GpuVa(address & !3), len: dwords * 4, conditional: c, subroutine: l, sync: s,
        };
        prop_assert_eq!(entry::read(raw, 0), expected);
        let raw = entry::control(entry::Opcode(opcode), operand, s);
        prop_assert_eq!(entry::read(raw, 0), EntryKind::Control { opcode, operand, sync: s });
    }

    #[test]
    fn headers(word: u32) {
        // Whatever a word is read as is formed again: to the same reading, and a new form to the same word.
        let read = Header::read(word);
        if let Some(formed) = read.word() {
            prop_assert_eq!(Header::read(formed), read);
            let new_form = matches!(word >> 29, 1 | 3 | 4 | 5);
            if new_form && read != Header::Nop {
                // Bit 12 has no meaning in the new forms.
                prop_assert_eq!(formed, word & !(1 << 12));
            }
        }
    }

    #[test]
    fn runs(list in prop::collection::vec(run(), 0..20), cuts in prop::collection::vec(0usize..4000, 0..6)) {
        let mut p = Pushbuffer::new();
        let mut expected = Vec::new();
        for run in &list {
            expected.extend(form(&mut p, run));
        }
        let told = decode_bytes(&p.bytes(), &cuts);
        prop_assert_eq!(&told.methods, &expected);
        prop_assert!(told.stops.is_empty(), "{:?}", told.stops);
        // Where entries end changes nothing: neither what is written nor what it comes to.
        let whole = decode_bytes(&p.bytes(), &[]);
        prop_assert_eq!(&whole.methods, &expected);
        // But for what it says of itself: inline data is judged, and what was named by PCAS runs, at the end of an entry.
        let of_an_entry = |o: &Operation| match o {
            Operation::Inline(_) | Operation::Graph(_) => true,
            Operation::Launch(l) => l.pcas.is_some() || l.how == LaunchHow::Dependent,
            _ => false,
        };
        let different = |o: &Operation| !of_an_entry(o);
        let (a, b): (Vec<_>, Vec<_>) =
            (told.operations.into_iter().filter(different).collect(), whole.operations.into_iter().filter(different).collect());
        prop_assert_eq!(a, b);
    }

    #[test]
    fn a_cut_gives_what_is_whole(list in prop::collection::vec(run(), 1..10), at in 0usize..2000) {
        let mut p = Pushbuffer::new();
        for run in &list {
            form(&mut p, run);
        }
        let bytes = p.bytes();
        let at = at % bytes.len();
        let whole = decode(&mut decoder_of_a_chip(), &[submission(0, segments(&bytes, &[]))]);
        let mut cut = submission(0, segments(&bytes, &[]));
        cut.segments[0].bytes.truncate(at);
        let mut decoder = decoder_of_a_chip();
        let told = decode(&mut decoder, &[cut]);
        // Every write whose word was there, and no other.
        let there: Vec<_> = whole.writes.iter().filter(|w| w.offset as usize + 4 <= at).copied().collect();
        prop_assert_eq!(&told.writes, &there);
        let needs = (bytes.len() - at) as u32;
        prop_assert_eq!(told.stops.len(), 1);
        let stop = told.stops[0];
        prop_assert_eq!(stop.why, StopReason::Short { needs });
        prop_assert!(stop.offset as usize == at & !3);
        // The next entry is read from its start, if no method was in progress over its end.
        let mut next = Pushbuffer::new();
        next.method(Step::Increment, 4, 0x300, &[7]);
        let told = decode(&mut decoder, &[submission(1, vec![next.segment(GpuVa(0x1000))])]);
        prop_assert!(told.stops.is_empty());
        prop_assert_eq!(told.methods, vec![(4, 0x300, 7)]);
    }

    #[test]
    fn random_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        len in 0u32..800,
        holes in prop::collection::vec((0u32..700, 0u32..300), 0..4),
        bound in prop::option::of(prop_oneof![Just(0xcbc0u32), Just(0xc8b5), Just(0xcb97), Just(0x902d), Just(0x9039), Just(0xc9b0)]),
    ) {
        let holes: Vec<Hole> = holes.into_iter().map(|(offset, len)| Hole { offset, len }).collect();
        let segment = Segment { entry: entry::segment(GpuVa(0x1000), len, false, false, false), bytes, holes: holes.clone() };
        let mut decoder = Decoder::new(DecodeOptions { shadow_bytes: 1 << 16, ..DecodeOptions::default() });
        let mut first = Pushbuffer::new();
        for subchannel in 0..8 {
            if let Some(class) = bound {
                first.bind(subchannel, class);
            }
        }
        let told = decode(&mut decoder, &[submission(0, vec![first.segment(GpuVa(0x1000))]), submission(1, vec![segment])]);
        // No write is made up of bytes that could not be read.
        for write in told.writes.iter().filter(|w| bound.is_none() || w.method != 0) {
            let (from, to) = (write.offset, write.offset + 4);
            let missing = |h: &Hole| h.len > 0 && h.offset < to && from < h.offset + h.len;
            prop_assert!(bound.is_some() || !holes.iter().any(missing), "{:?}", write);
        }
    }

    #[test]
    fn random_runs_end(bytes in prop::collection::vec(any::<u8>(), 0..400), announced: u32) {
        // The low-level walk ends, and takes no byte twice.
        let mut stream = Stream::default();
        let mut last = 0;
        for item in stream.runs(&bytes, announced, &[]) {
            if let Item::Run(run) = item {
                prop_assert!(run.offset >= last);
                last = run.offset + run.data.len() as u32;
                prop_assert!(last as usize <= bytes.len());
            }
        }
    }

    #[test]
    fn qmds(view in view()) {
        let formed = Qmd::of(&view).expect("a layout that the encoder knows");
        let read = View::of(class_of(view.version), formed.bytes()).expect("a QMD");
        prop_assert_eq!(&read, &view);
    }

    #[test]
    fn every_qmd_field_by_itself(version in 0usize..13, field in any::<prop::sample::Index>(), value: u64) {
        let layout = qmd::all().nth(version).expect("13 layouts");
        let fields: Vec<_> = layout.fields().collect();
        let field = field.get(&fields);
        let mut bytes = vec![0u8; layout.bytes()];
        prop_assert!(field.set(&mut bytes, 0, 0, value));
        let width = field.high() - field.low() + 1;
        let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
        prop_assert_eq!(field.value(&bytes, 0, 0), Some(value & mask));
        let set: u32 = bytes.iter().map(|b| b.count_ones()).sum();
        prop_assert_eq!(set, (value & mask).count_ones(), "no other bit");
    }

    #[test]
    fn random_qmds(bytes in prop::collection::vec(any::<u8>(), 0..400), class in prop_oneof![Just(0u32), Just(0xa0c0), Just(0xc6c0), Just(0xcbc0), Just(0xcdc0)]) {
        if let Some(text) = nvcap_decode::decode::explain::qmd(class, &bytes) {
            prop_assert!(text.bytes <= bytes.len());
        }
        View::of(class, &bytes);
    }

    #[test]
    fn inline_writes(
        list in prop::collection::vec((0u64..1 << 40, prop::collection::vec(any::<u8>(), 1..3000)), 1..6),
        cuts in prop::collection::vec(0usize..4000, 0..6),
        class in prop_oneof![Just(0xcbc0u32), Just(0xcb97), Just(0xa140), Just(0xcd40), Just(0xa0c0)],
    ) {
        let mut p = Pushbuffer::new();
        p.bind(1, class);
        for (dst, data) in &list {
            p.inline(1, class, GpuVa(*dst), data).expect("takes inline data");
        }
        let mut decoder = Decoder::new(DecodeOptions::default());
        let told = decode(&mut decoder, &[submission(0, segments(&p.bytes(), &cuts))]);
        let inline: Vec<_> = told.operations.iter().filter_map(|o| match o {
            Operation::Inline(i) => Some((i.dst.0, i.bytes, i.head.clone())),
            _ => None,
        }).collect();
        let expected: Vec<_> = list.iter().map(|(dst, data)| (*dst, data.len() as u64, data[..data.len().min(64)].to_vec())).collect();
        prop_assert_eq!(inline, expected);
        // The last write is what memory holds.
        let (dst, data) = list.last().expect("one");
        let mut memory = vec![0; data.len()];
        prop_assert!(decoder.shadow().read(2, GpuVa(*dst), &mut memory));
        prop_assert_eq!(&memory, data);
        prop_assert_eq!(decoder.shadow().extent(2, GpuVa(*dst)).map(|e| e.len as usize), Some(data.len()));
    }

    #[test]
    fn launches_by_address(mut view in view(), args in prop::collection::vec(any::<u8>(), 1..200), at in 1u64..1 << 24) {
        const UNKNOWN: u64 = 0xff_ffff_ff00;
        view.version = (4, 0);
        view.null = false;
        view.grid = view.grid.map(|n| n.max(1));
        view.cluster = None;
        view.shared_bytes = view.shared_bytes.max(1024);
        view.constant_banks = vec![ConstantBank { index: 0, address: GpuVa(0x7f00_0000_0000), size: 0x1000 }];
        // Where nothing was written, apart from the QMD and from each other.
        for (i, d) in view.dependents.iter_mut().enumerate() {
            d.address = GpuVa(0xfe_0000_0000 + ((i as u64) << 8));
        }
        let qmd_at = at << 8;
        let formed = Qmd::of(&view).expect("a layout");
        let mut geometry = vec![0u8; 0x210];
        geometry[..4].copy_from_slice(&view.block[0].to_le_bytes());
        let mut p = Pushbuffer::new();
        p.bind(1, 0xcbc0);
        p.inline(1, 0xcbc0, GpuVa(0x7f00_0000_0000), &geometry).expect("inline");
        p.inline(1, 0xcbc0, GpuVa(0x7f00_0000_0210), &args).expect("inline");
        p.inline(1, 0xcbc0, GpuVa(qmd_at), formed.bytes()).expect("inline");
        p.pcas(1, 0xcbc0, GpuVa(qmd_at)).expect("launches");
        // A QMD where nothing was written.
        p.pcas(1, 0xcbc0, GpuVa(UNKNOWN)).expect("launches");
        let mut decoder = Decoder::new(DecodeOptions::default());
        let told = decode(&mut decoder, &[submission(0, vec![p.segment(GpuVa(0x1000))])]);
        let launches: Vec<_> = told.operations.iter().filter_map(|o| match o {
            Operation::Launch(l) => Some(l),
            _ => None,
        }).collect();
        // A schedule alone runs no QMD that waits; one that runs leads to what it schedules.
        let waits = view.requires_pcas || view.dependence > 0;
        let mut expected = Vec::new();
        if !waits {
            expected.push((Some(GpuVa(qmd_at)), LaunchHow::Scheduled));
            // Whether a decrement lets go what nobody saw is not known.
            let leads = view.dependents.iter().filter(|d| d.action == DependentAction::Schedule);
            expected.extend(leads.map(|d| (Some(d.address), LaunchHow::Dependent)));
        }
        expected.push((Some(GpuVa(UNKNOWN)), LaunchHow::Scheduled));
        let found: Vec<_> = launches.iter().map(|l| (l.qmd, l.how)).collect();
        prop_assert_eq!(&found, &expected);
        prop_assert!(launches.iter().filter(|l| l.qmd != Some(GpuVa(qmd_at))).all(|l| l.grid.is_none() && l.kind == LaunchKind::Unresolved));
        if waits {
            return Ok(());
        }
        let launch = launches[0];
        prop_assert_eq!((launch.grid, launch.block), (Some(view.grid), Some(view.block)));
        prop_assert_eq!(launch.args.as_deref(), Some(&args[..]));
        prop_assert_eq!((launch.program, launch.registers), (Some(view.program), Some(view.registers)));
        prop_assert_eq!((launch.shared_bytes, launch.shared_reserved_bytes), (Some(view.shared_bytes - 1024), Some(1024)));
    }

    #[test]
    fn clusters_are_counted_in_blocks(clusters in any::<[u16; 3]>(), cluster in prop::array::uniform3(0u32..=63), gpu in any::<[u16; 3]>(), kind in 2u64..=5) {
        let mut qmd = Qmd::new((4, 0)).expect("a layout");
        let mut set = |names: [&str; 3], values: [u64; 3]| {
            for (name, value) in names.into_iter().zip(values) {
                qmd.set(name, 0, value).expect("a field");
            }
        };
        set(["GRID_WIDTH", "GRID_HEIGHT", "GRID_DEPTH"], clusters.map(u64::from));
        set(["GPC_CGA_WIDTH", "GPC_CGA_HEIGHT", "GPC_CGA_DEPTH"], cluster.map(u64::from));
        set(["GPU_CGA_WIDTH", "GPU_CGA_HEIGHT", "GPU_CGA_DEPTH"], gpu.map(u64::from));
        qmd.set("QMD_TYPE", 0, kind).expect("a field");
        let view = View::of(0xcbc0, qmd.bytes()).expect("a QMD");
        // GRID_CTA, GRID_GPC_CGA, GRID_GPU_CGA, GRID_GPU_GPC_CGA. A side of a cluster that is not set counts once.
        let (in_clusters, cooperative) = (kind == 3 || kind == 5, kind == 4 || kind == 5);
        let side = |i: usize| {
            let each = if in_clusters { cluster[i].max(1) } else { 1 };
            let over = if cooperative { u32::from(gpu[i]).max(1) } else { 1 };
            u32::from(clusters[i]).saturating_mul(each).saturating_mul(over)
        };
        prop_assert_eq!(view.grid, [side(0), side(1), side(2)]);
        prop_assert_eq!(view.cluster, in_clusters.then_some(cluster));
        prop_assert_eq!(view.cooperative, cooperative);
    }
}
