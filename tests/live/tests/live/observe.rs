//! `nvcap --how observe`: the same software GPU, followed by polling. Needs neither root nor breakpoints.
//!
//! The output must be the plan to the last byte, as with the trap. Losses must be counted: those tests check that every
//! submission shown is one of the plan's in its order, and that the ledger reports the rest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use live::harness::{NotRun, not_run};
use live::programs::{Ended, Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, Report, verify};
use softgpu::layout::Channel;
use softgpu::plan::Plan;
use softgpu::run::EXEC_STRIDE;

use crate::attach::waiting;
use crate::death::{kill_attached, stop_attached};
use crate::dump;
use crate::setup::{LIMIT, expect_result, gpus, plan, plan_args};

/// A process lives on for a while after its last submission, like one that destroys a CUDA context.
pub const LINGER: &str = "--linger-ms=150";

/// Makes a software GPU look like a CUDA process from outside: its channels are found, not named.
pub const FILES: &str = "--files";

/// nvcap's options; `args` are the software GPU's.
pub fn options(
    trace: &Path,
    folder: &Folder,
    args: &[&str],
    flags: &[&str],
) -> Result<Vec<OsString>> {
    let mut options: Vec<OsString> = [
        "--how=observe",
        "--json",
        "-vv",
        "-e",
        "type=submission,entry",
        "-o",
    ]
    .map(OsString::from)
    .to_vec();
    options.push(trace.into());
    if !args.contains(&FILES) {
        options.extend(["--channels".into(), folder.channels()?.into()]);
    }
    options.extend(flags.iter().map(OsString::from));
    Ok(options)
}

pub struct Observed {
    pub ended: Ended,
    pub trace: PathBuf,
    _folder: Folder,
}

impl Observed {
    /// `folder` contains the trace.
    pub fn new(ended: Ended, trace: PathBuf, folder: Folder) -> Self {
        Self {
            ended,
            trace,
            _folder: folder,
        }
    }
}

/// Runs the plan under `nvcap --how observe`.
pub fn observe(plan: &Plan, args: &[&str], flags: &[&str]) -> Result<Observed> {
    observe_program(&softgpu()?, plan, args, flags)
}

/// As [`observe`], with the software GPU under another name.
fn observe_program(program: &Path, plan: &Plan, args: &[&str], flags: &[&str]) -> Result<Observed> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut command = options(&trace, &folder, args, flags)?;
    command.extend(["--".into(), program.into()]);
    command.extend(plan_args(plan).into_iter().map(OsString::from));
    command.push(LINGER.into());
    command.extend(args.iter().map(OsString::from));
    let ended = Running::start(&nvcap()?, command)?.end(LIMIT)?;
    Ok(Observed::new(ended, trace, folder))
}

/// The whole plan, with nothing missing. If another program kept the processor so long that a ring lapped, which no timing
/// can rule out, the run is repeated; the loss must have been counted.
fn whole(plan: Plan, args: &[&str]) -> Result<Report> {
    until_seen(args, |args| {
        let observed = observe(&plan, args, &[])?;
        expect_result(&observed.ended.stdout, &plan)
            .with_context(|| observed.ended.stderr.clone())?;
        if observed.ended.code()? == 3 {
            counted(&observed, plan.clone())?;
            return Ok(Err(observed.ended.stderr));
        }
        observed.ended.expect_code(0)?;
        let report = verify(&observed.trace, &Expected::whole(plan.clone()))?;
        report.expect_complete()?;
        // Doorbells are not seen: each ring entry is a submission of its own.
        ensure!(
            report.submissions == report.entries,
            "{} submissions of {} entries",
            report.submissions,
            report.entries
        );
        let ledger = report.ledger.as_ref().context("no ledger")?;
        ensure!(
            ledger["observed"]["largest_part"]
                .as_f64()
                .is_some_and(|p| p > 0.0 && p < 1.0),
            "{ledger}"
        );
        Ok(Ok(report))
    })
}

/// What `seen` returns of a run with these arguments of the software GPU. Where it says instead what a run missed, and that has
/// been counted, the run is repeated with longer pauses.
fn until_seen<T>(
    args: &[&str],
    mut seen: impl FnMut(&[&str]) -> Result<Result<T, String>>,
) -> Result<T> {
    let mut said = Vec::new();
    for slower in [1, 2, 4, 8, 16] {
        let args = args.iter().map(|arg| slowed(arg, slower));
        let args = args.collect::<Result<Vec<_>>>()?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        match seen(&args)? {
            Ok(seen) => return Ok(seen),
            Err(missed) => said.push(missed),
        }
    }
    anyhow::bail!(
        "five times in a row something was missed: the machine is too busy for this test:\n{}",
        said.join("")
    )
}

