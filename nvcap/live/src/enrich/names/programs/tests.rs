//! Programs that are new, and what overwrites them.

use super::*;
use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::record::{At, ChannelId, How};
use nvcap_decode::wire::GpuVa;

pub(in super::super) const CLASS: u32 = 0xcbc0;

fn view(program: u64) -> View {
    View {
        version: (4, 0),
        grid: [1, 1, 1],
        block: [64, 1, 1],
        registers: 24,
        program: GpuVa(program),
        ..View::default()
    }
}

pub(in super::super) fn qmd(program: u64) -> Vec<u8> {
    Qmd::of(&view(program)).expect("a layout").bytes().to_vec()
}

/// The submission that writes these bytes inline.
pub(in super::super) fn submission(writes: &[(u64, &[u8])]) -> Submission {
    let mut p = Pushbuffer::new();
    for (at, data) in writes {
        p.inline(1, CLASS, GpuVa(*at), data).expect("inline data");
    }
    Submission {
        absent_ns: None,
        at: At::default(),
        channel: ChannelId(0),
        token: None,
        position: 0,
        gp_get: None,
        prev_put: 0,
        gp_put: 1,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: false,
        thread: None,
        segments: vec![p.segment(GpuVa(0x2_0080_0000))],
    }
}

#[test]
fn a_program_is_new_once_and_again_with_new_code() {
    let mut programs = Programs::default();
    let (at, code) = (0x7f00_0000_0200, vec![0x18; 640]);
    for class in [Some(CLASS), None] {
        let new = programs.of(
            &submission(&[(at, &code), (0x2_04c0_0000, &qmd(at))]),
            class,
        );
        assert_eq!(
            new,
            [New {
                address: at,
                registers: Some(24),
                code: Some(code.clone())
            }],
            "its code was written again"
        );
    }
    let again = submission(&[(0x2_04c0_0200, &qmd(at))]);
    assert_eq!(programs.of(&again, None), []);
    assert_eq!(programs.of_image(&qmd(at), Some(CLASS)), None);
    let other = programs.of_image(&qmd(at + 0x400), None).expect("new");
    assert_eq!((other.address, other.code), (at + 0x400, None));
}

#[test]
fn the_program_that_constants_have_is_asked_for() {
    let mut programs = Programs::default();
    let part = |own: u64| {
        let mut part = vec![0; 0x210];
        part[0x118..0x120].copy_from_slice(&own.to_le_bytes());
        part
    };
    let asked = |programs: &mut Programs, bytes: &[u8]| {
        let new = programs.of_image(bytes, Some(CLASS));
        new.map(|n| (n.address, n.registers))
    };
    assert_eq!(asked(&mut programs, &part(AT)), Some((AT, None)));
    assert_eq!(asked(&mut programs, &part(AT)), None, "once");
    for no_program in [0, 0x200, AT + 8, u64::MAX << 8] {
        assert_eq!(asked(&mut programs, &part(no_program)), None);
    }
    assert_eq!(asked(&mut programs, &part(AT + 0x400)[8..]), None);
}

#[test]
fn the_program_that_another_stands_in_for_is_asked_for() {
    let (stand_in, own) = (0x7f00_0000_0200, 0x7f00_0100_0b00);
    let mut qmd = Qmd::of(&view(stand_in)).expect("a layout");
    let mut fetch = |at: u64| {
        for (name, value) in [
            ("PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED", at >> 8 & 0xffff_ffff),
            ("PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED", at >> 40),
        ] {
            qmd.set(name, 0, value).expect("a field");
        }
        qmd.bytes().to_vec()
    };
    let mut programs = Programs::default();
    let mut named = |bytes: &[u8]| -> Vec<(u64, Option<u32>)> {
        let new = programs.of(&submission(&[(0x2_04c0_0000, bytes)]), Some(CLASS));
        new.iter().map(|n| (n.address, n.registers)).collect()
    };
    assert_eq!(named(&fetch(stand_in)), [(stand_in, Some(24))]);
    assert_eq!(
        named(&fetch(own)),
        [(own, None)],
        "its registers are not known"
    );
    assert_eq!(named(&fetch(own)), []);
    assert_eq!(named(&fetch(0)), []);
    // A graph's kernel has the next one's program fetched: that is asked for again where it is named, with its registers.
    let named_too = self::qmd(own);
    assert_eq!(named(&named_too), [(own, Some(24))]);
    assert_eq!(named(&named_too), []);
    assert_eq!(named(&fetch(own)), []);
}

