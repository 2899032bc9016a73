//! `nvcap record` and `--record`: what was recorded is shown as the live trace was, byte for byte, and survives what ends nvcap.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use live::programs::{Ended, Folder, Running, Until, nvcap, softgpu};
use serde_json::Value;
use softgpu::layout::channels_file;

use crate::attach::{attach_to, waiting};
use crate::setup::{LIMIT, gpus, need_tracing, plan, plan_args};

/// Bytes of a piece of data that is looked for.
const NEEDLE: usize = 32;

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Runs `nvcap decode` with `options` on a recording.
pub fn decode(file: &Path, options: &[&str]) -> Result<Ended> {
    let mut args = words(&["decode"]);
    args.extend(words(options));
    args.push(file.into());
    Running::start(&nvcap()?, args)?.end(LIMIT)
}

/// The live trace as JSON and the recording's are the same.
fn expect_same(live: &Path, file: &Path, options: &[&str]) -> Result<()> {
    let shown = std::fs::read_to_string(live)?;
    let ended = decode(file, options)?;
    ended.expect_code(0)?;
    let submissions = shown.matches("\"type\":\"submission\"").count();
    ensure!(submissions > 100, "{submissions} submissions");
    let mut lines = shown.lines().zip(ended.stdout.lines()).enumerate();
    if let Some((n, (live, decoded))) = lines.find(|(_, (a, b))| a != b) {
        anyhow::bail!("line {n}: live {live}, decoded {decoded}");
    }
    ensure!(shown == ended.stdout, "one of both goes on");
    Ok(())
}

/// A trace from the command's start, with stacks, with names, with the GPU's times.
pub fn as_live() -> Result<()> {
    need_tracing()?;
    let plan = plan(91, 1000);
    let churn = ["--threads=3", "--churn=2"];
    let named = ["--kernels", "--leave-mapped"];
    let timed = ["--timed", "--files", "--threads=1", "--linger-ms=300"];
    let ways: [(&[&str], &[&str]); 4] = [
        (&["-vv"], &churn),
        (&["--stacks"], &churn),
        (&[], &named),
        (&["--gpu-time"], &timed),
    ];
    for (options, gpu) in ways {
        let folder = Folder::new()?;
        let (live, file) = (folder.file("live.json"), folder.file("run.pcapng"));
        let channels = folder.file("channels.txt");
        let is_timed = options == ["--gpu-time"];
        std::fs::write(&channels, channels_file(if is_timed { 1 } else { gpus() }))?;
        let mut args = words(&["--json", "-o"]);
        args.extend([live.clone().into(), "--record".into(), file.clone().into()]);
        args.extend(words(options));
        args.extend(["--channels".into(), channels.into(), "--".into()]);
        args.push(softgpu()?.into());
        match is_timed {
            true => args.extend(words(&["--gpus=1", "--submissions=1000"])),
            false => args.extend(plan_args(&plan).into_iter().map(OsString::from)),
        }
        args.extend(words(gpu));
        let traced = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        traced.expect_code(0)?;
        let shown: &[&str] = match options {
            ["-vv"] => &["--json", "-vv"],
            _ => &["--json"],
        };
        expect_same(&live, &file, shown).with_context(|| format!("{options:?}"))?;
        // What is known of the recording may be filtered by.
        match options {
            ["--gpu-time"] => decode(&file, &["-q", "-e", "gpu_ns>0"])?.expect_code(0)?,
            ["--stacks"] => decode(&file, &["-q", "-e", "frame~*"])?.expect_code(0)?,
            _ => {}
        }
    }
    Ok(())
}

/// What was found by looks has no times between doorbells: those of the looks are none.
pub fn looks_are_no_doorbells() -> Result<()> {
    let folder = Folder::new()?;
    let file = folder.file("run.pcapng");
    let mut args = words(&["record", "--how", "observe", "-o"]);
    args.extend([file.clone().into(), "--".into(), softgpu()?.into()]);
    args.extend(words(&[
        "--files",
        "--gpus=1",
        "--channels=2",
        "--submissions=300",
        "--leave-mapped",
    ]));
    Running::start(&nvcap()?, args)?.end(LIMIT)?;
    let mut args = words(&["stats"]);
    args.push(file.into());
    let stats = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    // Where nvcap got no processor while the program was there, it has seen nothing, and says so.
    let sees = !stats.stdout.contains("captured 0 submissions");
    ensure!(
        sees == stats.stdout.contains("bytes of submissions")
            && !stats.stdout.contains("times between doorbells"),
        "{}",
        stats.stdout
    );
    Ok(())
}

