//! The results of each machine: printed, kept in target/vm/results, and made into docs/kernels.md.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::matrix::{self, Cell};
use super::shell;
use crate::paths;

/// Outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything held.
    Ok,
    /// The test failed, or the machine died before it ended.
    Failed(String),
    /// The test could not run there; the text says why.
    NotRun(String),
}

/// The result of one test.
#[derive(Clone, Debug)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// Its outcome.
    pub outcome: Outcome,
    /// Seconds.
    pub seconds: f64,
    /// Processor time of the machine, seconds.
    pub cpu: f64,
}

/// The result of one machine.
#[derive(Clone, Debug)]
pub struct Report {
    /// The cell's name.
    pub cell: String,
    /// The kernel's release, from the kernel itself.
    pub release: String,
    /// Its tests.
    pub tests: Vec<Test>,
    /// Reason why the machine itself failed, if it did.
    pub machine: Option<String>,
    /// Wall time of the machine, seconds.
    pub seconds: f64,
    /// Processor time of the machine, seconds.
    pub cpu: f64,
    /// Console output around a failure.
    pub console: Vec<String>,
}

fn results() -> PathBuf {
    shell::cache().join("results")
}

impl Test {
    /// Prints it in the format of Rust's test harness.
    pub fn print(&self, cell: &str) {
        let name = format!("{cell} {}", self.name);
        match &self.outcome {
            Outcome::Ok => println!(
                "test {name} ... ok ({:.2} s, {:.2} s of processor time)",
                self.seconds, self.cpu
            ),
            Outcome::Failed(why) => println!("test {name} ... FAILED\n    {why}"),
            Outcome::NotRun(why) => println!("test {name} ... ignored, {why}"),
        }
    }
}

impl Report {
    /// The result of a machine that ran none of its tests.
    pub fn died(cell: &Cell, tests: &[String], why: String) -> Report {
        let tests = tests
            .iter()
            .map(|name| Test {
                name: name.clone(),
                outcome: Outcome::NotRun("the machine did not start".into()),
                seconds: 0.0,
                cpu: 0.0,
            })
            .collect();
        Report {
            cell: cell.name(),
            release: String::new(),
            tests,
            machine: Some(why),
            seconds: 0.0,
            cpu: 0.0,
            console: Vec::new(),
        }
    }

    /// Prints the results that its tests did not print themselves: the machine's own failure, and the console around
    /// failures.
    pub fn print(&self) {
        let mut text = String::new();
        for line in &self.console {
            let _ = writeln!(text, "    {} | {line}", self.cell);
        }
        if let Some(why) = &self.machine {
            let _ = writeln!(text, "test {} machine ... FAILED\n    {why}", self.cell);
        }
        let _ = writeln!(
            text,
            "machine {} ({}) ended after {:.1} s, {:.1} s of processor time",
            self.cell, self.release, self.seconds, self.cpu
        );
        print!("{text}");
    }

    /// Keeps it for the table.
    pub fn store(&self) -> Result<()> {
        fs::create_dir_all(results())?;
        let mut text = format!("{}\n", self.release);
        for test in &self.tests {
            let (word, why) = match &test.outcome {
                Outcome::Ok => ("ok", ""),
                Outcome::Failed(why) => ("FAILED", why.as_str()),
                Outcome::NotRun(why) => ("not run", why.as_str()),
            };
            let _ = writeln!(text, "{}\t{word}\t{why}", test.name);
        }
        if let Some(why) = &self.machine {
            let _ = writeln!(
                text,
                "machine\tFAILED\t{}",
                why.lines().next().unwrap_or_default()
            );
        }
        fs::write(results().join(&self.cell), text).context("keeping the result")
    }
}

/// The tests that prove each feature, in the order of the columns.
const FEATURES: &[(&str, &[&str])] = &[
    ("bed", &["bed-"]),
    (
        "fork, exec",
        &["capture::fork", "capture::exec", "capture::many_events"],
    ),
    (
        "capture",
        &[
            "capture::",
            "bench::",
            "registers::",
            "modes::",
            "trace",
            "no-gpu",
        ],
    ),
    ("attach", &["attach::"]),
    (
        "kill, signals",
        &["death::", "stray_traps::", "life::", "chaos::"],
    ),
    ("reload", &["reload", "reload-at-once"]),
    ("containers", &["container", "in-container"]),
    ("refused", &["old-kernel", "fentry-refused"]),
    ("revocation", &["revoked", "no-peeks"]),
    ("ioctls, channels, maps", &["driver-commands"]),
];