#[test]
fn a_program_is_new_again_where_its_memory_was_copied_to() {
    let mut programs = Programs::default();
    let at = 0x7fcb_03c0_0000;
    let launch = submission(&[(0x2_04c0_0000, &qmd(at))]);
    let copy = |to: u64, bytes: u32| {
        let mut p = Pushbuffer::new();
        p.copy(4, 0xc8b5, GpuVa(0x7fcb_d260_0000), GpuVa(to), bytes)
            .expect("a copy class");
        let mut s = submission(&[]);
        s.segments = vec![p.segment(GpuVa(0x2_0080_0000))];
        s
    };
    assert_eq!(programs.of(&launch, Some(CLASS)).len(), 1);
    // Data that looks like a copy's commands is none.
    let s = copy(at, 64);
    let commands = s.segments[0].bytes.clone();
    assert_eq!(
        programs.of(&submission(&[(0x2_0600_0000, &commands)]), Some(CLASS)),
        []
    );
    assert_eq!(programs.of(&launch, Some(CLASS)), []);
    for (to, bytes, new) in [
        (at - 0x1000, 0x1000, 0),
        (at - 0x1000, 0x1001, 1),
        (at, 125_184, 1),
        (at + 1, 0x1000, 0),
    ] {
        assert_eq!(programs.of(&copy(to, bytes), Some(CLASS)), []);
        let found = programs.of(&launch, Some(CLASS));
        assert_eq!(found.len(), new, "{bytes} B to {to:#x}");
    }
}

/// Makes a submission of a channel at a time, seen in this way.
fn at(channel: u32, time_ns: u64, how: How, writes: &[(u64, &[u8])]) -> Submission {
    let mut s = submission(writes);
    (s.channel, s.at.time_ns, s.how) = (ChannelId(channel), time_ns, how);
    s
}

const AT: u64 = 0x7f00_0000_0200;

/// Makes the QMD of a program, and the QMD of another program that has it fetched beforehand, as under CUPTI.
fn qmds() -> [Vec<u8>; 2] {
    let mut stand_in = Qmd::of(&view(0x7f00_0100_0000)).expect("a layout");
    for (name, value) in [
        ("PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED", AT >> 8 & 0xffff_ffff),
        ("PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED", AT >> 40),
    ] {
        stand_in.set(name, 0, value).expect("a field");
    }
    [qmd(AT), stand_in.bytes().to_vec()]
}

/// Counts the new programs in a submission.
fn new(programs: &mut Programs, s: &Submission) -> usize {
    let new = programs.of(s, Some(CLASS));
    new.iter().filter(|n| n.address == AT).count()
}

#[test]
fn a_name_that_is_found_after_its_code_was_overwritten_is_dropped() {
    for qmd in qmds() {
        let (mut programs, code) = (Programs::default(), vec![0x18; 640]);
        let load = |time_ns| at(0, time_ns, How::Trapped, &[(AT, &code)]);
        let launch = |time_ns| at(1, time_ns, How::Trapped, &[(0x2_04c0_0000, &qmd)]);
        assert_eq!(new(&mut programs, &load(10)), 0);
        assert_eq!(new(&mut programs, &launch(20)), 1);
        assert_eq!(programs.found(AT, 20, 25), Some(Trust::Whole));
        // Another module, whose name is told while a third one is loaded.
        new(&mut programs, &load(30));
        assert!(
            programs.take_doubted().is_empty(),
            "it was read before that"
        );
        assert_eq!(new(&mut programs, &launch(40)), 1);
        assert_eq!(programs.found(AT, 20, 45), None);
        assert_eq!(programs.found(AT, 40, 55), Some(Trust::ByCode));
        new(&mut programs, &load(50));
        assert_eq!(
            programs.take_doubted().into_iter().collect::<Vec<_>>(),
            [(AT, 40)],
            "it was read after that"
        );
        assert_eq!(programs.found(AT, 40, 60), None);
        assert!(programs.uses_memory_again());
    }
}

