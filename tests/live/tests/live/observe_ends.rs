//! `nvcap --how observe` at the end of observed programs: the last look while they are stopped, and the report if there was
//! none. No trace here may be called complete with something missing.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use live::debugger::threads;
use live::in_step::Step;
use live::perf::Breakpoint;
use live::programs::{Ended, Folder, Running, nvcap, softgpu, state};
use live::truth::{Image, Watched, account};
use live::verify::{Expected, Extent, verify};
use serde_json::Value;
use softgpu::clock::monotonic;
use softgpu::layout::Channel;
use softgpu::plan::Plan;

use crate::attach::{attach_in_step, waiting};
use crate::observe::{FILES, LEAVE, Observed, counted, options};
use crate::setup::{LIMIT, expect_result, gpus, need_tracing, plan, plan_args};

/// The time that the fastest context creation takes.
const SETTLE: &str = "--settle-ms=25";

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<OsString> {
    words.into_iter().map(OsString::from).collect()
}

/// Runs the plan as a command under `nvcap --how observe`, with no time to spare at its end.
fn short(plan: &Plan, args: &[&str], flags: &[&str]) -> Result<Observed> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut command = options(&trace, &folder, args, flags)?;
    command.extend(["--".into(), softgpu()?.into()]);
    command.extend(plan_args(plan).into_iter().map(OsString::from));
    command.extend(words(args.iter().copied()));
    let ended = Running::start(&nvcap()?, command)?.end(LIMIT)?;
    expect_result(&ended.stdout, plan).with_context(|| ended.stderr.clone())?;
    Ok(Observed::new(ended, trace, folder))
}

/// A program that lives for a few milliseconds is seen whole, each time.
pub fn short_commands() -> Result<()> {
    for n in 0..10 {
        let plan = plan(100 + n, 20);
        for args in [
            &[FILES, LEAVE, "--threads=1"][..],
            &[FILES, LEAVE, "--threads=8"],
            &[LEAVE, "--threads=1"],
        ] {
            let observed = short(&plan, args, &[])?;
            observed
                .ended
                .expect_code(0)
                .with_context(|| format!("{args:?}"))?;
            let report = verify(&observed.trace, &Expected::whole(plan.clone()))?;
            report.expect_complete()?;
        }
    }
    Ok(())
}

/// A program that unmaps its memory and ends at once may have been missed, in part or whole: this is reported.
pub fn short_commands_that_unmap() -> Result<()> {
    for n in 0..10 {
        let plan = plan(200 + n, 20);
        // Making a context takes longer than nvcap's interval between looks (CONTEXT_NS in observe/discover.rs).
        for args in [&[FILES, "--threads=1", SETTLE][..], &["--threads=1"]] {
            let observed = short(&plan, args, &[])?;
            match observed.ended.code()? {
                0 => {
                    verify(&observed.trace, &Expected::whole(plan.clone()))?.expect_complete()?;
                }
                _ => {
                    counted(&observed, plan.clone())?;
                }
            }
        }
    }
    Ok(())
}

/// The same without stopping, while nvcap gets no processor: nothing was seen to its end.
pub fn never_stopped() -> Result<()> {
    let plan = plan(300, 20);
    for args in [&[FILES, LEAVE, "--threads=1"][..], &[LEAVE, "--threads=1"]] {
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let mut command = options(&trace, &folder, args, &["--stop-at-exit=never"])?;
        command.extend(["--".into(), softgpu()?.into()]);
        command.extend(plan_args(&plan).into_iter().map(OsString::from));
        command.extend(words(args.iter().copied()));
        command.extend(words(["--wait-stdin", "--before-wait=0"]));
        let mut nvcap = Running::start(&nvcap()?, command)?;
        nvcap.wait_for_line("waiting")?;
        nvcap.stop()?;
        nvcap.write(b"g")?;
        nvcap.wait_until_said("done image=0", LIMIT)?;
        let pid = pid_of(&nvcap)?;
        nvcap.wait_until("the program's end", LIMIT, |_| {
            matches!(state(pid), None | Some('Z'))
        })?;
        nvcap.signal(libc::SIGCONT)?;
        let ended = nvcap.end(LIMIT)?;
        ended.expect_code(3)?;
        let observed = Observed::new(ended, trace, folder);
        counted(&observed, plan.clone())?;
    }
    Ok(())
}

