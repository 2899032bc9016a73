//! Kernels of a shared GPU: what of their time was others' turn is known, and no work of theirs.

use std::fs;

use nvcap_decode::gpu_time::made_up::{self, PID};
use nvcap_decode::record::{How, Record};
use nvcap_decode::switches::made_up::{self as switches, told as switch};
use nvcap_decode::switches::{Tag, Told};
use serde_json::Value;

use crate::common::cli::{Folder, nvcap, text};
use crate::common::job;
use crate::common::schema::Schema;

const OTHER: u32 = 4712;
const KERNELS: u32 = 40;
/// Time for which the other process has the GPU in each round, with a switch before and behind it, ns.
const OTHER_NS: u64 = 3_000;
const SWITCH_NS: u64 = 500;
const ROUND: u64 = 11_000;

fn window(times: (u64, u64), told: Vec<Told>) -> Record {
    Record::Switches(Box::new(switches::window(0, times, told)))
}

/// The rounds up to a time, each the begins and ends of both slices.
fn rounds(until: u64) -> Vec<(u64, u64)> {
    let begins = (0..until).step_by(ROUND as usize);
    begins
        .map(|b| (b + SWITCH_NS, b + SWITCH_NS + OTHER_NS))
        .collect()
}

fn told(rounds: &[(u64, u64)]) -> Vec<Told> {
    let round = |(from, to): &(u64, u64)| {
        [
            switch(Tag::END, PID, from - SWITCH_NS),
            switch(Tag::BEGIN, OTHER, *from),
            switch(Tag::END, OTHER, *to),
            switch(Tag::BEGIN, PID, to + SWITCH_NS),
        ]
    };
    rounds.iter().flat_map(round).collect()
}

/// What of a time was not the traced program's turn, counted one round after the other.
fn others(rounds: &[(u64, u64)], begin: u64, end: u64) -> u64 {
    let part = |(from, to): &(u64, u64)| {
        let (from, to) = (from - SWITCH_NS, to + SWITCH_NS);
        to.min(end).saturating_sub(from.max(begin))
    };
    rounds.iter().map(part).sum()
}

