//! `nvcap --gpu-time` on the software GPU that runs its submissions in a GPU's time: what nvcap shows against what ran.
//!
//! Whatever is shown must be true within the error that is stated with it, in every run. How much is shown depends on the
//! processors that the reader of stamps, the software GPU and the program get: where too little is shown the run is repeated
//! with longer kernels.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use live::harness::{NotRun, not_run};
use live::programs::{Folder, Running, nvcap, softgpu};
use serde_json::Value;
use softgpu::layout::channels_file;
use softgpu::timed::STAMP_TO_START;

use crate::setup::{LIMIT, need_tracing};

pub(crate) const SHOWN: &str = "type=submission||op=launch||op=copy";
/// The software GPU's words follow the ends of kernels by so many ns, as on a real one.
const LAG: u64 = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the command's start, by the trap.
    Start,
    /// Attached, by the trap.
    Attached,
    /// Attached, observed.
    Observed,
}

const WAYS: [Way; 3] = [Way::Start, Way::Attached, Way::Observed];

pub(crate) fn objects(file: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?)
}

/// What ran, by ring and position.
pub(crate) type Truth = HashMap<(u64, u64), Value>;

/// Runs the software GPU with these options under nvcap; returns nvcap's objects and the truth.
fn run(way: Way, gpu_options: &[String]) -> Result<(Vec<Value>, Truth)> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = ["--gpu-time", "--json", "-e", SHOWN, "-o"]
        .map(OsString::from)
        .to_vec();
    args.push(trace.clone().into());
    let ran = run_with(way, gpu_options, &folder, args)?;
    Ok((objects(&trace)?, ran))
}

/// Runs the software GPU with these options under nvcap with these arguments; returns the truth.
pub(crate) fn run_with(
    way: Way,
    gpu_options: &[String],
    folder: &Folder,
    mut args: Vec<OsString>,
) -> Result<Truth> {
    let truth = folder.file("truth.json");
    let mut gpu: Vec<OsString> = gpu_options.iter().map(OsString::from).collect();
    gpu.extend(
        [
            "--timed",
            "--files",
            "--gpus=1",
            "--threads=1",
            "--linger-ms=300",
        ]
        .map(OsString::from),
    );
    gpu.push(format!("--timed-truth={}", truth.display()).into());
    if way == Way::Observed {
        args.push("--how=observe".into());
    } else {
        let channels = folder.file("channels.txt");
        std::fs::write(&channels, channels_file(1))?;
        args.extend(["--channels".into(), channels.into()]);
    }
    let ended = if way == Way::Start {
        args.extend(["--".into(), softgpu()?.into()]);
        args.extend(gpu);
        Running::start(&nvcap()?, args)?.end(LIMIT)?
    } else {
        gpu.extend(["--wait-stdin", "--before-wait=3"].map(OsString::from));
        let mut program = Running::start(&softgpu()?, gpu)?;
        program.wait_for_line("waiting")?;
        args.extend(["-p".into(), program.pid().to_string().into()]);
        let mut nvcap = Running::start(&nvcap()?, args)?;
        nvcap.wait_until("attached", Duration::from_secs(20), |r| {
            r.stderr().contains("attached")
        })?;
        program.write(b"g")?;
        program.end(LIMIT)?.expect_code(0)?;
        nvcap.end(Duration::from_secs(20))?
    };
    // 3: an observed ring may lap on a busy machine; what is shown must be true all the same.
    ensure!(
        matches!(ended.code()?, 0 | 3),
        "status {:?}: {}",
        ended.status,
        ended.stderr
    );
    let mut ran = Truth::new();
    for line in objects(&truth)?
        .into_iter()
        .filter(|l| l["type"] != "clock")
    {
        let at = (number(&line, "ring")?, number(&line, "position")?);
        ran.insert(at, line);
    }
    Ok(ran)
}

pub(crate) fn number(object: &Value, name: &str) -> Result<u64> {
    object[name]
        .as_u64()
        .with_context(|| format!("{name} is no number: {object}"))
}

/// A doorbell that follows its trap by more was held up, ns.
const HELD_UP: u64 = 40_000;

/// What a comparison found.
#[derive(Debug, Default)]
struct Found {
    /// Operations shown, and how many of them with a start and with a duration.
    kernels: u64,
    starts: u64,
    durations: u64,
    copies: u64,
    copies_timed: u64,
    /// Copies whose doorbell came long after its trap.
    held_up: u64,
    /// Kernels by how their durations were known.
    by: BTreeMap<String, u64>,
    /// What is not as stated, by statement and way, with an example; and of how many statements.
    wrong: BTreeMap<String, (u64, String)>,
    stated: u64,
}