/// The process id that the software GPU has said.
fn pid_of(nvcap: &Running) -> Result<u32> {
    let said = nvcap.stdout();
    let pid = said
        .lines()
        .find_map(|l| l.strip_prefix("pid ")?.parse().ok());
    pid.context("no pid")
}

/// Processes that end by themselves or are killed in the middle of their work: everything they did is seen.
pub fn killed_commands() -> Result<()> {
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGABRT] {
        let plan = plan(400, 20_000);
        let folder = Folder::new()?;
        let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
        let args = [FILES, LEAVE, "--threads=4", "--in-step-say=600"];
        let mut command = options(&trace, &folder, &args, &[])?;
        command.extend(["--exit-with-child".into(), "--".into(), softgpu()?.into()]);
        command.extend(plan_args(&plan).into_iter().map(OsString::from));
        command.extend(step.with(&args).into_iter().map(OsString::from));
        let mut nvcap = step.nvcap(command)?;
        nvcap.wait_until_said("read 600", LIMIT)?;
        let pid = pid_of(&nvcap)?;
        // SAFETY: sends a signal to a process that this test has started.
        unsafe { libc::kill(pid as libc::pid_t, signal) };
        let ended = nvcap.end(LIMIT)?;
        ended.expect_code(128 + signal)?;
        let report = verify(&trace, &Expected::part(plan, Extent::Prefix))?;
        report.expect_complete()?;
        ensure!(report.submissions >= 600, "{report:?}");
    }
    Ok(())
}

fn shell(script: &str, flags: &[&str], trace: &Path) -> Result<Ended> {
    start_shell(script, flags, trace)?.end(LIMIT)
}

fn start_shell(script: &str, flags: &[&str], trace: &Path) -> Result<Running> {
    let mut args = words([
        "--how=observe",
        "--json",
        "--exit-with-child",
        "--force",
        "-o",
    ]);
    args.push(trace.into());
    args.extend(words(flags.iter().copied()));
    args.extend(words(["--", "/bin/sh", "-c", script]));
    Running::start(&nvcap()?, args)
}

/// Signals, job control and statuses pass through nvcap.
pub fn signals_pass() -> Result<()> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let own = "trap 'exit 9' USR1; kill -USR1 $$; sleep 5; exit 1";
    shell(own, &[], &trace)?.expect_code(9)?;
    // It stops itself, and is continued.
    let mut nvcap = start_shell("echo pid $$; kill -STOP $$; exit 8", &[], &trace)?;
    nvcap.wait_until_said("pid ", LIMIT)?;
    let pid = pid_of(&nvcap)?;
    nvcap.wait_until("the shell's stop", LIMIT, |_| {
        matches!(state(pid), Some('T' | 't'))
    })?;
    // It may stand for another moment's reason, on its way to its stop.
    while nvcap.runs() && state(pid).is_some() {
        // SAFETY: sends a signal to a process that this test has started.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGCONT) };
        std::thread::sleep(Duration::from_millis(20));
    }
    nvcap.end(LIMIT)?.expect_code(8)?;
    shell("kill -KILL $$", &[], &trace)?.expect_code(128 + libc::SIGKILL)?;
    shell("exit 7", &[], &trace)?.expect_code(7)?;
    // Many children, and one that is left behind.
    let many = "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true & done; wait; exit 6";
    shell(many, &[], &trace)?.expect_code(6)?;
    shell("sleep 0.2 & exit 5", &[], &trace)?.expect_code(5)
}

