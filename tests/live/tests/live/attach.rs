//! `nvcap -p PID` on a process that already runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use live::debugger::threads;
use live::in_step::Step;
use live::programs::{Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, Report, verify};
use serde_json::Value;
use softgpu::layout::{Channel, DOORBELL, doorbell_page};
use softgpu::plan::Plan;
use softgpu::run::EXEC_STRIDE;

use crate::observe;
use crate::setup::{LIMIT, expect_result, need_tracing, plan, plan_args, sized};

/// Attaches to `pid` with these flags, and returns when nvcap watches it.
pub fn attach(pid: u32, trace: &Path, channels: PathBuf, flags: &[OsString]) -> Result<Running> {
    attach_to(pid, trace, channels, &[&shown(), flags].concat())
}

/// Options of a trace that is compared with a plan.
pub fn shown() -> Vec<OsString> {
    ["-vv", "-e", "type=submission,entry", "--json"]
        .map(OsString::from)
        .to_vec()
}

/// As [`attach`], with these flags alone.
pub fn attach_to(pid: u32, trace: &Path, channels: PathBuf, flags: &[OsString]) -> Result<Running> {
    attached(Running::start(
        &nvcap()?,
        args_to_attach(pid, trace, channels, flags),
    )?)
}

/// As [`attach_to`], in step.
pub fn attach_in_step(
    step: &Step,
    pid: u32,
    trace: &Path,
    channels: PathBuf,
    flags: &[OsString],
) -> Result<Running> {
    attached(step.nvcap(args_to_attach(pid, trace, channels, flags))?)
}

fn args_to_attach(pid: u32, trace: &Path, channels: PathBuf, flags: &[OsString]) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["-o".into(), trace.into()];
    args.extend([
        "-p".into(),
        pid.to_string().into(),
        "--channels".into(),
        channels.into(),
    ]);
    args.extend_from_slice(flags);
    args
}

/// Waits until nvcap follows what it was to attach to.
pub fn attached(mut nvcap: Running) -> Result<Running> {
    // nvcap says so once it has its breakpoints. The number of perf events is no sign: kprobes are perf events too.
    nvcap.wait_until("watching", LIMIT, |r| r.stderr().contains("attached"))?;
    Ok(nvcap)
}

/// Starts the software GPU and returns when it waits.
pub fn waiting<S: AsRef<str>>(plan: &Plan, args: &[S]) -> Result<Running> {
    let args = plan_args(plan)
        .into_iter()
        .chain(args.iter().map(|s| s.as_ref().to_owned()))
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
    nvcap.end(LIMIT)?.expect_code(0)?;
    verify(&trace, &Expected::part(plan, Extent::From(before)))?.expect_complete()
}

/// The first thread has ended, and others submit.
pub fn first_thread_ended() -> Result<()> {
    from_waiting(7, &["--threads=4", "--leaderless"], &[])
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
    plan.channels = Channel::first(6, crate::setup::gpus());
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let mut gpu = waiting(&plan, &step.with(&["--threads=2", "--before-wait=7"]))?;
    let shown = ["--json", "-e", "type=operation"].map(OsString::from);
    let flags = [&shown[..], flags].concat();
    let nvcap = attach_in_step(&step, gpu.pid(), &trace, folder.channels()?, &flags)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    ensure!(
        !ended.stderr.contains("UNDERSTOOD"),
        "not all was understood: {}",
        ended.stderr
    );
    live::operations::verify(&trace, &plan, before)?;
    if ended.code()? == 3 {
        let text = std::fs::read_to_string(&trace)?;
        let ledger = text.lines().last().context("an empty trace")?;
        return observe::misses_only_tails(&serde_json::from_str(ledger)?);
    }
    ended.expect_code(0)
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
    nvcap.end(LIMIT)?.expect_code(0)?;
    verify(&trace, &expected)?.expect_complete()
}

