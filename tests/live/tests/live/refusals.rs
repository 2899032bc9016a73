//! Wrong use: each is one line that says what failed and what to do, with a status other than 0.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::perf::Breakpoint;
use live::programs::{Ended, Folder, GUARD, Running, nvcap, softgpu, state};

use crate::attach::waiting;
use crate::setup::{LIMIT, need_breakpoints, need_tracing, plan};

pub const NOBODY: u32 = 65534;

/// nvcap must have ended with this status, after one line on standard error with all of `words`.
pub fn refused(ended: &Ended, code: i32, words: &[&str]) -> Result<()> {
    ended.expect_code(code)?;
    let lines: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|l| !l.trim().is_empty())
        .collect();
    ensure!(
        lines.len() == 1,
        "{} lines instead of one:\n{}",
        lines.len(),
        ended.stderr
    );
    for word in words {
        ensure!(
            lines[0].to_lowercase().contains(&word.to_lowercase()),
            "no {word:?} in: {}",
            lines[0]
        );
    }
    Ok(())
}

fn run(args: Vec<OsString>) -> Result<Ended> {
    Running::start(&nvcap()?, args)?.end(Duration::from_secs(60))
}

/// Runs a copy of nvcap that everyone may execute, as nobody.
pub fn run_as_nobody(folder: &Folder, args: Vec<OsString>) -> Result<Ended> {
    let copy = copy_for_all(folder, &nvcap()?, "nvcap")?;
    Running::start_as(&copy, args, Some(NOBODY))?.end(Duration::from_secs(60))
}

/// A copy of a program, under this name, that everyone may execute.
pub fn copy_for_all(folder: &Folder, program: &Path, name: &str) -> Result<PathBuf> {
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        return not_run("not root, so no other user can be taken");
    }
    let copy = folder.file(name);
    std::fs::copy(program, &copy)?;
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}

pub fn not_root() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let channels = folder.channels()?;
    let ended = run_as_nobody(
        &folder,
        vec![
            "--how=trap".into(),
            "--channels".into(),
            channels.into(),
            "--".into(),
            "/bin/true".into(),
        ],
    )?;
    refused(&ended, 1, &["sudo"])
}

/// PID of another user, without root.
pub fn not_root_other_process() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let pid = std::process::id().to_string();
    let ended = run_as_nobody(&folder, vec!["-p".into(), pid.into()])?;
    refused(&ended, 1, &["sudo"])
}

pub fn process_gone() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let mut child = std::process::Command::new("/bin/true").spawn()?;
    let pid = child.id();
    child.wait()?;
    let ended = run(vec![
        "--channels".into(),
        folder.channels()?.into(),
        "-p".into(),
        pid.to_string().into(),
    ])?;
    refused(&ended, 1, &["process", &pid.to_string()])
}

/// All four debug registers of the target's thread are in use before nvcap attaches.
pub fn no_debug_register() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let gpu = waiting(&plan(41, 40), &["--threads=1"])?;
    let taken = Breakpoint::take_all(gpu.pid()).context("the test's own breakpoints")?;
    let ended = run(vec![
        "--channels".into(),
        folder.channels()?.into(),
        "-p".into(),
        gpu.pid().to_string().into(),
    ])?;
    drop(taken);
    refused(&ended, 1, &["debug register"])
}

pub fn doorbell_not_mapped() -> Result<()> {
    need_tracing()?;
    let gpu = waiting(&plan(42, 40), &["--threads=1"])?;
    let folder = Folder::new()?;
    let ended = run(vec![
        "--channels".into(),
        folder.channels()?.into(),
        "--doorbell".into(),
        "0x1090".into(),
        "-p".into(),
        gpu.pid().to_string().into(),
    ])?;
    refused(&ended, 1, &["0x1090", "mapped"])
}