/// An argument of the software GPU; a pause after each submission is multiplied by `times`.
fn slowed(arg: &str, times: u64) -> Result<String> {
    match arg.strip_prefix("--sleep-us=") {
        Some(us) => Ok(format!("--sleep-us={}", us.parse::<u64>()? * times)),
        None => Ok(arg.to_owned()),
    }
}

/// A process's name is bytes: a name that is not UTF-8 does not mean that the process has ended.
pub fn any_name() -> Result<()> {
    use std::os::unix::ffi::OsStrExt;

    let programs = Folder::new()?;
    // 15 bytes of a program's file name are kept: the second ends within a character.
    for name in [&b"soft\xff"[..], b"abcdefghijklmn\xc3\xa9", b") Z ("] {
        let name = std::ffi::OsStr::from_bytes(name);
        let program = programs.file("").join(name);
        std::fs::copy(softgpu()?, &program)?;
        let plan = plan(58, 3000);
        let observed = observe_program(&program, &plan, &[], &[])?;
        expect_result(&observed.ended.stdout, &plan)
            .with_context(|| observed.ended.stderr.clone())?;
        let report = match observed.ended.code()? {
            3 => counted(&observed, plan)?,
            _ => {
                observed.ended.expect_code(0)?;
                verify(&observed.trace, &Expected::whole(plan))?
            }
        };
        ensure!(report.submissions > 0, "{name:?}: nothing was seen");
    }
    Ok(())
}

/// A trace with losses: every submission shown is right, and the missing ones are counted.
pub fn counted(observed: &Observed, plan: Plan) -> Result<Report> {
    let all: u64 = (0..plan.channels.len())
        .flat_map(|i| plan.stream(i))
        .map(|s| s.entries.len() as u64)
        .sum();
    let report = verify(&observed.trace, &Expected::part(plan, Extent::Holes))?;
    let ledger = report.ledger.as_ref().context("no ledger")?;
    ensure!(ledger["complete"] == false, "{ledger}");
    let gaps = ledger["gaps"].as_u64().unwrap_or(0);
    let blind = ledger["untraced"].as_array().is_some_and(|b| !b.is_empty());
    ensure!(gaps > 0 || blind, "nothing is said to be missing: {ledger}");
    ensure!(
        report.entries + gaps <= all,
        "{} shown and {gaps} missing of {all}",
        report.entries
    );
    // Only submissions after the last look are not counted, and the ledger says so then.
    ensure!(
        report.entries + gaps == all || blind,
        "{} shown and {gaps} missing of {all}, and nothing is said of the rest: {ledger}",
        report.entries
    );
    Ok(report)
}

/// From one submission per millisecond to as many as a writer makes with pauses of a few microseconds.
pub fn rates() -> Result<()> {
    for (sleep, submissions) in [
        (1000, 400),
        (300, 1500),
        (100, 4000),
        (30, 8000),
        (5, 12000),
    ] {
        let mut plan = plan(61 + sleep, submissions);
        plan.channels = Channel::first(2, gpus());
        let nap = format!("--sleep-us={sleep}");
        let report = whole(plan, &["--threads=2", &nap])
            .with_context(|| format!("a submission every {sleep} us and more"))?;
        ensure!(
            report.submissions == submissions,
            "{} submissions",
            report.submissions
        );
    }
    Ok(())
}

pub fn ring_wrap() -> Result<()> {
    let mut plan = plan(3, 6000);
    plan.channels = Channel::first(1, gpus());
    whole(plan, &["--threads=1", "--sleep-us=30"])?;
    Ok(())
}

/// Several entries at once, control entries, methods and releases that continue across an entry's end.
pub fn bursts() -> Result<()> {
    let mut plan = plan(5, 1200);
    plan.shape.burst = 12;
    plan.channels = Channel::first(4, gpus());
    let report = whole(plan, &["--threads=4", "--sleep-us=500"])?;
    ensure!(report.entries > 3000, "{} entries", report.entries);
    Ok(())
}

