//! `counts --sample`: shares of time that moments tell of, beside when kernels ran.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use live::measure::Figure;
use live::needs::need_tracing;
use live::programs::{Folder, Running, nvcap, softgpu};
use serde_json::Value;
use softgpu::layout::Channel;
use softgpu::plan::Plan;
use softgpu::stream::{Ends, Op, Shape};

const LIMIT: Duration = Duration::from_secs(120);
const SEED: u64 = 62;
const SUBMISSIONS: u64 = 9000;

/// Work of the timed software GPU from one time to another (CLOCK_MONOTONIC, ns).
struct Ran {
    /// Time in which the kernels of each program ran.
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

/// The plan of the software GPU that is sampled.
fn plan() -> Plan {
    Plan {
        shape: Shape {
            seed: SEED,
            image: 0,
            burst: 1,
            big_one_in: 0,
            launches_only: false,
            kernels: true,
            module_every: 0,
            rounds: None,
            timed: Some(Ends::Released),
            code: false,
        },
        channels: vec![Channel { gpu: 0, index: 0 }],
        submissions: SUBMISSIONS,
    }
}

/// The share of the time with work, and of it that of each kernel. The half of the 95 % interval is a figure of its own.
pub fn shares() -> Result<Vec<Figure>> {
    need_tracing()?;
    let folder = Folder::new()?;
    let truth = folder.file("truth.json");
    let program = Running::start(
        &softgpu()?,
        [
            "--files".to_owned(),
            "--gpus=1".to_owned(),
            "--channels=1".to_owned(),
            format!("--seed={SEED}"),
            format!("--submissions={SUBMISSIONS}"),
            "--kernels".to_owned(),
            "--timed".to_owned(),
            "--timed-kernel-us=1500".to_owned(),
            "--timed-spread=60".to_owned(),
            "--timed-burst=10".to_owned(),
            "--timed-pause-us=10000".to_owned(),
            "--timed-lag-ns=2000".to_owned(),
            "--threads=1".to_owned(),
            format!("--timed-truth={}", truth.display()),
        ],
    )?;
    let pid = program.pid();
    let mut counts = Running::start(
        &nvcap()?,
        [
            "counts",
            "-p",
            &pid.to_string(),
            "--sample=4%",
            "--json",
            "--interval=0.25",
        ],
    )?;
    counts.wait_until("looked at often", LIMIT, |r| {
        let moments = |l: &Value| l["sampled"]["moments"].as_f64();
        lines(&r.stdout(), pid).last().and_then(moments) > Some(600.0)
    })?;
    counts.signal(libc::SIGTERM)?;
    let counts = counts.end(LIMIT)?;
    program.end(LIMIT)?.expect_code(0)?;
    let all = lines(&counts.stdout, pid);
    let (first, last) = all.first().zip(all.last()).context("no lines")?;
    let time = |line: &Value| monotonic(line["time"].as_f64().context("no time")?);
    let ran = ran(&truth, &plan(), (time(first)?, time(last)?))?;
    let mut figures = Vec::new();
    let mut add = |what: String, of: &Value, truth: f64| -> Result<()> {
        let (share, (least, most)) = share(of)?;
        figures.push(Figure::new(&what, share, "").beside(truth));
        figures.push(Figure::new(
            format!("{what}: half of the interval"),
            (most - least) / 2.0,
            "",
        ));
        Ok(())
    };
    let samples = &last["sampled"];
    add(
        "time with work".to_owned(),
        &samples["busy_share"],
        ran.busy,
    )?;
    let sum: f64 = ran.kernels.values().sum();
    let shown = samples["kernels"].as_array().context("kernels")?;
    for (program, time) in &ran.kernels {
        let kernel = shown.iter().find(|k| k["program"] == *program);
        let kernel = kernel.with_context(|| format!("no program {program:#x}"))?;
        add(
            format!("time of {program:#x}"),
            &kernel["time_share"],
            time / sum,
        )?;
    }
    Ok(figures)
}
