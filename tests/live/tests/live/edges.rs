//! Exhausted or stuck resources outside nvcap: the ring buffer is full, nobody reads the output, there is no room for more.
//! nvcap says so and ends in time, with its ledger.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use live::in_step::Step;
use live::programs::{Ended, Folder, Running, nvcap, softgpu, state};

use crate::attach::{attach, waiting};
use crate::setup::{LIMIT, need_tracing, plan, plan_args};

/// Time that nvcap is given to notice that all traced processes have ended: a guard, as each.
const NOTICED: Duration = LIMIT;
/// Enough threads to fill the rest of the ring buffer with their records.
const THREADS: [&str; 2] = ["--threads=4", "--churn=3"];

/// Checks that nvcap ended by itself, and reported dropped records of the driver.
fn dropped(ended: &Ended) -> Result<()> {
    ended.expect_code(3)?;
    let said = format!("{}{}", ended.stdout, ended.stderr);
    ensure!(
        said.contains("driver (ioctls, mappings, processes)"),
        "nothing of dropped records: {said}"
    );
    Ok(())
}

/// The end of an attached process did not fit into the ring buffer.
pub fn end_not_told() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(&plan(61, 3000), &THREADS)?;
    let flags: Vec<OsString> = vec!["--buffer=64K".into()];
    let mut nvcap = attach(gpu.pid(), &trace, folder.channels()?, &flags)?;
    nvcap.stop()?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    nvcap.signal(libc::SIGCONT)?;
    let mut ended = nvcap.end(NOTICED)?;
    ended.stdout = std::fs::read_to_string(&trace)?;
    dropped(&ended)
}

/// Nor did the end of the command, whose status nvcap has.
pub fn command_s_end_not_told() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let mut args: Vec<OsString> = vec!["-q".into(), "--buffer=64K".into()];
    args.extend(["--channels".into(), folder.channels()?.into()]);
    args.extend(["--".into(), softgpu()?.into()]);
    args.extend(plan_args(&plan(62, 3000)).into_iter().map(OsString::from));
    args.extend(THREADS.map(OsString::from));
    args.push("--wait-stdin".into());
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_for_line("waiting")?;
    nvcap.stop()?;
    nvcap.write(b"g")?;
    nvcap.wait_until_said("done image=0", LIMIT)?;
    let said = nvcap.stdout();
    let pid = said
        .lines()
        .find_map(|l| l.strip_prefix("pid ")?.parse().ok());
    let pid = pid.context("no pid")?;
    // There it is held for nvcap, which may be told later.
    nvcap.wait_until("the command's end", LIMIT, |_| {
        matches!(state(pid), None | Some('Z' | 't'))
    })?;
    nvcap.signal(libc::SIGCONT)?;
    dropped(&nvcap.end(NOTICED)?)
}

/// nvcap stands still for a while, in which its buffer fills: it says that it does not keep up while the trace goes on, and how much it
/// was in the ledger.
pub fn lag_is_told() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut gpu = waiting(&plan(63, 3000), &["--linger-ms=900000"])?;
    let flags: Vec<OsString> = vec!["--buffer=64K".into()];
    let mut nvcap = attach(gpu.pid(), &trace, folder.channels()?, &flags)?;
    nvcap.stop()?;
    gpu.write(b"g")?;
    gpu.wait_until_said("done image=0", LIMIT)?;
    nvcap.signal(libc::SIGCONT)?;
    // The process is still there.
    let lag = "the trace does not keep up: doorbells that found its buffer full";
    nvcap.wait_until("saying so", NOTICED, |r| r.stderr().contains(lag))?;
    nvcap.signal(libc::SIGINT)?;
    let ended = nvcap.end(NOTICED)?;
    ensure!(ended.stderr.matches(lag).count() == 1, "{}", ended.stderr);
    let text = std::fs::read_to_string(&trace)?;
    let ledger: serde_json::Value = serde_json::from_str(text.lines().last().unwrap_or_default())?;
    ensure!(ledger["type"] == "ledger", "{ledger}");
    let number = |v: &serde_json::Value| v.as_u64().unwrap_or(0);
    let trapped = &ledger["trapped"];
    let (deferred, hits) = (number(&trapped["deferred"]), number(&trapped["hits"]));
    // Once for each doorbell, also where it looks at many channels.
    ensure!((1..=hits).contains(&deferred), "{ledger}");
    ensure!(number(&ledger["late"]) > 0, "{ledger}");
    Ok(())
}

