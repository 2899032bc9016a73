//! Others' turns on a GPU within kernels that the software GPU ran, whose times nvcap recorded: what is subtracted, against what ran.

use std::ffi::OsString;
use std::fs::{self, File};

use anyhow::{Context, Result, ensure};
use live::in_step::Step;
use live::programs::{Folder, Running, nvcap};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{At, Record, Switches};
use nvcap_decode::switches::{Reading, Scope, Switch, Tag, Told};
use nvcap_recording::recording::{EndInfo, Item, Reader, TraceInfo, Writer};
use serde_json::Value;

use crate::setup::LIMIT;
use crate::time_from_stamps::{SHOWN, Truth, Way, each_way, number, objects, run_with};

const OTHER: u32 = 1;
/// A round of both processes, and the other one's part of it with a switch before and behind, ns.
const ROUND: u64 = 60_000;
const OTHERS: u64 = 21_000;
const SWITCH: u64 = 500;
/// Length of a window, ns.
const WINDOW: u64 = 50_000_000;

/// A time of the GPU's clock and the host's.
#[derive(Clone, Copy)]
struct Clock {
    gpu_ns: u64,
    host_ns: u64,
}

/// Turns of the other process between two times, with the switches.
fn turns(from: u64, to: u64) -> Vec<(u64, u64)> {
    let begins = (from + ROUND..to - ROUND).step_by(ROUND as usize);
    begins.map(|begin| (begin, begin + OTHERS)).collect()
}

/// Part of a time that was the other's.
fn others(turns: &[(u64, u64)], begin: u64, end: u64) -> u64 {
    let part = |(from, to): &(u64, u64)| (*to).min(end).saturating_sub((*from).max(begin));
    turns.iter().map(part).sum()
}

/// The windows of switches from a clock's time on: a slow machine takes seconds for what ran, and one window has a bound.
fn windows(clock: Clock, to: u64, pid: u32, turns: &[(u64, u64)]) -> Vec<Record> {
    let reading = |gpu_ns: u64| Reading {
        host_ns: clock.host_ns + (gpu_ns - clock.gpu_ns),
        gpu_ns,
        error_ns: 1_000,
    };
    let switch = |tag, pid, time_ns| Switch {
        tag,
        pid,
        context: pid,
        time_ns,
        ..Switch::default()
    };
    let round = |(from, to): &(u64, u64)| {
        [
            switch(Tag::END, pid, *from),
            switch(Tag::BEGIN, OTHER, from + SWITCH),
            switch(Tag::END, OTHER, to - SWITCH),
            switch(Tag::BEGIN, pid, *to),
        ]
    };
    let mut switches = turns.iter().flat_map(round).peekable();
    let window = |from: u64| {
        let until = (from + WINDOW).min(to);
        let told = std::iter::from_fn(|| switches.next_if(|s| s.time_ns < until));
        let told = told.map(Told::Switch).collect();
        Record::Switches(Box::new(Switches {
            at: At {
                time_ns: reading(until).host_ns,
                ..At::default()
            },
            gpu: 0,
            scope: Scope::AllUsers,
            from: reading(from),
            to: reading(until),
            told,
            processes: Vec::new(),
        }))
    };
    let begins = (clock.gpu_ns..to).step_by(WINDOW as usize);
    begins.map(window).collect()
}

/// The records of a recording, and the process that submitted.
fn read(folder: &Folder, name: &str) -> Result<(TraceInfo, Vec<Record>, u32)> {
    let mut reader = Reader::new(File::open(folder.file(name))?);
    let info = reader.trace().context("a trace")?.clone();
    let (mut records, mut pid) = (Vec::new(), None);
    for item in reader {
        if let Item::Record(record) = item? {
            if let Record::Submission(s) = &record {
                pid = Some(s.at.pid);
            }
            records.push(record);
        }
    }
    Ok((info, records, pid.context("a submission")?))
}

fn write(folder: &Folder, name: &str, info: TraceInfo, records: &[Record]) -> Result<()> {
    let (mut out, mut ledger) = (Vec::new(), Ledger::new());
    let mut writer = Writer::new(info, 1);
    writer.begin_section(&mut out);
    for record in records {
        ledger.record(record);
        writer.record(record, &mut out);
    }
    writer.end(EndInfo::default(), &ledger, b"{}", &mut out);
    Ok(fs::write(folder.file(name), out)?)
}

/// Output of nvcap for a recording, as objects.
fn shown(folder: &Folder, args: &[&str], name: &str) -> Result<Vec<Value>> {
    let out = folder.file("shown.json");
    let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
    args.extend([
        "--json".into(),
        "--force".into(),
        "-o".into(),
        out.clone().into(),
    ]);
    args.push(folder.file(name).into());
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    ended.expect_code(0)?;
    objects(&out)
}