/// Uploads of about 1 MiB; a channel's pushbuffer memory of 4 MiB is reused after a few of them.
pub fn big_entries() -> Result<()> {
    let mut plan = plan(4, 400);
    plan.shape.big_one_in = 4;
    let report = whole(plan, &["--threads=2", "--sleep-us=5000"])?;
    ensure!(report.bytes > 40 << 20, "only {} bytes", report.bytes);
    Ok(())
}

pub fn lagging_get() -> Result<()> {
    whole(
        plan(16, 2000),
        &["--threads=2", "--lag=300", "--sleep-us=100"],
    )?;
    Ok(())
}

pub fn many_threads() -> Result<()> {
    whole(
        plan(7, 3000),
        &["--threads=16", "--churn=3", "--sleep-us=1000"],
    )?;
    Ok(())
}

/// Children that submit to the same rings: the rings are followed once, and on after the parent if a child lives longer.
pub fn fork_shared() -> Result<()> {
    let report = whole(
        plan(11, 2000),
        &["--threads=2", "--fork=2", "--sleep-us=300"],
    )?;
    ensure!(
        report.processes.len() == 1,
        "processes {:?}",
        report.processes
    );
    Ok(())
}

fn child_pids(stdout: &str) -> Vec<u32> {
    let children = stdout.lines().filter(|l| l.starts_with("child "));
    children
        .filter_map(|l| l.split_whitespace().nth(3).and_then(|p| p.parse().ok()))
        .collect()
}

fn image(plan: &Plan, image: u32) -> Plan {
    let mut plan = plan.clone();
    plan.shape.image = image;
    plan
}

/// Children with memory, channels and plans of their own at the same addresses.
fn own_children(kind: &str) -> Result<()> {
    own_children_of(&[kind])
}

fn own_children_of(kind: &[&str]) -> Result<()> {
    let plan = plan(12, 1200);
    let args = [&["--threads=2", "--sleep-us=1000"], kind].concat();
    until_seen(&args, |args| own_children_once(&plan, args))
}

/// Their submissions, but for those after the last look at a ring of each; an error's text where more was missed, and counted.
fn own_children_once(plan: &Plan, args: &[&str]) -> Result<Result<(), String>> {
    let observed = observe(plan, args, &[])?;
    let stdout = &observed.ended.stdout;
    let first = stdout
        .lines()
        .find_map(|l| l.strip_prefix("pid "))
        .context("no pid")?;
    let children = child_pids(stdout);
    ensure!(children.len() == 2, "{stdout}");
    let mut expected = vec![(first.parse()?, plan.clone())];
    for (n, child) in children.into_iter().enumerate() {
        expected.push((child, image(&plan, 1 + n as u32)));
    }
    // These children end right after their last submission: submissions after the last look are unknown.
    let mut expected: Vec<Expected> = expected
        .into_iter()
        .map(|(pid, plan)| Expected {
            pid: Some(pid),
            plans: vec![plan],
            extent: Extent::Whole,
        })
        .collect();
    let report = match observed.ended.code()? {
        0 => {
            let report = verify(&observed.trace, &expected)?;
            report.expect_complete()?;
            report
        }
        3 => {
            // Right, whatever is missing.
            expected.iter_mut().for_each(|e| e.extent = Extent::Holes);
            let report = verify(&observed.trace, &expected)?;
            let (seen, processes) = (report.submissions, report.processes.len());
            if only_tails(&report).is_err() || seen <= 1800 || processes < 3 {
                let said = &observed.ended.stderr;
                return Ok(Err(format!(
                    "{seen} of 3600, {processes} processes: {said}"
                )));
            }
            expected.iter_mut().for_each(|e| e.extent = Extent::Prefix);
            verify(&observed.trace, &expected)?
        }
        code => anyhow::bail!("exit status {code}: {}", observed.ended.stderr),
    };
    ensure!(
        report.processes.len() == 3,
        "processes {:?}",
        report.processes
    );
    Ok(Ok(()))
}

/// Nothing is missing except possible submissions after the last look at a ring.
fn only_tails(report: &Report) -> Result<()> {
    misses_only_tails(report.ledger.as_ref().context("no ledger")?)
}