/// An nvcap attached to `gpu` whose standard output nobody reads; and its standard error from then on.
fn unread(gpu: &Running, folder: &Folder) -> Result<(Child, JoinHandle<String>)> {
    let mut nvcap = Command::new(nvcap()?)
        .args(["-vvv", "-p", &gpu.pid().to_string(), "--channels"])
        .arg(folder.channels()?)
        .env("NVCAP_DEVICES_BY_NAME", "1")
        .env("NVCAP_STORE_CACHE", "")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(nvcap.stderr.take().context("no standard error")?);
    let mut first = String::new();
    lines.read_line(&mut first)?;
    ensure!(first.contains("attached"), "{first}");
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = lines.read_to_string(&mut said);
        said
    });
    Ok((nvcap, said))
}

/// Bytes that wait in a pipe where nobody reads it: less than it holds, for its pages need not be full, and much less than is to be written.
const PIPE: i32 = 16 << 10;

/// Bytes of its standard output that nobody has read.
fn waiting_to_be_read(nvcap: &Child) -> i32 {
    let mut bytes = 0;
    if let Some(pipe) = &nvcap.stdout {
        // SAFETY: writes one int.
        unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut bytes) };
    }
    bytes
}

/// Standard output is not read. The program is not held up, nvcap uses no more memory than documented, one signal ends it whether or not the program
/// still runs, and it reports what it did not write.
pub fn output_not_read() -> Result<()> {
    need_tracing()?;
    for (signal, still) in [
        (libc::SIGINT, "--linger-ms=0"),
        (libc::SIGTERM, "--hold-end"),
    ] {
        let folder = Folder::new()?;
        let mut gpu = waiting(&plan(63, 5000), &["--threads=2", still])?;
        let (mut nvcap, said) = unread(&gpu, &folder)?;
        gpu.write(b"g")?;
        gpu.wait_until_said("done image=0", LIMIT)?;
        let start = Instant::now();
        while waiting_to_be_read(&nvcap) < PIPE && nvcap.try_wait()?.is_none() {
            ensure!(
                start.elapsed() < LIMIT,
                "{LIMIT:?}, the guard, ended this test"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        ensure!(
            nvcap.try_wait()?.is_none(),
            "it ended while its output was not read"
        );
        // SAFETY: the process is our child and not reaped yet, so its id is its own.
        unsafe { libc::kill(nvcap.id() as libc::pid_t, signal) };
        let start = Instant::now();
        let status = loop {
            if let Some(status) = nvcap.try_wait()? {
                break status;
            }
            if start.elapsed() > LIMIT {
                nvcap.kill()?;
                nvcap.wait()?;
                bail!("{still}: signal {signal} did not end it within {LIMIT:?}, the guard");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = said.join().unwrap_or_default();
        ensure!(status.code() == Some(3), "{still}: {status}: {said}");
        for words in ["is not read", "captured but not written out", "INCOMPLETE"] {
            ensure!(said.contains(words), "{still}: no {words:?} in: {said}");
        }
        let ended = gpu.end(LIMIT)?;
        ended.expect_code(0)?;
    }
    Ok(())
}

/// More channels during a trace than there is room for at once: ended programs free their places.
pub fn more_channels_than_room() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let file = folder.channels()?;
    let text = std::fs::read_to_string(&file)?;
    let each = text.lines().filter(|l| l.starts_with("channel")).count();
    let programs = 1 + 8192 / each + 50;
    let gpu = softgpu()?;
    let step = Step::new(&folder)?;
    let script = format!(
        "for i in $(seq {programs}); do sleep 0.02; done; exec {} --submissions=300 {}",
        gpu.display(),
        step.args().join(" ")
    );
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = vec!["-q".into(), "--json".into(), "-o".into()];
    args.extend([trace.clone().into(), "--channels".into(), file.into()]);
    args.extend(["--", "/bin/sh", "-c", script.as_str()].map(OsString::from));
    step.nvcap(args)?.end(LIMIT)?.expect_code(0)?;
    let ledger: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&trace)?)?;
    // Doorbells from before the first look at the last program's channels share a submission.
    ensure!(ledger["entries"] == 300, "{}", ledger["entries"]);
    Ok(())
}

/// The output is full: the trace continues, and unwritten objects are counted and reported.
pub fn output_is_full() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let ended = Command::new(nvcap()?)
        .args(["-o", "-", "--channels"])
        .arg(folder.channels()?)
        .arg("--")
        .arg(softgpu()?)
        .arg("--submissions=300")
        .env("NVCAP_DEVICES_BY_NAME", "1")
        .env("NVCAP_STORE_CACHE", "")
        .env_remove("SUDO_UID")
        .stdout(std::fs::File::options().write(true).open("/dev/full")?)
        .output()?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(3), "{}: {said}", ended.status);
    ensure!(said.contains("cannot write to standard output"), "{said}");
    Ok(())
}
