//! `--sample`: what is estimated from samples of running software GPUs, against what their plans say. `cargo xtask bench live samples` measures the
//! shares of time against when their kernels ran.
//!
//! Chance chooses the samples, so an estimate is allowed three times its stated 95 % interval (sums of bytes have long tails),
//! and three of four must lie within once. The few values of one run miss that by chance in a run of some hundred (those of one process are
//! not independent): then the values of up to three runs are judged together.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use live::programs::{GUARD, Running, nvcap};
use serde_json::Value;
use softgpu::kernels;
use softgpu::layout::Channel;
use softgpu::plan::Plan;
use softgpu::stream::{Op, Shape};

use super::counts::{ask, newest, serve, value};
use super::dump::{plan, start};

/// Ends a test that hangs.
const LIMIT: Duration = GUARD;
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

/// Returns the way that the copies of a channel go. The data of the software GPU lie in memory that it does not map, so that the runlist tells
/// (docs/decoding.md).
fn path(channel: Channel) -> &'static str {
    match channel.runlist() {
        1 => "h2d",
        3 => "d2h",
        _ => "unknown",
    }
}

/// Returns the sums of the plan after the first `BEFORE` submissions of each channel, in the words of nvcap's metrics.
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

/// Comparison of estimates with the truth.
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

/// A software GPU with work of all kinds that goes on a portion at a time, when nvcap has sampled the portion before: nothing depends on who is
/// faster.
struct Mixed {
    gpu: Running,
    plan: Plan,
    /// Submissions of each channel in a portion.
    portion: u64,
    /// The submissions that nvcap sampled when all portions so far are in its samples.
    sampled: u64,
}

impl Mixed {
    fn start(seed: u64, submissions: u64, portion: u64) -> Result<Mixed> {
        let plan = named_kernels(plan(seed, 10, submissions));
        let args = [
            "--kernels",
            "--wait-stdin",
            &format!("--before-wait={BEFORE}"),
            &format!("--portion={portion}"),
            "--linger-ms=900000",
        ];
        let mut gpu = start(&plan, &args)?;
        gpu.wait_for_line("waiting")?;
        Ok(Mixed {
            gpu,
            plan,
            portion,
            sampled: 0,
        })
    }

    fn pid(&self) -> u32 {
        self.gpu.pid()
    }

    /// Submits all portions. `wait` waits until this number of submissions are in the samples.
    fn submit(&mut self, mut wait: impl FnMut(u64) -> Result<()>) -> Result<()> {
        let quotas: Vec<u64> = (0..self.plan.channels.len())
            .map(|i| self.plan.quota(i))
            .collect();
        let most = quotas.iter().copied().max().unwrap_or(0);
        let (mut until, mut said) = (BEFORE, 0);
        while until < most {
            until += self.portion;
            said += 1;
            self.gpu.write(b"g")?;
            self.gpu.wait_until("submitting a portion", LIMIT, |r| {
                r.stdout().matches("portion\n").count() == said
            })?;
            self.sampled = quotas.iter().map(|q| until.min(*q) - BEFORE).sum();
            wait(self.sampled)?;
        }
        Ok(())
    }
}

/// Samples two processes: of one the totals of launches by kernel, copies and bytes are known, the other's GPU works at times.
pub fn a_fleet() -> Result<()> {
    judge(one_fleet)
}

/// `seeds` are added to the software GPUs' own.
fn one_fleet(seeds: u64, [judged]: &mut [Judged; 1]) -> Result<()> {
    let timed = timed(62 + seeds)?;
    let mut mixed = Mixed::start(61 + seeds, 14_000, 200)?;
    let (id, timed_id) = (mixed.pid(), timed.pid());
    let mut counts = Running::start(
        &nvcap()?,
        [
            "counts",
            "-p",
            &timed_id.to_string(),
            "-p",
            &id.to_string(),
            "--sample=20%",
            "--json",
            "--interval=0.1",
        ],
    )?;
    let sampled = |r: &Running, name: &str| newest(&r.stdout(), id)?["sampled"][name].as_u64();
    counts.wait_until("counting", LIMIT, |r| sampled(r, "submissions") == Some(0))?;
    mixed.submit(|all| {
        counts.wait_until("sampled", LIMIT, |r| sampled(r, "submissions") == Some(all))
    })?;
    counts.wait_until("looked at often", LIMIT, |r| {
        sampled(r, "moments") > Some(50)
            && newest(&r.stdout(), timed_id)
                .is_some_and(|l| l["sampled"]["busy_share"]["share"].as_f64() > Some(0.0))
    })?;
    // Not SIGINT, which whoever starts the tests in the background may have set to be ignored.
    counts.signal(libc::SIGTERM)?;
    let counts = counts.end(LIMIT)?;
    let of_mixed = newest(&counts.stdout, id).context("no line")?;
    let samples = &of_mixed["sampled"];
    let number = |name: &str| samples[name].as_u64().unwrap_or_default();
    ensure!(number("submissions") == mixed.sampled, "{of_mixed}");
    let decoded = number("decoded");
    // At most 48 of a channel are decoded at a reading, of which there may be several in a portion: all, where it is submitted slowly.
    ensure!(
        (mixed.sampled / 8..=mixed.sampled).contains(&decoded),
        "{decoded} of {} is no sample",
        mixed.sampled
    );
    compare(&planned(&mixed.plan), &estimated(samples)?, judged)?;
    for kernel in samples["kernels"].as_array().context("kernels")? {
        let program = kernel["program"].as_u64().unwrap_or_default();
        let known = (0..kernels::COUNT).find(|n| kernels::program(*n) == program);
        let known = known.with_context(|| format!("a program that is none: {kernel}"))?;
        // All have one short name: whole ones tell them apart.
        let whole = format!("void kernel<{known}>(float*)");
        ensure!(kernel["kernel"] == *whole, "{kernel}, not {whole}");
    }
    let of_timed = newest(&counts.stdout, timed_id).context("no line")?;
    let busy = &of_timed["sampled"]["busy_share"];
    let (least, share) = (&busy["interval_95"][0], &busy["share"]);
    ensure!(
        least.as_f64() < share.as_f64() && share.as_f64() <= Some(1.0),
        "{busy}"
    );
    Ok(())
}

