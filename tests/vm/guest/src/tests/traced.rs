//! Tests of nvcap that only a machine with the stand-in can run; tests that also run natively are in tests/live.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use live::programs::Running;
use live::verify::{Expected, Extent, Report, verify};

use super::target::{SOFTGPU, Target, Want, go};
use super::{GUARD, Outcome, revocations};
use crate::job::Job;
use crate::machine::{load_driver, param, reload_uvm, run, unload_driver, wait_for};

/// A trace's file, one for each test (each test has the machine to itself).
fn trace_file(name: &str) -> PathBuf {
    PathBuf::from(format!("/tmp/{name}.json"))
}

/// nvcap with the job's way, writing submissions and entries to `trace`.
fn nvcap(job: &Job, trace: &Path) -> Command {
    let mut command = Command::new("/bin/nvcap");
    command
        .args([
            "--discover",
            &job.way,
            "--json",
            "-vv",
            "-e",
            "type=submission,entry",
            "--force",
            "-o",
        ])
        .arg(trace);
    command
}

fn whole_report(trace: &Path, want: &Want) -> Result<Report> {
    let report = verify(trace, &Expected::whole(want.plan(0)))?;
    report.expect_complete()?;
    Ok(report)
}

/// Returns the report on a trace that began after the first submission of each channel.
fn later_report(trace: &Path, want: &Want) -> Result<Report> {
    let report = verify(trace, &Expected::part(want.plan(0), Extent::From(1)))?;
    report.expect_complete()?;
    Ok(report)
}

/// Starts nvcap on a process and returns once it reports that it is attached.
fn attach(job: &Job, trace: &Path, pid: u32) -> Result<Running> {
    let command = nvcap(job, trace);
    let args = command
        .get_args()
        .map(OsString::from)
        .chain(["-p".into(), pid.to_string().into()]);
    let program = Path::new(command.get_program());
    let logged = |c: &mut Command| {
        c.env("NVCAP_LOG", "debug");
    };
    let mut nvcap = Running::start_prepared(program, args, None, logged)?;
    nvcap.wait_until("watching", GUARD, |r| r.stderr().contains(" attached: "))?;
    Ok(nvcap)
}

/// Begin of the trace and all of the log: where from each channel was followed.
fn first_lines(trace: &Path, log: &str) -> String {
    let text = fs::read_to_string(trace).unwrap_or_default();
    let cut = |line: &str| line.chars().take(200).collect::<String>();
    let first = Vec::from_iter(text.lines().take(24).map(cut));
    format!("the trace begins\n{}\n{log}", first.join("\n"))
}

fn end(nvcap: Running) -> Result<()> {
    nvcap.end(GUARD)?.expect_code(0)
}

/// A command from its first submission to its end, on all GPUs of the machine. Every entry is there; a submission that nvcap reads late
/// is shown as one with those before it.
pub fn whole(job: &Job) -> Result<Outcome> {
    let trace = trace_file("trace");
    let want = Want::new(job.gpus, 300).how(&["--threads", "3"]);
    let mut command = nvcap(job, &trace);
    command.arg("--").arg(SOFTGPU).args(want.args());
    let ended = run(&mut command, GUARD);
    ensure!(
        ended.status == Some(0),
        "nvcap: {:?} {}\n{}",
        ended.status,
        ended.how,
        ended.said
    );
    let report = whole_report(&trace, &want)?;
    ensure!(
        report.entries == 300 && (report.submissions == 300 || report.late > 0),
        "{} submissions, {} of them late, {} entries",
        report.submissions,
        report.late,
        report.entries
    );
    Ok(Outcome::Passed)
}

/// A driver without a GPU: the program fails, nvcap does not, and has nothing to report.
pub fn no_gpu(job: &Job) -> Result<Outcome> {
    let trace = trace_file("no-gpu");
    let mut command = nvcap(job, &trace);
    command.arg("--").arg(SOFTGPU).args(Want::new(1, 10).args());
    let ended = run(&mut command, GUARD);
    ensure!(
        ended.status == Some(0),
        "nvcap: {:?} {}\n{}",
        ended.status,
        ended.how,
        ended.said
    );
    ensure!(
        ended.said.contains("the driver shows 0 GPU(s)"),
        "softgpu did not say why it ended:\n{}",
        ended.said
    );
    let report = verify(&trace, &[])?;
    report.expect_complete()?;
    Ok(Outcome::Passed)
}

