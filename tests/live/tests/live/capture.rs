//! `nvcap -- CMD`: everything from the first doorbell on, with threads and processes of all kinds.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use live::in_step::Step;
use live::programs::{Ended, Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, Report, verify};
use softgpu::layout::Channel;
use softgpu::plan::Plan;
use softgpu::run::EXEC_STRIDE;

use crate::setup::{LIMIT, expect_result, gpus, need_tracing, plan, plan_args, sized};

/// A trace: how nvcap ended, and the path.
struct Traced {
    ended: Ended,
    trace: PathBuf,
    _folder: Folder,
}

/// Filter of a trace that is compared with a plan: method writes would take gigabytes.
const ENTRIES: &str = "type=submission,entry";

fn trace(plan: &Plan, args: &[&str]) -> Result<Traced> {
    trace_only(ENTRIES, plan, args)
}

fn trace_only(filter: &str, plan: &Plan, args: &[&str]) -> Result<Traced> {
    trace_with(&[], filter, plan, args)
}

/// `options` are nvcap's, `args` the software GPU's.
fn trace_with(options: &[&str], filter: &str, plan: &Plan, args: &[&str]) -> Result<Traced> {
    trace_as(&[], options, filter, plan, args)
}

/// The same with these `NAME=VALUE` in the environment.
fn trace_as(
    environment: &[&str],
    options: &[&str],
    filter: &str,
    plan: &Plan,
    args: &[&str],
) -> Result<Traced> {
    let traced = take(environment, options, filter, plan, args)?;
    traced.ended.expect_code(0)?;
    Ok(traced)
}

/// The same, in step.
fn in_step(environment: &[&str], plan: &Plan, args: &[&str]) -> Result<Traced> {
    let traced = take_in_step(environment, plan, args)?;
    traced.ended.expect_code(0)?;
    Ok(traced)
}

/// In step, however nvcap ends.
fn take_in_step(environment: &[&str], plan: &Plan, args: &[&str]) -> Result<Traced> {
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let variable = step.variable().into_string();
    let variable = variable.map_err(|v| anyhow::anyhow!("{v:?} is no UTF-8"))?;
    let environment = [environment, &[variable.as_str()]].concat();
    let args = step.with(args);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    take_into(folder, &environment, &[], ENTRIES, plan, &args)
}

/// As [`trace_as`], however nvcap ends.
fn take(
    environment: &[&str],
    options: &[&str],
    filter: &str,
    plan: &Plan,
    args: &[&str],
) -> Result<Traced> {
    take_into(Folder::new()?, environment, options, filter, plan, args)
}

fn take_into(
    folder: Folder,
    environment: &[&str],
    options: &[&str],
    filter: &str,
    plan: &Plan,
    args: &[&str],
) -> Result<Traced> {
    need_tracing()?;
    let trace = folder.file("trace.json");
    let mut command: Vec<OsString> = environment.iter().map(OsString::from).collect();
    command.extend([
        nvcap()?.into(),
        "--json".into(),
        "-vv".into(),
        "-o".into(),
        trace.clone().into(),
    ]);
    command.extend(["-e".into(), filter.into()]);
    command.extend(options.iter().map(OsString::from));
    command.extend([
        "--channels".into(),
        folder.channels()?.into(),
        "--".into(),
        softgpu()?.into(),
    ]);
    command.extend(plan_args(plan).into_iter().map(OsString::from));
    command.extend(args.iter().map(OsString::from));
    let ended = Running::start(Path::new("env"), command)?.end(LIMIT)?;
    Ok(Traced {
        ended,
        trace,
        _folder: folder,
    })
}

fn whole(plan: Plan, args: &[&str]) -> Result<Report> {
    let traced = trace(&plan, args)?;
    expect_whole(traced, plan)
}

fn expect_whole(traced: Traced, plan: Plan) -> Result<Report> {
    expect_result(&traced.ended.stdout, &plan)?;
    let submissions = plan.submissions;
    let report = verify(&traced.trace, &Expected::whole(plan))?;
    report.expect_complete()?;
    // On a machine that loses hits a later doorbell may fetch the entries of an earlier one: never more submissions than
    // doorbells.
    ensure!(
        report.submissions <= submissions,
        "{} submissions of {submissions}",
        report.submissions
    );
    Ok(report)
}