#[test]
fn launches_of_one_look_before_and_behind_a_load_have_no_name() {
    for qmd in qmds() {
        let (mut programs, code) = (Programs::default(), vec![0x18; 640]);
        let load = |time_ns| at(0, time_ns, How::Observed, &[(AT, &code)]);
        let launch = |time_ns| at(0, time_ns, How::Observed, &[(0x2_04c0_0000, &qmd)]);
        new(&mut programs, &load(10));
        assert_eq!(new(&mut programs, &launch(10)), 1);
        new(&mut programs, &load(10));
        assert_eq!(new(&mut programs, &launch(10)), 0, "which of the two?");
        assert_eq!(programs.found(AT, 10, 12), None);
        assert_eq!(new(&mut programs, &launch(20)), 1);
        assert_eq!(programs.found(AT, 20, 22), Some(Trust::ByCode));
    }
}

#[test]
fn observed_loads_and_launches_of_two_channels_have_no_order_within_a_look() {
    for qmd in qmds() {
        let (mut programs, code) = (Programs::default(), vec![0x18; 640]);
        let load = |time_ns| at(0, time_ns, How::Observed, &[(AT, &code)]);
        let launch = |time_ns| at(1, time_ns, How::Observed, &[(0x2_04c0_0000, &qmd)]);
        new(&mut programs, &load(10));
        assert_eq!(new(&mut programs, &launch(11)), 1);
        assert_eq!(programs.found(AT, 11, 12), Some(Trust::Whole));
        assert_eq!(new(&mut programs, &launch(15)), 0);
        // The channel of loads was looked at before the one of launches: this may be a launch of what is loaded at 30.
        assert_eq!(new(&mut programs, &launch(29)), 0);
        new(&mut programs, &load(30));
        let doubted: Vec<_> = programs.take_doubted().into_iter().collect();
        assert_eq!(doubted, [(AT, 11)], "from the load before on");
        // This one may be of what was there before; the next one is not.
        assert_eq!(new(&mut programs, &launch(31)), 1);
        assert_eq!(programs.found(AT, 31, 32), Some(Trust::None));
        assert_eq!(new(&mut programs, &launch(33)), 1);
        assert_eq!(programs.found(AT, 33, 34), Some(Trust::ByCode));
        assert_eq!(new(&mut programs, &launch(35)), 0);
    }
}

#[test]
fn kept_code_is_bounded() {
    let mut programs = Programs::default();
    for i in 0..(MOST_CODE / 16384 + 10) as u64 {
        let when = When {
            channel: ChannelId(0),
            after_ns: i,
            by_ns: i,
        };
        programs.write(0x7f00_0000_0000 + i * 0x4000, &[7; 16384], when);
    }
    assert!(programs.code_bytes <= MOST_CODE);
    assert!(!programs.code.contains_key(&0x7f00_0000_0000));
    let left: usize = programs.code.values().map(|(_, c)| c.len()).sum();
    assert_eq!(left, programs.code_bytes);
}

fn when(ns: u64) -> When {
    When {
        channel: ChannelId(0),
        after_ns: ns,
        by_ns: ns,
    }
}

/// A process that launches ever new programs costs no more than a limit. Further programs are left out, which is reported once.
#[test]
fn programs_are_bounded() {
    let mut programs = Programs::default();
    let at = |n: usize| AT + 0x100 * n as u64;
    let new = (0..MOST_PROGRAMS + 100).filter(|n| programs.launch(at(*n), true, when(*n as u64)));
    assert_eq!(new.count(), MOST_PROGRAMS);
    assert!(
        programs
            .left_out()
            .is_some_and(|what| what.contains("65,536"))
    );
    assert_eq!(programs.left_out(), None, "it is said once");
    assert_eq!(programs.of_image(&qmd(AT - 0x100), Some(CLASS)), None);
    let all = [
        programs.known.len(),
        programs.launched.len(),
        programs.asked.len(),
    ];
    assert_eq!(all, [MOST_PROGRAMS; 3]);
    // Those that are known are followed as ever.
    assert!(!programs.launch(at(5), true, when(1_000_000)));
    programs.overwrite(at(5), at(6), when(1_000_001));
    assert!(programs.launch(at(5), true, when(1_000_002)));
}

