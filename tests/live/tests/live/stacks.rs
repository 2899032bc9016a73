//! `--stacks`: the frames of known functions, of native code and of Python, and what they cost.
//!
//! The software GPU is in step with nvcap: a process that ends before nvcap has taken note of its mappings has no functions with names, and
//! what it ends with is held for a moment only.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::in_step::Step;
use live::json_lines;
use live::programs::{Folder, Running, Until, nvcap, so_far, softgpu};
use serde_json::Value;

use crate::setup::{LIMIT, REPEATS, need_tracing};

/// The objects of a trace by nvcap with `options` of `command`, which is in step.
fn trace(
    options: &[&str],
    command: &[OsString],
    channels: &Path,
    folder: &Folder,
    step: &Step,
) -> Result<Vec<Value>> {
    let out = folder.file("trace.json");
    let mut args: Vec<OsString> = ["--json", "--force", "-o"].map(OsString::from).to_vec();
    args.push(out.clone().into());
    args.extend(options.iter().map(OsString::from));
    args.extend(["--channels".into(), channels.into(), "--".into()]);
    args.extend_from_slice(command);
    step.nvcap(args)?.end(LIMIT)?.expect_code(0)?;
    json_lines::of_file(&out)
}

fn softgpu_with(args: &[&str], step: &Step) -> Result<Vec<OsString>> {
    let mut command = vec![softgpu()?.into()];
    command.extend(step.with(args).into_iter().map(OsString::from));
    Ok(command)
}

/// Each submission and its frames; an error where one has none.
fn stacks(objects: &[Value]) -> Result<Vec<(&Value, Vec<&Value>)>> {
    let submissions = objects.iter().filter(|o| o["type"] == "submission");
    let stacks: Vec<_> = submissions
        .filter(|s| s["late"] == false)
        .map(|s| {
            let frames = s["stack"].as_array();
            let frames = frames.with_context(|| format!("no stack: {s}"))?;
            Ok((s, frames.iter().collect()))
        })
        .collect::<Result<_>>()?;
    ensure!(!stacks.is_empty(), "no submissions");
    Ok(stacks)
}

/// Number of submissions that have a stack, by the ledger: all but those that were caught up behind their doorbell. An error where not `all` were
/// seen, or each of them late.
fn with_stack(objects: &[Value], all: u64) -> Result<usize> {
    let ledger = objects.last().context("a ledger")?;
    let channels = ledger["channels"].as_array().context("channels")?;
    let sum = |of: &str| channels.iter().filter_map(|c| c[of].as_u64()).sum::<u64>();
    let (seen, late) = (sum("submissions"), sum("late"));
    ensure!(seen == all && late < all, "{seen} seen, {late} late");
    Ok((seen - late) as usize)
}

/// Names of frames that are not inlined, without what a compiler adds.
fn names(frames: &[&Value]) -> Vec<String> {
    let own = frames.iter().filter(|f| f["inlined"] != true);
    own.map(|f| f["symbol"].as_str().unwrap_or("?").to_owned())
        .collect()
}

/// The chain of calls that `softgpu --call-depth` makes, exactly, up to the thread's first function.
fn expect_calls(frames: &[&Value], depth: usize) -> Result<()> {
    let names = names(frames);
    let at = |name: &str| names.iter().position(|n| n.ends_with(name));
    let arrive = at("calls::arrive").with_context(|| format!("{names:?}"))?;
    // The function with the store, or the one that it was put into.
    ensure!(arrive <= 2, "{names:?}");
    let travels = &names[arrive + 1..arrive + 1 + depth];
    ensure!(
        travels.iter().all(|n| n.ends_with("calls::travel")),
        "{names:?}"
    );
    ensure!(
        names[arrive + 1 + depth].ends_with("calls::depart"),
        "{names:?}"
    );
    ensure!(
        names[arrive + 2 + depth].contains("softgpu::run"),
        "{names:?}"
    );
    Ok(())
}

