//! Sums of `nvcap time --json`, of a recording, against what the software GPU ran: the time with work, gaps, and overlaps, for the
//! GPU and each engine, process and channel of it.
//!
//! Sums may be wrong by no more than the errors that are stated with the times of single entries. What an entry's time is wrong by
//! beyond that is `time_from_stamps`' business, and is allowed for here; entries without times are left out of the truth as nvcap leaves
//! them out. The software GPU is in step with nvcap, so that each kernel has its time; it may be too vague for a sum on a busy machine.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;

use anyhow::{Context, Result, bail, ensure};
use live::in_step::Step;
use live::programs::{Folder, Running, nvcap};
use serde_json::Value;

use crate::setup::LIMIT;
use crate::time_from_stamps::{SHOWN, Truth, Way, each_way, in_step, number, objects, run_with};

/// From the start what ran before stamps were first read is not in the sums; it is not known here how much that is.
const WAYS: [Way; 2] = [Way::Attached, Way::Observed];

/// Number of gaps that are listed. An entry without a known time has two beside it, which are not compared.
const LISTED: usize = 10;

/// A launch or copy that is shown, on the GPU's clock.
#[derive(Clone, Debug)]
struct Entry {
    channel: u64,
    engine: String,
    kernel: bool,
    /// Times at which it really began and ended.
    ran: (u64, u64),
    ran_host_end: u64,
    /// True if nvcap knows when it began.
    begun: bool,
    /// nvcap knows how long it ran, too.
    timed: bool,
    /// Times at which nvcap says that it began and ended, if it knows that well enough for a sum.
    told: Option<(u64, u64)>,
    /// The most by which that may be wrong: as stated, or as it is where that is more.
    wrong: (u64, u64),
    host_error: u64,
}

/// One run as one recording shows it.
#[derive(Debug)]
struct Run {
    /// Sums of `nvcap time`.
    sums: Value,
    entries: Vec<Entry>,
}

/// nvcap reads a recording and writes JSON.
fn read((folder, step): (&Folder, &Step), args: &[&str], out: &str) -> Result<Vec<Value>> {
    let out = folder.file(out);
    let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
    args.extend(["--json".into(), "-o".into(), out.clone().into()]);
    args.push(folder.file("run.pcapng").into());
    let ended = Running::start_prepared(&nvcap()?, args, None, in_step(step))?.end(LIMIT)?;
    ended.expect_code(0)?;
    objects(&out)
}

/// Output of `nvcap decode` and of `nvcap time` for a recording.
type Shown = (Vec<Value>, Vec<Value>);

fn recorded(way: Way, gpu: &[String]) -> Result<(Shown, Truth)> {
    let folder = Folder::new()?;
    let mut args = ["record", "--gpu-time", "-o"].map(OsString::from).to_vec();
    args.push(folder.file("run.pcapng").into());
    let made = (&folder, &Step::new(&folder)?);
    let truth = run_with(way, gpu, made, args)?;
    let shown = read(made, &["decode", "-e", SHOWN], "shown.json")?;
    let sums = read(made, &["time"], "sums.json")?;
    Ok(((shown, sums), truth))
}

fn run(way: Way, gpu: &[String]) -> Result<Run> {
    let ((shown, sums), truth) = recorded(way, gpu)?;
    let (mut rings, mut at) = <(HashMap<_, _>, HashMap<_, _>)>::default();
    for o in &shown {
        if o["type"] == "channel" {
            rings.insert(number(o, "channel")?, number(o, "ring")?);
        } else if o["type"] == "submission" {
            at.insert(number(o, "serial")?, o);
        }
    }
    let mut entries = Vec::new();
    for o in shown.iter().filter(|o| o["type"] == "operation") {
        let submission = *at.get(&number(o, "serial")?).context("a submission")?;
        let channel = number(submission, "channel")?;
        let ring = *rings.get(&channel).context("a channel")?;
        let ran = truth
            .get(&(ring, number(submission, "position")?))
            .with_context(|| format!("nothing ran there: {o}"))?;
        entries.push(entry(o, submission, ran)?);
    }
    let sums = sums.into_iter().find(|o| o["type"] == "gpu_time");
    let sums = sums.context("no sums")?;
    Ok(Run { sums, entries })
}

