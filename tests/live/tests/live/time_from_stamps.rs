//! `nvcap --gpu-time` on the software GPU that runs its submissions in a GPU's time: what nvcap shows against what ran.
//!
//! The software GPU is in step with nvcap: it goes on only once nvcap has read what it wrote. So everything that the rules can tell must be
//! shown, on any machine, and must be true within the error that is stated with it. Errors are large where nvcap loses its processor: what
//! needs precise times is demanded only where nvcap states such.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use live::harness::NotRun;
use live::in_step::Step;
pub(crate) use live::json_lines::of_file as objects;
use live::programs::{Folder, Running, nvcap, softgpu};
use serde_json::Value;
use softgpu::layout::channels_file;
use softgpu::timed::STAMP_TO_START;

use crate::setup::{LIMIT, need_tracing};

pub(crate) const SHOWN: &str = "type=submission||op=launch||op=copy&&op!=inline";
/// Submissions of each channel before nvcap is there, where it is attached.
const BEFORE: u64 = 3;
/// Longest time that programs in step may take: longer than they wait for each other.
const GUARD: Duration = Duration::from_secs(180);

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

/// Work that ran, by ring and position.
pub(crate) type Truth = HashMap<(u64, u64), Value>;

/// Runs the software GPU with these options under nvcap; returns nvcap's objects and the truth.
fn run(way: Way, gpu_options: &[String]) -> Result<(Vec<Value>, Truth)> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = ["--gpu-time", "--json", "-e", SHOWN, "-o"]
        .map(OsString::from)
        .to_vec();
    args.push(trace.clone().into());
    let ran = run_with(way, gpu_options, (&folder, &Step::new(&folder)?), args)?;
    Ok((objects(&trace)?, ran))
}

/// Makes nvcap tell how far it has read, and wait for times as long as a program in step takes.
pub(crate) fn in_step(step: &Step) -> impl FnOnce(&mut Command) {
    let prepare = step.prepare();
    move |command| {
        prepare(command);
        first(command);
    }
}

/// Makes a program run somewhat more than others, where that may be asked for: programs that wait for each other take long beside others. More would
/// starve the tests beside it.
fn first(command: &mut Command) {
    let ask = || {
        // SAFETY: sets the niceness of the calling process.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -5) };
        Ok(())
    };
    // SAFETY: the closure calls nothing but setpriority, which is a system call and nothing else.
    unsafe { command.pre_exec(ask) };
}

/// Runs the software GPU with these options in step with nvcap with these arguments; returns the truth.
pub(crate) fn run_with(
    way: Way,
    gpu_options: &[String],
    (folder, step): (&Folder, &Step),
    mut args: Vec<OsString>,
) -> Result<Truth> {
    let truth = folder.file("truth.json");
    let mut gpu: Vec<OsString> = gpu_options.iter().map(OsString::from).collect();
    // A submission's times are awaited for a limited time: few wait for the GPU at once.
    let of_each = "--timed --files --gpus=1 --threads=1 --timed-queue=4";
    gpu.extend(of_each.split(' ').map(OsString::from));
    gpu.push(format!("--timed-truth={}", truth.display()).into());
    gpu.extend(step.args().into_iter().map(OsString::from));
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
        Running::start_prepared(&nvcap()?, args, None, in_step(step))?.end(GUARD)?
    } else {
        gpu.extend([
            "--wait-stdin".into(),
            format!("--before-wait={BEFORE}").into(),
        ]);
        let mut program = Running::start_prepared(&softgpu()?, gpu, None, first)?;
        program.wait_for_line("waiting")?;
        args.extend(["-p".into(), program.pid().to_string().into()]);
        let mut nvcap = Running::start_prepared(&nvcap()?, args, None, in_step(step))?;
        nvcap.wait_until("attached", LIMIT, |r| r.stderr().contains("attached"))?;
        program.write(b"g")?;
        // It ends with its standard input: a process that goes away behind its last submission is not seen to its end where it is observed.
        program.wait_until("done", GUARD, |r| r.stdout().contains("done image=0"))?;
        nvcap.signal(libc::SIGTERM)?;
        let ended = nvcap.end(LIMIT)?;
        program.end(GUARD)?.expect_code(0)?;
        ended
    };
    ended.expect_code(0)?;
    let mut ran = Truth::new();
    for line in objects(&truth)?
        .into_iter()
        .filter(|l| l["type"] != "clock")
    {
        let at = (number(&line, "ring")?, number(&line, "position")?);
        ensure!(line["delayed"] == false, "not in step: {line}");
        ran.insert(at, line);
    }
    Ok(ran)
}

