//! Tests of which channels there are: their numbers, channels that the user named wrongly, and memory that only looks like
//! a channel.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use live::in_step::Step;
use live::programs::{Ended, Folder, Running, nvcap, softgpu};
use serde_json::Value;
use softgpu::layout::{Channel, DOORBELL, doorbell_page};

use crate::attach::waiting;
use crate::setup::{LIMIT, gpus, need_tracing, plan, plan_args};

/// The JSON lines of a trace.
fn lines(trace: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(trace)?;
    text.lines()
        .map(|l| serde_json::from_str(l).with_context(|| l.to_owned()))
        .collect()
}

/// The numbers of the channels, in the order in which they became known.
fn numbers(lines: &[Value]) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let channels = lines.iter().filter(|l| l["type"] == "channel");
    channels
        .filter_map(|l| l["channel"].as_u64())
        .filter(|n| seen.insert(*n))
        .collect()
}

/// The numbers count from 0 without gaps, in the trace and in its ledger.
fn expect_numbers(trace: &Path, most: u64) -> Result<()> {
    let lines = lines(trace)?;
    // In the order in which they became known, except where two processors reported theirs at the same time, or a search
    // found one while the first doorbell of another was on its way.
    let mut numbers = numbers(&lines);
    let disorder = numbers.windows(2).filter(|w| w[0] > w[1]).count();
    ensure!(disorder <= (numbers.len() / 10).max(2), "{numbers:?}");
    numbers.sort_unstable();
    ensure!(
        numbers == (0..most).collect::<Vec<_>>(),
        "channels {numbers:?} instead of 0 to {}",
        most - 1
    );
    let ledger = lines.iter().find(|l| l["type"] == "ledger");
    let ledger = ledger.context("no ledger")?["channels"].as_array();
    let listed: BTreeSet<u64> = ledger
        .into_iter()
        .flatten()
        .filter_map(|c| c["channel"].as_u64())
        .collect();
    ensure!(
        listed.iter().all(|n| *n < most),
        "the ledger's channels: {listed:?}"
    );
    Ok(())
}

fn json(trace: &Path) -> Vec<OsString> {
    vec!["--json".into(), "--force".into(), "-o".into(), trace.into()]
}

/// nvcap on a command, with these channels.
fn traced(trace: &Path, channels: &Path, command: &[OsString]) -> Result<Ended> {
    Running::start(&nvcap()?, args_of(trace, channels, command))?.end(LIMIT)
}

fn args_of(trace: &Path, channels: &Path, command: &[OsString]) -> Vec<OsString> {
    let mut args = json(trace);
    args.extend(["--channels".into(), channels.into(), "--".into()]);
    args.extend_from_slice(command);
    args
}

/// A command that executes several programs: only those with channels count.
pub fn numbers_after_exec() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let plan = plan(81, 200);
    let gpu = softgpu()?;
    let step = Step::new(&folder)?;
    let script = format!(
        "/bin/true; exec {} {} {}",
        gpu.display(),
        plan_args(&plan).join(" "),
        step.with(&["--exec=1"]).join(" ")
    );
    let command: Vec<OsString> = vec!["/bin/sh".into(), "-c".into(), script.into()];
    let args = args_of(&trace, &folder.channels()?, &command);
    step.nvcap(args)?.end(LIMIT)?.expect_code(0)?;
    expect_numbers(&trace, 2 * plan.channels.len() as u64)
}

/// The doorbells of all GPUs: needed without a driver if channels are to be found.
fn doorbells() -> Vec<OsString> {
    let word = |gpu| format!("--doorbell={:#x}", doorbell_page(gpu, 1) + DOORBELL).into();
    (0..gpus()).map(word).collect()
}

/// nvcap attached to a process whose channels are not named.
fn attached(gpu: &Running, trace: &Path) -> Result<Running> {
    let mut args: Vec<OsString> = vec!["NVCAP_LOG=debug".into(), nvcap()?.into()];
    args.extend(json(trace));
    args.extend(doorbells());
    args.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = Running::start(Path::new("env"), args)?;
    nvcap.wait_until("watching", LIMIT, |r| r.stderr().contains("attached"))?;
    Ok(nvcap)
}

