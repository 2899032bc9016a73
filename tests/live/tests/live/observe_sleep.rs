//! `nvcap --how observe` of sleeping processes: they cost next to nothing, and their work after waking is seen.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::programs::{Folder, Running, nvcap};
use live::verify::{Expected, Extent, verify};
use softgpu::layout::Channel;
use softgpu::plan::Plan;

use crate::attach::waiting;
use crate::observe::{FILES, LINGER, options, until_whole, whole_or_tail};
use crate::setup::{LIMIT, expect_result, gpus, plan};

/// Time until a process counts as asleep, with a reserve.
const ASLEEP: Duration = Duration::from_millis(2500);

/// CPU time of all threads of a process, ns.
fn cpu_of(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("no schedstat")?;
        sum += first.parse::<u64>()?;
    }
    Ok(sum)
}

/// An nvcap that observes the sleeping `gpu`, for long enough to have noticed the sleep.
fn of_sleeper(gpu: &Running, trace: &Path, folder: &Folder, flags: &[&str]) -> Result<Running> {
    let mut command = options(trace, folder, &[FILES], flags)?;
    command.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = Running::start(&nvcap()?, command)?;
    nvcap.wait_until("attached", LIMIT, |n| n.stderr().contains("attached"))?;
    std::thread::sleep(ASLEEP);
    Ok(nvcap)
}

fn need_perf_events() -> Result<()> {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 && level.trim().parse::<i32>().unwrap_or(4) > 2 {
        return not_run(format!(
            "not root, and kernel.perf_event_paranoid is {level}"
        ));
    }
    Ok(())
}

/// From sleep to full speed at once, three times; and the cost of waiting for that.
pub fn wakes_up() -> Result<()> {
    need_perf_events()?;
    for (seed, sleep) in [(901, "--sleep-us=0"), (902, "--sleep-us=20")] {
        let mut plan: Plan = plan(seed, 3000);
        plan.channels = Channel::first(4, gpus());
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let before = 20;
        let mut gpu = waiting(
            &plan,
            &[FILES, "--threads=2", sleep, LINGER, "--before-wait=20"],
        )?;
        let nvcap = of_sleeper(&gpu, &trace, &folder, &[])?;
        // Measured: 0.05 % of a core. On a busy machine each wake-up may cost more, and something may have kept it awake at first.
        let mut least = u64::MAX;
        for _ in 0..4 {
            let used = cpu_of(nvcap.pid())?;
            std::thread::sleep(Duration::from_secs(2));
            least = least.min(cpu_of(nvcap.pid())? - used);
            if least < 10_000_000 {
                break;
            }
        }
        ensure!(least < 10_000_000, "{least} ns of CPU time in 2 s at least");
        gpu.write(b"g")?;
        let gpu = gpu.end(LIMIT)?;
        expect_result(&gpu.stdout, &plan)?;
        let ended = nvcap.end(LIMIT)?;
        let extent = match ended.code()? {
            0 => Extent::From(before),
            // At full speed a ring may lap, which is counted.
            _ => Extent::Holes,
        };
        let report = verify(&trace, &Expected::part(plan, extent))?;
        let ledger = report.ledger.as_ref().context("no ledger")?;
        let gaps = ledger["gaps"].as_u64().unwrap_or(0);
        ensure!(
            report.entries + gaps >= 3000 - 4 * before,
            "{} shown and {gaps} missing: {ended:?}",
            report.entries
        );
        ensure!(sleep == "--sleep-us=0" || gaps == 0, "{gaps} missing");
    }
    Ok(())
}

/// It submits a little now and then, and sleeps long in between: nothing is missed.
pub fn naps() -> Result<()> {
    need_perf_events()?;
    let mut plan = plan(903, 8);
    plan.channels = Channel::first(2, gpus());
    let args = [FILES, "--threads=1", "--sleep-us=1600000", LINGER];
    until_whole(|| {
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let mut gpu = waiting(&plan, &args)?;
        let nvcap = of_sleeper(&gpu, &trace, &folder, &[])?;
        gpu.write(b"g")?;
        gpu.end(LIMIT)?.expect_code(0)?;
        let ended = nvcap.end(LIMIT)?;
        let expected = Expected::part(plan.clone(), Extent::From(1));
        Ok(whole_or_tail(&ended, &trace, &expected)?.is_some())
    })
}

/// The software GPU's files, which stay readable after its end: what was submitted is in them.
struct Files(Vec<File>);

impl Files {
    fn of(gpu: &Running) -> Result<Self> {
        let mut files = Vec::new();
        for fd in std::fs::read_dir(format!("/proc/{}/fd", gpu.pid()))? {
            let fd = fd?.path();
            if std::fs::read_link(&fd)?
                .to_string_lossy()
                .ends_with(" (deleted)")
            {
                files.push(File::open(&fd)?);
            }
        }
        ensure!(!files.is_empty(), "the software GPU has no file open");
        Ok(Self(files))
    }

    fn content(&self) -> Result<Vec<Vec<u8>>> {
        let read = |f: &File| {
            let mut bytes = vec![0; f.metadata()?.len() as usize];
            f.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        self.0.iter().map(read).collect()
    }
}

/// A process that is killed while asleep, or just after waking, is called complete only where it submitted nothing.
pub fn killed_in_its_sleep() -> Result<()> {
    need_perf_events()?;
    let mut unseen = 0;
    for round in 0..3 {
        let mut plan = plan(910 + round, 2000);
        plan.channels = Channel::first(1, gpus());
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let mut gpu = waiting(&plan, &[FILES, "--threads=1"])?;
        let nvcap = of_sleeper(&gpu, &trace, &folder, &[])?;
        let files = Files::of(&gpu)?;
        let before = files.content()?;
        if round > 0 {
            gpu.write(b"g")?;
        }
        gpu.signal(libc::SIGKILL)?;
        let ended = nvcap.end(LIMIT)?;
        if ended.code()? == 0 {
            // It was looked at just before it was killed.
            ensure!(files.content()? == before, "called complete: {ended:?}");
        } else {
            ended.expect_code(3)?;
            unseen += 1;
            ensure!(
                ended.stderr.contains("not seen") || round > 0,
                "{}",
                ended.stderr
            );
        }
        verify(&trace, &Expected::part(plan, Extent::Holes))?;
    }
    ensure!(
        unseen > 0,
        "killed in its sleep, and always called complete"
    );
    Ok(())
}