/// The same of a ledger.
pub fn misses_only_tails(ledger: &serde_json::Value) -> Result<()> {
    let blind = ledger["untraced"].as_array().context("no reasons")?;
    let tail = |b: &serde_json::Value| {
        b["why"]
            .as_str()
            .is_some_and(|w| w.contains("were not seen") || w.contains("unmapped in use"))
    };
    ensure!(
        ledger["gaps"] == 0 && !blind.is_empty() && blind.iter().all(tail),
        "{ledger}"
    );
    Ok(())
}

/// A trace with status 3: what is shown is right, and nothing is missing but submissions after the last look.
pub fn lacks_a_tail(trace: &Path, expected: &[Expected]) -> Result<()> {
    let part = |e: &Expected| Expected {
        extent: Extent::Part,
        ..e.clone()
    };
    let expected: Vec<Expected> = expected.iter().map(part).collect();
    only_tails(&verify(trace, &expected)?)
}

/// The report of a whole trace; `None` if it lacks a tail, and says so.
pub fn whole_or_tail(ended: &Ended, trace: &Path, expected: &[Expected]) -> Result<Option<Report>> {
    if ended.code()? == 3 {
        lacks_a_tail(trace, expected)?;
        return Ok(None);
    }
    ended.expect_code(0)?;
    let report = verify(trace, expected)?;
    report.expect_complete()?;
    Ok(Some(report))
}

/// Repeats it until it is whole, which `whole` says: if nvcap got no processor for as long as the process lives on after its last submission,
/// that one was not seen.
pub fn until_whole(whole: impl Fn() -> Result<bool>) -> Result<()> {
    for _ in 0..5 {
        if whole()? {
            return Ok(());
        }
    }
    anyhow::bail!(
        "five times in a row the last submissions were not seen: the machine is too busy for this test"
    )
}

pub fn fork_and_exec() -> Result<()> {
    own_children("--spawn=2")
}

/// The rings are unmapped while they are read, and others are mapped at their addresses soon after.
pub fn exec() -> Result<()> {
    let plan = plan(13, 1500);
    let args = ["--threads=2", "--sleep-us=200", "--exec=2"];
    whole_programs(&plan, 3, &args)
}

/// The plan as each of so many programs submits it, one after the other. Each may end before nvcap has seen its tail.
fn whole_programs(plan: &Plan, programs: u32, args: &[&str]) -> Result<()> {
    let images = 0..programs;
    let plans: Vec<Plan> = images.map(|n| image(plan, n * EXEC_STRIDE)).collect();
    let expected = |extent| Expected {
        pid: None,
        plans: plans.clone(),
        extent,
    };
    until_seen(args, |args| {
        let observed = observe(plan, args, &[])?;
        for plan in &plans {
            expect_result(&observed.ended.stdout, plan)?;
        }
        if observed.ended.code()? == 3 {
            let report = verify(&observed.trace, &[expected(Extent::Holes)])?;
            let ledger = report.ledger.as_ref().context("no ledger")?;
            ensure!(ledger["complete"] == false, "{ledger}");
            return Ok(Err(observed.ended.stderr));
        }
        observed.ended.expect_code(0)?;
        verify(&observed.trace, &[expected(Extent::Whole)])?.expect_complete()?;
        Ok(Ok(()))
    })
}

/// Attaches to a software GPU; returns when nvcap follows it.
fn attach(gpu: &Running, trace: &Path, folder: &Folder, flags: &[&str]) -> Result<Running> {
    attach_to(gpu, trace, folder, &[], flags)
}

/// As [`attach`]; `args` are the software GPU's.
fn attach_to(
    gpu: &Running,
    trace: &Path,
    folder: &Folder,
    args: &[&str],
    flags: &[&str],
) -> Result<Running> {
    // SAFETY: reads an id.
    let root = unsafe { libc::geteuid() } == 0;
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !root && !matches!(scope.trim(), "" | "0") {
        return not_run(
            "not root, and kernel.yama.ptrace_scope keeps processes from looking at others",
        );
    }
    let mut args = options(trace, folder, args, flags)?;
    args.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_until("observing", Duration::from_secs(60), |r| {
        r.stderr().contains("attached")
    })?;
    Ok(nvcap)
}

fn from_waiting(before: u64) -> Result<()> {
    let plan = plan(21, 3000);
    let before_wait = format!("--before-wait={before}");
    let args = ["--threads=4", "--sleep-us=200", LINGER, &before_wait];
    until_whole(|| {
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let mut gpu = waiting(&plan, &args)?;
        let nvcap = attach(&gpu, &trace, &folder, &[])?;
        gpu.write(b"g")?;
        let gpu = gpu.end(LIMIT)?;
        gpu.expect_code(0)?;
        expect_result(&gpu.stdout, &plan)?;
        let ended = nvcap.end(Duration::from_secs(60))?;
        let expected = Expected::part(plan.clone(), Extent::From(before));
        Ok(whole_or_tail(&ended, &trace, &expected)?.is_some())
    })
}