impl Found {
    /// A statement holds, or is kept as wrong.
    fn state(&mut self, what: &str, off: u64, allowed: u64, shown: &Value, ran: &Value) {
        self.stated += 1;
        if off > allowed {
            let by = shown["gpu_ns_by"].as_str().unwrap_or("-");
            let key = format!("{} {what} ({by})", ran["type"].as_str().unwrap_or("-"));
            let times = shown.as_object().into_iter().flatten();
            let times =
                times.filter(|(k, _)| k.contains("gpu") || k.contains("queued") || *k == "time_ns");
            let times: serde_json::Map<_, _> = times.map(|(k, v)| (k.clone(), v.clone())).collect();
            let (count, example) = self.wrong.entry(key).or_default();
            *count += 1;
            *example = format!(
                "off by {off} ns, {allowed} allowed: {}; truth: {ran}",
                Value::from(times)
            );
        }
    }

    /// `disturbed`: the software GPU came late to the next one, whose stamp then looks as if this one had run so long.
    fn operation(&mut self, o: &Value, ran: &Value, disturbed: bool) -> Result<()> {
        let kernel = o["op"] == "launch";
        let (begin, end) = (number(ran, "start_gpu_ns")?, number(ran, "end_gpu_ns")?);
        let trapped = number(o, "time_ns")?;
        if !kernel && number(ran, "rung_ns")?.saturating_sub(trapped) > HELD_UP {
            // The thread lost its processor between the trap and its doorbell: the start of a copy cannot be known then
            // (docs/gpu-time.md, limits).
            self.held_up += 1;
            return Ok(());
        }
        ensure!(
            o.get("gpu_start_ns").is_some() && o.get("gpu_ns").is_some(),
            "no GPU times: {o}"
        );
        if o["gpu_clock_start_ns"].is_null() {
            ensure!(
                o["gpu_start_ns"].is_null(),
                "a start of one clock alone: {o}"
            );
        } else {
            let start = number(o, "gpu_clock_start_ns")?;
            let by = o["gpu_start_by"].as_str().context("gpu_start_by")?;
            ensure!((by == "own-stamp") == kernel, "a start by {by}: {o}");
            // A launch's own stamp tells its start, and the software GPU's kernels always start so long after it; a GPU's start later
            // where several channels launch, or behind a pause.
            let allowed = if kernel {
                SHARED_LATER
            } else {
                number(o, "gpu_clock_error_ns")?
            };
            self.state("gpu_clock_start_ns", start.abs_diff(begin), allowed, o, ran);
            let host = number(o, "gpu_start_ns")?.abs_diff(number(ran, "start_ns")?);
            self.state(
                "gpu_start_ns",
                host,
                number(o, "gpu_start_error_ns")?,
                o,
                ran,
            );
        }
        let disturbed = disturbed && o["gpu_ns_by"] == "next-stamp";
        if !o["gpu_ns"].is_null() && !disturbed {
            let off = number(o, "gpu_ns")?.abs_diff(end - begin);
            let by = o["gpu_ns_by"].as_str().context("gpu_ns_by")?;
            // A word that was written late was seen late.
            let late = number(ran, "end_written_ns")?.saturating_sub(number(ran, "end_ns")? + LAG);
            let late = if by == "release" { late } else { 0 };
            self.state("gpu_ns", off, number(o, "gpu_ns_error")? + late, o, ran);
            if kernel {
                *self.by.entry(by.to_owned()).or_default() += 1;
            }
        }
        if let (Some(least), Some(most)) =
            (o["queued_least_ns"].as_u64(), o["queued_most_ns"].as_u64())
        {
            // The doorbell rang between two readings of the clock.
            let began = number(ran, "start_ns")?;
            let short = began.saturating_sub(number(ran, "rung_ns")?);
            let long = began.saturating_sub(number(ran, "rings_ns")?);
            ensure!(least <= most, "{o}");
            self.state("queued_most_ns", short.saturating_sub(most), 0, o, ran);
            self.state("queued_least_ns", least.saturating_sub(long), 0, o, ran);
        }
        let (starts, times) = (!o["gpu_start_ns"].is_null(), !o["gpu_ns"].is_null());
        if kernel {
            self.kernels += 1;
            self.starts += u64::from(starts);
            self.durations += u64::from(times && !disturbed);
        } else {
            self.copies += 1;
            self.copies_timed += u64::from(starts && times);
        }
        Ok(())
    }
}

