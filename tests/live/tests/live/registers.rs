//! Debug registers: stores that are stopped at before they ring, more doorbells than there are registers, threads without one.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use live::perf::Breakpoint;
use live::programs::{Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, verify};
use serde_json::Value;
use softgpu::layout::{CHANNELS, Channel, channels_file};
use softgpu::plan::Plan;

use crate::attach::{attach_to, until_both_end, waiting};
use crate::observe::LINGER;
use crate::setup::{LIMIT, expect_result, gpus, need_tracing, plan, plan_args, sized};

/// Every channel of so many GPUs.
fn plan_of(gpus: usize, seed: u64, submissions: u64) -> Plan {
    Plan {
        channels: Channel::first(CHANNELS * gpus, gpus),
        ..plan(seed, submissions)
    }
}

fn args_of(gpus: usize, plan: &Plan) -> Vec<String> {
    let others = plan_args(plan).into_iter();
    others
        .filter(|a| !a.starts_with("--gpus"))
        .chain([format!("--gpus={gpus}")])
        .collect()
}

/// How many submissions of a trace were seen each way: precommit, trapped, observed.
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
            counts[place] += 1;
        }
    }
    Ok(counts)
}

/// Traced from its start, or attached to where it waits. `pace`: microseconds between a thread's submissions on an emulated machine.
fn of(gpus: usize, attached: bool, options: &[&str], seed: u64, pace: u32) -> Result<[usize; 3]> {
    need_tracing()?;
    let plan = plan_of(gpus, seed, sized(20_000, 2400) * gpus as u64 / 2);
    let folder = Folder::new()?;
    let (trace, channels) = (folder.file("trace.json"), folder.file("channels"));
    std::fs::write(&channels, channels_file(gpus))?;
    let shown = ["--json", "-vv", "-e", "type=submission,entry"];
    let options: Vec<OsString> = shown.iter().chain(options).map(OsString::from).collect();
    let mut args = args_of(gpus, &plan);
    args.push("--threads=4".into());
    if is_emulated() {
        // Else all is submitted before nvcap gets the only processor.
        args.push(format!("--sleep-us={pace}"));
    }
    let extent = if attached {
        let before = 5;
        args.extend([
            "--wait-stdin".into(),
            format!("--before-wait={before}"),
            LINGER.into(),
        ]);
        let mut gpu = Running::start(&softgpu()?, &args)?;
        gpu.wait_for_line("waiting")?;
        let nvcap = attach_to(gpu.pid(), &trace, channels, &options)?;
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
        let ended = Running::start(&nvcap()?, command)?.end(LIMIT)?;
        ended.expect_code(0)?;
        Extent::Whole
    };
    verify(&trace, &Expected::part(plan, extent))?.expect_complete()?;
    hows(&trace)
}

/// Microseconds between a thread's submissions in a first, a second and a third try.
const PACES: [u32; 3] = [4000, 12_000, 36_000];

/// The tests run on an emulated machine with the stand-in module.
fn is_emulated() -> bool {
    std::env::var_os("SOFTGPU_DEVICE").is_some()
}

/// From the third trap at a store on, all are before the doorbell. How soon nvcap hears of the first ones is the machine's matter: three
/// tries, each slower on an emulated machine, whose one processor may be another's for a second.
fn mostly_before(gpus: usize, attached: bool, options: &[&str], seed: u64) -> Result<()> {
    let mut tries = Vec::new();
    for pace in PACES {
        let [before, trapped, observed] = of(gpus, attached, options, seed, pace)?;
        let times = if is_emulated() { 1 } else { 3 };
        if before > times * (trapped + observed) {
            return Ok(());
        }
        tries.push([before, trapped, observed]);
    }
    bail!("before their doorbells, behind, observed: {tries:?}")
}

/// Every store is stopped at before it rings, once it is known.
pub fn precommit() -> Result<()> {
    mostly_before(gpus(), false, &["--precommit"], 81)
}

/// The same of a process that runs already.
pub fn precommit_attached() -> Result<()> {
    mostly_before(gpus(), true, &["--precommit"], 82)
}

/// Eight GPUs have sixteen doorbells in one process, and a thread has four debug registers. One of them, at the store that rings, serves all.
pub fn eight_gpus() -> Result<()> {
    mostly_before(if_native(), false, &[], 83)
}

/// The same, attached to.
pub fn eight_gpus_attached() -> Result<()> {
    mostly_before(if_native(), true, &[], 84)
}

/// Without `--precommit`, and with registers enough, nothing is stopped at before it rings.
pub fn two_gpus() -> Result<()> {
    let [before, trapped, _] = of(gpus(), false, &[], 85, PACES[0])?;
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
    for pace in ["--sleep-us=1500", "--sleep-us=6000", "--sleep-us=20000"] {
        if without_register(pace)? {
            return Ok(());
        }
    }
    bail!("the software GPU had ended, or nearly, before nvcap was attached")
}

/// False if too little was left to trace.
fn without_register(pace: &str) -> Result<bool> {
    let plan = plan(86, sized(6000, 2400));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(&plan, &["--threads=6", pace, LINGER])?;
    gpu.write(b"g")?;
    std::thread::sleep(Duration::from_millis(300));
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", gpu.pid())) else {
        return Ok(false);
    };
    let tids = tasks.filter_map(|t| t.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let Some(last) = tids.max().filter(|last| *last != gpu.pid()) else {
        return Ok(false);
    };
    let Ok(taken) = Breakpoint::take_all(last) else {
        ensure!(!gpu.runs(), "the test's own breakpoints are refused");
        return Ok(false);
    };
    let options = ["--json", "-vv", "-e", "type=submission,entry", "--how=trap"];
    let options: Vec<OsString> = options.iter().map(OsString::from).collect();
    let attached = attach_to(gpu.pid(), &trace, folder.channels()?, &options);
    let Some(ended) = until_both_end(gpu, attached, &plan)? else {
        return Ok(false);
    };
    drop(taken);
    ended.expect_code(0)?;
    verify(&trace, &Expected::part(plan, Extent::Suffix))?.expect_complete()?;
    let [before, trapped, observed] = hows(&trace)?;
    let said = ended.stderr.contains("debug registers");
    ensure!(
        said || observed == 0,
        "nothing is said of it: {}",
        ended.stderr
    );
    Ok(before + trapped > 100 && observed > 100)
}
