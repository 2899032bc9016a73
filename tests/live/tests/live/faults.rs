//! Faults of the GPU: the driver has stopped a channel, and the trace says which kernel had not ended. Observed: no rights are needed.

use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use live::programs::{Ended, Folder, Running, Until, nvcap, so_far, softgpu};
use serde_json::Value;
use softgpu::hang::FAULTING;

use crate::setup::{LIMIT, REPEATS};

/// The status of a complete trace with a fault.
const FAULTED: i32 = nvcap_decode::ledger::STATUS_FAULTED as i32;

/// The software GPU as a CUDA process that ends with its context there, after a fault.
const PROGRAM: [&str; 9] = [
    "--files",
    "--gpus=1",
    "--channels=3",
    "--submissions=200",
    "--threads=2",
    "--kernels",
    "--leave-mapped",
    "--linger-ms=0",
    "--fault=31",
];

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<OsString> {
    words.into_iter().map(OsString::from).collect()
}

/// The name of a faulting kernel, by its number among them.
fn name(n: u64) -> String {
    format!("void kernel<{}>(float*)", FAULTING + n)
}

/// The objects of a trace that are of a type.
fn of_type(trace: &Path, kind: &str) -> Result<Vec<Value>> {
    let objects = live::json_lines::of_file(trace)?;
    Ok(objects.into_iter().filter(|o| o["type"] == kind).collect())
}

/// Repeats a run until the verdict has all names: nvcap searches for names for a limited time. A wrong name, or another verdict, ends
/// it at once. `wanted` is what the verdict says of the fault.
fn expect_verdict(wanted: &str, run: impl Fn(&Folder, &Path) -> Result<Ended>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let ended = run(&folder, &trace)?;
        let ledger = of_type(&trace, "ledger")?;
        let ledger = ledger.last().context("no ledger")?;
        let verdict = ledger["verdict"].as_str().context("no verdict")?;
        // An end is held for a limited time, in which a busy machine may not have read the notifiers: that is told.
        let is_unread = verdict.contains("a fault at the end of process");
        ensure!(is_unread != ledger["faults"][0].is_object(), "{ledger}");
        if is_unread {
            println!("    notifiers were not read in time: {verdict}");
            ensure!(begun.elapsed() < REPEATS, "guard: no run has the fault");
            continue;
        }
        ended.expect_code(FAULTED)?;
        let is_named = !verdict.contains("the kernel at 0x");
        if is_named {
            let begin = format!("complete, and the GPU faulted: Xid 31 in {wanted}: ");
            ensure!(verdict.starts_with(&begin), "{verdict}");
            return expect_faults(&trace, ledger);
        }
        println!("    a kernel without a name in time: {verdict}");
        ensure!(begun.elapsed() < REPEATS, "guard: no run has all names");
    }
}