fn feature(test: &str) -> Option<usize> {
    FEATURES
        .iter()
        .position(|(_, names)| names.iter().any(|n| test.starts_with(n)))
}

/// One machine's kept result: its kernel, and each test's name, outcome and reason.
struct Kept {
    cell: String,
    release: String,
    tests: Vec<[String; 3]>,
}

fn kept() -> Vec<Kept> {
    matrix::all()
        .iter()
        .chain(&matrix::foreign())
        .map(|cell| {
            let text = fs::read_to_string(results().join(cell.name())).unwrap_or_default();
            let mut lines = text.lines();
            let release = lines.next().unwrap_or("not run yet").to_string();
            let tests = lines
                .map(|l| {
                    let mut words = l.splitn(3, '\t').map(str::to_string);
                    [(); 3].map(|()| words.next().unwrap_or_default())
                })
                .collect();
            Kept {
                cell: cell.name(),
                release,
                tests,
            }
        })
        .collect()
}

/// The tables: machines by features, then the tests that did not pass and why.
fn render(kept: &[Kept]) -> String {
    let heads: Vec<_> = FEATURES.iter().map(|(name, _)| *name).collect();
    let mut text = format!(
        "| machine | kernel | {} |\n| --- | --- |{}\n",
        heads.join(" | "),
        " --- |".repeat(heads.len())
    );
    let mut rest = String::new();
    for row in kept {
        let mut counts = vec![(0, 0); FEATURES.len()];
        for [name, word, why] in &row.tests {
            if let Some(i) = feature(name) {
                counts[i].1 += 1;
                counts[i].0 += usize::from(word == "ok");
            }
            if word != "ok" {
                let why = why.replace('|', "\\|");
                let _ = writeln!(rest, "| {} | {name} | {word} | {why} |", row.cell);
            }
        }
        let words: Vec<_> = counts
            .iter()
            .map(|&(ok, of)| {
                if of == 0 {
                    String::new()
                } else {
                    format!("{ok} of {of}")
                }
            })
            .collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            row.cell,
            row.release,
            words.join(" | ")
        );
    }
    if rest.is_empty() {
        text.push_str("\nAll of them passed.\n");
    } else {
        text.push_str(
            "\n## What did not pass\n\n| machine | test | how | why |\n| --- | --- | --- | --- |\n",
        );
        text.push_str(&rest);
    }
    text
}

/// Updates docs/kernels.md's tables from the kept results; the text above them stays.
pub fn table() -> Result<()> {
    const BEGIN: &str = "<!-- made by `cargo xtask vm --table`: do not edit below -->";
    let path = paths::root().join("docs/kernels.md");
    let old = fs::read_to_string(&path).unwrap_or_default();
    let head = old.split(BEGIN).next().unwrap_or_default();
    fs::write(&path, format!("{head}{BEGIN}\n\n{}", render(&kept())))
        .context("writing docs/kernels.md")?;
    println!("vm: wrote {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_tables() {
        let test = |name: &str, word: &str, why: &str| [name, word, why].map(String::from);
        let kept = [Kept {
            cell: "6.1-kprobe".into(),
            release: "6.1.0".into(),
            tests: vec![
                test("bed-life", "ok", ""),
                test("capture::exec", "ok", ""),
                test("capture::fork_own", "FAILED", "a | b"),
                test("capture::one_thread", "ok", ""),
            ],
        }];
        let text = render(&kept);
        assert!(
            text.contains("| 6.1-kprobe | 6.1.0 | 1 of 1 | 1 of 2 | 1 of 1 |  |"),
            "{text}"
        );
        assert!(
            text.contains("| 6.1-kprobe | capture::fork_own | FAILED | a \\| b |"),
            "{text}"
        );
    }

    #[test]
    fn every_test_of_the_matrix_has_a_column() {
        for cell in matrix::all().into_iter().chain(matrix::foreign()) {
            for test in cell.tests(true) {
                assert!(feature(test).is_some(), "{test}");
            }
        }
    }
}