/// Threads whose doorbells were seen. Entries that a lost hit left in a ring to its end belong to thread 0.
fn ringing(report: &Report) -> usize {
    report.threads.iter().filter(|tid| **tid != 0).count()
}

/// Each of so many threads was seen to ring. Where nvcap was kept from the processor while the first submissions were made, they are of thread 0
/// (late), and with them a thread may be missing that rang for nothing else.
fn expect_ringing(report: &Report, threads: usize) -> Result<()> {
    let seen = ringing(report);
    let is_late = report.threads.contains(&0);
    ensure!(
        seen == threads || is_late && (1..threads).contains(&seen),
        "threads {:?}",
        report.threads
    );
    Ok(())
}

/// A channel whose GPU is not named has none: it is not assigned to the first one.
pub fn gpu_not_named() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let channels = folder.channels()?;
    let named = std::fs::read_to_string(&channels)?;
    ensure!(named.contains(" gpu=0"), "{named}");
    let one: String = named
        .lines()
        .filter(|l| !l.contains(" gpu=1"))
        .map(|l| l.replace(" gpu=0", "") + "\n")
        .collect();
    std::fs::write(&channels, one)?;
    for json in [true, false] {
        let mut command: Vec<OsString> = vec!["--channels".into(), channels.clone().into()];
        if json {
            command.push("--json".into());
        } else {
            // One GPU alone has no column without it.
            command.push("-v".into());
        }
        command.extend(["--".into(), softgpu()?.into()]);
        command.extend(["--gpus=1", "--channels=2", "--submissions=500"].map(OsString::from));
        let ended = Running::start(&nvcap()?, command)?.end(LIMIT)?;
        ended.expect_code(0)?;
        let (known, not) = if json {
            ("\"gpu\":0", "\"type\":\"channel\"")
        } else {
            (" gpu0 ", " gpu? ")
        };
        ensure!(!ended.stderr.contains(known), "a GPU was made up");
        ensure!(ended.stderr.contains(not), "{}", ended.stderr);
    }
    Ok(())
}

pub fn one_thread() -> Result<()> {
    let report = whole(plan(1, sized(800, 400)), &["--threads=1"])?;
    // The first thread rings each channel once, then the one worker rings the rest.
    expect_ringing(&report, 2)
}

pub fn eight_threads() -> Result<()> {
    let report = whole(plan(2, sized(1600, 600)), &["--threads=8"])?;
    expect_ringing(&report, 9)
}

/// Several times around one ring of 1024.
pub fn ring_wrap() -> Result<()> {
    let mut plan = plan(3, sized(3500, 2100));
    plan.channels = Channel::first(1, gpus());
    whole(plan, &["--threads=1"])?;
    Ok(())
}

pub fn big_entries() -> Result<()> {
    let mut plan = plan(4, sized(120, 24));
    plan.shape.big_one_in = 4;
    let report = whole(plan, &["--threads=4"])?;
    ensure!(
        report.bytes > sized(10, 2) << 20,
        "only {} bytes",
        report.bytes
    );
    Ok(())
}

/// Several entries per doorbell, with control entries, methods split across entries, and wraps inside a burst.
pub fn bursts() -> Result<()> {
    let mut plan = plan(5, sized(600, 240));
    plan.shape.burst = 12;
    plan.channels = Channel::first(4, gpus());
    let report = whole(plan, &["--threads=4"])?;
    ensure!(
        report.entries > 2 * report.submissions,
        "{} entries",
        report.entries
    );
    Ok(())
}

/// More entries per doorbell than any single read takes.
pub fn wide_bursts() -> Result<()> {
    let mut plan = plan(6, sized(60, 15));
    plan.shape.burst = 500;
    plan.channels = Channel::first(3, gpus());
    whole(plan, &["--threads=2"])?;
    Ok(())
}

