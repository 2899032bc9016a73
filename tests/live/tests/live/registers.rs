//! Debug registers: stores that are stopped at before they ring, more doorbells than there are registers, threads without one.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use live::debugger::threads;
use live::in_step::Step;
use live::perf::Breakpoint;
use live::programs::{Ended, Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, verify};
use serde_json::Value;
use softgpu::layout::{CHANNELS, Channel, channels_file};
use softgpu::plan::Plan;

use crate::attach::{at_work, attach_in_step, attached};
use crate::setup::{LIMIT, expect_result, gpus, need_tracing, plan, plan_args, sized};

/// Plan of every channel of this number of GPUs.
pub fn plan_of(gpus: usize, seed: u64, submissions: u64) -> Plan {
    Plan {
        channels: Channel::first(CHANNELS * gpus, gpus),
        ..plan(seed, submissions)
    }
}

pub fn args_of(gpus: usize, plan: &Plan) -> Vec<String> {
    let others = plan_args(plan).into_iter();
    others
        .filter(|a| !a.starts_with("--gpus"))
        .chain([format!("--gpus={gpus}")])
        .collect()
}

/// Counts the entries of a trace's submissions that were seen each way: precommit, trapped, observed. What one look reads is one submission, however
/// much it is: how many these are depends on who had the processor.
fn hows(trace: &Path) -> Result<[usize; 3]> {
    let text = std::fs::read_to_string(trace)?;
    let mut counts = [0; 3];
    for line in text.lines() {
        let line: Value = serde_json::from_str(line)?;
        let how = line["how"].as_str().unwrap_or_default();
        let known = ["precommit", "trapped", "observed"];
        if let Some(place) = known
            .iter()
            .position(|k| *k == how && line["type"] == "submission")
        {
            counts[place] += line["entries"].as_u64().context("entries")? as usize;
        }
    }
    Ok(counts)
}

/// Few enough submissions may be unread that nvcap knows of a store before much is submitted by it.
pub const CLOSE: &str = "--in-step-window=8";

/// Traced from its start, or attached to where it waits, in step.
fn of(gpus: usize, attached: bool, options: &[&str], seed: u64) -> Result<[usize; 3]> {
    need_tracing()?;
    let plan = plan_of(gpus, seed, sized(8000, 2400 * gpus as u64 / 2));
    let folder = Folder::new()?;
    let (trace, channels) = (folder.file("trace.json"), folder.file("channels"));
    std::fs::write(&channels, channels_file(gpus))?;
    let step = Step::new(&folder)?;
    let shown = ["--json", "-vv", "-e", "type=submission,entry"];
    let options: Vec<OsString> = shown.iter().chain(options).map(OsString::from).collect();
    let mut args = args_of(gpus, &plan);
    args.extend(step.with(&["--threads=4", CLOSE]));
    let extent = if attached {
        let before = 5;
        args.extend(["--wait-stdin".into(), format!("--before-wait={before}")]);
        let mut gpu = Running::start(&softgpu()?, &args)?;
        gpu.wait_for_line("waiting")?;
        let nvcap = attach_in_step(&step, gpu.pid(), &trace, channels, &options)?;
        gpu.write(b"g")?;
        let gpu = gpu.end(LIMIT)?;
        gpu.expect_code(0)?;
        expect_result(&gpu.stdout, &plan)?;
        nvcap.end(LIMIT)?.expect_code(0)?;
        Extent::From(before)
    } else {
        let mut command = vec!["-o".into(), trace.clone().into(), "--channels".into()];
        command.extend([channels.into(), OsString::from("--how=trap")]);
        command.extend(options);
        command.extend(["--".into(), softgpu()?.into()]);
        command.extend(args.into_iter().map(OsString::from));
        step.nvcap(command)?.end(LIMIT)?.expect_code(0)?;
        Extent::Whole
    };
    verify(&trace, &Expected::part(plan, extent))?.expect_complete()?;
    hows(&trace)
}

/// The tests run on an emulated machine with the stand-in module.
fn is_emulated() -> bool {
    std::env::var_os("SOFTGPU_DEVICE").is_some()
}

/// From the third trap at a store on, all are before the doorbell.
fn mostly_before(gpus: usize, attached: bool, options: &[&str], seed: u64) -> Result<()> {
    let [before, trapped, observed] = of(gpus, attached, options, seed)?;
    let times = if is_emulated() { 1 } else { 3 };
    ensure!(
        before > times * (trapped + observed),
        "{before} before their doorbells, {trapped} behind, {observed} observed"
    );
    Ok(())
}

/// Every store is stopped at before it rings, once it is known.
pub fn precommit() -> Result<()> {
    mostly_before(gpus(), false, &["--precommit"], 81)
}

/// Every store of a process that runs already is stopped at before it rings, once it is known.
pub fn precommit_attached() -> Result<()> {
    mostly_before(gpus(), true, &["--precommit"], 82)
}

/// Eight GPUs have sixteen doorbells in one process, and a thread has four debug registers. One of them, at the store that rings, serves all.
pub fn eight_gpus() -> Result<()> {
    mostly_before(if_native(), false, &[], 83)
}

/// Eight GPUs in a process that is attached to have sixteen doorbells, and one debug register serves all.
pub fn eight_gpus_attached() -> Result<()> {
    mostly_before(if_native(), true, &[], 84)
}

/// Without `--precommit`, and with registers enough, nothing is stopped at before it rings.
pub fn two_gpus() -> Result<()> {
    let [before, trapped, _] = of(gpus(), false, &[], 85)?;
    ensure!(before == 0 && trapped > 0, "{before} of {trapped}");
    Ok(())
}

/// Eight GPUs; on an emulated machine, whose stand-in for the driver has not so many, as many as there are.
fn if_native() -> usize {
    match gpus() {
        1 => 1,
        _ => 8,
    }
}

