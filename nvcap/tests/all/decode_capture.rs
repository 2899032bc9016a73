//! The decoder on a real capture, `tests/captures/h200-mixed.orc.xz`, and on what was cut from it into `tests/fixtures`.

use crate::common::files;
use std::collections::BTreeMap;

use crate::common::files::fixture;
use crate::decode_common::capture::decode;
use nvcap_decode::{
    decode::{
        Counts, DecodeOptions, Decoder, Wants, classes,
        event::{
            Body, ChipBy, Copy, Direction, Evidence, Graph, InlineContent, Launch, LaunchKind,
            Operation, SemaphoreAction, SemaphoreUnit,
        },
    },
    record::{Record, Submission},
    wire::entry::EntryKind,
};
use nvcap_recording::file::orc::{Channels, Orc};

/// Operations by the name of the phase they fall into.
fn by_phase(
    orc: Orc<Box<dyn std::io::Read>>,
    phases: &[(String, u64, u64)],
) -> BTreeMap<String, Vec<Operation>> {
    let mut all: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
    decode(orc, Wants::default(), |_, e| {
        let Body::Operation(operation) = e.body else {
            return;
        };
        // Of the event, not of the submission that is read: a replay is told when something else comes.
        let time = e.context.at.time_ns;
        let phase = phases
            .iter()
            .find(|p| (p.1..=p.2).contains(&time))
            .map_or("", |p| &p.0);
        all.entry(phase.to_owned())
            .or_default()
            .push(operation.clone());
    });
    all
}

fn phases() -> Option<Vec<(String, u64, u64)>> {
    let text = std::fs::read_to_string(files::capture("h200-mixed.phases")?).expect("readable");
    let phase = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (
            words[1].to_owned(),
            words[2].parse().expect("ns"),
            words[3].parse().expect("ns"),
        )
    };
    Some(text.lines().map(phase).collect())
}

fn launches(operations: &[Operation]) -> Vec<&Launch> {
    let mut found = Vec::new();
    for operation in operations {
        if let Operation::Launch(launch) = operation {
            found.push(&**launch);
        }
    }
    found
}

fn copies(operations: &[Operation]) -> Vec<&Copy> {
    let mut found = Vec::new();
    for operation in operations {
        if let Operation::Copy(copy) = operation {
            found.push(&**copy);
        }
    }
    found
}

fn graphs(operations: &[Operation]) -> Vec<&Graph> {
    let mut found = Vec::new();
    for operation in operations {
        if let Operation::Graph(graph) = operation {
            found.push(&**graph);
        }
    }
    found
}

/// The only launch of the user's among these.
fn user(operations: &[Operation]) -> &Launch {
    let users: Vec<_> = launches(operations)
        .into_iter()
        .filter(|l| l.kind == LaunchKind::User)
        .collect();
    assert_eq!(users.len(), 1, "{operations:#?}");
    users[0]
}