/// What each kernel of the software GPU really was.
fn ran<'a>(objects: &'a [Value], truth: &'a Truth) -> Result<Vec<(&'a Value, &'a Value)>> {
    let of = |kind: &str, at: &str, n: &Value| {
        let is_it = |o: &&Value| o["type"] == *kind && o[at] == *n;
        objects.iter().find(is_it)
    };
    let mut all = Vec::new();
    for launch in objects.iter().filter(|o| o["op"] == "launch") {
        let submission = of("submission", "serial", &launch["serial"]).context("a submission")?;
        let channel = of("channel", "channel", &launch["channel"]).context("a channel")?;
        let at = (number(channel, "ring")?, number(submission, "position")?);
        all.push((launch, truth.get(&at).context("it ran")?));
    }
    Ok(all)
}

fn run(way: Way) -> Result<()> {
    let folder = Folder::new()?;
    let mut args = ["record", "--gpu-time", "-o"].map(OsString::from).to_vec();
    args.push(folder.file("run.pcapng").into());
    let options = [
        "--channels=2",
        "--submissions=120",
        "--timed-kernel-us=50",
        "--timed-lag-ns=900",
    ];
    let options = options.map(str::to_owned);
    let truth = run_with(way, &options, (&folder, &Step::new(&folder)?), args)?;
    let (info, mut records, pid) = read(&folder, "run.pcapng")?;
    let mut first = None;
    let mut last = 0;
    for of in truth.values() {
        // A kernel's time begins with its launch: the software GPU may lack a processor between that and its start.
        let (started, stamped) = (number(of, "start_gpu_ns")?, number(of, "stamp_gpu_ns")?);
        let gpu_ns = started.min(stamped);
        let host_ns = number(of, "start_ns")? - (started - gpu_ns);
        let is_first = |f: &Clock| f.gpu_ns <= gpu_ns;
        if !first.as_ref().is_some_and(is_first) {
            first = Some(Clock { gpu_ns, host_ns });
        }
        last = last.max(number(of, "end_gpu_ns")?);
    }
    let first = first.context("something ran")?;
    let before = 1_000_000;
    let clock = Clock {
        gpu_ns: first.gpu_ns - before,
        host_ns: first.host_ns - before,
    };
    let turns = turns(clock.gpu_ns, last + before);
    // Each where a recording has it: of turns long past nothing is known any more.
    for window in windows(clock, last + before, pid, &turns) {
        let is_later = |r: &Record| r.at().time_ns > window.at().time_ns;
        let at = records.iter().position(is_later).unwrap_or(records.len());
        records.insert(at, window);
    }
    write(&folder, "shared.pcapng", info, &records)?;

    let before = shown(&folder, &["decode", "-e", SHOWN], "run.pcapng")?;
    ensure!(
        before.iter().all(|o| o.get("preempted_ns").is_none()),
        "nobody recorded it"
    );
    let objects = shown(&folder, &["decode", "-e", SHOWN], "shared.pcapng")?;
    let (mut known, mut sum, mut unknown) = (0, 0, 0);
    for (launch, ran) in ran(&objects, &truth)? {
        let Some(worked) = launch["gpu_ns"].as_u64() else {
            continue;
        };
        // Nothing is said of a kernel whose process is not known to have had the GPU from its begin to its end.
        let Some(preempted) = launch["preempted_ns"].as_u64() else {
            ensure!(launch["preempted_ns"].is_null(), "{launch}");
            unknown += 1;
            continue;
        };
        let begin = number(launch, "gpu_clock_start_ns")?;
        let told = others(&turns, begin, begin + worked + preempted);
        ensure!(
            preempted == told,
            "{told} of its time were the other's: {launch}"
        );
        let (began, ended) = (number(ran, "stamp_gpu_ns")?, number(ran, "end_gpu_ns")?);
        let truly = others(&turns, began, ended);
        let error = number(launch, "gpu_ns_error")?;
        ensure!(
            preempted.abs_diff(truly) <= error,
            "{truly} in truth ({ran}): {launch}"
        );
        (known, sum) = (known + 1, sum + preempted);
    }
    ensure!(
        known > unknown && sum > known * OTHERS / 3,
        "{way:?}: {known} known, {unknown} not, {sum} ns"
    );
    let sums = shown(&folder, &["time"], "shared.pcapng")?;
    let kernels = sums[0]["kernels"].as_array().context("kernels")?;
    let of_rows: u64 = kernels
        .iter()
        .filter_map(|k| k["preempted_ns"].as_u64())
        .sum();
    // Of what is too vague to be counted nothing is in the sums.
    ensure!(
        of_rows > 0 && of_rows <= sum,
        "{of_rows} in the sums, {sum} in all"
    );
    Ok(())
}

/// Kernels of a program while another one has the GPU by turns.
pub fn by_turns() -> Result<()> {
    each_way(&[Way::Attached, Way::Observed], run)
}
