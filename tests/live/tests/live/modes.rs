//! `--batch`, `--count` and `--duty`: what they capture is right, and what they leave out is counted.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use live::in_step::Step;
use live::programs::{Folder, Running, Until, nvcap, so_far, softgpu};
use live::verify::{Expected, Extent, Report, verify};
use serde_json::Value;
use softgpu::layout::{CHANNELS, Channel, channels_file};
use softgpu::plan::Plan;

use crate::attach::attach_in_step;
use crate::setup::{LIMIT, expect_result, need_tracing, plan, plan_args, sized};

/// One GPU's channels: with a second one doorbells would be four.
fn plan_of(seed: u64, submissions: u64) -> Plan {
    Plan {
        channels: Channel::first(CHANNELS, 1),
        ..plan(seed, submissions)
    }
}

fn args_of(plan: &Plan, more: &[&str]) -> Vec<String> {
    let others = plan_args(plan).into_iter();
    let own = ["--gpus=1", "--threads=4"];
    others
        .filter(|a| !a.starts_with("--gpus"))
        .chain(own.iter().chain(more).map(|a| (*a).to_owned()))
        .collect()
}

/// A trace from the start.
struct Traced {
    _folder: Folder,
    trace: PathBuf,
    said: String,
}

/// Traces a program that goes on until nvcap has shown what it captured, however slow nvcap is.
fn traced(plan: &Plan, options: &[&str], more: &[&str]) -> Result<Traced> {
    let folder = Folder::new()?;
    let hold = Until::new(&folder, "hold")?;
    let held = hold.hold();
    let more = [more, &[held.as_str()]].concat();
    traced_in(folder, Waits::Shown(hold), plan, options, &more)
}

/// Condition that the program waits for.
enum Waits {
    /// The program is in step.
    InStep(Step),
    /// Something is shown of it.
    Shown(Until),
}

/// The same, in step.
fn in_step(plan: &Plan, options: &[&str], more: &[&str]) -> Result<Traced> {
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let more = step.with(more);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    traced_in(folder, Waits::InStep(step), plan, options, &more)
}

fn traced_in(
    folder: Folder,
    waits: Waits,
    plan: &Plan,
    options: &[&str],
    more: &[&str],
) -> Result<Traced> {
    let (trace, channels) = (folder.file("trace.json"), folder.file("channels"));
    std::fs::write(&channels, channels_file(1))?;
    let mut command: Vec<OsString> = vec!["-o".into(), trace.clone().into(), "--channels".into()];
    command.extend([
        channels.into(),
        "--how=trap".into(),
        "--json".into(),
        "-vv".into(),
        "-e".into(),
        "type=submission,entry".into(),
    ]);
    command.extend(options.iter().map(OsString::from));
    command.extend(["--".into(), softgpu()?.into()]);
    command.extend(args_of(plan, more).into_iter().map(OsString::from));
    let nvcap = match waits {
        Waits::InStep(step) => step.nvcap(command)?,
        Waits::Shown(hold) => {
            let mut nvcap = Running::start(&nvcap()?, command)?;
            nvcap.wait_until("showing a submission", LIMIT, |_| {
                so_far(&trace, "\"type\":\"submission\"") > 0
            })?;
            hold.release()?;
            nvcap
        }
    };
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    Ok(Traced {
        _folder: folder,
        trace,
        said: ended.stderr,
    })
}

fn ledger(report: &Report) -> Result<&Value> {
    report.ledger.as_ref().context("the trace has no ledger")
}

fn number(of: &Value, name: &str) -> Result<u64> {
    of[name]
        .as_u64()
        .with_context(|| format!("no {name} in {of}"))
}

/// The submissions of a trace that were seen this way, and all.
fn seen(trace: &Path, how: &str) -> Result<(u64, u64)> {
    let (mut these, mut all) = (0, 0);
    for line in std::fs::read_to_string(trace)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        if line["type"] == "submission" {
            all += 1;
            these += u64::from(line["how"] == how);
        }
    }
    Ok((these, all))
}

/// Every byte is there, in fewer reads than there were doorbells, and each read that served several doorbells says so.
pub fn batch() -> Result<()> {
    need_tracing()?;
    let plan = plan_of(91, sized(20_000, 2400));
    let of = in_step(&plan, &["--batch=8"], &[])?;
    let report = verify(&of.trace, &Expected::whole(plan))?;
    report.expect_complete()?;
    let (batched, all) = seen(&of.trace, "batched")?;
    let left = number(&ledger(&report)?["trapped"], "put_off")?;
    ensure!(
        batched > 0 && all < report.entries && left > 0,
        "{batched} of {all} submissions of {} entries are batched; {left} doorbells were left to a later one",
        report.entries
    );
    Ok(())
}