/// Every submission of several threads has exactly the calls that led to it, to the thread's start.
pub fn known_functions() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let args = ["--submissions=300", "--threads=4", "--call-depth=7"];
    let step = Step::new(&folder)?;
    let objects = trace(
        &["--stacks", "--discover=tracepoint"],
        &softgpu_with(&args, &step)?,
        &folder.channels()?,
        &folder,
        &step,
    )?;
    let stacks = stacks(&objects)?;
    ensure!(
        stacks.len() == with_stack(&objects, 300)?,
        "{} stacks",
        stacks.len()
    );
    for (submission, frames) in &stacks {
        expect_calls(frames, 7)?;
        ensure!(submission["stack_end"] == "whole", "{submission}");
        let store = frames.first().context("a frame")?;
        let line = (store["file"].as_str(), store["line"].as_u64());
        ensure!(
            line.0.is_none_or(|f| f.ends_with("store.rs")) && line.0.is_some() == line.1.is_some(),
            "{store}"
        );
    }
    let ledger = objects.last().context("a ledger")?;
    ensure!(ledger["stacks"]["lost"] == 0, "{}", ledger["stacks"]);
    Ok(())
}

/// The program of the loop with tail calls takes them too.
pub fn without_bpf_loop() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let mut command: Vec<OsString> = vec!["NVCAP_NO_BPF_LOOP=1".into()];
    command.extend([step.variable(), nvcap()?.into()]);
    let out = folder.file("trace.json");
    command.extend(["--stacks", "--json", "-o"].map(OsString::from));
    command.push(out.clone().into());
    command.extend(["--channels".into(), folder.channels()?.into(), "--".into()]);
    let args = ["--submissions=50", "--call-depth=3"];
    command.extend(softgpu_with(&args, &step)?);
    Running::start(Path::new("env"), command)?
        .end(LIMIT)?
        .expect_code(0)?;
    for (_, frames) in stacks(&json_lines::of_file(&out)?)? {
        expect_calls(&frames, 3)?;
    }
    Ok(())
}

/// A stack that is deeper than what is taken of it says so; the innermost frames are right.
pub fn cut() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let objects = trace(
        &["--stacks", "--stack-size=4K"],
        &softgpu_with(&["--submissions=40", "--call-depth=60"], &step)?,
        &folder.channels()?,
        &folder,
        &step,
    )?;
    for (submission, frames) in stacks(&objects)? {
        ensure!(submission["stack_end"] == "cut", "{submission}");
        let names = names(&frames);
        let travels = names.iter().filter(|n| n.ends_with("calls::travel"));
        // 4096 bytes hold some ten frames of 300 to 400 bytes.
        ensure!((5..=14).contains(&travels.count()), "{names:?}");
    }
    Ok(())
}

/// A program whose file is gone, and an nvcap with the capabilities that the README names and no other: the calls are known all the same.
pub fn deleted_program() -> Result<()> {
    need_tracing()?;
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        return not_run("not root, who can give up capabilities");
    }
    let folder = Folder::new()?;
    let program = folder.file("program");
    // Another name of the same file, where it can be had: it is large.
    if std::fs::hard_link(softgpu()?, &program).is_err() {
        std::fs::copy(softgpu()?, &program)?;
    }
    let channels = folder.file("channels.txt");
    let few = ["--gpus=1", "--channels=4"];
    let mut args: Vec<OsString> = few.map(OsString::from).to_vec();
    args.extend(["--describe".into(), channels.clone().into()]);
    Running::start(&softgpu()?, args)?
        .end(LIMIT)?
        .expect_code(0)?;
    let more = ["--submissions=60", "--call-depth=6", "--before-wait=5"];
    let waits = ["--wait-stdin", "--hold-end"];
    let args = few.into_iter().chain(more).chain(waits);
    let mut gpu = Running::start(&program, args)?;
    gpu.wait_for_line("waiting")?;
    std::fs::remove_file(&program)?;
    let kept = "-all,+bpf,+perfmon,+sys_ptrace,+dac_read_search";
    let mut args: Vec<OsString> = ["--bounding-set", kept].map(OsString::from).to_vec();
    args.extend([nvcap()?.into(), "--stacks".into(), "--json".into()]);
    args.extend(["--channels".into(), channels.into()]);
    args.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = match Running::start(Path::new("setpriv"), args) {
        Ok(nvcap) => nvcap,
        Err(e) => return not_run(format!("there is no setpriv: {e}")),
    };
    nvcap.wait_until("attached", LIMIT, |n| n.stderr().contains("attached"))?;
    gpu.write(b"g")?;
    gpu.wait_for_line("held")?;
    // Its file is known no longer when it has ended.
    let shown = r#""type":"submission""#;
    nvcap.wait_until("shown", LIMIT, |n| n.stdout().matches(shown).count() >= 40)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    for (_, frames) in stacks(&json_lines::of(&ended.stdout)?)? {
        expect_calls(&frames, 6)?;
    }
    Ok(())
}

