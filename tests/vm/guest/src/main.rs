//! PID 1 of the test VM: prepares the machine that the job file describes, runs the tests it names one after another,
//! each in a process of its own with a time limit, says how each ended, and leaves QEMU with a status.
//!
//! The console is the only way out. A line that begins with `vm: ` is for the runner (xtask vm):
//! `vm: test NAME ok|FAILED|not-run SECONDS [WHY]` for each test, `vm: exit=N` last of all.

mod job;
mod machine;
mod tests;

use std::process::ExitCode;
use std::time::Duration;

use crate::job::Job;
use crate::tests::Outcome;

/// Statuses of the VM itself, above any that says how many tests failed.
const BAD_MACHINE: u8 = 90;
const KERNEL_COMPLAINED: u8 = 94;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if let (Some("test"), Some(name)) = (args.next().as_deref(), args.next()) {
        return one(&name);
    }
    if std::process::id() != 1 {
        eprintln!(
            "vm-init is the init of a test VM: it runs as PID 1, or as `vm-init test NAME` there"
        );
        return ExitCode::FAILURE;
    }
    let code = all();
    println!("vm: exit={code} up={:.2}", machine::uptime());
    machine::leave(code)
}

/// Runs one test in this process. Status 0 passed, 1 failed, 2 could not run; why is on standard error.
fn one(name: &str) -> ExitCode {
    let job = match Job::read() {
        Ok(job) => job,
        Err(e) => {
            eprintln!("{e:#}");
            return ExitCode::from(1);
        }
    };
    match tests::run(name, &job) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::NotRun(why)) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
        Err(e) => {
            eprintln!("{e:#}");
            ExitCode::from(1)
        }
    }
}

fn all() -> u8 {
    if let Err(e) = machine::mounts() {
        println!("vm: machine: {e:#}");
        return BAD_MACHINE;
    }
    let job = match Job::read() {
        Ok(job) => job,
        Err(e) => {
            println!("vm: machine: {e:#}");
            return BAD_MACHINE;
        }
    };
    if let Err(e) = machine::prepare(&job) {
        println!("vm: machine: {e:#}");
        return BAD_MACHINE;
    }
    println!("vm: ready {:.2} {}", machine::uptime(), machine::kernel());
    let mut failed = 0;
    for name in &job.tests {
        let start = machine::uptime();
        let ended = machine::run_self(&["test", name], Duration::from_secs(job.limit));
        let seconds = machine::uptime() - start;
        let why = ended.said.lines().last().unwrap_or_default();
        match ended.status {
            Some(0) => println!("vm: test {name} ok {seconds:.2}"),
            Some(2) => println!("vm: test {name} not-run {seconds:.2} {why}"),
            status => {
                failed += 1;
                for line in ended.said.lines() {
                    println!("  {line}");
                }
                let how = match status {
                    Some(_) => why.to_string(),
                    None => ended.how,
                };
                println!("vm: test {name} FAILED {seconds:.2} {how}");
            }
        }
    }
    if let Some(what) = machine::complaint() {
        println!("vm: kernel: {what}");
        return KERNEL_COMPLAINED;
    }
    failed
}
