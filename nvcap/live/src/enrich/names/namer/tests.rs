//! Tests of names that come after writes to their programs' addresses, and after their process's end.

use super::*;
use crate::enrich::names::backlog::MOST_WAITING;
use crate::enrich::names::programs::tests::{CLASS, qmd, submission};
use nvcap_decode::record::{Life, Process, Submission};

const PID: u32 = 7;
const AT: u64 = 0x7f00_0000_0200;

fn write(time_ns: u64, to: u64, data: &[u8]) -> Record {
    Record::Submission(Submission {
        at: At::of_process(time_ns, PID),
        ..submission(&[(to, data)])
    })
}

fn launch(time_ns: u64) -> Record {
    write(time_ns, 0x2_04c0_0000, &qmd(AT))
}

fn load(time_ns: u64) -> Record {
    write(time_ns, AT, &[0x18; 640])
}

/// Kernels that are reported when a name is found for a launch: times, names, and whether they are certain.
fn told(
    namer: &mut Namer,
    answers: &Answers,
    name: &str,
    time_ns: u64,
) -> Vec<(u64, String, bool)> {
    let kernel = Kernel::called(At::of_process(time_ns, PID), AT, name);
    answers.answer.send((1, vec![kernel])).unwrap();
    let mut records = Vec::new();
    namer.answers(Duration::ZERO, &mut records);
    let kernels = records.into_iter().filter_map(|r| match r {
        Record::Kernel(k) => Some((k.at.time_ns, k.name, k.certain)),
        _ => None,
    });
    kernels.collect()
}

fn said(time_ns: u64, name: &str, certain: bool) -> (u64, String, bool) {
    (time_ns, name.to_owned(), certain)
}

#[test]
fn names_of_code_that_is_no_more_are_dropped_and_withdrawn() {
    let (mut namer, answers) = Namer::answered_by_test(Some(CLASS), Instant::now);
    namer.look(&[load(10), launch(20)]);
    assert_eq!(
        told(&mut namer, &answers, "first", 20),
        [said(20, "first", true)]
    );
    // Memory was read behind this load, whose record comes later: it may be its name.
    namer.look(&[load(30), launch(40)]);
    assert_eq!(
        told(&mut namer, &answers, "second", 20),
        [said(20, "", false)],
        "a name for the first launch that is found now is dropped"
    );
    assert_eq!(
        told(&mut namer, &answers, "second", 40),
        [said(40, "second", false)],
        "a record may be left over: without its code it is not certain"
    );
}

#[test]
fn names_come_behind_the_end_of_their_process() {
    let (mut namer, answers) = Namer::answered_by_test(Some(CLASS), Instant::now);
    let end = Record::Process(Process {
        at: At::of_process(30, PID),
        life: Life::Exit { process: true },
    });
    namer.look(&[load(10), launch(20), end]);
    assert_eq!(
        told(&mut namer, &answers, "add", 20),
        [said(20, "add", true)]
    );
    assert_eq!(told(&mut namer, &answers, "add", 25), []);
}

/// A process whose programs come faster than their names are found takes no more memory than a limit, and leaves room for others.
#[test]
fn asks_that_wait_are_bounded() {
    let mut backlog = Backlog::default();
    let ask = |pid, code: usize| Ask {
        at: At::of_process(1, pid),
        program: GpuVa(AT),
        registers: None,
        code: Some(vec![7; code]),
    };
    let many = |backlog: &mut Backlog, pid| {
        (0..100)
            .filter(|_| backlog.take(&ask(pid, 1 << 20)))
            .count()
    };
    assert_eq!(many(&mut backlog, PID), 15);
    let all: usize = (10..50).map(|pid| many(&mut backlog, pid)).sum();
    assert!(
        (all << 20) + (15 << 20) <= MOST_WAITING + (16 << 20),
        "{all}"
    );
    assert!(backlog.take(&ask(1000, 1000)), "others have room");
    for _ in 0..15 {
        backlog.give(&ask(PID, 1 << 20));
    }
    assert!(backlog.take(&ask(PID, 1000)));
    let (mut namer, _answers) = Namer::answered_by_test(Some(CLASS), Instant::now);
    *lock(&namer.backlog) = backlog;
    namer.look(&[launch(20)]);
    assert_eq!((namer.asks(), namer.left_out), (1, 0));
    while lock(&namer.backlog).take(&ask(PID, 1000)) {}
    while lock(&namer.backlog).take(&ask(PID, 0)) {}
    namer.look(&[load(30), launch(40)]);
    assert_eq!((namer.asks(), namer.left_out), (1, 1));
}