/// A process that writes over its programs again and again is not followed, because each write would hit all of them.
#[test]
fn writes_over_programs_are_bounded() {
    let mut programs = Programs::default();
    let all = 512;
    let launch = |programs: &mut Programs, ns| {
        for n in 0..all {
            programs.launch(AT + 0x100 * n, true, when(ns));
        }
    };
    let end = AT + 0x100 * all;
    // Loads and launches by turns, as of a program that loads modules all the time.
    for round in 0..3 {
        launch(&mut programs, 4 * round * LATE_NS);
        programs.overwrite(AT, end, when((4 * round + 2) * LATE_NS));
    }
    assert!(!programs.given_up && programs.launched.is_empty());
    // All in one submission: each write comes upon what was launched in it.
    let last = 100 * LATE_NS;
    launch(&mut programs, last);
    programs.found(AT, last, last);
    let writes = (0..10_000).take_while(|_| {
        programs.overwrite(AT, end, when(last));
        !programs.given_up
    });
    let most = (VISITS + EACH * 4 * all) / all;
    assert!((writes.count() as u64) < most);
    assert!(programs.known.is_empty() && programs.launched.is_empty());
    assert!(
        programs
            .left_out()
            .is_some_and(|what| what.contains("too often"))
    );
    let s = submission(&[(0x2_04c0_0000, &qmd(AT))]);
    assert_eq!(programs.of(&s, Some(CLASS)), []);
}

/// The names of a process are withdrawn when it is not followed any more.
#[test]
fn names_of_a_process_that_is_given_up_are_withdrawn() {
    let mut programs = Programs::default();
    programs.launch(AT, true, when(10));
    programs.give_up(when(20));
    let doubted: Vec<_> = programs.take_doubted().into_iter().collect();
    assert_eq!(doubted, [(AT, 21)]);
    assert_eq!(programs.found(AT, 10, 30), None);
}

/// Pieces of memory are written again. The newest write of each address counts, however long other pieces are.
#[test]
fn memory_is_used_again_piece_by_piece() {
    let mut programs = Programs::default();
    for (from, to, ns) in [
        (0x1000, 0x9000, 1),
        (0x3000, 0x4000, 2),
        (0x3800, 0x5000, 3),
    ] {
        programs.reuse(from, to, when(ns));
    }
    programs.reuse(0x8000, 0xa000, when(2));
    let at = [
        0xfff, 0x1000, 0x2fff, 0x3000, 0x37ff, 0x3800, 0x4fff, 0x5000, 0x8000, 0x9fff, 0xa000,
    ];
    let found = at.map(|at| programs.rewritten(at).map_or(0, |w| w.by_ns));
    assert_eq!(found, [0, 1, 1, 2, 2, 3, 3, 1, 2, 2, 0]);
    for n in 0..2 * MOST_REUSED as u64 {
        programs.reuse(0x10_0000 + 0x10 * n, 0x10_0008 + 0x10 * n, when(9));
    }
    assert_eq!(programs.reused.len(), MOST_REUSED);
}

/// Many small pieces of code cost no more than a few large ones.
#[test]
fn small_pieces_of_code_are_kept_in_order() {
    let mut programs = Programs::default();
    for i in 0..(2 * MOST_CODE / LEAST_CODE) as u64 {
        programs.write(AT + 0x80 * i, &[7; LEAST_CODE], when(i));
    }
    assert_eq!(programs.code_bytes, MOST_CODE);
    assert_eq!(programs.code.len(), programs.code_order.len());
    assert!(!programs.code.contains_key(&AT));
}
