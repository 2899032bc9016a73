//! Unwanted ends, of nvcap and of the traced program, in the middle of work.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use live::in_step::Step;
use live::programs::{Folder, Running, Until, nvcap, so_far, softgpu, state};
use live::verify::{Expected, Extent, verify};

use crate::attach::{attach, waiting};
use crate::setup::{LIMIT, expect_result, need_tracing, plan, plan_args, sized};

const SLOW: &str = "--sleep-us=1000";

/// Attaches some kind of nvcap; returns when it follows the process.
pub type Attach = fn(&Running, &Path, &Folder) -> Result<Running>;

/// Waits until more than a hundred entries are in the trace.
fn in_the_middle(nvcap: &mut Running, trace: &Path) -> Result<()> {
    nvcap.wait_until("tracing", LIMIT, |_| {
        so_far(trace, "\"type\":\"entry\"") > 100
    })
}

fn by_trap(gpu: &Running, trace: &Path, folder: &Folder) -> Result<Running> {
    attach(gpu.pid(), trace, folder.channels()?, &[])
}

/// kill -9 of an attached nvcap: the program goes on, unharmed, and its results are right.
pub fn kill_attached(attach: Attach) -> Result<()> {
    let plan = plan(31, sized(4000, 2000));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let hold = Until::new(&folder, "hold")?;
    let mut gpu = waiting(&plan, &["--threads=4", SLOW, &hold.hold()])?;
    let mut nvcap = attach(&gpu, &trace, &folder)?;
    gpu.write(b"g")?;
    in_the_middle(&mut nvcap, &trace)?;
    nvcap.signal(libc::SIGKILL)?;
    drop(nvcap);
    hold.release()?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    // The output is right as far as it goes.
    verify(&trace, &Expected::part(plan, Extent::Part))?;
    Ok(())
}

pub fn kill_nvcap_attached() -> Result<()> {
    need_tracing()?;
    kill_attached(by_trap)
}

/// kill -9 of an nvcap that started the program itself.
pub fn kill_nvcap_parent() -> Result<()> {
    need_tracing()?;
    let plan = plan(32, sized(3000, 1500));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = vec![
        "--json".into(),
        "-vv".into(),
        "-e".into(),
        "type=submission,entry".into(),
        "-o".into(),
        trace.clone().into(),
    ];
    args.extend([
        "--channels".into(),
        folder.channels()?.into(),
        "--".into(),
        softgpu()?.into(),
    ]);
    args.extend(plan_args(&plan).into_iter().map(OsString::from));
    let hold = Until::new(&folder, "hold")?;
    args.extend(["--threads=4".into(), SLOW.into(), hold.hold().into()]);
    let mut nvcap = Running::start(&nvcap()?, args)?;
    in_the_middle(&mut nvcap, &trace)?;
    nvcap.signal(libc::SIGKILL)?;
    hold.release()?;
    nvcap.wait_until_said("done image=0", LIMIT)?;
    expect_result(&nvcap.stdout(), &plan)?;
    verify(&trace, &Expected::part(plan, Extent::Prefix))?;
    Ok(())
}

/// kill -9 of the program: the captured part is whole, and the ledger says so or names what is missing.
pub fn kill_target() -> Result<()> {
    need_tracing()?;
    let plan = plan(33, 4000);
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let pace = format!("--sleep-us={}", sized(1000, 5000));
    let hold = Until::new(&folder, "hold")?;
    let options = ["--threads=4", &pace, "--before-wait=0", &hold.hold()];
    let mut gpu = waiting(&plan, &options)?;
    let mut nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
    gpu.write(b"g")?;
    in_the_middle(&mut nvcap, &trace)?;
    gpu.signal(libc::SIGKILL)?;
    drop(gpu);
    let ended = nvcap.end(LIMIT)?;
    let code = ended.code()?;
    ensure!(
        code == 0 || code == 3,
        "exit status {code}\n{}",
        ended.stderr
    );
    let report = verify(&trace, &Expected::part(plan, Extent::Prefix))?;
    // One entry each; entries found in the ring afterwards come as one submission.
    ensure!(report.entries > 100, "only {} entries", report.entries);
    match code {
        0 => report.expect_complete(),
        _ => {
            ensure!(
                report.ledger.is_some_and(|l| l["complete"] == false),
                "status 3, but the ledger is complete"
            );
            Ok(())
        }
    }
}

