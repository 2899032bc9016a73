//! `cargo xtask test`: every test that this machine can run, and a list of those that it cannot.
//!
//! Knows which crates hold tests and what they need; `report` reads the output of the tests. Everything is built once, in the development profile:
//! the programs that the live tests start are those that the unit tests were compiled beside.

use std::{
    env,
    path::{Path, PathBuf},
    thread,
};

use anyhow::Result;

use crate::{
    browser,
    build::{self, Profile},
    install::{self, Root},
    paths, python,
    report::Report,
    shell::Cmd,
    tour,
};

/// The crates whose tests need root and a live kernel; the workspace's plain test run leaves them out.
const LIVE: [(&str, &str); 2] = [
    ("live tests", "tests/live"),
    ("hostile targets", "tests/hostile"),
];

/// The environment variables that live tests read: how long the chaos lasts, of which seed it is, how often what is repeated is.
const PASSED_ON: [&str; 4] = [
    "NVCAP_CHAOS_SECONDS",
    "NVCAP_CHAOS_SEED",
    "NVCAP_CHAOS_ROUND",
    "NVCAP_LIFE_TIMES",
];

/// Variable that is set for the long form of the gate: virtual machines with another processor, and what else takes minutes.
const NIGHTLY: &str = "NVCAP_NIGHTLY";

/// The variable by which cargo is told what to start test programs with.
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";

/// Tests that `cargo xtask test` is to leave out.
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
    eprintln!(
        "the tests: built in 5 minutes on two quick processors the first time (10 on slow ones), then run in 10 to 20; each step says what it does"
    );
    // Installed while all is compiled.
    let (installed, built) = thread::scope(|scope| {
        let tools = scope.spawn(|| {
            let mut report = Report::default();
            tools(&mut report);
            report
        });
        let built = programs(&mut report);
        (tools.join(), built)
    });
    report.add(installed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    workspace(&mut report)?;
    if let Some(built) = &built {
        report.check("the tour's commands answer", tour::check(built));
    }
    if is_nightly() {
        let alone = cargo_test().args(ALONE).arg("--lib").args(SHOW);
        report.plain("library without default features", &alone)?;
    }
    // Beside each other: most of these tests wait for most of their time, and none judges by time. Machines last: at their beginning, when they start
    // all at once, they and live tests took each other's processor.
    let mut steps = Vec::new();
    match (options.no_live, &built) {
        (true, _) => report.skip("live tests", "--no-live was given"),
        (false, None) => report.skip("live tests", "there is no built nvcap to test"),
        (false, Some(built)) => steps.extend(live(&mut report, built)?),
    }
    match options.no_vm {
        true => report.skip("VM tests", "--no-vm was given"),
        false => steps.extend(vm(&mut report)?),
    }
    report.steps(steps)?;
    report.close()
}

/// Tells whether this is the nightly form of the gate.
pub fn is_nightly() -> bool {
    env::var_os(NIGHTLY).is_some()
}

/// Builds the programs and all tests. None if that failed.
fn programs(report: &mut Report) -> Option<PathBuf> {
    match build::tests() {
        Ok(dir) => Some(dir),
        Err(error) => {
            report.check("build", Err(error));
            None
        }
    }
}

/// The decoder as another project would build it.
const ALONE: [&str; 2] = ["-p", "nvcap-decode"];

/// The decoder and the driver model as another project would link them: no BPF, no kernel, no command line, no output.
pub fn library(report: &mut Report) {
    let tree = build::host_cargo()
        .args(["tree", "--locked", "-e", "normal", "--prefix", "none"])
        .args(ALONE)
        .read()
        .unwrap_or_default();
    report.check(
        "nvcap-decode links no BPF loader, serde, command line or libc",
        links_no_more(&tree),
    );
}

/// `tree`: the packages that the library without default features is linked with, a line each.
fn links_no_more(tree: &str) -> Result<()> {
    const FEATURES: [&str; 8] = [
        "aya",
        "perf-event",
        "tokio",
        "serde",
        "clap",
        "anyhow",
        "log ",
        "libc ",
    ];
    anyhow::ensure!(tree.contains("nvcap-decode v"), "cargo tree failed");
    let linked: Vec<&str> = tree
        .lines()
        .filter(|line| FEATURES.iter().any(|name| line.starts_with(name)))
        .collect();
    anyhow::ensure!(linked.is_empty(), "it depends on {}", linked.join(", "));
    Ok(())
}

/// Installs what tests read nvcap's output with.
pub fn tools(report: &mut Report) {
    program(report, "tshark", "tests with Wireshark's programs");
    program(report, "tmux", "tests of the screen of nvcap top");
    python::perfetto();
    browser::headless();
    python::tables();
    if is_nightly() {
        python::kineto();
    }
}