fn entry(o: &Value, submission: &Value, truth: &Value) -> Result<Entry> {
    // A kernel's time is counted from its stamp.
    let exec = number(truth, "start_gpu_ns")?;
    let began = match o["op"] == "launch" {
        true => number(truth, "stamp_gpu_ns")?,
        false => exec,
    };
    let ran = (began, number(truth, "end_gpu_ns")?);
    let stated = |name: &str| o[name].as_u64().unwrap_or(0);
    let begin = o["gpu_clock_start_ns"].as_u64();
    let told = begin.zip(o["gpu_ns"].as_u64());
    let told = told.map(|(begin, ns)| (begin, begin + ns));
    let (begins, ends) = told.unwrap_or(ran);
    let host = o["gpu_start_ns"].as_u64();
    let ran_host = number(truth, "start_ns")? - (exec - began);
    let host = host.map_or(0, |at| at.abs_diff(ran_host));
    Ok(Entry {
        channel: number(submission, "channel")?,
        engine: submission["engine"].as_str().unwrap_or("?").to_owned(),
        kernel: o["op"] == "launch",
        ran,
        ran_host_end: number(truth, "end_ns")?,
        begun: begin.is_some(),
        timed: told.is_some(),
        // An end that is as vague as this is left out of the sums (docs/gpu-time.md, sums).
        told: told.filter(|t| {
            let error = stated("gpu_ns_error");
            error <= 100_000 || error <= (t.1 - t.0) / 10
        }),
        wrong: (
            stated("gpu_clock_error_ns").max(begins.abs_diff(ran.0)),
            stated("gpu_ns_error").max(ends.abs_diff(ran.1)),
        ),
        host_error: stated("gpu_start_error_ns").max(host),
    })
}

/// The parts of time in which something ran.
fn union(of: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut of = of.to_vec();
    of.sort_unstable();
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (begin, end) in of {
        match all.last_mut() {
            Some(last) if last.1 >= begin => last.1 = last.1.max(end),
            _ => all.push((begin, end)),
        }
    }
    all
}

fn length(of: &[(u64, u64)]) -> u64 {
    of.iter().map(|(begin, end)| end - begin).sum()
}

/// The sums of some entries.
fn sums(what: &str, work: &Value, of: &[&Entry]) -> Result<()> {
    let known: Vec<_> = of.iter().filter(|e| e.told.is_some()).collect();
    let ran: Vec<(u64, u64)> = known.iter().map(|e| e.ran).collect();
    // What ran before stamps were first read is in no sum: up to all of the first entry of each channel, which lasts until they are.
    let mut firsts: HashMap<u64, &Entry> = HashMap::new();
    for e in of {
        let first = firsts.entry(e.channel).or_insert(*e);
        if e.ran.0 < first.ran.0 {
            *first = *e;
        }
    }
    let before: u64 = firsts.values().map(|e| e.ran.1 - e.ran.0).sum();
    let wrong: u64 = known.iter().map(|e| e.wrong.0 + e.wrong.1).sum();
    let allowed = wrong + before;
    let is = |name| number(work, name);
    let (busy, sum, idle) = (is("busy_ns")?, is("sum_ns")?, is("idle_ns")?);
    ensure!(
        !known.is_empty() || (busy, sum) == (0, 0),
        "{what}: nothing is known, but {work}"
    );
    let said = |name: &str, told: u64, truth: u64, allowed: u64| {
        ensure!(
            told.abs_diff(truth) <= allowed,
            "{what}: {name} is {told} ns, {truth} in truth, {allowed} may be wrong of {} entries: {work}",
            known.len()
        );
        Ok(())
    };
    let all = union(&ran);
    said("sum_ns", sum, length(&ran), allowed)?;
    said("busy_ns", busy, length(&all), allowed)?;
    let overlap = length(&ran) - length(&all);
    said("the overlap", sum.saturating_sub(busy), overlap, allowed)?;
    // The time lasts from the first begin to the last end, or the last begin where its end is not known.
    let (span, unknown) = (is("span_ns")?, is("unknown_ns")?);
    ensure!(busy + idle + unknown == span, "{what}: {work}");
    let begun = of.iter().filter(|e| e.begun);
    let begins = begun.map(|e| e.ran.0);
    let first = begins.clone().min().unwrap_or(0);
    let last = ran.iter().map(|r| r.1).chain(begins).max().unwrap_or(0);
    let truth = last - first;
    // The first or the last begin may be of an entry that is in no sum.
    let edges = of.iter().filter(|e| e.begun).map(|e| e.wrong.0).max();
    let allowed = allowed + unknown + 2 * edges.unwrap_or(0);
    // Before the first begin and behind the last one there may be entries of which no begin was seen, and time between them in which nothing was there.
    let whole = of.iter().map(|e| e.ran.1).max().unwrap_or(0)
        - of.iter().map(|e| e.ran.0).min().unwrap_or(0);
    let allowed = allowed + whole.saturating_sub(truth);
    said("span_ns", span, truth, allowed)?;
    let share = busy as f64 / (busy + idle).max(1) as f64;
    let true_share = length(&all) as f64 / truth.max(1) as f64;
    let wrong = allowed as f64 / truth.max(1) as f64;
    ensure!(
        (share - true_share).abs() <= 2.0 * wrong,
        "{what}: busy for {share} of the time, {true_share} in truth, {wrong} may be wrong"
    );
    Ok(())
}