/// The program executes another program image after nvcap was attached.
pub fn exec_afterwards() -> Result<()> {
    need_tracing()?;
    let plan = plan(26, sized(500, 240));
    let mut next = plan.clone();
    next.shape.image = EXEC_STRIDE;
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let mut gpu = waiting(&plan, &step.with(&["--threads=3", "--exec=1"]))?;
    let nvcap = attach_in_step(&step, gpu.pid(), &trace, folder.channels()?, &shown())?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    expect_result(&gpu.stdout, &next)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    // The first of each channel came before.
    let expected = Expected {
        pid: None,
        plans: vec![plan, next],
        extent: Extent::From(1),
    };
    verify(&trace, &[expected])?.expect_complete()
}

/// The program forks after nvcap was attached, and parent and children submit to the same channels.
pub fn fork_afterwards() -> Result<()> {
    need_tracing()?;
    let plan = plan(27, sized(800, 400));
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let mut gpu = waiting(&plan, &step.with(&["--threads=2", "--fork=2"]))?;
    let nvcap = attach_in_step(&step, gpu.pid(), &trace, folder.channels()?, &shown())?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    let report = verify(&trace, &Expected::part(plan, Extent::From(1)))?;
    ensure!(
        report.processes.len() == 3,
        "processes {:?}",
        report.processes
    );
    report.expect_complete()
}

/// Attaches to a software GPU at work with as many threads, in step from then on, and verifies the trace to its end.
fn attached_to_running(plan: &Plan, threads_of_it: usize, more: &[&str]) -> Result<Report> {
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let gpu = at_work(plan, &step, threads_of_it, more)?;
    let nvcap = attach_in_step(&step, gpu.pid(), &trace, folder.channels()?, &shown())?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, plan)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    let report = verify(&trace, &Expected::part(plan.clone(), Extent::Suffix))?;
    report.expect_complete()?;
    Ok(report)
}

/// A software GPU whose threads submit, the slower the longer nobody is there.
pub fn at_work(plan: &Plan, step: &Step, of: usize, more: &[&str]) -> Result<Running> {
    let number = format!("--threads={of}");
    let options = [&[number.as_str()], more].concat();
    let mut gpu = waiting(plan, &step.following(&options))?;
    gpu.write(b"g")?;
    gpu.wait_until("at work", LIMIT, |gpu| {
        threads(gpu.pid()).is_ok_and(|all| all.len() > of)
    })?;
    Ok(gpu)
}

/// Attached while threads come and go all the time: none may be missed between listing and arming.
pub fn churning_process() -> Result<()> {
    need_tracing()?;
    let report = attached_to_running(&plan(28, 8000), 8, &["--churn=2"])?;
    let left = report.threads.len();
    ensure!(left > 100, "only {left} threads were left to trace");
    Ok(())
}

/// Attached while it runs with all its threads: every submission from some point on.
pub fn running_process() -> Result<()> {
    need_tracing()?;
    let report = attached_to_running(&plan(22, 8000), 6, &[])?;
    ensure!(report.entries > 500, "only {} entries", report.entries);
    Ok(())
}

/// The program ends without any submission: an empty trace, and no error.
pub fn exits_meanwhile() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let gpu = waiting(&plan(23, 40), &["--before-wait=1"])?;
    let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
    gpu.signal(libc::SIGTERM)?;
    drop(gpu);
    nvcap.end(LIMIT)?.expect_code(0)?;
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

/// Threads that submit at once.
const RACERS: usize = 16;

/// Contents of a trace for one channel.
#[derive(Debug, Default)]
struct Shown {
    gpu: Option<u64>,
    ring: Option<u64>,
    /// Token and thread of each submission, and whether it is marked late.
    submissions: Vec<(Option<u64>, Option<u64>, bool)>,
}

/// A trace of 16 threads, each with a channel of its own, that submit as fast as nvcap reads.
struct Race {
    channels: BTreeMap<u64, Shown>,
    scans: u64,
}

