//! SIGTRAPs that nobody asked for, as where a machine loses a hit. Machines that do so on demand there are none: the program executes int1,
//! which takes the same way through the kernel (a debug exception with a DR6 that names no breakpoint).

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::in_step::Step;
use live::perf::Breakpoint;
use live::programs::{Ended, Folder, Running, Until, nvcap, softgpu};
use live::verify::{Expected, Extent, verify};
use serde_json::Value;

use crate::attach::{attach, attach_to, waiting};
use crate::setup::{LIMIT, need_tracing, plan, plan_args};

const NOBODY_ASKED: &str = "ended by a SIGTRAP that nobody asked for";

fn need_int1() -> Result<()> {
    need_tracing()?;
    match cfg!(target_arch = "x86_64") {
        true => Ok(()),
        false => not_run("int1 is an instruction of x86-64"),
    }
}

/// `nvcap doctor --trap`: its numbers agree, and the status is what they say.
pub fn measured() -> Result<()> {
    need_tracing()?;
    let ended = Running::start(&nvcap()?, ["doctor", "--trap", "1"])?.end(LIMIT)?;
    let number = |line: &str| -> Result<u64> {
        let found = ended.stdout.lines().find_map(|l| l.strip_prefix(line));
        let found = found.with_context(|| format!("no {line}: {}", ended.stdout))?;
        Ok(found.trim().parse()?)
    };
    let (stores, hits) = (
        number("stores to watched words")?,
        number("hits that the kernel counted")?,
    );
    let (lost, traps) = (number("stores without a hit")?, number("SIGTRAPs")?);
    let all = &ended.stdout;
    ensure!(stores > 0 && stores == hits + lost, "{all}");
    ensure!(number("runs of the BPF program")? <= hits, "{all}");
    ended.expect_code(if lost + traps > 0 { 3 } else { 0 })?;
    ensure!(all.contains("--how observe") == (traps > 0), "{all}");
    Ok(())
}

/// A shell's script, traced.
fn script(folder: &Folder, script: String) -> Result<Ended> {
    let mut args: Vec<OsString> = vec!["-q".into(), "--channels".into(), folder.channels()?.into()];
    args.extend(["--", "/bin/sh", "-c", &script].map(OsString::from));
    Running::start(&nvcap()?, args)?.end(LIMIT)
}

/// A SIGTRAP that a program sends to itself is no fault of the machine's.
pub fn own_trap() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    // In step: one that has gone before nvcap has heard of its channels is counted, which is another matter.
    let step = Step::new(&folder)?;
    let work = step.with(&["--submissions=50"]).join(" ");
    let script = format!("{} {work}; kill -TRAP $$", softgpu()?.display());
    let mut args: Vec<OsString> = vec!["-q".into(), "--channels".into(), folder.channels()?.into()];
    args.extend(["--", "/bin/sh", "-c", &script].map(OsString::from));
    let ended = step.nvcap(args)?.end(LIMIT)?;
    ended.expect_code(0)?;
    ensure!(!ended.stderr.contains(NOBODY_ASKED), "{}", ended.stderr);
    ensure!(ended.stderr.contains("signal: 5"), "{}", ended.stderr);
    Ok(())
}

/// Command that the exception ends, without a handler.
fn dies(gpu: &Path) -> String {
    let gpu = gpu.display();
    format!("{gpu} --submissions=400 --threads=2 --default-sigtrap --int1-after=5 --sleep-us=500")
}

/// The command itself: the trace is not complete, and says why and what to do.
pub fn ended() -> Result<()> {
    need_int1()?;
    let folder = Folder::new()?;
    let ended = script(&folder, format!("exec {}", dies(&softgpu()?)))?;
    ended.expect_code(3)?;
    let said = &ended.stderr;
    ensure!(
        said.contains(NOBODY_ASKED) && said.contains("--how observe"),
        "{said}"
    );
    ensure!(
        said.contains("1 SIGTRAP came that nobody asked for"),
        "{said}"
    );
    Ok(())
}

/// A child of a command that lives on.
pub fn ended_child() -> Result<()> {
    need_int1()?;
    let folder = Folder::new()?;
    let ended = script(&folder, format!("{}; true", dies(&softgpu()?)))?;
    ended.expect_code(3)?;
    ensure!(ended.stderr.contains(NOBODY_ASKED), "{}", ended.stderr);
    Ok(())
}

