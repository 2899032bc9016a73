//! The life of one machine: initramfs, QEMU, its console read line by line, its result.
//!
//! One processor: TCG with a thread for each processor races with live text patching of the guest kernel; with one thread
//! for all, each processor runs a tenth of a second at a time, while the others wait for its interrupts. The machine type
//! is microvm, which calibrates its clock against an emulated timer and now and then hangs doing so; therefore the clock's
//! rate is given.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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

/// Seconds for one test, and for the machine apart from its tests.
const TEST_LIMIT: u64 = 60;
const BOOT_LIMIT: u64 = 60;
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

/// Whether QEMU's own status agrees with the one that the guest printed. A panic reboots, which QEMU with -no-reboot reports
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

fn job(cell: &Cell, programs: &Programs, tests: &[String]) -> String {
    let mut text = format!(
        "way {}\ngpus {}\nbranch {}\nbtf {}\nlockdown {}\nkptr {}\nuser {}\nnvcap {}\nlimit {TEST_LIMIT}\n",
        cell.way.name(),
        cell.gpus,
        cell.branch,
        u8::from(cell.btf),
        cell.lockdown,
        cell.kptr,
        u8::from(cell.user),
        u8::from(programs.nvcap.is_some()),
    );
    for test in tests {
        text.push_str(&format!("test {test}\n"));
    }
    text
}

/// Boots the cell's machine, runs `tests` in it, and returns their results.
pub fn boot(
    emulator: &Emulator,
    cell: &Cell,
    kernel: &Kernel,
    modules: &std::path::Path,
    programs: &Programs,
    tests: &[String],
    verbose: bool,
) -> Result<Report> {
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
    for file in module::FILES {
        cpio.file(file, &modules.join(file))?;
    }
    cpio.bytes("job", job(cell, programs, tests).as_bytes(), 0o644);
    let dir = shell::cache().join("run");
    fs::create_dir_all(&dir)?;
    // The same machine may run several times at once.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}.{}.{number}.cpio", cell.name(), std::process::id());
    let initrd = dir.join(name);
    fs::write(&initrd, cpio.finish())?;
    let report = live(emulator, cell, kernel, &initrd, tests, verbose);
    fs::remove_file(&initrd).ok();
    report
}

fn live(
    emulator: &Emulator,
    cell: &Cell,
    kernel: &Kernel,
    initrd: &std::path::Path,
    tests: &[String],
    verbose: bool,
) -> Result<Report> {
    let start = Instant::now();
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
    let limit = Duration::from_secs(BOOT_LIMIT + TEST_LIMIT * tests.len() as u64);
    let (ended, late) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let watch = {
        let (ended, late, id) = (ended.clone(), late.clone(), qemu.id());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if start.elapsed() > limit {
                    late.store(true, Ordering::Relaxed);
                    // By the id of a child that has not been waited for, so it cannot be another process's.
                    let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        })
    };
    let mut heard = Heard::default();
    let mut used = 0.0;
    for line in console.split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line).trim_end().to_string();
        if verbose {
            println!("{}: {line}", cell.name());
        }
        // The machine's start counts for no test.
        let now = cpu_seconds(qemu.id());
        if line.starts_with("vm: ready") {
            used = now;
        }
        if let Some(test) = heard.line(line) {
            test.cpu = now - used;
            used = now;
            test.print(&cell.name());
        }
    }
    ended.store(true, Ordering::Relaxed);
    watch.join().ok();
    let cpu = cpu_seconds(qemu.id());
    let status = qemu.wait()?;
    let machine = match heard.exit {
        _ if late.load(Ordering::Relaxed) => {
            Some(format!("ran past {} s and was killed", limit.as_secs()))
        }
        Some(code) if agrees(emulator.arch, code, status.code()) => match code {
            90 => Some("the machine could not be made what the job wants; see its console".into()),
            94 => Some("the kernel warned or died; see its console".into()),
            _ => None,
        },
        _ => Some(format!("the kernel died or was reset (QEMU {status})")),
    };
    let mut report = heard.report(cell, tests, machine, start.elapsed().as_secs_f64());
    report.cpu = cpu;
    Ok(report)
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
#[derive(Default)]
struct Heard {
    release: String,
    tests: Vec<Test>,
    exit: Option<i32>,
    console: Vec<String>,
}

impl Heard {
    /// Takes a line; returns the test that it reported.
    fn line(&mut self, line: String) -> Option<&mut Test> {
        let Some(said) = line.strip_prefix("vm: ") else {
            self.console.push(line);
            return None;
        };
        let mut words = said.splitn(5, ' ');
        match words.next() {
            Some("ready") => self.release = words.nth(1).unwrap_or_default().into(),
            Some("test") => {
                let name = words.next().unwrap_or_default().to_string();
                let how = words.next().unwrap_or_default();
                let seconds = words.next().and_then(|s| s.parse().ok()).unwrap_or(0.0);
                let why = words.next().unwrap_or_default().to_string();
                let outcome = match how {
                    "ok" => Outcome::Ok,
                    "not-run" => Outcome::NotRun(why),
                    _ => Outcome::Failed(why),
                };
                self.tests.push(Test {
                    name,
                    outcome,
                    seconds,
                    cpu: 0.0,
                });
                return self.tests.last_mut();
            }
            Some(word) if word.starts_with("exit=") => self.exit = word[5..].parse().ok(),
            _ => self.console.push(line),
        }
        None
    }

    fn report(
        mut self,
        cell: &Cell,
        tests: &[String],
        machine: Option<String>,
        seconds: f64,
    ) -> Report {
        for name in tests {
            if !self.tests.iter().any(|t| &t.name == name) {
                let test = Test {
                    name: name.clone(),
                    outcome: Outcome::Failed("the machine ended before it".into()),
                    seconds: 0.0,
                    cpu: 0.0,
                };
                test.print(&cell.name());
                self.tests.push(test);
            }
        }
        let failed = machine.is_some()
            || self
                .tests
                .iter()
                .any(|t| matches!(t.outcome, Outcome::Failed(_)));
        if !failed {
            self.console.clear();
        }
        let keep = self.console.len().saturating_sub(120);
        Report {
            cell: cell.name(),
            release: self.release,
            tests: self.tests,
            machine,
            seconds,
            cpu: 0.0,
            console: self.console.split_off(keep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_is_understood() {
        let mut heard = Heard::default();
        for line in [
            "[    0.1] something of the kernel's",
            "vm: ready 1.90 6.12.1-cloud-amd64",
            "vm: test one ok 0.20",
            "  why it failed",
            "vm: test two FAILED 1.00 it is wrong",
            "vm: test three not-run 0.01 no such thing here",
            "vm: exit=1 up=3.00",
        ] {
            heard.line(line.into());
        }
        assert_eq!(heard.exit, Some(1));
        assert_eq!(heard.release, "6.12.1-cloud-amd64");
        let cell = super::super::matrix::all().remove(0);
        let names = ["one", "two", "three", "four"].map(String::from);
        let report = heard.report(&cell, &names, None, 3.0);
        let outcomes: Vec<_> = report.tests.iter().map(|t| t.outcome.clone()).collect();
        assert_eq!(outcomes[0], Outcome::Ok);
        assert_eq!(outcomes[1], Outcome::Failed("it is wrong".into()));
        assert_eq!(outcomes[2], Outcome::NotRun("no such thing here".into()));
        assert!(matches!(outcomes[3], Outcome::Failed(_)));
        assert_eq!(report.console.len(), 2);
    }
}