/// Unnamed channels are found by their structure, early enough that their rings still hold everything: channels of the
/// command, of the programs that it executes, and of its children.
pub fn found_channels() -> Result<()> {
    let report = whole(plan(91, 4000), &["--threads=2", "--sleep-us=300", FILES])?;
    ensure!(
        report.submissions == 4000,
        "{} submissions",
        report.submissions
    );
    let plan = plan(92, 3000);
    let args = ["--threads=2", "--sleep-us=300", "--exec=1", FILES];
    whole_programs(&plan, 2, &args)?;
    own_children_of(&["--spawn=2", FILES])
}

/// If every entry releases the channel's semaphore and the GPU does so in memory, most looks are peeks at the semaphore,
/// not at the ring; and the stream is still complete, including pauses.
pub fn peeks() -> Result<()> {
    let mut plan = plan(95, 6000);
    plan.channels = Channel::first(3, gpus());
    let report = whole(plan, &["--threads=3", "--sleep-us=2000", FILES])?;
    let ledger = report.ledger.as_ref().context("no ledger")?;
    let of = |kind: &str| ledger["observed"][kind].as_u64().unwrap_or(0);
    let (looks, peeks) = (of("looks"), of("peeks"));
    ensure!(peeks > looks, "{looks} looks, {peeks} peeks");
    Ok(())
}

/// The same for a process that already runs.
pub fn found_when_attached() -> Result<()> {
    while_it_runs(93, &[FILES])
}

/// Attached while it runs, to a software GPU with these arguments. It submits more where nvcap took its time to attach.
fn while_it_runs(seed: u64, args: &[&str]) -> Result<()> {
    let mut submissions = 8000;
    let mut said = Vec::new();
    for _ in 0..5 {
        let plan = plan(seed, submissions);
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let all = [&["--threads=4", "--sleep-us=500", LINGER], args].concat();
        let mut gpu = waiting(&plan, &all)?;
        gpu.write(b"g")?;
        std::thread::sleep(Duration::from_millis(200));
        let nvcap = match attach_to(&gpu, &trace, &folder, args, &[]) {
            Ok(nvcap) if gpu.runs() => nvcap,
            Err(e) if gpu.runs() || e.is::<NotRun>() => return Err(e),
            _ => {
                said.push(format!("it had ended before {submissions} submissions"));
                submissions = (4 * submissions).min(128_000);
                continue;
            }
        };
        gpu.end(LIMIT)?.expect_code(0)?;
        let ended = nvcap.end(Duration::from_secs(60))?;
        let expected = Expected::part(plan, Extent::Suffix);
        match whole_or_tail(&ended, &trace, &expected)? {
            Some(report) if report.submissions > 500 => return Ok(()),
            Some(report) => {
                let left = report.submissions;
                said.push(format!(
                    "only {left} submissions of {submissions} were left"
                ));
                submissions = (4 * submissions).min(128_000);
            }
            None => said.push("the last ones were not seen".to_owned()),
        }
    }
    anyhow::bail!("five times in a row: {}", said.join("; "))
}

/// Attached while it waits in the middle: every submission from the next one on.
pub fn waiting_process() -> Result<()> {
    from_waiting(7)
}

pub fn first_submissions() -> Result<()> {
    from_waiting(0)
}

/// Attached while it runs: every submission from some point on.
pub fn running_process() -> Result<()> {
    while_it_runs(22, &[])
}

/// kill -9 in the middle: everything that was read is delivered and right, and the trace is not called complete.
pub fn kill_target() -> Result<()> {
    let plan = plan(33, 40_000);
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(&plan, &["--threads=4", "--sleep-us=100", "--before-wait=0"])?;
    let nvcap = attach(&gpu, &trace, &folder, &[])?;
    gpu.write(b"g")?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(gpu.runs(), "the software GPU ended too early for this test");
    gpu.signal(libc::SIGKILL)?;
    drop(gpu);
    let ended = nvcap.end(Duration::from_secs(60))?;
    ended.expect_code(3)?;
    let report = verify(&trace, &Expected::part(plan, Extent::Prefix))?;
    ensure!(
        report.submissions > 500,
        "only {} submissions",
        report.submissions
    );
    let ledger = report.ledger.context("no ledger")?;
    let reasons = ledger["untraced"].as_array();
    let mut reasons = reasons.into_iter().flatten();
    let unseen = reasons.any(|r| {
        let why = r["why"].as_str();
        why.is_some_and(|why| why.contains("were not seen"))
    });
    ensure!(ledger["complete"] == false && unseen, "{ledger}");
    Ok(())
}

