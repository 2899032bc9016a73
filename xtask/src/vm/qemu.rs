//! The life of one machine: initramfs, QEMU, its console read line by line, the results of its cells.
//!
//! One processor: TCG with a thread for each processor races with live text patching of the guest kernel; with one thread
//! for all, each processor runs a tenth of a second at a time, while the others wait for its interrupts. The machine type
//! is microvm, which calibrates its clock against an emulated timer and now and then hangs doing so; therefore the clock's
//! rate is given.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::cpio::Cpio;
use super::emulator::Emulator;
use super::fetch::Kernel;
use super::guest::Programs;
use super::matrix::Cell;
use super::report::{Outcome, Report, Test};
use super::{module, shell};
use crate::arch::Arch;

/// Seconds of the guest's clock after which the guest ends a test that goes on and on. Like the two below it is a guard against
/// hanging and no measure of a test: the longest takes some seconds.
const TEST_GUARD: u64 = 600;
/// Seconds of the machine's own processor time without a word on its console, after which the machine is ended.
const BUSY_GUARD: f64 = 600.0;
/// Seconds without a word on its console, after which a machine is ended that uses no processor time: long after
/// [`TEST_GUARD`], so that the guest has had its say.
const QUIET_GUARD: Duration = Duration::from_secs(1800);
/// Seconds after which a kernel that has not started is ended: some hang while they start, asleep (see above), and are started again.
const START_GUARD: Duration = Duration::from_secs(300);
/// Number of times that a kernel is started that does not start; nothing under test has run by then.
const STARTS: u32 = 3;
const MEMORY_MIB: u32 = 1024;
/// Without the two features that make Linux and glibc copy and clear byte by byte, which is slow under TCG.
const CPU: &str = "max,-erms,-fsrm";

/// The machine, its processor, and on x86-64 the device by which the guest ends it with a status.
fn machine_options(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &[
            "-M",
            "microvm,rtc=on",
            "-cpu",
            CPU,
            "-device",
            "isa-debug-exit,iobase=0xf4,iosize=4",
        ],
        // A core of Arm's servers, before those whose pointer authentication TCG computes slowly.
        Arch::Aarch64 => &["-M", "virt", "-cpu", "neoverse-n1"],
    }
}

/// The kernel's command line.
fn kernel_options(arch: Arch) -> String {
    let all =
        "quiet panic=-1 oops=panic nokaslr mitigations=off cryptomgr.notests random.trust_cpu=on";
    match arch {
        Arch::X86_64 => {
            let khz = tsc_khz();
            let lpj = khz * 1000 / 250;
            format!("console=ttyS0 {all} tsc_early_khz={khz} tsc=reliable lpj={lpj}")
        }
        Arch::Aarch64 => format!("console=ttyAMA0 {all}"),
    }
}

/// Tells whether QEMU's own status agrees with the one that the guest printed. A panic reboots, which QEMU with -no-reboot reports
/// as success; so it does when an aarch64 guest has switched its machine off, and there the printed line is what counts.
fn agrees(arch: Arch, printed: i32, status: Option<i32>) -> bool {
    match arch {
        Arch::X86_64 => status == Some(printed << 1 | 1),
        Arch::Aarch64 => status == Some(0),
    }
}

/// TCG's time stamp counter is the host's; its rate in kHz is 500 times the value of bogomips.
fn tsc_khz() -> u64 {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let bogomips = info
        .lines()
        .find_map(|l| {
            l.strip_prefix("bogomips")?
                .trim_start_matches([' ', '\t', ':'])
                .parse::<f64>()
                .ok()
        })
        .unwrap_or(4000.0);
    (bogomips * 500.0) as u64
}

/// A cell and its tests, in the order in which they run.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The cell.
    pub cell: Cell,
    /// Names of tests.
    pub tests: Vec<String>,
}