/// How much later nvcap takes a kernel to start where other channels launch, too, ns (docs/gpu-time.md).
const SHARED_LATER: u64 = 730 - STAMP_TO_START;

/// How long after its time a stamp was written, ns.
fn stamp_late(ran: &Value) -> Result<u64> {
    let stamp = match ran["type"] == "kernel" {
        true => number(ran, "start_ns")? - STAMP_TO_START,
        false => number(ran, "end_ns")?,
    };
    Ok(number(ran, "stamp_written_ns")?.saturating_sub(stamp))
}

/// A run in which every stamp was written at its time. The software GPU may lose its processor between its reading of the clock
/// and its writing of the stamp; no GPU does that, and one such stamp spoils what is learnt of the clocks.
pub(crate) fn undisturbed<T>(run: impl Fn() -> Result<(T, Truth)>) -> Result<(T, Truth)> {
    let mut late = Vec::new();
    for _ in 0..10 {
        let (shown, truth) = run()?;
        let all = truth.values().map(stamp_late).collect::<Result<Vec<_>>>()?;
        match all.into_iter().max() {
            Some(most) if most > 3_000 => late.push(most),
            _ => return Ok((shown, truth)),
        }
    }
    not_run(format!(
        "this machine is too busy: in ten runs the software GPU wrote a stamp so many ns late: {late:?}"
    ))
}

/// Compares each operation that is shown.
fn compare(shown: &[Value], truth: &Truth) -> Result<Found> {
    let mut rings = HashMap::new();
    for o in shown.iter().filter(|o| o["type"] == "channel") {
        rings.insert(number(o, "channel")?, number(o, "ring")?);
    }
    let mut at = HashMap::new();
    for o in shown.iter().filter(|o| o["type"] == "submission") {
        let ring = rings.get(&number(o, "channel")?).context("a channel")?;
        at.insert(number(o, "serial")?, (*ring, number(o, "position")?));
        let looked = o["how"] == "observed" || o["late"] == true;
        let by = if looked { "look" } else { "doorbell" };
        let expected = (!o["queued_ns"].is_null()).then_some(by);
        ensure!(o["queued_by"].as_str() == expected, "{o}");
    }
    let mut found = Found::default();
    for o in shown.iter().filter(|o| o["type"] == "operation") {
        let place = at.get(&number(o, "serial")?).context("a submission")?;
        let ran = truth
            .get(place)
            .with_context(|| format!("nothing ran at {place:x?}: {o}"))?;
        let next = truth.get(&(place.0, place.1 + 1));
        found.operation(o, ran, next.is_some_and(|n| n["delayed"] == true))?;
    }
    Ok(found)
}

/// Runs with longer and longer kernels until `enough` is shown; every run must be true.
fn compared(
    way: Way,
    submissions: u64,
    options: &[&str],
    enough: fn(&Found) -> bool,
) -> Result<()> {
    let mut all = Vec::new();
    for longer in [1, 2, 4, 8, 16, 32] {
        let mut gpu: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        gpu.push(format!("--submissions={submissions}"));
        gpu.push(format!("--timed-kernel-us={}", 50 * longer));
        let (shown, truth) = undisturbed(|| run(way, &gpu))?;
        let found = compare(&shown, &truth)?;
        // An entry may be seen in its ring before its doorbell was rung, and a word long after it was written.
        let wrong: u64 = found.wrong.values().map(|w| w.0).sum();
        if wrong > 2 + found.stated / 200 {
            let kinds = found
                .wrong
                .iter()
                .map(|(k, (n, e))| format!("{n} x {k}: {e}"));
            let kinds = kinds.collect::<Vec<_>>().join("\n");
            bail!(
                "{way:?}, {longer}: {wrong} of {} statements are wrong:\n{kinds}",
                found.stated
            );
        }
        let summary = format!(
            "{longer}: {} kernels, {} starts, {} durations, {} copies, {} timed, {:?}, {} of {} wrong",
            found.kernels,
            found.starts,
            found.durations,
            found.copies,
            found.copies_timed,
            found.by,
            wrong,
            found.stated
        );
        if std::env::var_os("NVCAP_LIVE_KEEP").is_some() {
            println!("    {way:?} {summary}");
        }
        all.push(summary);
        if enough(&found) {
            return Ok(());
        }
    }
    bail!("{way:?}: too little is shown:\n{}", all.join("\n"))
}