/// Attached to a process: the channels in use are listed, and no unused slot.
pub fn numbers_when_attached() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut plan = plan(82, 400);
    plan.channels = Channel::first(6, gpus());
    let mut gpu = waiting(&plan, &["--files", "--threads=2", "--before-wait=3"])?;
    let nvcap = attached(&gpu, &trace)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    expect_numbers(&trace, 6)
}

/// Copies of rings in memory that was unmapped are no channels, however often a doorbell is rung for an unknown channel.
/// That doorbell is reported.
pub fn remains_are_none() -> Result<()> {
    remains(&["--remains=100"], false)
}

/// Nor is the last copy when the others are unmapped, although then one copy faces one unknown channel, if they were seen before.
pub fn the_last_remains_are_none() -> Result<()> {
    remains(&["--remains=100", "--remains-shrink"], false)
}

/// A copy that faces one unknown channel from the beginning may be taken for it. As it does not move, that proves nothing: the
/// unknown channel is still reported.
pub fn remains_taken_by_number() -> Result<()> {
    remains(&["--remains=1"], true)
}

/// Returns the number of rings that each search of the process's memory saw.
fn searched(stderr: &str) -> impl Iterator<Item = u64> {
    stderr.lines().filter_map(|l| {
        let rings = l.split_once(" again: ")?.1.strip_suffix(" rings")?;
        rings.parse().ok()
    })
}

/// Attached to a program that leaves copies of a ring behind and then rings for a channel that nobody knows. `one`: there is but one
/// copy.
fn remains(more: &[&str], one: bool) -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut plan = plan(83, 400);
    plan.channels = Channel::first(6, gpus());
    let mut args = vec!["--files", "--threads=2", "--before-wait=3"];
    args.extend(more);
    let mut gpu = waiting(&plan, &args)?;
    let nvcap = attached(&gpu, &trace)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(3)?;
    ensure!(
        ended.stderr.contains("of unknown channels"),
        "{}",
        ended.stderr
    );
    // It may be that nvcap searched only when one was left.
    let may_be_taken = one || searched(&ended.stderr).all(|rings| rings < 100);
    match expect_numbers(&trace, 6) {
        Err(_) if may_be_taken => expect_numbers(&trace, 7),
        numbers => numbers,
    }
}

/// The channels file of the software GPU with other doorbells: `of` makes a doorbell's address of a GPU's first one.
fn misnamed(folder: &Folder, of: impl Fn(u64) -> u64) -> Result<std::path::PathBuf> {
    let right = std::fs::read_to_string(folder.channels()?)?;
    let mut text: String = right
        .lines()
        .filter(|l| l.starts_with("channel"))
        .map(|l| format!("{l}\n"))
        .collect();
    for gpu in 0..gpus() {
        let address = of(doorbell_page(gpu, 0) + DOORBELL);
        text.push_str(&format!("doorbell addr={address:#x} gpu={gpu}\n"));
    }
    let path = folder.file("misnamed.txt");
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The doorbells named by the user are not those that are rung. Entries are fetched by looks at the rings; that some may be
/// missing is reported.
fn wrong_doorbell(of: impl Fn(u64) -> u64, why: &str, exec: &str) -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let plan = plan(84, 2000);
    // In step: it does not end before all was looked at.
    let step = Step::new(&folder)?;
    let mut command: Vec<OsString> = vec![softgpu()?.into()];
    command.extend(plan_args(&plan).into_iter().map(OsString::from));
    let more = step.with(&["--linger-ms=600", exec]);
    command.extend(more.into_iter().map(OsString::from));
    let args = args_of(&trace, &misnamed(&folder, of)?, &command);
    step.nvcap(args)?.end(LIMIT)?.expect_code(3)?;
    let lines = lines(&trace)?;
    let ledger = lines.iter().find(|l| l["type"] == "ledger");
    let ledger = ledger.context("no ledger")?;
    let text = ledger.to_string();
    ensure!(
        text.contains("none of the doorbells given was rung") && text.contains(why),
        "{text}"
    );
    let images = if exec == "--exec=1" { 2 } else { 1 };
    ensure!(ledger["entries"] == 2000 * images, "{text}");
    Ok(())
}

