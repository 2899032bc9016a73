//! `nvcap -p PID` on a process that already runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use live::programs::{Ended, Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, Report, verify};
use serde_json::Value;
use softgpu::layout::{Channel, DOORBELL, doorbell_page};
use softgpu::plan::Plan;
use softgpu::run::EXEC_STRIDE;

use crate::capture;
use crate::observe;
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
    nvcap.wait_until("watching", Duration::from_secs(60), |r| {
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
    nvcap.end(Duration::from_secs(60))?.expect_code(0)?;
    verify(&trace, &Expected::part(plan, Extent::From(before)))?.expect_complete()
}

/// Attached while it waits in the middle: every submission from the next one on.
pub fn waiting_process() -> Result<()> {
    from_waiting(7, &["--threads=4"], &[])
}

/// Its operations are understood from the middle as from the start, although no SET_OBJECT was seen: no launch is missed
/// for that. False if the last submissions were not seen, which may be so where `tail` says it.
fn understood(flags: &[OsString], tail: bool) -> Result<bool> {
    let before = 7;
    let mut plan = plan(27, sized(600, 300));
    plan.channels = Channel::first(6, crate::setup::gpus());
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(&plan, &["--threads=2", "--before-wait=7", observe::LINGER])?;
    let shown = ["-e", "type=operation"];
    let nvcap = attach_showing(&shown, gpu.pid(), &trace, folder.channels()?, flags)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(Duration::from_secs(60))?;
    ensure!(
        !ended.stderr.contains("UNDERSTOOD"),
        "not all was understood: {}",
        ended.stderr
    );
    if tail && ended.code()? == 3 {
        let text = std::fs::read_to_string(&trace)?;
        let ledger = text.lines().last().context("an empty trace")?;
        observe::misses_only_tails(&serde_json::from_str(ledger)?)?;
        return Ok(false);
    }
    ended.expect_code(0)?;
    live::operations::verify(&trace, &plan, before)?;
    Ok(true)
}

/// By the trap.
pub fn operations() -> Result<()> {
    need_tracing()?;
    understood(&[], false).map(drop)
}

/// And by observing.
pub fn operations_observed() -> Result<()> {
    observe::until_whole(|| understood(&["--how=observe".into()], true))
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
    nvcap.end(Duration::from_secs(60))?.expect_code(0)?;
    verify(&trace, &expected)?.expect_complete()
}

/// It executes another program image after nvcap was attached.
pub fn exec_afterwards() -> Result<()> {
    need_tracing()?;
    let plan = plan(26, sized(500, 240));
    let mut next = plan.clone();
    next.shape.image = EXEC_STRIDE;
    capture::until_whole(|| {
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let mut gpu = waiting(&plan, &["--threads=3", "--exec=1"])?;
        let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
        gpu.write(b"g")?;
        let gpu = gpu.end(LIMIT)?;
        gpu.expect_code(0)?;
        expect_result(&gpu.stdout, &plan)?;
        expect_result(&gpu.stdout, &next)?;
        let ended = nvcap.end(Duration::from_secs(60))?;
        // The first of each channel came before.
        let all = plan.submissions - plan.channels.len() as u64 + next.submissions;
        if capture::lacks_some(&ended, &trace, all)? {
            return Ok(false);
        }
        let expected = Expected {
            pid: None,
            plans: vec![plan.clone(), next.clone()],
            extent: Extent::From(1),
        };
        verify(&trace, &[expected])?.expect_complete()?;
        Ok(true)
    })
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
    nvcap.end(Duration::from_secs(60))?.expect_code(0)?;
    let report = verify(&trace, &Expected::part(plan, Extent::From(1)))?;
    ensure!(
        report.processes.len() == 3,
        "processes {:?}",
        report.processes
    );
    report.expect_complete()
}

/// Lets the software GPU run for `before`, attaches, and verifies the trace to its end; `None` if it ended before nvcap was attached.
fn attached_to_running(plan: &Plan, options: &[&str], before: Duration) -> Result<Option<Report>> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(plan, options)?;
    gpu.write(b"g")?;
    std::thread::sleep(before);
    let nvcap = match attach(gpu.pid(), &trace, folder.channels()?, &[]) {
        Ok(nvcap) if gpu.runs() => nvcap,
        Err(e) if gpu.runs() => return Err(e),
        _ => return Ok(None),
    };
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, plan)?;
    nvcap.end(Duration::from_secs(60))?.expect_code(0)?;
    let report = verify(&trace, &Expected::part(plan.clone(), Extent::Suffix))?;
    report.expect_complete()?;
    Ok(Some(report))
}