/// A shell's children are seen whole, each to its own end.
pub fn children() -> Result<()> {
    let gpu = softgpu()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let plan = plan(500, 20);
    let one = format!(
        "{} {} {FILES} {LEAVE} --threads=1",
        gpu.display(),
        plan_args(&plan).join(" ")
    );
    for script in [
        format!("{one} & {one} & wait"),
        format!("{one}; {one}; {one}"),
        format!("exec {one}"),
        format!(
            "({one}; touch {done}) & until [ -e {done} ]; do sleep 0.05; done",
            done = folder.file("done").display()
        ),
    ] {
        let ended = shell(&script, &[], &trace)?;
        ended.expect_code(0).with_context(|| script.clone())?;
        let runs = ended.stdout.matches("done image=0").count();
        let text = std::fs::read_to_string(&trace)?;
        let ledger: serde_json::Value =
            serde_json::from_str(text.lines().last().context("an empty trace")?)?;
        ensure!(
            ledger["submissions"] == 20 * runs as u64 && ledger["complete"] == true,
            "{script}: {ledger}"
        );
        // Also of a child that had executed its program before it was found.
        let channels = ledger["channels"].as_array().context("no channels")?;
        let name = |c: &serde_json::Value| c["process"] == "softgpu";
        ensure!(channels.iter().all(name), "{script}: {ledger}");
    }
    Ok(())
}

