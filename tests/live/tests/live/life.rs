//! Tests of a traced program that others act on too: other traces, debuggers, checkpoints, signals; and of what many traces, threads and
//! processes leave behind.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use live::census::{descriptors, map_entries, nothing_left, objects, resident};
use live::debugger::{Seized, threads};
use live::perf::Breakpoint;
use live::programs::{Ended, Folder, GUARD, Running, Until, nvcap, softgpu};
use live::truth::{Account, Image, Watched, account};
use live::verify::{Expected, Extent, verify};
use softgpu::clock::monotonic;
use softgpu::layout::{CHANNELS, Channel, DOORBELL, channels_file, doorbell_page};
use softgpu::plan::Plan;

use crate::attach::{attach, waiting};
use crate::capture::lacks_some;
use crate::setup::{LIMIT, expect_result, gpus, need_tracing, plan, sized};

/// A word that the tests' own breakpoints watch: nobody writes it.
static WORD: u64 = 0;

/// Returns how often a test that takes its time does its work: `usual`, or what NVCAP_LIFE_TIMES says.
fn times(usual: u64) -> Result<u64> {
    match std::env::var("NVCAP_LIFE_TIMES") {
        Ok(text) => text.parse().context("NVCAP_LIFE_TIMES is no number"),
        Err(_) => Ok(usual),
    }
}

/// Attaches while the program waits, lets it go, does something to it meanwhile: all of it must be in the trace.
fn beside(
    seed: u64,
    options: &[&str],
    act: impl FnOnce(&Running) -> Result<()>,
) -> Result<Account> {
    need_tracing()?;
    let plan = plan(seed, sized(6000, 1200));
    let folder = Folder::new()?;
    let log = log_option(&folder)?;
    let hold = Until::new(&folder, "hold")?;
    let held = hold.hold();
    let options = [&["--threads=4", "--sleep-us=2000", &log, &held], options].concat();
    let mut gpu = waiting(&plan, &options)?;
    let (pid, trace) = (gpu.pid(), folder.file("trace.json"));
    let nvcap = attach(pid, &trace, rung_doorbells(&folder, gpus())?, &[])?;
    let from = monotonic();
    gpu.write(b"g")?;
    at_work(&mut gpu, 4)?;
    act(&gpu)?;
    hold.release()?;
    let ended = gpu.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    let all = account_of(&folder, &trace, (pid, &plan), from..u64::MAX)?;
    // The first of each channel came before.
    let made = plan.submissions - plan.channels.len() as u64;
    ensure!(all.complete && all.captured == made, "{all:?} of {made}");
    Ok(all)
}

/// Waits until this number of threads of the program submit.
fn at_work(gpu: &mut Running, workers: usize) -> Result<()> {
    gpu.wait_until("at work", LIMIT, |gpu| {
        threads(gpu.pid()).is_ok_and(|all| all.len() > workers)
    })
}

fn log_option(folder: &Folder) -> Result<String> {
    use std::os::unix::fs::PermissionsExt;
    let logs = folder.file("logs");
    std::fs::create_dir(&logs)?;
    std::fs::set_permissions(&logs, std::fs::Permissions::from_mode(0o777))?;
    Ok(format!("--log={}", logs.display()))
}

fn account_of(
    folder: &Folder,
    trace: &Path,
    (pid, plan): (u32, &Plan),
    time: Range<u64>,
) -> Result<Account> {
    let image = Image::read(&folder.file("logs"), pid, plan)?.context("no log")?;
    let watched = Watched {
        pid,
        from: time.start,
        until: time.end,
        killed: false,
    };
    account(trace, &[image], watched)
}