/// Attached while threads come and go all the time: none may be missed between listing and arming.
pub fn churning_process() -> Result<()> {
    need_tracing()?;
    for round in 0..3 {
        let options = ["--threads=8", "--churn=2", "--sleep-us=800"];
        let mut left = 0;
        // Where nvcap took its time to attach, the program submits more.
        for submissions in [4000, 16_000, 64_000] {
            let plan = plan(28 + round, submissions);
            let report = attached_to_running(&plan, &options, Duration::from_millis(100))?;
            left = report.map_or(0, |report| report.threads.len());
            if left > 100 {
                break;
            }
        }
        ensure!(left > 100, "only {left} threads were left to trace");
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
        if running_at(*pace, pace == paces.last().unwrap_or(pace))? {
            return Ok(());
        }
    }
    bail!(
        "the software GPU had ended, or nearly, before nvcap was attached: the test needs more submissions"
    )
}

/// Waits for the software GPU and for the nvcap that was attached to it while it ran; none if it had ended by then.
pub fn until_both_end(
    mut gpu: Running,
    attached: Result<Running>,
    plan: &Plan,
) -> Result<Option<Ended>> {
    let nvcap = match attached {
        Ok(nvcap) if gpu.runs() => nvcap,
        Err(e) if gpu.runs() => return Err(e),
        _ => return Ok(None),
    };
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, plan)?;
    nvcap.end(Duration::from_secs(60)).map(Some)
}

/// Pauses of `pace` us between submissions; false if too little was left to trace. Then nvcap may also say that it could not tell whose channel
/// some doorbells were, but for the `last` time.
fn running_at(pace: u64, last: bool) -> Result<bool> {
    let plan = plan(22, sized(6000, 2400));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let pace = format!("--sleep-us={pace}");
    let mut gpu = waiting(&plan, &["--threads=6", &pace])?;
    gpu.write(b"g")?;
    std::thread::sleep(Duration::from_millis(300));
    let attached = attach(gpu.pid(), &trace, folder.channels()?, &[]);
    let Some(ended) = until_both_end(gpu, attached, &plan)? else {
        return Ok(false);
    };
    if !last && ended.code()? == 3 && ended.stderr.contains("of unknown channels;") {
        verify(&trace, &Expected::part(plan, Extent::Part))?;
        return Ok(false);
    }
    ended.expect_code(0)?;
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
    nvcap.end(Duration::from_secs(60))?.expect_code(0)?;
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

/// What a trace shows of a channel.
#[derive(Debug, Default)]
struct Shown {
    gpu: Option<u64>,
    ring: Option<u64>,
    /// Of each submission: token, thread, and whether it is marked late.
    submissions: Vec<(Option<u64>, Option<u64>, bool)>,
}

/// A trace of 16 threads, each with a channel of its own, that submit as fast as they can.
struct Race {
    channels: BTreeMap<u64, Shown>,
    /// Submissions a second in the second half.
    rate: f64,
    scans: u64,
}

/// Attaches before they begin. `named`: the channels and their tokens are told. `times` as many submissions as usual.
fn race(gpus: usize, named: bool, times: u64) -> Result<Race> {
    let mut plan = plan(30, times * sized(90_000, 8000));
    plan.channels = Channel::first(RACERS, gpus);
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let threads = format!("--threads={RACERS}");
    let gpus_option = format!("--gpus={gpus}");
    let mut gpu = waiting(&plan, &["--files", &threads, &gpus_option])?;
    let mut args: Vec<OsString> = vec!["NVCAP_LOG=debug".into(), nvcap()?.into()];
    // A starved reader loses nothing here: what the tokens are is the question.
    args.push(format!("--buffer={}M", 256 * times).into());
    args.extend(["--json", "-vv", "-e", "type=submission", "-o"].map(OsString::from));
    args.push(trace.clone().into());
    if named {
        args.extend(["--channels".into(), folder.channels()?.into()]);
    } else {
        let word = |gpu| format!("--doorbell={:#x}", doorbell_page(gpu, 1) + DOORBELL).into();
        args.extend((0..gpus).map(word));
    }
    args.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = Running::start(Path::new("env"), args)?;
    nvcap.wait_until("watching", Duration::from_secs(60), |r| {
        r.stderr().contains("attached")
    })?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    let scans = ended.stderr.lines().find_map(|l| {
        let (rest, scans) = l.strip_suffix(" scans")?.rsplit_once("; ")?;
        rest.contains("own copy of GP_PUT")
            .then(|| scans.parse().ok())?
    });
    let (mut channels, mut times): (BTreeMap<u64, Shown>, Vec<u64>) = Default::default();
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
                times.extend(line["time_ns"].as_u64());
                let late = line["late"] == true;
                let submission = (line["token"].as_u64(), line["tid"].as_u64(), late);
                shown.submissions.push(submission);
            }
            _ => {}
        }
    }
    times.sort_unstable();
    let second = &times[times.len() / 2..];
    let (Some(first), Some(last)) = (second.first(), second.last()) else {
        bail!("no submission");
    };
    Ok(Race {
        channels,
        rate: second.len() as f64 / (last - first).max(1) as f64 * 1e9,
        scans: scans.context("no count of scans")?,
    })
}