/// The doorbell program for kernels before 5.17: a loop of its own that continues by tail call, and gives up if one
/// doorbell commits more than it can walk.
pub fn without_bpf_loop() -> Result<()> {
    let mut wide = plan(36, sized(40, 10));
    wide.shape.burst = 500;
    wide.channels = Channel::first(2, gpus());
    let mut big = plan(37, sized(80, 12));
    big.shape.big_one_in = 4;
    for (plan, threads) in [
        (plan(35, sized(800, 200)), "--threads=8"),
        (wide, "--threads=2"),
        (big, "--threads=4"),
    ] {
        let environment = ["NVCAP_NO_BPF_LOOP=1"];
        let traced = in_step(&environment, &plan, &[threads])?;
        expect_whole(traced, plan)?;
    }
    Ok(())
}

/// GP_PUT is taken from the program's own copy, once that was found and proved right.
pub fn cached_put() -> Result<()> {
    let log = ["NVCAP_LOG=debug"];
    let args = ["--threads=2", "--sites=plain", CLOSE];
    let mut own = plan(40, sized(1600, 600));
    own.channels = Channel::first(2, gpus());
    let submissions = own.submissions;
    let traced = in_step(&log, &own, &args)?;
    let looks = own_looks(&traced.ended.stderr)?;
    expect_whole(traced, own)?;
    // All but the looks needed to find and to prove it, and each 16th.
    let least = sized(submissions / 2, 50);
    ensure!(looks >= least, "{looks} looks of {submissions}");
    Ok(())
}

/// Option that lets the program be few doorbells ahead of nvcap, so that a copy of GP_PUT is found before much is submitted.
const CLOSE: &str = "--in-step-window=4";

/// Looks that took GP_PUT from the program's own copy.
fn own_looks(stderr: &str) -> Result<u64> {
    let line = stderr
        .lines()
        .find_map(|l| l.split_once("own copy of GP_PUT at ")?.1.split_once(' '))
        .context("no line of how often the own copy was taken")?;
    Ok(line.0.parse()?)
}

/// A copy that is no longer updated: a tracer that trusts it for good misses later entries.
pub fn cached_put_stuck() -> Result<()> {
    let log = ["NVCAP_LOG=debug"];
    let args = [
        "--threads=2",
        "--sites=plain",
        "--cached-put-stuck=200",
        CLOSE,
    ];
    let mut own = plan(41, sized(1600, 600));
    own.channels = Channel::first(2, gpus());
    let traced = in_step(&log, &own, &args)?;
    let looks = own_looks(&traced.ended.stderr)?;
    expect_whole(traced, own)?;
    // Trusted after some doorbells, until it stood still.
    ensure!((20..=400).contains(&looks), "{looks} looks");
    Ok(())
}

/// A copy that runs ahead of GP_PUT: entries that were captured too early are reported as lost.
pub fn cached_put_ahead() -> Result<()> {
    let args = [
        "--threads=2",
        "--sites=plain",
        "--cached-put-ahead=200",
        CLOSE,
    ];
    let mut own = plan(42, sized(1600, 600));
    own.channels = Channel::first(2, gpus());
    let traced = take_in_step(&[], &own, &args)?;
    traced.ended.expect_code(3)?;
    ensure!(
        traced.ended.stderr.contains("ahead of GP_PUT"),
        "{}",
        traced.ended.stderr
    );
    Ok(())
}

/// Threads of three submissions each, made by threads that were made after the trace began.
pub fn thread_churn() -> Result<()> {
    let report = whole(plan(7, sized(900, 400)), &["--threads=6", "--churn=3"])?;
    ensure!(
        report.threads.len() as u64 > sized(100, 50),
        "only {} threads",
        report.threads.len()
    );
    Ok(())
}

/// More threads than channels: every channel is fed by several.
pub fn shared_channels() -> Result<()> {
    let mut plan = plan(8, sized(1200, 400));
    plan.channels = Channel::first(3, gpus());
    whole(plan, &["--threads=12"])?;
    Ok(())
}

/// Doorbells that come after another thread has already submitted more to the channel and rung.
pub fn late_doorbells() -> Result<()> {
    let mut plan = plan(9, sized(1200, 400));
    plan.channels = Channel::first(2, gpus());
    whole(plan, &["--threads=8", "--late-doorbell"])?;
    Ok(())
}

/// Both doorbell pages of a GPU rung: neither may be given up.
pub fn both_pages() -> Result<()> {
    whole(plan(10, sized(800, 400)), &["--threads=4", "--page=both"])?;
    Ok(())
}