/// A debugger stops all threads and lets them go on, several times.
pub fn stopped_by_ptrace() -> Result<()> {
    let act = |gpu: &Running| {
        for _ in 0..5 {
            let mut seized = Seized::new(gpu.pid())?.context("it cannot be seized")?;
            for _ in 0..3 {
                seized.stop()?;
                std::thread::sleep(Duration::from_millis(20));
                seized.go_on()?;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    };
    beside(401, &[], act).map(drop)
}

/// SIGSTOP, and SIGCONT half a second later.
pub fn stopped_for_a_while() -> Result<()> {
    let act = |gpu: &Running| {
        for pause in [500, 5, 50] {
            gpu.signal(libc::SIGSTOP)?;
            std::thread::sleep(Duration::from_millis(pause));
            gpu.signal(libc::SIGCONT)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    };
    beside(402, &[], act).map(drop)
}

/// Every thread executes a few hundred instructions one at a time: the processor's trap for that is the breakpoints' trap, too.
pub fn single_stepped() -> Result<()> {
    let act = |gpu: &Running| {
        let (mut steps, begun) = (0, Instant::now());
        // Threads that sleep in the kernel step once they are awake.
        for round in 0.. {
            if round >= 3 && steps > 100 {
                break;
            }
            ensure!(begun.elapsed() < GUARD, "guard: {steps} steps");
            let mut seized = Seized::new(gpu.pid())?.context("it cannot be seized")?;
            seized.stop()?;
            for tid in seized.threads() {
                steps += seized.step(tid, 100)?;
            }
        }
        println!("{steps} steps");
        Ok(())
    };
    beside(403, &[], act).map(drop)
}

/// A debugger has two watchpoints of its own in every thread, beside the two of the trace.
pub fn debugger_with_registers() -> Result<()> {
    let act = |gpu: &Running| {
        let mut held = Vec::new();
        for tid in threads(gpu.pid())? {
            for _ in 0..2 {
                held.push(Breakpoint::watch(tid, &raw const WORD as u64, false));
            }
        }
        std::thread::sleep(Duration::from_millis(100));
        let held = held.into_iter().collect::<std::io::Result<Vec<_>>>();
        held.context("no debug register is left for a debugger")
            .map(drop)
    };
    beside(404, &[], act).map(drop)
}

/// A checkpointer begins so: it stops all threads and reads all memory and state. Then it lets them go.
pub fn checkpointed() -> Result<()> {
    let act = |gpu: &Running| {
        let mut seized = Seized::new(gpu.pid())?.context("it cannot be seized")?;
        seized.stop()?;
        let bytes = seized.read_all()?;
        ensure!(bytes > 1 << 20, "{bytes} bytes of memory");
        Ok(())
    };
    beside(405, &[], act).map(drop)
}

/// setuid(2) in all threads, in the middle: what runs on as another user is traced on.
pub fn root_given_up() -> Result<()> {
    beside(406, &["--nobody-after=20"], |gpu| {
        let begun = Instant::now();
        while !gpu.stdout().contains("nobody's") {
            ensure!(begun.elapsed() < GUARD, "guard: it is root still");
            std::thread::sleep(Duration::from_millis(5));
        }
        ensure!(!gpu.stdout().contains("cannot become"), "{}", gpu.stdout());
        Ok(())
    })?;
    Ok(())
}

/// More than a thousand threads, each of which submits twice: attached to again and again while threads make others.
pub fn threads_by_the_thousand() -> Result<()> {
    need_tracing()?;
    let mut threads = 0;
    for round in 0..ROUNDS_OF_THREADS {
        let plan = plan(4070 + round, sized(800, 400));
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let mut gpu = waiting(&plan, &["--threads=6", "--churn=2"])?;
        let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &[])?;
        gpu.write(b"g")?;
        let ended = gpu.end(LIMIT)?;
        // A thread with more breakpoints than registers cannot make another one.
        ended.expect_code(0)?;
        expect_result(&ended.stdout, &plan)?;
        nvcap.end(LIMIT)?.expect_code(0)?;
        let report = verify(&trace, &Expected::part(plan, Extent::From(1)))?;
        report.expect_complete()?;
        threads += report.threads.len() as u64;
    }
    ensure!(threads > sized(1000, 300), "{threads} threads");
    println!("{threads} threads");
    Ok(())
}

/// Attachments to a program whose threads make others.
const ROUNDS_OF_THREADS: u64 = 5;

/// Outcome of one trace of several; no account where it could not begin.
#[derive(Debug)]
struct Fared {
    ended: Ended,
    account: Option<Account>,
}

/// Makes a channels file with one doorbell, the one that is rung, for each of this number of GPUs.
fn rung_doorbells(folder: &Folder, gpus: usize) -> Result<PathBuf> {
    let unrung: Vec<String> = (0..gpus)
        .map(|gpu| format!("addr={:#x} ", doorbell_page(gpu, 0) + DOORBELL))
        .collect();
    let text = channels_file(gpus);
    let lines = text
        .lines()
        .filter(|l| unrung.iter().all(|u| !l.contains(u)));
    let path = folder.file("rung.txt");
    std::fs::write(&path, lines.collect::<Vec<_>>().join("\n"))?;
    Ok(path)
}

/// Runs four traces of one program with this number of GPUs, which all begin before it goes on; `at_once`: at the same moment. `prepare` comes before
/// the last one, or before all of them.
fn four(
    seed: u64,
    gpus: usize,
    at_once: bool,
    prepare: impl Fn(u32) -> Result<Vec<Breakpoint>>,
) -> Result<[Fared; 4]> {
    need_tracing()?;
    let mut plan = plan(seed, sized(6000, 1500));
    plan.channels = Channel::first(CHANNELS * gpus, gpus);
    let folder = Folder::new()?;
    let log = log_option(&folder)?;
    let gpus_option = format!("--gpus={gpus}");
    let (hold, stay) = (Until::new(&folder, "hold")?, Until::new(&folder, "stay")?);
    let mut gpu = waiting(
        &plan,
        &[
            "--threads=6",
            "--sleep-us=5000",
            &hold.hold(),
            &stay.stay(),
            &log,
            &gpus_option,
        ],
    )?;
    gpu.write(b"g")?;
    let pid = gpu.pid();
    at_work(&mut gpu, 6)?;
    let channels = rung_doorbells(&folder, gpus)?;
    let (mut traces, mut held) = (Vec::new(), Vec::new());
    for number in 0..4 {
        if number == if at_once { 0 } else { 3 } {
            held = prepare(pid)?;
        }
        let trace = folder.file(&format!("trace{number}.json"));
        let mut args: Vec<OsString> = [
            "--json",
            "-vv",
            "-e",
            "type=submission,entry",
            "--how=trap",
            "-o",
        ]
        .map(Into::into)
        .to_vec();
        args.extend([
            trace.clone().into(),
            "--channels".into(),
            channels.clone().into(),
        ]);
        args.extend(["-p".into(), pid.to_string().into()]);
        traces.push((Running::start(&nvcap()?, args)?, trace));
        if !at_once {
            until_begun(&mut traces)?;
        }
    }
    until_begun(&mut traces)?;
    let from = monotonic();
    hold.release()?;
    gpu.wait_until("done", LIMIT, |gpu| gpu.stdout().contains("done image=0"))?;
    let until = monotonic();
    let mut all = Vec::new();
    for (number, (mut nvcap, trace)) in traces.into_iter().enumerate() {
        // What it has not yet read is there until it has ended.
        if nvcap.runs() {
            nvcap.signal(libc::SIGINT)?;
        }
        let ended = nvcap.end(LIMIT)?;
        let say = || format!("trace {number}: {}", ended.stderr);
        let account = match ended.stderr.contains("attached") {
            true => Some(account_of(&folder, &trace, (pid, &plan), from..until).with_context(say)?),
            false => None,
        };
        let code = account.map_or(1, |a| if a.complete { 0 } else { 3 });
        ended.expect_code(code).with_context(say)?;
        println!("trace {number} ended with {code}: {account:?}");
        all.push(Fared { ended, account });
    }
    drop(held);
    stay.release()?;
    let ended = gpu.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)?;
    all.try_into().ok().context("four")
}

/// Waits until each traces, or has given up.
fn until_begun(traces: &mut [(Running, PathBuf)]) -> Result<()> {
    let begun = Instant::now();
    let begins = |nvcap: &mut Running| nvcap.runs() && !nvcap.stderr().contains("attached");
    while traces.iter_mut().any(|(nvcap, _)| begins(nvcap)) {
        ensure!(begun.elapsed() < GUARD, "guard: one does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A thread has four debug registers. Three traces have one each in every thread; the fourth has none in six of seven threads, since a debugger
/// has one there, too. It reads from the rings what they submit: late, and nothing is lost.
pub fn fourth_trace_blind() -> Result<()> {
    let all = four(408, 1, false, |pid| {
        let others = threads(pid)?.into_iter().filter(|tid| *tid != pid);
        let held = others.map(|tid| Breakpoint::watch(tid, &raw const WORD as u64, false));
        held.collect::<std::io::Result<Vec<_>>>()
            .context("a debugger's registers")
    })?;
    let said = &all[3].ended.stderr;
    // No ring goes round, so that whoever looks late finds all of it. Whoever looks at rings does not know that: where its looks were far apart,
    // as it got no processor, it says so, and nothing is missing.
    for (number, Fared { ended, account }) in all.iter().enumerate() {
        let whole = account.is_some_and(|a| {
            let lapped = number == 3 && a.lapped;
            (a.complete || lapped) && a.counted + a.said == 0 && a.captured > 100
        });
        ensure!(whole, "{account:?}: {}", ended.stderr);
    }
    ensure!(
        said.contains("debug registers"),
        "nothing is said of it: {said}"
    );
    Ok(())
}

/// Four traces that begin at the same moment, each of which wants two of four registers: whoever goes on has all, or counts what is missing;
/// the others say why they end.
pub fn four_traces_at_once() -> Result<()> {
    let all = four(409, gpus().max(2), true, |_| Ok(Vec::new()))?;
    for Fared { ended, account } in &all {
        ensure!(
            account.is_some() || ended.stderr.contains("no debug register is left"),
            "{}",
            ended.stderr
        );
    }
    ensure!(
        all.iter().any(|f| f.account.is_some()),
        "none of them began"
    );
    Ok(())
}

/// Attached to and detached from again and again: nothing is left, in the kernel and in the program. (1,000 times with --nightly: NVCAP_LIFE_TIMES.)
pub fn attached_again_and_again() -> Result<()> {
    need_tracing()?;
    let times = times(sized(40, 10))?;
    let folder = Folder::new()?;
    let hold = Until::new(&folder, "hold")?;
    let mut plan = plan(410, times * 100);
    plan.channels = Channel::first(4, gpus());
    let mut gpu = waiting(&plan, &["--threads=4", "--sleep-us=10000", &hold.hold()])?;
    gpu.write(b"g")?;
    at_work(&mut gpu, 4)?;
    let pid = gpu.pid();
    let before = objects()?;
    let (files, memory) = (descriptors(pid)?, resident(pid)?);
    let mut incomplete = 0;
    for time in 0..times {
        let trace = folder.file("trace.json");
        let mut args: Vec<OsString> = ["--json", "--how=trap", "--force", "-o"]
            .map(Into::into)
            .to_vec();
        args.extend([
            trace.clone().into(),
            "--channels".into(),
            folder.channels()?.into(),
        ]);
        args.extend(["-p".into(), pid.to_string().into()]);
        let mut nvcap = Running::start(&nvcap()?, args)?;
        nvcap.wait_until("watching", LIMIT, |r| r.stderr().contains("attached"))?;
        nvcap.signal(libc::SIGINT)?;
        let ended = nvcap.end(LIMIT).with_context(|| format!("time {time}"))?;
        match ended.code()? {
            3 => {
                ensure!(ended.stderr.contains("INCOMPLETE"), "{}", ended.stderr);
                incomplete += 1;
            }
            _ => ended.expect_code(0)?,
        }
    }
    nothing_left(&before, |_| true)?;
    ensure!(descriptors(pid)? == files, "descriptors of the program");
    let grown = resident(pid)?.saturating_sub(memory);
    ensure!(grown < 1 << 20, "its memory grew by {grown} bytes");
    let mut free = Vec::new();
    for tid in threads(pid)? {
        for _ in 0..4 {
            let register = Breakpoint::watch(tid, &raw const WORD as u64, false);
            free.push(
                register
                    .with_context(|| format!("a debug register of thread {tid} is not free"))?,
            );
        }
    }
    drop(free);
    hold.release()?;
    let ended = gpu.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)?;
    println!("attached {times} times, {incomplete} ledgers incomplete; nothing left");
    Ok(())
}

/// Resources that a long trace holds.
#[derive(Clone, Debug)]
struct Holds {
    files: usize,
    memory: u64,
    entries: BTreeMap<String, u64>,
}

impl Holds {
    fn of(nvcap: &Running) -> Result<Holds> {
        let pid = nvcap.pid();
        Ok(Holds {
            files: descriptors(pid)?,
            memory: resident(pid)?,
            entries: map_entries(pid)?
                .into_iter()
                .filter(|(_, entries)| *entries > 0)
                .collect(),
        })
    }
}

impl Holds {
    fn is_no_more_than(&self, early: &Holds) -> bool {
        let entries = |holds: &Holds| holds.entries.values().sum::<u64>();
        self.files <= early.files + 2 && entries(self) <= entries(early) + 8
    }
}

/// Hundreds of short programs come and go during one trace: their places are used again. (1,000 with --nightly: NVCAP_LIFE_TIMES.)
pub fn processes_come_and_go() -> Result<()> {
    need_tracing()?;
    const EACH: u64 = 6;
    let times = times(sized(240, 240))?;
    let some = times / 4;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let program = format!(
        "{} --submissions={EACH} --channels=2 --gpus=1 --threads=1 >/dev/null",
        softgpu()?.display()
    );
    let rounds = [some, times - some]
        .map(|n| format!("for i in $(seq {n}); do {program}; done; echo pause; read x;"));
    let mut args: Vec<OsString> = vec!["-q".into(), "--json".into(), "-o".into()];
    args.extend([
        trace.clone().into(),
        "--channels".into(),
        folder.channels()?.into(),
    ]);
    args.extend(["--how=trap", "--", "/bin/sh", "-c", &rounds.concat()].map(OsString::from));
    let mut nvcap = Running::start(&nvcap()?, args)?;
    let mut held: Vec<Holds> = Vec::new();
    for round in 1..=2 {
        let pauses = |r: &Running| r.stdout().lines().filter(|l| *l == "pause").count() == round;
        nvcap.wait_until("at a pause", 4 * LIMIT, pauses)?;
        // What was captured of programs that have ended is on its way for a while: at first until nothing changes for a second, then until there is no
        // more than at first.
        let begun = Instant::now();
        let mut holds = Holds::of(&nvcap)?;
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let before = std::mem::replace(&mut holds, Holds::of(&nvcap)?);
            let settled = match held.first() {
                None => before.entries == holds.entries && before.files == holds.files,
                Some(early) => holds.is_no_more_than(early),
            };
            if settled {
                break;
            }
            ensure!(
                begun.elapsed() < GUARD,
                "guard: after {some} and {times} programs {held:?}, {holds:?}"
            );
        }
        held.push(holds);
        nvcap.write(b"\n")?;
    }
    let ended = nvcap.end(LIMIT)?;
    println!("after {some} and {times} programs: {held:?}");
    let whole = !lacks_some(&ended, &trace, times * EACH)?;
    println!("all of them captured: {whole}");
    let (early, late) = (&held[0], &held[1]);
    // The ledger has a line for each channel, to its end; the allocator has its own ways with the first MiBs.
    let grown = late.memory.saturating_sub(early.memory);
    ensure!(
        grown < (8 << 10) * (times - some) + (2 << 20),
        "{grown} bytes stay: {early:?}, {late:?}"
    );
    Ok(())
}
