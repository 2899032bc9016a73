//! `cargo xtask test`: every test that this machine can run, and a list of those that it cannot.
//!
//! Knows which crates hold tests and what they need; `report` reads the output of the tests.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

use anyhow::Result;

use crate::{
    browser,
    build::{self, Profile},
    install::{self, Root},
    paths, python,
    report::Report,
    shell::Cmd,
};

/// The crates whose tests need root and a live kernel; the workspace's plain test run leaves them out.
const LIVE: [(&str, &str); 2] = [
    ("live tests", "tests/live"),
    ("hostile targets", "tests/hostile"),
];

/// What live tests are told by the environment: what runs beside them, how long the chaos lasts, of which seed it is, how often what
/// is repeated is.
const PASSED_ON: [&str; 5] = [
    "NVCAP_BESIDE",
    "NVCAP_CHAOS_SECONDS",
    "NVCAP_CHAOS_SEED",
    "NVCAP_CHAOS_ROUND",
    "NVCAP_LIFE_TIMES",
];

/// What cargo starts test programs with.
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";

/// Set where virtual machines with another processor are to be run, too.
const FOREIGN: &str = "NVCAP_VM_FOREIGN";

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
    program(&mut report, "tshark", "tests with Wireshark's programs");
    program(&mut report, "tmux", "tests of the screen of nvcap top");
    let built = programs(&mut report);
    library(&mut report)?;
    python::perfetto();
    browser::headless();
    python::tables();
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

/// Builds the programs for the end-to-end tests, and checks that nvcap runs anywhere. None if that failed.
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

/// The program prints its version in an empty environment, without other files.
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

/// The decoder and the driver model as another project would link them: no BPF, no kernel, no command line, no output.
fn library(report: &mut Report) -> Result<()> {
    const ALONE: [&str; 3] = ["-p", "nvcap", "--no-default-features"];
    report.plain(
        "library without default features",
        &cargo_test().args(ALONE).arg("--lib").args(SHOW),
    )?;
    let tree = build::host_cargo()
        .args(["tree", "--locked", "-e", "normal", "--prefix", "none"])
        .args(ALONE)
        .read()
        .unwrap_or_default();
    report.check(
        "library links no BPF loader, serde, command line or libc",
        links_no_more(&tree),
    );
    let built = build::host_cargo()
        .args(["build", "--locked", "--lib"])
        .args(ALONE);
    let built = built.run().and_then(|()| {
        Ok(fs::read_to_string(
            paths::target().join("debug/libnvcap.d"),
        )?)
    });
    report.check(
        "library without default features has no output and reads no /proc",
        built.and_then(|files| has_no_room_of_the_program(&files)),
    );
    Ok(())
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
    anyhow::ensure!(tree.contains("nvcap v"), "cargo tree failed");
    let linked: Vec<&str> = tree
        .lines()
        .filter(|line| FEATURES.iter().any(|name| line.starts_with(name)))
        .collect();
    anyhow::ensure!(linked.is_empty(), "it depends on {}", linked.join(", "));
    Ok(())
}

/// `files`: the source files of the library without default features, as the compiler lists them.
fn has_no_room_of_the_program(files: &str) -> Result<()> {
    const CORE: [&str; 10] = [
        "lib",
        "decode",
        "driver",
        "hang",
        "ledger",
        "read_ahead",
        "record",
        "source",
        "tables",
        "wire",
    ];
    let mut rooms = BTreeSet::new();
    for (_, file) in files
        .split_whitespace()
        .filter_map(|f| f.split_once("nvcap/src/"))
    {
        let file = file.strip_suffix(".rs").unwrap_or(file);
        rooms.insert(match file.strip_prefix("source/") {
            // Of the room `source`, only the file sources.
            Some(of) if of == "mod" || of.starts_with("file/") => "source",
            Some(_) => file,
            None => file.split('/').next().unwrap_or(file),
        });
    }
    anyhow::ensure!(rooms.contains("decode"), "the compiler names no file of it");
    for core in CORE {
        rooms.remove(core);
    }
    let rooms: Vec<&str> = rooms.into_iter().collect();
    anyhow::ensure!(rooms.is_empty(), "it has {}", rooms.join(", "));
    Ok(())
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
    // Optimised, as the programs are: what is traced is compared with what was planned, to the byte.
    let mut cmd = build::test_of(&package, Profile::RELEASE)?;
    match install::root() {
        Root::Already => {
            for (variable, path) in programs {
                cmd = cmd.env(variable, path);
            }
        }
        // Built by the user, run by root: cargo starts each test program through the runner. sudo drops the environment, so
        // env sets it again.
        Root::Sudo => {
            let programs =
                programs.map(|(variable, path)| format!("{variable}={}", path.display()));
            let said = PASSED_ON.iter().filter_map(|name| {
                let value = std::env::var(name).ok()?;
                Some(format!("{name}={value}"))
            });
            let programs = programs
                .into_iter()
                .chain(said)
                .collect::<Vec<_>>()
                .join(" ");
            cmd = cmd.env(RUNNER, format!("sudo -n env {programs}"));
        }
        Root::Asking | Root::No => {
            report.skip(name, "they need root; type: sudo -v && cargo xtask test");
            for (variable, path) in programs {
                cmd = cmd.env(variable, path);
            }
            // Observing only needs the right to read a process of the same user.
            return report.step(
                &format!("{name} that need no root"),
                &cmd.args(["--", "--show-output", "observe"]),
            );
        }
    }
    // One at a time: a thread has four debug registers, and timing tests need the machine for themselves.
    report.step(name, &cmd.args(["--", "--show-output", "--test-threads=1"]))
}

/// Tests on kernels other than the running one.
fn vm(report: &mut Report) -> Result<()> {
    if !paths::root().join("xtask/src/vm.rs").is_file() {
        report.skip("VM tests", "xtask/src/vm.rs is not in this checkout");
        return Ok(());
    }
    let vm = Cmd::new(env::current_exe()?).arg("vm");
    if env::var_os(FOREIGN).is_some() {
        return report.step("VM tests", &vm.arg("--foreign"));
    }
    report.step("VM tests", &vm)?;
    report.skip(
        "VM tests for aarch64",
        "they need programs built for it and minutes of emulation: cargo xtask vm --foreign, or bash .ci/run --nightly",
    );
    Ok(())
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
        assert!(links_no_more("nvcap v0.1.0\nflate2 v1.1.10\n").is_ok());
        let error = links_no_more("nvcap v0.1.0\nserde_json v1.0.1\n").unwrap_err();
        assert_eq!(error.to_string(), "it depends on serde_json v1.0.1");
        assert!(links_no_more("").is_err());

        let files = "/x/libnvcap.rlib: /x/nvcap/src/lib.rs /x/nvcap/src/decode/mod.rs /x/nvcap/src/source/mod.rs \
                     /x/nvcap/src/source/file/orc.rs /x/nvcap/facts/qmd.bin";
        has_no_room_of_the_program(files).unwrap();
        for (file, room) in [
            ("output/mod.rs", "output"),
            ("procfs/maps.rs", "procfs"),
            ("source/clock.rs", "source/clock"),
        ] {
            let files = format!("{files} /x/nvcap/src/{file}");
            let error = has_no_room_of_the_program(&files).unwrap_err();
            assert_eq!(error.to_string(), format!("it has {room}"));
        }
        assert!(has_no_room_of_the_program("").is_err());
    }
}
