//! `nvcap ranks` of eight programs whose collectives wait for each other, against what ran.
//!
//! The ranks are in step with nvcap, and one that comes last does so behind all others, by a multiple of what the round took until then: who is
//! last does not depend on the machine. Where nobody is made late the machine says who comes last, and the truth tells whom to blame.

use std::collections::BTreeMap;
use std::ffi::OsString;

use anyhow::{Context, Result, ensure};
use live::in_step::Step;
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};
use serde_json::Value;
use softgpu::layout::channels_file;
use softgpu::timed::STAMP_TO_START;

use crate::setup::need_tracing;
use crate::time_from_stamps::{in_step, number, objects};

const RANKS: u32 = 8;
/// The rank that comes last, where one does.
const LATE: u32 = 5;
const ROUNDS: u64 = 32;
/// Rounds of a step: the last collective of each is of another kind.
const OF_STEP: u64 = 4;
/// Kernels of each rank before nvcap is there: those of the first round.
const BEFORE: u64 = 3;

/// Way in which nvcap looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Observed,
    Trapped,
    Recorded,
}

/// A rank that waits for a byte on its standard input.
fn rank(folder: &Folder, step: &Step, rank: u32, late: Option<&str>) -> Result<Running> {
    let options =
        "--timed --files --gpus=1 --threads=1 --channels=1 --timed-queue=4 --kernels --wait-stdin";
    let mut args: Vec<OsString> = options.split(' ').map(OsString::from).collect();
    let mut add = |option: String| args.push(option.into());
    add(format!("--before-wait={BEFORE}"));
    add(format!("--round-kernels={BEFORE}"));
    add(format!("--step-rounds={OF_STEP}"));
    add(format!("--rounds={ROUNDS}"));
    add(format!("--ranks={RANKS}"));
    add(format!("--rank={rank}"));
    add(format!("--seed={}", rank + 1));
    // All are on GPU 0, which has one clock.
    add("--timed-clock-us=600".to_owned());
    add("--timed-drift-ppm=0".to_owned());
    add(format!("--collective={}", folder.file("job").display()));
    step.args().into_iter().for_each(&mut add);
    add(format!("--timed-truth={}", truth(folder, rank).display()));
    if let Some(late) = late.filter(|_| rank == LATE) {
        add(format!("--late={late}"));
    }
    let mut program = Running::start_prepared(&softgpu()?, args, None, |command| {
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string());
    })?;
    program.wait_for_line("waiting")?;
    Ok(program)
}

fn truth(folder: &Folder, rank: u32) -> std::path::PathBuf {
    folder.file(&format!("truth-{rank}.json"))
}

/// Findings, and by collective the times at which each rank came.
struct Ran {
    found: Value,
    arrivals: BTreeMap<u64, Vec<u64>>,
}