/// The same comparison each way.
fn all_ways(submissions: u64, options: &[&str], enough: fn(&Found) -> bool) -> Result<()> {
    each_way(&WAYS, |way| compared(way, submissions, options, enough))
}

/// Each of these ways; says of all what is wrong.
pub(crate) fn each_way(ways: &[Way], of: impl Fn(Way) -> Result<()>) -> Result<()> {
    need_tracing()?;
    let results: Vec<_> = ways.iter().map(|way| of(*way)).collect();
    let mut not_run = results
        .iter()
        .filter_map(|r| r.as_ref().err()?.downcast_ref::<NotRun>());
    if let Some(why) = not_run.next() {
        return live::harness::not_run(why.to_string());
    }
    let errors: Vec<String> = results
        .iter()
        .filter_map(|r| Some(format!("{:#}", r.as_ref().err()?)))
        .collect();
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}

/// Kernels and copies that wait behind each other: the next stamp tells their ends.
pub fn queued_ahead() -> Result<()> {
    let options = ["--channels=2", "--timed-spread=50", "--timed-lag-ns=2000"];
    all_ways(2000, &options, |f| {
        f.kernels > 900
            && 10 * f.starts > 8 * f.kernels
            && 10 * f.durations > 8 * f.kernels
            && f.by.get("next-stamp").is_some_and(|n| 2 * n > f.kernels)
            && 10 * f.copies_timed > 7 * f.copies
    })
}

/// One kernel at a time with pauses: their words tell the ends.
pub fn one_at_a_time() -> Result<()> {
    let options = [
        "--channels=1",
        "--timed-spread=50",
        "--timed-lag-ns=2000",
        "--timed-burst=1",
        "--timed-pause-us=200",
    ];
    all_ways(600, &options, |f| {
        f.kernels > 500
            && 10 * f.starts > 8 * f.kernels
            && 10 * f.durations > 7 * f.kernels
            && f.by.keys().all(|by| by == "release")
    })
}

/// The same without words: nothing tells when a kernel ended before the next one was submitted, and no duration is made up.
pub fn ends_that_nothing_tells() -> Result<()> {
    let options = [
        "--channels=1",
        "--timed-no-ends",
        "--timed-burst=1",
        "--timed-pause-us=500",
    ];
    all_ways(400, &options, |f| {
        f.kernels > 300 && 10 * f.starts > 8 * f.kernels && 50 * f.durations < f.kernels
    })
}

/// Two channels at once, with a clock that is far from the host's and drifts fast.
pub fn another_clock() -> Result<()> {
    let options = [
        "--channels=4",
        "--timed-lag-ns=2000",
        "--timed-clock-us=-3000000",
        "--timed-drift-ppm=150",
    ];
    all_ways(3000, &options, |f| {
        f.kernels > 700 && 10 * f.starts > 7 * f.kernels && 10 * f.durations > 7 * f.kernels
    })
}

/// The processor time that the thread which reads stamps has taken, ns.
fn reader_ns(nvcap: u32) -> Result<u64> {
    for task in std::fs::read_dir(format!("/proc/{nvcap}/task"))? {
        let task = task?.path();
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        if name.trim_end() == "nvcap-stamps" {
            let times = std::fs::read_to_string(task.join("schedstat"))?;
            let ran = times.split(' ').next().context("schedstat")?;
            return Ok(ran.parse()?);
        }
    }
    bail!("no thread nvcap-stamps")
}

fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}

/// Runs kernels of 400 us behind each other under nvcap with these options, which have its thread that reads stamps take 5 % of a
/// processor: it does.
fn limited(truth: &Path, kernels: u64, mut options: Vec<OsString>) -> Result<()> {
    let of_gpu = "--timed --files --gpus=1 --threads=1 --channels=1 --timed-kernel-us=400 \
                  --timed-lag-ns=2000 --linger-ms=300 --wait-stdin --before-wait=3";
    let mut gpu: Vec<OsString> = of_gpu.split_whitespace().map(OsString::from).collect();
    gpu.push(format!("--submissions={kernels}").into());
    gpu.push(format!("--timed-truth={}", truth.display()).into());
    let mut program = Running::start(&softgpu()?, gpu)?;
    program.wait_for_line("waiting")?;
    options.extend(["-p".into(), program.pid().to_string().into()]);
    let mut nvcap = Running::start(&nvcap()?, options)?;
    nvcap.wait_until("attached", Duration::from_secs(20), |r| {
        r.stderr().contains("attached")
    })?;
    program.write(b"g")?;
    std::thread::sleep(Duration::from_millis(300));
    let (began, before) = (Instant::now(), reader_ns(nvcap.pid())?);
    std::thread::sleep(Duration::from_secs(1));
    let took = reader_ns(nvcap.pid())? - before;
    let share = took as f64 / began.elapsed().as_nanos() as f64;
    ensure!(
        (0.005..0.08).contains(&share),
        "took {share} of a processor"
    );
    program.end(LIMIT)?.expect_code(0)?;
    nvcap.end(Duration::from_secs(20))?;
    Ok(())
}