/// A program that some tests use: the packet tools that nvcap's files are compared with, the terminal that its screen is read from.
/// Without it those tests say that they did not run.
fn program(report: &mut Report, name: &str, purpose: &str) {
    if paths::on_path(name).is_some() || !install::apt_allowed() || !install::apt_offers(name) {
        return;
    }
    if let Err(error) = install::apt(&[name], purpose) {
        report.skip(&format!("installation of {name}"), &format!("{error:#}"));
    }
}

/// Unit, fixture and documentation tests of every crate of the workspace: those that run anywhere, and then those that `cargo test` ignores
/// because they need something, as root where that can be.
fn workspace(report: &mut Report) -> Result<()> {
    let cmd = cargo_test().arg("--workspace").args(SHOW);
    report.plain("unit and fixture tests", &cmd)?;
    let mut cmd = cargo_test().args(["--workspace", "--lib", "--bins", "--tests"]);
    if matches!(install::root(), Root::Sudo) {
        // Programs are looked for as the user has them.
        let kept = ["PATH", "HOME", "NVCAP_TEST_PYTHONS"]
            .iter()
            .filter_map(|name| Some(format!("{name}={}", env::var(name).ok()?)));
        cmd = cmd.env(
            RUNNER,
            format!("sudo -n env {}", kept.collect::<Vec<_>>().join(" ")),
        );
    }
    report.step(
        "unit and fixture tests that need something",
        &cmd.args(SHOW).arg("--ignored"),
    )
}

/// End-to-end tests on the running kernel, as root, with the built programs.
fn live(report: &mut Report, built: &Path) -> Result<Vec<(String, Cmd)>> {
    let mut steps = Vec::new();
    for (name, folder) in LIVE {
        let Some(package) = paths::package(folder) else {
            report.skip(name, &format!("{folder}/ is not in this checkout"));
            continue;
        };
        let program = build::test_program(&package, Profile::DEVELOPMENT)?;
        let variable = |variable: &str, value: &Path| format!("{variable}={}", value.display());
        let mut said = vec![
            variable("NVCAP_BIN", &built.join("nvcap")),
            variable("SOFTGPU_BIN", &built.join("softgpu")),
        ];
        said.extend(PASSED_ON.iter().filter_map(|name| {
            let value = env::var(name).ok()?;
            Some(format!("{name}={value}"))
        }));
        // sudo drops the environment, so env sets it again.
        let cmd = match install::root() {
            Root::Already => Cmd::new("env"),
            Root::Sudo => Cmd::new("sudo").args(["-n", "env"]),
            Root::Asking | Root::No => {
                report.skip(name, "they need root; type: sudo -v && cargo xtask test");
                // Observing only needs the right to read a process of the same user.
                let cmd = Cmd::new("env").args(said).arg(program).arg("observe");
                steps.push((format!("{name} that need no root"), cmd));
                continue;
            }
        };
        steps.push((name.to_owned(), cmd.args(said).arg(program)));
    }
    Ok(steps)
}

/// Tests on kernels other than the running one.
fn vm(report: &mut Report) -> Result<Vec<(String, Cmd)>> {
    if !paths::root().join("xtask/src/vm.rs").is_file() {
        report.skip("VM tests", "xtask/src/vm.rs is not in this checkout");
        return Ok(Vec::new());
    }
    // Cargo may have put another xtask in the place of this one meanwhile.
    let exe = env::current_exe()?;
    let exe = exe.to_string_lossy();
    let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned();
    let vm = Cmd::new(exe).args(["vm", "--dev"]);
    if is_nightly() {
        return Ok(vec![(
            "VM tests".to_owned(),
            vm.args(["--foreign", "--all"]),
        )]);
    }
    report.skip(
        "VM tests for aarch64",
        "they need programs built for it and minutes of emulation: cargo xtask vm --foreign, or bash .ci/run --nightly",
    );
    Ok(vec![("VM tests".to_owned(), vm)])
}

/// The output of passed tests is needed for lines that say that a test did not run.
const SHOW: [&str; 2] = ["--", "--show-output"];

fn cargo_test() -> Cmd {
    build::host_cargo().args(["test", "--locked", "--no-fail-fast"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_parts_of_the_bare_library_are_found() {
        assert!(links_no_more("nvcap-decode v0.1.0\nflate2 v1.1.10\n").is_ok());
        let error = links_no_more("nvcap-decode v0.1.0\nserde_json v1.0.1\n").unwrap_err();
        assert_eq!(error.to_string(), "it depends on serde_json v1.0.1");
        assert!(links_no_more("").is_err());
    }
}
