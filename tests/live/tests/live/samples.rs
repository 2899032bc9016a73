//! `--sample`: what is estimated from samples of running software GPUs, against what their plans and their truth say.
//!
//! Chance chooses the samples, so an estimate is allowed three times its stated 95 % interval (sums of bytes have long tails),
//! and three of four must lie within once. The few values of one run miss that by chance in a run of some hundred (those of one process are
//! not independent): then the values of up to three runs are judged together.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use live::programs::{Folder, Running, nvcap};
use serde_json::Value;
use softgpu::kernels;
use softgpu::layout::Channel;
use softgpu::plan::Plan;
use softgpu::stream::{Ends, Op, Shape};

use super::counts::{ask, newest, serve, value};
use super::dump::{plan, start};

const LIMIT: Duration = Duration::from_secs(90);
/// Submissions of each channel before nvcap looks.
const BEFORE: u64 = 2;

fn named_kernels(plan: Plan) -> Plan {
    let shape = Shape {
        kernels: true,
        ..plan.shape
    };
    Plan { shape, ..plan }
}

/// Sums of what a plan submits, by what they are of.
type Sums = BTreeMap<String, f64>;

/// Which way the copies of a channel go. The data of the software GPU lie in memory that it does not map, so that the runlist tells
/// (docs/decoding.md).
fn path(channel: Channel) -> &'static str {
    match channel.runlist() {
        1 => "h2d",
        3 => "d2h",
        _ => "unknown",
    }
}

/// What the plan has after the first `BEFORE` submissions of each channel, in the words of nvcap's metrics.
fn planned(plan: &Plan) -> Sums {
    let mut sums = Sums::new();
    let mut add = |what: String, more: u64| *sums.entry(what).or_default() += more as f64;
    for (i, channel) in plan.channels.iter().enumerate() {
        let path = path(*channel);
        for submission in plan.stream(i).skip(BEFORE as usize) {
            add("submissions".to_owned(), 1);
            for entry in &submission.entries {
                add("pushbuffer_bytes".to_owned(), entry.bytes.len() as u64);
            }
            for op in &submission.ops {
                match op {
                    Op::Launch { fields, .. } => {
                        add("kernel_launches".to_owned(), 1);
                        add(format!("program {}", fields.program.0), 1);
                    }
                    Op::Copy { bytes, lines, .. } => {
                        add(format!("engine {path} operations"), 1);
                        let bytes = u64::from(*bytes) * u64::from(*lines);
                        add(format!("engine {path} bytes"), bytes);
                    }
                    Op::Fill { words, .. } => {
                        add("engine memset operations".to_owned(), 1);
                        add("engine memset bytes".to_owned(), 4 * u64::from(*words));
                    }
                    _ => {}
                }
            }
        }
    }
    sums
}

/// An estimate and the half of its 95 % interval.
fn estimate(of: &Value) -> Result<(f64, f64)> {
    let number = |name: &str| of[name].as_f64().with_context(|| format!("{name} in {of}"));
    Ok((number("estimate")?, number("error_95")?))
}

/// The estimates of a process's samples, by the names of `planned`.
fn estimated(samples: &Value) -> Result<BTreeMap<String, (f64, f64)>> {
    let mut all = BTreeMap::new();
    for name in ["kernel_launches", "pushbuffer_bytes"] {
        all.insert(name.to_owned(), estimate(&samples[name])?);
    }
    for copy in samples["copies"].as_array().context("copies")? {
        let of = |name: &str| copy[name].as_str().unwrap_or_default().to_owned();
        let (kind, path) = (of("kind"), of("path"));
        for what in ["operations", "bytes"] {
            all.insert(format!("{kind} {path} {what}"), estimate(&copy[what])?);
        }
    }
    for kernel in samples["kernels"].as_array().context("kernels")? {
        let program = kernel["program"].as_u64().context("no program")?;
        all.insert(format!("program {program}"), estimate(&kernel["launches"])?);
    }
    Ok(all)
}

/// How estimates lie to the truth.
#[derive(Debug, Default)]
struct Judged {
    all: u32,
    within: u32,
    far: Vec<String>,
}

impl Judged {
    /// The truth should be in the interval, of which `half` is the half width.
    fn take(&mut self, what: &str, truth: f64, (estimate, half): (f64, f64)) {
        let off = (estimate - truth).abs();
        self.all += 1;
        self.within += u32::from(off <= half + 1e-9 * truth);
        if off > 3.0 * half + 1e-9 * truth {
            let line = format!("{what}: {estimate} ± {half}, but it is {truth}");
            self.far.push(line);
        }
    }