/// The named doorbell is mapped, and another is rung.
pub fn wrong_doorbell_rung() -> Result<()> {
    wrong_doorbell(|address| address, "is another", "--exec=0")
}

/// The named doorbell is not mapped; and the program executes itself.
pub fn wrong_doorbell_not_mapped() -> Result<()> {
    wrong_doorbell(
        |address| address + 0x100_0000_0000,
        "is not mapped",
        "--exec=1",
    )
}

/// The submissions of a program that ends at once are lost: that is reported too.
pub fn wrong_doorbell_short() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let command: Vec<OsString> = vec![softgpu()?.into(), "--submissions=2000".into()];
    traced(&trace, &misnamed(&folder, |a| a)?, &command)?.expect_code(3)
}

/// The named channels were never there.
pub fn never_there() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let ended = traced(&trace, &folder.channels()?, &["/bin/true".into()])?;
    ended.expect_code(3)?;
    let text = std::fs::read_to_string(&trace)?;
    ensure!(
        text.contains("none of the channels given was there"),
        "{text}"
    );
    Ok(())
}

/// Rings that are named smaller than they are: GP_PUT is beyond them now and then, and at the end it is not.
pub fn rings_named_too_small() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let right = std::fs::read_to_string(folder.channels()?)?;
    for (entries, submissions) in [(2, 4100), (256, 4800), (512, 6000)] {
        let file = folder.file("small.txt");
        std::fs::write(
            &file,
            right.replace("entries=1024", &format!("entries={entries}")),
        )?;
        let trace = folder.file("trace.json");
        let mut plan = plan(5, submissions);
        plan.channels = Channel::first(4, gpus());
        let mut command = vec![softgpu()?.into()];
        command.extend(plan_args(&plan).into_iter().map(OsString::from));
        command.push("--threads=2".into());
        let ended = traced(&trace, &file, &command)?;
        let text = std::fs::read_to_string(&trace)?;
        ensure!(
            ended.code()? == 3 && text.contains("GP_PUT was beyond a ring of"),
            "{entries} entries: {ended:?}"
        );
    }
    Ok(())
}

/// Nor does the trap hold more of a hostile ring than observing does.
pub fn memory_is_bounded() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let options = ["--channels".into(), folder.channels()?.into()];
    let ended = crate::observe::claimed(&options, "--linger-ms=1500")?;
    ended.expect_code(3)?;
    // Where the process ended before nvcap came to look, its entries are missing as a whole.
    let is_gone = crate::observe::missing(&ended).is_some_and(|n| n >= 1000);
    ensure!(
        is_gone || ended.stderr.contains("could not be read"),
        "{}",
        ended.stderr
    );
    Ok(())
}

/// The table of channels has the tokens that the report on the same process has.
pub fn tokens_as_in_a_dump() -> Result<()> {
    let mut gpu = crate::dump::start(&crate::dump::plan(5, 6, 60), &["--linger-ms=900000"])?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let pid = gpu.pid().to_string();
    let tokens = |args: &[&str], of: fn(&Value) -> Option<&Vec<Value>>| -> Result<BTreeSet<u64>> {
        let ended = Running::start(&nvcap()?, args.iter().map(OsString::from))?.end(LIMIT)?;
        let json: Value = serde_json::from_str(&ended.stdout)
            .with_context(|| format!("{}{}", ended.stdout, ended.stderr))?;
        let all = of(&json).context("no channels")?;
        Ok(all.iter().filter_map(|c| c["token"].as_u64()).collect())
    };
    let of_dump = tokens(&["dump", "-p", &pid, "--json"], |v| {
        v["processes"][0]["channels"].as_array()
    })?;
    let of_table = tokens(&["channels", "-p", &pid, "--json"], Value::as_array)?;
    ensure!(
        of_dump.len() == 6 && of_table == of_dump,
        "{of_table:x?} in the table, {of_dump:x?} in the dump"
    );
    Ok(())
}