pub(crate) fn number(object: &Value, name: &str) -> Result<u64> {
    object[name]
        .as_u64()
        .with_context(|| format!("{name} is no number: {object}"))
}

/// Findings of a comparison.
#[derive(Debug, Default)]
struct TimeFindings {
    /// Operations shown, and how many of them with a start and with a duration.
    kernels: u64,
    starts: u64,
    durations: u64,
    copies: u64,
    copies_timed: u64,
    /// Time until which nvcap was not ready, ns of the host: later submissions must have their times.
    ready: u64,
    /// Kernels of these whose ends nothing told.
    endless: u64,
    /// Times at which operations began that have no start (copies: no time); then those of kernels, and how far they may be wrong: ns of the host.
    untimed: Vec<u64>,
    errors: Vec<(u64, u64)>,
    /// Kernels whose durations are made up, because the one behind them began long after it was there, and waited for nothing.
    made_up: u64,
    /// Kernels behind which the next entry waited, as it did in truth, for so long as nvcap says that the next stamp tells their ends.
    told_by_next: u64,
    /// Kernels by how their durations were known.
    by: BTreeMap<String, u64>,
    /// Statements that are wrong, by statement and way, with an example; and the number of all statements.
    wrong: BTreeMap<String, (u64, String)>,
    stated: u64,
}

impl TimeFindings {
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