/// The modules are unloaded and loaded again between two processes of one trace, or, with fentry, refuse to be unloaded:
/// both processes are seen whole.
pub fn reload(job: &Job) -> Result<Outcome> {
    reloaded(job, true)
}

/// A second process that does not wait for nvcap is seen whole, or nvcap reports that it was blind.
pub fn reload_at_once(job: &Job) -> Result<Outcome> {
    reloaded(job, false)
}

fn reloaded(job: &Job, patient: bool) -> Result<Outcome> {
    if job.lockdown == "integrity" {
        return Ok(Outcome::NotRun("lockdown refuses unsigned modules".into()));
    }
    let trace = trace_file("reload");
    let want = Want::new(job.gpus, 100);
    let mut command = nvcap(job, &trace);
    command
        .args(["--", "/bin/lives", SOFTGPU])
        .args(want.args());
    let args: Vec<_> = command.get_args().map(OsString::from).collect();
    let mut nvcap = Running::start(Path::new("/bin/nvcap"), args)?;
    for life in 1..=2 {
        nvcap.write(b"go\n")?;
        nvcap.wait_until("a life", GUARD, |r| {
            r.stdout().lines().filter(|l| *l == "lived").count() == life
        })?;
        if life == 1 && job.way == "fentry" {
            // The kernel's own rule: a program attached to a module's function holds the module.
            ensure!(
                unload_driver().is_err(),
                "a module was unloaded under fentry programs"
            );
            // The module that nothing held is gone.
            reload_uvm(job)?;
        } else if life == 1 {
            wait_for("unloading the driver", || Ok(unload_driver().is_ok()))?;
            load_driver(job)?;
            if patient && job.way == "kprobe" {
                nvcap.wait_until("following again", GUARD, |r| {
                    r.stderr().contains("followed again")
                })?;
            }
        }
    }
    let ended = nvcap.end(GUARD)?;
    let blind = !patient && ended.code()? == 3 && ended.stderr.contains("was loaded again");
    if !blind {
        ended.expect_code(0)?;
    }
    let pids: Vec<u32> = ended
        .stdout
        .lines()
        .filter_map(|l| l.strip_prefix("pid ")?.parse().ok())
        .collect();
    ensure!(pids.len() == 2, "{} processes", pids.len());
    let expected: Vec<_> = pids
        .into_iter()
        .zip([false, blind])
        .map(|(pid, blind)| Expected {
            pid: Some(pid),
            plans: vec![want.plan(0)],
            extent: if blind { Extent::Part } else { Extent::Whole },
        })
        .collect();
    let report = verify(&trace, &expected)?;
    if !blind {
        report.expect_complete()?;
    }
    Ok(Outcome::Passed)
}

/// The process in the innermost namespace that `pid` leads to: its only descendant's pid as this machine sees it.
fn inner(pid: u32) -> Result<u32> {
    let mut at = pid;
    for _ in 0..4 {
        let children = fs::read_to_string(format!("/proc/{at}/task/{at}/children"))?;
        match children.split_whitespace().next() {
            Some(child) => at = child.parse()?,
            None => break,
        }
    }
    Ok(at)
}

