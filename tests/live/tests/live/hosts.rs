//! `nvcap -a`: every process of the host that uses a GPU. The filter `--comm` keeps other tests' processes, and those of the machine,
//! out of the account.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use live::harness::not_run;
use live::in_step::Step;
use live::programs::{Ended, Folder, GUARD, Running, Until, nvcap, softgpu};
use serde_json::Value;
use softgpu::layout::Channel;
use softgpu::plan::Plan;

use crate::refusals::run_as_nobody;
use crate::registers;
use crate::setup::{LIMIT, expect_result, need_tracing, plan, plan_args};

/// A plan of a few channels, of which no ring goes round.
fn small(seed: u64) -> Plan {
    Plan {
        channels: Channel::first(2, crate::setup::gpus()),
        ..plan(seed, 200)
    }
}

/// The software GPU under a name of its own, with files as the driver's.
fn named(folder: &Folder, name: &str) -> Result<PathBuf> {
    let program = folder.file(name);
    symlink(softgpu()?, &program)?;
    Ok(program)
}

fn args_of(plan: &Plan, more: &[&str]) -> Vec<String> {
    let more = more.iter().map(|a| (*a).to_owned());
    plan_args(plan)
        .into_iter()
        .chain(["--files".to_owned(), "--threads=2".to_owned()])
        .chain(more)
        .collect()
}

/// Starts `nvcap -a` and these options, without a filter: it would keep the identities of processes until they submit.
fn all(options: &[&str]) -> Result<Running> {
    let mut args = vec!["-a", "--json"];
    args.extend(options);
    Running::start(&nvcap()?, args)
}

/// Waits until nvcap has said who a process is.
fn wait_for_identity(nvcap: &mut Running, pid: u32) -> Result<()> {
    let said = format!("\"pid\":{pid},");
    nvcap.wait_until(&format!("naming {pid}"), LIMIT, |r| {
        let out = r.stdout();
        out.lines()
            .any(|l| l.contains(&said) && l.contains("\"life\":\"identity\""))
    })
}

/// The objects of a trace that concern a process.
fn of_process(out: &str, pid: u32, kind: &str) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for line in out.lines() {
        let object: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        if object["pid"] == pid && object["type"] == kind {
            all.push(object);
        }
    }
    Ok(all)
}

/// The losses of a process's submissions: that its error notifiers were not read is none.
fn losses(out: &str, pid: u32) -> Result<Vec<Value>> {
    let mut all = of_process(out, pid, "loss")?;
    all.retain(|loss| loss["what"] != "notifiers");
    Ok(all)
}

fn submissions(out: &str, pid: u32) -> Result<u64> {
    let all = of_process(out, pid, "submission")?;
    Ok(all.iter().filter_map(|s| s["entries"].as_u64()).sum())
}

fn identity(out: &str, pid: u32) -> Result<Value> {
    let all = of_process(out, pid, "process")?;
    let found = all.into_iter().find(|p| p["life"] == "identity");
    found.with_context(|| format!("nobody said who {pid} is"))
}

/// Waits until all submissions of a process are shown.
fn wait_for_submissions(nvcap: &mut Running, pid: u32, wanted: u64) -> Result<()> {
    nvcap.wait_until(&format!("showing {wanted} of {pid}"), LIMIT, |r| {
        let out = r.stdout();
        let whole_lines = out.rsplit_once('\n').map_or("", |(lines, _)| lines);
        submissions(whole_lines, pid).is_ok_and(|n| n >= wanted)
    })
}

fn interrupted(nvcap: Running) -> Result<Ended> {
    nvcap.signal(libc::SIGINT)?;
    nvcap.end(LIMIT)
}

