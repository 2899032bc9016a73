//! `nvcap watch`: a process that hangs is dumped, another is not.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use live::programs::{Folder, Running, Until, nvcap, softgpu};
use nvcap_show::output::dump::Status;
use serde_json::Value;
use softgpu::hang::FAULTING;

use super::dump::{plan, start};
use super::recordings;

const LIMIT: Duration = Duration::from_secs(60);

fn dumps(folder: &Folder, extension: &str) -> Result<Vec<PathBuf>> {
    let all = std::fs::read_dir(folder.file("."))?;
    let mut found = Vec::new();
    for entry in all {
        let path = entry?.path();
        let dump = path
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("nvcap-"));
        if dump && path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Dumped once, in two forms that only their owner can read; the command gets the paths, and its failure is told.
pub fn a_hang_is_dumped() -> Result<()> {
    let mut gpu = start(
        &plan(90, 8, 4000),
        &["--hang", "spin", "--linger-ms=600000"],
    )?;
    gpu.wait_until("hung", LIMIT, |r| r.stdout().contains("hung "))?;
    let folder = Folder::new()?;
    let dir = folder.file(".");
    let command = format!(
        "cp \"$NVCAP_DUMP\" '{0}/copy.txt'; cp \"$NVCAP_DUMP_JSON\" '{0}/copy.json'; echo $NVCAP_PID $NVCAP_VERDICT >'{0}/said'; exit 3",
        dir.display()
    );
    let args = |once: &str| -> Vec<String> {
        let dir = dir.display().to_string();
        let pid = gpu.pid().to_string();
        [
            "watch",
            "-p",
            &pid,
            "--hang=1s",
            "--dir",
            &dir,
            "--exec",
            &command,
            once,
        ]
        .map(str::to_owned)
        .to_vec()
    };
    let ended = Running::start(&nvcap()?, args("--once"))?.end(LIMIT)?;
    ended.expect_code(Status::Hang.code().into())?;
    let said = &ended.stdout;
    ensure!(
        said.contains(": HANG: channel ")
            && said.contains(": a kernel has not ended: ")
            && said.contains(": dumped to"),
        "{said}"
    );
    ensure!(ended.stderr.contains("--exec failed"), "{}", ended.stderr);
    for form in ["txt", "json"] {
        let [file] = &dumps(&folder, form)?[..] else {
            anyhow::bail!("not one dump of the form {form}");
        };
        ensure!(file.metadata()?.permissions().mode() & 0o777 == 0o600);
        let copied = std::fs::read(folder.file(&format!("copy.{form}")))?;
        ensure!(std::fs::read(file)? == copied, "not the dump's path");
    }
    let said = std::fs::read_to_string(folder.file("said"))?;
    ensure!(said == format!("{} hang\n", gpu.pid()), "{said}");
    let json = std::fs::read_to_string(folder.file("copy.json"))?;
    let look: Value = serde_json::from_str(&json)?;
    ensure!(look["processes"][0]["verdict"] == "hang", "{json}");
    ensure!(look["moved"]["ns"].as_u64().context("moved")? >= 1_000_000_000);
    // Without --once: dumped once, however long it hangs, until the process ends.
    let mut watch = Running::start(&nvcap()?, args("--last=20"))?;
    watch.wait_until("a second dump", LIMIT, |r| r.stdout().contains("dumped"))?;
    std::thread::sleep(Duration::from_millis(2500));
    gpu.signal(libc::SIGKILL)?;
    drop(gpu);
    let ended = watch.end(LIMIT)?;
    ended.expect_code(0)?;
    ensure!(
        ended.stdout.matches("dumped").count() == 1,
        "{}",
        ended.stdout
    );
    Ok(())
}

/// A process that faults when it is told to, and stays until it is let go.
pub(super) fn faulting(stay: &Until) -> Result<Running> {
    let program = [
        "--files",
        "--gpus=1",
        "--channels=3",
        "--submissions=200",
        "--kernels",
        "--leave-mapped",
        "--fault=31",
        "--wait-stdin",
        "--before-wait=7",
    ];
    let words = program.into_iter().map(str::to_owned);
    let mut gpu = Running::start(&softgpu()?, words.chain([stay.stay()]))?;
    gpu.wait_for_line("waiting")?;
    Ok(gpu)
}

/// A channel that the driver stops is dumped at once, with the kernel's name; a hang is not waited for.
pub fn a_fault_is_dumped() -> Result<()> {
    let folder = Folder::new()?;
    let stay = Until::new(&folder, "stay")?;
    let mut gpu = faulting(&stay)?;
    let dir = folder.file(".").display().to_string();
    let pid = gpu.pid().to_string();
    let command = format!("echo $NVCAP_PID $NVCAP_VERDICT $NVCAP_XID >'{dir}/said'");
    let args = ["watch", "-p", &pid, "--fault", "--once", "--dir", &dir];
    let mut watch = Running::start(&nvcap()?, args.into_iter().chain(["--exec", &command]))?;
    watch.wait_until("watching", LIMIT, |r| {
        r.stderr().contains("watching 1 process")
    })?;
    gpu.write(b"g")?;
    let ended = watch.end(LIMIT)?;
    stay.release()?;
    gpu.end(LIMIT)?.expect_code(0)?;
    ended.expect_code(Status::Stopped.code().into())?;
    let said = std::fs::read_to_string(folder.file("said"))?;
    ensure!(said == format!("{pid} error 31\n"), "{said}");
    let line = ended.stdout.trim_end();
    let begin = format!("process {pid} softgpu: ERROR: Xid 31 in ");
    ensure!(line.starts_with(&begin), "{line}");
    let [file] = &dumps(&folder, "json")?[..] else {
        bail!("not one dump: {line}");
    };
    let look: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    ensure!(look["processes"][0]["verdict"] == "error", "{look}");
    let kernel = format!("void kernel<{FAULTING}>(float*)");
    let is_named = |c: &Value| c["running"]["operation"]["kernel"] == *kernel;
    let channels = look["processes"][0]["channels"].as_array();
    ensure!(channels.context("channels")?.iter().any(is_named), "{look}");
    ensure!(line.contains(&kernel), "{line}");
    ensure!(line.contains(": dumped to "), "{line}");
    Ok(())
}

/// Processes that fault together are all dumped, each once, into a folder whose name is no UTF-8; each line is JSON.
pub fn faults_at_once() -> Result<()> {
    use std::os::unix::ffi::OsStringExt as _;

    let folder = Folder::new()?;
    let stay = Until::new(&folder, "stay")?;
    let mut all = (0..3)
        .map(|_| faulting(&stay))
        .collect::<Result<Vec<_>>>()?;
    let mut dir = folder.file("dumps").into_os_string().into_vec();
    dir.push(0xff);
    let dir = std::ffi::OsString::from_vec(dir);
    std::fs::create_dir(&dir)?;
    let mut args: Vec<std::ffi::OsString> = ["watch", "--fault", "--json", "--no-stacks", "--dir"]
        .map(Into::into)
        .to_vec();
    args.push(dir.clone());
    for gpu in &all {
        args.extend(["-p".into(), gpu.pid().to_string().into()]);
    }
    let mut watch = Running::start(&nvcap()?, args)?;
    watch.wait_until("watching", LIMIT, |r| {
        r.stderr().contains("watching 3 processes")
    })?;
    for gpu in &mut all {
        gpu.write(b"g")?;
    }
    watch.wait_until("three errors", LIMIT, |r| r.stdout().lines().count() >= 3)?;
    stay.release()?;
    let pids: Vec<u32> = all.iter().map(Running::pid).collect();
    for gpu in all {
        gpu.end(LIMIT)?.expect_code(0)?;
    }
    let ended = watch.end(LIMIT)?;
    ended.expect_code(0)?;
    let mut told = Vec::new();
    for line in ended.stdout.lines() {
        let said: Value = serde_json::from_str(line)?;
        let is_right = said["xid"] == 31 && said["dump"].is_string() && said["name"] == "softgpu";
        ensure!(is_right, "{line}");
        told.push(said["pid"].as_u64().context("pid")? as u32);
    }
    told.sort_unstable();
    let mut pids = pids;
    pids.sort_unstable();
    ensure!(told == pids, "{told:?} instead of {pids:?}");
    ensure!(std::fs::read_dir(&dir)?.count() == 6, "not two files each");
    Ok(())
}

/// A process that works, or has done all its work, is not dumped.
pub fn nothing_to_dump() -> Result<()> {
    let folder = Folder::new()?;
    let stay = Until::new(&folder, "stay")?;
    let mut gpu = start(&plan(91, 8, 400), &[&stay.stay()])?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let dir = folder.file(".").display().to_string();
    let pid = gpu.pid().to_string();
    let mut watch = Running::start(
        &nvcap()?,
        ["watch", "-p", &pid, "--hang=0.5", "--dir", &dir],
    )?;
    watch.wait_until("watching", LIMIT, |r| {
        r.stderr().contains("watching 1 process")
    })?;
    // Several times as long as a hang would take.
    std::thread::sleep(Duration::from_millis(2000));
    stay.release()?;
    gpu.end(LIMIT)?;
    let ended = watch.end(LIMIT)?;
    ended.expect_code(0)?;
    ensure!(ended.stdout.is_empty(), "{}", ended.stdout);
    // Where no kernel log tells of errors, none is told at an end.
    let no_log = ended.stderr.contains("nvcap: note: ");
    let unread = ended.stderr.contains("an error at its end is not told");
    ensure!(no_log == unread, "{}", ended.stderr);
    ensure!(dumps(&folder, "txt")?.is_empty());
    Ok(())
}

/// Commands that cannot watch say so at once.
pub fn refused() -> Result<()> {
    for (args, code, said) in [
        (&["watch"][..], 2, "nothing to watch"),
        (&["watch", "-p", "4194303"], 1, "no such process"),
        (&["watch", "-a", "--dir", "/nowhere"], 1, "it is no folder"),
        (&["watch", "-a", "--hang", "soon"], 2, "is no time"),
    ] {
        let ended = Running::start(&nvcap()?, args.iter().copied())?.end(LIMIT)?;
        ended.expect_code(code)?;
        ensure!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
    }
    Ok(())
}

/// A hang seals the recording that led to it, and the watch that says so goes on.
pub fn a_hang_seals() -> Result<()> {
    let mut gpu = start(
        &plan(91, 8, 4000),
        &["--hang", "spin", "--linger-ms=600000"],
    )?;
    gpu.wait_until("hung", LIMIT, |r| r.stdout().contains("hung "))?;
    let folder = Folder::new()?;
    let (file, dir) = (folder.file("run.pcapng"), folder.file("."));
    let pid = gpu.pid().to_string();
    let (file, dir) = (file.display().to_string(), dir.display().to_string());
    let args = [
        "record",
        "--how=observe",
        "-p",
        &pid,
        "--rotate=1M",
        "-o",
        &file,
    ];
    let mut record = Running::start(&nvcap()?, args)?;
    record.wait_until("recording", LIMIT, |r| r.stderr().contains("attached"))?;
    // As the recipe's pkill does: the signal comes to every nvcap, the one that sends it too.
    let command = format!("kill -USR2 {} $PPID; echo sent >'{dir}/said'", record.pid());
    let args = [
        "watch",
        "-p",
        &pid,
        "--hang=1s",
        "--dir",
        &dir,
        "--exec",
        &command,
    ];
    let mut watch = Running::start(&nvcap()?, args)?;
    watch.wait_until("a dump", LIMIT, |r| r.stdout().contains("dumped"))?;
    record.wait_until("sealed", LIMIT, |r| r.stderr().contains("sealed: "))?;
    let said = folder.file("said");
    watch.wait_until("the command", LIMIT, |_| said.exists())?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(
        watch.runs() && record.runs(),
        "the signal ended one of them"
    );
    // What was sealed is whole, and knows the process that hangs.
    let sealed = recordings::files(&folder.file("."))?;
    let sealed = sealed
        .iter()
        .find(|f| f.to_string_lossy().contains(".sealed."));
    let sealed = sealed.context("no sealed file")?;
    let decoded = recordings::decode(sealed, &["--json"])?;
    ensure!(
        matches!(decoded.code()?, 0 | 3) && !decoded.stdout.contains("has no end"),
        "{}{}",
        decoded.stdout,
        decoded.stderr
    );
    let channels = Running::start(&nvcap()?, ["channels", &sealed.display().to_string()])?;
    let channels = channels.end(LIMIT)?;
    ensure!(channels.stdout.contains(&pid), "{}", channels.stdout);
    gpu.signal(libc::SIGKILL)?;
    drop(gpu);
    watch.end(LIMIT)?.expect_code(0)?;
    record.end(LIMIT)?;
    Ok(())
}