/// A target in a container: outside, nvcap names it by the pid in its own namespace.
pub fn container(job: &Job) -> Result<Outcome> {
    let trace = trace_file("container");
    let want =
        Want::new(job.gpus, 200).how(&["--wait-file", "/tmp/container-go", "--before-wait", "1"]);
    let mut command = Command::new("/bin/contained");
    command.arg(SOFTGPU).args(want.args());
    let mut target = Target::start_as(&mut command, &want)?;
    let pid = inner(target.pid())?;
    ensure!(pid != target.pid(), "the container's process was not found");
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    ensure!(
        status
            .lines()
            .any(|l| l.starts_with("NSpid:") && l.ends_with("\t1")),
        "not PID 1 inside:\n{status}"
    );
    let nvcap = attach(job, &trace, pid)?;
    go("/tmp/container-go")?;
    target.until("done")?;
    end(nvcap)?;
    target.end()?;
    let report = later_report(&trace, &want)?;
    ensure!(
        report.processes.iter().eq([&pid]),
        "processes {:?}, not {pid}",
        report.processes
    );
    Ok(Outcome::Passed)
}

/// nvcap in the container too, where BPF programs see ids of another namespace: it refuses, and says what to do.
pub fn in_container(job: &Job) -> Result<Outcome> {
    let trace = trace_file("in-container");
    let inside = nvcap(job, &trace);
    let mut command = Command::new("/bin/contained");
    command
        .arg(inside.get_program())
        .args(inside.get_args())
        .args(["--", SOFTGPU])
        .args(Want::new(job.gpus, 200).args());
    refused(run(&mut command, GUARD), "--pid=host")
}

/// A kernel that is too old is reported as such.
pub fn old_kernel(job: &Job) -> Result<Outcome> {
    let mut command = nvcap(job, &trace_file("old-kernel"));
    command.args(["--", SOFTGPU]);
    command.args(Want::new(job.gpus, 10).args());
    refused(run(&mut command, GUARD), "5.15 or later")
}

/// fentry needs root: of a user with the other capabilities it is refused.
pub fn fentry_refused(job: &Job) -> Result<Outcome> {
    let trace = trace_file("fentry-refused");
    let usual = nvcap(job, &trace);
    let mut command = Command::new("/bin/nvcap-here");
    command.env("VM_USER", "1").args(usual.get_args());
    command.args(["--", SOFTGPU]);
    command.args(Want::new(job.gpus, 10).args());
    refused(run(&mut command, GUARD), "fentry needs root")
}

/// One line with what to do, status 1, and the command was not started.
fn refused(ended: crate::machine::Ended, saying: &str) -> Result<Outcome> {
    ensure!(
        ended.status == Some(1) && ended.said.contains(saying) && ended.said.lines().count() == 1,
        "nvcap: {:?} {}\n{}",
        ended.status,
        ended.how,
        ended.said
    );
    Ok(Outcome::Passed)
}

/// The driver removes page table entries all the time: memory that cannot be read in the trap is read afterwards, or
/// reported missing; nothing is wrong.
pub fn revoked(job: &Job) -> Result<Outcome> {
    let trace = trace_file("revoked");
    let want = Want::new(job.gpus, 400).how(&[
        "--wait-file",
        "/tmp/revoked-go",
        "--before-wait",
        "1",
        "--sleep-us",
        "500",
    ]);
    let mut target = Target::start(&want)?;
    let nvcap = attach(job, &trace, target.pid())?;
    revocations(&want, "/tmp/revoked-go")?;
    target.until("done")?;
    let ended = nvcap.end(GUARD)?;
    target.end()?;
    later_report(&trace, &want).with_context(|| first_lines(&trace, &ended.stderr))?;
    ended.expect_code(0)?;
    Ok(Outcome::Passed)
}

/// nvcap never reads a doorbell page through /proc/PID/mem, where a real one takes 4 ms and says nothing.
pub fn no_peeks(job: &Job) -> Result<Outcome> {
    let before = param("doorbell_peeks")?;
    let trace = trace_file("no-peeks");
    let want = Want::new(job.gpus, 60).how(&["--wait-file", "/tmp/peeks-go"]);
    let mut target = Target::start(&want)?;
    let nvcap = attach(job, &trace, target.pid())?;
    go("/tmp/peeks-go")?;
    target.until("done")?;
    end(nvcap)?;
    target.end()?;
    later_report(&trace, &want)?;
    let peeks = param("doorbell_peeks")? - before;
    ensure!(peeks == 0, "{peeks} reads of doorbell pages");
    Ok(Outcome::Passed)
}

