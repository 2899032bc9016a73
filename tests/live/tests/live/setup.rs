//! Assumptions of the other tests: the software GPU's stores trap, and its plan holds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use live::bpf_calls;
use live::census::verified_instructions;
use live::harness::not_run;
pub use live::needs::{need_breakpoints, need_tracing};
use live::perf::Breakpoint;
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, checksum_of, verify};
use softgpu::layout::{CHANNELS, Channel, DOORBELL, GPUS, USUAL_GPUS, doorbell_page};
use softgpu::plan::Plan;
use softgpu::stream::Shape;

/// The longest time that any one run may take: a guard against hanging, not a verdict.
pub const LIMIT: Duration = GUARD;

/// Longest time for which runs are repeated whose names were not all found in time: a guard.
pub const REPEATS: Duration = Duration::from_secs(180);

/// GPUs of the traced program: both of the software GPU's, or NVCAP_LIVE_GPUS. Under QEMU it must be one: when several
/// watchpoints are hit in turn, QEMU sometimes reports a hit of one for another as well.
pub fn gpus() -> usize {
    let asked = std::env::var("NVCAP_LIVE_GPUS")
        .ok()
        .and_then(|n| n.parse().ok());
    asked.unwrap_or(USUAL_GPUS).clamp(1, GPUS)
}

/// Returns a number of submissions or the like: `emulated` on an emulated machine, enough for the purpose of the test; else `native`.
pub fn sized(native: u64, emulated: u64) -> u64 {
    match std::env::var_os("SOFTGPU_DEVICE") {
        Some(_) => emulated,
        None => native,
    }
}

/// A plan on all channels of all GPUs, one entry per submission.
pub fn plan(seed: u64, submissions: u64) -> Plan {
    Plan {
        shape: Shape {
            seed,
            image: 0,
            burst: 1,
            big_one_in: 0,
            launches_only: false,
            kernels: false,
            module_every: 0,
            rounds: None,
            timed: None,
            code: false,
        },
        channels: Channel::first(CHANNELS * gpus(), gpus()),
        submissions,
    }
}

/// The software GPU's options that give `plan`.
pub fn plan_args(plan: &Plan) -> Vec<String> {
    let mut args = vec![
        format!("--seed={}", plan.shape.seed),
        format!("--gpus={}", gpus()),
        format!("--submissions={}", plan.submissions),
        format!("--channels={}", plan.channels.len()),
        format!("--burst={}", plan.shape.burst),
    ];
    if plan.shape.big_one_in > 0 {
        args.push(format!("--big={}", plan.shape.big_one_in));
    }
    args
}

/// The last line of a successful run must have the plan's checksum.
pub fn expect_result(ended_stdout: &str, plan: &Plan) -> Result<()> {
    let wanted = format!("checksum={:#018x}", checksum_of(plan));
    let image = format!("done image={} ", plan.shape.image);
    ensure!(
        ended_stdout
            .lines()
            .any(|l| l.starts_with(&image) && l.contains(&wanted)),
        "the software GPU did not say `{image}… {wanted}`:\n{ended_stdout}"
    );
    Ok(())
}

fn count(args: &[&str], submissions: u64) -> Result<()> {
    need_breakpoints()?;
    let plan = plan(5, submissions);
    let mut gpu = Running::start(
        &softgpu()?,
        plan_args(&plan)
            .iter()
            .map(String::as_str)
            .chain(args.iter().copied()),
    )?;
    gpu.wait_for_line("waiting")?;
    let mut breakpoints = Vec::new();
    for gpu_index in 0..gpus() {
        for page in 0..2 {
            let address = doorbell_page(gpu_index, page) + DOORBELL;
            breakpoints
                .push(Breakpoint::watch(gpu.pid(), address, true).context("opening a breakpoint")?);
        }
    }
    gpu.write(b"g")?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let counts = breakpoints
        .iter_mut()
        .map(Breakpoint::count)
        .collect::<std::io::Result<Vec<u64>>>()?;
    let ended = gpu.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)?;
    // A virtual machine may lose a rare hit; the software GPU then counts a stray trap.
    let stray: u64 = ended
        .stdout
        .lines()
        .filter_map(|l| {
            l.rsplit_once("stray_traps=")
                .and_then(|(_, n)| n.parse::<u64>().ok())
        })
        .sum();
    let hits: u64 = counts.iter().sum();
    ensure!(
        counts.iter().step_by(2).all(|n| *n == 0),
        "the first page of a GPU was rung: {counts:?}"
    );
    ensure!(
        hits + stray == submissions,
        "{counts:?} hits and {stray} stray traps of {submissions} doorbells"
    );
    Ok(())
}

