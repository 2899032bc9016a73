//! `nvcap ranks` of two running programs. The software GPU's kernels wait for nobody, so nothing may be matched; who the ranks are, and
//! what each called, must be told.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Result, ensure};
use live::in_step::Step;
use live::programs::{Folder, GUARD, Running, softgpu};

use crate::setup::need_tracing;
use crate::time_from_stamps::objects;

/// Submissions of each.
const SUBMISSIONS: u64 = 100;

/// A rank that waits for a byte on its standard input.
fn rank(step: &Step, number: u32) -> Result<Running> {
    let options =
        "--timed --files --gpus=1 --threads=1 --channels=1 --timed-queue=4 --kernels --wait-stdin";
    let mut args: Vec<String> = options.split(' ').map(str::to_owned).collect();
    args.push("--before-wait=3".to_owned());
    args.push(format!("--submissions={SUBMISSIONS}"));
    args.extend(step.args());
    let told = |command: &mut Command| {
        command
            .env("RANK", number.to_string())
            .env("WORLD_SIZE", "2");
    };
    let mut program = Running::start_prepared(&softgpu()?, args, None, told)?;
    program.wait_for_line("waiting")?;
    Ok(program)
}

/// Two running ranks: their numbers are those of their environments, each rank's time adds up, and calls that do not wait for each other are
/// no collective of both.
pub fn two_that_run() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let (out, step) = (folder.file("ranks.json"), Step::new(&folder)?);
    let mut ranks = [rank(&step, 0)?, rank(&step, 1)?];
    let words = "ranks --stop-at-exit=always --json --collective *kernel<* -o";
    let mut args: Vec<OsString> = words.split(' ').map(OsString::from).collect();
    args.push(out.clone().into());
    for rank in &ranks {
        args.extend(["-p".into(), rank.pid().to_string().into()]);
    }
    let mut nvcap = step.nvcap(args)?;
    nvcap.wait_until("both attached", GUARD, |r| {
        r.stderr().matches("attached").count() >= 2
    })?;
    for rank in &mut ranks {
        rank.write(b"g")?;
    }
    for rank in &mut ranks {
        rank.wait_until("done", GUARD, |r| r.stdout().contains("done image=0"))?;
    }
    nvcap.signal(libc::SIGTERM)?;
    let ended = nvcap.end(GUARD)?;
    ended.expect_code(0)?;
    let objects = objects(&out)?;
    let [found, ledger] = &objects[..] else {
        anyhow::bail!("no two objects: {objects:?}");
    };
    ensure!(
        ledger["type"] == "ledger" && ledger["complete"] == true,
        "{ledger}"
    );
    ensure!(
        found["type"] == "ranks" && found["gpu_times"] == true,
        "{found}"
    );
    // A process of which no name was found in time has no collective that is known, and says so.
    let unnamed = found["kernels_without_name_of_these"].as_u64();
    let those = found["ranks"].as_array().map_or(0, Vec::len) as u64;
    let others = found["processes_without_collectives"].as_u64();
    ensure!(others.map(|n| n + those) == Some(2), "{found}");
    ensure!(others == Some(0) || unnamed > Some(0), "{found}");
    for rank in found["ranks"].as_array().into_iter().flatten() {
        let number = rank["rank"].as_u64().unwrap_or(9);
        let process = ranks.get(number as usize).map(|r| u64::from(r.pid()));
        ensure!(
            process.is_some() && rank["pid"].as_u64() == process,
            "{rank}"
        );
        ensure!(rank["world_size"] == 2, "{rank}");
        let ns = |of: &str| rank[of].as_u64().unwrap_or(u64::MAX / 8);
        let parts = [
            "compute_ns",
            "exposed_ns",
            "waiting_ns",
            "copying_ns",
            "unknown_ns",
            "idle_ns",
        ];
        ensure!(parts.map(ns).iter().sum::<u64>() == ns("span_ns"), "{rank}");
        // Calls, and kernels that may be some, are no more than what was submitted.
        let calls = ns("calls") + ns("kernels_without_name");
        ensure!((1..=SUBMISSIONS).contains(&calls), "{rank}");
    }
    for rank in ranks {
        rank.end(GUARD)?.expect_code(0)?;
    }
    Ok(())
}