/// `-p NAME`: each process of that name, and no other one; beside it an id, behind a comma.
pub fn named_by_option() -> Result<()> {
    let folder = Folder::new()?;
    let (meant, other) = (
        named(&folder, "hosts-called")?,
        named(&folder, "hosts-called2")?,
    );
    let stay = Until::new(&folder, "stay")?;
    let stays = stay.stay();
    let waits = ["--wait-stdin", "--before-wait=7", "--sleep-us=500", &stays];
    let mut gpus = Vec::new();
    for (program, seed) in [(&meant, 371), (&meant, 372), (&other, 373), (&other, 374)] {
        let mut gpu = Running::start(program, args_of(&small(seed), &waits))?;
        gpu.wait_for_line("waiting")?;
        gpus.push(gpu);
    }
    let pids = Vec::from_iter(gpus.iter().map(Running::pid));
    let whom = format!("hosts-called,{}", pids[2]);
    let args = ["--how=observe", "--json", "-p", &whom];
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_until("three attachments", LIMIT, |r| {
        r.stderr().matches(" attached").count() == 3
    })?;
    for gpu in &mut gpus {
        gpu.write(b"g")?;
    }
    for pid in &pids[..3] {
        wait_for_submissions(&mut nvcap, *pid, 200 - 2 * 7)?;
    }
    let ended = interrupted(nvcap)?;
    stay.release()?;
    for gpu in gpus {
        gpu.end(LIMIT)?.expect_code(0)?;
    }
    ended.expect_code(0)?;
    ensure!(
        !ended.stdout.contains(&format!("\"pid\":{},", pids[3])),
        "{}",
        ended.stderr
    );
    Ok(())
}

/// One that runs already, one that comes and goes, one that is not meant: what each submits is shown, from its first submission on
/// where it came later.
pub fn come_and_go() -> Result<()> {
    let folder = Folder::new()?;
    let (meant, other) = (
        named(&folder, "hosts-meant")?,
        named(&folder, "hosts-other")?,
    );
    let (old_plan, new_plan) = (small(301), small(302));
    let stay = Until::new(&folder, "stay")?;
    let stays = stay.stay();
    let waits = ["--wait-stdin", "--before-wait=7", "--sleep-us=500", &stays];
    let mut old = Running::start(&meant, args_of(&old_plan, &waits))?;
    old.wait_for_line("waiting")?;
    let mut stranger = Running::start(&other, args_of(&small(303), &waits))?;
    stranger.wait_for_line("waiting")?;
    let mut nvcap = all(&["--comm", "hosts-m*"])?;
    wait_for_identity(&mut nvcap, old.pid())?;
    // It waits until it was found.
    let waits = ["--wait-stdin", "--before-wait=7", &stays];
    let mut new = Running::start(&meant, args_of(&new_plan, &waits))?;
    wait_for_identity(&mut nvcap, new.pid())?;
    for gpu in [&mut old, &mut stranger, &mut new] {
        gpu.write(b"g")?;
    }
    let (old_pid, new_pid, stranger_pid) = (old.pid(), new.pid(), stranger.pid());
    wait_for_submissions(&mut nvcap, old_pid, 200 - 2 * 7)?;
    wait_for_submissions(&mut nvcap, new_pid, 200)?;
    // Before they end: what ends right behind its last use counts as missing where it is observed.
    let ended = interrupted(nvcap)?;
    stay.release()?;
    for (gpu, plan) in [(old, &old_plan), (new, &new_plan)] {
        let ended = gpu.end(LIMIT)?;
        ended.expect_code(0)?;
        expect_result(&ended.stdout, plan)?;
    }
    stranger.end(LIMIT)?.expect_code(0)?;
    ended.expect_code(0)?;
    let out = &ended.stdout;
    // Of the one that ran the seven of each channel before the trace are not shown.
    ensure!(
        submissions(out, old_pid)? == 200 - 2 * 7,
        "{} of the first",
        submissions(out, old_pid)?
    );
    ensure!(
        submissions(out, new_pid)? == 200,
        "{} of the second",
        submissions(out, new_pid)?
    );
    ensure!(
        !out.contains(&format!("\"pid\":{stranger_pid},")),
        "a stranger is shown"
    );
    let who = identity(out, new_pid)?;
    ensure!(who["name"] == "hosts-meant" && who["uid"] == 0, "{who}");
    let gpus = who["gpus"].as_array().map_or(0, Vec::len);
    ensure!(gpus == crate::setup::gpus().min(2), "{who}");
    Ok(())
}

/// One that comes while nvcap stands (stopped, or kept off every processor) until the trace ends: it is found by the last look.
pub fn came_while_stopped() -> Result<()> {
    let folder = Folder::new()?;
    let program = named(&folder, "hosts-stopped")?;
    let mut nvcap = all(&["--how", "observe", "--comm", "hosts-st*"])?;
    nvcap.wait_until("waiting for processes", LIMIT, |r| {
        r.stderr().contains("waiting for those to come")
    })?;
    nvcap.signal(libc::SIGSTOP)?;
    let stay = Until::new(&folder, "stay")?;
    let plan = small(304);
    let mut gpu = Running::start(&program, args_of(&plan, &[&stay.stay()]))?;
    let pid = gpu.pid();
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    nvcap.signal(libc::SIGINT)?;
    nvcap.signal(libc::SIGCONT)?;
    let ended = nvcap.end(LIMIT)?;
    stay.release()?;
    gpu.end(LIMIT)?.expect_code(0)?;
    ended.expect_code(0)?;
    let shown = submissions(&ended.stdout, pid)?;
    ensure!(shown == 200, "{shown} of 200: {}", ended.stderr);
    Ok(())
}