/// `--observe-cpu` with `--gpu-time`: half of it is for reading stamps, and all of nvcap takes no more than it.
pub fn half_of_the_budget() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let (trace, truth) = (folder.file("trace.json"), folder.file("truth.json"));
    let options = "--how observe --observe-cpu 10% --gpu-time --json -e op=launch -o";
    let mut options: Vec<OsString> = options.split(' ').map(OsString::from).collect();
    options.push(trace.clone().into());
    limited(&truth, 8000, options)?;
    let shown = objects(&trace)?;
    let timed = shown.iter().filter(|o| !o["gpu_ns"].is_null()).count();
    let ledger = shown.iter().find(|o| o["type"] == "ledger");
    let ledger = ledger.context("no ledger")?;
    let ns = |name: &str| ledger["observed"][name].as_f64().unwrap_or(f64::NAN);
    let used = ns("cpu_ns") / ns("wall_ns");
    ensure!(timed > 20 && ns("wall_ns") > 2e9, "{timed} timed: {ledger}");
    // Up to a second's worth may be saved, and is available at the start (observe::the_budget_is_kept).
    let most = 0.1 * (1.0 + 1e9 / ns("wall_ns")) * 1.25 + 0.01;
    ensure!(used < most, "{used} of a core instead of 0.1: {ledger}");
    Ok(())
}

/// `--gpu-time-cpu`: the thread takes that part of a processor, and what it sees in bursts tells the whole.
pub fn a_part_of_a_processor() -> Result<()> {
    need_tracing()?;
    let refused = ["time", "--gpu-time-cpu", "500%", "-p", "1"].map(OsString::from);
    let refused = Running::start(&nvcap()?, refused.to_vec())?.end(LIMIT)?;
    refused.expect_code(2)?;
    let says = "give percent from 0.01 to 100";
    ensure!(refused.stderr.contains(says), "{}", refused.stderr);

    let folder = Folder::new()?;
    let (sums, truth) = (folder.file("sums.json"), folder.file("truth.json"));
    let options = ["time", "--json", "--gpu-time-cpu", "5%", "-o"].map(OsString::from);
    let options = [&options[..], &[sums.clone().into()]].concat();
    limited(&truth, 5000, options)?;

    let mut lengths = Vec::new();
    for ran in objects(&truth)?.iter().filter(|o| o["type"] == "kernel") {
        lengths.push(number(ran, "end_gpu_ns")? - number(ran, "start_gpu_ns")?);
    }
    let truth = median(lengths);
    let all = objects(&sums)?;
    let time = all.iter().find(|o| o["type"] == "gpu_time");
    let time = time.context("no sums")?;
    let read = time["stamp_read_share"].as_f64().context("a share")?;
    let bursts = time["stamp_read_bursts"].as_u64().unwrap_or(0);
    ensure!(
        (0.01..0.2).contains(&read) && bursts > 15,
        "{read}, {bursts} bursts"
    );
    let kernels = time["kernels"].as_array().context("kernels")?;
    // Nearly each of the kernels is another one. On a busy machine a few run for very long: medians say more than sums.
    let timed = |k: &&Value| k["gpu"]["timed"].as_u64() > Some(0);
    let means = kernels.iter().filter(timed);
    let means: Vec<u64> = means.filter_map(|k| k["gpu"]["mean_ns"].as_u64()).collect();
    let (timed, mean) = (means.len(), median(means));
    ensure!(
        timed > 40 && mean.abs_diff(truth) < truth / 5,
        "{timed} timed, {mean} ns each; {truth} ns in truth"
    );
    let work = &time["gpus"][0]["work"];
    let (busy, idle) = (number(work, "busy_ns")?, number(work, "idle_ns")?);
    // The kernels wait behind each other.
    ensure!(
        busy > 9 * idle && time["gpus"][0]["verdict"] == "GPU-bound",
        "{work}"
    );
    ensure!(
        work["busy_share_error"].as_f64().is_some_and(|e| e < 0.2),
        "{work}"
    );
    Ok(())
}
