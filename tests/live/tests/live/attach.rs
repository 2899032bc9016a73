//! `nvcap -p PID` on a process that already runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use live::programs::{Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, Report, verify};
use softgpu::layout::{DOORBELL, doorbell_page};
use softgpu::plan::Plan;
use softgpu::run::EXEC_STRIDE;

use crate::setup::{LIMIT, expect_result, need_tracing, plan, plan_args, sized};

/// Attaches to `pid` with these flags, and returns when nvcap watches it.
pub fn attach(pid: u32, trace: &Path, channels: PathBuf, flags: &[OsString]) -> Result<Running> {
    let shown = ["-vv", "-e", "type=submission,entry"];
    attach_showing(&shown, pid, trace, channels, flags)
}

fn attach_showing(
    shown: &[&str],
    pid: u32,
    trace: &Path,
    channels: PathBuf,
    flags: &[OsString],
) -> Result<Running> {
    let mut args: Vec<OsString> = shown.iter().map(OsString::from).collect();
    args.push("--json".into());
    args.extend_from_slice(flags);
    attach_to(pid, trace, channels, &args)
}

/// As [`attach`], with these flags alone.
pub fn attach_to(pid: u32, trace: &Path, channels: PathBuf, flags: &[OsString]) -> Result<Running> {
    let mut args: Vec<OsString> = vec!["-o".into(), trace.into()];
    args.extend([
        "-p".into(),
        pid.to_string().into(),
        "--channels".into(),
        channels.into(),
    ]);
    args.extend_from_slice(flags);
    let mut nvcap = Running::start(&nvcap()?, args)?;
    // nvcap says so once it has its breakpoints. The number of perf events is no sign: kprobes are perf events too.
    nvcap.wait_until("watching", Duration::from_secs(20), |r| {
        r.stderr().contains("attached")
    })?;
    Ok(nvcap)
}

/// Starts the software GPU and returns when it waits.
pub fn waiting(plan: &Plan, args: &[&str]) -> Result<Running> {
    let args = plan_args(plan)
        .into_iter()
        .chain(args.iter().map(|s| (*s).to_owned()))
        .chain(["--wait-stdin".to_owned()]);
    let mut gpu = Running::start(&softgpu()?, args)?;
    gpu.wait_for_line("waiting")?;
    Ok(gpu)
}

fn from_waiting(before: u64, args: &[&str], flags: &[OsString]) -> Result<()> {
    need_tracing()?;
    let plan = plan(21, sized(1200, 480));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let before_wait = format!("--before-wait={before}");
    let mut gpu = waiting(&plan, &[args, &[before_wait.as_str()]].concat())?;
    let nvcap = attach(gpu.pid(), &trace, folder.channels()?, flags)?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    // The traced process has ended, so the trace ends.
    nvcap.end(Duration::from_secs(20))?.expect_code(0)?;
    verify(&trace, &Expected::part(plan, Extent::From(before)))?.expect_complete()
}

/// Attached while it waits in the middle: every submission from the next one on.
pub fn waiting_process() -> Result<()> {
    from_waiting(7, &["--threads=4"], &[])
}

/// Its operations are understood from the middle as from the start, although no SET_OBJECT was seen: no launch is missed
/// for that.
fn understood(flags: &[OsString]) -> Result<()> {
    let before = 7;
    let mut plan = plan(27, sized(600, 300));
    plan.channels = softgpu::layout::Channel::first(6, crate::setup::gpus());
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(
        &plan,
        &["--threads=2", "--before-wait=7", crate::observe::LINGER],
    )?;
    let shown = ["-e", "type=operation"];
    let nvcap = attach_showing(&shown, gpu.pid(), &trace, folder.channels()?, flags)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(Duration::from_secs(20))?;
    ended.expect_code(0)?;
    ensure!(
        !ended.stderr.contains("UNDERSTOOD"),
        "not all was understood: {}",
        ended.stderr
    );
    live::operations::verify(&trace, &plan, before)
}

/// By the trap.
pub fn operations() -> Result<()> {
    need_tracing()?;
    understood(&[])
}

/// And by observing.
pub fn operations_observed() -> Result<()> {
    understood(&["--how=observe".into()])
}

/// Attached before its first submission: all submissions.
pub fn first_submissions() -> Result<()> {
    from_waiting(0, &["--threads=4"], &[])
}

/// With the doorbells named by flags too.
pub fn doorbell_flags() -> Result<()> {
    let flags: Vec<OsString> = [doorbell_page(0, 1), doorbell_page(1, 1)]
        .iter()
        .flat_map(|page| {
            [
                "--doorbell".into(),
                format!("{:#x}", page + DOORBELL).into(),
            ]
        })
        .collect();
    from_waiting(3, &["--threads=2"], &flags)
}

