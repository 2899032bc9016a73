//! A test runner with a third outcome: a test that cannot run says so and is counted separately.
//!
//! Tests run beside each other, each in a process of its own: what one does to its process (a panic, an abort, a descriptor that a program started
//! meanwhile inherits) is no other's, and its output is kept until it has ended. Each has a control group of its own, too: of processes of
//! one group that have a forebear in common nvcap says that they may be kin. Where no groups can be made, tests run one by one. Debug registers are a thread's own, and each test has programs,
//! names and folders of its own. Those that need the machine for themselves say why ([`Test::alone`]) and run after the others, one by one.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The option with the name of the one test that a process is started for.
const ONLY: &str = "--only-this";
/// Begins the reason in the output of such a process; no test prints it.
const REASON: &str = "\n\u{1}reason: ";
/// The status of such a process whose test could not run.
const UNRUN: u8 = 77;
/// The status of one whose test panicked.
const PANICKED: u8 = 101;
/// Number of tests that run at once for each processor: most of them wait for most of their time.
const AT_ONCE: usize = 3;
/// The variable with the control group of such a process.
const GROUP: &str = "NVCAP_LIVE_GROUP";
/// Longest time that a test may take: a guard against hanging, not a verdict.
const GUARD: Duration = Duration::from_secs(1200);

/// One test.
pub struct Test {
    name: String,
    run: Box<dyn Fn() -> Result<()>>,
    alone: bool,
    guard: Duration,
}

