//! PID 1 of the test VM: for each cell of the job file it makes the machine what the cell describes, runs the cell's tests one after
//! another, each in a process of its own, and prints how each ended; then it leaves QEMU with a status.
//!
//! The console is the only output. A line that begins with `vm: ` is for the runner (xtask vm): `vm: cell NAME`, `vm: prepared NAME`,
//! `vm: test NAME ok|FAILED|not-run SECONDS [WHY]` for each test, `vm: ended NAME N` for each cell, `vm: exit=N` last of all. After a
//! cell that could not be prepared, or in which the kernel complained, the machine is left: the runner boots again for the others.

mod job;
mod machine;
mod other_names;
mod tests;

use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::job::Job;
use crate::tests::Outcome;

/// Statuses of a cell itself, above the number of failed tests.
const BAD_MACHINE: u8 = 90;
const KERNEL_COMPLAINED: u8 = 94;
/// Failed tests beyond this number are not counted in a status.
const MOST_FAILED: u8 = 89;

fn main() -> ExitCode {
    if let Some(code) = other_names::run() {
        return code;
    }
    let mut args = std::env::args().skip(1);
    if let (Some("test"), Some(cell), Some(name)) =
        (args.next().as_deref(), args.next(), args.next())
    {
        return one(&cell, &name);
    }
    if std::process::id() != 1 {
        eprintln!(
            "vm-init is the init of a test VM: it runs as PID 1, or as `vm-init test CELL NAME` there"
        );
        return ExitCode::FAILURE;
    }
    let code = all();
    println!("vm: exit={code} up={:.2}", machine::uptime());
    machine::leave(code)
}

/// Runs one test in this process. Status 0 passed, 1 failed, 2 could not run; the reason is on standard error.
fn one(cell: &str, name: &str) -> ExitCode {
    let job = match Job::of(cell) {
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
            let text = format!("{e:#}");
            eprintln!("{text}");
            // The last line goes into the table.
            let head: Vec<&str> = text
                .lines()
                .filter(|l| !l.trim().is_empty())
                .take(2)
                .collect();
            eprintln!("{}", head.join(" "));
            ExitCode::from(1)
        }
    }
}

fn all() -> u8 {
    if let Err(e) = machine::mounts() {
        println!("vm: machine: {e:#}");
        return BAD_MACHINE;
    }
    let jobs = match Job::read() {
        Ok(jobs) => jobs,
        Err(e) => {
            println!("vm: machine: {e:#}");
            return BAD_MACHINE;
        }
    };
    println!("vm: ready {:.2} {}", machine::uptime(), machine::kernel());
    let mut driver = machine::Driver::default();
    let mut failed = 0;
    for job in &jobs {
        println!("vm: cell {}", job.cell);
        let code = match driver.become_for(job) {
            Ok(()) => {
                println!("vm: prepared {} {:.2}", job.cell, machine::uptime());
                cell(job)
            }
            Err(e) => {
                println!("  {e:#}");
                BAD_MACHINE
            }
        };
        println!("vm: ended {} {code}", job.cell);
        if code > MOST_FAILED {
            return code;
        }
        failed = MOST_FAILED.min(failed + code);
    }
    failed
}

/// Runs the tests of one cell; returns how many failed, or that the kernel complained.
fn cell(job: &Job) -> u8 {
    let mut failed: u8 = 0;
    let mut tests = job.tests.as_slice();
    while let Some(name) = tests.first() {
        if is_live(name) {
            // Consecutive live tests share one run, which finds out only once what this machine supports.
            let n = tests.iter().take_while(|t| is_live(t)).count();
            failed = failed.saturating_add(live(job, &tests[..n]));
            tests = &tests[n..];
            continue;
        }
        tests = &tests[1..];
        let (start, words) = (machine::uptime(), name.as_str());
        let name = words.split_whitespace().next().unwrap_or(words);
        let ended = machine::run_self(&["test", &job.cell, words], Duration::from_secs(job.guard));
        let seconds = machine::uptime() - start;
        let why = ended.said.lines().last().unwrap_or_default();
        if name.starts_with("run:") {
            ended.said.lines().for_each(|line| println!("  {line}"));
        }
        match ended.status {
            Some(0) => println!("vm: test {name} ok {seconds:.2}"),
            Some(2) => println!("vm: test {name} not-run {seconds:.2} {why}"),
            status => {
                failed = failed.saturating_add(1);
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
    failed.min(MOST_FAILED)
}

/// The end-to-end tests that run natively too are named `group::what`.
fn is_live(name: &str) -> bool {
    name.contains("::") && !name.starts_with("run:")
}

/// Runs end-to-end tests by their own program, with this machine's driver; returns how many failed.
fn live(job: &Job, names: &[String]) -> u8 {
    let mut command = Command::new("/bin/live");
    command.arg("--exact").args(names);
    command.env("PATH", "/bin").env("HOME", "/tmp");
    command
        .env("NVCAP_BIN", "/bin/nvcap-here")
        .env("VM_WAY", &job.way);
    command
        .env("SOFTGPU_BIN", "/bin/softgpu")
        .env("SOFTGPU_DEVICE", "1")
        .env("NVCAP_LIVE_GPUS", job.gpus.to_string());
    // A program that is traced from its start waits for its breakpoints, however slow this machine is.
    let table = std::path::Path::new("/tmp/in_step");
    if softgpu::in_step::Table::create(table).is_ok() {
        command.env(softgpu::in_step::FILE, table);
    }
    if job.user {
        command.env("VM_USER", "1");
    }
    let mut said = Said::default();
    let guard = Duration::from_secs(job.guard);
    let ended = machine::stream(&mut command, guard, |line| said.line(line));
    said.flush();
    // The runner counts a test that was never reported as failed.
    if ended.status.is_none() {
        println!("  the end-to-end tests: {}", ended.how);
    }
    said.failed
}

/// Lines of a failed test's own words in its verdict: nvcap's whole standard error and its ledger.
const WHY_LINES: usize = 40;

/// Reads the output of the end-to-end tests' program line by line. A failed test's own output follows its verdict.
#[derive(Default)]
struct Said {
    failed: u8,
    waiting: Option<(String, String, Vec<String>)>,
}

impl Said {
    fn flush(&mut self) {
        if let Some((name, seconds, why)) = self.waiting.take() {
            println!("vm: test {name} FAILED {seconds} {}", why.join(" "));
        }
    }

    /// Takes a line; true if a test has ended with it.
    fn line(&mut self, line: &str) -> bool {
        let verdict = line
            .strip_prefix("test ")
            .and_then(|l| l.split_once(" ... "));
        let Some((name, verdict)) = verdict else {
            println!("  {line}");
            let words = self.waiting.as_mut().filter(|w| w.2.len() < WHY_LINES);
            if let Some((_, _, why)) = words
                && line.starts_with(' ')
            {
                why.push(line.trim().to_string());
            }
            return false;
        };
        self.flush();
        let seconds = verdict
            .rsplit_once('(')
            .and_then(|(_, s)| s.strip_suffix(" s)"))
            .unwrap_or("0");
        if let Some(why) = verdict.strip_prefix("NOT RUN: ") {
            println!("vm: test {name} not-run 0 {why}");
        } else if verdict.starts_with("ok") {
            println!("vm: test {name} ok {seconds}");
        } else {
            self.failed = self.failed.saturating_add(1);
            self.waiting = Some((name.into(), seconds.into(), Vec::new()));
        }
        true
    }
}