fn shown(args: &[&str]) -> String {
    let out = nvcap(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

fn objects(args: &[&str]) -> Vec<Value> {
    let schema = Schema::of_output();
    let text = shown(args);
    let objects: Vec<Value> = { text.lines() }
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for object in &objects {
        schema
            .check(object)
            .unwrap_or_else(|e| panic!("{e}: {object}"));
    }
    objects
}

/// A recording of kernels of 20 us with these windows of switches.
fn file(folder: &Folder, name: &str, windows: Vec<Record>) -> String {
    let mut records = made_up::records(KERNELS, How::Trapped);
    records.extend(windows);
    let path = folder.path(name);
    fs::write(&path, job::written(&records, 1, true, 0)).unwrap();
    path
}

#[test]
fn others_turns_are_no_work_of_kernels() {
    let folder = Folder::new("preempted");
    let until = 100 * ROUND * 10;
    let rounds = rounds(until);
    let shared = file(
        &folder,
        "shared.pcapng",
        vec![window((0, until), told(&rounds))],
    );
    let alone = file(&folder, "alone.pcapng", Vec::new());
    let launches = |file: &str| -> Vec<Value> {
        let all = objects(&["decode", "--json", file]).into_iter();
        all.filter(|o| o["op"] == "launch").collect()
    };
    let (with, without) = (launches(&shared), launches(&alone));
    assert_eq!(with.len(), KERNELS as usize);
    let (mut sum, mut known, mut unknown) = (0, 0, 0);
    for (with, without) in with.iter().zip(&without) {
        let number = |o: &Value, name: &str| o[name].as_u64();
        assert!(without.get("preempted_ns").is_none(), "{without}");
        let Some(ns) = number(without, "gpu_ns") else {
            assert!(with["preempted_ns"].is_null(), "{with}");
            unknown += 1;
            continue;
        };
        let begin = number(without, "gpu_clock_start_ns").unwrap();
        let expected = others(&rounds, begin, begin + ns);
        assert_eq!(number(with, "preempted_ns"), Some(expected), "{with}");
        for name in ["gpu_ns", "gpu_exec_ns"] {
            let less = number(without, name).unwrap() - expected;
            assert_eq!(number(with, name), Some(less), "{name}: {with}");
        }
        sum += expected;
        known += 1;
    }
    assert!(
        known > 30 && unknown < 3 && sum > known * 4_000,
        "{known} {sum}"
    );

    // In the sums, the table and the filter.
    let sums = &objects(&["time", "--json", &shared])[0];
    let kernel = &sums["kernels"][0];
    assert_eq!(
        (&kernel["preempted_ns"], &kernel["preempted_unknown"]),
        (&sum.into(), &0.into())
    );
    let before = &objects(&["time", "--json", &alone])[0];
    let timed = |sums: &Value| sums["kernels"][0]["gpu"]["timed_ns"].as_u64().unwrap();
    assert_eq!(timed(before) - timed(sums), sum);
    assert!(before["kernels"][0]["preempted_ns"].is_null());
    assert_eq!(before["gpus"][0]["work"], sums["gpus"][0]["work"]);
    let table = shown(&["export", "csv", &shared, "--table", "kernels"]);
    let mut lines = table.lines().map(|l| l.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let column = head
        .iter()
        .position(|name| *name == "preempted_ns")
        .unwrap();
    let cells = lines.filter_map(|cells| cells[column].parse::<u64>().ok());
    assert_eq!(cells.sum::<u64>(), sum);
    let longer = |file: &str| launches_longer(file, "gpu_ns>=15us");
    assert_eq!((longer(&shared), longer(&alone)), (0, known as usize));
    let text = shown(&["time", &shared]);
    for words in [
        "others had the GPU for",
        "that is not counted as the kernels' time\n",
        " preempted  kernel",
        "(preempted: others had the GPU while they ran; no part of their time)",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!shown(&["time", &alone]).contains("preempted"));
    assert!(shown(&["stats", &shared]).len() > 100);
}

fn launches_longer(file: &str, filter: &str) -> usize {
    let filter = format!("op=launch && {filter}");
    let all = objects(&["decode", "--json", "-e", &filter, file]);
    all.iter().filter(|o| o["op"] == "launch").count()
}

#[test]
fn where_switches_were_lost_nothing_is_subtracted() {
    let folder = Folder::new("preempted-lost");
    let until = 1_000 * ROUND;
    let mut lost = told(&rounds(until));
    // In the middle of all kernels, up to their end.
    let at = lost
        .iter()
        .position(|told| matches!(told, Told::Switch(switch) if switch.time_ns > 1_400_000));
    let at = at.expect("kernels run then");
    lost.truncate(at);
    lost.push(Told::Missing(7));
    let file = file(&folder, "lost.pcapng", vec![window((0, until), lost)]);
    let sums = &objects(&["time", "--json", &file])[0];
    let kernel = &sums["kernels"][0];
    let number = |name: &str| kernel[name].as_u64().unwrap();
    assert!(
        number("preempted_ns") > 0 && number("preempted_unknown") > 5,
        "{kernel}"
    );
    let text = shown(&["time", &file]);
    assert!(
        text.contains(" it is not known, and nothing is subtracted"),
        "{text}"
    );
    assert!(text.contains(" >="), "{text}");
}

/// Work of the traced program within its turns, from the times of single works.
fn worked(file: &str, rounds: &[(u64, u64)]) -> (u64, u64) {
    let mut all: Vec<(u64, u64)> = Vec::new();
    let mut untimed = 0;
    for o in objects(&["decode", "--json", file]) {
        if o["op"] != "launch" && o["op"] != "copy" {
            continue;
        }
        let number = |name: &str| o[name].as_u64();
        match number("gpu_clock_start_ns").zip(number("gpu_ns")) {
            Some((begin, ns)) => {
                all.push((begin, begin + ns + number("preempted_ns").unwrap_or(0)));
            }
            None => untimed += 1,
        }
    }
    all.sort_unstable();
    let (mut sum, mut last) = (0, 0);
    for (begin, end) in all {
        let begin = begin.max(last);
        if begin < end {
            sum += end - begin - others(rounds, begin, end);
            last = end;
        }
    }
    (sum, untimed)
}

#[test]
fn shares_say_for_how_long_a_program_worked_and_waited_in_its_turns() {
    let folder = Folder::new("preempted-share");
    let until = 1_000 * ROUND;
    let rounds = rounds(until);
    let windows = vec![window((0, until), told(&rounds))];
    let file = file(&folder, "shared.pcapng", windows);
    let (work, untimed) = worked(&file, &rounds);
    let out = shown(&["share", "--json", &file]);
    let share: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    let processes = share["processes"].as_array().unwrap();
    let of = |pid: u32| processes.iter().find(|p| p["pid"] == pid).unwrap();
    let program = of(PID);
    let seconds = program["worked_seconds"].as_f64().unwrap();
    assert_eq!((seconds * 1e9).round() as u64, work, "{program}");
    assert_eq!(program["untimed_works"], untimed);
    // A kernel is ready while the other has the GPU, once a round at least, and never for longer than a turn and a kernel's.
    let waited = program["longest_wait_seconds"].as_f64().unwrap() * 1e9;
    assert!((1.0..=2.0 * ROUND as f64).contains(&waited), "{program}");
    let idle = program["idle_share"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&idle), "{program}");
    assert!(of(OTHER).get("worked_seconds").is_none(), "{}", of(OTHER));
    let text = shown(&["share", &file]);
    for words in [
        "     IDLE    WAITED  POD OR CONTAINER",
        &format!("simulated {PID} holds it idle for "),
        &format!("{:.0} % of its turns", 100.0 * idle),
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
