//! Report of the tests that ran, failed, or did not run and why; and the closing line.
//!
//! Reads the output of the test programs (Rust's test harness, and this project's `NOT RUN name: why`), knows no test.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{paths, shell::Cmd};

/// Number of lines of a failed test's reason that are shown and repeated at the end.
const REASONS: usize = 12;

/// The tally of a whole run.
#[derive(Default)]
pub struct Report {
    counts: Counts,
    not_run: Vec<String>,
    failed: Vec<String>,
}

#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    fn add(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

/// The meaning of one line of a test program's output.
#[derive(Debug, PartialEq, Eq)]
enum Said {
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
    fn counts_when_captured(&self) -> bool {
        matches!(self, Self::NotRun(_) | Self::Harness(..))
    }
}

impl Report {
    /// Runs a command that tests something, counts what its output says, and keeps the output in a log.
    ///
    /// A command whose output holds no totals counts as one test by its exit status.
    pub fn step(&mut self, name: &str, cmd: &Cmd) -> Result<()> {
        self.run(name, cmd, false)
    }

    /// Runs tests as a plain `cargo test` does, which shows a test as passed that says that it did not run: such a one fails. Those that the
    /// harness ignores are not counted: another step runs them.
    pub fn plain(&mut self, name: &str, cmd: &Cmd) -> Result<()> {
        self.run(name, cmd, true)
    }

    fn run(&mut self, name: &str, cmd: &Cmd, plain: bool) -> Result<()> {
        let log = log_file(name)?;
        eprintln!("== {name}\n+ {}", cmd.line());
        let started = Instant::now();
        let (mut counts, mut totals, mut tail) = (Counts::default(), false, Vec::new());
        let (mut unrun, mut mislabelled) = (0, 0);
        let mut program = String::new();
        let mut captured = false;
        // The test whose output follows, once it is counted as one that did not run.
        let mut unrun_test = false;
        let mut reasons = 0;
        let mut panics = Panics::default();
        let status = stream(cmd, &log, |line| {
            // The reason of a failure follows below its line, indented; the log may be out of the reader's reach.
            if reasons > 0 && line.starts_with("    ") {
                reasons -= 1;
                eprintln!("   |{line}");
                if let Some(failed) = self.failed.last_mut() {
                    failed.extend(["\n  ", line]);
                }
            } else {
                reasons = 0;
            }
            if let Some((test, reason)) = panics.line(line) {
                eprintln!("   |{test}: {reason}");
                self.failed.push(format!("  {test}: {reason}"));
            }
            let words = said(line).filter(|said| !captured || said.counts_when_captured());
            if captured && line.starts_with("---- ") {
                unrun_test = false;
            }
            captured = match (&words, line) {
                (Some(Said::Harness(..)), _) => false,
                // Behind this line is the tests' own output, some of which looks like a runner's.
                (_, "successes:" | "failures:") => true,
                _ => captured,
            };
            match words {
                Some(Said::Closing(passed, failed, skipped)) => {
                    totals = true;
                    unrun = 0;
                    counts.add(Counts {
                        passed,
                        failed,
                        skipped,
                    });
                }
                Some(Said::Harness(passed, failed, ignored)) => {
                    totals = true;
                    let unrun = std::mem::take(&mut unrun);
                    counts.add(Counts {
                        passed: passed.saturating_sub(unrun),
                        failed,
                        skipped: unrun + if plain { 0 } else { ignored },
                    });
                }
                Some(Said::Ignored(_)) if plain => {}
                Some(Said::Ignored(what)) => self.not_run.push(format!("{name}: {what}")),
                Some(Said::NotRun(what)) if plain => {
                    let why = "`cargo test` calls it ok: mark it #[ignore = \"why\"]";
                    eprintln!("   FAILED {program}{what}");
                    self.failed
                        .push(format!("{name}: {program}did not run, and {why}: {what}"));
                    mislabelled += 1;
                }
                Some(Said::NotRun(what)) => {
                    // A test that says it several times is one test.
                    unrun += usize::from(!(captured && unrun_test));
                    unrun_test = captured;
                    self.not_run.push(format!("{name}: {program}{what}"));
                }
                Some(Said::Failed(what)) => {
                    eprintln!("   FAILED {program}{what}");
                    self.failed.push(format!("{name}: {program}{what}"));
                    reasons = REASONS;
                }
                Some(Said::Running(what)) => program = what + ": ",
                None => {}
            }
            tail.push(line.to_owned());
            if tail.len() > 200 {
                tail.drain(..100);
            }
        })?;
        counts.skipped += unrun;
        counts.failed += mislabelled;
        counts.passed = counts.passed.saturating_sub(mislabelled);
        if !status.success() && counts.failed == 0 {
            counts.failed = 1;
            self.failed.push(format!("{name}: {status}"));
        } else if !totals && counts.failed == 0 && unrun == 0 {
            counts.passed = 1;
        }
        if counts.failed > 0 {
            let from = tail.len().saturating_sub(60);
            eprintln!("   the end of its output (all of it: {}):", log.display());
            tail[from..]
                .iter()
                .for_each(|line| eprintln!("   | {line}"));
        }
        eprintln!(
            "   {} passed, {} failed, {} skipped ({:.0} s)",
            counts.passed,
            counts.failed,
            counts.skipped,
            started.elapsed().as_secs_f64()
        );
        self.counts.add(counts);
        Ok(())
    }

