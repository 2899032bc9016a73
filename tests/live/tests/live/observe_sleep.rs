//! `nvcap --how observe` of sleeping processes: their work after waking is seen. (That they cost next to nothing is measured.)

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use live::harness::not_run;
use live::in_step::Step;
use live::programs::{Folder, Running};
use live::verify::{Expected, Extent, verify};
use softgpu::layout::Channel;
use softgpu::plan::Plan;

use crate::attach::waiting;
use crate::observe::{FILES, all_seen, options};
use crate::setup::{LIMIT, expect_result, gpus, plan};

/// An nvcap that observes the sleeping `gpu`, and has noticed the sleep: it has asked the kernel to tell when it runs.
fn of_sleeper(gpu: &Running, trace: &Path, folder: &Folder, step: &Step) -> Result<Running> {
    let mut command = options(trace, folder, &[FILES], &[])?;
    command.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = step.nvcap(command)?;
    nvcap.wait_until("attached", LIMIT, |n| n.stderr().contains("attached"))?;
    nvcap.wait_until("told when it runs", LIMIT, |n| {
        n.perf_events_of_processes() > 0
    })?;
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

/// From sleep to work at once: all of it is seen. (What waiting for that costs, and how much is seen at full speed: `measure::observe`.)
pub fn wakes_up() -> Result<()> {
    need_perf_events()?;
    let mut plan: Plan = plan(901, 3000);
    plan.channels = Channel::first(4, gpus());
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let mut gpu = waiting(
        &plan,
        &step.with(&[FILES, "--threads=2", "--before-wait=20"]),
    )?;
    let nvcap = of_sleeper(&gpu, &trace, &folder, &step)?;
    gpu.write(b"g")?;
    let gpu = gpu.end(LIMIT)?;
    expect_result(&gpu.stdout, &plan)?;
    let ended = nvcap.end(LIMIT)?;
    all_seen(&ended, &trace, &Expected::part(plan, Extent::From(20)))?;
    Ok(())
}

/// The program submits a little now and then, and sleeps long in between: nothing is missed.
pub fn naps() -> Result<()> {
    need_perf_events()?;
    let mut plan = plan(903, 8);
    plan.channels = Channel::first(2, gpus());
    let folder = Folder::new()?;
    let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
    let args = [FILES, "--threads=1", "--sleep-us=1600000"];
    let mut gpu = waiting(&plan, &step.with(&args))?;
    let nvcap = of_sleeper(&gpu, &trace, &folder, &step)?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let ended = nvcap.end(LIMIT)?;
    all_seen(&ended, &trace, &Expected::part(plan, Extent::From(1)))?;
    Ok(())
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

/// A process that is killed while asleep, or just after waking, is called complete only where it submitted nothing; and it is not where nvcap
/// had not looked at it for a while.
pub fn killed_in_its_sleep() -> Result<()> {
    need_perf_events()?;
    for round in 0..3 {
        let mut plan = plan(910 + round, 2000);
        plan.channels = Channel::first(1, gpus());
        let folder = Folder::new()?;
        let (trace, step) = (folder.file("trace.json"), Step::new(&folder)?);
        let mut gpu = waiting(&plan, &[FILES, "--threads=1"])?;
        let mut nvcap = of_sleeper(&gpu, &trace, &folder, &step)?;
        let files = Files::of(&gpu)?;
        let before = files.content()?;
        if round == 0 {
            nvcap.stop()?;
            // At least: it must not take its last look for one at the end.
            std::thread::sleep(Duration::from_millis(20));
        } else {
            gpu.write(b"g")?;
        }
        gpu.signal(libc::SIGKILL)?;
        drop(gpu);
        nvcap.signal(libc::SIGCONT)?;
        let ended = nvcap.end(LIMIT)?;
        if ended.code()? == 0 {
            // It was looked at just before it was killed.
            ensure!(
                round > 0 && files.content()? == before,
                "called complete: {ended:?}"
            );
        } else {
            ended.expect_code(3)?;
            ensure!(
                ended.stderr.contains("not seen") || round > 0,
                "{}",
                ended.stderr
            );
        }
        verify(&trace, &Expected::part(plan, Extent::Holes))?;
    }
    Ok(())
}