/// Two processes at once, with the same addresses and tokens, but separate memory.
pub fn two_processes() -> Result<()> {
    need_tracing()?;
    let plans = [plan(24, sized(700, 300)), plan(25, sized(700, 300))];
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpus = plans
        .iter()
        .map(|plan| waiting(plan, &["--threads=2", "--before-wait=2"]))
        .collect::<Result<Vec<_>>>()?;
    let flags: Vec<OsString> = vec!["-p".into(), gpus[1].pid().to_string().into()];
    let nvcap = attach(gpus[0].pid(), &trace, folder.channels()?, &flags)?;
    for gpu in &mut gpus {
        gpu.write(b"g")?;
    }
    let mut expected = Vec::new();
    for (gpu, plan) in gpus.into_iter().zip(plans) {
        let pid = gpu.pid();
        let ended = gpu.end(LIMIT)?;
        ended.expect_code(0)?;
        expect_result(&ended.stdout, &plan)?;
        expected.push(Expected {
            pid: Some(pid),
            plans: vec![plan],
            extent: Extent::From(2),
        });
    }
    nvcap.end(Duration::from_secs(20))?.expect_code(0)?;
    verify(&trace, &expected)?.expect_complete()
}

/// It executes another program image after nvcap was attached.
pub fn exec_afterwards() -> Result<()> {
    need_tracing()?;
    let plan = plan(26, sized(500, 240));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(&plan, &["--threads=3", "--exec=1"])?;
    let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    let mut next = plan.clone();
    next.shape.image = EXEC_STRIDE;
    expect_result(&gpu.stdout, &plan)?;
    expect_result(&gpu.stdout, &next)?;
    nvcap.end(Duration::from_secs(20))?.expect_code(0)?;
    let expected = Expected {
        pid: None,
        plans: vec![plan, next],
        extent: Extent::From(1),
    };
    verify(&trace, &[expected])?.expect_complete()
}

/// It forks after nvcap was attached, and parent and children submit to the same channels.
pub fn fork_afterwards() -> Result<()> {
    need_tracing()?;
    let plan = plan(27, sized(800, 400));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(&plan, &["--threads=2", "--fork=2"])?;
    let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    nvcap.end(Duration::from_secs(20))?.expect_code(0)?;
    let report = verify(&trace, &Expected::part(plan, Extent::From(1)))?;
    ensure!(
        report.processes.len() == 3,
        "processes {:?}",
        report.processes
    );
    report.expect_complete()
}

/// Lets the software GPU run for `before`, attaches, and verifies the trace to its end.
fn attached_to_running(plan: &Plan, options: &[&str], before: Duration) -> Result<Report> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(plan, options)?;
    gpu.write(b"g")?;
    std::thread::sleep(before);
    let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
    ensure!(
        gpu.runs(),
        "the software GPU ended before nvcap was attached: the test needs more submissions"
    );
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, plan)?;
    nvcap.end(Duration::from_secs(20))?.expect_code(0)?;
    verify(&trace, &Expected::part(plan.clone(), Extent::Suffix))
}

/// Attached while threads come and go all the time: none may be missed between listing and arming.
pub fn churning_process() -> Result<()> {
    need_tracing()?;
    for round in 0..3 {
        let plan = plan(28 + round, 4000);
        let report = attached_to_running(
            &plan,
            &["--threads=8", "--churn=2", "--sleep-us=800"],
            Duration::from_millis(100),
        )?;
        ensure!(
            report.threads.len() > 100,
            "only {} threads were left to trace",
            report.threads.len()
        );
        report.expect_complete()?;
    }
    Ok(())
}

/// Attached while it runs with all its threads: every submission from some point on.
pub fn running_process() -> Result<()> {
    need_tracing()?;
    // An emulated machine on a busy host takes its time to attach.
    let paces: &[u64] = match std::env::var_os("SOFTGPU_DEVICE") {
        Some(_) => &[6000, 40_000],
        None => &[1500, 6000],
    };
    for pace in paces {
        if running_at(*pace)? {
            return Ok(());
        }
    }
    anyhow::bail!(
        "the software GPU had ended, or nearly, before nvcap was attached: the test needs more submissions"
    )
}

/// Pauses of `pace` us between submissions; false if too little was left to trace.
fn running_at(pace: u64) -> Result<bool> {
    let plan = plan(22, sized(6000, 2400));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let pace = format!("--sleep-us={pace}");
    let mut gpu = waiting(&plan, &["--threads=6", &pace])?;
    gpu.write(b"g")?;
    std::thread::sleep(Duration::from_millis(300));
    let nvcap = match attach(gpu.pid(), &trace, folder.channels()?, &[]) {
        Ok(nvcap) if gpu.runs() => nvcap,
        Err(e) if gpu.runs() => return Err(e),
        _ => return Ok(false),
    };
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    nvcap.end(Duration::from_secs(20))?.expect_code(0)?;
    let report = verify(&trace, &Expected::part(plan, Extent::Suffix))?;
    report.expect_complete()?;
    Ok(report.entries > 100)
}

/// It ends without any submission: an empty trace, and no error.
pub fn exits_meanwhile() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let gpu = waiting(&plan(23, 40), &["--before-wait=1"])?;
    let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
    gpu.signal(libc::SIGTERM)?;
    drop(gpu);
    nvcap.end(Duration::from_secs(20))?.expect_code(0)?;
    let report = verify(
        &trace,
        &Expected::part(plan(23, 40), Extent::From(1))
            .iter()
            .map(|e| Expected {
                extent: Extent::Part,
                ..e.clone()
            })
            .collect::<Vec<_>>(),
    )?;
    ensure!(
        report.submissions == 0,
        "{} submissions",
        report.submissions
    );
    report.expect_complete()
}