fn by_looking(gpu: &Running, trace: &Path, folder: &Folder) -> Result<Running> {
    attach(gpu, trace, folder, &[])
}

/// kill -9 of nvcap: the program is not affected.
pub fn kill_nvcap() -> Result<()> {
    kill_attached(by_looking)
}

/// Ctrl-C: an orderly end with its ledger; the program continues.
pub fn interrupt_nvcap() -> Result<()> {
    stop_attached(by_looking, libc::SIGINT)
}

/// The tokens of unnamed channels, from their error notifiers, with that source named.
pub fn tokens_of_found_channels() -> Result<()> {
    // Notifiers do not name their GPU: one GPU only.
    let plan = dump::plan(94, 8, 4000);
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let args = ["--threads=2", "--sleep-us=500", LINGER, "--wait-stdin"];
    until_whole(|| {
        let mut gpu = dump::start(&plan, &args)?;
        gpu.wait_for_line("waiting")?;
        let nvcap = attach_to(&gpu, &trace, &folder, &[FILES], &[])?;
        gpu.write(b"g")?;
        gpu.end(LIMIT)?.expect_code(0)?;
        let ended = nvcap.end(Duration::from_secs(60))?;
        if ended.code()? == 3 {
            lacks_a_tail(&trace, &Expected::part(plan.clone(), Extent::Part))?;
            return Ok(false);
        }
        ended.expect_code(0)?;
        Ok(true)
    })?;
    let text = std::fs::read_to_string(&trace)?;
    let said: Vec<serde_json::Value> = text
        .lines()
        .filter(|l| l.starts_with("{\"type\":\"channel\""))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    for c in &plan.channels {
        let named = said
            .iter()
            .any(|s| s["ring"] == c.ring() && s["token"] == c.token() && s["origin"] == "notified");
        ensure!(
            named,
            "no token {:#x} for {:#x} in {said:?}",
            c.token(),
            c.ring()
        );
    }
    let wrong = |s: &&serde_json::Value| {
        let its = |c: &&Channel| s["ring"] == c.ring();
        let token = plan.channels.iter().find(its).map(|c| c.token());
        s["token"].is_u64() && token.is_none_or(|t| s["token"] != t)
    };
    ensure!(!said.iter().any(|s| wrong(&s)), "{said:?}");
    Ok(())
}

/// `--max-submissions` and `--duration`.
pub fn limits() -> Result<()> {
    for (flag, least, most) in [
        ("--max-submissions=200", 200, 200),
        ("--duration=0.7", 100, 100_000),
    ] {
        let plan = plan(51, 6000);
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let mut gpu = waiting(&plan, &["--threads=3", "--sleep-us=700"])?;
        let nvcap = attach(&gpu, &trace, &folder, &[flag])?;
        gpu.write(b"g")?;
        nvcap.end(Duration::from_secs(60))?.expect_code(0)?;
        ensure!(gpu.runs(), "the software GPU ended too early for this test");
        gpu.end(LIMIT)?.expect_code(0)?;
        let report = verify(&trace, &Expected::part(plan, Extent::Part))?;
        ensure!(
            (least..=most).contains(&report.submissions),
            "{flag}: {} submissions",
            report.submissions
        );
        report.expect_complete()?;
    }
    Ok(())
}