/// The file by which the guest knows its cells and their tests.
fn job(planned: &[Planned], programs: &Programs) -> String {
    let mut text = format!(
        "nvcap {}\nguard {TEST_GUARD}\n",
        u8::from(programs.nvcap.is_some())
    );
    for Planned { cell, tests } in planned {
        text.push_str(&format!(
            "cell {}\nway {}\ngpus {}\nbranch {}\nbtf {}\nlockdown {}\nkptr {}\nuser {}\n",
            cell.name(),
            cell.way.name(),
            cell.gpus,
            cell.branch,
            u8::from(cell.btf),
            cell.lockdown,
            cell.kptr,
            u8::from(cell.user),
        ));
        for test in tests {
            text.push_str(&format!("test {test}\n"));
        }
    }
    text
}

/// The initramfs: programs, the modules of all cells, the job.
fn initramfs(kernel: &Kernel, planned: &[Planned], programs: &Programs) -> Result<Vec<u8>> {
    let mut cpio = Cpio::new();
    cpio.file("init", &programs.init)?;
    cpio.file("bin/softgpu", &programs.softgpu)?;
    if let Some((nvcap, live)) = &programs.nvcap {
        cpio.file("bin/nvcap", nvcap)?;
        cpio.file("bin/live", live)?;
        // The init under other names: see `other_names.rs` of the guest.
        for name in ["nvcap-here", "true", "env", "contained", "lives"] {
            cpio.link(&format!("bin/{name}"), "/init");
        }
    }
    for library in &programs.libraries {
        let path = library.to_string_lossy();
        cpio.file(path.trim_start_matches('/'), library)?;
    }
    let kinds: BTreeSet<_> = planned
        .iter()
        .map(|p| (p.cell.branch, p.cell.btf))
        .collect();
    for (branch, btf) in kinds {
        let modules = module::build(kernel, branch, btf)?;
        for file in module::FILES {
            let kind = module::kind(btf);
            cpio.file(
                &format!("modules/{branch}-{kind}/{file}"),
                &modules.join(file),
            )?;
        }
    }
    cpio.bytes("job", job(planned, programs).as_bytes(), 0o644);
    Ok(cpio.finish())
}

/// Boots a machine, runs the cells in it one after the other, and returns their results in order: of all cells, or of the
/// first ones if the machine ended before the others began. Of a machine that did not start the result is an error.
pub fn boot(
    emulator: &Emulator,
    kernel: &Kernel,
    planned: &[Planned],
    programs: &Programs,
    verbose: bool,
) -> Result<Vec<Report>> {
    let bytes = initramfs(kernel, planned, programs)?;
    let dir = shell::cache().join("run");
    fs::create_dir_all(&dir)?;
    // The same kernel may run several times at once.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}.{}.{number}.cpio", kernel.release, std::process::id());
    let initrd = dir.join(name);
    fs::write(&initrd, bytes)?;
    let mut reports = live(emulator, kernel, &initrd, planned, verbose);
    for _ in 1..STARTS {
        let Err(why) = &reports else { break };
        println!(
            "vm: {} did not start and is started again: {why:#}",
            kernel.release
        );
        reports = live(emulator, kernel, &initrd, planned, verbose);
    }
    fs::remove_file(&initrd).ok();
    reports
}

fn live(
    emulator: &Emulator,
    kernel: &Kernel,
    initrd: &Path,
    planned: &[Planned],
    verbose: bool,
) -> Result<Vec<Report>> {
    let mut qemu = emulator
        .command()
        .args(["-accel", "tcg,thread=single", "-smp", "1"])
        .args(machine_options(emulator.arch))
        .args([
            "-m",
            &MEMORY_MIB.to_string(),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-serial", "stdio"])
        .arg("-kernel")
        .arg(kernel.image())
        .arg("-initrd")
        .arg(initrd)
        .arg("-append")
        .arg(kernel_options(emulator.arch))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(|| format!("cannot start {emulator:?}"))?;
    let console = BufReader::new(qemu.stdout.take().context("its console")?);
    let guard = Guard::over(qemu.id());
    let mut heard = Heard::new(planned);
    for line in console.split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line).trim_end().to_string();
        if verbose {
            println!("{}: {line}", heard.name());
        }
        let used = cpu_seconds(qemu.id());
        guard.spoke(used, line.starts_with("vm: ready"));
        heard.line(line, used);
    }
    let said = guard.end();
    let used = cpu_seconds(qemu.id());
    let status = qemu.wait()?;
    let machine = match heard.exit {
        _ if said.is_some() => said,
        Some(code) if agrees(emulator.arch, code, status.code()) => None,
        _ => Some(format!("the kernel died or was reset (QEMU {status})")),
    };
    heard.reports(machine, used)
}

