//! The order of times: lines come in order of time, or are marked (docs/output.md).

use std::ffi::OsString;

use anyhow::{Context as _, Result, ensure};
use live::programs::{Folder, Running, nvcap, softgpu};
use serde_json::Value;

use crate::setup::{need_tracing, plan, plan_args};
use crate::time_from_stamps::objects;

/// A guard against hanging.
const GUARD: std::time::Duration = std::time::Duration::from_secs(180);

/// Traces eight threads, and returns submissions and the other objects with a time, in the order shown. `more`: the software GPU's options.
fn traced(flags: &[&str], more: &[&str]) -> Result<Vec<Value>> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = flags.iter().map(OsString::from).collect();
    args.extend([
        "--json".into(),
        "-o".into(),
        trace.clone().into(),
        "--channels".into(),
        folder.channels()?.into(),
        "--".into(),
        softgpu()?.into(),
        "--threads=8".into(),
    ]);
    args.extend(plan_args(&plan(61, 6000)).iter().map(OsString::from));
    args.extend(more.iter().map(OsString::from));
    let ended = Running::start(&nvcap()?, args)?.end(GUARD)?;
    ensure!(
        matches!(ended.code()?, 0 | 3 | 5),
        "status {:?}: {}",
        ended.status,
        ended.stderr
    );
    let objects = objects(&trace)?;
    ensure!(objects.len() > 1000, "{} objects", objects.len());
    Ok(objects)
}

/// Counts the objects that are marked; an error if one comes after a later time without a mark, or in order with one, or if a
/// channel's positions do not rise.
fn marked(objects: &[Value]) -> Result<usize> {
    let (mut latest, mut marked) = (0, 0);
    let mut next = std::collections::HashMap::new();
    for object in objects {
        // The ledger covers all times.
        let Some(time) = object["time_ns"]
            .as_u64()
            .filter(|_| object["type"] != "ledger")
        else {
            continue;
        };
        let mark = object["out_of_order"] == true;
        ensure!(
            mark == (time < latest),
            "{} ns before the latest: {object}",
            latest.saturating_sub(time)
        );
        marked += usize::from(mark);
        latest = latest.max(time);
        if object["type"] == "submission" {
            let channel = object["channel"].as_u64().context("no channel")?;
            let position = object["position"].as_u64().context("no position")?;
            let entries = object["entries"].as_u64().context("no entries")?;
            let expected = next.insert(channel, position + entries).unwrap_or(0);
            ensure!(
                position >= expected,
                "channel {channel} goes back: {object}"
            );
        }
    }
    Ok(marked)
}

/// Every line that comes behind a later one says so, and each channel's submissions are in order. (How many do depends on how long a thread is
/// without its processor between its look at the clock and its place in the buffer.)
pub fn eight_threads() -> Result<()> {
    marked(&traced(&[], &[])?).map(drop)
}

/// Without room all but the first are fetched later, which is after others: nvcap stands still while the program submits. What is outside the
/// window is marked.
pub fn small_buffer() -> Result<()> {
    need_tracing()?;
    // Fewer of a channel than its ring has room for: none are overwritten meanwhile.
    const SUBMISSIONS: u64 = 6000;
    let plan = plan(61, SUBMISSIONS);
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let more = [
        "--threads=8",
        "--wait-stdin",
        "--before-wait=0",
        "--linger-ms=600000",
    ];
    let gpu_args = plan_args(&plan).into_iter().chain(more.map(str::to_owned));
    let mut gpu = Running::start(&softgpu()?, gpu_args)?;
    gpu.wait_for_line("waiting")?;
    let mut args: Vec<OsString> = ["--json", "--buffer=64K", "-o"].map(OsString::from).into();
    args.push(trace.clone().into());
    args.extend(["--channels".into(), folder.channels()?.into()]);
    args.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_until("attached", GUARD, |r| r.stderr().contains("attached"))?;
    nvcap.stop()?;
    gpu.write(b"g")?;
    let done = gpu.wait_until("done", GUARD, |r| r.stdout().contains("done image=0"));
    // It fetches what is left in the rings before it ends.
    nvcap.signal(libc::SIGTERM)?;
    nvcap.signal(libc::SIGCONT)?;
    done?;
    // 3: the records of its threads, too, found no room.
    let ended = nvcap.end(GUARD)?;
    ensure!(matches!(ended.code()?, 0 | 3), "{}", ended.stderr);
    let objects = objects(&trace)?;
    let of = |late: bool| -> u64 {
        let wanted = |o: &&Value| o["type"] == "submission" && o["late"] == late;
        let all = objects.iter().filter(wanted);
        all.filter_map(|o| o["entries"].as_u64()).sum()
    };
    let (late, in_time) = (of(true), of(false));
    ensure!(
        late + in_time == SUBMISSIONS && late > in_time,
        "{late} entries were fetched later, {in_time} were not"
    );
    marked(&objects)?;
    Ok(())
}

/// The same for observed rings. They are there when the program stands at its end: however late nvcap looks, it finds all in them.
pub fn observed() -> Result<()> {
    let marked = marked(&traced(&["--how=observe"], &["--leave-mapped"])?)?;
    ensure!(marked == 0, "{marked} objects are out of order");
    Ok(())
}