    /// Runs commands that take one processor each, as many at once as there are processors.
    pub fn steps(&mut self, steps: Vec<(String, Cmd)>) -> Result<()> {
        let next = Mutex::new(steps.into_iter());
        let work = || {
            let mut report = Self::default();
            loop {
                let step = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((name, cmd)) = step else {
                    return Ok(report);
                };
                report.step(&name, &cmd)?;
            }
        };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let reports = thread::scope(|scope| {
            let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.collect::<Vec<Result<Result<Self>, _>>>()
        });
        for report in reports {
            let report = report.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            self.counts.add(report.counts);
            self.not_run.extend(report.not_run);
            self.failed.extend(report.failed);
        }
        Ok(())
    }

    /// Counts a check that is made here, not by a test program.
    pub fn check(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => {
                eprintln!("== {name}: ok");
                self.counts.add(Counts {
                    passed: 1,
                    ..Counts::default()
                });
            }
            Err(error) => {
                eprintln!("== {name}: FAILED: {error:#}");
                self.failed.push(format!("{name}: {error:#}"));
                self.counts.add(Counts {
                    failed: 1,
                    ..Counts::default()
                });
            }
        }
    }

    /// True once something has failed.
    pub fn has_failed(&self) -> bool {
        self.counts.failed > 0
    }

    /// Counts a test that cannot run here.
    pub fn skip(&mut self, name: &str, why: &str) {
        eprintln!("== {name}: NOT RUN: {why}");
        self.not_run.push(format!("{name}: {why}"));
        self.counts.add(Counts {
            skipped: 1,
            ..Counts::default()
        });
    }

    /// Prints the tests that did not run, those that failed and the totals; an error if any failed.
    pub fn close(self) -> Result<()> {
        println!("{}", self.summary());
        match self.counts.failed {
            0 => Ok(()),
            failed => bail!("{failed} failed; the logs are in {}", logs().display()),
        }
    }

    /// The text that `close` prints: its last line is the totals.
    fn summary(&self) -> String {
        let mut lines = Vec::new();
        for (title, list) in [("Did not run:", &self.not_run), ("Failed:", &self.failed)] {
            if !list.is_empty() {
                lines.push(title.to_owned());
                lines.extend(list.iter().map(|what| format!("  {what}")));
            }
        }
        let Counts {
            passed,
            failed,
            skipped,
        } = self.counts;
        lines.push(format!(
            "{passed} passed, {failed} failed, {skipped} skipped"
        ));
        lines.join("\n")
    }
}

/// The reasons that Rust's harness prints of failed tests, below the line `failures:`: what each test printed, the panic's
/// message within it.
#[derive(Default)]
struct Panics {
    /// The line `failures:` came.
    failures: bool,
    /// The test whose output follows.
    test: Option<String>,
    /// Number of lines of the message that may still follow.
    left: usize,
}