/// The message names the file and the line.
pub fn bad_channels_file() -> Result<()> {
    need_breakpoints()?;
    let folder = Folder::new()?;
    for (text, line) in [
        (
            "doorbell addr=0x1090\nchannel token=zzz ring=0x1000 entries=1024 userd=0x2000\n",
            "2",
        ),
        ("# fine\n\nchanel token=1\n", "3"),
        (
            "channel token=1 ring=0x1000 entries=1000 userd=0x2000\n",
            "1",
        ),
        ("channel token=1 ring=0x1000 entries=1024\n", "1"),
        ("doorbell gpu=0\n", "1"),
    ] {
        let file = folder.file("bad.txt");
        std::fs::write(&file, text)?;
        let ended = run(vec![
            "--channels".into(),
            file.clone().into(),
            "--".into(),
            "/bin/true".into(),
        ])?;
        refused(&ended, 1, &["bad.txt", line]).with_context(|| format!("file:\n{text}"))?;
    }
    Ok(())
}

pub fn missing_channels_file() -> Result<()> {
    need_breakpoints()?;
    let ended = run(vec![
        "--channels".into(),
        "/nonexistent/channels.txt".into(),
        "--".into(),
        "/bin/true".into(),
    ])?;
    refused(&ended, 1, &["/nonexistent/channels.txt"])
}

/// No NVIDIA driver, and no flag that says where the doorbells are: the trap is refused, and by default nvcap observes.
pub fn no_driver() -> Result<()> {
    need_tracing()?;
    if std::path::Path::new("/dev/nvidiactl").exists() {
        return not_run("this machine has an NVIDIA driver");
    }
    let ended = run(["--how", "trap", "--", "/bin/true"]
        .map(Into::into)
        .to_vec())?;
    refused(&ended, 1, &["driver", "--how observe"])?;
    let ended = run(vec!["--".into(), "/bin/true".into()])?;
    ended.expect_code(4)?;
    let said = "observing without a trap, because: the NVIDIA driver is not loaded";
    ensure!(ended.stderr.contains(said), "{ended:?}");
    Ok(())
}

/// Neither a command nor a PID: a usage error.
pub fn no_target() -> Result<()> {
    let ended = run(vec!["--json".into()])?;
    ended.expect_code(2)
}

pub fn missing_command() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let ended = run(vec![
        "--channels".into(),
        folder.channels()?.into(),
        "--".into(),
        "/nonexistent/program".into(),
    ])?;
    refused(&ended, 1, &["/nonexistent/program"])?;
    ensure!(softgpu().is_ok());
    Ok(())
}

/// A thread of the kernel, a process that has ended and is listed still, and the first process where nobody may look into it: each command
/// says what it is and what to name instead, and never to become root.
pub fn no_program_that_runs() -> Result<()> {
    let mut zombie = Running::start(Path::new("true"), [""; 0])?;
    let id = zombie.pid();
    let mut kinds = Vec::new();
    let begun = Instant::now();
    while state(id) != Some('Z') {
        ensure!(begun.elapsed() < GUARD, "guard: it has not ended");
        std::thread::sleep(Duration::from_millis(2));
    }
    kinds.push((id, "it has ended: a zombie (true)"));
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    if name(2).is_ok_and(|name| name.trim() == "kthreadd") {
        kinds.push((2, "it is a thread of the kernel (kthreadd)"));
    }
    if std::fs::File::open("/proc/1/mem").is_err() {
        kinds.push((1, "it is the first process of this machine or container ("));
    }
    for (pid, what) in kinds {
        let pid = pid.to_string();
        for words in [
            &["--how=trap"][..],
            &["--how=observe"],
            &["counts"],
            &["dump"],
            &["maps"],
            &["watch", "--once"],
        ] {
            let args = [words, &["-p", &pid]].concat();
            let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
            ended.expect_code(1)?;
            let said = &ended.stderr;
            // Without the rights or the driver that a trap needs, a trace says so first where a process may not be looked into.
            let is_of_trap = words == ["--how=trap"] && said.starts_with("nvcap: tracing: ");
            ensure!(
                is_of_trap && pid == "1" || said.contains(what) && said.contains("; name "),
                "{words:?} of {pid}: {said}"
            );
            ensure!(said.lines().count() == 1, "{said}");
        }
    }
    zombie.runs();
    Ok(())
}