/// Without a target, or with a wrong one, nothing is touched; a recording is not written over another one, unless that is asked for; one
/// whose file is gone is no success.
pub fn kept() -> Result<()> {
    let folder = Folder::new()?;
    let (first, second, third) = (
        folder.file("run.pcapng"),
        folder.file("run.2.pcapng"),
        folder.file("run.3.pcapng"),
    );
    let record = |more: &[&str]| {
        let mut args = words(&["record", "-o"]);
        args.push(first.clone().into());
        args.extend(words(more));
        Running::start(&nvcap()?, args)
    };
    let sleeper = ["--how", "observe", "--", "sleep", "0.1"];
    std::fs::write(&first, "of yesterday")?;
    record(&[])?.end(LIMIT)?.expect_code(2)?;
    record(&["-p", "4194305"])?.end(LIMIT)?.expect_code(1)?;
    ensure!(std::fs::read(&first)? == b"of yesterday" && !second.exists());
    let ended = record(&sleeper)?.end(LIMIT)?;
    ended.expect_code(4)?;
    ensure!(
        ended.stderr.contains("is there already: recording into")
            && ended.stderr.contains("run.2.pcapng ("),
        "{}",
        ended.stderr
    );
    ensure!(std::fs::read(&first)? == b"of yesterday");
    decode(&second, &[])?.expect_code(4)?;
    // Two at once.
    let both = [record(&sleeper)?, record(&sleeper)?];
    for running in both {
        running.end(LIMIT)?.expect_code(4)?;
    }
    for file in [&third, &folder.file("run.4.pcapng")] {
        decode(file, &[])?.expect_code(4)?;
    }
    let forced = [&["--force"], &sleeper[..]].concat();
    record(&forced)?.end(LIMIT)?.expect_code(4)?;
    decode(&first, &[])?.expect_code(4)?;
    // Gone meanwhile.
    let mut child = Command::new("sleep").arg("900").spawn()?;
    let pid = child.id().to_string();
    let mut running = record(&["--force", "--how", "observe", "-p", &pid])?;
    running.wait_until("attached", LIMIT, |r| r.stderr().contains("attached"))?;
    std::fs::remove_file(&first)?;
    child.kill()?;
    child.wait()?;
    let ended = running.end(LIMIT)?;
    ended.expect_code(1)?;
    ensure!(
        ended.stderr.contains("the recording is lost")
            && ended.stdout.contains("INCOMPLETE: ")
            && !ended.stdout.contains("no GPU was used"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    Ok(())
}

/// No process used a GPU: that is neither complete nor a loss, and says which programs there were.
pub fn without_a_gpu() -> Result<()> {
    let traced = |more: &[&str]| {
        let args = [&["--how", "observe"], more].concat();
        Running::start(&nvcap()?, args)?.end(LIMIT)
    };
    let ended = traced(&["--", "sh", "-c", "ls / > /dev/null; exit 0"])?;
    ended.expect_code(4)?;
    ensure!(
        ended.stderr.contains("no GPU was used") && ended.stderr.contains("(sh, ls)"),
        "{}",
        ended.stderr
    );
    traced(&["--exit-with-child", "--", "sh", "-c", "exit 7"])?.expect_code(7)
}

/// A process that was attached to.
pub fn as_live_attached() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let (live, file) = (folder.file("live.json"), folder.file("run.pcapng"));
    let mut gpu = waiting(&plan(92, 1000), &["--threads=2"])?;
    let mut record = words(&["--json", "-vv", "--record"]);
    record.push(file.clone().into());
    let nvcap = attach_to(gpu.pid(), &live, folder.channels()?, &record)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    expect_same(&live, &file, &["--json", "-vv"])
}

/// An observed process.
pub fn as_live_observed() -> Result<()> {
    let folder = Folder::new()?;
    let (live, file) = (folder.file("live.json"), folder.file("run.pcapng"));
    let mut args = words(&["--how=observe", "--json", "-o"]);
    args.extend([live.clone().into(), "--record".into(), file.clone().into()]);
    args.extend(["--".into(), softgpu()?.into()]);
    args.extend(words(&[
        "--files",
        "--submissions=1000",
        "--sleep-us=100",
        "--leave-mapped",
    ]));
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_same(&live, &file, &["--json"])
}

/// `nvcap record` of the software GPU with `options`, into `file`.
fn record(file: &Path, options: &[&str], gpu: &[&str], folder: &Folder) -> Result<Running> {
    let mut args = words(&["record", "-o"]);
    args.push(file.into());
    args.extend(words(options));
    args.extend(["--channels".into(), folder.channels()?.into(), "--".into()]);
    args.push(softgpu()?.into());
    args.extend(words(gpu));
    Running::start(&nvcap()?, args)
}

fn ledger(ended: &Ended) -> Result<Value> {
    let last = ended.stdout.lines().last().context("no output")?;
    Ok(serde_json::from_str(last)?)
}

/// The verdict, which names one reason, and behind it all of them.
pub fn verdict(ledger: &Value) -> String {
    let whys = ledger["untraced"].as_array().into_iter().flatten();
    let whys = whys.filter_map(|reason| reason["why"].as_str());
    let all: Vec<&str> = ledger["verdict"].as_str().into_iter().chain(whys).collect();
    all.join("\n")
}

/// nvcap is killed. What it had recorded is there, and that it has no end is said; the program goes on.
pub fn killed() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let file = folder.file("run.pcapng");
    let hold = Until::new(&folder, "hold")?;
    let options = ["--threads=1", "--sleep-us=500", &hold.hold()];
    let mut gpu = waiting(&plan(93, 4000), &options)?;
    let mut args = words(&["record", "-o"]);
    args.extend([file.clone().into(), "--channels".into()]);
    args.extend([folder.channels()?.into(), "-p".into()]);
    args.push(gpu.pid().to_string().into());
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_until("attached", LIMIT, |r| r.stderr().contains("attached"))?;
    gpu.write(b"g")?;
    // A submission takes at least some hundred bytes.
    nvcap.wait_until("recording", LIMIT, |_| {
        file.metadata().is_ok_and(|m| m.len() > 200_000)
    })?;
    nvcap.signal(libc::SIGKILL)?;
    let _ = nvcap.end(LIMIT)?;
    hold.release()?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = decode(&file, &["--json", "-q"])?;
    ended.expect_code(3)?;
    let ledger = ledger(&ended)?;
    let submissions = ledger["submissions"].as_u64().context("submissions")?;
    ensure!(submissions > 50 && ledger["gaps"] == 0, "{ledger}");
    // Where it was killed while it wrote, a block that is cut is a reason beside.
    let said = verdict(&ledger);
    ensure!(said.contains("the recording has no end"), "{said}");
    Ok(())
}