    /// Compares an operation. `looked`: it was found in the ring. `next`: what ran behind it on its channel.
    fn operation(
        &mut self,
        o: &Value,
        ran: &Value,
        looked: bool,
        next: Option<&Value>,
    ) -> Result<()> {
        let kernel = o["op"] == "launch";
        // A kernel's time is counted from its stamp.
        let stamped = number(ran, "stamp_gpu_ns")?;
        let (exec, end) = (number(ran, "start_gpu_ns")?, number(ran, "end_gpu_ns")?);
        let (start, launch) = if kernel {
            (stamped, exec - stamped)
        } else {
            (exec, 0)
        };
        // Where nothing was ahead of a copy, its start follows from its doorbell, which rang at some time between two readings of the clock.
        let ringing = number(ran, "rung_ns")? - number(ran, "rings_ns")?;
        let unknown = if kernel || ran["queued"] == true {
            0
        } else {
            ringing
        };
        let began = number(ran, "start_ns")? - launch;
        let from_truth = |told: u64, truth: u64| match told < truth {
            true => (truth - unknown).saturating_sub(told),
            false => told - truth,
        };
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
            let told = number(o, "gpu_clock_start_ns")?;
            let by = o["gpu_start_by"].as_str().context("gpu_start_by")?;
            ensure!((by == "own-stamp") == kernel, "a start by {by}: {o}");
            let off = from_truth(told, start);
            self.state(
                "gpu_clock_start_ns",
                off,
                number(o, "gpu_clock_error_ns")?,
                o,
                ran,
            );
            if kernel {
                // The software GPU's kernels always run their first instruction so long after the stamp; a GPU's later where several
                // channels launch, or behind a pause.
                let off = number(o, "gpu_launch_ns")?.abs_diff(launch);
                self.state("gpu_launch_ns", off, SHARED_LATER, o, ran);
            }
            let host = from_truth(number(o, "gpu_start_ns")?, began);
            let allowed = number(o, "gpu_start_error_ns")?;
            self.state("gpu_start_ns", host, allowed, o, ran);
        }
        let made_up = o["gpu_ns_by"] == "next-stamp" && looks_as_if_it_had_waited(o, next)?;
        if !o["gpu_ns"].is_null() && !made_up {
            let told = number(o, "gpu_ns")?;
            let by = o["gpu_ns_by"].as_str().context("gpu_ns_by")?;
            // The software GPU may lose its processor between a kernel's end and the write of the word that tells it.
            let written = match by {
                "release" => number(ran, "end_written_ns")?.saturating_sub(number(ran, "end_ns")?),
                _ => 0,
            };
            let beside = |told: u64, least: u64, most: u64| {
                least.saturating_sub(told).max(told.saturating_sub(most))
            };
            let off = beside(told, end - start, end - start + unknown + written);
            self.state("gpu_ns", off, number(o, "gpu_ns_error")?, o, ran);
            if kernel {
                let executed = number(o, "gpu_exec_ns")?;
                let off = beside(executed, end - exec, end - exec + written);
                let allowed = number(o, "gpu_exec_ns_error")?;
                self.state("gpu_exec_ns", off, allowed, o, ran);
                *self.by.entry(by.to_owned()).or_default() += 1;
            }
        }
        if let (Some(least), Some(most)) =
            (o["queued_least_ns"].as_u64(), o["queued_most_ns"].as_u64())
        {
            // A look may find it before its doorbell rings.
            let from = number(ran, if looked { "put_ns" } else { "rings_ns" })?;
            let short = (began - unknown).saturating_sub(number(ran, "rung_ns")?);
            let long = began.saturating_sub(from);
            ensure!(least <= most, "{o}");
            self.state("queued_most_ns", short.saturating_sub(most), 0, o, ran);
            self.state("queued_least_ns", least.saturating_sub(long), 0, o, ran);
        }
        let (starts, times) = (!o["gpu_start_ns"].is_null(), !o["gpu_ns"].is_null());
        let required = number(ran, "put_ns")? > self.ready;
        if required && (!starts || !times && !kernel) {
            self.untimed.push(began);
        } else if kernel && starts {
            self.errors.push((began, number(o, "gpu_start_error_ns")?));
            self.endless += u64::from(required && !times);
        }
        if kernel {
            self.kernels += 1;
            self.starts += u64::from(starts);
            self.durations += u64::from(times && !made_up);
            self.made_up += u64::from(made_up);
        } else {
            self.copies += 1;
            self.copies_timed += u64::from(starts && times);
        }
        Ok(())
    }
}

/// An operation has no time where the clocks are not known to 10 ms: nor are they to this beside it, then, ns.
const VAGUE_NS: u64 = 1_000_000;

impl TimeFindings {
    /// Counts the operations that have no time because stamps were read too late to tell how the clocks differ.
    fn vague(&self) -> u64 {
        let is_vague = |at: &&u64| {
            let nearest = self.errors.iter().min_by_key(|(t, _)| t.abs_diff(**at));
            nearest.is_none_or(|(_, error)| *error > VAGUE_NS)
        };
        self.untimed.iter().filter(is_vague).count() as u64
    }
}

/// Time in the queue, at least, that leaves no doubt that an entry waited for the one before it (docs/gpu-time.md: 30 us), ns.
const WAITED_NS: u64 = 100_000;
/// Number of such entries of which some must have told the end of the one before.
const SOME: u64 = 10;

/// Delay from which on a kernel on an idle GPU looks as if it had waited for the kernel before it, as far as the clocks tell (docs/gpu-time.md,
/// limits), ns. Work begins some us after its doorbell; later where a thread of the software GPU loses its processor.
const BEGINS_NS: u64 = 25_000;

/// True where the submission behind this one waited for nothing, and began so late that its stamp looks as if it had.
fn looks_as_if_it_had_waited(o: &Value, next: Option<&Value>) -> Result<bool> {
    let Some(next) = next.filter(|n| n["queued"] == false) else {
        return Ok(false);
    };
    let waited = number(next, "start_ns")? - STAMP_TO_START - number(next, "put_ns")?;
    Ok(waited + number(o, "gpu_start_error_ns")? > BEGINS_NS)
}