/// A signal to an attached nvcap: an orderly end with its ledger; the program goes on.
pub fn stop_attached(attach: Attach, signal: i32) -> Result<()> {
    let plan = plan(34, sized(4000, 2000));
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let hold = Until::new(&folder, "hold")?;
    let mut gpu = waiting(&plan, &["--threads=4", SLOW, &hold.hold()])?;
    let mut nvcap = attach(&gpu, &trace, &folder)?;
    gpu.write(b"g")?;
    in_the_middle(&mut nvcap, &trace)?;
    nvcap.signal(signal)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    hold.release()?;
    let gpu = gpu.end(LIMIT)?;
    gpu.expect_code(0)?;
    expect_result(&gpu.stdout, &plan)?;
    let report = verify(&trace, &Expected::part(plan, Extent::Part))?;
    // One entry each; entries found in the ring afterwards come as one submission.
    ensure!(report.entries > 100, "only {} entries", report.entries);
    report.expect_complete()
}

/// Ctrl-C.
pub fn interrupt_nvcap() -> Result<()> {
    need_tracing()?;
    stop_attached(by_trap, libc::SIGINT)
}

/// SIGTERM stops nvcap as Ctrl-C does.
pub fn terminate_nvcap() -> Result<()> {
    need_tracing()?;
    stop_attached(by_trap, libc::SIGTERM)
}

/// nvcap's status is the ledger's; with --exit-with-child it is the program's.
pub fn child_status() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    for (flags, code) in [(&[][..], 0), (&["--exit-with-child"][..], 1)] {
        let mut args: Vec<OsString> =
            vec!["-q".into(), "--channels".into(), folder.channels()?.into()];
        args.extend(flags.iter().map(OsString::from));
        let step = Step::new(&folder)?;
        let work = step.with(&["--submissions=50"]).join(" ");
        let script = format!("{} {work}; exit 1", softgpu()?.display());
        args.extend(["--".into(), "/bin/sh".into(), "-c".into(), script.into()]);
        let ended = step.nvcap(args)?.end(LIMIT)?;
        ended.expect_code(code)?;
        ensure!(
            ended.stderr.contains("status: 1"),
            "the child's status is not reported: {}",
            ended.stderr
        );
    }
    Ok(())
}

/// Ends a process of another's at the end of a test.
struct Ends(libc::pid_t);

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: sends a signal to a process that goes on until then.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// A command that nvcap leaves behind, as it ignores the signal or a limit ends the trace, goes on, and nvcap says so with its process id
/// and what ends it.
pub fn commands_that_go_on() -> Result<()> {
    for (signal, option, remedy) in [
        (Some(libc::SIGINT), "-q", "kill"),
        (Some(libc::SIGTERM), "-q", "kill -KILL"),
        (None, "--duration=0.5", "kill"),
    ] {
        let script = "trap '' INT TERM; echo pid $$; exec sleep 900";
        let args = ["--how=observe", option, "--", "sh", "-c", script];
        let mut nvcap = Running::start(&nvcap()?, args)?;
        // The trace may have ended before the command says so.
        nvcap.wait_until_said("pid ", LIMIT)?;
        let said = nvcap.stdout();
        let pid = said.lines().find_map(|l| l.strip_prefix("pid "));
        let pid: libc::pid_t = pid.context("no process id")?.parse()?;
        let _ends = Ends(pid);
        if let Some(signal) = signal {
            nvcap.signal(signal)?;
        }
        let ended = nvcap.end(LIMIT)?;
        ended.expect_code(4)?;
        let said = format!(
            "nvcap: the command goes on as process {pid}, no longer traced; to end it: {remedy} {pid}"
        );
        ensure!(
            ended.stderr.lines().any(|l| l == said),
            "{}, not {said}",
            ended.stderr
        );
        ensure!(
            state(pid.unsigned_abs()).is_some_and(|s| s != 'Z'),
            "the command has ended"
        );
    }
    Ok(())
}