/// Each gap that is listed was one, and the longest ones are listed; how many are.
fn gaps(gpu: &Value, of: &[Entry]) -> Result<usize> {
    let unknown = of.iter().filter(|e| e.told.is_none()).count();
    let known: Vec<&Entry> = of.iter().filter(|e| e.told.is_some()).collect();
    let listed = gpu["gaps"].as_array().context("gaps")?;
    let mut found = Vec::new();
    for gap in listed {
        let (from, ns) = (number(gap, "gpu_clock_ns")?, number(gap, "ns")?);
        let until = from + ns;
        let ends = |e: &&&Entry| e.told.is_some_and(|t| t.1 == from);
        let begins = |e: &&&Entry| e.told.is_some_and(|t| t.0 == until);
        let (Some(before), Some(behind)) = (known.iter().find(ends), known.iter().find(begins))
        else {
            // Beside an end that is not known, or is too vague.
            ensure!(unknown > 0, "no work ends and begins at {gap}");
            continue;
        };
        let off = |name: &str, told: u64, ran: u64, allowed: u64| {
            let is_off = told.abs_diff(ran) > allowed;
            ensure!(
                !is_off,
                "the {name} of {gap} is {ran} in truth, {allowed} ns may be wrong"
            );
            Ok(())
        };
        off("begin", from, before.ran.1, before.wrong.1)?;
        off("end", until, behind.ran.0, behind.wrong.0)?;
        // The clocks drift apart in a long gap.
        let host = before.wrong.1 + before.host_error + behind.host_error + ns / 10_000;
        off(
            "host's time",
            number(gap, "at_ns")?,
            before.ran_host_end,
            host,
        )?;
        let work = known.iter().find(|e| {
            let (begin, end) = (e.ran.0 + e.wrong.0, e.ran.1.saturating_sub(e.wrong.1));
            begin.max(from) < end.min(until)
        });
        ensure!(work.is_none(), "{gap} is no gap: {work:?}");
        found.push(ns);
    }
    ensure!(
        found.is_sorted_by(|a, b| a >= b),
        "the longest is first: {found:?}"
    );
    // As gaps are each wrong by the errors of two times at most, so is the one at each place in the order.
    let allowed = known.iter().map(|e| e.wrong.0.max(e.wrong.1)).max();
    let allowed = 2 * allowed.unwrap_or(0);
    let ran: Vec<(u64, u64)> = known.iter().map(|e| e.ran).collect();
    let all = union(&ran);
    let mut truth: Vec<u64> = all.windows(2).map(|w| w[1].0 - w[0].1).collect();
    truth.sort_unstable_by(|a, b| b.cmp(a));
    if unknown == 0 {
        for (place, (told, ran)) in found.iter().zip(&truth).enumerate() {
            ensure!(
                told.abs_diff(*ran) <= allowed,
                "gap {place} is {told} ns, {ran} in truth, {allowed} may be wrong"
            );
        }
    }
    Ok(found.len())
}