/// Without `--stacks` nothing tells of stacks.
pub fn none_unasked() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let command = softgpu_with(&["--submissions=40", "--call-depth=3"], &step)?;
    let objects = trace(&[], &command, &folder.channels()?, &folder, &step)?;
    ensure!(objects.iter().all(|o| o.get("stack").is_none()));
    ensure!(
        objects.last().is_some_and(|l| l["stacks"].is_null()),
        "{:?}",
        objects.last()
    );
    Ok(())
}

/// `nvcap stacks`: the sums are those of the submissions, live and of a file.
pub fn folded() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let (channels, out) = (folder.channels()?, folder.file("out.folded"));
    let step = Step::new(&folder)?;
    let options = ["--submissions=120", "--threads=3", "--call-depth=2"];
    let command = softgpu_with(&options, &step)?;
    let mut args: Vec<OsString> = vec!["stacks".into(), "-o".into(), out.clone().into()];
    args.extend(["--channels".into(), channels.clone().into(), "--".into()]);
    args.extend_from_slice(&command);
    step.nvcap(args)?.end(LIMIT)?.expect_code(0)?;
    let live = std::fs::read_to_string(&out)?;
    let step = Step::new(&folder)?;
    trace(&["--stacks"], &command, &channels, &folder, &step)?;
    let file = folder.file("trace.json");
    let args: [OsString; 2] = ["stacks".into(), file.into()];
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    ended.expect_code(0)?;
    for text in [&live, &ended.stdout] {
        let mut sum = 0;
        for line in text.lines() {
            let (stack, count) = line.rsplit_once(' ').context("a count")?;
            sum += count.parse::<u64>()?;
            ensure!(stack.starts_with("softgpu;"), "{line}");
            ensure!(
                stack.contains("[no stack]")
                    || stack.contains("calls::depart;softgpu::calls::travel;softgpu::calls::travel;softgpu::calls::arrive;"),
                "{line}"
            );
        }
        ensure!(sum == 120, "{sum} submissions:\n{text}");
    }
    Ok(())
}

/// `--stacks=N`: about one doorbell in N has a stack, all others are counted as passed over, and nothing is lost for that.
pub fn sampled() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let options = ["--submissions=2000", "--threads=4", "--call-depth=5"];
    let command = softgpu_with(&options, &step)?;
    let channels = folder.channels()?;
    let objects = trace(&["--stacks=10"], &command, &channels, &folder, &step)?;
    let submissions = objects.iter().filter(|o| o["type"] == "submission");
    let (with, without): (Vec<_>, Vec<_>) = submissions.partition(|s| s.get("stack").is_some());
    ensure!(with.len() + without.len() == 2000);
    let of_sample = with.len();
    for submission in with {
        let frames = submission["stack"].as_array().context("frames")?;
        expect_calls(&frames.iter().collect::<Vec<_>>(), 5)?;
    }
    let ledger = objects.last().context("a ledger")?;
    let stacks = &ledger["stacks"];
    let [taken, lost, every, passed] =
        ["taken", "lost", "every", "passed"].map(|name| stacks[name].as_u64());
    ensure!((lost, every) == (Some(0), Some(10)), "{stacks}");
    let (taken, passed) = (taken.context("a number")?, passed.context("a number")?);
    // Some doorbells find their work done by another's. Of those that do not a tenth has stacks: six deviations at most from that.
    let doorbells = (taken + passed) as f64;
    ensure!(
        doorbells <= 2000.0
            && (taken as f64 - doorbells / 10.0).abs() <= 6.0 * (doorbells * 0.09).sqrt(),
        "{stacks}"
    );
    ensure!(of_sample as u64 <= taken, "{of_sample}: {stacks}");
    ensure!(ledger["complete"] == true, "{ledger}");
    // Sums are of the sample alone.
    let out = folder.file("out.folded");
    let mut args: Vec<OsString> = ["stacks", "--stacks=10", "-o"].map(OsString::from).to_vec();
    args.extend([out.clone().into(), "--channels".into()]);
    args.extend([channels.into(), "--".into()]);
    args.extend(command);
    let ended = Step::new(&folder)?.nvcap(args)?.end(LIMIT)?;
    ended.expect_code(0)?;
    ensure!(
        ended.stderr.contains("one in 10 doorbells"),
        "{}",
        ended.stderr
    );
    let text = std::fs::read_to_string(&out)?;
    ensure!(
        !text.contains("[no stack]") && text.contains("calls::depart;"),
        "{text}"
    );
    Ok(())
}