/// Ends a machine that says nothing more.
struct Guard {
    /// Time at which the machine last said something, the processor time that it had used, seconds, and whether it has started.
    last: Arc<Mutex<(Instant, f64, bool)>>,
    end: mpsc::Sender<()>,
    watch: std::thread::JoinHandle<Option<String>>,
}

impl Guard {
    /// Watches a child that must not be waited for before [`Guard::end`], so that its id is no other process's.
    fn over(id: u32) -> Guard {
        let last = Arc::new(Mutex::new((Instant::now(), 0.0, false)));
        let (end, ended) = mpsc::channel::<()>();
        let seen = last.clone();
        let watch = std::thread::spawn(move || {
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                let (when, used, started) = *seen.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(why) = too_quiet(when.elapsed(), cpu_seconds(id) - used, started) {
                    let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
                    return Some(why);
                }
            }
            None
        });
        Guard { last, end, watch }
    }

    /// Notes a line of the console.
    fn spoke(&self, used: f64, ready: bool) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (Instant::now(), used, last.2 || ready);
    }

    /// Stops watching; the reason if the machine was ended.
    fn end(self) -> Option<String> {
        drop(self.end);
        self.watch.join().ok().flatten()
    }
}

/// The reason to end a machine that has said nothing for `wall` and has used `cpu` seconds of processor time since.
fn too_quiet(wall: Duration, cpu: f64, started: bool) -> Option<String> {
    let most = if started { QUIET_GUARD } else { START_GUARD };
    (cpu > BUSY_GUARD || wall > most).then(|| {
        format!(
            "guard: the machine said nothing for {} s, {cpu:.0} s of its own processor time, and was ended",
            wall.as_secs()
        )
    })
}

/// Processor time of a process that has not been waited for: the cost of its work, even on a busy host.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name in parentheses: state is field 3, utime and stime 14 and 15, in hundredths on every x86 Linux.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|t| t.parse::<u64>().ok())
        .sum();
    ticks as f64 / 100.0
}

/// State of a console that is being read.
struct Heard<'a> {
    planned: &'a [Planned],
    release: String,
    /// The cells that have begun; the last one may be going on.
    cells: Vec<Part>,
    exit: Option<i32>,
    /// Output of the machine before its first cell.
    early: Vec<String>,
    /// Processor time when the last cell or test ended.
    used: f64,
}

/// Output heard of one cell.
struct Part {
    start: Instant,
    /// Processor time of the machine when it began; the machine's start belongs to the first cell.
    began: f64,
    tests: Vec<Test>,
    console: Vec<String>,
    /// The result, once the cell has ended.
    report: Option<Report>,
}

impl<'a> Heard<'a> {
    fn new(planned: &'a [Planned]) -> Self {
        Heard {
            planned,
            release: String::new(),
            cells: Vec::new(),
            exit: None,
            early: Vec::new(),
            used: 0.0,
        }
    }

    /// The name of the cell that is running or about to run.
    fn name(&self) -> String {
        let at = self.cells.len().saturating_sub(1);
        self.planned
            .get(at)
            .map_or(String::new(), |p| p.cell.name())
    }