fn run(way: Way, late: Option<&str>) -> Result<Ran> {
    need_tracing()?;
    let folder = Folder::new()?;
    let (out, recording) = (folder.file("ranks.json"), folder.file("run.pcapng"));
    let step = Step::new(&folder)?;
    let mut ranks = Vec::new();
    for n in 0..RANKS {
        ranks.push(rank(&folder, &step, n, late)?);
    }
    let words = match way {
        Way::Observed => "ranks --json --arrivals --stop-at-exit=always -o",
        Way::Trapped => "ranks --how=trap --json --arrivals --stop-at-exit=always -o",
        Way::Recorded => "record --gpu-time --how=observe --stop-at-exit=always -o",
    };
    let mut args: Vec<OsString> = words.split(' ').map(OsString::from).collect();
    args.push(match way {
        Way::Recorded => recording.clone().into(),
        _ => out.clone().into(),
    });
    if way == Way::Trapped {
        let channels = folder.file("channels.txt");
        std::fs::write(&channels, channels_file(1))?;
        args.extend(["--channels".into(), channels.into()]);
    }
    for rank in &ranks {
        args.extend(["-p".into(), rank.pid().to_string().into()]);
    }
    let mut tracer = Running::start_prepared(&nvcap()?, args, None, in_step(&step))?;
    tracer.wait_until("all attached", GUARD, |r| {
        r.stderr().matches("attached").count() >= RANKS as usize
    })?;
    for rank in &mut ranks {
        rank.write(b"g")?;
    }
    for rank in &mut ranks {
        rank.wait_until("done", GUARD, |r| r.stdout().contains("done image=0"))?;
    }
    tracer.signal(libc::SIGTERM)?;
    tracer.end(GUARD)?.expect_code(0)?;
    let numbers: Vec<String> = { ranks.iter().zip(0..) }
        .map(|(program, n): (&Running, u32)| format!("{}={n}", program.pid()))
        .collect();
    for rank in ranks {
        rank.end(GUARD)?.expect_code(0)?;
    }
    if way == Way::Recorded {
        let mut args: Vec<OsString> = { "ranks --json --arrivals -o".split(' ') }
            .map(OsString::from)
            .collect();
        args.extend([out.clone().into(), recording.into()]);
        args.extend(numbers.iter().flat_map(|n| ["--rank".into(), n.into()]));
        let read = Running::start(&nvcap()?, args)?;
        read.end(GUARD)?.expect_code(0)?;
    }
    let objects = objects(&out)?;
    let [found, ledger] = &objects[..] else {
        anyhow::bail!("no two objects: {objects:?}");
    };
    ensure!(
        ledger["type"] == "ledger" && ledger["complete"] == true,
        "{ledger}"
    );
    let mut arrivals: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for rank in 0..RANKS {
        let ran = crate::time_from_stamps::objects(&truth(&folder, rank))?;
        for ran in ran.iter().filter(|r| r["collective"].is_u64()) {
            let of = arrivals.entry(number(ran, "collective")?).or_default();
            ensure!(of.len() == rank as usize, "not one after the other: {ran}");
            // A kernel's time is counted from its stamp.
            of.push(number(ran, "start_ns")? - STAMP_TO_START);
        }
    }
    ensure!(arrivals.len() as u64 == ROUNDS, "{}", arrivals.len());
    Ok(Ran {
        found: found.clone(),
        arrivals,
    })
}