/// A budget far too small to follow: rings lap, which is counted and explained, and the output is right.
pub fn laps_are_counted() -> Result<()> {
    let args = ["--threads=2", "--sleep-us=20"];
    // Where nvcap could not look a second time, the program runs twice as long.
    for submissions in [120_000, 240_000, 480_000, 960_000] {
        let mut plan = plan(71, submissions);
        plan.channels = Channel::first(2, gpus());
        let observed = observe(&plan, &args, &["--observe-cpu=3%"])?;
        observed.ended.expect_code(3)?;
        ensure!(
            observed.ended.stderr.contains("INCOMPLETE"),
            "{}",
            observed.ended.stderr
        );
        let report = counted(&observed, plan.clone())?;
        ensure!(
            report.submissions > 50,
            "only {} submissions",
            report.submissions
        );
        let ledger = report.ledger.context("no ledger")?;
        let seen = &ledger["observed"];
        if seen["laps"] == 0 {
            // Memory new to a virtual machine can cost so much CPU time that the program has ended before nvcap may look
            // again: that is counted (above), but is no lap.
            continue;
        }
        ensure!(
            seen["largest_part"].as_f64().is_some_and(|p| p >= 1.0),
            "{ledger}"
        );
        let reasons = seen["reasons"].to_string();
        ensure!(reasons.contains("--observe-cpu"), "{reasons}");
        return Ok(());
    }
    anyhow::bail!("four times in a row nvcap could not look a second time")
}

/// nvcap as a whole uses no more than the budget, over seconds.
pub fn the_budget_is_kept() -> Result<()> {
    let mut plan = plan(72, 12_000);
    plan.channels = Channel::first(4, gpus());
    let args = ["--threads=2", "--sleep-us=400"];
    let observed = observe(&plan, &args, &["--observe-cpu=2%"])?;
    let report = match observed.ended.code()? {
        0 => verify(&observed.trace, &Expected::whole(plan))?,
        _ => counted(&observed, plan)?,
    };
    let ledger = report.ledger.context("no ledger")?;
    let ns = |name: &str| ledger["observed"][name].as_f64().unwrap_or(f64::NAN);
    let used = ns("cpu_ns") / ns("wall_ns");
    ensure!(ns("wall_ns") > 2e9, "{ledger}");
    // Up to a second's worth may be saved, and is available at the start.
    let most = 0.02 * (1.0 + 1e9 / ns("wall_ns")) * 1.25 + 0.01;
    ensure!(used < most, "{used} of a core instead of 0.02: {ledger}");
    Ok(())
}

/// Children that never use a GPU, most of them so short that their memory is gone before it can be opened: nothing is
/// reported missing.
pub fn children_without_gpu() -> Result<()> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let plan = plan(96, 400);
    let script = format!(
        "for i in $(seq 300); do /bin/true; done; exec {} {} --threads=2 --sleep-us=300 {LINGER} {FILES}",
        softgpu()?.display(),
        plan_args(&plan).join(" ")
    );
    let mut args = options(&trace, &folder, &[FILES], &[])?;
    args.extend(["--".into(), "/bin/sh".into(), "-c".into(), script.into()]);
    let expected = Expected::whole(plan);
    until_whole(|| {
        let ended = Running::start(&nvcap()?, &args)?.end(LIMIT)?;
        Ok(whole_or_tail(&ended, &trace, &expected)?.is_some())
    })
}

/// A full ring at once, each entry of which claims 2 MiB: 2 GiB in all; nvcap may use this much memory for it.
pub const MOST_MEMORY: u64 = 512 << 20;

/// Runs nvcap with these options on such a program; returns its output.
pub fn claimed(options: &[OsString]) -> Result<Ended> {
    let mut args = options.to_vec();
    args.extend(["-q".into(), "--".into(), softgpu()?.into()]);
    args.extend(["--channels=4", "--submissions=100", FILES].map(OsString::from));
    args.extend(["--claim=2097152", "--linger-ms=1500"].map(OsString::from));
    let mut nvcap = Running::start(&nvcap()?, args)?;
    let mut most = 0;
    while nvcap.runs() {
        most = most.max(nvcap.peak_memory().unwrap_or(0));
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(
        (1..=MOST_MEMORY).contains(&most),
        "{most} bytes of memory, {MOST_MEMORY} at most"
    );
    nvcap.end(LIMIT)
}

/// Data beyond the limit is counted: as many entries as the ring has, or more if nvcap came so late that earlier entries
/// were lost too.
pub fn memory_is_bounded() -> Result<()> {
    let ended = claimed(&["--how=observe".into()])?;
    ended.expect_code(3)?;
    let said = ended.stderr.split_once(" entries missing");
    let count = said.and_then(|(before, _)| before.rsplit(' ').next()?.parse::<u64>().ok());
    ensure!(count.is_some_and(|n| n >= 1000), "{}", ended.stderr);
    Ok(())
}