    /// Takes a line that came when the machine had used so much processor time, and prints the result that it may tell.
    fn line(&mut self, line: String, used: f64) {
        let mut words = line.strip_prefix("vm: ").unwrap_or_default().splitn(5, ' ');
        match words.next() {
            Some("ready") => self.release = words.nth(1).unwrap_or_default().into(),
            Some("cell") if self.cells.len() < self.planned.len() => {
                let first = self.cells.is_empty();
                self.cells.push(Part {
                    start: Instant::now(),
                    began: if first { 0.0 } else { self.used },
                    tests: Vec::new(),
                    console: std::mem::take(&mut self.early),
                    report: None,
                });
                // What a machine needs to start or to become another one counts for no test.
                self.used = used;
            }
            Some("prepared") => self.used = used,
            Some("test") => {
                let name = words.next().unwrap_or_default().to_string();
                let how = words.next().unwrap_or_default();
                let seconds = words.next().and_then(|s| s.parse().ok()).unwrap_or(0.0);
                let why = words.next().unwrap_or_default().to_string();
                let test = Test {
                    name,
                    outcome: match how {
                        "ok" => Outcome::Ok,
                        "not-run" => Outcome::NotRun(why),
                        _ => Outcome::Failed(why),
                    },
                    seconds,
                    cpu: used - self.used,
                };
                self.used = used;
                test.print(&self.name());
                if let Some(part) = self.cells.last_mut() {
                    part.tests.push(test);
                }
            }
            Some("ended") => {
                let code = words.nth(1).and_then(|code| code.parse().ok());
                self.finish(complaint(code.unwrap_or(BAD_MACHINE)), used);
                self.used = used;
            }
            Some(word) if word.starts_with("exit=") => self.exit = word[5..].parse().ok(),
            _ => match self.cells.last_mut() {
                Some(part) => part.console.push(line),
                None => self.early.push(line),
            },
        }
    }

    /// Makes the report of the cell that is going on, and prints it.
    fn finish(&mut self, machine: Option<String>, used: f64) {
        let at = self.cells.len().saturating_sub(1);
        let release = self.release.clone();
        if let (Some(part), Some(planned)) = (self.cells.last_mut(), self.planned.get(at)) {
            let report = part.report(planned, release, machine, used);
            report.print();
            part.report = Some(report);
        }
    }

    /// The reports of the cells that began. `machine`: why the machine itself failed, which the cell answers for during
    /// which it did.
    fn reports(mut self, machine: Option<String>, used: f64) -> Result<Vec<Report>> {
        if self.cells.is_empty() {
            let why = machine.unwrap_or_else(|| "it ended without a cell".into());
            anyhow::bail!("{why}\n{}", self.early.join("\n"));
        }
        if self.cells.last().is_some_and(|part| part.report.is_none()) {
            self.finish(machine.or(Some("it ended within a cell".into())), used);
        } else if let (Some(why), Some(report)) = (
            machine,
            self.cells.last_mut().and_then(|part| part.report.as_mut()),
        ) {
            println!("test {} machine ... FAILED\n    {why}", report.cell);
            report.machine = Some(why);
        }
        Ok(self.cells.into_iter().filter_map(|p| p.report).collect())
    }
}

/// Statuses of a cell itself, above any number of failed tests, as the guest's main.rs has them.
const BAD_MACHINE: i32 = 90;
const KERNEL_COMPLAINED: i32 = 94;

/// Returns the reason why a cell with this status failed apart from its tests.
fn complaint(code: i32) -> Option<String> {
    match code {
        BAD_MACHINE => {
            Some("the machine could not be made what the job wants; see its console".into())
        }
        KERNEL_COMPLAINED => Some("the kernel warned or died; see its console".into()),
        _ => None,
    }
}