fn rank_of(name: &Value) -> Result<usize> {
    let number = name.as_str().and_then(|n| n.strip_prefix("rank "));
    number
        .and_then(|n| n.parse().ok())
        .with_context(|| format!("no rank: {name}"))
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Compares each call's arrivals, and what is said of all; returns the number of calls of which the last rank was told.
fn compare(ran: &Ran) -> Result<usize> {
    let found = &ran.found;
    let several = items(&found["communicators"]);
    ensure!(several.len() == 1, "one communicator: {found}");
    let of = &several[0];
    ensure!(items(&of["members"]).len() == RANKS as usize, "{of}");
    for counted in ["calls", "matched"] {
        let counts = items(&of["kinds"]).iter().map(|k| k[counted].as_u64());
        let sum: u64 = counts.flatten().sum();
        ensure!(sum == ROUNDS, "{counted} {sum}: {of}");
    }
    for rank in items(&found["ranks"]) {
        ensure!(
            rank["losses"] == 0 && rank["kernels_without_name"] == 0,
            "{rank}"
        );
    }
    let mut told = 0;
    for arrival in items(&of["arrivals"]) {
        let truth = { ran.arrivals.get(&(number(arrival, "call")? - 1)) }.context("a call")?;
        let mut order = Vec::new();
        for came in items(&arrival["order"]) {
            let (rank, error) = (rank_of(&came["name"])?, number(came, "error_ns")?);
            let begin = number(came, "begin_ns")?;
            ensure!(
                begin.abs_diff(truth[rank]) <= error,
                "rank {rank} is said to have come at {begin}, and came at {}: {arrival}",
                truth[rank]
            );
            order.push((rank, begin, error));
        }
        ensure!(order.len() == RANKS as usize, "{arrival}");
        for (n, &(first, before, error)) in order.iter().enumerate() {
            for &(second, begin, its) in &order[n + 1..] {
                let apart = begin - before > error + its;
                ensure!(
                    !apart || truth[first] < truth[second],
                    "{arrival} {truth:?}"
                );
            }
        }
        let skew = truth.iter().max().context("ranks")? - truth.iter().min().context("ranks")?;
        let error = number(arrival, "skew_error_ns")?;
        ensure!(
            number(arrival, "skew_ns")?.abs_diff(skew) <= error,
            "{arrival} {truth:?}"
        );
        if let [last] = items(&arrival["last"]) {
            let last = rank_of(last)?;
            ensure!(
                truth.iter().all(|t| *t <= truth[last]),
                "{arrival} {truth:?}"
            );
            told += 1;
        }
    }
    Ok(told)
}

/// Share of what the others waited for each rank, of what all waited: by kind of call, of the truth.
fn blame(ran: &Ran, other_kind: bool) -> Vec<f64> {
    let mut blame = vec![0u64; RANKS as usize];
    for (call, truth) in &ran.arrivals {
        if (call + 1).is_multiple_of(OF_STEP) != other_kind {
            continue;
        }
        let last = (0..truth.len()).max_by_key(|r| truth[*r]).unwrap_or(0);
        blame[last] += truth.iter().map(|t| truth[last] - t).sum::<u64>();
    }
    let all: u64 = blame.iter().sum();
    blame
        .iter()
        .map(|b| *b as f64 / all.max(1) as f64)
        .collect()
}

/// One rank comes last in this way: it is found, by what it did.
fn straggler(way: Way, late: &str, cause: &str) -> Result<()> {
    let ran = run(way, Some(late))?;
    for (call, truth) in &ran.arrivals {
        let is_late = late != "slow" || call.is_multiple_of(OF_STEP) && *call > 0;
        ensure!(
            !is_late || truth.iter().all(|t| *t <= truth[LATE as usize]),
            "the software GPU's rank came too early to {call}: {truth:?}"
        );
    }
    let told = compare(&ran)?;
    let verdict = ran.found["verdict"].as_str().unwrap_or_default();
    let (blamed, rule) = (blame(&ran, false)[LATE as usize], late != "slow");
    // Near nine sixteenths either is right: who waits behind the last late call waits for the machine.
    if blamed < 0.65 {
        ensure!(!rule, "{blamed}");
        return Ok(());
    }
    // Of many calls few are late with a slow kernel: it may be said either way.
    let expected = match rule {
        true => format!("rank {LATE} comes last in "),
        false => format!("rank {LATE} "),
    };
    ensure!(
        verdict.starts_with(&expected),
        "{verdict} ({told} told, {blamed})"
    );
    ensure!(verdict.contains(cause), "{verdict}");
    Ok(())
}

/// Two kernels more in each round of one rank, of which the second one is long.
pub fn extra_kernels_observed() -> Result<()> {
    straggler(Way::Observed, "extra", "2 more of kernel<11> before each")
}

/// A host that submits its collectives late, by the doorbells.
pub fn sleeping_host_trapped() -> Result<()> {
    straggler(Way::Trapped, "host", "its host is late")
}

/// One kernel of a step takes long: of many calls few are late.
pub fn slow_kernel_recorded() -> Result<()> {
    straggler(Way::Recorded, "slow", "kernel<0> takes it ")
}

/// No rank is made late: who is blamed is as the truth has it.
pub fn nobody_recorded() -> Result<()> {
    let ran = run(Way::Recorded, None)?;
    compare(&ran)?;
    let verdict = ran.found["verdict"].as_str().unwrap_or_default();
    let most = |other| {
        let of = blame(&ran, other).into_iter().enumerate();
        of.fold(
            (0, 0.0),
            |most, one| if one.1 > most.1 { one } else { most },
        )
    };
    let kinds = [most(false), most(true)];
    // Nine sixteenths is the limit of eight; near it either is right.
    if kinds.iter().all(|(_, share)| *share < 0.5) {
        let none = "no rank holds up the others";
        ensure!(verdict.starts_with(none), "{verdict} {kinds:?}");
    } else if kinds.iter().all(|(_, share)| *share < 0.5 || *share > 0.65) {
        let to_blame = |(rank, share): &(usize, f64)| {
            *share > 0.65 && verdict.starts_with(&format!("rank {rank} "))
        };
        ensure!(kinds.iter().any(to_blame), "{verdict} {kinds:?}");
    }
    Ok(())
}

/// One rank of three never comes to the sixth collective: who is in it, and who is not, is told by looks at all of them and by the watch.
pub fn a_rank_that_does_not_come() -> Result<()> {
    let folder = Folder::new()?;
    let mut ranks = Vec::new();
    for n in 0..3u32 {
        let options = "--timed --files --gpus=1 --threads=1 --channels=1 --kernels --rounds=20 --round-kernels=3 --ranks=3";
        let mut args: Vec<String> = options.split(' ').map(str::to_owned).collect();
        args.push(format!("--rank={n}"));
        args.push(format!("--collective={}", folder.file("job").display()));
        args.push(format!("--timed-truth={}", truth(&folder, n).display()));
        if n == 1 {
            // An hour.
            args.extend(
                ["--late=host", "--late-from=5", "--late-us=3600000000"].map(str::to_owned),
            );
        }
        let told = |command: &mut std::process::Command| {
            command.env("RANK", n.to_string());
        };
        ranks.push(Running::start_prepared(&softgpu()?, args, None, told)?);
    }
    // Five rounds of four submissions, three kernels more, and in those that wait the collective.
    let (mut looks, mut lines) = (Vec::new(), Vec::new());
    let until = std::time::Instant::now() + GUARD;
    loop {
        ensure!(std::time::Instant::now() < until, "guard: {lines:?}");
        looks.clear();
        for (n, rank) in ranks.iter().enumerate() {
            let file = folder.file(&format!("look-{n}.json"));
            let (pid, out) = (rank.pid().to_string(), file.display().to_string());
            let args = [
                "dump",
                "-p",
                &pid,
                "--no-stacks",
                "--json",
                "--force",
                "-o",
                &out,
            ];
            Running::start(&nvcap()?, args)?.end(GUARD)?;
            looks.push(out);
        }
        let args = ["dump".to_owned(), "--merge".to_owned()].into_iter();
        let merged = Running::start(&nvcap()?, args.chain(looks.iter().cloned()))?.end(GUARD)?;
        lines = merged.stdout.lines().map(str::to_owned).collect();
        // Until they have come so far.
        let line = "2 processes are in all-reduce: ranks 0, 2 (submission 24 of their channels)";
        if lines.iter().any(|l| l == line) {
            break;
        }
    }
    // A trace of the job that hangs, in which nothing is submitted, says the same.
    let pids: Vec<String> = ranks.iter().map(|r| r.pid().to_string()).collect();
    let args = ["ranks", "--duration", "1", "-p", &pids.join(",")].map(str::to_owned);
    let traced = Running::start(&nvcap()?, args)?.end(GUARD)?;
    let said = traced.stdout.lines().next().unwrap_or_default();
    let hangs = "rank 1 has not come to all-reduce, which rank 0, rank 2 have been in since before the trace";
    ensure!(said == hangs, "{} {}", traced.stdout, traced.stderr);
    let absent = "  has not come: rank 1, ";
    let line = lines
        .iter()
        .find(|l| l.starts_with(absent))
        .context("the absent one")?;
    ensure!(
        line.contains("idle, has not submitted all-reduce"),
        "{line}"
    );
    let dir = folder.file(".").display().to_string();
    let mut args: Vec<String> = [
        "watch",
        "--hang=1s",
        "--once",
        "--no-stacks",
        "--json",
        "--dir",
        &dir,
    ]
    .map(str::to_owned)
    .to_vec();
    for rank in &ranks {
        args.extend(["-p".to_owned(), rank.pid().to_string()]);
    }
    let watched = Running::start(&nvcap()?, args)?.end(GUARD)?;
    let said: Value = serde_json::from_str(watched.stdout.trim_end())?;
    let collective = &said["collective"];
    ensure!(
        said["verdict"] == "hang" && collective["kind"] == "AllReduce",
        "{said}"
    );
    ensure!(items(&collective["present"]).len() == 2, "{said}");
    let [absent] = items(&collective["absent"]) else {
        anyhow::bail!("one is absent: {said}");
    };
    ensure!(
        absent["member"]["rank"] == 1 && absent["submitted"] == false,
        "{said}"
    );
    let text = std::fs::read_to_string(said["dump"].as_str().context("a dump")?)?;
    ensure!(
        text.contains("  has not come: rank 1, ") || text.contains("\nhas not come: rank 1, "),
        "{text}"
    );
    for rank in ranks {
        rank.signal(libc::SIGKILL)?;
        rank.end(GUARD)?;
    }
    Ok(())
}

/// A rank dies: the others end, and say who is gone.
pub fn a_peer_dies() -> Result<()> {
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let mut ranks = Vec::new();
    for n in 0..RANKS {
        ranks.push(rank(&folder, &step, n, None)?);
    }
    let gone = ranks.remove(LATE as usize);
    gone.signal(libc::SIGKILL)?;
    gone.end(GUARD)?;
    for rank in &mut ranks {
        rank.write(b"g")?;
    }
    for rank in ranks {
        let ended = rank.end(GUARD)?;
        ended.expect_code(1)?;
        let said = format!("rank {LATE} is gone, and has not come to collective 0");
        ensure!(ended.stderr.contains(&said), "{}", ended.stderr);
    }
    Ok(())
}