/// Time by which nvcap takes a kernel to start later where other channels launch, too, ns (docs/gpu-time.md).
const SHARED_LATER: u64 = 730 - STAMP_TO_START;

/// Compares each operation that is shown.
fn compare(shown: &[Value], truth: &Truth, from: u64) -> Result<TimeFindings> {
    let mut rings = HashMap::new();
    for o in shown.iter().filter(|o| o["type"] == "channel") {
        rings.insert(number(o, "channel")?, number(o, "ring")?);
    }
    let mut at = HashMap::new();
    for o in shown.iter().filter(|o| o["type"] == "submission") {
        let ring = rings.get(&number(o, "channel")?).context("a channel")?;
        let looked = o["how"] == "observed" || o["late"] == true;
        let place = (*ring, number(o, "position")?);
        at.insert(number(o, "serial")?, (place, looked));
        let by = if looked { "look" } else { "doorbell" };
        let expected = (!o["queued_ns"].is_null()).then_some(by);
        ensure!(o["queued_by"].as_str() == expected, "{o}");
    }
    // The first of each channel last until nvcap has got ready, which may take it a second: that is far from the next stamp.
    let firsts = truth.iter().filter(|(at, _)| at.1 == from);
    let ends = firsts.map(|(_, t)| number(t, "end_ns"));
    let ends = ends.collect::<Result<Vec<_>>>()?;
    let mut found = TimeFindings {
        ready: ends.into_iter().max().unwrap_or(0),
        ..TimeFindings::default()
    };
    let operations = || shown.iter().filter(|o| o["type"] == "operation");
    let mut waited = HashSet::new();
    for o in operations() {
        let (place, _) = at.get(&number(o, "serial")?).context("a submission")?;
        if o["queued_least_ns"].as_u64() >= Some(WAITED_NS) {
            waited.insert(*place);
        }
    }
    for o in operations() {
        let (place, looked) = at.get(&number(o, "serial")?).context("a submission")?;
        let ran = truth
            .get(place)
            .with_context(|| format!("nothing ran at {place:x?}: {o}"))?;
        let behind = (place.0, place.1 + 1);
        let next = truth.get(&behind);
        let is_told = o["op"] == "launch"
            && waited.contains(&behind)
            && next.is_some_and(|n| n["queued"] == true);
        found.told_by_next += u64::from(is_told);
        found.operation(o, ran, *looked, next)?;
    }
    Ok(found)
}

/// Evidence of the ends of a run's kernels. The next stamp is such where the next kernel waited.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// The next stamp, and words.
    Both,
    /// Words.
    Words,
    /// Nothing.
    Nothing,
}