impl Test {
    /// A test and its name, `group::what`. An error or a panic is a failure, unless it is a [`NotRun`].
    pub fn new(name: impl Into<String>, run: impl Fn() -> Result<()> + 'static) -> Test {
        Test {
            name: name.into(),
            run: Box::new(run),
            alone: false,
            guard: GUARD,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets the test run while no other one runs.
    pub fn alone(self) -> Test {
        Test {
            alone: true,
            ..self
        }
    }

    /// Lets the test take longer than others, by this time.
    pub fn longer(mut self, by: Duration) -> Test {
        self.guard += by;
        self
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

/// The options of the command line.
#[derive(Default)]
struct Options {
    names: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    ignored: bool,
    threads: Option<usize>,
    only: Option<String>,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Options {
        let mut all = Options::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--exact" => all.exact = true,
                "--list" => all.list = true,
                "--ignored" => all.ignored = true,
                "--skip" => all.skip.extend(args.next()),
                "--test-threads" => all.threads = args.next().and_then(|n| n.parse().ok()),
                ONLY => all.only = args.next(),
                "--format" | "--color" | "--logfile" | "-Z" => drop(args.next()),
                flag if flag.starts_with('-') => {
                    let threads = flag.strip_prefix("--test-threads=");
                    all.threads = threads.and_then(|n| n.parse().ok()).or(all.threads);
                    // Any other is of libtest, with no meaning here.
                }
                name => all.names.push(name.to_owned()),
            }
        }
        all
    }

    fn wants(&self, name: &str) -> bool {
        let fits = |n: &String| match self.exact {
            true => name == n,
            false => name.contains(n.as_str()),
        };
        !self.ignored
            && (self.names.is_empty() || self.names.iter().any(fits))
            && !self.skip.iter().any(|s| name.contains(s.as_str()))
    }

    fn at_once(&self) -> usize {
        let usual = || match Group::can_be_made() {
            true => std::thread::available_parallelism().map_or(1, usize::from) * AT_ONCE,
            false => 1,
        };
        self.threads.unwrap_or_else(usual).max(1)
    }
}

/// Runs the tests selected by the command line, in the format of `cargo test`: names or parts of names, `--exact`, `--skip
/// NAME`, `--list`, `--test-threads N`. Tests begin in their order here, with the variables of `environment`.
pub fn main(tests: &[Test], environment: fn() -> Vec<(&'static str, OsString)>) -> ExitCode {
    let options = Options::read(std::env::args().skip(1));
    if let Some(name) = &options.only {
        return only(tests.iter().find(|t| t.name == *name));
    }
    let chosen = tests.iter().filter(|t| options.wants(&t.name));
    let chosen: Vec<&str> = chosen.map(|t| t.name.as_str()).collect();
    if options.list {
        chosen.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let begun = Instant::now();
    let mut tally = Tally::default();
    let all = tests.iter().filter(|t| chosen.contains(&t.name.as_str()));
    let jobs = all.map(|t| Job {
        name: &t.name,
        alone: t.alone,
        guard: t.guard,
    });
    let (alone, beside): (Vec<Job>, Vec<Job>) = jobs.partition(|t| t.alone);
    if !chosen.is_empty() {
        tally.environment = environment();
    }
    tally.all(&beside, options.at_once());
    tally.all(&alone, 1);
    tally.close(begun.elapsed())
}

/// A control group of a test's own; it is removed when dropped.
struct Group(PathBuf);

impl Group {
    /// Makes one below this process's, of version 2 or of version 1's `pids`.
    fn new() -> Result<Group> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = std::fs::read_to_string("/proc/self/cgroup")?;
        let of = |id: &str| {
            own.lines()
                .find_map(|l| l.split_once(id))
                .map(|(_, path)| path)
        };
        let places = [
            ("/sys/fs/cgroup", "0::/"),
            ("/sys/fs/cgroup/unified", "0::/"),
            ("/sys/fs/cgroup/pids", ":pids:/"),
        ];
        let has = |place: &PathBuf| place.join("cgroup.procs").exists();
        let mut found = places.iter().filter_map(|(root, id)| {
            let root = PathBuf::from(root);
            // In a container the root may be the own one.
            [root.join(of(id)?), root].into_iter().find(has)
        });
        let place = found.next().context("no control groups are shown")?;
        let path = place.join(format!("nvcap-live-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Group(path))
    }

    /// True where a process can be put into one.
    fn can_be_made() -> bool {
        let Ok(group) = Group::new() else {
            return false;
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ >\"$1\"", "sh"]);
        shell
            .arg(group.0.join("cgroup.procs"))
            .stderr(Stdio::null());
        shell.status().is_ok_and(|status| status.success())
    }

    /// Puts this process into the group that its environment names.
    fn enter() -> Result<()> {
        let Some(path) = std::env::var_os(GROUP) else {
            return Ok(());
        };
        let path = PathBuf::from(path).join("cgroup.procs");
        std::fs::write(&path, std::process::id().to_string())
            .with_context(|| path.display().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Programs that a test has left behind may be in it for a moment still.
        let begun = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A test that another process runs.
struct Job<'a> {
    name: &'a str,
    alone: bool,
    guard: Duration,
}

/// The outcomes so far.
#[derive(Default)]
struct Tally {
    counts: Mutex<Counts>,
    /// Variables for the tests' processes.
    environment: Vec<(&'static str, OsString)>,
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: Vec<String>,
    skipped: usize,
    took: Vec<(Duration, String)>,
}

impl Tally {
    /// Runs tests, `at_once` of them at a time.
    fn all(&self, jobs: &[Job], at_once: usize) {
        let next = Mutex::new(jobs.iter());
        let work = || {
            loop {
                let job = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(job) = job else { return };
                let begun = Instant::now();
                let outcome = job.run(&self.environment);
                self.add(job.name, outcome, begun.elapsed());
            }
        };
        std::thread::scope(|scope| {
            (0..at_once.min(jobs.len())).for_each(|_| drop(scope.spawn(work)));
        });
    }

    /// Counts and prints one, its whole output at once.
    fn add(&self, name: &str, outcome: Result<Outcome>, took: Duration) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = took.as_secs_f64();
        let (mut said, verdict) = match outcome {
            Ok(Outcome { said, verdict }) => (said, verdict),
            Err(e) => (String::new(), Verdict::Failed("", format!("{e:#}"))),
        };
        if !said.is_empty() && !said.ends_with('\n') {
            said.push('\n');
        }
        match verdict {
            Verdict::Passed => {
                said.push_str(&format!("test {name} ... ok ({seconds:.1} s)\n"));
                counts.passed += 1;
            }
            Verdict::NotRun(why) => {
                said.push_str(&format!("test {name} ... NOT RUN: {why}\n"));
                counts.skipped += 1;
            }
            Verdict::Failed(how, reason) => {
                let reason = reason.trim_end().replace('\n', "\n    ");
                said.push_str(&format!(
                    "test {name} ... FAILED ({how}{seconds:.1} s)\n    {reason}\n"
                ));
                counts.failed.push(name.to_owned());
            }
        }
        counts.took.push((took, name.to_owned()));
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(said.as_bytes()).and_then(|()| out.flush());
    }

    fn close(self, took: Duration) -> ExitCode {
        let mut counts = self
            .counts
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        counts.took.sort();
        let slowest = counts.took.iter().rev().take(10);
        let slowest = slowest.map(|(took, name)| format!("{name} {:.1} s", took.as_secs_f64()));
        println!("slowest: {}", slowest.collect::<Vec<_>>().join(", "));
        for name in &counts.failed {
            println!("failed: {name}");
        }
        println!(
            "\n{} passed, {} failed, {} skipped in {:.1} s",
            counts.passed,
            counts.failed.len(),
            counts.skipped,
            took.as_secs_f64()
        );
        match counts.failed.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

/// Verdict on a test, and the test's output.
struct Outcome {
    said: String,
    verdict: Verdict,
}

enum Verdict {
    Passed,
    NotRun(String),
    /// Failure: in words how the test ended, where not by an error; and why.
    Failed(&'static str, String),
}

impl Job<'_> {
    /// Runs it in a process of its own.
    fn run(&self, environment: &[(&'static str, OsString)]) -> Result<Outcome> {
        let mut output = memory_file().context("no file for a test's output")?;
        let group = Group::new().ok();
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([ONLY, self.name])
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .envs(group.iter().map(|group| (GROUP, &group.0)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?);
        // SAFETY: between fork and exec; one system call, which takes no pointer.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().context("cannot start the test")?;
        let begun = Instant::now();
        let ended = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if begun.elapsed() > self.guard {
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let ended = match ended {
            Some(status) => Ok(status),
            None => {
                let family = family(child.id());
                let names: Vec<&str> = family.iter().map(|(_, name)| name.as_str()).collect();
                let guard = format!(
                    "guard: it had not ended after {} s; {} were there",
                    self.guard.as_secs(),
                    names.join(", ")
                );
                for (pid, _) in family.iter().rev() {
                    // SAFETY: sends a signal; the first is this process's child and not reaped yet, the others were its descendants just now.
                    unsafe { libc::kill(*pid as libc::pid_t, libc::SIGKILL) };
                }
                child.wait()?;
                Err(guard)
            }
        };
        let mut said = Vec::new();
        output.rewind()?;
        output.read_to_end(&mut said)?;
        Ok(Outcome::of(&String::from_utf8_lossy(&said), ended))
    }
}

impl Outcome {
    /// Makes an outcome from the output of the test's process, and its status or what ended it.
    fn of(said: &str, ended: Result<ExitStatus, String>) -> Outcome {
        let (said, reason) = said.rsplit_once(REASON).unwrap_or((said, ""));
        let reason = reason.to_owned();
        let verdict = match ended.map(|status| (status.code(), status.signal())) {
            Ok((Some(0), _)) => Verdict::Passed,
            Ok((Some(code), _)) if code == i32::from(UNRUN) => Verdict::NotRun(reason),
            Ok((Some(code), _)) if code == i32::from(PANICKED) => {
                Verdict::Failed("panicked, ", reason)
            }
            Ok((Some(_), _)) => Verdict::Failed("", reason),
            Ok((None, signal)) => {
                let signal = signal.unwrap_or_default();
                Verdict::Failed("", format!("signal {signal} ended its process{reason}"))
            }
            Err(guard) => Verdict::Failed("", guard),
        };
        Outcome {
            said: said.to_owned(),
            verdict,
        }
    }
}

/// Runs one test in this process, and ends with its outcome.
fn only(test: Option<&Test>) -> ExitCode {
    let Some(test) = test else {
        print!("{REASON}there is no such test");
        return ExitCode::FAILURE;
    };
    // Where it cannot be, the test runs while no other does.
    let _ = Group::enter();
    static PANIC: Mutex<String> = Mutex::new(String::new());
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
    }));
    let (status, reason) = match catch_unwind(AssertUnwindSafe(&test.run)) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(e)) => match e.downcast_ref::<NotRun>() {
            Some(why) => (UNRUN, why.to_string()),
            None => (1, format!("{e:#}")),
        },
        Err(_) => {
            let said = PANIC.lock().unwrap_or_else(PoisonError::into_inner);
            (PANICKED, said.clone())
        }
    };
    print!("{REASON}{reason}");
    ExitCode::from(status)
}

/// A file in memory; programs that are started do not inherit it.
fn memory_file() -> Result<File> {
    // SAFETY: the name is a C string; the call returns a new descriptor that nothing else owns.
    unsafe {
        let fd = libc::memfd_create(c"a test's output".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            bail!(std::io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(fd))
    }
}

/// A process and its descendants, with their names.
fn family(pid: u32) -> Vec<(u32, String)> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut all = vec![(pid, format!("{} ({pid})", name.trim()))];
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|c| c.parse().ok());
        all.extend(children.flat_map(family));
    }
    all
}