/// nvcap is killed: the traced processes continue, whether they ran or were stopped.
pub fn nvcap_killed() -> Result<()> {
    let plan = plan(600, 3000);
    let folder = Folder::new()?;
    for round in 0..5 {
        let trace = folder.file(&format!("trace{round}.json"));
        let done = folder.file(&format!("done{round}"));
        let mut args = words(["--how=observe", "-q", "-o"]);
        args.push(trace.into());
        let script = format!(
            "{} {} {FILES} --threads=4 --sleep-us=300; for i in 1 2 3; do /bin/true; done; touch {}",
            softgpu()?.display(),
            plan_args(&plan).join(" "),
            done.display()
        );
        args.extend(words(["--", "/bin/sh", "-c", &script]));
        let mut nvcap = Running::start(&nvcap()?, args)?;
        nvcap.wait_until_said("ready", LIMIT)?;
        std::thread::sleep(Duration::from_millis(20 * round));
        nvcap.signal(libc::SIGKILL)?;
        let begun = std::time::Instant::now();
        while !done.exists() {
            ensure!(
                begun.elapsed() < LIMIT,
                "the command did not come to its end"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// On request a running process is stopped at its end.
pub fn attached() -> Result<()> {
    let plan = plan(700, 4000);
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let args = [FILES, LEAVE, "--threads=2"];
    let mut gpu = waiting(&plan, &step.with(&args))?;
    let mut command = options(&trace, &folder, &args, &["--stop-at-exit=always"])?;
    command.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = step.nvcap(command)?;
    nvcap.wait_until("attached", LIMIT, |n| n.stderr().contains("attached"))?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(0)?;
    verify(&trace, &Expected::part(plan, Extent::From(1)))?.expect_complete()
}

/// A channel that is used for the first time when no new one is expected any more, for less than a millisecond, and is unmapped a
/// moment later: all of it is there, or the trace says that it is not complete. Six at once, because it depends on the moment.
pub fn used_late() -> Result<()> {
    let mut all = Vec::new();
    for n in 0..6 {
        let plan = Plan {
            channels: Channel::first(2, gpus()),
            ..plan(740 + n, 60)
        };
        let begins = [FILES, "--threads=2", "--before-wait=0", "--apart-ms=6000"];
        let mut gpu = waiting(&plan, &[&begins[..], &["--linger-ms=45"]].concat())?;
        // Its first submission comes before or behind nvcap.
        gpu.write(b"g")?;
        let command = [
            "--how=observe",
            "--json",
            "-e",
            "type=submission",
            "-p",
            &gpu.pid().to_string(),
        ];
        all.push((gpu, Running::start(&nvcap()?, command)?));
    }
    let mut whole = 0;
    for (gpu, nvcap) in all {
        gpu.end(LIMIT)?.expect_code(0)?;
        let ended = nvcap.end(LIMIT)?;
        let said = ended.stdout.lines();
        let shown = said
            .filter(|l| l.contains(r#""type":"submission""#))
            .count();
        let last = ended.stdout.lines().last().context("no ledger")?;
        let complete = serde_json::from_str::<Value>(last)?["complete"] == true;
        ensure!(!complete || shown >= 59, "{shown} of 60: {last}");
        ended.expect_code(if complete { 0 } else { 3 })?;
        whole += u32::from(shown >= 59);
    }
    println!("{whole} of 6 were captured whole");
    Ok(())
}

/// nvcap gets no processor while a program makes its channels and submits, and is ended then: its last look finds them. The program
/// was attached to, or is a child that was born meanwhile.
pub fn ended_before_it_looked() -> Result<()> {
    for child in [false, true] {
        let plan = plan(710, 400);
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let args = [FILES, "--threads=2", "--before-wait=0", "--hold-end"];
        let mut gpu = if child {
            let script = format!(
                "echo waiting; read go; {} {} {}; true",
                softgpu()?.display(),
                plan_args(&plan).join(" "),
                args.join(" ")
            );
            let mut shell = Running::start(Path::new("/bin/sh"), ["-c", &script])?;
            shell.wait_for_line("waiting")?;
            shell
        } else {
            waiting(&plan, &args)?
        };
        let mut command = options(&trace, &folder, &args, &[])?;
        command.extend(["-p".into(), gpu.pid().to_string().into()]);
        let mut nvcap = Running::start(&nvcap()?, command)?;
        nvcap.wait_until("attached", LIMIT, |n| n.stderr().contains("attached"))?;
        nvcap.stop()?;
        gpu.write(b"\n")?;
        gpu.wait_for_line("held")?;
        nvcap.signal(libc::SIGTERM)?;
        nvcap.signal(libc::SIGCONT)?;
        let ended = nvcap.end(LIMIT)?;
        gpu.end(LIMIT)?.expect_code(0)?;
        ended
            .expect_code(0)
            .with_context(|| format!("child: {child}"))?;
        verify(&trace, &Expected::whole(plan))?.expect_complete()?;
    }
    Ok(())
}

/// nvcap is ended while the process is killed, in this order or the other: what the last looks could not read any more is reported.
pub fn ended_as_it_is_killed() -> Result<()> {
    let mut incomplete = 0;
    for n in 0..20 {
        incomplete += u32::from(!ended_and_killed(n, "--how=observe", false)?);
    }
    println!("{incomplete} of 20 traces are incomplete, and say so");
    Ok(())
}

/// The same by the trap, of a program with a thread whose doorbells are not watched: other tracers hold its registers.
pub fn ended_as_a_thread_without_registers_is_killed() -> Result<()> {
    need_tracing()?;
    let mut incomplete = 0;
    for n in 0..20 {
        incomplete += u32::from(!ended_and_killed(n, "--how=trap", true)?);
    }
    println!("{incomplete} of 20 traces are incomplete, and say so");
    Ok(())
}

/// Tells whether the trace was complete, which depends on the moment. The trace may never say that it is complete where something is missing.
fn ended_and_killed(n: u64, how: &str, without_registers: bool) -> Result<bool> {
    // It is killed long before it has submitted all.
    let plan = plan(720 + n, 8000);
    let folder = Folder::new()?;
    let (trace, logs) = (folder.file("trace.json"), folder.file("logs"));
    std::fs::create_dir(&logs)?;
    let log = format!("--log={}", logs.display());
    let step = Step::new(&folder)?;
    // However long it takes to attach, it is in the middle of its work then.
    let mut gpu = waiting(
        &plan,
        &step.following(&["--threads=2", "--sleep-us=300", &log]),
    )?;
    let pid = gpu.pid();
    if without_registers {
        gpu.write(b"g")?;
        gpu.wait_until("threads that submit", LIMIT, |gpu| {
            threads(gpu.pid()).is_ok_and(|all| all.len() == 3)
        })?;
    }
    // Numbers begin anew beyond the last one: the largest may be the first thread's.
    let all = threads(pid).unwrap_or_default().into_iter();
    let last = { all }.rfind(|tid| *tid != pid && without_registers);
    let held = match last {
        Some(tid) => Breakpoint::take_all(tid)?,
        None => Vec::new(),
    };
    ensure!(
        held.is_empty() != without_registers,
        "no thread to take them from"
    );
    let flags = words([how, "--json", "-vv", "-e", "type=submission,entry"]);
    let nvcap = attach_in_step(&step, pid, &trace, folder.channels()?, &flags)?;
    let from = monotonic();
    if !without_registers {
        gpu.write(b"g")?;
    }
    std::thread::sleep(Duration::from_millis(40));
    let until = monotonic();
    if n % 2 == 0 {
        nvcap.signal(libc::SIGTERM)?;
        gpu.signal(libc::SIGKILL)?;
    } else {
        gpu.signal(libc::SIGKILL)?;
        nvcap.signal(libc::SIGTERM)?;
    }
    gpu.end(LIMIT)?;
    let ended = nvcap.end(LIMIT)?;
    let image = Image::read(&logs, pid, &plan)?.context("it logged nothing")?;
    let watched = Watched {
        pid,
        from,
        until,
        killed: false,
    };
    let account = account(&trace, &[image], watched).with_context(|| ended.stderr.clone())?;
    ended.expect_code(if account.complete { 0 } else { 3 })?;
    Ok(account.complete)
}

/// Places that the user named as channels and that are none.
pub fn channels_that_are_none() -> Result<()> {
    let folder = Folder::new()?;
    let plan = plan(800, 2000);
    let right = std::fs::read_to_string(folder.channels()?)?;
    let line = right
        .lines()
        .find(|l| l.starts_with("channel "))
        .context("no channel")?;
    let with = |key: &str, value: &str| -> String {
        line.split_whitespace()
            .map(|w| match w.split_once('=') {
                Some((k, _)) if k == key => format!("{key}={value} "),
                _ => format!("{w} "),
            })
            .collect()
    };
    for (text, said) in [
        (with("ring", "0x10000"), "mapped"),
        (with("userd", "0x10000"), "mapped"),
        (with("entries", "2"), "GP_PUT"),
    ] {
        let file = folder.file("wrong.txt");
        std::fs::write(&file, &text)?;
        let trace = folder.file("trace.json");
        let mut args = words(["--how=observe", "--json", "--force", "-o"]);
        args.push(trace.clone().into());
        args.extend(["--channels".into(), file.clone().into()]);
        let mut launched = args.clone();
        launched.extend(["--".into(), softgpu()?.into()]);
        launched.extend(plan_args(&plan).into_iter().map(OsString::from));
        launched.extend(words([LEAVE, "--threads=1", "--sleep-us=20"]));
        let ended = Running::start(&nvcap()?, launched)?.end(LIMIT)?;
        let shown = std::fs::read_to_string(&trace)?;
        ensure!(
            ended.code()? == 3 && shown.contains("was not followed") && shown.contains(said),
            "{text}: {ended:?}"
        );
        let args_of_gpu = ["--threads=1", "--before-wait=100"];
        let gpu = waiting(&plan, &args_of_gpu)?;
        args.extend(["-p".into(), gpu.pid().to_string().into()]);
        let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        ensure!(
            ended.code()? == 1 && ended.stderr.contains("channels-file.md"),
            "{text}: {ended:?}"
        );
    }
    for odd in [with("ring", "0x200600004"), with("userd", "0x200602008")] {
        let file = folder.file("odd.txt");
        std::fs::write(&file, odd)?;
        let mut args = words(["--how=observe", "--channels"]);
        args.push(file.into());
        args.extend(words(["--", "/bin/true"]));
        let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        ensure!(
            ended.code()? == 1 && ended.stderr.contains("multiple"),
            "{ended:?}"
        );
    }
    Ok(())
}
