//! Report of the tests that ran, failed, or did not run and why; and the closing line.
//!
//! Runs the test programs and adds up what their output says (`output` reads it, `said` knows the words); knows no test.

mod output;
mod said;
mod tally;

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
use output::Output;
use tally::{Counts, Tally};

/// The tally of a whole run.
#[derive(Default)]
pub struct Report {
    tally: Tally,
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
        let mut output = Output::of(name, plain);
        let status = stream(cmd, &log, |line| output.line(line))?;
        let tally = output.end(status, &log);
        let Counts {
            passed,
            failed,
            skipped,
        } = tally.counts;
        eprintln!(
            "   {passed} passed, {failed} failed, {skipped} skipped ({:.0} s)",
            started.elapsed().as_secs_f64()
        );
        self.tally.add(tally);
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
            self.tally.add(report.tally);
        }
        Ok(())
    }

    /// Adds what another report has.
    pub fn add(&mut self, other: Self) {
        self.tally.add(other.tally);
    }

    /// Counts a check that is made here, not by a test program.
    pub fn check(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => {
                eprintln!("== {name}: ok");
                self.tally.counts.add(Counts {
                    passed: 1,
                    ..Counts::default()
                });
            }
            Err(error) => {
                eprintln!("== {name}: FAILED: {error:#}");
                self.tally.failed.push(format!("{name}: {error:#}"));
                self.tally.counts.add(Counts {
                    failed: 1,
                    ..Counts::default()
                });
            }
        }
    }

    /// True once something has failed.
    pub fn has_failed(&self) -> bool {
        self.tally.counts.failed > 0
    }

    /// Counts a test that cannot run here.
    pub fn skip(&mut self, name: &str, why: &str) {
        eprintln!("== {name}: NOT RUN: {why}");
        self.tally.not_run.push(format!("{name}: {why}"));
        self.tally.counts.add(Counts {
            skipped: 1,
            ..Counts::default()
        });
    }

    /// Prints the tests that did not run, those that failed and the totals; an error if any failed.
    pub fn close(self) -> Result<()> {
        println!("{}", self.summary());
        match self.tally.counts.failed {
            0 => Ok(()),
            failed => bail!("{failed} failed; the logs are in {}", logs().display()),
        }
    }

    /// The text that `close` prints: its last line is the totals.
    fn summary(&self) -> String {
        let mut lines = Vec::new();
        for (title, list) in [
            ("Did not run:", &self.tally.not_run),
            ("Failed:", &self.tally.failed),
        ] {
            if !list.is_empty() {
                lines.push(title.to_owned());
                lines.extend(list.iter().map(|what| format!("  {what}")));
            }
        }
        let Counts {
            passed,
            failed,
            skipped,
        } = self.tally.counts;
        lines.push(format!(
            "{passed} passed, {failed} failed, {skipped} skipped"
        ));
        lines.join("\n")
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(report.tally.counts, counted(1, 0, 3));
        assert_eq!(report.tally.not_run.len(), 4, "{:?}", report.tally.not_run);
        let mut report = Report::default();
        report.plain("unit test g", &script).expect("it starts");
        assert_eq!(report.tally.counts, counted(0, 3, 0));
        assert!(report.tally.failed[0].contains("mark it #[ignore"));
        assert!(report.tally.not_run.is_empty());
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
            report.tally.counts,
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
            report.tally.counts,
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