/// Each doorbell of one thread is one hit of the second page's breakpoint.
pub fn stores_trap() -> Result<()> {
    count(
        &[
            "--threads=1",
            "--wait-stdin",
            "--before-wait=0",
            "--linger-ms=200",
        ],
        400,
    )
}

/// Each doorbell is one hit of the breakpoint also in threads made after it was set, and in threads made by them.
pub fn stores_trap_in_heirs() -> Result<()> {
    count(
        &[
            "--threads=4",
            "--churn=3",
            "--wait-stdin",
            "--before-wait=0",
            "--linger-ms=200",
        ],
        400,
    )
}

/// During a trace, nvcap requests no map operation from bpf(2): during such an operation the kernel runs no program on a
/// kprobe or a breakpoint on that processor, for any thread.
pub fn no_operations_on_maps() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let plan = plan(19, sized(1500, 300));
    let mut args: Vec<std::ffi::OsString> = vec!["-q".into(), "--channels".into()];
    args.extend([folder.channels()?.into(), "--".into(), softgpu()?.into()]);
    args.extend(plan_args(&plan).into_iter().map(Into::into));
    args.extend(["--wait-stdin", "--threads=4", "--linger-ms=700", "--exec=1"].map(Into::into));
    let mut nvcap = Running::start_prepared(&nvcap()?, args, None, bpf_calls::notify)?;
    let operations = bpf_calls::collect(nvcap.pid())?;
    nvcap.wait_for_line("waiting")?;
    ensure!(
        !operations.take().is_empty(),
        "no operation was notified, not even those of its start"
    );
    nvcap.write(b"g")?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    let asked = operations.take();
    ensure!(asked.is_empty(), "operations {asked:?}");
    Ok(())
}

/// The program's own check passes untraced, and its checksum equals that of the plan formed here.
/// Most instructions that the verifier may go through for one program. A trace begins once it is through with all of them: one that took it 316,683
/// made that a third of a second.
const VERIFIED: u64 = 20_000;

pub fn programs_are_verified_soon() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let mut gpu = super::attach::waiting(&plan(12, 10), &[] as &[&str])?;
    let channels = folder.channels()?;
    let nvcap = super::attach::attach(gpu.pid(), &folder.file("trace.json"), channels, &[])?;
    let all = verified_instructions(nvcap.pid())?;
    gpu.write(b"g")?;
    gpu.end(LIMIT)?.expect_code(0)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    if all.is_empty() {
        return not_run("this kernel does not tell how long its verifier took (Linux 5.16 does)");
    }
    ensure!(all.len() > 5, "{all:?}");
    ensure!(all.values().all(|n| *n < VERIFIED), "{all:?}");
    Ok(())
}

pub fn the_plan_is_what_memory_held() -> Result<()> {
    for (burst, big) in [(1, 0), (40, 7)] {
        let mut plan = plan(11, 500);
        plan.shape.burst = burst;
        plan.shape.big_one_in = big;
        let ended = Running::start(&softgpu()?, plan_args(&plan))?.end(LIMIT)?;
        ended.expect_code(0)?;
        expect_result(&ended.stdout, &plan)?;
    }
    Ok(())
}