/// A software GPU whose kernels are there at some moments.
fn timed(seed: u64) -> Result<Running> {
    let options = [
        "--timed",
        "--timed-kernel-us=5000",
        "--timed-burst=4",
        "--timed-pause-us=10000",
        "--threads=1",
    ];
    start(&plan(seed, 1, 1_000_000), &options)
}

/// As metrics, by one scrape; so few submissions come between two readings that all are read: the truth, without an error.
pub fn served() -> Result<()> {
    let timed = timed(64)?;
    let mut mixed = Mixed::start(63, 5000, 40)?;
    let (_server, address) = serve(&["--sample=20%"])?;
    let id = mixed.pid();
    let of = |text: &str, name: &str, more: &[&str]| {
        let pid = [format!("pid=\"{id}\"")].into_iter();
        let labels: Vec<String> = pid.chain(more.iter().map(|l| (*l).to_owned())).collect();
        value(text, name, &labels)
    };
    let wait = |what: &str, done: &dyn Fn(&str) -> bool| -> Result<String> {
        let began = Instant::now();
        loop {
            let text = ask(&address, "/metrics", None)?.1;
            if done(&text) {
                return Ok(text);
            }
            ensure!(began.elapsed() < LIMIT, "guard: not {what}:\n{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait("found", &|text| {
        of(text, "nvcap_submissions_total", &[]).is_some()
    })?;
    mixed.submit(|all| {
        wait("sampled", &|text| {
            of(text, "nvcap_sampled_submissions_total", &[]) == Some(all as f64)
        })
        .map(drop)
    })?;
    let text = wait("seen at work", &|text| {
        value(text, "nvcap_gpu_busy_ratio", &["engine=\"any\"".to_owned()]) > Some(0.0)
    })?;
    let truth = planned(&mixed.plan);
    let all = truth.get("submissions").copied();
    ensure!(of(&text, "nvcap_submissions_total", &[]) == all, "{text}");
    let mut compared = 0;
    for (what, truth) in &truth {
        let words: Vec<&str> = what.split(' ').collect();
        let (name, labels) = match words[..] {
            ["program", _] | ["submissions"] => continue,
            [kind, path, of] => {
                let labels = vec![format!("kind=\"{kind}\""), format!("path=\"{path}\"")];
                (format!("nvcap_copy_{of}"), labels)
            }
            _ => (format!("nvcap_{what}"), Vec::new()),
        };
        let mut labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let total = of(&text, &format!("{name}_total"), &labels);
        let metric = format!("metric=\"{name}\"");
        labels.push(&metric);
        let error = of(&text, "nvcap_estimate_error_ratio", &labels);
        ensure!(
            (total, error) == (Some(*truth), Some(0.0)),
            "{what}: {total:?} ± {error:?}, but it is {truth}"
        );
        compared += 1;
    }
    ensure!(compared >= 6, "{truth:?}");
    ensure!(!text.contains("kernel="), "a kernel is a label: {text}");
    let busy = |name: &str, more: &str| {
        let labels = ["engine=\"any\"".to_owned(), more.to_owned()];
        value(&text, name, &labels)
    };
    let bound = |which: &str| busy("nvcap_gpu_busy_bound_ratio", &format!("bound=\"{which}\""));
    let ends = bound("lower").zip(bound("upper")).context("no bounds")?;
    let ratio = busy("nvcap_gpu_busy_ratio", "").context("no share")?;
    ensure!(
        (ends.0..=ends.1).contains(&ratio) && ends.0 < ends.1,
        "{ends:?} of {ratio}"
    );
    drop(timed);
    Ok(())
}
