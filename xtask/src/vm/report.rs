//! What each machine said: printed, kept in target/vm/results, and made into docs/kernels.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::matrix::{self, Cell};
use super::shell;
use crate::paths;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything held.
    Ok,
    /// It did not, or the machine died before.
    Failed(String),
    /// It could not run there, and why.
    NotRun(String),
}

/// One test's end.
#[derive(Clone, Debug)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Seconds.
    pub seconds: f64,
}

/// One machine's.
#[derive(Clone, Debug)]
pub struct Report {
    /// The cell's name.
    pub cell: String,
    /// The kernel's release, as it said itself.
    pub release: String,
    /// Its tests.
    pub tests: Vec<Test>,
    /// Why the machine itself failed.
    pub machine: Option<String>,
    /// Wall time of the machine, seconds.
    pub seconds: f64,
    /// Processor time of the machine, seconds.
    pub cpu: f64,
    /// What it printed around a failure.
    pub console: Vec<String>,
}

fn results() -> PathBuf {
    shell::cache().join("results")
}

impl Test {
    /// Prints it in the words of Rust's test harness.
    pub fn print(&self, cell: &str) {
        let name = format!("{cell} {}", self.name);
        match &self.outcome {
            Outcome::Ok => println!("test {name} ... ok ({:.2} s)", self.seconds),
            Outcome::Failed(why) => println!("test {name} ... FAILED\n    {why}"),
            Outcome::NotRun(why) => println!("test {name} ... ignored, {why}"),
        }
    }
}

impl Report {
    /// Of a machine that ran none of its tests.
    pub fn died(cell: &Cell, tests: &[String], why: String) -> Report {
        let tests = tests
            .iter()
            .map(|name| Test {
                name: name.clone(),
                outcome: Outcome::NotRun("the machine did not start".into()),
                seconds: 0.0,
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

    /// Prints what its tests did not say themselves: the machine's own failure, and the console around failures.
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
            let word = match &test.outcome {
                Outcome::Ok => "ok",
                Outcome::Failed(_) => "FAILED",
                Outcome::NotRun(_) => "not run",
            };
            let _ = writeln!(text, "{}\t{word}", test.name);
        }
        fs::write(results().join(&self.cell), text).context("keeping the result")
    }
}

/// Writes docs/kernels.md's table from the results that are kept: rows are machines, columns tests.
pub fn table() -> Result<()> {
    const BEGIN: &str = "<!-- made by `cargo xtask vm --table`: do not edit below -->";
    let mut columns: Vec<String> = Vec::new();
    let mut rows: Vec<(String, String, BTreeMap<String, String>)> = Vec::new();
    for cell in matrix::all() {
        let Ok(text) = fs::read_to_string(results().join(cell.name())) else {
            rows.push((cell.name(), "-".into(), BTreeMap::new()));
            continue;
        };
        let mut lines = text.lines();
        let release = lines.next().unwrap_or_default().to_string();
        let mut row = BTreeMap::new();
        for (name, word) in lines.filter_map(|l| l.split_once('\t')) {
            if !columns.iter().any(|c| c == name) {
                columns.push(name.into());
            }
            row.insert(name.to_string(), word.to_string());
        }
        rows.push((cell.name(), release, row));
    }
    let mut table = format!(
        "{BEGIN}\n\n| machine | kernel | {} |\n",
        columns.join(" | ")
    );
    let _ = writeln!(table, "| --- | --- |{}", " --- |".repeat(columns.len()));
    for (cell, release, row) in rows {
        let words: Vec<_> = columns
            .iter()
            .map(|c| row.get(c).map_or("", String::as_str))
            .collect();
        let _ = writeln!(table, "| {cell} | {release} | {} |", words.join(" | "));
    }
    let path = paths::root().join("docs/kernels.md");
    let old = fs::read_to_string(&path).unwrap_or_default();
    let head = old.split(BEGIN).next().unwrap_or_default();
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(&path, format!("{head}{table}"))?;
    println!("vm: wrote {}", path.display());
    Ok(())
}