/// Filters by any frame's function choose the submissions from there, and say what they need.
pub fn filtered() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let channels = folder.channels()?;
    for (filter, all) in [("frame~*calls::depart", true), ("frame~*no_such*", false)] {
        let step = Step::new(&folder)?;
        let command = softgpu_with(&["--submissions=100", "--call-depth=4"], &step)?;
        let options = ["--stacks", "-e", filter];
        let objects = trace(&options, &command, &channels, &folder, &step)?;
        let submissions = objects.iter().filter(|o| o["type"] == "submission").count();
        let expected = if all { with_stack(&objects, 100)? } else { 0 };
        ensure!(
            submissions == expected,
            "{filter}: {submissions} of {expected} submissions"
        );
    }
    for how in ["trap", "observe"] {
        let mut args: Vec<OsString> = vec![format!("--how={how}").into()];
        if how == "observe" {
            args.push("--stacks".into());
        }
        args.extend(["-e", "api=cuLaunchKernel", "--", "true"].map(OsString::from));
        let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        ended.expect_code(2)?;
        ensure!(ended.stderr.contains("add --stacks"), "{}", ended.stderr);
    }
    Ok(())
}

/// Launches on top of folded stacks have their kernels' names, but for the first ones where the search for them took long: all of a run, where it
/// got no processor.
pub fn leaf_kernels() -> Result<()> {
    need_tracing()?;
    let begun = Instant::now();
    loop {
        let text = leaves()?;
        if text.contains(";launch kernel ") {
            return Ok(());
        }
        ensure!(begun.elapsed() < REPEATS, "guard: no name:\n{text}");
    }
}

/// Folds stacks with launches on top, once.
fn leaves() -> Result<String> {
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let out = folder.file("out.folded");
    let mut args: Vec<OsString> = ["stacks", "--leaf", "--by=launches", "-o"]
        .map(OsString::from)
        .to_vec();
    args.extend([out.clone().into(), "--channels".into()]);
    args.extend([folder.channels()?.into(), "--".into()]);
    let options = [
        "--kernels",
        "--submissions=300",
        "--sleep-us=1500",
        "--call-depth=2",
        "--leave-mapped",
    ];
    args.extend(softgpu_with(&options, &step)?);
    step.nvcap(args)?.end(LIMIT)?.expect_code(0)?;
    let text = std::fs::read_to_string(&out)?;
    let mut all = 0;
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').context("a count")?;
        all += count.parse::<u64>()?;
        if !stack.ends_with(";launch kernel") {
            // A launch whose name was not found in time has its program's address.
            let last = stack.rsplit(';').next().unwrap_or_default();
            ensure!(
                last == "launch" || last.starts_with("launch prog 0x"),
                "{line}"
            );
        }
    }
    ensure!(all > 20, "{all}:\n{text}");
    Ok(text)
}

/// Pythons of this machine by their minor versions.
fn pythons() -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for minor in 10..=14 {
        let name = format!("python3.{minor}");
        let from_path = std::env::var_os("PATH").into_iter();
        let folders = from_path.flat_map(|p| std::env::split_paths(&p).collect::<Vec<_>>());
        let own = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv/versions"));
        let versions = own
            .and_then(|own| own.read_dir().ok())
            .into_iter()
            .flatten();
        let versions = versions.flatten().map(|v| v.path().join("bin"));
        // A shim would only find out which Python to start.
        let candidates = versions.chain(folders).filter(|f| !f.ends_with("shims"));
        let program = candidates.map(|f| f.join(&name)).find(|p| p.is_file());
        found.extend(program.map(|p| (minor, p)));
    }
    found
}