/// Two that run already, by the trap.
pub fn trapped() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let program = named(&folder, "hosts-trapped")?;
    let plans = [small(311), small(312)];
    let mut gpus = Vec::new();
    for plan in &plans {
        let gpu = Running::start(
            &program,
            args_of(plan, &["--wait-stdin", "--before-wait=7"]),
        )?;
        gpus.push(gpu);
    }
    for gpu in &mut gpus {
        gpu.wait_for_line("waiting")?;
    }
    let channels = folder.channels()?;
    let channels = channels.to_str().context("a path of text")?;
    let mut nvcap = all(&["--how=trap", "--comm=hosts-trapped", "--channels", channels])?;
    let pids: Vec<u32> = gpus.iter().map(Running::pid).collect();
    for pid in &pids {
        wait_for_identity(&mut nvcap, *pid)?;
    }
    for gpu in &mut gpus {
        gpu.write(b"g")?;
    }
    for (gpu, plan) in gpus.into_iter().zip(&plans) {
        let ended = gpu.end(LIMIT)?;
        ended.expect_code(0)?;
        expect_result(&ended.stdout, plan)?;
    }
    ensure!(nvcap.runs(), "others may come");
    let ended = interrupted(nvcap)?;
    ended.expect_code(0)?;
    for pid in pids {
        let all = of_process(&ended.stdout, pid, "submission")?;
        ensure!(
            all.iter()
                .all(|s| s["how"] == "trapped" || s["late"] == true)
        );
        ensure!(
            submissions(&ended.stdout, pid)? == 200 - 2 * 7,
            "{pid}: {}",
            submissions(&ended.stdout, pid)?
        );
    }
    Ok(())
}

/// Ranks of a job, and GPUs that each of them opens: eight doorbells a process, and four debug registers a thread.
const RANKS: usize = 4;

/// A rank that waits before it submits.
fn rank(folder: &Folder, step: &Step, plan: &Plan) -> Result<Running> {
    let program = folder.file("hosts-rank");
    if !program.exists() {
        symlink(softgpu()?, &program)?;
    }
    let mut args = registers::args_of(RANKS, plan);
    args.extend(step.with(&["--files", "--threads=2", registers::CLOSE, "--wait-stdin"]));
    args.push("--sites=plain".to_owned());
    let mut gpu = Running::start(&program, args)?;
    gpu.wait_for_line("waiting")?;
    Ok(gpu)
}

/// What the first rank teaches serves the others at once, whether they were there before it rang or come later: no other one needs a trap to show its
/// store, and nothing is missing of any.
fn node(there: bool) -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let step = Step::new(&folder)?;
    let plans = Vec::from_iter((0..RANKS as u64).map(|n| Plan {
        channels: Channel::first(2 * RANKS, RANKS),
        ..plan(320 + n, 800)
    }));
    let mut command = vec!["NVCAP_LOG=debug".into(), step.variable(), nvcap()?.into()];
    let options = ["-a", "--json", "--how=trap", "--comm=hosts-rank"];
    command.extend(options.map(OsString::from));
    // Without them the trap asks for the driver.
    let channels = folder.file("channels");
    std::fs::write(&channels, softgpu::layout::channels_file(RANKS))?;
    command.extend(["--channels".into(), channels.into()]);
    let mut ranks = Vec::new();
    let first = if there { RANKS } else { 1 };
    for plan in &plans[..first] {
        ranks.push(rank(&folder, &step, plan)?);
    }
    let mut nvcap = Running::start(Path::new("env"), command)?;
    let watched = |nvcap: &mut Running, pid: u32| {
        let said = format!("process {pid} is watched");
        nvcap.wait_until(&said, LIMIT, |r| r.stderr().contains(&said))
    };
    for rank in &ranks {
        watched(&mut nvcap, rank.pid())?;
    }
    ranks[0].write(b"g")?;
    nvcap.wait_until("a store", LIMIT, |r| {
        r.stderr().contains("is known from now on")
    })?;
    for plan in &plans[first..] {
        ranks.push(rank(&folder, &step, plan)?);
        watched(&mut nvcap, ranks[ranks.len() - 1].pid())?;
    }
    let taught = |r: &Running| r.stderr().matches(registers::KNOWN).count();
    nvcap.wait_until("what was taught", LIMIT, |r| taught(r) >= RANKS - 1)?;
    for rank in &mut ranks[1..] {
        rank.write(b"g")?;
    }
    let pids = Vec::from_iter(ranks.iter().map(Running::pid));
    for (rank, plan) in ranks.into_iter().zip(&plans) {
        let ended = rank.end(LIMIT)?;
        ended.expect_code(0)?;
        expect_result(&ended.stdout, plan)?;
    }
    let ended = interrupted(nvcap)?;
    ended.expect_code(0)?;
    ensure!(
        ended.stderr.matches(registers::DECODED).count() == 1,
        "more than one needed a trap: {}",
        ended.stderr
    );
    for pid in pids {
        // The first of each channel came before the process waited, and may be from before the trace.
        let (shown, before) = (submissions(&ended.stdout, pid)?, 2 * RANKS as u64);
        ensure!(
            (800 - before..=800).contains(&shown),
            "{shown} of 800 of process {pid}"
        );
    }
    Ok(())
}