impl Panics {
    /// Takes a line; the test and the line where it is one of a panic's message.
    fn line<'a>(&mut self, line: &'a str) -> Option<(&str, &'a str)> {
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

fn logs() -> PathBuf {
    paths::target().join("xtask-test")
}

fn log_file(name: &str) -> Result<PathBuf> {
    let dir = logs();
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let word: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    Ok(dir.join(format!("{word}.log")))
}

/// Runs `cmd` with both output streams in one pipe: to the log, and line by line to `each`.
fn stream(
    cmd: &Cmd,
    log: &PathBuf,
    mut each: impl FnMut(&str),
) -> Result<std::process::ExitStatus> {
    let mut log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let (reader, writer) = std::io::pipe()?;
    let mut command = cmd.command();
    command
        .stdin(std::process::Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command
        .spawn()
        .with_context(|| format!("could not start: {}", cmd.line()))?;
    drop(command); // it holds the writing ends, and the pipe must end with the child
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        log.write_all(&line)?;
        each(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(child.wait()?)
}

/// Reads one line of a test program.
fn said(line: &str) -> Option<Said> {
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
    use super::*;

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
    fn sources(dir: &std::path::Path, to: &mut Vec<PathBuf>) {
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

    /// A test that says several times that it did not run is one, and fails where a plain `cargo test` would show it as passed.
    #[test]
    fn tests_that_did_not_run_are_counted_once_and_only_where_they_are_ignored() {
        let output = "test a ... ok%test b ... ok%test c ... ignored, needs root%successes:%---- a stdout ----%NOT RUN a: no GPU%NOT RUN a: no other%\
                      ---- b stdout ----%NOT RUN b: no GPU%successes:%    a%    b%\
                      test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out%";
        let script = Cmd::new("sh").args(["-c", "printf %s \"$0\" | tr % '\\n'", output]);
        let counted = |passed, failed, skipped| Counts {
            passed,
            failed,
            skipped,
        };
        let mut report = Report::default();
        report.step("unit test f", &script).expect("it starts");
        assert_eq!(report.counts, counted(1, 0, 3));
        assert_eq!(report.not_run.len(), 4, "{:?}", report.not_run);
        let mut report = Report::default();
        report.plain("unit test g", &script).expect("it starts");
        assert_eq!(report.counts, counted(0, 3, 0));
        assert!(report.failed[0].contains("mark it #[ignore"));
        assert!(report.not_run.is_empty());
    }

    #[test]
    fn the_reason_of_a_failure_is_repeated_at_the_end() {
        let mut report = Report::default();
        let script = "echo 'test x ... FAILED (0.1 s)'; echo '    exit status 0 instead of 3'; echo 'test y ... ok (0.1 s)'; \
                      echo '    of y'; echo '1 passed, 1 failed, 0 skipped'; exit 1";
        report
            .step("unit test d", &Cmd::new("sh").args(["-c", script]))
            .expect("it starts");
        let wanted = "Failed:\n  unit test d: x\n      exit status 0 instead of 3\n1 passed, 1 failed, 0 skipped";
        assert_eq!(report.summary(), wanted);
    }

    #[test]
    fn the_message_of_a_panic_is_repeated_at_the_end() {
        let mut report = Report::default();
        // In one line: the command is printed, and its lines would be read as those of a test program.
        let output = "test a::x ... FAILED%test y ... ok%successes:%---- y stdout ----%thread 'y' panicked at y.rs:1:%was expected%\
                      failures:%---- a::x stdout ----%before%thread 'a::x' (7) panicked at x.rs:3:4:%assertion failed: 1 of 2%\
                      stack backtrace:%   0: one%failures:%    a::x%\
                      test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out%";
        let print = "printf %s \"$0\" | tr % '\\n'; exit 1";
        let script = Cmd::new("sh").args(["-c", print, output]);
        report.step("unit test e", &script).expect("it starts");
        let wanted = "Failed:\n  unit test e: a::x\n    a::x: thread 'a::x' (7) panicked at x.rs:3:4:\n    a::x: assertion failed: 1 of 2\n1 passed, 1 failed, 0 skipped";
        assert_eq!(report.summary(), wanted);
    }

    #[test]
    fn a_step_is_counted_by_its_output_and_its_status() {
        let mut report = Report::default();
        let script = "echo 'test x ... ok'; echo 'successes:'; echo 'test z ... FAILED'; echo 'NOT RUN x: no GPU'; \
                      echo '9 passed, 9 failed, 9 skipped'; echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'";
        report
            .step("unit test a", &Cmd::new("sh").args(["-c", script]))
            .expect("it starts");
        assert_eq!(
            report.counts,
            Counts {
                passed: 2,
                failed: 0,
                skipped: 2
            }
        );
        report
            .step("unit test b", &Cmd::new("true"))
            .expect("it starts");
        report
            .step("unit test c", &Cmd::new("false"))
            .expect("it starts");
        assert_eq!(
            report.counts,
            Counts {
                passed: 3,
                failed: 1,
                skipped: 2
            }
        );
        assert!(
            report
                .summary()
                .ends_with("Failed:\n  unit test c: exit status: 1\n3 passed, 1 failed, 2 skipped")
        );
    }
}