/// The file may not grow further. The trace goes on; what is missing of the recording is said, then and later.
pub fn full() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let file = folder.file("run.pcapng");
    let plan = plan(94, 2000);
    let mut command = format!(
        "ulimit -f 1000; exec '{}' record -o '{}' --channels '{}' -- '{}'",
        nvcap()?.display(),
        file.display(),
        folder.channels()?.display(),
        softgpu()?.display()
    );
    plan_args(&plan)
        .iter()
        .for_each(|a| command += &format!(" {a}"));
    let ended = Running::start(Path::new("sh"), words(&["-c", &command]))?.end(LIMIT)?;
    ended.expect_code(3)?;
    ensure!(ended.stderr.contains("ulimit -f"), "{}", ended.stderr);
    let ended = decode(&file, &["--json", "-q"])?;
    ended.expect_code(3)?;
    let ledger = ledger(&ended)?;
    let submissions = ledger["submissions"].as_u64().context("submissions")?;
    ensure!((100..2000).contains(&submissions), "{ledger}");
    Ok(())
}

pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_string_lossy().contains("run.0") {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// Files follow one another, a signal seals those that are there, and each can be read.
pub fn rotated_and_sealed() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let file = folder.file("run.pcapng");
    let hold = Until::new(&folder, "hold")?;
    let hold_option = hold.hold();
    let gpu = [
        "--submissions=6000",
        "--sleep-us=300",
        "--threads=1",
        &hold_option,
    ];
    let rotate = ["--rotate=1M", "--keep=2"];
    let mut nvcap = record(&file, &rotate, &gpu, &folder)?;
    let parent = file.parent().context("a folder")?.to_owned();
    nvcap.wait_until("a third file", LIMIT, |_| {
        files(&parent).is_ok_and(|f| f.iter().any(|f| f.ends_with("run.00003.pcapng")))
    })?;
    nvcap.signal(libc::SIGUSR2)?;
    nvcap.wait_until("sealed", LIMIT, |r| r.stderr().contains("sealed: "))?;
    hold.release()?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    let all = files(&parent)?;
    let sealed = |path: &&PathBuf| path.to_string_lossy().contains(".sealed.");
    let (kept, sealed) = (all.iter().filter(|p| !sealed(p)), all.iter().filter(sealed));
    let (kept, sealed) = (kept.count(), sealed.count());
    ensure!(sealed >= 2 && kept == 2, "{all:?}");
    let mut submissions = 0;
    for path in &all {
        use std::os::unix::fs::PermissionsExt as _;

        let mode = path.metadata()?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "{}: {mode:o}", path.display());
        let ended = decode(path, &["--json"])?;
        ended.expect_code(0)?;
        let ledger = ledger(&ended)?;
        submissions += ledger["submissions"].as_u64().unwrap_or(0);
        ensure!(
            ended.stdout.contains("\"process\":\"softgpu\""),
            "no name of the process"
        );
    }
    ensure!(submissions > 1000, "{submissions} submissions");
    Ok(())
}

