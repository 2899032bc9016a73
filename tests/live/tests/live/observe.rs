//! `nvcap --how observe`: the same software GPU, followed by polling. Needs neither root nor breakpoints.
//!
//! The output must be the plan to the last byte, as with the trap: the software GPU goes on in step with nvcap, so that how busy the machine is
//! decides nothing. Losses must be counted: those tests check that every submission shown is one of the plan's in its order, and that the ledger
//! reports the rest. How much is seen at full speed is measured (`tests/measure/observe.rs`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use live::debugger::threads;
use live::harness::not_run;
use live::in_step::Step;
use live::programs::{Ended, Folder, Running, Until, nvcap, so_far, softgpu};
use live::verify::{Expected, Extent, Report, verify};
use nvcap_process::host::fork_events::Told as Forks;
use softgpu::layout::Channel;
use softgpu::plan::Plan;
use softgpu::run::EXEC_STRIDE;

use crate::attach::waiting;
use crate::dump;
use crate::setup::{LIMIT, expect_result, gpus, plan, plan_args};

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

/// Stays mapped to its end, as a CUDA program does that does not destroy its context: nvcap looks at it once more while it stands there.
pub const LEAVE: &str = "--leave-mapped";

/// Option by which up to four threads look, between which every channel goes to and fro all the time.
pub const THREADS: &str = "--observe-threads=4";
const ROTATE: (&str, &str) = ("NVCAP_OBSERVE_ROTATE", "1");

/// Runs the plan under `nvcap --how observe`, in step.
fn observe(plan: &Plan, args: &[&str], flags: &[&str]) -> Result<Observed> {
    observe_program(&softgpu()?, plan, args, flags)
}

/// As [`observe`], with the software GPU under another name.
fn observe_program(program: &Path, plan: &Plan, args: &[&str], flags: &[&str]) -> Result<Observed> {
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let mut command = options(&trace, &folder, args, flags)?;
    command.extend(["--".into(), program.into()]);
    command.extend(plan_args(plan).into_iter().map(OsString::from));
    command.extend(step.with(args).into_iter().map(OsString::from));
    if flags.contains(&THREADS) {
        let (name, value) = ROTATE;
        command.splice(0..0, [nvcap()?.into()]);
        command.insert(0, format!("{name}={value}").into());
        let ended = step.start(Path::new("env"), command, None)?.end(LIMIT)?;
        return Ok(Observed::new(ended, trace, folder));
    }
    let ended = step.nvcap(command)?.end(LIMIT)?;
    Ok(Observed::new(ended, trace, folder))
}

/// The whole plan, with nothing missing.
fn whole(plan: Plan, args: &[&str]) -> Result<Report> {
    whole_with(plan, args, &[])
}

