//! Observing with several threads. Each channel goes from one to the next every 10 ms, whatever looking at it costs, and what is shown must be
//! the plan all the same: in the order of each ring, once, with nothing missing.

use anyhow::{Context, Result, ensure};
use live::verify::Report;
use softgpu::layout::Channel;

use crate::observe::{THREADS, own_children_of, whole_programs, whole_with};
use crate::setup::{gpus, plan};

/// The account has three threads beside the first, each with channels and CPU time.
fn all_read(report: &Report) -> Result<()> {
    let ledger = report.ledger.as_ref().context("no ledger")?;
    let readers = &ledger["observed"]["readers"];
    let readers = readers.as_array().context("no readers")?;
    let worked = |r: &serde_json::Value| {
        let number = |name: &str| r[name].as_u64().unwrap_or(0);
        number("channels") > 0 && number("cpu_ns") > 0
    };
    ensure!(readers.len() == 3 && readers.iter().all(worked), "{ledger}");
    Ok(())
}

pub fn rates() -> Result<()> {
    for (sleep, submissions) in [(1000, 400), (0, 12_000)] {
        let mut plan = plan(61 + sleep, submissions);
        plan.channels = Channel::first(4, gpus());
        let nap = format!("--sleep-us={sleep}");
        let report = whole_with(plan, &["--threads=4", &nap], &[THREADS])?;
        all_read(&report)?;
    }
    Ok(())
}

pub fn ring_wrap() -> Result<()> {
    let mut plan = plan(3, 6000);
    plan.channels = Channel::first(1, gpus());
    whole_with(plan, &["--threads=1"], &[THREADS])?;
    Ok(())
}

pub fn many_threads() -> Result<()> {
    whole_with(plan(7, 3000), &["--threads=16", "--churn=3"], &[THREADS])?;
    Ok(())
}

/// A ring that several processes have is read from another one when the first ends.
pub fn fork_shared() -> Result<()> {
    let report = whole_with(plan(11, 2000), &["--threads=2", "--fork=2"], &[THREADS])?;
    ensure!(report.processes.len() == 1, "{:?}", report.processes);
    Ok(())
}

pub fn fork_and_exec() -> Result<()> {
    own_children_of(&["--spawn=2"], &[THREADS])
}

/// Rings that end while a reader has them, and others at their addresses soon after.
pub fn exec() -> Result<()> {
    whole_programs(&plan(13, 1500), 3, &["--threads=2", "--exec=2"], &[THREADS])
}