    /// Each misses once in 20, and those of one process are not independent.
    fn enough_within(&self) -> bool {
        4 * self.within >= 3 * self.all
    }
}

/// Runs with other seeds until enough of the values are in their intervals, those of all runs together; three times at most. A value that is
/// far off ends it at once.
fn judge<const N: usize>(run: impl Fn(u64, &mut [Judged; N]) -> Result<()>) -> Result<()> {
    let mut judged = std::array::from_fn(|_| Judged::default());
    for seeds in [0, 10, 20] {
        run(seeds, &mut judged)?;
        for of_these in &judged {
            ensure!(of_these.far.is_empty(), "{}", of_these.far.join("\n"));
        }
        if judged.iter().all(Judged::enough_within) {
            return Ok(());
        }
    }
    bail!("after three runs too few are in their intervals: {judged:?}")
}

/// Whatever was planned was estimated; `judged` takes whether the truth is in the stated intervals.
fn compare(
    truth: &Sums,
    estimated: &BTreeMap<String, (f64, f64)>,
    judged: &mut Judged,
) -> Result<()> {
    let before = judged.all;
    for (what, truth) in truth.iter().filter(|(what, _)| *what != "submissions") {
        let got = estimated.get(what);
        let got = got.with_context(|| format!("no {what} among {:?}", estimated.keys()))?;
        // Wider intervals would hold anything.
        ensure!(
            got.1 < 0.6 * truth,
            "{what}: {got:?} of {truth} says little"
        );
        judged.take(what, *truth, *got);
    }
    ensure!(judged.all - before >= 15, "{judged:?}");
    Ok(())
}

/// What the timed software GPU did from one time to another (CLOCK_MONOTONIC, ns).
struct Ran {
    /// By program: the time in which its kernels ran.
    kernels: BTreeMap<u64, f64>,
    /// The part of the time in which there was work.
    busy: f64,
}

fn ran(truth: &Path, plan: &Plan, (from, to): (u64, u64)) -> Result<Ran> {
    let text = std::fs::read_to_string(truth)?;
    let programs: Vec<(u64, Vec<u64>)> = (0..plan.channels.len())
        .map(|i| {
            let program = |ops: &[Op]| match ops.first() {
                Some(Op::Launch { fields, .. }) => fields.program.0,
                _ => 0,
            };
            let all = plan.stream(i).map(|s| program(&s.ops)).collect();
            (plan.channels[i].ring(), all)
        })
        .collect();
    let programs: BTreeMap<u64, Vec<u64>> = programs.into_iter().collect();
    let mut ran = Ran {
        kernels: BTreeMap::new(),
        busy: 0.0,
    };
    let mut working = Vec::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line)?;
        if line["type"] != "kernel" {
            continue;
        }
        let number = |name: &str| {
            line[name]
                .as_u64()
                .with_context(|| format!("{name}: {line}"))
        };
        let within = |ns: u64| ns.clamp(from, to);
        let of_ring = programs.get(&number("ring")?).context("another ring")?;
        let program = of_ring.get(number("position")? as usize);
        let program = *program.context("another position")?;
        let (start, end) = (within(number("start_ns")?), within(number("end_ns")?));
        *ran.kernels.entry(program).or_default() += end.saturating_sub(start) as f64;
        working.push((
            within(number("rung_ns")?),
            within(number("end_written_ns")?),
        ));
    }
    working.sort_unstable();
    let mut until = from;
    for (begin, end) in working {
        ran.busy += end.saturating_sub(begin.max(until)) as f64;
        until = until.max(end);
    }
    ran.busy /= (to - from) as f64;
    Ok(ran)
}

/// A time of nvcap's (seconds since the epoch) as CLOCK_MONOTONIC, ns.
fn monotonic(seconds: f64) -> Result<u64> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() - seconds;
    let now = now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9;
    Ok(((now - since) * 1e9) as u64)
}

/// The first and the newest line about a process.
fn lines(text: &str, pid: u32) -> Vec<Value> {
    let parsed = text.lines().filter_map(|l| serde_json::from_str(l).ok());
    let of = |v: &Value| v["type"] == "process" && v["pid"] == pid;
    parsed.filter(of).collect()
}

fn share(of: &Value) -> Result<(f64, (f64, f64))> {
    let number = |v: &Value| v.as_f64().with_context(|| format!("no share: {of}"));
    let interval = &of["interval_95"];
    Ok((
        number(&of["share"])?,
        (number(&interval[0])?, number(&interval[1])?),
    ))
}

