//! Words of the test programs: those of Rust's test harness, of this project's runners, and its `NOT RUN name: why`.

/// Number of lines of a failed test's reason that are shown and repeated at the end.
pub const REASONS: usize = 12;

/// The meaning of one line of a test program's output.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// The totals of Rust's harness: passed, failed, ignored. A test that says itself that it did not run is among the
    /// passed.
    Harness(usize, usize, usize),
    /// The closing line of one of this project's runners: passed, failed, skipped.
    Closing(usize, usize, usize),
    /// A test that the harness ignored and counts apart, with the reason.
    Ignored(String),
    /// A test that says itself that it did not run.
    NotRun(String),
    /// A test that failed.
    Failed(String),
    /// The test program whose output follows.
    Running(String),
}

impl Said {
    /// Tells whether the line has a meaning even among the captured outputs of tests.
    pub fn counts_when_captured(&self) -> bool {
        matches!(self, Self::NotRun(_) | Self::Harness(..))
    }
}

/// The reasons that Rust's harness prints of failed tests, below the line `failures:`: what each test printed, the panic's
/// message within it.
#[derive(Default)]
pub struct Panics {
    /// The line `failures:` came.
    failures: bool,
    /// The test whose output follows.
    test: Option<String>,
    /// Number of lines of the message that may still follow.
    left: usize,
}

impl Panics {
    /// Takes a line; the test and the line where it is one of a panic's message.
    pub fn line<'a>(&mut self, line: &'a str) -> Option<(&str, &'a str)> {
        if line == "failures:" {
            *self = Self {
                failures: true,
                ..Self::default()
            };
        } else if line.starts_with("test result: ") {
            *self = Self::default();
        } else if !self.failures {
            return None;
        } else if let Some(test) = line.strip_prefix("---- ") {
            self.test = test.split(' ').next().map(str::to_owned);
            self.left = 0;
        } else if line.contains(" panicked at ") {
            self.left = REASONS;
        } else if line.starts_with("stack backtrace:") || line.starts_with("note: ") {
            self.left = 0;
        }
        self.left = self.left.checked_sub(1)?;
        Some((self.test.as_deref()?, line))
    }
}

/// Reads one line of a test program.
pub fn said(line: &str) -> Option<Said> {
    if line.starts_with(|c: char| c.is_ascii_digit()) {
        return closing_line(line);
    }
    let line = line.trim();
    if let Some(totals) = line.strip_prefix("test result: ") {
        let number = |word: &str| {
            let before = totals.split(word).next()?;
            before.split_whitespace().next_back()?.parse().ok()
        };
        return Some(Said::Harness(
            number(" passed")?,
            number(" failed")?,
            number(" ignored")?,
        ));
    }
    if let Some(test) = line.strip_prefix("test ") {
        let (name, verdict) = test.split_once(" ... ")?;
        return match verdict {
            "ignored" => Some(Said::Ignored(format!("{name}: ignored, without a reason"))),
            _ if verdict.starts_with("FAILED") => Some(Said::Failed(name.to_owned())),
            _ => ["ignored, ", "NOT RUN: "]
                .iter()
                .find_map(|start| verdict.strip_prefix(start))
                .map(|why| Said::Ignored(format!("{name}: {why}"))),
        };
    }
    if let Some(program) = line.strip_prefix("Running ") {
        return Some(Said::Running(
            program.split(" (").next().unwrap_or(program).to_owned(),
        ));
    }
    let lower = line.to_ascii_lowercase();
    let rest = ["not run: ", "not run "]
        .iter()
        .find_map(|start| lower.strip_prefix(start))?;
    Some(Said::NotRun(line[line.len() - rest.len()..].to_owned()))
}

/// `N passed, N failed, N skipped`: the last line of this project's own runners, with or without a time.
fn closing_line(line: &str) -> Option<Said> {
    let mut parts = line.splitn(3, ", ");
    let mut number = |word: &str| {
        let (number, rest) = parts.next()?.split_once(' ')?;
        (rest == word || rest.strip_prefix(word)?.starts_with(' ')).then_some(())?;
        number.parse().ok()
    };
    Some(Said::Closing(
        number("passed")?,
        number("failed")?,
        number("skipped")?,
    ))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use super::*;
    use crate::paths;

    #[test]
    fn the_harness_is_understood() {
        let totals = "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.02s";
        assert_eq!(said(totals), Some(Said::Harness(12, 1, 2)));
        assert_eq!(said("test a::b ... ok"), None);
        assert_eq!(
            said("test a::b ... FAILED"),
            Some(Said::Failed("a::b".into()))
        );
        assert_eq!(
            said("test a::b ... ignored, needs two GPUs"),
            Some(Said::Ignored("a::b: needs two GPUs".into()))
        );
        assert_eq!(
            said("     Running unittests src/lib.rs (target/x)"),
            Some(Said::Running("unittests src/lib.rs".into()))
        );
    }

    #[test]
    fn a_test_may_say_itself_that_it_did_not_run() {
        let line = "NOT RUN capture_of_work: no such file";
        assert_eq!(
            said(line),
            Some(Said::NotRun("capture_of_work: no such file".into()))
        );
        assert_eq!(said("this line is not run: of interest"), None);
    }

    /// The first string of each `print!` of a source.
    fn printed(source: &str) -> Vec<&str> {
        let calls = source.split("println!(").skip(1);
        calls
            .filter_map(|call| call.trim_start().strip_prefix('"')?.split('"').next())
            .collect()
    }

    /// Every Rust source below a folder.
    fn sources(dir: &Path, to: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && entry.file_name() != "target" {
                sources(&path, to);
            } else if path.extension().is_some_and(|e| e == "rs") {
                to.push(path);
            }
        }
    }

    /// A test that says it in other words would be counted as passed.
    #[test]
    fn every_form_of_did_not_run_is_understood() {
        let mut all = Vec::new();
        sources(&paths::root(), &mut all);
        // The reader of these words prints a summary of its own.
        all.retain(|path| !path.ends_with("xtask/src/report.rs"));
        let mut seen = 0;
        for path in &all {
            let source = fs::read_to_string(path).expect("a source is text");
            for line in printed(&source) {
                let lower = line.to_ascii_lowercase();
                if !["not run", "did not run", "skipped:", "cannot run"]
                    .iter()
                    .any(|words| lower.contains(words))
                {
                    continue;
                }
                assert!(
                    matches!(said(line), Some(Said::NotRun(_) | Said::Ignored(_))),
                    "{}: {line:?} is not understood: print `NOT RUN name: why`",
                    path.display()
                );
                seen += 1;
            }
        }
        assert!(seen > 0, "no test says that it did not run");
    }
}
