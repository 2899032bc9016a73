//! A test runner with a third outcome: a test that cannot run says so and is counted separately.
//!
//! Tests run one after the other: breakpoints are expensive on virtual machines, and timing is part of the tests. What the gate runs
//! beside them stands still during those that measure ([`beside`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use crate::beside;

/// One test.
pub struct Test {
    name: String,
    run: Box<dyn Fn() -> Result<()>>,
}

impl Test {
    /// A test and its name, `group::what`. An error or a panic is a failure, unless it is a [`NotRun`].
    pub fn new(name: impl Into<String>, run: impl Fn() -> Result<()> + 'static) -> Test {
        Test {
            name: name.into(),
            run: Box::new(run),
        }
    }
}

/// The reason why a test could not run, as an error.
#[derive(Debug)]
pub struct NotRun(pub String);

impl std::fmt::Display for NotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotRun {}

/// Ends a test as not run.
pub fn not_run<T>(why: impl Into<String>) -> Result<T> {
    Err(NotRun(why.into()).into())
}

/// Runs the tests selected by the command line, in the format of `cargo test`: names or parts of names, `--exact`, `--skip
/// NAME`, `--list`. `measuring`: the groups of tests that need all processors for themselves.
pub fn main(tests: &[Test], measuring: &[&str]) -> ExitCode {
    let mut names = Vec::new();
    let mut skip = Vec::new();
    let (mut exact, mut list, mut ignored) = (false, false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--exact" => exact = true,
            "--list" => list = true,
            "--ignored" => ignored = true,
            "--skip" => skip.extend(args.next()),
            "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => drop(args.next()),
            flag if flag.starts_with('-') => {} // of libtest, with no meaning here
            name => names.push(name.to_owned()),
        }
    }
    let wanted = |name: &str| {
        let fits = |n: &String| {
            if exact {
                name == n
            } else {
                name.contains(n.as_str())
            }
        };
        (names.is_empty() || names.iter().any(fits))
            && !skip.iter().any(|s| name.contains(s.as_str()))
    };
    let chosen: Vec<&Test> = tests
        .iter()
        .filter(|t| !ignored && wanted(&t.name))
        .collect();
    if list {
        for test in chosen {
            println!("{}: test", test.name);
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), 0);
    let begin = Instant::now();
    for test in &chosen {
        let group = test.name.split("::").next().unwrap_or_default();
        let paused = measuring.contains(&group).then(beside::pause);
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(&test.run));
        drop(paused);
        let took = start.elapsed().as_secs_f64();
        match result {
            Ok(Ok(())) => {
                println!("test {} ... ok ({took:.1} s)", test.name);
                passed += 1;
            }
            Ok(Err(e)) => match e.downcast_ref::<NotRun>() {
                Some(why) => {
                    println!("test {} ... NOT RUN: {why}", test.name);
                    skipped += 1;
                }
                None => {
                    println!(
                        "test {} ... FAILED ({took:.1} s)\n    {}",
                        test.name,
                        format!("{e:#}").replace('\n', "\n    ")
                    );
                    failed.push(test.name.as_str());
                }
            },
            Err(_) => {
                println!("test {} ... FAILED (panicked, {took:.1} s)", test.name);
                failed.push(test.name.as_str());
            }
        }
    }
    for name in &failed {
        println!("failed: {name}");
    }
    println!(
        "\n{passed} passed, {} failed, {skipped} skipped in {:.1} s",
        failed.len(),
        begin.elapsed().as_secs_f64()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
