//! The tests, by name. Tests named `bed-...` prove the bed itself and need no nvcap.

mod bed;
mod escapes;
mod target;
mod traced;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::job::Job;

/// The result of a test that did not fail.
#[derive(Debug)]
pub enum Outcome {
    /// It ran and everything held.
    Passed,
    /// It could not run here, and why.
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
        "container" => traced::container(job),
        "in-container" => traced::in_container(job),
        "revoked" => traced::revoked(job),
        "no-peeks" => traced::no_peeks(job),
        "driver-commands" => traced::driver_commands(job),
        _ if name.starts_with("run:") => by_hand(&name[4..]),
        _ => bail!("there is no test {name:?}"),
    }
}