/// The launches of a recording, without what a hash has changed and what another run has changed: numbers of channels.
fn launches(ended: &Ended) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for line in ended.stdout.lines() {
        let object: Value = serde_json::from_str(line)?;
        if object["op"] == "launch" {
            let shown = ["grid", "block", "program", "token"].map(|m| object[m].to_string());
            all.push(shown.join(" "));
        }
    }
    all.sort();
    Ok(all)
}

/// The beginnings of inline writes that are no QMDs, as the decoder shows them: users' data and constants. Those that could be there by chance are left out.
fn data(ended: &Ended) -> Result<HashSet<[u8; NEEDLE]>> {
    let mut all = HashSet::new();
    let inline = "\"op\":\"inline\"";
    for line in ended.stdout.lines().filter(|l| l.contains(inline)) {
        let object: Value = serde_json::from_str(line)?;
        let head = object["head"].as_str().unwrap_or("");
        if object["content"] == "qmd" || head.len() < 2 * NEEDLE {
            continue;
        }
        let mut bytes = [0; NEEDLE];
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&head[2 * n..2 * n + 2], 16)?;
        }
        if bytes.iter().collect::<HashSet<_>>().len() > NEEDLE / 2 {
            all.insert(bytes);
        }
    }
    Ok(all)
}

/// Counts the pieces of `data` that are in a file.
fn found(data: &HashSet<[u8; NEEDLE]>, file: &Path) -> Result<usize> {
    let bytes = std::fs::read(file)?;
    let there = bytes.windows(NEEDLE).filter(|w| data.contains(*w));
    Ok(there.collect::<HashSet<_>>().len())
}

/// Without users' data the launches are the same, and none of the data is there.
pub fn redacted() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let (plain, hidden) = (folder.file("plain.pcapng"), folder.file("hidden.pcapng"));
    let shared = folder.file("shared.pcapng");
    let gpu = ["--submissions=600", "--threads=1"];
    record(&plain, &[], &gpu, &folder)?
        .end(LIMIT)?
        .expect_code(0)?;
    record(&hidden, &["--redact"], &gpu, &folder)?
        .end(LIMIT)?
        .expect_code(0)?;
    let mut args = words(&["export", "pcapng", "--redact", "-o"]);
    args.extend([shared.clone().into(), plain.clone().into()]);
    Running::start(&nvcap()?, args)?
        .end(LIMIT)?
        .expect_code(0)?;
    let recordings = [plain, hidden, shared];
    let [plain, hidden, shared] = recordings.each_ref().map(|f| decode(f, &["--json", "-v"]));
    let (plain, hidden, shared) = (plain?, hidden?, shared?);
    // All data of the plain recording is there as it is, and none of it in the others.
    let data = data(&plain)?;
    ensure!(data.len() > 50, "{} pieces of data", data.len());
    let [there, recorded, exported] = recordings.each_ref().map(|f| found(&data, f));
    let there = (there?, recorded?, exported?);
    ensure!(
        there == (data.len(), 0, 0),
        "{} pieces of data: {there:?}",
        data.len()
    );
    let wanted = launches(&plain)?;
    ensure!(wanted.len() > 50, "{} launches", wanted.len());
    for (name, ended) in [("recorded", &hidden), ("exported", &shared)] {
        ended.expect_code(0)?;
        ensure!(launches(ended)? == wanted, "{name}: other launches");
        ensure!(
            ended.stdout.contains("redacted_bytes"),
            "{name}: nothing hidden"
        );
        // Data words of inline writes, which the plain one shows.
        let inline = "\"LOAD_INLINE_DATA\"";
        let lines = ended.stdout.lines().filter(|l| l.contains(inline));
        ensure!(lines.clone().count() > 50, "{name}: no inline data");
    }
    Ok(())
}

/// Commands that show nothing of a recording say what it is.
pub fn no_recording() -> Result<()> {
    let output = Command::new(nvcap()?)
        .args(["record", "--record", "x", "-p", "1"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("name it with -o"), "{said}");
    Ok(())
}