/// A Python program's submissions have its functions, files and lines, in the place of the interpreter's frames. It goes on until some have.
pub fn python() -> Result<()> {
    need_tracing()?;
    let pythons = pythons();
    if pythons.is_empty() {
        return not_run("no Python from 3.10 to 3.14 here");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ring.py");
    let source = std::fs::read_to_string(&script)?;
    let rings = source.lines().position(|l| l.contains("# RINGS"));
    let rings = rings.context("the line that rings")? + 1;
    for (minor, python) in pythons {
        let folder = Folder::new()?;
        let channels = folder.file("ring.txt");
        std::fs::write(
            &channels,
            "doorbell addr=0x210010090 gpu=0\n\
             channel gpu=0 token=0xa class=0xc86f engine=0x1 ring=0x200600000 entries=1024 userd=0x200602000\n",
        )?;
        let (out, hold) = (folder.file("trace.json"), Until::new(&folder, "hold")?);
        let mut args: Vec<OsString> = ["--stacks", "--json", "-o"].map(OsString::from).to_vec();
        args.extend([out.clone().into(), "--channels".into(), channels.into()]);
        args.extend(["--".into(), python.into(), script.clone().into()]);
        args.extend(["40", "2"].map(OsString::from));
        args.push(folder.file("hold").into());
        let mut nvcap = Running::start(&nvcap()?, args)?;
        nvcap.wait_until("showing Python's frames", LIMIT, |_| {
            so_far(&out, "\"python\":true") > 0
        })?;
        hold.release()?;
        nvcap.end(LIMIT)?.expect_code(0)?;
        let objects = json_lines::of_file(&out)?;
        let (mut whole, mut all) = (0, 0);
        let mut known = BTreeSet::new();
        for (submission, frames) in stacks(&objects)? {
            all += 1;
            let python: Vec<&&Value> = frames.iter().filter(|f| f["python"] == true).collect();
            // Before nvcap knew of the thread, or of Python, its frames are those of the interpreter; not afterwards.
            let thread = submission["tid"].as_u64();
            if python.is_empty() {
                ensure!(!known.contains(&thread), "3.{minor}: {submission}");
                continue;
            }
            known.insert(thread);
            whole += 1;
            let names: Vec<&str> = python.iter().filter_map(|f| f["symbol"].as_str()).collect();
            // Qualified names are of 3.11 and later.
            let class = if minor > 10 { "Trainer." } else { "" };
            let local = if minor > 10 {
                "Trainer.step.<locals>."
            } else {
                ""
            };
            let within = if minor > 10 { "train.<locals>." } else { "" };
            let known = [
                format!("{class}ring"),
                format!("{local}<lambda>"),
                format!("{class}step"),
                format!("{within}<lambda>"),
                "train".to_owned(),
            ];
            ensure!(
                names.len() > 5 && names[..5] == known,
                "3.{minor}: {names:?}"
            );
            let outermost = names.last().copied().unwrap_or("");
            ensure!(
                outermost == "<module>" || outermost.ends_with("_bootstrap"),
                "3.{minor}: {names:?}"
            );
            ensure!(python[0]["line"] == rings, "3.{minor}: {}", python[0]);
            ensure!(
                python[0]["file"]
                    .as_str()
                    .is_some_and(|f| f.ends_with("ring.py")),
                "{}",
                python[0]
            );
            let native: Vec<&str> = frames.iter().filter_map(|f| f["symbol"].as_str()).collect();
            ensure!(
                !native
                    .iter()
                    .any(|n| n.starts_with("_PyEval_EvalFrameDefault")),
                "3.{minor}: {native:?}"
            );
        }
        println!("    Python 3.{minor}: {whole} of {all} stacks with its frames");
        ensure!(whole > 0, "3.{minor}: none of {all} has Python frames");
    }
    Ok(())
}