/// Other tracers hold all registers of one thread of several: what it submits is read from its rings, late, and nothing is lost.
pub fn thread_without_one() -> Result<()> {
    need_tracing()?;
    let plan = plan(86, 24_000);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let gpu = at_work(&plan, &step, 6, &[])?;
    let last = threads(gpu.pid())?
        .into_iter()
        .rfind(|tid| *tid != gpu.pid());
    let last = last.context("no thread to take them from")?;
    let taken = Breakpoint::take_all(last).context("the test's own breakpoints are refused")?;
    let options = ["--json", "-vv", "-e", "type=submission,entry", "--how=trap"];
    let options = options.map(OsString::from);
    let nvcap = attach_in_step(&step, gpu.pid(), &trace, folder.channels()?, &options)?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    let ended = nvcap.end(LIMIT)?;
    drop(taken);
    let report = verify(&trace, &Expected::part(plan, Extent::Suffix))?;
    if ended.code()? == 3 {
        // nvcap knows how far apart its looks were, not that the program waited for it: where they were far apart it says so, which is right and no
        // loss.
        let ledger = report.ledger.as_ref().context("no ledger")?;
        let reasons = ledger["untraced"].as_array().context("untraced")?;
        let mut reasons = reasons
            .iter()
            .map(|r| r["why"].as_str().unwrap_or_default());
        ensure!(
            ledger["gaps"] == 0 && reasons.all(|why| why.contains("may have gone round")),
            "{ledger}"
        );
    } else {
        ended.expect_code(0)?;
        report.expect_complete()?;
    }
    let [before, trapped, observed] = hows(&trace)?;
    let said = ended.stderr.contains("debug registers");
    ensure!(said, "nothing is said of it: {}", ended.stderr);
    ensure!(
        before + trapped > 100 && observed > 100,
        "{before} before their doorbells, {trapped} behind, {observed} observed"
    );
    Ok(())
}

/// nvcap says so of a store that it decodes at a trap, and of one that was known before any.
pub const DECODED: &str = ", code [";
pub const KNOWN: &str = "known from an earlier process";

/// Attaches to a process of more doorbells than there are registers, which rings by the plain store or the displaced one. Stores are kept in
/// `cache`; none are where it is empty. The trace is complete.
fn attached_with(cache: &Path, sites: &str, seed: u64) -> Result<(Ended, [usize; 3])> {
    let gpus = if_native();
    let plan = plan_of(gpus, seed, sized(4000, 2000));
    let folder = Folder::new()?;
    let (trace, channels) = (folder.file("trace.json"), folder.file("channels"));
    std::fs::write(&channels, channels_file(gpus))?;
    let step = Step::new(&folder)?;
    let before = 5;
    let mut args = args_of(gpus, &plan);
    args.extend(step.with(&["--threads=4", CLOSE, "--wait-stdin", "--before-wait=5"]));
    args.extend(["--sites".to_owned(), sites.to_owned()]);
    let mut gpu = Running::start(&softgpu()?, &args)?;
    gpu.wait_for_line("waiting")?;
    let mut stores = OsString::from("NVCAP_STORE_CACHE=");
    stores.push(cache);
    let mut command = vec!["NVCAP_LOG=debug".into(), step.variable(), stores];
    command.push(nvcap()?.into());
    command.extend(["--json", "-vv", "-e", "type=submission,entry"].map(OsString::from));
    command.extend(["--how=trap".into(), "-o".into(), trace.clone().into()]);
    command.extend(["--channels".into(), channels.into(), "-p".into()]);
    command.push(gpu.pid().to_string().into());
    let nvcap = attached(Running::start(Path::new("env"), command)?)?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    let expected = Expected::part(plan, Extent::From(before));
    verify(&trace, &expected)?.expect_complete()?;
    Ok((ended, hows(&trace)?))
}

/// The second process of the same program is stopped at its store from its first doorbell on: the first one taught another nvcap where it is.
pub fn known_store() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let cache = folder.file("kept").join("stores");
    let (first, _) = attached_with(&cache, "plain", 87)?;
    ensure!(
        first.stderr.contains(DECODED) && !first.stderr.contains(KNOWN),
        "nothing was known: {}",
        first.stderr
    );
    let kept = std::fs::read_to_string(&cache).context("no file of known stores")?;
    ensure!(kept.lines().count() == 2, "{kept}");
    let (second, [before, trapped, observed]) = attached_with(&cache, "plain", 88)?;
    ensure!(
        second.stderr.contains(KNOWN) && !second.stderr.contains(DECODED),
        "a trap was needed: {}",
        second.stderr
    );
    ensure!(
        before > 3 * (trapped + observed),
        "{before} before their doorbells, {trapped} behind, {observed} observed"
    );
    // Without the file nothing is known.
    let (third, _) = attached_with(Path::new(""), "plain", 89)?;
    ensure!(
        third.stderr.contains(DECODED) && !third.stderr.contains(KNOWN),
        "{}",
        third.stderr
    );
    Ok(())
}

/// A store that is known and there, and is not the one that rings: the one that does is found as if nothing had been known, and nothing is
/// missing.
pub fn known_store_that_rings_nothing() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let cache = folder.file("stores");
    attached_with(&cache, "plain", 90)?;
    let (second, [before, _, _]) = attached_with(&cache, "displaced", 91)?;
    ensure!(
        second.stderr.contains(KNOWN) && second.stderr.contains(DECODED),
        "{}",
        second.stderr
    );
    ensure!(before > 0, "the store that rings was not stopped at");
    let kept = std::fs::read_to_string(&cache)?;
    ensure!(kept.lines().count() == 3, "{kept}");
    Ok(())
}