/// `nvcap ioctls` and `nvcap channels` of a whole command, each channel with all that it was although the program frees
/// and unmaps everything before it ends; then one look at a running one.
pub fn driver_commands(job: &Job) -> Result<Outcome> {
    // A while for what the machine's watchpoints miss to be caught up.
    let want = Want::new(job.gpus, 120).how(&["--linger-ms", "1000"]);
    let view = |name: &str, file: &Path, target: &[String]| -> Result<Vec<serde_json::Value>> {
        let mut command = Command::new("/bin/nvcap");
        command.args([name, "--json", "--force", "-o"]).arg(file);
        if target[0] == "--" {
            command.args(["--discover", &job.way]);
        }
        let ended = run(command.args(target), GUARD);
        ensure!(
            ended.status == Some(0),
            "nvcap {name}: {:?} {}\n{}",
            ended.status,
            ended.how,
            ended.said
        );
        let text = fs::read_to_string(file)?;
        Ok(if name == "ioctls" {
            text.lines()
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()?
        } else {
            serde_json::from_str(&text)?
        })
    };
    let mut command = vec!["--".to_string(), SOFTGPU.to_string()];
    command.extend(want.args());

    let calls = view("ioctls", Path::new("/tmp/ioctls.json"), &command)?;
    let named = |what: &str| {
        let has = |c: &&serde_json::Value| c["name"].as_str().is_some_and(|n| n.contains(what));
        calls.iter().filter(has).count()
    };
    let maps = calls.iter().filter(|c| c["type"] == "mapping").count();
    ensure!(
        named("RM_ALLOC") > want.channels && named("RM_CONTROL") >= want.channels && maps > 0,
        "{} allocations, {} controls, {maps} mappings",
        named("RM_ALLOC"),
        named("RM_CONTROL")
    );
    ensure!(
        calls.iter().all(|c| c["type"] != "loss"),
        "something was lost"
    );

    let count = |channels: &[serde_json::Value], member: &str| {
        channels
            .iter()
            .filter_map(|c| c[member].as_u64())
            .sum::<u64>()
    };
    let channels = view("channels", Path::new("/tmp/channels.json"), &command)?;
    let poor = channels.iter().find(|c| {
        ["token", "ring", "userd", "tsg"]
            .iter()
            .any(|m| !c[m].is_u64())
    });
    ensure!(poor.is_none(), "a channel lacks something: {poor:?}");
    // softgpu makes as many channels as CUDA does, and uses those that it is asked to.
    let used = channels.iter().filter(|c| c["submissions"] != 0).count();
    ensure!(
        used == want.channels,
        "{used} of {} channels",
        channels.len()
    );
    // Its entries are one a submission and no ring wraps; what was caught up together counts as one submission.
    let (entries, submissions) = (count(&channels, "gp_put"), count(&channels, "submissions"));
    ensure!(
        entries == want.submissions && submissions <= entries,
        "{entries} entries in {submissions} submissions"
    );

    let waiting = want.clone().how(&["--wait-file", "/tmp/look-go"]);
    let mut target = Target::start(&waiting)?;
    let pid = ["-p".to_string(), target.pid().to_string()];
    let seen = view("channels", Path::new("/tmp/look.json"), &pid);
    let maps = view("maps", Path::new("/tmp/maps.json"), &pid);
    go("/tmp/look-go")?;
    target.until("done")?;
    target.end()?;
    let (seen, maps) = (seen?, maps?);
    ensure!(
        !seen.is_empty()
            && seen
                .iter()
                .all(|c| c["gp_put"].is_u64() && c["origin"] == "found"),
        "one look: {seen:?}"
    );
    ensure!(count(&seen, "gp_put") > 0, "no channel has moved: {seen:?}");
    let doorbells = maps.iter().filter(|m| {
        m["what"]
            .as_str()
            .is_some_and(|w| w.starts_with("doorbell"))
    });
    ensure!(doorbells.count() >= job.gpus, "mappings: {maps:?}");
    Ok(Outcome::Passed)
}