/// Runs this number of submissions, and compares: every statement is true, and everything is known that can be.
fn compared(way: Way, submissions: u64, options: &[&str], ends: Ends) -> Result<()> {
    let mut gpu: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
    gpu.push(format!("--submissions={submissions}"));
    let (shown, truth) = run(way, &gpu)?;
    let from = if way == Way::Start { 0 } else { BEFORE };
    let found = compare(&shown, &truth, from)?;
    let summary = format!(
        "{way:?}: {} kernels, {} starts, {} durations and {} made up, {} copies, {} timed, {} when the clocks were vague, {:?}, {} behind which the next waited for long, {} statements",
        found.kernels,
        found.starts,
        found.durations,
        found.made_up,
        found.copies,
        found.copies_timed,
        found.vague(),
        found.by,
        found.told_by_next,
        found.stated
    );
    if std::env::var_os("NVCAP_LIVE_KEEP").is_some() {
        println!("    {summary}");
    }
    if !found.wrong.is_empty() {
        let kinds = found
            .wrong
            .iter()
            .map(|(k, (n, e))| format!("{n} x {k}: {e}"));
        bail!(
            "{summary}, of them wrong:\n{}",
            kinds.collect::<Vec<_>>().join("\n")
        );
    }
    let ran = |kind: &str, positions: std::ops::Range<u64>| {
        let of = |(at, t): &(&(u64, u64), &Value)| t["type"] == kind && positions.contains(&at.1);
        truth.iter().filter(of).count() as u64
    };
    let (kernels, copies) = (ran("kernel", from..u64::MAX), ran("copy", from..u64::MAX));
    ensure!(kernels > 0, "no kernel ran: {summary}");
    // One that was there before may be found, too.
    let all = |kind: &str, count: u64| count..=count + ran(kind, 0..from);
    let shown = all("kernel", kernels).contains(&found.kernels)
        && all("copy", copies).contains(&found.copies);
    ensure!(
        shown,
        "{kernels} kernels and {copies} copies ran: {summary}"
    );
    let untimed = found.untimed.len() as u64 - found.vague();
    ensure!(untimed == 0, "{untimed} have no start: {summary}");
    // Those by the next stamp are no more than have waited; whether the clocks are known well enough for it is another thing: there must be some
    // where nvcap itself says that many have waited for long.
    let waited = |(at, t): &(&(u64, u64), &Value)| {
        t["type"] == "kernel" && at.1 > from && t["queued"] == true
    };
    let waited = truth.iter().filter(waited).count() as u64;
    let by_next = found.by.get("next-stamp").copied().unwrap_or(0);
    let known = match ends {
        Ends::Both => found.endless == 0 && (by_next > 0 || found.told_by_next < SOME),
        Ends::Words => found.endless == 0,
        Ends::Nothing => found.durations == by_next,
    };
    ensure!(
        known && by_next <= waited,
        "{ends:?}, {waited} waited: {summary}"
    );
    Ok(())
}

/// Compares each way.
fn all_ways(submissions: u64, options: &[&str], ends: Ends) -> Result<()> {
    each_way(&WAYS, |way| compared(way, submissions, options, ends))
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
    let options = [
        "--channels=2",
        "--timed-kernel-us=50",
        "--timed-spread=50",
        "--timed-lag-ns=900",
    ];
    all_ways(240, &options, Ends::Both)
}

/// One kernel at a time with pauses: their words tell the ends, as long after them as nvcap takes it until it has learnt that.
pub fn one_at_a_time() -> Result<()> {
    let options = [
        "--channels=1",
        "--timed-kernel-us=50",
        "--timed-spread=50",
        "--timed-lag-ns=390",
        "--timed-burst=1",
        "--timed-pause-us=200",
    ];
    all_ways(120, &options, Ends::Words)
}

/// Kernels without words, one at a time with pauses: nothing tells when a kernel ended before the next one was submitted, and no duration is made up.
pub fn ends_that_nothing_tells() -> Result<()> {
    let options = [
        "--channels=1",
        "--timed-no-ends",
        "--timed-burst=1",
        "--timed-pause-us=500",
    ];
    all_ways(120, &options, Ends::Nothing)
}

/// Two channels at once, with a clock that is far from the host's and drifts fast.
pub fn another_clock() -> Result<()> {
    let options = [
        "--channels=4",
        "--timed-kernel-us=50",
        "--timed-lag-ns=900",
        "--timed-clock-us=-3000000",
        "--timed-drift-ppm=150",
    ];
    all_ways(400, &options, Ends::Both)
}

/// The share of a processor for reading stamps is a share.
pub fn a_part_of_a_processor() -> Result<()> {
    for (share, says) in [
        ("500%", "give percent from 0.01 to 100"),
        ("0%", "give percent from 0.01 to 10000"),
    ] {
        let refused = ["time", "--gpu-time-cpu", share, "-p", "1"];
        let refused = Running::start(&nvcap()?, refused)?.end(LIMIT)?;
        refused.expect_code(2)?;
        ensure!(refused.stderr.contains(says), "{}", refused.stderr);
    }
    Ok(())
}
