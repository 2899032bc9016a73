//! Observing at full speed: how much is seen, what it costs.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use live::measure::Figure;
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};

use crate::runs::{Traced, traced, untraced};

const OBSERVE: &str = "--how=observe";

/// The share of all submissions that is seen, by the writer's pauses; and how long the program takes beside its time untraced.
pub fn rates() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (pause, submissions) in [
        (1000, 400),
        (300, 1500),
        (100, 4000),
        (30, 8000),
        (5, 12_000),
        (0, 40_000),
    ] {
        let (number, nap) = (
            format!("--submissions={submissions}"),
            format!("--sleep-us={pause}"),
        );
        let program = ["--channels=2", "--threads=2", &number, &nap];
        let alone = untraced(&program)?;
        let begun = std::time::Instant::now();
        let traced = traced(&[OBSERVE], &program)?;
        let took = begun.elapsed().as_secs_f64();
        let of = format!("at pauses of {pause} us");
        let seen = traced.number(&["entries"]) / f64::from(submissions);
        figures.push(Figure::new(format!("share seen {of}"), seen, "").beside(1.0));
        let largest = traced.number(&["observed", "largest_part"]);
        figures.push(Figure::new(format!("largest part of a ring {of}"), largest, "").beside(1.0));
        figures.push(Figure::new(format!("time with nvcap {of}"), took, "s").beside(alone));
    }
    Ok(figures)
}

/// Processor time that nvcap takes, beside what it may.
pub fn budget() -> Result<Vec<Figure>> {
    let program = [
        "--channels=4",
        "--threads=2",
        "--submissions=12000",
        "--sleep-us=400",
    ];
    let traced = traced(&[OBSERVE, "--observe-cpu=2%"], &program)?;
    let wall = traced.number(&["observed", "wall_ns"]);
    let used = traced.number(&["observed", "cpu_ns"]) / wall;
    let seen = traced.number(&["entries"]) / 12_000.0;
    Ok(vec![
        // Up to a second's worth may be saved, and is available at the start.
        Figure::new("share of a core with --observe-cpu=2%", used, "")
            .beside(0.02 * (1.0 + 1e9 / wall)),
        Figure::new("share seen with --observe-cpu=2%", seen, "").beside(1.0),
    ])
}

/// Measures how many looks are peeks at a semaphore where submissions come every 2 ms.
pub fn peeks() -> Result<Vec<Figure>> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = [OBSERVE, "--json", "-o"].map(OsString::from).to_vec();
    args.extend([trace.clone().into(), "--".into(), softgpu()?.into()]);
    let program = [
        "--files",
        "--channels=3",
        "--threads=3",
        "--submissions=6000",
        "--sleep-us=2000",
    ];
    args.extend(program.map(OsString::from));
    Running::start(&nvcap()?, args)?.end(GUARD)?;
    let traced = Traced::of(&trace)?;
    let of = |name| traced.number(&["observed", name]);
    let (looks, peeks) = (of("looks"), of("peeks"));
    Ok(vec![Figure::new("peeks", peeks, "").beside(looks)])
}

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

/// Measures the cost of waiting for a sleeping process, and how much is seen of what it does at full speed right after waking.
pub fn sleeping() -> Result<Vec<Figure>> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let program = [
        "--files",
        "--channels=4",
        "--threads=2",
        "--submissions=3000",
        "--before-wait=20",
        "--wait-stdin",
        "--linger-ms=300",
    ];
    let mut gpu = Running::start(&softgpu()?, program)?;
    gpu.wait_for_line("waiting")?;
    let mut args: Vec<OsString> = [OBSERVE, "--json", "-o"].map(OsString::from).to_vec();
    args.extend([trace.clone().into(), "-p".into()]);
    args.push(gpu.pid().to_string().into());
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_until("attached", GUARD, |n| n.stderr().contains("attached"))?;
    let (used, second) = (cpu_of(nvcap.pid())?, Duration::from_secs(1));
    std::thread::sleep(second);
    let awake = (cpu_of(nvcap.pid())? - used) as f64;
    nvcap.wait_until("told when it runs", GUARD, |n| {
        n.perf_events_of_processes() > 0
    })?;
    let used = cpu_of(nvcap.pid())?;
    std::thread::sleep(2 * second);
    let asleep = (cpu_of(nvcap.pid())? - used) as f64 / 2.0;
    gpu.write(b"g")?;
    gpu.end(GUARD)?;
    nvcap.end(GUARD)?;
    let seen = Traced::of(&trace)?.number(&["entries"]) / (3000.0 - 80.0);
    Ok(vec![
        Figure::new(
            "CPU a second of a sleeping process, beside its first second",
            asleep,
            "ns",
        )
        .beside(awake),
        Figure::new("share seen at full speed after sleep", seen, "").beside(1.0),
    ])
}