/// `-a` by the trap of four processes on four GPUs each, which were there before.
pub fn whole_node() -> Result<()> {
    node(true)
}

/// Processes of four GPUs each that come one after the other are traced by `-a`, by the trap.
pub fn whole_node_started() -> Result<()> {
    node(false)
}

/// Processes that live for a tenth of a second and less: what they submit is captured, or each is said to be missed.
pub fn short_lives() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    // There is no driver: nvcap asks for the channels' names.
    let channels = folder.channels()?;
    let channels = channels.to_str().context("a path of text")?;
    short_lived("hosts-short", &["--how=trap", "--channels", channels])
}

/// The same without a trap.
pub fn short_lives_observed() -> Result<()> {
    short_lived("hosts-brief", &["--how=observe"])
}

fn short_lived(name: &str, how: &[&str]) -> Result<()> {
    const EACH: u64 = 6;
    let folder = Folder::new()?;
    let program = named(&folder, name)?;
    let comm = format!("--comm={name}");
    let mut nvcap = all(&[how, &[comm.as_str()]].concat())?;
    let said = "the kernel tells of processes that come";
    nvcap.wait_until("looking", LIMIT, |r| {
        r.stderr().contains("waiting for those to come")
    })?;
    if !nvcap.stderr().contains(said) {
        ensure!(
            nvcap.stderr().contains("looked for in /proc"),
            "{}",
            nvcap.stderr()
        );
        return not_run("perf events of all processes are refused");
    }
    // The shorter ones live between two looks at /proc, most of them.
    let mut lives = Vec::new();
    for number in 0..2 * EACH {
        let (settle, linger) = match number < EACH {
            true => ("--settle-ms=12", "--linger-ms=3"),
            false => ("--settle-ms=70", "--linger-ms=30"),
        };
        let plan = small(340 + number);
        let gpu = Running::start(&program, args_of(&plan, &[settle, linger]))?;
        let pid = gpu.pid();
        gpu.end(LIMIT)?.expect_code(0)?;
        lives.push(pid);
    }
    // What is known of the last ones comes after their end. Whoever is not known by then is judged below.
    let begun = Instant::now();
    let is_known = |said: &str, pid: &u32| -> Result<bool> {
        Ok(submissions(said, *pid)? == 200 || !losses(said, *pid)?.is_empty())
    };
    while begun.elapsed() < GUARD {
        let said = nvcap.stdout();
        let said = said
            .rsplit_once('\n')
            .map_or("", |(whole_lines, _)| whole_lines);
        let known: Result<Vec<bool>> = lives.iter().map(|pid| is_known(said, pid)).collect();
        if known?.into_iter().all(|known| known) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = interrupted(nvcap)?;
    let mut captured = 0;
    for pid in &lives {
        let shown = submissions(&ended.stdout, *pid)?;
        let losses = losses(&ended.stdout, *pid)?;
        ensure!(
            shown == 200 || !losses.is_empty(),
            "{pid}: {shown} of 200 submissions, and no loss: {}",
            ended.stderr
        );
        captured += u32::from(shown == 200);
    }
    println!("{captured} of {} were captured whole", lives.len());
    // All may be there, and that of the last moments not known.
    let last = ended.stdout.lines().last().context("no ledger")?;
    let ledger: Value = serde_json::from_str(last)?;
    let complete = ledger["complete"] == true;
    ensure!(!complete || captured as usize == lives.len(), "{ledger}");
    ended.expect_code(if complete { 0 } else { 3 })
}

/// Another user's process is counted and named, and the trace goes on: its own status says that something is missing.
pub fn not_looked_into() -> Result<()> {
    let folder = Folder::new()?;
    let program = named(&folder, "hosts-hidden")?;
    let mut gpu = Running::start(&program, args_of(&small(321), &["--wait-stdin"]))?;
    gpu.wait_for_line("waiting")?;
    let options = ["-a", "-q", "--comm=hosts-hidden", "--duration=1"];
    let ended = run_as_nobody(&folder, options.map(Into::into).to_vec())?;
    ended.expect_code(3)?;
    let named = format!("hosts-hidden {} of root", gpu.pid());
    ensure!(
        ended.stdout.contains(&named) && ended.stdout.contains("1 process may not be looked into"),
        "{}",
        ended.stdout
    );
    // One that is not meant is no loss. Others of the machine may come and go unseen.
    let options = ["-a", "-q", "--comm=hosts-nobody", "--duration=1"];
    let ended = run_as_nobody(&folder, options.map(Into::into).to_vec())?;
    ensure!(!ended.stdout.contains("looked into"), "{}", ended.stdout);
    let is_unseen = ended.stdout.contains("came and ended between two looks");
    ended.expect_code(if is_unseen { 3 } else { 0 })
}

/// A process in a PID namespace and a control group of its own, as a container's.
pub fn contained() -> Result<()> {
    // Of this test's own: another run of it may be on this machine.
    let id = format!("{:08x}{}", std::process::id(), "9d8e7f6a".repeat(7));
    // Control groups of version 2, both beside each other, or version 1.
    let roots = [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/pids",
    ]
    .map(Path::new);
    let Some(root) = roots.iter().find(|r| r.join("cgroup.procs").exists()) else {
        return not_run("this machine shows no control groups");
    };
    let group = root.join(format!("docker-{id}.scope"));
    if let Err(e) = std::fs::create_dir(&group) {
        return not_run(format!("no control group can be made: {e}"));
    }
    let result = contained_in(&group, &id);
    // It is empty once its processes were reaped.
    let begun = Instant::now();
    while std::fs::remove_dir(&group).is_err() && begun.elapsed() < GUARD {
        std::thread::sleep(Duration::from_millis(20));
    }
    result
}

fn contained_in(group: &Path, id: &str) -> Result<()> {
    let folder = Folder::new()?;
    let program = named(&folder, "hosts-inside")?;
    let mut args = vec![
        "--pid".to_owned(),
        "--fork".to_owned(),
        "--kill-child".to_owned(),
    ];
    args.push(program.display().to_string());
    args.extend(args_of(&small(331), &["--wait-stdin"]));
    let mut outer = Running::start(Path::new("unshare"), args)?;
    if let Err(e) = outer.wait_for_line("waiting") {
        return not_run(format!("no PID namespace can be made: {e}"));
    }
    let children = format!("/proc/{0}/task/{0}/children", outer.pid());
    let pid: u32 = std::fs::read_to_string(children)?.trim().parse()?;
    if let Err(e) = std::fs::write(group.join("cgroup.procs"), pid.to_string()) {
        return not_run(format!("no process can be put into a control group: {e}"));
    }
    let ended = all(&["--container", &id[..12], "--duration=1"])?.end(LIMIT)?;
    let who = identity(&ended.stdout, pid)?;
    ensure!(who["inner_pid"] == 1, "{who}");
    ensure!(
        who["container"]["id"] == id && who["container"]["runtime"] == "docker",
        "{who}"
    );
    let container = format!("--container={}", &id[..12]);
    let dump = ["dump", "-a", &container, "--json"];
    let look = Running::start(&nvcap()?, dump)?.end(LIMIT)?;
    let look: Value = serde_json::from_str(&look.stdout)?;
    let seen = look["processes"].as_array().context("no processes")?;
    ensure!(seen.len() == 1 && seen[0]["pid"] == pid, "{seen:?}");
    Ok(())
}