/// A process that was attached to.
pub fn ended_attached() -> Result<()> {
    need_int1()?;
    let folder = Folder::new()?;
    let plan = plan(811, 600);
    let flags = ["--threads=2", "--default-sigtrap", "--int1-after=5"];
    let mut gpu = waiting(&plan, &[&flags[..], &["--sleep-us=500"]].concat())?;
    let trace = folder.file("trace");
    let nvcap = attach_to(gpu.pid(), &trace, folder.channels()?, &[])?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(3)?;
    let said = format!("{}{}", std::fs::read_to_string(&trace)?, ended.stderr);
    ensure!(said.contains(NOBODY_ASKED), "{said}");
    Ok(())
}

/// A program with a handler goes on: the trace is complete, and the ledger counts the SIGTRAP.
pub fn handled() -> Result<()> {
    need_int1()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let plan = plan(812, 400);
    let mut gpu = waiting(&plan, &["--threads=2", "--int1-after=5"])?;
    let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
    gpu.write(b"g")?;
    let ended = gpu.end(LIMIT)?;
    ended.expect_code(0)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    let report = verify(&trace, &Expected::part(plan, Extent::From(1)))?;
    let ledger: &Value = report.ledger.as_ref().context("the trace has no ledger")?;
    let stray = &ledger["trapped"]["stray_traps"];
    // The program's own count has those of the machine, if it lost any.
    let own = ended.stdout.rsplit_once("stray_traps=");
    let own = own.and_then(|(_, n)| n.split_whitespace().next());
    let own: u64 = own.context("no count")?.parse()?;
    ensure!(
        own >= 1 && *stray == own,
        "{stray} in the ledger, {own} came"
    );
    report.expect_complete()
}

/// Breakpoints that a further tracer can set in the first thread of a process.
fn free_registers(pid: u32) -> usize {
    static WORDS: [u32; 4] = [0; 4];
    let free = WORDS.iter().map(|w| {
        let address = std::ptr::from_ref(w) as u64;
        Breakpoint::watch(pid, address, false)
    });
    // All at once: each takes a register.
    let free: Vec<_> = free.filter_map(Result::ok).collect();
    free.len()
}

fn tracers(pid: u32) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let tracer = status.lines().find_map(|l| l.strip_prefix("TracerPid:"));
        all.push(tracer.context("no TracerPid")?.trim().to_owned());
    }
    Ok(all)
}

/// `--how observe` has nothing in the process that could send it a SIGTRAP: no breakpoint, no tracer; the trap has.
pub fn observing() -> Result<()> {
    need_tracing()?;
    for (how, observes) in [("--how=observe", true), ("--how=trap", false)] {
        let folder = Folder::new()?;
        let stay = Until::new(&folder, "stay")?;
        let mut gpu = waiting(&plan(813, 400), &["--threads=2", &stay.stay()])?;
        ensure!(free_registers(gpu.pid()) == 4, "registers are held already");
        let flags = [OsString::from(how)];
        let nvcap = attach_to(gpu.pid(), &folder.file("trace"), folder.channels()?, &flags)?;
        let free = free_registers(gpu.pid());
        ensure!((free == 4) == observes, "{how}: {free} registers are free");
        let events = match observes {
            true => nvcap.perf_events_of_processes(),
            false => nvcap.perf_events(),
        };
        ensure!((events == 0) == observes, "{how}: {events} perf events");
        let tracers = tracers(gpu.pid())?;
        ensure!(
            !observes || tracers.iter().all(|t| t == "0"),
            "{how}: traced by {tracers:?}"
        );
        gpu.write(b"g")?;
        gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
        // What it has not yet read is there until it has ended.
        nvcap.signal(libc::SIGINT)?;
        nvcap.end(LIMIT)?.expect_code(0)?;
        stay.release()?;
        gpu.end(LIMIT)?.expect_code(0)?;
    }
    Ok(())
}

/// A command is observed likewise: its end is waited for by ptrace, which sets nothing in it.
pub fn observed_command() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let mut args: Vec<OsString> = ["--how=observe", "-q", "--channels"].map(Into::into).into();
    args.extend([folder.channels()?.into(), "--".into(), softgpu()?.into()]);
    args.extend(plan_args(&plan(814, 200)).into_iter().map(OsString::from));
    let stay = Until::new(&folder, "stay")?;
    // What is unmapped right behind its last use counts as missing where it is observed.
    args.extend([stay.stay().into(), "--leave-mapped".into()]);
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let said = nvcap.stdout();
    let pid = said.lines().find_map(|l| l.strip_prefix("pid "));
    let pid: u32 = pid.context("no pid")?.trim().parse()?;
    let (free, events) = (free_registers(pid), nvcap.perf_events_of_processes());
    ensure!(
        free == 4 && events == 0,
        "{free} registers are free, {events} perf events"
    );
    stay.release()?;
    nvcap.end(LIMIT)?.expect_code(0)
}