#[test]
fn the_whole_capture_in_numbers() {
    let Some(path) = files::capture("h200-mixed.orc.xz") else {
        return;
    };
    let mut entries = 0;
    let mut methods = 0;
    let mut chips = Vec::new();
    let mut writes: BTreeMap<(u32, &'static str), u64> = BTreeMap::new();
    let mut operations: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let decoder = decode(
        Orc::open(&path).expect("opens"),
        Wants::default(),
        |_, e| match e.body {
            Body::Submission(_) => *operations.entry("submission").or_default() += 1,
            Body::Entry(head) => {
                entries += 1;
                assert!(matches!(head.kind, EntryKind::Segment { .. }));
            }
            Body::Method(write) => {
                methods += 1;
                // No unknown method, and no bit that is set outside of a named field.
                let method = classes::method(write.class, write.method)
                    .unwrap_or_else(|| panic!("{write:x?} has no name"));
                let named = method.fields().fold(0, |bits, f| bits | f.encode(u32::MAX));
                assert_eq!(
                    write.data & !named,
                    0,
                    "{write:x?} of {method:?} has bits without a field"
                );
                *writes.entry((write.class, method.name())).or_default() += 1;
            }
            Body::Operation(operation) => {
                let name = match operation {
                    Operation::Launch(l) => {
                        *kinds.entry(format!("{:?}", l.kind)).or_default() += 1;
                        assert_eq!(l.qmd_version, Some((4, 0)));
                        "launch"
                    }
                    Operation::Copy(_) => "copy",
                    Operation::Inline(i) => {
                        *kinds.entry(format!("{:?}", i.content)).or_default() += 1;
                        "inline"
                    }
                    Operation::Semaphore(s) => match s.unit {
                        SemaphoreUnit::Host => "host semaphore",
                        SemaphoreUnit::Engine => "engine semaphore",
                        SemaphoreUnit::Copy => "copy semaphore",
                    },
                    Operation::Graph(g) => {
                        assert_eq!((g.unresolved, g.kernels), (0, g.nodes), "{g:?}");
                        "graph"
                    }
                    Operation::Barrier(b) if b.what.starts_with("pcas_") => "pcas",
                    Operation::Barrier(_) => "barrier",
                    Operation::Bind(_) => "bind",
                    other => panic!("{other:?} in a capture of CUDA"),
                };
                *operations.entry(name).or_default() += 1;
            }
            Body::Chip(chip) => chips.push((chip.chip, chip.by)),
            _ => panic!("{e:?}"),
        },
    );
    // Its first submission binds HOPPER_COMPUTE_A and the others.
    assert_eq!(chips, [("GH100", ChipBy::Bound)]);
    assert_eq!(methods, 749_608);
    assert_eq!(entries, 600);
    let counts = decoder.counts();
    let expected = Counts {
        submissions: 600,
        entries: 600,
        bytes: 3_149_368,
        methods: 749_608,
        runs: 37_734,
        // 26 memsets and copies of the driver's, 234 kernels launched one by one (a graph of one kernel, uploaded with
        // its first launch, among them), and two replays each of chains of 1, 2, 4 ... 1024 kernels, and one more of
        // that graph.
        launches: 26 + 234 + 4_095,
        kernels: 234 + 4_095,
        nodes: 4_095,
        graphs: 23,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
    assert_eq!(writes[&(0xc8b5, "LAUNCH_DMA")], 354);
    assert_eq!(writes[&(0xcbc0, "SEND_SIGNALING_PCAS2_B")], 2_833);
    assert_eq!(writes[&(0xcbc0, "LAUNCH_DMA")], 7_433);
    // The decoder counts the same without being asked for methods.
    for (class, address, n) in decoder.method_counts() {
        let name = classes::method(class, address).expect("named").name();
        let seen = writes.get_mut(&(class, name)).expect("seen");
        *seen -= n;
    }
    assert!(writes.values().all(|n| *n == 0));
    let expected: BTreeMap<&str, u64> = [
        ("submission", 600),
        // Those, and what launches nothing: 259 companions behind launches and 18 empty grids that begin a graph.
        ("launch", 26 + 234 + 4_095 + 259 + 18),
        ("graph", 23),
        // Of 2,833 PCAS, 519 are launches and companions at once.
        ("pcas", 2_833 - 26 - 234 - 259),
        ("inline", 7_433),
        // 354 LAUNCH_DMA of the copy class: 171 transfers and 183 semaphores.
        ("copy", 171),
        ("copy semaphore", 183),
        ("engine semaphore", 418),
        ("host semaphore", 1),
        ("barrier", 62),
        ("bind", 28),
    ]
    .into();
    assert_eq!(operations, expected);
    let expected: BTreeMap<String, u64> = [
        // All are resolved: no Unresolved here.
        ("User", 4_329),
        ("Companion", 277),
        ("DriverMemset", 11),
        ("DriverCopy", 15),
        ("Some(Code)", 19),
        ("Some(ConstantBank)", 4_513),
        ("Some(Data)", 41),
        ("Some(Qmd)", 2_575),
        ("Some(Semaphore)", 283),
        ("None", 2),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into();
    assert_eq!(kinds, expected);
}

#[test]
fn every_phase_reads_as_what_it_did() {
    let (Some(path), Some(phases)) = (files::capture("h200-mixed.orc.xz"), phases()) else {
        return;
    };
    let all = by_phase(Orc::open(&path).expect("opens"), &phases);
    for (name, begin, end) in &phases {
        assert!(begin <= end);
        let operations = all.get(name).map_or(&[][..], |o| o);
        check_phase(name, operations);
    }
    // A wait of one channel for what another released: before the phases.
    let waits = all[""].iter().filter_map(|o| match o {
        Operation::Semaphore(s) if s.unit == SemaphoreUnit::Host => Some(s),
        _ => None,
    });
    let waits: Vec<_> = waits.collect();
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].action, SemaphoreAction::AcquireGreaterEqual);
    let released = |o: &Operation| matches!(o, Operation::Semaphore(s) if s.unit == SemaphoreUnit::Copy && (s.address, s.payload) == (waits[0].address, waits[0].payload));
    assert!(
        all[""].iter().any(released),
        "what is waited for was released"
    );
    assert_eq!(
        launches(&all["empty_x100"])
            .iter()
            .filter(|l| l.kind == LaunchKind::User)
            .count(),
        100
    );
    assert_eq!(
        launches(&all["streams_12x4"])
            .iter()
            .filter(|l| l.kind == LaunchKind::User)
            .count(),
        48
    );
    assert_eq!(
        launches(&all["threads_4x20"])
            .iter()
            .filter(|l| l.kind == LaunchKind::User)
            .count(),
        80
    );
}

/// Checks that the operations of a phase are those that its name says.
fn check_phase(name: &str, operations: &[Operation]) {
    let size = name
        .rsplit('_')
        .next()
        .and_then(|n| n.parse::<u64>().ok())
        .unwrap_or(0);
    let copied = |way| {
        copies(operations)
            .iter()
            .filter(|c| c.direction == Some(way))
            .map(|c| c.bytes)
            .sum::<u64>()
    };
    let data = || {
        let inline = |o: &Operation| match o {
            Operation::Inline(i) if i.content == Some(InlineContent::Data) => i.bytes,
            _ => 0,
        };
        operations.iter().map(inline).sum::<u64>()
    };
    let kind = |kind| {
        launches(operations)
            .into_iter()
            .filter(|l| l.kind == kind)
            .count()
    };
    if name.starts_with("h2d") {
        let limit = if name.starts_with("h2d_pageable") {
            65_536
        } else {
            24_576
        };
        let (inline, copy) = if size <= limit { (size, 0) } else { (0, size) };
        assert_eq!(
            (data(), copied(Direction::HostToDevice)),
            (inline, copy),
            "{name}"
        );
    } else if name.starts_with("d2h") {
        assert_eq!(
            (data(), copied(Direction::DeviceToHost)),
            (0, size),
            "{name}"
        );
    } else if name.starts_with("d2d") {
        assert_eq!(
            (kind(LaunchKind::DriverCopy), kind(LaunchKind::User)),
            (1, 0),
            "{name}"
        );
    } else if name.starts_with("memset_") {
        let inline = if size <= 4096 { (size, 0) } else { (0, 1) };
        assert_eq!((data(), kind(LaunchKind::DriverMemset)), inline, "{name}");
        assert_eq!(kind(LaunchKind::User), 0, "{name}");
    } else if name == "memset2d" {
        assert_eq!(
            (kind(LaunchKind::DriverMemset), kind(LaunchKind::User)),
            (1, 0)
        );
    } else if name == "memcpy2d" {
        let [copy] = copies(operations)[..] else {
            panic!("{operations:#?}")
        };
        assert_eq!(
            (copy.mode.name(), copy.line_bytes, copy.lines, copy.bytes),
            ("pitch", 300, 40, 12_000)
        );
        assert_eq!(copy.pitch, Some((512, 1024)));
    } else if name == "vadd_4096x256" {
        check_vadd(operations);
    } else if name == "grid_7_5_3_block_32_4_2" {
        let launch = user(operations);
        assert_eq!(
            (launch.grid, launch.block),
            (Some([7, 5, 3]), Some([32, 4, 2]))
        );
        assert_eq!(launch.args.as_ref().map(Vec::len), Some(8));
    } else if name == "shmem_48k" {
        let launch = user(operations);
        assert_eq!(
            (launch.grid, launch.block),
            (Some([2, 1, 1]), Some([1024, 1, 1]))
        );
        assert_eq!(
            (launch.shared_bytes, launch.shared_reserved_bytes),
            (Some(48 * 1024), Some(1024))
        );
    } else if name == "empty_1" {
        let launch = user(operations);
        assert_eq!(
            (launch.args.clone(), launch.program_bytes),
            (None, Some(384))
        );
    } else if name == "event_record_wait" {
        // The event's release, then each stream's own; the event was complete when it was to be waited for.
        let release = |o: &&Operation| matches!(o, Operation::Semaphore(s) if s.action == SemaphoreAction::Release);
        assert_eq!(operations.iter().filter(release).count(), 3);
        user(operations);
    } else if name.starts_with("graph_upload") || name.starts_with("graph_inst") {
        // QMDs are written and made ready; nothing runs.
        assert_eq!(launches(operations), Vec::<&Launch>::new(), "{name}");
        assert_eq!(graphs(operations), Vec::<&Graph>::new(), "{name}");
    } else if name.starts_with("graph_first") || name.starts_with("graph_again") {
        check_chain(name, size, operations);
    } else if name.starts_with("graph_mixed") {
        // Host to device, a kernel, a memset of 4 KiB, device to host. In the first replay the kernel's QMD is written:
        // that launch looks like any other.
        let kernel = user(operations);
        assert_eq!(
            (kernel.grid, kernel.block),
            (Some([64, 1, 1]), Some([128, 1, 1]))
        );
        assert_eq!(
            (
                copied(Direction::HostToDevice),
                copied(Direction::DeviceToHost)
            ),
            (65_536, 65_536)
        );
        assert_eq!(data(), 4096);
        let replays = usize::from(name.ends_with("again"));
        assert_eq!(
            (
                graphs(operations).len(),
                usize::from(kernel.replay.is_some())
            ),
            (replays, replays)
        );
    }
}

/// A replay of a graph of `n` kernels, each after the other: `saxpy<<<64, 128>>>(f, f, 2.f, 8192)`.
fn check_chain(name: &str, n: u64, operations: &[Operation]) {
    let kernels: Vec<_> = launches(operations)
        .into_iter()
        .filter(|l| l.kind != LaunchKind::Companion)
        .collect();
    assert_eq!(kernels.len() as u64, n, "{name}");
    let mut qmds = std::collections::BTreeSet::new();
    for (place, l) in kernels.iter().enumerate() {
        assert_eq!(
            (l.kind, l.place),
            (LaunchKind::User, Some(place as u32)),
            "{name}"
        );
        assert_eq!(
            (l.grid, l.block),
            (Some([64, 1, 1]), Some([128, 1, 1])),
            "{name}"
        );
        let args = l.args.as_deref().expect("uploaded with the graph");
        assert_eq!(args.len(), 24, "{name}");
        assert_eq!(args[..8], args[8..16]);
        assert_eq!(f32::from_le_bytes(args[16..20].try_into().expect("4")), 2.0);
        assert_eq!(u32::from_le_bytes(args[20..].try_into().expect("4")), 8192);
        assert_eq!(l.replay, kernels[0].replay);
        assert!(qmds.insert(l.qmd), "{name}: {l:?} twice");
    }
    // One of four or more begins with an empty grid.
    assert_eq!(
        launches(operations).len() - kernels.len(),
        usize::from(n >= 4),
        "{name}"
    );
    let [graph] = graphs(operations)[..] else {
        panic!("{name}: {:?}", graphs(operations))
    };
    assert_eq!((graph.nodes, graph.kernels), (n as u32, n as u32), "{name}");
    assert_eq!(
        (Some(graph.replay), graph.uploaded, graph.conditional),
        (kernels[0].replay, false, false)
    );
    assert_eq!((graph.channels.len(), graph.submissions.len()), (1, 1));
}

/// `vadd<<<4096, 256>>>(f, f + 1048576, f + 2097152, 1048576)`.
fn check_vadd(operations: &[Operation]) {
    let launch = user(operations);
    assert_eq!(
        (launch.grid, launch.block),
        (Some([4096, 1, 1]), Some([256, 1, 1]))
    );
    assert_eq!(
        (launch.registers, launch.local_bytes, launch.barriers),
        (Some(16), Some(0), Some(1))
    );
    let args = launch.args.as_deref().expect("seen");
    assert_eq!(args.len(), 28);
    let pointer = |i: usize| u64::from_le_bytes(args[i * 8..][..8].try_into().expect("8 bytes"));
    let f = pointer(0);
    assert_eq!(
        [pointer(1), pointer(2)],
        [f + 4 * 1_048_576, f + 4 * 2_097_152]
    );
    assert_eq!(
        u32::from_le_bytes(args[24..].try_into().expect("4 bytes")),
        1_048_576
    );
    // Its code was uploaded in the same phase.
    let code = operations.iter().find_map(|o| match o {
        Operation::Inline(i) if i.content == Some(InlineContent::Code) => Some((i.dst, i.bytes)),
        _ => None,
    });
    assert_eq!(code, Some((launch.program.expect("known"), 640)));
    assert_eq!(launch.program_bytes, Some(640));
    let companions = launches(operations)
        .into_iter()
        .filter(|l| l.kind == LaunchKind::Companion);
    let companions: Vec<_> = companions.map(|l| l.qmd).collect();
    assert_eq!(
        companions,
        [launch.dependent],
        "the companion is what the launch is followed by"
    );
}

#[test]
fn the_fixture() {
    let mut operations = Vec::new();
    let decoder = decode(
        Orc::open(&fixture("h200-cut.orc")).expect("opens"),
        Wants::default(),
        |_, e| match e.body {
            Body::Operation(o) => operations.push(o.clone()),
            Body::Method(w) => assert!(classes::method(w.class, w.method).is_some(), "{w:x?}"),
            Body::Stop(s) => panic!("{s:?}"),
            _ => {}
        },
    );
    assert_eq!(decoder.counts().submissions, 42);
    let launches = launches(&operations);
    let vadd = launches
        .iter()
        .find(|l| l.grid == Some([4096, 1, 1]) && l.kind == LaunchKind::User)
        .expect("vadd");
    assert_eq!(vadd.args.as_ref().map(Vec::len), Some(28));
    let grid = launches
        .iter()
        .find(|l| l.grid == Some([7, 5, 3]))
        .expect("grid3");
    assert_eq!(grid.block, Some([32, 4, 2]));
    let memsets = launches
        .iter()
        .filter(|l| l.kind == LaunchKind::DriverMemset)
        .count();
    let driver_copies = launches
        .iter()
        .filter(|l| l.kind == LaunchKind::DriverCopy)
        .count();
    assert_eq!((memsets, driver_copies), (2, 2));
    // What was launched by an address written outside of the cut stays a launch, and says that it is not resolved.
    let unresolved: Vec<_> = launches
        .iter()
        .filter(|l| l.kind == LaunchKind::Unresolved)
        .collect();
    let [unresolved] = unresolved[..] else {
        panic!("{unresolved:#?}")
    };
    assert!(unresolved.qmd.is_some() && unresolved.grid.is_none());
    let big = copies(&operations);
    let ways: Vec<_> = big
        .iter()
        .filter(|c| c.bytes == 28_672)
        .map(|c| (c.mode.name(), c.direction, c.direction_from))
        .collect();
    let habit = |way| ("linear", Some(way), Some(Evidence::Habit));
    assert_eq!(
        ways,
        [
            habit(Direction::HostToDevice),
            habit(Direction::DeviceToHost)
        ]
    );
}

#[test]
fn compressed_and_plain_are_the_same() {
    let records = |name| {
        Orc::open(&fixture(name))
            .expect("opens")
            .map(|r| r.expect("whole"))
            .collect::<Vec<Record>>()
    };
    let plain = records("h200-cut.orc");
    assert_eq!(plain.len(), 42 + 8);
    #[cfg(feature = "xz")]
    assert_eq!(plain, records("h200-cut.orc.xz"));
}

#[test]
fn wanting_less_changes_nothing_else() {
    let run = |wants| {
        let mut told = Vec::new();
        let decoder = decode(
            Orc::open(&fixture("h200-cut.orc")).expect("opens"),
            wants,
            |_, e| {
                if let Body::Operation(o) = e.body {
                    told.push(o.clone());
                }
            },
        );
        (told, decoder.counts(), decoder.method_counts())
    };
    let all = run(Wants::default());
    assert_eq!(
        run(Wants {
            entries: false,
            methods: false,
            operations: true
        }),
        all
    );
    let (none, counts, methods) = run(Wants {
        entries: false,
        methods: false,
        operations: false,
    });
    assert!(none.is_empty());
    // What runs is counted only where operations are wanted.
    assert!(all.1.launches > 0);
    let expected = Counts {
        launches: 0,
        kernels: 0,
        nodes: 0,
        unresolved: 0,
        graphs: 0,
        ..all.1
    };
    assert_eq!((counts, methods), (expected, all.2));
}

#[test]
fn channels_of_the_oracles_log() {
    let Some(path) = files::capture("h200-mixed.channels") else {
        return;
    };
    let channels = Channels::parse(&std::fs::read_to_string(path).expect("readable"));
    let Some(path) = files::capture("h200-mixed.orc.xz") else {
        return;
    };
    let orc = Orc::open(&path)
        .expect("opens")
        .with_channels(channels)
        .with_pid(479);
    let mut seen = 0;
    for record in orc {
        match record.expect("whole") {
            Record::Channel(c) => {
                assert_eq!((c.class, c.entries), (Some(0xc86f), Some(1024)));
                let ring = c.ring_gpu.expect("known").0;
                assert_eq!(c.userd.expect("known").0, ring + 0x2000);
                seen += 1;
            }
            Record::Submission(s) => assert_eq!(s.at.pid, 479),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, 20);
}

#[test]
fn ring_positions_are_contiguous() {
    let Some(path) = files::capture("h200-mixed.orc.xz") else {
        return;
    };
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    for record in Orc::open(&path).expect("opens") {
        if let Record::Submission(s) = record.expect("whole") {
            let expected = next.entry(s.channel.0).or_insert(0);
            assert_eq!(s.position, *expected);
            assert_eq!(s.position % 1024, u64::from(s.prev_put));
            *expected += s.segments.len() as u64;
        }
    }
    assert_eq!(next.len(), 20);
}

/// Doorbells that were missed come as one submission, of all their entries: what runs is the same.
#[test]
fn doorbells_caught_up_together_run_the_same() {
    let Some(path) = files::capture("h200-mixed.orc.xz") else {
        return;
    };
    let run = |most: usize| {
        let mut decoder = Decoder::new(DecodeOptions::default());
        let mut ran = Vec::new();
        let mut submit = |decoder: &mut Decoder, s: &Submission| {
            let context = decoder.context(s, 0);
            decoder.submission(s, &context, &(), &mut |e| {
                if let Body::Operation(Operation::Launch(l)) = e.body
                    && l.kind != LaunchKind::Companion
                {
                    ran.push((l.qmd, l.kind, l.grid, l.args.clone()));
                }
            });
        };
        let mut waiting: Option<Submission> = None;
        for record in Orc::open(&path).expect("opens") {
            let Record::Submission(s) = record.expect("whole") else {
                continue;
            };
            match &mut waiting {
                Some(w) if w.channel == s.channel && w.segments.len() < most => {
                    w.segments.extend(s.segments);
                }
                _ => {
                    if let Some(w) = waiting.replace(s) {
                        submit(&mut decoder, &w);
                    }
                }
            }
        }
        submit(&mut decoder, &waiting.expect("one"));
        (ran, decoder.counts().kernels)
    };
    let apart = run(1);
    assert_eq!(apart.1, 4_329);
    for most in [2, 3, 8, 64] {
        let together = run(most);
        assert_eq!(together.1, apart.1, "{most} together");
        assert_eq!(together.0, apart.0, "{most} together");
    }
}