/// Compares all sums of a run, as far as its entries' times are known; returns how many gaps were compared.
fn compare(run: &Run) -> Result<usize> {
    let some = |which: &dyn Fn(&Entry) -> bool| -> Vec<&Entry> {
        run.entries.iter().filter(|e| which(e)).collect()
    };
    let list = |name: &str| run.sums[name].as_array().with_context(|| name.to_owned());
    if !run.entries.iter().any(|e| e.timed) && list("gpus")?.is_empty() {
        // Nothing has a time: there is nothing to sum up.
        ensure!(
            list("processes")?.is_empty() && list("engines")?.is_empty(),
            "{}",
            run.sums
        );
        return Ok(0);
    }
    let [gpu] = &list("gpus")?[..] else {
        bail!("not one GPU: {}", run.sums["gpus"]);
    };
    sums("GPU", &gpu["work"], &some(&|_| true))?;
    let [process] = &list("processes")?[..] else {
        bail!("not one process: {}", run.sums["processes"]);
    };
    sums("process", &process["work"], &some(&|_| true))?;
    let mut told = HashSet::new();
    for channel in list("channels")? {
        let number = number(channel, "channel")?;
        let of = some(&|e| e.channel == number);
        sums(&format!("channel {number}"), &channel["work"], &of)?;
        if of.iter().any(|e| e.told.is_some()) {
            told.insert(number);
        }
    }
    let known = run.entries.iter().filter(|e| e.told.is_some());
    let known: HashSet<u64> = known.map(|e| e.channel).collect();
    ensure!(told == known, "channels {told:?}, {known:?} in truth");
    for engine in list("engines")? {
        let name = engine["engine"].as_str().context("a name")?;
        sums(name, &engine["work"], &some(&|e| e.engine == name))?;
    }
    gaps(gpu, &run.entries)
}

/// A kernel and a copy beside it, then a pause: gaps, and how busy the GPU was.
///
/// Demanded: each sum and each gap that is stated is right within the errors that are stated with the times, and nothing is counted where no
/// time is known; where all times are known, or so many that not each listed gap lies beside an entry without one, gaps are compared. Not
/// demanded: that a time is known well enough for a sum, and gaps beside entries whose time is not. The thread that reads stamps may lose its processor at any end, and an end that is vague is in no sum. That sums
/// state what they can, whatever keeps stamps from being read, is demanded of simulated traces (`nvcap/show/src/pipeline/starved.rs`).
pub fn pauses() -> Result<()> {
    let options = [
        "--submissions=200",
        "--channels=2",
        "--timed-kernel-us=50",
        "--timed-spread=50",
        "--timed-lag-ns=390",
        "--timed-burst=1",
        "--timed-pause-us=300",
    ]
    .map(str::to_owned);
    each_way(&WAYS, |way| {
        let run = run(way, &options)?;
        // Of the first nothing may be known: it lasts until nvcap has got ready.
        let ready = run.entries.iter().map(|e| e.ran.1).min().unwrap_or(0);
        let late = run.entries.iter().filter(|e| e.kernel && e.ran.0 > ready);
        let untimed = late.clone().find(|e| e.begun && !e.timed);
        ensure!(untimed.is_none(), "{way:?}: no time of {untimed:?}");
        let unknown = run.entries.iter().filter(|e| e.told.is_none()).count();
        let gaps = compare(&run).with_context(|| format!("{way:?}"))?;
        let entries = run.entries.len();
        if std::env::var_os("NVCAP_LIVE_KEEP").is_some() {
            println!("    {way:?}: {unknown} of {entries} entries in no sum, {gaps} gaps");
        }
        ensure!(
            entries > 0 && (gaps > 0 || 2 * unknown >= LISTED),
            "{way:?}: {unknown} of {entries} entries in no sum, {gaps} gaps"
        );
        Ok(())
    })
}
