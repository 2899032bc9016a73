//! `cargo xtask test`: every test that this machine can run, and a list of those that it cannot.
//!
//! Knows which crates hold tests and what they need. How a test's words are read is `report`'s.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{
    build::{self, Profile},
    install::{self, Root},
    paths,
    report::Report,
    shell::Cmd,
};

/// The crates whose tests need root and a live kernel; the workspace's plain test run leaves them out.
const LIVE: [(&str, &str); 2] = [
    ("live tests", "tests/live"),
    ("hostile targets", "tests/hostile"),
];

/// What `cargo xtask test` leaves out.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// No live tests.
    pub no_live: bool,
    /// No virtual machines.
    pub no_vm: bool,
}

/// Runs all tests; an error where one failed.
pub fn run(options: Options) -> Result<()> {
    let mut report = Report::default();
    let built = programs(&mut report);
    library(&mut report)?;
    workspace(&mut report)?;
    if options.no_live {
        report.skip("live tests", "--no-live was given");
    } else {
        for (name, folder) in LIVE {
            live(&mut report, name, folder, built.as_deref())?;
        }
    }
    if options.no_vm {
        report.skip("VM tests", "--no-vm was given");
    } else {
        vm(&mut report)?;
    }
    report.close()
}

/// Builds what the end-to-end tests start, and checks that it runs anywhere. None where that failed.
fn programs(report: &mut Report) -> Option<std::path::PathBuf> {
    if !paths::has_crate("nvcap-ebpf") {
        report.skip(
            "build of the BPF programs",
            "nvcap-ebpf/ is not in this checkout",
        );
        return None;
    }
    let built = build::bpf().and_then(|_| build::packages(&build::programs(), Profile::RELEASE));
    match built {
        Ok(dir) => {
            report.check(
                "nvcap is one file that needs no shared library",
                build::check_static(&dir.join("nvcap")),
            );
            report.check("nvcap starts", starts(&dir.join("nvcap")));
            Some(dir)
        }
        Err(error) => {
            report.check("build", Err(error));
            None
        }
    }
}

/// The program says its version when asked, with nothing but itself in an empty environment.
fn starts(program: &Path) -> Result<()> {
    let out = Command::new(program)
        .arg("--version")
        .env_clear()
        .current_dir("/")
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() || !text.starts_with("nvcap ") {
        anyhow::bail!(
            "`nvcap --version` ended with {} and printed {text:?}",
            out.status
        );
    }
    Ok(())
}

/// The decoder and the driver model as another project would link them: no BPF, no kernel, no command line.
fn library(report: &mut Report) -> Result<()> {
    report.step(
        "library without default features",
        &cargo_test()
            .args(["-p", "nvcap", "--lib", "--no-default-features"])
            .args(SHOW),
    )?;
    let tree = build::host_cargo()
        .args([
            "tree",
            "--locked",
            "-p",
            "nvcap",
            "--no-default-features",
            "-e",
            "normal",
            "--prefix",
            "none",
        ])
        .read()
        .unwrap_or_default();
    let kernel: Vec<&str> = tree
        .lines()
        .filter(|line| {
            ["aya", "perf-event", "tokio"]
                .iter()
                .any(|name| line.starts_with(name))
        })
        .collect();
    let result = if tree.is_empty() {
        Err(anyhow::anyhow!("cargo tree failed"))
    } else if kernel.is_empty() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("it depends on {}", kernel.join(", ")))
    };
    report.check("library links no BPF loader", result);
    Ok(())
}

/// Unit, fixture and documentation tests of every crate of the workspace.
fn workspace(report: &mut Report) -> Result<()> {
    let mut cmd = cargo_test().arg("--workspace");
    for live in LIVE.iter().filter_map(|(_, folder)| paths::package(folder)) {
        cmd = cmd.args(["--exclude", &live]);
    }
    report.step("unit and fixture tests", &cmd.args(SHOW))
}

/// End-to-end tests on the running kernel, as root.
fn live(report: &mut Report, name: &str, folder: &str, built: Option<&Path>) -> Result<()> {
    let Some(built) = built else {
        report.skip(name, "there is no built nvcap to test");
        return Ok(());
    };
    let Some(package) = paths::package(folder) else {
        report.skip(name, &format!("{folder}/ is not in this checkout"));
        return Ok(());
    };
    let programs = [
        ("NVCAP_BIN", built.join("nvcap")),
        ("SOFTGPU_BIN", built.join("softgpu")),
    ];
    let mut cmd = cargo_test().args(["-p", &package]);
    match install::root() {
        Root::Already => {
            for (variable, path) in programs {
                cmd = cmd.env(variable, path);
            }
        }
        // Built by the user, run by root: cargo starts each test program through the runner. sudo drops the
        // environment, so that env sets it again.
        Root::Sudo => {
            let programs = programs
                .map(|(variable, path)| format!("{variable}={}", path.display()))
                .join(" ");
            cmd = cmd.env(
                "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
                format!("sudo -n env {programs}"),
            );
        }
        Root::Asking | Root::No => {
            report.skip(name, "they need root; type: sudo -v && cargo xtask test");
            for (variable, path) in programs {
                cmd = cmd.env(variable, path);
            }
            // Observing needs the right to read a process of one's own, and no more.
            return report.step(
                &format!("{name} that need no root"),
                &cmd.args(["--", "--show-output", "observe"]),
            );
        }
    }
    // One at a time: a thread has four debug registers, and timing tests want the machine to themselves.
    report.step(name, &cmd.args(["--", "--show-output", "--test-threads=1"]))
}

/// The kernels that this machine does not run.
fn vm(report: &mut Report) -> Result<()> {
    if !paths::root().join("xtask/src/vm.rs").is_file() {
        report.skip("VM tests", "xtask/src/vm.rs is not in this checkout");
        return Ok(());
    }
    report.step("VM tests", &Cmd::new(std::env::current_exe()?).arg("vm"))
}

/// Passed tests' output is wanted for the lines in which they say that they did not run.
const SHOW: [&str; 2] = ["--", "--show-output"];

fn cargo_test() -> Cmd {
    build::host_cargo().args(["test", "--locked", "--no-fail-fast"])
}