/// As [`whole`], with these of nvcap's options.
pub fn whole_with(plan: Plan, args: &[&str], flags: &[&str]) -> Result<Report> {
    let observed = observe(&plan, &[args, &[LEAVE]].concat(), flags)?;
    expect_result(&observed.ended.stdout, &plan).with_context(|| observed.ended.stderr.clone())?;
    observed.ended.expect_code(0)?;
    let report = verify(&observed.trace, &Expected::whole(plan))?;
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
    Ok(report)
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
        let observed = observe_program(&program, &plan, &[LEAVE], &[])?;
        expect_result(&observed.ended.stdout, &plan)
            .with_context(|| observed.ended.stderr.clone())?;
        observed
            .ended
            .expect_code(0)
            .with_context(|| format!("{name:?}"))?;
        verify(&observed.trace, &Expected::whole(plan))?.expect_complete()?;
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

/// From one submission per millisecond to as many as nvcap reads.
pub fn rates() -> Result<()> {
    for (sleep, submissions) in [(1000, 400), (0, 12_000)] {
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
    whole(plan, &["--threads=1"])?;
    Ok(())
}

/// Several entries at once, control entries, methods and releases that continue across an entry's end.
pub fn bursts() -> Result<()> {
    let mut plan = plan(5, 1200);
    plan.shape.burst = 12;
    plan.channels = Channel::first(4, gpus());
    let report = whole(plan, &["--threads=4"])?;
    ensure!(report.entries > 3000, "{} entries", report.entries);
    Ok(())
}

/// Uploads of about 1 MiB; a channel's pushbuffer memory of 4 MiB is reused after a few of them. Each is read before the next one: of several
/// in so little memory nvcap takes the first ones for used again, where the next upload might lie there.
pub fn big_entries() -> Result<()> {
    let mut plan = plan(4, 120);
    plan.shape.big_one_in = 4;
    plan.channels = Channel::first(3, gpus());
    let report = whole(plan, &["--threads=2", "--in-step-window=0"])?;
    ensure!(report.bytes > 20 << 20, "only {} bytes", report.bytes);
    Ok(())
}

pub fn lagging_get() -> Result<()> {
    whole(plan(16, 2000), &["--threads=2", "--lag=300"])?;
    Ok(())
}

pub fn many_threads() -> Result<()> {
    whole(plan(7, 3000), &["--threads=16", "--churn=3"])?;
    Ok(())
}

/// Children that submit to the same rings: the rings are followed once, and on after the parent if a child lives longer.
pub fn fork_shared() -> Result<()> {
    let report = whole(plan(11, 2000), &["--threads=2", "--fork=2"])?;
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
    own_children_of(&[kind], &[])
}

/// Children with memory of their own, under nvcap with these options.
pub fn own_children_of(kind: &[&str], flags: &[&str]) -> Result<()> {
    let plan = plan(12, 1200);
    let observed = observe(&plan, &[&["--threads=2", LEAVE], kind].concat(), flags)?;
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
    let expected: Vec<Expected> = expected
        .into_iter()
        .map(|(pid, plan)| Expected {
            pid: Some(pid),
            plans: vec![plan],
            extent: Extent::Whole,
        })
        .collect();
    observed.ended.expect_code(0)?;
    let report = verify(&observed.trace, &expected)?;
    report.expect_complete()?;
    ensure!(
        report.processes.len() == 3,
        "processes {:?}",
        report.processes
    );
    Ok(())
}

/// Nothing is missing except possible submissions after the last look at a ring.
pub fn misses_only_tails(ledger: &serde_json::Value) -> Result<()> {
    let blind = ledger["untraced"].as_array().context("no reasons")?;
    let tail = |b: &serde_json::Value| {
        b["why"].as_str().is_some_and(|w| {
            w.contains("were not seen")
                || w.contains("unmapped in use")
                || w.contains("whether they were since is not known")
        })
    };
    ensure!(
        ledger["gaps"] == 0 && !blind.is_empty() && blind.iter().all(tail),
        "{ledger}"
    );
    Ok(())
}

/// The report of a trace that has all that was expected. Of a program that nvcap cannot stop at its end, it cannot know that nothing came
/// after its last look, unless the program was quiet before: then it says that, which is right and no loss.
pub fn all_seen(ended: &Ended, trace: &Path, expected: &[Expected]) -> Result<Report> {
    let report = verify(trace, expected).with_context(|| ended.stderr.clone())?;
    if ended.code()? == 3 {
        misses_only_tails(report.ledger.as_ref().context("no ledger")?)?;
    } else {
        ended.expect_code(0)?;
        report.expect_complete()?;
    }
    Ok(report)
}

pub fn fork_and_exec() -> Result<()> {
    own_children("--spawn=2")
}

/// The rings are unmapped, or go with their program, and others are mapped at their addresses soon after.
pub fn exec() -> Result<()> {
    let plan = plan(13, 1500);
    for end in [&["--threads=2", "--exec=2"][..], &["--exec=2", LEAVE]] {
        whole_programs(&plan, 3, end, &[])?;
    }
    Ok(())
}

/// Runs the plan in this number of programs, one after the other.
pub fn whole_programs(plan: &Plan, programs: u32, args: &[&str], flags: &[&str]) -> Result<()> {
    let images = 0..programs;
    let plans: Vec<Plan> = images.map(|n| image(plan, n * EXEC_STRIDE)).collect();
    let observed = observe(plan, args, flags)?;
    for plan in &plans {
        expect_result(&observed.ended.stdout, plan)?;
    }
    let expected = Expected {
        pid: None,
        plans,
        extent: Extent::Whole,
    };
    all_seen(&observed.ended, &observed.trace, &[expected])?;
    Ok(())
}

/// Attaches to a software GPU; returns when nvcap follows it.
fn attach(gpu: &Running, trace: &Path, in_: (&Folder, &Step), flags: &[&str]) -> Result<Running> {
    attach_to(gpu, trace, in_, &[], flags)
}

/// As [`attach`]; `args` are the software GPU's.
fn attach_to(
    gpu: &Running,
    trace: &Path,
    (folder, step): (&Folder, &Step),
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
    let mut nvcap = step.nvcap(args)?;
    nvcap.wait_until("observing", LIMIT, |r| r.stderr().contains("attached"))?;
    Ok(nvcap)
}

fn from_waiting(before: u64, args: &[&str]) -> Result<()> {
    from_waiting_in(before, args, waiting)
}

/// As [`from_waiting`], of a program that `start` starts and waits for.
fn from_waiting_in(
    before: u64,
    args: &[&str],
    start: impl FnOnce(&Plan, &[String]) -> Result<Running>,
) -> Result<()> {
    let plan = plan(21, 3000);
    let before_wait = format!("--before-wait={before}");
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let all = [args, &["--threads=4", &before_wait]].concat();
    let mut gpu = start(&plan, &step.with(&all))?;
    let nvcap = attach_to(&gpu, &trace, (&folder, &step), args, &[])?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    let ended = nvcap.end(LIMIT)?;
    let expected = Expected::part(plan, Extent::From(before));
    all_seen(&ended, &trace, &expected)?;
    Ok(())
}

/// Unnamed channels are found by their structure, early enough that their rings still hold everything: channels of the
/// command, of the programs that it executes, and of its children.
pub fn found_channels() -> Result<()> {
    let report = whole(plan(91, 4000), &["--threads=2", FILES])?;
    ensure!(
        report.submissions == 4000,
        "{} submissions",
        report.submissions
    );
    let plan = plan(92, 3000);
    let args = ["--threads=2", "--exec=1", FILES];
    whole_programs(&plan, 2, &args, &[])?;
    own_children_of(&["--spawn=2", FILES], &[])
}

/// Looks are peeks at the semaphore, not at the ring, while nothing comes, where every entry releases the channel's semaphore and the
/// GPU does so in memory. The stream is still complete, including pauses. (How many, at full speed: `measure::observe`.)
pub fn peeks() -> Result<()> {
    let mut plan = plan(95, 3000);
    plan.channels = Channel::first(3, gpus());
    let report = whole(plan, &["--threads=3", "--sleep-us=2000", FILES])?;
    let ledger = report.ledger.as_ref().context("no ledger")?;
    let of = |kind: &str| ledger["observed"][kind].as_u64().unwrap_or(0);
    let (looks, peeks) = (of("looks"), of("peeks"));
    ensure!(looks > 0 && peeks > 0, "{looks} looks, {peeks} peeks");
    Ok(())
}

/// Observing attaches to a process that already runs.
pub fn found_when_attached() -> Result<()> {
    while_it_runs(93, &[FILES])
}

/// Attached while it runs, to a software GPU with these arguments.
fn while_it_runs(seed: u64, args: &[&str]) -> Result<()> {
    let plan = plan(seed, 8000);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let all = [&["--threads=4"], args].concat();
    let mut gpu = waiting(&plan, &step.following(&all))?;
    gpu.write(b"g")?;
    gpu.wait_until("at work", LIMIT, |gpu| {
        threads(gpu.pid()).is_ok_and(|all| all.len() == 5)
    })?;
    let nvcap = attach_to(&gpu, &trace, (&folder, &step), args, &[])?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    let report = all_seen(&ended, &trace, &Expected::part(plan, Extent::Suffix))?;
    // The program is the slower the longer nobody is there.
    ensure!(
        report.submissions > 500,
        "only {} submissions",
        report.submissions
    );
    Ok(())
}

/// Attached while it waits in the middle: every submission from the next one on.
pub fn waiting_process() -> Result<()> {
    from_waiting(7, &[])
}

/// Attached to the parent, such as torchrun's launcher, of a process that waits in the middle: every submission of the
/// child from the next one on, and none of before.
pub fn waiting_child() -> Result<()> {
    let in_child = |plan: &Plan, args: &[String]| {
        let script = r#"exec 3<&0; "$0" "$@" <&3 & wait $!"#;
        let mut all = vec!["-c".to_owned(), script.to_owned()];
        all.push(softgpu()?.display().to_string());
        all.extend(plan_args(plan));
        all.extend(args.iter().cloned());
        all.push("--wait-stdin".to_owned());
        let mut shell = Running::start(Path::new("/bin/sh"), all)?;
        shell.wait_for_line("waiting")?;
        Ok(shell)
    };
    from_waiting_in(7, &[FILES], in_child)
}

/// The first thread has ended: what the kernel shows of the process is in the folders of the others.
pub fn first_thread_ended() -> Result<()> {
    from_waiting(7, &["--leaderless"])?;
    from_waiting(7, &["--leaderless", FILES])
}

pub fn first_submissions() -> Result<()> {
    from_waiting(0, &[])
}

/// Attached while it runs: every submission from some point on.
pub fn running_process() -> Result<()> {
    while_it_runs(22, &[])
}

/// kill -9 after submissions that nvcap could not see: everything that was read is delivered and right, and the trace is not called complete.
/// (In the middle of its work: `observe_ends::ended_as_it_is_killed`.)
pub fn kill_target() -> Result<()> {
    let plan = plan(33, 40_000);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let args = ["--threads=4", "--before-wait=0", "--in-step-lap=20:5"];
    let mut gpu = waiting(&plan, &step.with(&args))?;
    let mut nvcap = attach(&gpu, &trace, (&folder, &step), &[])?;
    gpu.write(b"g")?;
    gpu.wait_for_line("before the lap")?;
    nvcap.stop()?;
    gpu.write(b"g")?;
    gpu.wait_for_line("lapped")?;
    // At least: after a shorter pause in its looks nvcap takes a program that had paused for what is done with (docs/limitations.md).
    std::thread::sleep(Duration::from_millis(200));
    gpu.signal(libc::SIGKILL)?;
    drop(gpu);
    nvcap.signal(libc::SIGCONT)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(3)?;
    let seen = 20 * plan.channels.len() as u64;
    let report = verify(&trace, &Expected::part(plan, Extent::Prefix))?;
    ensure!(
        report.submissions == seen,
        "{} submissions instead of {seen}",
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

/// Submissions that nvcap has certainly read before the test acts.
const READ: u64 = 300;

/// A program of which nvcap has read [`READ`] submissions, and nvcap; the program stays after its last submission.
fn at_work(plan: &Plan, trace: &Path, in_: (&Folder, &Step)) -> Result<(Running, Running)> {
    let say = format!("--in-step-say={READ}");
    let args = ["--threads=4", "--hold-end", &say];
    let mut gpu = waiting(plan, &in_.1.with(&args))?;
    let nvcap = attach(&gpu, trace, in_, &[])?;
    gpu.write(b"g")?;
    gpu.wait_for_line(&format!("read {READ}"))?;
    Ok((gpu, nvcap))
}

/// kill -9 of nvcap: the program is not affected.
pub fn kill_nvcap() -> Result<()> {
    let plan = plan(31, 6000);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let (gpu, nvcap) = at_work(&plan, &trace, (&folder, &step))?;
    nvcap.signal(libc::SIGKILL)?;
    drop(nvcap);
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    // The output is right as far as it goes.
    verify(&trace, &Expected::part(plan, Extent::Part))?;
    Ok(())
}

/// Ctrl-C: an orderly end with its ledger; the program continues.
pub fn interrupt_nvcap() -> Result<()> {
    let plan = plan(34, 6000);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let (gpu, nvcap) = at_work(&plan, &trace, (&folder, &step))?;
    nvcap.signal(libc::SIGINT)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    let report = verify(&trace, &Expected::part(plan, Extent::Part))?;
    ensure!(report.entries >= READ, "only {} entries", report.entries);
    report.expect_complete()
}

/// The tokens of unnamed channels, from their error notifiers, with that source named.
pub fn tokens_of_found_channels() -> Result<()> {
    // Notifiers do not name their GPU: one GPU only.
    let plan = dump::plan(94, 8, 4000);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let args = step.with(&["--threads=2", "--wait-stdin", "--hold-end"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut gpu = dump::start(&plan, &args)?;
    gpu.wait_for_line("waiting")?;
    let nvcap = attach_to(&gpu, &trace, (&folder, &step), &[FILES], &[])?;
    gpu.write(b"g")?;
    gpu.wait_for_line("held")?;
    nvcap.signal(libc::SIGINT)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    gpu.end(LIMIT)?.expect_code(0)?;
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
    for (flag, exactly) in [
        ("--max-submissions=200", Some(200)),
        ("--duration=0.7", None),
    ] {
        let plan = plan(51, 6000);
        let folder = Folder::new()?;
        let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
        let mut gpu = waiting(&plan, &step.with(&["--threads=3", "--hold-end"]))?;
        let nvcap = attach(&gpu, &trace, (&folder, &step), &[flag])?;
        gpu.write(b"g")?;
        nvcap.end(LIMIT)?.expect_code(0)?;
        let gpu = gpu.end(LIMIT)?;
        gpu.expect_code(0)?;
        expect_result(&gpu.stdout, &plan)?;
        let report = verify(&trace, &Expected::part(plan, Extent::Part))?;
        ensure!(
            exactly.is_none_or(|n| report.submissions == n),
            "{flag}: {} submissions",
            report.submissions
        );
        report.expect_complete()?;
    }
    Ok(())
}

/// Entries by which each ring goes too far, and those before.
const LAP: u64 = 1500;
const BEFORE_LAP: u64 = 300;

/// Rings go round while nvcap gets no processor: that is counted to the entry and explained, and the output is right.
pub fn laps_are_counted() -> Result<()> {
    let mut plan = plan(71, 6000);
    plan.channels = Channel::first(2, gpus());
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let lap = format!("--in-step-lap={BEFORE_LAP}:{LAP}");
    let mut gpu = waiting(
        &plan,
        &step.with(&["--threads=2", "--hold-end", "--before-wait=0", &lap]),
    )?;
    let mut nvcap = attach(&gpu, &trace, (&folder, &step), &[])?;
    gpu.write(b"g")?;
    gpu.wait_for_line("before the lap")?;
    nvcap.stop()?;
    gpu.write(b"g")?;
    gpu.wait_for_line("lapped")?;
    nvcap.signal(libc::SIGCONT)?;
    gpu.write(b"g")?;
    gpu.wait_for_line("held")?;
    nvcap.signal(libc::SIGINT)?;
    let ended = nvcap.end(LIMIT)?;
    gpu.end(LIMIT)?.expect_code(0)?;
    ended.expect_code(3)?;
    ensure!(ended.stderr.contains("INCOMPLETE"), "{}", ended.stderr);
    let report = verify(&trace, &Expected::part(plan.clone(), Extent::Holes))?;
    let ledger = report.ledger.context("no ledger")?;
    let seen = &ledger["observed"];
    let gaps = ledger["gaps"].as_u64().unwrap_or(0);
    // Each ring is lapped once. Of the newest half of a ring nvcap can read on, where it gets the processor for long enough.
    ensure!(
        seen["laps"] == 2 && report.entries + gaps == plan.submissions,
        "{} entries and {gaps} missing: {ledger}",
        report.entries
    );
    ensure!((2 * (LAP - 512)..=2 * LAP).contains(&gaps), "{ledger}");
    ensure!(
        seen["largest_part"].as_f64().is_some_and(|p| p >= 1.0),
        "{ledger}"
    );
    Ok(())
}

/// Children that never use a GPU, most of them so short that their memory is gone before it can be opened: nothing is
/// reported missing.
pub fn children_without_gpu() -> Result<()> {
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let plan = plan(96, 400);
    let script = format!(
        "for i in $(seq 300); do /bin/true; done; exec {} {} {}",
        softgpu()?.display(),
        plan_args(&plan).join(" "),
        step.with(&["--threads=2", LEAVE, FILES]).join(" ")
    );
    let mut args = options(&trace, &folder, &[FILES], &[])?;
    args.extend(["--".into(), "/bin/sh".into(), "-c".into(), script.into()]);
    let ended = step.nvcap(&args)?.end(LIMIT)?;
    ended.expect_code(0)?;
    verify(&trace, &Expected::whole(plan))?.expect_complete()
}

/// A full ring at once, each entry of which claims 2 MiB: 2 GiB in all; nvcap may use this much memory for it.
pub const MOST_MEMORY: u64 = 512 << 20;

/// Runs nvcap with these options on such a program, which ends in this way; returns its output.
pub fn claimed(options: &[OsString], end: &str) -> Result<Ended> {
    let mut args = options.to_vec();
    args.extend(["-q".into(), "--".into(), softgpu()?.into()]);
    args.extend(["--channels=4", "--submissions=100", FILES].map(OsString::from));
    args.extend(["--claim=2097152", end].map(OsString::from));
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

/// The entries of which the verdict says that they are missing.
pub fn missing(ended: &Ended) -> Option<u64> {
    let (before, _) = ended.stderr.split_once(" entries missing")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Data beyond the limit is counted: as many entries as the ring has, or more if nvcap came so late that earlier entries
/// were lost too.
pub fn memory_is_bounded() -> Result<()> {
    let ended = claimed(&["--how=observe".into()], LEAVE)?;
    ended.expect_code(3)?;
    ensure!(
        missing(&ended).is_some_and(|n| n >= 1000),
        "{}",
        ended.stderr
    );
    Ok(())
}

/// Another program that uses a GPU and was there before is not taken for a child where /proc tells of processes alone (`subset=pid`).
pub fn proc_of_processes_alone() -> Result<()> {
    let test = Command::new("unshare")
        .args(["--mount", "--propagation=private", "mount"])
        .args(["-t", "proc", "-o", "subset=pid", "proc", "/proc"])
        .output();
    match test {
        Ok(out) if out.status.success() => {}
        Ok(out) => return not_run(String::from_utf8_lossy(&out.stderr).into_owned()),
        Err(e) => return not_run(format!("there is no unshare: {e}")),
    }
    let plan = plan(917, 400);
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut other = waiting(&plan, &[FILES])?;
    let hold = Until::new(&folder, "hold")?;
    let mut gpu = waiting(&plan, &[FILES, "--sleep-us=500", &hold.hold()])?;
    let script = "mount -t proc -o subset=pid proc /proc && exec \"$@\"";
    let mut args: Vec<OsString> = ["--mount", "--propagation=private", "sh", "-c", script, "sh"]
        .map(OsString::from)
        .to_vec();
    args.push(nvcap()?.into());
    args.extend(options(&trace, &folder, &[FILES], &[])?);
    args.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = Running::start(Path::new("unshare"), args)?;
    nvcap.wait_until("attached", LIMIT, |n| n.stderr().contains("attached"))?;
    gpu.write(b"g")?;
    nvcap.wait_until("showing a submission", LIMIT, |_| {
        so_far(&trace, "\"submission\"") > 0
    })?;
    hold.release()?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    let text = std::fs::read_to_string(&trace)?;
    ensure!(
        !ended.stderr.contains("descend") && !text.contains("descend"),
        "{}",
        ended.stderr
    );
    other.write(b"g")?;
    other.end(LIMIT)?.expect_code(0)
}

/// The parent of an observed process makes processes that come and go, and then one that uses a GPU: it is no descendant of the observed one.
pub fn another_child_of_its_parent() -> Result<()> {
    if let Err(e) = Forks::new() {
        return not_run(format!("perf events of all processes are refused: {e}"));
    }
    let plan = plan(918, 400);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let mut gpu = waiting(&plan, &step.with(&["--threads=2", "--hold-end", FILES]))?;
    let nvcap = attach_to(&gpu, &trace, (&folder, &step), &[FILES], &[])?;
    gpu.write(b"g")?;
    gpu.wait_for_line("held")?;
    for _ in 0..20 {
        Command::new("true").status()?;
    }
    let other = waiting(&plan, &[FILES])?;
    nvcap.signal(libc::SIGINT)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    let is_complete = ended.stderr.contains("complete: 360 submissions");
    ensure!(is_complete, "{}", ended.stderr);
    for mut program in [gpu, other] {
        program.write(b"g")?;
        program.end(LIMIT)?.expect_code(0)?;
    }
    Ok(())
}
