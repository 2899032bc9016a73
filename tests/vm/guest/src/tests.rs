//! The tests, by name. Tests named `bed-...` prove the bed itself and need no nvcap.

mod bed;
mod escapes;
mod target;
mod traced;

use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::job::Job;
use crate::machine::{GUARD, param, wait_for};

/// The result of a test that did not fail.
#[derive(Debug)]
pub enum Outcome {
    /// The test ran and everything held.
    Passed,
    /// The test could not run here; the text says why.
    NotRun(String),
}

/// `run:A & B ; C`: commands as a developer types them, to inspect something in the guest by hand. A command that ends in `
/// &` runs in the background; `$!` is its process id; a `NAME=VALUE` alone is put into the environment of the commands
/// after it. The output is shown with the machine's seconds, and nothing is judged.
fn by_hand(line: &str) -> Result<Outcome> {
    let mut background: Option<std::process::Child> = None;
    let mut environment: Vec<(String, String)> = Vec::new();
    for step in line.split(" ; ") {
        let (step, stays) = match step.trim().strip_suffix(" &") {
            Some(step) => (step, true),
            None => (step.trim(), false),
        };
        let pid = background.as_ref().map_or(0, |c| c.id()).to_string();
        let words: Vec<String> = step
            .split_whitespace()
            .map(|w| w.replace("$!", &pid))
            .collect();
        let (program, args) = words.split_first().context("an empty command")?;
        eprintln!("{:.2} $ {}", crate::machine::uptime(), words.join(" "));
        if let (Some((name, value)), true) = (program.split_once('='), args.is_empty()) {
            environment.push((name.into(), value.into()));
            continue;
        }
        match (program.as_str(), args.first()) {
            ("sleep", Some(seconds)) => {
                std::thread::sleep(Duration::from_secs_f64(seconds.parse()?))
            }
            ("write", Some(file)) => {
                std::fs::write(file, args[1..].join(" ")).with_context(|| file.clone())?
            }
            ("cat", Some(file)) => eprintln!("{}", String::from_utf8_lossy(&std::fs::read(file)?)),
            _ => {
                let mut child = Command::new(program)
                    .args(args)
                    .envs(environment.iter().cloned())
                    .spawn()
                    .with_context(|| program.clone())?;
                if stays {
                    background = Some(child);
                } else {
                    eprintln!("{}", child.wait()?);
                }
            }
        }
    }
    eprintln!("{:.2}", crate::machine::uptime());
    Ok(Outcome::Passed)
}

/// Revokes the mappings of the first GPU twenty times while softgpu runs `want`, which must wait for the file `go` after each
/// channel's first submission: once before it goes on, so that a submission always meets a revoked page, then each time that the GPU
/// has fetched something more.
fn revocations(want: &target::Want, go: &str) -> Result<()> {
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/nvidia0")?;
    let begun = want.channels as u64;
    let before = param("entries_done")?;
    for n in 0..20 {
        // SAFETY: the stand-in's own request (_IO('S', 1)), which takes no argument.
        let rc = unsafe { libc::ioctl(device.as_raw_fd(), 0x5301 as _) };
        ensure!(rc == 0, "revoking: {}", std::io::Error::last_os_error());
        if n == 0 {
            target::go(go)?;
        }
        let done = param("entries_done")?;
        let last = before + want.submissions - begun.min(want.submissions);
        wait_for("the GPU's next entry", || {
            let now = param("entries_done")?;
            Ok(now > done || now >= last)
        })?;
    }
    Ok(())
}

/// Runs the test with this name.
pub fn run(name: &str, job: &Job) -> Result<Outcome> {
    match name {
        "bed-life" => bed::life(job),
        "bed-escapes" => escapes::escapes(job),
        "bed-maps" => bed::maps(job),
        "bed-revoke" => bed::revoke(job),
        "bed-kprobe" => bed::kprobe(job),
        "bed-hung" => bed::hung(job),
        "bed-reload" => bed::reload(job),
        "bed-none" => bed::none(job),
        "trace" => traced::whole(job),
        "no-gpu" => traced::no_gpu(job),
        "reload" => traced::reload(job),
        "reload-at-once" => traced::reload_at_once(job),
        "old-kernel" => traced::old_kernel(job),
        "fentry-refused" => traced::fentry_refused(job),
        "container" => traced::container(job),
        "in-container" => traced::in_container(job),
        "revoked" => traced::revoked(job),
        "no-peeks" => traced::no_peeks(job),
        "driver-commands" => traced::driver_commands(job),
        _ if name.starts_with("run:") => by_hand(&name[4..]),
        _ => bail!("there is no test {name:?}"),
    }
}