/// A trace of `plan` as nvcap would write it, one submission per doorbell, channel after channel.
fn written(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut submissions, mut entries, mut bytes) = (0, 0, 0);
    for (i, channel) in plan.channels.iter().enumerate() {
        for s in plan.stream(i) {
            let head = format!(
                "\"time_ns\":1,\"pid\":7,\"tid\":8,\"token\":{},\"channel\":{i},\"gpu\":{}",
                channel.token(),
                channel.gpu
            );
            let n = s.entries.len() as u64;
            let put = |position: u64| position % u64::from(softgpu::layout::ENTRIES);
            lines.push(format!(
                "{{\"type\":\"submission\",{head},\"position\":{},\"prev_put\":{},\"gp_put\":{},\"entries\":{n},\"late\":false}}",
                s.position,
                put(s.position),
                put(s.position + n)
            ));
            for e in &s.entries {
                let data: String = e.bytes.iter().map(|b| format!("{b:02x}")).collect();
                lines.push(format!(
                    "{{\"type\":\"entry\",{head},\"raw\":\"{:#018x}\",\"len\":{},\"missing\":0,\"data\":\"{data}\"}}",
                    e.raw,
                    e.bytes.len()
                ));
                bytes += e.bytes.len();
            }
            submissions += 1;
            entries += n;
        }
    }
    lines.push(format!(
        "{{\"type\":\"ledger\",\"complete\":true,\"submissions\":{submissions},\"entries\":{entries},\"bytes\":{bytes}}}"
    ));
    lines
}

/// The comparison that the other tests rely on accepts the plan itself, and rejects every deviation from it.
pub fn the_verifier_finds_faults() -> Result<()> {
    let mut plan = plan(17, 60);
    plan.channels.truncate(3);
    plan.shape.burst = 3;
    let right = written(&plan);
    let folder = Folder::new()?;
    let path = folder.file("trace.json");
    let try_it = |lines: &[String], extent: Extent| -> Result<()> {
        std::fs::write(&path, lines.join("\n") + "\n")?;
        verify(&path, &Expected::part(plan.clone(), extent))?.expect_complete()
    };
    try_it(&right, Extent::Whole)?;
    try_it(&right, Extent::Prefix)?;
    try_it(&right, Extent::Suffix)?;
    let entry = |n: usize| {
        right
            .iter()
            .enumerate()
            .filter(|(_, l)| l.contains("\"len\":") && !l.contains("\"len\":0"))
            .nth(n)
            .map(|(i, _)| i)
    };
    let at = entry(20).context("no entry")?;
    let head = right
        .iter()
        .rposition(|l| l.contains("submission\""))
        .context("no submission")?;
    type Fault = Box<dyn Fn(&mut Vec<String>)>;
    let faults: [(&str, Fault); 8] = [
        ("an entry missing", Box::new(move |l| drop(l.remove(at)))),
        (
            "an entry twice",
            Box::new(move |l| l.insert(at, l[at].clone())),
        ),
        (
            "a byte changed",
            Box::new(move |l| {
                let end = l[at].len() - 3;
                let other = if l[at].as_bytes()[end] == b'0' {
                    "1"
                } else {
                    "0"
                };
                l[at].replace_range(end..=end, other);
            }),
        ),
        (
            "a byte not read",
            Box::new(move |l| l[at] = l[at].replace("\"missing\":0", "\"missing\":1")),
        ),
        (
            "the last submission missing",
            Box::new(move |l| drop(l.drain(head..l.len() - 1))),
        ),
        (
            "a foreign channel",
            Box::new(move |l| l[head] = l[head].replace("\"gpu\":", "\"gpu\":1")),
        ),
        ("the ledger missing", Box::new(|l| drop(l.pop()))),
        (
            "the ledger incomplete",
            Box::new(|l| {
                let last = l.len() - 1;
                l[last] = l[last].replace("true", "false");
            }),
        ),
    ];
    for (what, fault) in faults {
        let mut wrong = right.clone();
        fault(&mut wrong);
        ensure!(wrong != right, "{what}: the fault was not made");
        ensure!(try_it(&wrong, Extent::Whole).is_err(), "{what}: not found");
    }
    Ok(())
}