/// A process with work of all kinds, which nvcap sees from a known submission on.
fn mixed(seed: u64) -> Result<(Plan, Running)> {
    let plan = named_kernels(plan(seed, 10, 14_000));
    let args = [
        "--kernels",
        "--wait-stdin",
        "--before-wait=2",
        "--sleep-us=400",
        "--linger-ms=120000",
    ];
    let mut gpu = start(&plan, &args)?;
    gpu.wait_for_line("waiting")?;
    Ok((plan, gpu))
}

/// A fleet of two: of one the totals of launches by kernel, copies and bytes are known, of the other when each kernel ran.
pub fn a_fleet() -> Result<()> {
    judge(one_fleet)
}

/// `seeds` are added to the software GPUs' own. The values of the one process, and those of the other.
fn one_fleet(seeds: u64, [of_sums, of_times]: &mut [Judged; 2]) -> Result<()> {
    let folder = Folder::new()?;
    let truth = folder.file("truth.json");
    let timed_plan = Plan {
        channels: vec![Channel { gpu: 0, index: 0 }],
        shape: Shape {
            timed: Some(Ends::Released),
            ..named_kernels(plan(62 + seeds, 1, 9000)).shape
        },
        ..plan(62 + seeds, 1, 9000)
    };
    let to = format!("--timed-truth={}", truth.display());
    let args = [
        "--kernels",
        "--timed",
        "--timed-kernel-us=1500",
        "--timed-spread=60",
        "--timed-burst=10",
        "--timed-pause-us=10000",
        "--timed-lag-ns=2000",
        &to,
    ];
    let timed = start(&timed_plan, &[&args[..], &["--threads=1"]].concat())?;
    let (mixed_plan, mut mixed) = mixed(61 + seeds)?;
    let (timed_pid, mixed_pid) = (timed.pid().to_string(), mixed.pid().to_string());
    let mut counts = Running::start(
        &nvcap()?,
        [
            "counts",
            "-p",
            &timed_pid,
            "-p",
            &mixed_pid,
            "--sample=4%",
            "--json",
            "--interval=0.25",
        ],
    )?;
    counts.wait_until("counting", LIMIT, |r| {
        newest(&r.stdout(), mixed.pid()).is_some()
    })?;
    mixed.write(b"g")?;
    let expected = planned(&mixed_plan);
    let all = expected.get("submissions").copied().unwrap_or_default();
    let began = Instant::now();
    // Until all submissions of the one are in its samples, and enough moments of the other.
    counts.wait_until("sampled", LIMIT, |r| {
        let text = r.stdout();
        let of = |pid, name: &str| newest(&text, pid)?["sampled"][name].as_f64();
        of(mixed.pid(), "submissions") == Some(all)
            && of(timed.pid(), "moments").is_some_and(|n| n > 600.0)
            || began.elapsed() > LIMIT / 2
    })?;
    // Not SIGINT, which whoever starts the tests in the background may have set to be ignored.
    counts.signal(libc::SIGTERM)?;
    let (id, timed_id) = (mixed.pid(), timed.pid());
    let counts = counts.end(LIMIT)?;
    let of_mixed = newest(&counts.stdout, id).context("no line")?;
    let samples = &of_mixed["sampled"];
    ensure!(samples["submissions"].as_f64() == Some(all), "{of_mixed}");
    let decoded = samples["decoded"].as_f64().unwrap_or_default();
    ensure!(decoded < 0.8 * all, "{decoded} of {all} is no sample");
    compare(&expected, &estimated(samples)?, of_sums)?;
    for kernel in samples["kernels"].as_array().context("kernels")? {
        let program = kernel["program"].as_u64().unwrap_or_default();
        let known = (0..kernels::COUNT).any(|n| kernels::program(n) == program);
        ensure!(kernel["kernel"] == "kernel" && known, "{kernel}");
    }
    timed.end(LIMIT)?.expect_code(0)?;
    let of_timed = lines(&counts.stdout, timed_id);
    let (first, last) = of_timed.first().zip(of_timed.last()).context("no lines")?;
    let time = |line: &Value| monotonic(line["time"].as_f64().context("no time")?);
    let ran = ran(&truth, &timed_plan, (time(first)?, time(last)?))?;
    let mut take = |what: &str, truth: f64, of: &Value| -> Result<()> {
        let (share, (least, most)) = share(of)?;
        of_times.take(what, truth, (share, (most - least) / 2.0));
        Ok(())
    };
    let samples = &last["sampled"];
    ensure!((0.2..0.9).contains(&ran.busy), "{}", ran.busy);
    take("busy", ran.busy, &samples["busy_share"])?;
    let sum: f64 = ran.kernels.values().sum();
    let shown = samples["kernels"].as_array().context("kernels")?;
    for (program, time) in &ran.kernels {
        let kernel = shown.iter().find(|k| k["program"] == *program);
        let kernel = kernel.with_context(|| format!("no program {program:#x}"))?;
        let what = format!("time of {program:#x}");
        take(&what, time / sum, &kernel["time_share"])?;
    }
    Ok(())
}