/// Attaches before they begin.
fn race(gpus: usize) -> Result<Race> {
    let mut plan = plan(30, sized(16_000, 8000));
    plan.channels = Channel::first(RACERS, gpus);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let threads = format!("--threads={RACERS}");
    let gpus_option = format!("--gpus={gpus}");
    let options = ["--files", "--in-step-window=64", &threads, &gpus_option];
    let mut gpu = waiting(&plan, &step.with(&options))?;
    let mut args: Vec<OsString> = vec!["NVCAP_LOG=debug".into(), step.variable()];
    args.push(nvcap()?.into());
    // A search for names takes what the search for tokens needs.
    args.push("--no-names".into());
    args.extend(["--json", "-vv", "-e", "type=submission", "-o"].map(OsString::from));
    args.push(trace.clone().into());
    let word = |gpu| format!("--doorbell={:#x}", doorbell_page(gpu, 1) + DOORBELL).into();
    args.extend((0..gpus).map(word));
    args.extend(["-p".into(), gpu.pid().to_string().into()]);
    let nvcap = attached(Running::start(Path::new("env"), args)?)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    let scans = ended.stderr.lines().find_map(|l| {
        let (rest, scans) = l.strip_suffix(" scans")?.rsplit_once("; ")?;
        rest.contains("own copy of GP_PUT")
            .then(|| scans.parse().ok())?
    });
    let mut channels: BTreeMap<u64, Shown> = BTreeMap::new();
    for line in std::fs::read_to_string(&trace)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let Some(channel) = line["channel"].as_u64() else {
            continue;
        };
        let shown = channels.entry(channel).or_default();
        match line["type"].as_str() {
            Some("channel") => {
                shown.gpu = line["gpu"].as_u64();
                shown.ring = line["ring"].as_u64();
            }
            Some("submission") => {
                let late = line["late"] == true;
                let submission = (line["token"].as_u64(), line["tid"].as_u64(), late);
                shown.submissions.push(submission);
            }
            _ => {}
        }
    }
    Ok(Race {
        channels,
        scans: scans.context("no count of scans")?,
    })
}

/// Every token becomes known, right, and soon: then each submission has its own token and thread, and nothing is searched
/// for any more.
fn tokens_of_racing_threads(gpus: usize) -> Result<()> {
    need_tracing()?;
    let race = race(gpus)?;
    let all: usize = race.channels.values().map(|c| c.submissions.len()).sum();
    ensure!(
        race.channels.len() == RACERS,
        "{} channels",
        race.channels.len()
    );
    // Until a token is known, each doorbell is a search, which may find what another thread is about to ring for.
    ensure!(
        race.scans < all as u64 / 4,
        "{} scans at {all} doorbells",
        race.scans
    );
    let mut threads = BTreeSet::new();
    for shown in race.channels.values() {
        let its = Channel::first(RACERS, gpus).into_iter();
        let mut its = its.filter(|c| shown.ring == Some(c.ring()));
        let its = its.next().context("a channel that is none")?;
        ensure!(shown.gpu == Some(its.gpu as u64), "GPU {:?}", shown.gpu);
        let later = &shown.submissions[shown.submissions.len() / 3 * 2..];
        let thread = later.last().and_then(|s| s.1).or(later[0].1);
        ensure!(threads.insert(thread), "{thread:?} has two channels");
        for (token, tid, late) in later {
            let token_is_right = *token == Some(u64::from(its.token()));
            // What a lost hit left is fetched without a thread.
            let thread_is_right = *tid == thread || tid.is_none() && *late;
            ensure!(
                token_is_right && thread_is_right,
                "{its:?}: token {token:x?}, thread {tid:?} instead of {thread:?}, late {late}"
            );
        }
    }
    Ok(())
}

/// On one GPU the error notifiers say which tokens to try first.
pub fn racing_threads() -> Result<()> {
    tokens_of_racing_threads(1)
}

/// On two they do not, and both have the same tokens. (That learnt ones cost what told ones cost: `measure::tokens`.)
pub fn racing_threads_of_two_gpus() -> Result<()> {
    tokens_of_racing_threads(2)
}
