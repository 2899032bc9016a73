//! Reader of one command's output: counts its tests, and repeats at once what failed and why.

use std::{path::Path, process::ExitStatus};

use super::{
    said::{Panics, REASONS, Said, said},
    tally::{Counts, Tally},
};

/// Number of last lines that are shown of a command with a failure.
const SHOWN: usize = 60;

/// Output of one command, as far as it has been read.
pub struct Output<'a> {
    /// The step's name.
    name: &'a str,
    /// The tests run as by a plain `cargo test`: those that `cargo test` ignores are another step's.
    plain: bool,
    tally: Tally,
    /// A line with totals came.
    totals: bool,
    /// Number of tests that said that they did not run, since the last totals.
    unrun: usize,
    /// Number of tests that did not run, though `cargo test` calls them passed.
    mislabelled: usize,
    /// The test program whose output follows, as the beginning of its tests' names.
    program: String,
    captured: Captured,
    /// Number of lines of the last failure's reason that may still follow.
    reasons: usize,
    panics: Panics,
    tail: Tail,
}

impl<'a> Output<'a> {
    /// Begins to read the output of the step `name`.
    pub fn of(name: &'a str, plain: bool) -> Self {
        Self {
            name,
            plain,
            tally: Tally::default(),
            totals: false,
            unrun: 0,
            mislabelled: 0,
            program: String::new(),
            captured: Captured::default(),
            reasons: 0,
            panics: Panics::default(),
            tail: Tail::default(),
        }
    }

    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        self.reason(line);
        self.panic(line);
        let captured = self.captured.now;
        let words = said(line).filter(|said| !captured || said.counts_when_captured());
        self.captured.line(line, words.as_ref());
        if let Some(words) = words {
            self.words(words);
        }
        self.tail.push(line);
    }

    /// Ends with the command's exit status: the tally of its tests. `log` is the file with all of its output.
    pub fn end(mut self, status: ExitStatus, log: &Path) -> Tally {
        self.count_what_no_totals_hold();
        self.judge_by_status(status);
        if self.tally.counts.failed > 0 {
            self.tail.show(log);
        }
        self.tally
    }

    /// Repeats a line of a failure's reason, which follows below its line, indented: the log may be out of the reader's reach.
    fn reason(&mut self, line: &str) {
        if self.reasons == 0 || !line.starts_with("    ") {
            self.reasons = 0;
            return;
        }
        self.reasons -= 1;
        eprintln!("   |{line}");
        if let Some(failed) = self.tally.failed.last_mut() {
            failed.extend(["\n  ", line]);
        }
    }

    /// Repeats a line of a panic's message.
    fn panic(&mut self, line: &str) {
        if let Some((test, reason)) = self.panics.line(line) {
            eprintln!("   |{test}: {reason}");
            self.tally.failed.push(format!("  {test}: {reason}"));
        }
    }

    /// Counts a line that has a meaning.
    fn words(&mut self, words: Said) {
        match words {
            Said::Closing(passed, failed, skipped) => self.closing(Counts {
                passed,
                failed,
                skipped,
            }),
            Said::Harness(passed, failed, ignored) => self.harness(passed, failed, ignored),
            Said::Ignored(test) => self.ignored(&test),
            Said::NotRun(test) if self.plain => self.mislabelled(&test),
            Said::NotRun(test) => self.not_run(&test),
            Said::Failed(test) => self.failed(&test),
            Said::Running(program) => self.program = program + ": ",
        }
    }

    /// Counts the tests of one of this project's runners, which has those that did not run among the skipped.
    fn closing(&mut self, counts: Counts) {
        self.totals = true;
        self.unrun = 0;
        self.tally.counts.add(counts);
    }

    /// Counts the tests of Rust's harness, which has those that say that they did not run among the passed.
    fn harness(&mut self, passed: usize, failed: usize, ignored: usize) {
        self.totals = true;
        let unrun = std::mem::take(&mut self.unrun);
        self.tally.counts.add(Counts {
            passed: passed.saturating_sub(unrun),
            failed,
            skipped: unrun + if self.plain { 0 } else { ignored },
        });
    }

    /// Names a test that the harness ignored. In a plain run another step runs it.
    fn ignored(&mut self, test: &str) {
        if !self.plain {
            self.tally.not_run.push(format!("{}: {test}", self.name));
        }
    }

    /// Fails a test that did not run and is not marked so: a plain `cargo test` shows it as passed.
    fn mislabelled(&mut self, test: &str) {
        const WHY: &str = "`cargo test` calls it ok: mark it #[ignore = \"why\"]";
        let (name, program) = (self.name, &self.program);
        eprintln!("   FAILED {program}{test}");
        let failed = format!("{name}: {program}did not run, and {WHY}: {test}");
        self.tally.failed.push(failed);
        self.mislabelled += 1;
    }

    /// Names a test that did not run. One that says it several times is one test.
    fn not_run(&mut self, test: &str) {
        self.unrun += usize::from(self.captured.is_first_not_run());
        let (name, program) = (self.name, &self.program);
        self.tally.not_run.push(format!("{name}: {program}{test}"));
    }

    /// Names a test that failed.
    fn failed(&mut self, test: &str) {
        let (name, program) = (self.name, &self.program);
        eprintln!("   FAILED {program}{test}");
        self.tally.failed.push(format!("{name}: {program}{test}"));
        self.reasons = REASONS;
    }

    /// Counts tests that did not run with no totals behind them, and moves those that fail by it from the passed.
    fn count_what_no_totals_hold(&mut self) {
        let counts = &mut self.tally.counts;
        counts.skipped += self.unrun;
        counts.failed += self.mislabelled;
        counts.passed = counts.passed.saturating_sub(self.mislabelled);
    }

    /// Counts the command as one test where its status says more than its output: a failure that no line told, or success
    /// without totals.
    fn judge_by_status(&mut self, status: ExitStatus) {
        let counts = &mut self.tally.counts;
        if counts.failed > 0 {
            return;
        }
        if !status.success() {
            counts.failed = 1;
            self.tally.failed.push(format!("{}: {status}", self.name));
        } else if !self.totals && self.unrun == 0 {
            counts.passed = 1;
        }
    }
}

/// Place among the captured outputs of tests, which the harness prints behind its verdicts.
#[derive(Default)]
struct Captured {
    /// The lines are the tests' own output, some of which looks like a runner's.
    now: bool,
    /// The test whose output follows is counted as one that did not run.
    counted: bool,
}

impl Captured {
    /// Takes a line and its meaning: the outputs begin below a heading, and end with the harness's totals.
    fn line(&mut self, line: &str, words: Option<&Said>) {
        if self.now && line.starts_with("---- ") {
            self.counted = false;
        }
        if matches!(words, Some(Said::Harness(..))) {
            self.now = false;
        } else if matches!(line, "successes:" | "failures:") {
            self.now = true;
        }
    }

    /// Tells whether the line `NOT RUN` that was just read is the first of its test.
    fn is_first_not_run(&mut self) -> bool {
        let again = self.now && self.counted;
        self.counted = self.now;
        !again
    }
}

/// The last lines of an output.
#[derive(Default)]
struct Tail(Vec<String>);

impl Tail {
    fn push(&mut self, line: &str) {
        self.0.push(line.to_owned());
        if self.0.len() > 200 {
            self.0.drain(..100);
        }
    }

    /// Prints the end, and the file with all of the output.
    fn show(&self, log: &Path) {
        eprintln!("   the end of its output (all of it: {}):", log.display());
        let from = self.0.len().saturating_sub(SHOWN);
        for line in &self.0[from..] {
            eprintln!("   | {line}");
        }
    }
}