/// A channel that rings no more is read by nvcap: each submission is waited for here, and fewer than a batch come.
pub fn batch_of_idle_channels() -> Result<()> {
    need_tracing()?;
    let plan = plan_of(92, sized(400, 200));
    let more = ["--in-step-window=0"];
    let of = in_step(&plan, &["--batch=64", "--batch-time=500"], &more)?;
    let report = verify(&of.trace, &Expected::whole(plan))?;
    report.expect_complete()?;
    // A channel's next doorbell comes when the one before has been read.
    let (batched, all) = seen(&of.trace, "batched")?;
    ensure!(
        batched > all / 2 && all == report.entries,
        "{batched} of {all} are batched, of {} entries",
        report.entries
    );
    Ok(())
}

/// Batches of a program that was attached to are read.
pub fn batch_attached() -> Result<()> {
    need_tracing()?;
    let plan = plan_of(93, sized(20_000, 2400));
    let folder = Folder::new()?;
    let (trace, channels) = (folder.file("trace.json"), folder.file("channels"));
    std::fs::write(&channels, channels_file(1))?;
    let step = Step::new(&folder)?;
    let mut args = args_of(&plan, &["--wait-stdin", "--before-wait=5"]);
    args.extend(step.args());
    let mut gpu = Running::start(&softgpu()?, args)?;
    gpu.wait_for_line("waiting")?;
    let options: Vec<OsString> = ["--json", "-vv", "-e", "type=submission,entry", "--batch=16"]
        .map(OsString::from)
        .into();
    let nvcap = attach_in_step(&step, gpu.pid(), &trace, channels, &options)?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    verify(&trace, &Expected::part(plan, Extent::From(5)))?.expect_complete()
}

/// Each doorbell is counted or captured, none of them twice; the positions agree.
pub fn count() -> Result<()> {
    need_tracing()?;
    let plan = plan_of(94, sized(40_000, 2400));
    let submissions = plan.submissions;
    let of = traced(&plan, &["--count"], &[])?;
    let report = verify(&of.trace, &Expected::part(plan, Extent::Holes))?;
    let ledger = ledger(&report)?;
    let sum = |name: &str| -> Result<u64> {
        let all = ledger["channels"].as_array().context("no channels")?;
        all.iter().map(|c| number(c, name)).sum()
    };
    let (counted, passed) = (sum("doorbells_counted")?, sum("passed")?);
    // A channel's entries are captured where its token is not known yet, by doorbells of others, too.
    ensure!(
        report.entries + passed == submissions && counted <= submissions,
        "{} entries captured, {passed} passed over, {counted} doorbells counted, of {submissions}",
        report.entries
    );
    // How many are captured until the tokens are known is a matter of how soon nvcap gets a processor (`measure::modes`).
    ensure!(
        counted > 0 && ledger["complete"] == true,
        "{counted} doorbells counted of {submissions}: {ledger}"
    );
    ensure!(
        of.said.contains("doorbells counted (--count)"),
        "{}",
        of.said
    );
    Ok(())
}

/// Windows are captured right to the byte, and all else is told as passed over. (How near the sums come to the truth:
/// `measure::modes`.)
pub fn duty() -> Result<()> {
    need_tracing()?;
    let plan = plan_of(95, sized(40_000, 4800));
    let submissions = plan.submissions;
    // Else most would be over before the second window.
    let of = traced(&plan, &["--duty=20%"], &["--sleep-us=100"])?;
    let report = verify(&of.trace, &Expected::part(plan, Extent::Holes))?;
    let ledger = ledger(&report)?;
    let duty = &ledger["trapped"]["duty"];
    // Between two windows something is passed over; where nvcap gets no processor in the first, there is no second one.
    let passes = report.entries < submissions || number(duty, "windows")? < 2;
    ensure!(
        report.entries > 0 && passes && ledger["gaps"] == 0,
        "{} entries of {submissions}: {ledger}",
        report.entries
    );
    let all = number(duty, "entries")?;
    let knows = all == submissions || number(duty, "doubtful")? > 0 && all < submissions;
    ensure!(knows, "{all} entries of {submissions}: {duty}");
    Ok(())
}

/// Options that exclude each other are refused.
pub fn excluded() -> Result<()> {
    for options in [
        ["--batch=8", "--count"],
        ["--batch=8", "--duty=5%"],
        ["--count", "--duty=5%"],
        ["--count", "--precommit"],
        ["--count", "--stacks"],
    ] {
        let all = options.iter().chain(&["--", "true"]).map(OsString::from);
        let ended = Running::start(&nvcap()?, all)?.end(LIMIT)?;
        ended.expect_code(2)?;
        ensure!(
            ended.stderr.contains("cannot be used with"),
            "{options:?}: {}",
            ended.stderr
        );
    }
    Ok(())
}