/// Children that submit to the same rings.
pub fn fork_shared() -> Result<()> {
    let report = whole(plan(11, sized(1000, 450)), &["--threads=2", "--fork=2"])?;
    ensure!(
        report.processes.len() == 3,
        "processes {:?}",
        report.processes
    );
    Ok(())
}

fn child_pids(stdout: &str) -> Vec<u32> {
    stdout
        .lines()
        .filter(|l| l.starts_with("child "))
        .filter_map(|l| l.split_whitespace().nth(3).and_then(|p| p.parse().ok()))
        .collect()
}

/// The process that softgpu started as: a child that executes prints its own id too, later.
fn first_pid(stdout: &str) -> Result<u32> {
    let line = stdout
        .lines()
        .find_map(|l| l.strip_prefix("pid "))
        .context("no `pid` line")?;
    Ok(line.parse()?)
}

fn image(plan: &Plan, image: u32) -> Plan {
    let mut plan = plan.clone();
    plan.shape.image = image;
    plan
}

/// Children with memory, channels and plans of their own at the same addresses.
fn own_children(kind: &str) -> Result<()> {
    let plan = plan(12, sized(500, 240));
    let traced = in_step(&[], &plan, &["--threads=2", kind])?;
    let stdout = &traced.ended.stdout;
    let mut expected = vec![Expected {
        pid: Some(first_pid(stdout)?),
        plans: vec![plan.clone()],
        extent: Extent::Whole,
    }];
    for (n, child) in child_pids(stdout).into_iter().enumerate() {
        let plan = image(&plan, 1 + n as u32);
        expect_result(stdout, &plan)?;
        expected.push(Expected {
            pid: Some(child),
            plans: vec![plan],
            extent: Extent::Whole,
        });
    }
    ensure!(expected.len() == 3, "{stdout}");
    let report = verify(&traced.trace, &expected)?;
    report.expect_complete()?;
    ensure!(
        report.processes.len() == 3,
        "processes {:?}",
        report.processes
    );
    Ok(())
}

/// Children unmap inherited memory and map their own: docs/channels-file.md says to leave such children out.
pub fn fork_own() -> Result<()> {
    let plan = plan(12, sized(500, 240));
    let filter = "type=submission,entry";
    let traced = trace_with(
        &["--no-follow"],
        filter,
        &plan,
        &["--threads=2", "--fork-own=2"],
    )?;
    expect_result(&traced.ended.stdout, &plan)?;
    ensure!(
        child_pids(&traced.ended.stdout).len() == 2,
        "{}",
        traced.ended.stdout
    );
    let report = verify(&traced.trace, &Expected::whole(plan))?;
    report.expect_complete()?;
    ensure!(
        report.processes.len() == 1,
        "processes {:?}",
        report.processes
    );
    Ok(())
}

/// Children execute the program, as a shell or a job launcher would.
pub fn fork_and_exec() -> Result<()> {
    own_children("--spawn=2")
}

/// A program that executes itself: three programs in all.
fn execs(args: &[&str]) -> Result<()> {
    let plan = plan(13, sized(500, 240));
    let traced = in_step(&[], &plan, &[args, &["--exec=2"]].concat())?;
    expect_execs(&plan, 3, &traced)
}

/// Tells by a trace's status whether the trace lacks some of these submissions of one entry each. Missing ones must be counted, or said to
/// be unknown.
pub fn lacks_some(ended: &Ended, trace: &Path, all: u64) -> Result<bool> {
    if ended.code()? == 0 {
        return Ok(false);
    }
    ended.expect_code(3)?;
    let counted = Counted::of(trace)?;
    let sum = counted.entries + counted.missing;
    ensure!(
        sum == all || sum < all && counted.some_unknown,
        "{sum} of {all} submissions are captured or counted"
    );
    Ok(true)
}

/// Counts of a trace's ledger.
struct Counted {
    entries: u64,
    /// Entries, and doorbells of unknown channels.
    missing: u64,
    /// True if a channel's doorbells could not be read, so that the number of entries is unknown.
    some_unknown: bool,
}

