//! What the other tests stand on: do the software GPU's stores trap, and does its plan hold?

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::perf::{Breakpoint, unavailable};
use live::programs::{Ended, Folder, Running, nvcap, softgpu};
use softgpu::layout::{CHANNELS, Channel, DOORBELL, GPUS, doorbell_page};
use softgpu::plan::Plan;
use softgpu::stream::Shape;

/// Longest that any one run may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A plan on all channels of both GPUs, one entry a submission.
pub fn plan(seed: u64, submissions: u64) -> Plan {
    Plan {
        shape: Shape {
            seed,
            image: 0,
            burst: 1,
            big_one_in: 0,
            launches_only: false,
        },
        channels: Channel::first(CHANNELS * GPUS, GPUS),
        submissions,
    }
}

/// The software GPU's options that give `plan`.
pub fn plan_args(plan: &Plan) -> Vec<String> {
    let mut args = vec![
        format!("--seed={}", plan.shape.seed),
        format!("--submissions={}", plan.submissions),
        format!("--channels={}", plan.channels.len()),
        format!("--burst={}", plan.shape.burst),
    ];
    if plan.shape.big_one_in > 0 {
        args.push(format!("--big={}", plan.shape.big_one_in));
    }
    args
}

/// Breakpoints work here, and this is root.
pub fn need_breakpoints() -> Result<()> {
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        return not_run("not root: run the tests with sudo");
    }
    match unavailable() {
        Some(why) => not_run(why),
        None => Ok(()),
    }
}

/// As [`need_breakpoints`], and nvcap can trace on this machine.
pub fn need_tracing() -> Result<()> {
    use std::sync::OnceLock;
    static TRIED: OnceLock<Option<String>> = OnceLock::new();
    need_breakpoints()?;
    let nvcap = nvcap()?;
    let why = TRIED.get_or_init(|| {
        let try_it = || -> Result<Ended> {
            let folder = Folder::new()?;
            let channels = folder.channels()?;
            let mut args = vec![
                "-q".into(),
                "--channels".into(),
                channels.into_os_string(),
                "--".into(),
            ];
            args.push(softgpu()?.into_os_string());
            args.extend([
                "--submissions=1".into(),
                "--channels=1".into(),
                "--threads=1".into(),
            ]);
            Running::start(&nvcap, args)?.end(LIMIT)
        };
        match try_it() {
            // Only what says that it cannot run here: anything else is for the tests to find.
            Ok(e) if e.stderr.contains("without its BPF") => Some(e.stderr.trim().to_owned()),
            Ok(e) if e.stderr.contains("BPF is not allowed") => Some(e.stderr.trim().to_owned()),
            _ => None,
        }
    });
    match why {
        Some(why) => not_run(why.clone()),
        None => Ok(()),
    }
}

/// The last line of a run that ended well must have the plan's checksum.
pub fn expect_result(ended_stdout: &str, plan: &Plan) -> Result<()> {
    let wanted = format!("checksum={:#018x}", plan.checksum());
    let image = format!("done image={} ", plan.shape.image);
    ensure!(
        ended_stdout
            .lines()
            .any(|l| l.starts_with(&image) && l.contains(&wanted)),
        "the software GPU did not say `{image}… {wanted}`:\n{ended_stdout}"
    );
    Ok(())
}

fn count(args: &[&str], submissions: u64) -> Result<()> {
    need_breakpoints()?;
    let plan = plan(5, submissions);
    let mut gpu = Running::start(
        &softgpu()?,
        plan_args(&plan)
            .iter()
            .map(String::as_str)
            .chain(args.iter().copied()),
    )?;
    gpu.wait_for_line("waiting")?;
    let mut breakpoints = Vec::new();
    for gpu_index in 0..GPUS {
        for page in 0..2 {
            let address = doorbell_page(gpu_index, page) + DOORBELL;
            breakpoints
                .push(Breakpoint::watch(gpu.pid(), address, true).context("opening a breakpoint")?);
        }
    }
    gpu.write(b"g")?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let counts = breakpoints
        .iter_mut()
        .map(Breakpoint::count)
        .collect::<std::io::Result<Vec<u64>>>()?;
    let ended = gpu.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)?;
    // A virtual machine may lose a rare hit; the software GPU then counts a stray trap.
    let stray: u64 = ended
        .stdout
        .lines()
        .filter_map(|l| {
            l.rsplit_once("stray_traps=")
                .and_then(|(_, n)| n.parse::<u64>().ok())
        })
        .sum();
    let hits: u64 = counts.iter().sum();
    ensure!(
        counts[0] == 0 && counts[2] == 0,
        "the first page of a GPU was rung: {counts:?}"
    );
    ensure!(
        hits + stray == submissions,
        "{counts:?} hits and {stray} stray traps of {submissions} doorbells"
    );
    Ok(())
}

/// Each doorbell of one thread is one hit of the second page's breakpoint.
pub fn stores_trap() -> Result<()> {
    count(
        &[
            "--threads=1",
            "--wait-stdin",
            "--before-wait=0",
            "--linger-ms=200",
        ],
        400,
    )
}

/// And so are those of threads made after the breakpoint was, and of their threads.
pub fn stores_trap_in_heirs() -> Result<()> {
    count(
        &[
            "--threads=4",
            "--churn=3",
            "--wait-stdin",
            "--before-wait=0",
            "--linger-ms=200",
        ],
        400,
    )
}

/// The program's own check passes untraced, and its checksum is that of the plan formed here.
pub fn the_plan_is_what_memory_held() -> Result<()> {
    for (burst, big) in [(1, 0), (40, 7)] {
        let mut plan = plan(11, 500);
        plan.shape.burst = burst;
        plan.shape.big_one_in = big;
        let ended = Running::start(&softgpu()?, plan_args(&plan))?.end(LIMIT)?;
        ended.expect_code(0)?;
        expect_result(&ended.stdout, &plan)?;
    }
    Ok(())
}