/// The same as metrics, by one scrape.
pub fn served() -> Result<()> {
    judge(one_served)
}

/// `seeds` are added to the software GPUs' own.
fn one_served(seeds: u64, [judged]: &mut [Judged; 1]) -> Result<()> {
    // Its kernels are there at some moments.
    let timed = [
        "--timed",
        "--timed-kernel-us=5000",
        "--timed-burst=4",
        "--timed-pause-us=10000",
        "--threads=1",
    ];
    let timed = start(&plan(64 + seeds, 1, 20_000), &timed)?;
    let (plan, mut gpu) = mixed(63 + seeds)?;
    let (_server, address) = serve(&["--sample=1%"])?;
    let id = gpu.pid();
    let of = |text: &str, name: &str, more: &[&str]| {
        let pid = [format!("pid=\"{id}\"")].into_iter();
        let labels: Vec<String> = pid.chain(more.iter().map(|l| (*l).to_owned())).collect();
        value(text, name, &labels)
    };
    let wait = |what: &str, done: &mut dyn FnMut(&str) -> bool| -> Result<String> {
        let began = Instant::now();
        loop {
            let text = ask(&address, "/metrics", None)?.1;
            if done(&text) {
                return Ok(text);
            }
            ensure!(began.elapsed() < LIMIT, "not {what}:\n{text}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    wait("found", &mut |text| {
        of(text, "nvcap_submissions_total", &[]).is_some()
    })?;
    gpu.write(b"g")?;
    let truth = planned(&plan);
    let all = truth.get("submissions").copied();
    wait("counted", &mut |text| {
        of(text, "nvcap_submissions_total", &[]) == all
    })?;
    // Blocks of the last submissions are read when there is time for samples again, which takes longer on a busy machine.
    let mut decoded = (None, Instant::now());
    let text = wait("at the end of its samples", &mut |text| {
        let now = of(text, "nvcap_sampled_submissions_total", &[]);
        if now != decoded.0 {
            decoded = (now, Instant::now());
        }
        now.is_some() && decoded.1.elapsed() > Duration::from_secs(3)
    })?;
    let mut estimated = BTreeMap::new();
    for what in truth.keys().filter(|what| *what != "submissions") {
        let words: Vec<&str> = what.split(' ').collect();
        let (name, labels) = match words[..] {
            ["program", _] => continue,
            [kind, path, of] => {
                let labels = vec![format!("kind=\"{kind}\""), format!("path=\"{path}\"")];
                (format!("nvcap_copy_{of}"), labels)
            }
            _ => (format!("nvcap_{what}"), Vec::new()),
        };
        let mut labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let total = of(&text, &format!("{name}_total"), &labels);
        let total = total.with_context(|| format!("no {what}: {text}"))?;
        let metric = format!("metric=\"{name}\"");
        labels.push(&metric);
        let ratio = of(&text, "nvcap_estimate_error_ratio", &labels);
        let ratio = ratio.with_context(|| format!("no error of {what}: {text}"))?;
        estimated.insert(what.clone(), (total, total * ratio));
    }
    ensure!(estimated.len() >= 6, "{estimated:?}");
    for (what, got) in &estimated {
        judged.take(what, truth[what], *got);
    }
    ensure!(!text.contains("kernel="), "a kernel is a label: {text}");
    let busy = |name: &str, more: &str| {
        let labels = ["engine=\"any\"".to_owned(), more.to_owned()];
        value(&text, name, &labels)
    };
    let bound = |which: &str| busy("nvcap_gpu_busy_bound_ratio", &format!("bound=\"{which}\""));
    let ends = bound("lower").zip(bound("upper")).context("no bounds")?;
    let ratio = busy("nvcap_gpu_busy_ratio", "").context("no share")?;
    ensure!(ends.0 < ratio && ratio < ends.1, "{ends:?} of {ratio}");
    drop(timed);
    Ok(())
}