/// Every token becomes known, right, and soon: then each submission has its own token and thread, and nothing is searched
/// for any more. Where a thread got the processor so late that nothing was learnt of its token in time, they submit twice as much.
fn tokens_of_racing_threads(gpus: usize) -> Result<Race> {
    need_tracing()?;
    for times in [1, 2, 4] {
        let race = race(gpus, false, times)?;
        if tokens_are_known(&race, gpus)? {
            return Ok(race);
        }
    }
    bail!("three times in a row a token did not become known soon")
}

/// False if a token was not known in the last third of a channel's submissions, or was learnt late; an error if one is wrong.
fn tokens_are_known(race: &Race, gpus: usize) -> Result<bool> {
    let mut known = true;
    let all: usize = race.channels.values().map(|c| c.submissions.len()).sum();
    ensure!(
        race.channels.len() == RACERS,
        "{} channels",
        race.channels.len()
    );
    // Until a token is known, each doorbell is a search, which may find what another thread is about to ring for.
    if race.scans >= all as u64 / 4 {
        println!(
            "{} scans at {all} doorbells: once more, for longer",
            race.scans
        );
        return Ok(false);
    }
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
            known &= token.is_some();
            let token_is_right = token.is_none_or(|t| t == u64::from(its.token()));
            // What a lost hit left is fetched without a thread.
            let thread_is_right = *tid == thread || tid.is_none() && *late;
            ensure!(
                token_is_right && thread_is_right,
                "{its:?}: token {token:x?}, thread {tid:?} instead of {thread:?}, late {late}"
            );
        }
    }
    Ok(known)
}

/// On one GPU the error notifiers say which tokens to try first.
pub fn racing_threads() -> Result<()> {
    tokens_of_racing_threads(1).map(drop)
}

/// On two they do not, and both have the same tokens. Once learnt, tokens cost what told ones cost.
pub fn racing_threads_of_two_gpus() -> Result<()> {
    // The two run one after the other: on a busy machine one of them may be the slower for other reasons.
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let learnt = tokens_of_racing_threads(2)?;
        let told = race(2, true, 1)?;
        if told.rate < 2.0 * learnt.rate {
            return Ok(());
        }
        pairs.push(format!(
            "{} submissions a second, {} with tokens told",
            learnt.rate, told.rate
        ));
    }
    bail!("{}", pairs.join("; "))
}