impl Part {
    fn report(
        &mut self,
        planned: &Planned,
        release: String,
        machine: Option<String>,
        used: f64,
    ) -> Report {
        let mut tests = std::mem::take(&mut self.tests);
        for name in &planned.tests {
            // A command by hand is reported by its first word.
            let word = name.split_whitespace().next().unwrap_or(name);
            if !tests.iter().any(|t| t.name == word) {
                let test = Test {
                    name: name.clone(),
                    outcome: Outcome::Failed("the machine ended before it".into()),
                    seconds: 0.0,
                    cpu: 0.0,
                };
                test.print(&planned.cell.name());
                tests.push(test);
            }
        }
        let failed = machine.is_some()
            || tests
                .iter()
                .any(|t| matches!(t.outcome, Outcome::Failed(_)));
        let mut console = std::mem::take(&mut self.console);
        if !failed {
            console.clear();
        }
        let keep = console.len().saturating_sub(120);
        Report {
            cell: planned.cell.name(),
            release,
            tests,
            machine,
            seconds: self.start.elapsed().as_secs_f64(),
            cpu: used - self.began,
            console: console.split_off(keep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(tests: [&[&str]; 2]) -> Vec<Planned> {
        let mut cells = super::super::matrix::all().into_iter();
        let next = |tests: &[&str]| Planned {
            cell: cells.next().expect("a cell"),
            tests: tests.iter().map(ToString::to_string).collect(),
        };
        tests.map(next).into()
    }

    #[test]
    fn a_console_is_understood() {
        let planned = planned([&["one", "two", "three", "four"], &["one"]]);
        let mut heard = Heard::new(&planned);
        for (used, line) in [
            "[    0.1] something of the kernel's",
            "vm: ready 1.90 6.12.1-cloud-amd64",
            "vm: cell first",
            "vm: prepared first",
            "vm: test one ok 0.20",
            "  why it failed",
            "vm: test two FAILED 1.00 it is wrong",
            "vm: test three not-run 0.01 no such thing here",
            "vm: ended first 1",
            "vm: cell second",
            "vm: prepared second",
            "vm: test one ok 0.20",
            "vm: ended second 0",
            "vm: exit=1 up=3.00",
        ]
        .into_iter()
        .enumerate()
        {
            heard.line(line.into(), used as f64);
        }
        assert_eq!(heard.exit, Some(1));
        let reports = heard.reports(None, 14.0).expect("cells began");
        let [first, second] = &reports[..] else {
            panic!("{reports:?}")
        };
        assert_eq!(first.release, "6.12.1-cloud-amd64");
        let outcomes: Vec<_> = first.tests.iter().map(|t| t.outcome.clone()).collect();
        assert_eq!(outcomes[0], Outcome::Ok);
        assert_eq!(outcomes[1], Outcome::Failed("it is wrong".into()));
        assert_eq!(outcomes[2], Outcome::NotRun("no such thing here".into()));
        assert!(matches!(outcomes[3], Outcome::Failed(_)));
        assert_eq!(first.console.len(), 2);
        assert!(first.machine.is_none() && second.machine.is_none());
        assert_eq!((first.tests[0].cpu, first.tests[1].cpu), (1.0, 2.0));
        // The machine's start is the first cell's, the time between two cells the second's.
        assert_eq!((first.cpu, second.cpu), (8.0, 4.0));
        assert!(second.console.is_empty());
    }

    #[test]
    fn a_machine_that_ends_early_answers_for_the_cell_it_was_in() {
        let planned = planned([&["one"], &["one"]]);
        let mut heard = Heard::new(&planned);
        for line in ["vm: ready 1.90 6.1", "vm: cell first", "vm: prepared first"] {
            heard.line(line.into(), 0.0);
        }
        let reports = heard.reports(Some("it died".into()), 1.0).expect("a cell");
        // The other cell has not begun: it gets a machine of its own.
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].machine.as_deref(), Some("it died"));
        assert!(matches!(reports[0].tests[0].outcome, Outcome::Failed(_)));
        assert!(Heard::new(&planned).reports(None, 0.0).is_err());
    }

    #[test]
    fn a_guard_counts_the_machine_s_own_time_first() {
        assert_eq!(too_quiet(Duration::from_secs(900), 20.0, true), None);
        for (wall, cpu, started) in [(700, 601.0, true), (1801, 0.0, true), (301, 1.0, false)] {
            let why = too_quiet(Duration::from_secs(wall), cpu, started).expect("too quiet");
            assert!(why.starts_with("guard: "), "{why}");
        }
    }
}