/// A fault is one event or more, and its channels are those that the ledger has: a look may come between two notifiers of one group.
fn expect_faults(trace: &Path, ledger: &Value) -> Result<()> {
    let faults = of_type(trace, "fault")?;
    let blamed = ledger["faults"].as_array().context("no faults")?;
    ensure!(blamed.len() == 1 && !faults.is_empty(), "{ledger}");
    for fault in &faults {
        let is_right = fault["xid"] == 31
            && fault["source"] == "notifier"
            && fault["notification"]["status"] == 0xffff
            && fault["only_these"] == true
            && fault["channel"].is_u64();
        ensure!(is_right, "{fault}");
    }
    let mut channels: Vec<&Value> = { faults.iter() }
        .flat_map(|f| {
            f["group"]
                .as_array()
                .into_iter()
                .flatten()
                .chain([&f["channel"]])
        })
        .collect();
    channels.sort_by_key(|c| c.as_u64());
    let mut blamed: Vec<&Value> = blamed[0]["channels"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    blamed.sort_by_key(|c| c.as_u64());
    ensure!(channels == blamed, "{channels:?}: {ledger}");
    Ok(())
}

fn observed(trace: &Path) -> Vec<OsString> {
    let mut all = words(["--how=observe", "--json", "-o"]);
    all.push(trace.into());
    all
}

/// A command whose channel is stopped just before its end; its recording says the same.
pub fn from_the_start() -> Result<()> {
    expect_verdict(&name(0), |folder, trace| {
        let recording = folder.file("trace.pcapng");
        let mut args = observed(trace);
        args.extend(["--record".into(), recording.clone().into()]);
        args.extend(["--".into(), softgpu()?.into()]);
        args.extend(words(PROGRAM));
        let live = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        let ledger = of_type(trace, "ledger")?;
        let verdict = ledger.last().context("no ledger")?["verdict"].clone();
        for command in ["decode", "stats"] {
            let again = folder.file(command);
            let mut args = words([command, "--json", "-o"]);
            args.extend([again.clone().into(), recording.clone().into()]);
            let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
            ended.expect_code(FAULTED)?;
            let said = of_type(&again, "ledger")?;
            let said = &said.last().context("no ledger")?["verdict"];
            ensure!(*said == verdict, "{command}: {said} instead of {verdict}");
        }
        Ok(live)
    })
}

/// Two kernels had not ended: neither is named alone.
pub fn of_two_kernels() -> Result<()> {
    let wanted = format!("one of: {}, {}", name(0), name(1));
    expect_verdict(&wanted, |_, trace| {
        let mut args = observed(trace);
        args.extend(["--".into(), softgpu()?.into()]);
        args.extend(words(PROGRAM));
        // The fourth channel is the second of compute.
        args.extend(words(["--channels=4", "--fault-channels=2"]));
        Running::start(&nvcap()?, args)?.end(LIMIT)
    })
}

/// Attached to before the fault; the process lives on behind it.
pub fn attached() -> Result<()> {
    expect_verdict(&name(0), |folder, trace| {
        let stay = Until::new(folder, "stay")?;
        let mut args = words(PROGRAM);
        args.extend(words(["--wait-stdin", "--before-wait=7"]));
        args.push(stay.stay().into());
        let mut gpu = Running::start(&softgpu()?, args)?;
        gpu.wait_for_line("waiting")?;
        let mut args = observed(trace);
        args.extend(["-p".into(), gpu.pid().to_string().into()]);
        let mut nvcap = Running::start(&nvcap()?, args)?;
        nvcap.wait_until("watching", LIMIT, |r| r.stderr().contains("attached"))?;
        gpu.write(b"g")?;
        gpu.wait_until("the fault", LIMIT, |_| {
            so_far(trace, "\"type\":\"fault\"") > 0
        })?;
        // What it has not yet read is there until it has ended.
        nvcap.signal(libc::SIGINT)?;
        let ended = nvcap.end(LIMIT)?;
        stay.release()?;
        gpu.end(LIMIT)?.expect_code(0)?;
        Ok(ended)
    })
}

/// `nvcap serve --faults` says it on standard output, with the kernel's name; the process lives on behind it.
pub fn served() -> Result<()> {
    let folder = Folder::new()?;
    let stay = Until::new(&folder, "stay")?;
    let mut args = words(PROGRAM);
    args.extend(words(["--wait-stdin", "--before-wait=7"]));
    args.push(stay.stay().into());
    let mut gpu = Running::start(&softgpu()?, args)?;
    gpu.wait_for_line("waiting")?;
    let pid = u64::from(gpu.pid());
    let mut nvcap = Running::start(&nvcap()?, ["serve", "--faults", "--listen=127.0.0.1:0"])?;
    nvcap.wait_until("watching", LIMIT, |r| {
        r.stderr().contains("nvcap: watching")
    })?;
    gpu.write(b"g")?;
    // Other tests' processes fault, too.
    let of = |r: &Running| -> Option<Value> {
        let lines = r.stdout();
        let all = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        all.into_iter().find(|v| v["pid"] == pid)
    };
    nvcap.wait_until("the fault", LIMIT, |r| of(r).is_some())?;
    let said = of(&nvcap).context("no line")?;
    let is_right = said["type"] == "finding"
        && said["verdict"] == "error"
        && said["xid"] == 31
        && said["name"] == "softgpu"
        && said["only_these"] == true
        && said["dump"].is_null()
        && said["suspects"][0]["kernel"] == name(0);
    ensure!(is_right, "{said}");
    nvcap.signal(libc::SIGINT)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    stay.release()?;
    gpu.end(LIMIT)?.expect_code(0)
}

/// Without a fault nothing is said of one.
pub fn none() -> Result<()> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args = observed(&trace);
    args.extend(["--".into(), softgpu()?.into()]);
    args.extend(words(
        PROGRAM.into_iter().filter(|w| !w.starts_with("--fault")),
    ));
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    ended.expect_code(0)?;
    let ledger = of_type(&trace, "ledger")?;
    let ledger = ledger.last().context("no ledger")?;
    ensure!(ledger["faults"] == serde_json::json!([]), "{ledger}");
    ensure!(of_type(&trace, "fault")?.is_empty(), "a fault");
    Ok(())
}