impl Counted {
    fn of(trace: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(trace)?;
        let last = text.lines().last().context("an empty trace")?;
        let ledger: serde_json::Value = serde_json::from_str(last)?;
        ensure!(
            ledger["type"] == "ledger" && ledger["complete"] == false,
            "{ledger}"
        );
        let number = |name: &str| ledger[name].as_u64().unwrap_or_default();
        let unknown = ledger["unknown_doorbells"].as_array().into_iter().flatten();
        let unknown: u64 = unknown.filter_map(|u| u["count"].as_u64()).sum();
        Ok(Self {
            entries: number("entries"),
            missing: number("gaps") + unknown,
            some_unknown: ledger["untraced"].as_array().is_some_and(|u| !u.is_empty()),
        })
    }
}

/// Expects all submissions of these programs, one after the other.
fn expect_execs(plan: &Plan, programs: u32, traced: &Traced) -> Result<()> {
    let plans: Vec<Plan> = (0..programs)
        .map(|n| image(plan, n * EXEC_STRIDE))
        .collect();
    for plan in &plans {
        expect_result(&traced.ended.stdout, plan)?;
    }
    let report = verify(
        &traced.trace,
        &[Expected {
            pid: None,
            plans,
            extent: Extent::Whole,
        }],
    )?;
    report.expect_complete()?;
    ensure!(
        report.processes.len() == 1,
        "processes {:?}",
        report.processes
    );
    Ok(())
}

/// Two execs: memory is unmapped and laid out again, rings start at position 0.
pub fn exec() -> Result<()> {
    execs(&["--threads=3"])
}

/// Two execs from a thread other than the first: the process's id moves to it.
pub fn exec_from_thread() -> Result<()> {
    execs(&["--threads=3", "--exec-from-thread"])
}

/// Many programs, each of which may end before nvcap learns of it: each of their submissions is captured or counted. In step, each is captured.
pub fn many_execs() -> Result<()> {
    let programs = 60;
    let plan = plan(18, sized(40, 24));
    let args = ["--threads=3", "--exec-from-thread", "--exec=59"];
    let traced = take(&[], &[], "type=submission,entry", &plan, &args)?;
    let all = u64::from(programs) * plan.submissions;
    if !lacks_some(&traced.ended, &traced.trace, all)? {
        expect_execs(&plan, programs, &traced)?;
    }
    let traced = in_step(&[], &plan, &args)?;
    expect_execs(&plan, programs, &traced)
}

/// All at once: children that execute, an exec of the first process, churning threads and bursts in each.
pub fn many_events() -> Result<()> {
    let mut plan = plan(14, sized(400, 160));
    plan.shape.burst = 5;
    let args = ["--threads=4", "--churn=4", "--spawn=1", "--exec=1"];
    let traced = in_step(&[], &plan, &args)?;
    all_of_many_events(&plan, &traced)
}

fn all_of_many_events(plan: &Plan, traced: &Traced) -> Result<()> {
    let stdout = &traced.ended.stdout;
    let children = child_pids(stdout);
    ensure!(children.len() == 2, "{stdout}");
    let mut expected = vec![Expected {
        pid: Some(first_pid(stdout)?),
        plans: vec![plan.clone(), image(plan, EXEC_STRIDE)],
        extent: Extent::Whole,
    }];
    for (child, n) in children.into_iter().zip([1, EXEC_STRIDE + 1]) {
        expected.push(Expected {
            pid: Some(child),
            plans: vec![image(plan, n)],
            extent: Extent::Whole,
        });
    }
    verify(&traced.trace, &expected)?.expect_complete()
}

/// GP_GET far behind GP_PUT, as on a busy GPU.
pub fn lagging_get() -> Result<()> {
    let mut plan = plan(15, 1500);
    plan.channels = Channel::first(1, gpus());
    whole(plan, &["--threads=1", "--lag=400"])?;
    Ok(())
}

/// A longer run, from more threads than cores, at full speed.
pub fn many_submissions() -> Result<()> {
    whole(plan(17, 20_000), &["--threads=8"])?;
    Ok(())
}

/// The decoded operations are those that the software GPU encoded.
pub fn operations() -> Result<()> {
    let mut plan = plan(16, sized(600, 300));
    plan.channels = Channel::first(6, gpus());
    let traced = trace_only("type=operation", &plan, &["--threads=2"])?;
    live::operations::verify(&traced.trace, &plan, 0)
}
