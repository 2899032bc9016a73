//! `cargo xtask ci-helpers`: the parts of the gate that need to know crates and toolchains; `.ci/run` calls them.
//!
//! Each part ends with its own `N passed, N failed, N skipped`, which `.ci/run` adds up.

use std::{fs, path::PathBuf, thread};

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::{
    api, arch::Arch, bpf, build, install, package, paths, python, report::Report, shell::Cmd, test,
    toolchain, vm,
};

/// A part of the gate.
#[derive(Subcommand)]
pub enum Part {
    /// Compiler checks of all forms, with no warning allowed: clippy, the library's documentation, its public interface
    Lint,
    /// Packages, installed into a bare root and removed; the service, the manifests, the alerts and the dashboard
    Package,
    /// Every fuzz target for a while: a part of the nightly form
    Fuzz {
        /// Seconds for each target
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// What needs nothing but processor time and a network: what later parts fetch, the programs that are packed, `lint`, the BPF objects built
    /// again, mutated inputs of each format
    Beside,
}

/// Runs one part.
pub fn run(part: &Part) -> Result<()> {
    let mut report = Report::default();
    match part {
        Part::Lint => compiled(&mut report)?,
        Part::Package => package::check::run(&mut report, packed())?,
        Part::Fuzz { seconds } => fuzz(&mut report, *seconds)?,
        Part::Beside => thread::scope(|scope| {
            scope.spawn(fetch);
            let built = build::packages(&build::programs(), packed());
            report.check("the programs that are packed", built.map(drop));
            bpf::check(&mut report)?;
            compiled(&mut report)?;
            mutants(&mut report)
        })?,
    }
    report.close()
}

/// The profile of what is packed and fed with mutants: the release in the nightly form, which takes minutes to compile.
fn packed() -> build::Profile {
    match test::is_nightly() {
        true => build::Profile::RELEASE,
        false => build::Profile::STATIC,
    }
}

/// Fetches what later parts of the gate need, and says nothing of what cannot be had: they say it.
fn fetch() {
    thread::scope(|scope| {
        scope.spawn(vm::fetch);
        scope.spawn(package::deploy::fetch);
        test::tools(&mut Report::default());
        python::all();
    });
}

/// rustfmt and lock files of all crates.
pub fn style(report: &mut Report) -> Result<()> {
    let cargo = build::host_cargo;
    report.step(
        "rustfmt",
        &cargo().args(["fmt", "--all", "--check", "--", "--color", "never"]),
    )?;
    for outside in ["nvcap-ebpf", "fuzz"] {
        if paths::has_crate(outside) {
            let dir = paths::root().join(outside);
            report.step(
                &format!("lock file of {outside}"),
                &cargo().dir(&dir).args(["fetch", "--locked"]),
            )?;
            report.step(
                &format!("rustfmt of {outside}"),
                &cargo()
                    .dir(dir)
                    .args(["fmt", "--check", "--", "--color", "never"]),
            )?;
        }
    }
    Ok(())
}

/// clippy of the whole workspace.
pub fn clippy() -> Cmd {
    build::host_cargo()
        .args(["clippy", "--workspace", "--all-targets", "--locked"])
        .args(DENY)
}

/// Documentation of the crates of nvcap, of which no link is broken.
fn documentation() -> Cmd {
    build::host_cargo()
        .args(["doc", "--no-deps", "--lib", "--locked"])
        .args(build::CRATES.iter().flat_map(|name| ["-p", name]))
        .env("RUSTDOCFLAGS", "-D warnings")
}

/// Command that makes the documentation of what is private, too, of which no link is broken.
pub fn private_documentation() -> Cmd {
    documentation().arg("--document-private-items")
}

/// The target folder of what is compiled beside the tests.
fn lint_target() -> PathBuf {
    paths::target().join("lint")
}

/// clippy of the forms that the whole workspace's does not see, and what they are documented to have.
fn compiled(report: &mut Report) -> Result<()> {
    // A folder of its own: the tests need not wait for it, nor it for them.
    let cargo = || build::host_cargo().env("CARGO_TARGET_DIR", lint_target());
    test::library(report);
    lint_bpf(report)?;
    report.step(
        "clippy of the libraries without features",
        &cargo()
            .args(["clippy", "--lib", "--locked"])
            .args(["-p", "nvcap-decode", "-p", "nvcap-recording"])
            .args(["-p", "nvcap-show", "--no-default-features"])
            .args(DENY),
    )?;
    report.step(
        "clippy of the form of the first command",
        &cargo()
            .args(["clippy", "-p", "nvcap", "--no-default-features"])
            .arg("--locked")
            .args(DENY),
    )?;
    lint_aarch64(report)?;
    let documentation = documentation().env("CARGO_TARGET_DIR", lint_target());
    report.step("documentation", &documentation)?;
    // Reads the pages that the step before wrote.
    report.check("public interface", api::compare(&lint_target()));
    if paths::has_crate("fuzz") {
        let fuzz = cargo().dir(paths::root().join("fuzz"));
        report.step(
            "fuzz targets are compiled",
            &fuzz.args(["check", "--bins", "--locked"]),
        )?;
    }
    Ok(())
}

/// No warning of clippy's passes.
const DENY: [&str; 3] = ["--", "-D", "warnings"];

/// clippy of the library and of the program for aarch64, as far as they need no C compiler of that processor (rustls has C code).
fn lint_aarch64(report: &mut Report) -> Result<()> {
    const NAME: &str = "clippy for aarch64";
    match build::rust_target(Arch::Aarch64) {
        Err(error) => {
            report.skip(NAME, &format!("{error:#}"));
            Ok(())
        }
        Ok(target) => report.step(
            NAME,
            &build::host_cargo()
                .env("CARGO_TARGET_DIR", lint_target())
                .args(["clippy", "-p", "nvcap", "--no-default-features"])
                .args(["--locked", "--target", &target])
                // What only `nvcap serve` uses is left out with it.
                .args(["--", "-D", "warnings", "-A", "dead-code"]),
        ),
    }
}

/// clippy for the BPF crate, if its compiler has a clippy of its own.
fn lint_bpf(report: &mut Report) -> Result<()> {
    const NAME: &str = "clippy of nvcap-ebpf";
    if !paths::has_crate("nvcap-ebpf") {
        report.skip(NAME, "nvcap-ebpf/ is not in this checkout");
        return Ok(());
    }
    let toolchain = toolchain::Toolchain::get()?;
    if toolchain.clippy(Arch::HOST).is_none()
        && install::apt_allowed()
        && install::apt_offers(DEBIAN_CLIPPY)
    {
        // It is no error if this fails: the step below says that it did not run.
        let _ = install::apt(&[DEBIAN_CLIPPY], NAME);
    }
    let deny = |clippy: Cmd| clippy.dir(paths::ebpf_crate()).args(DENY);
    match toolchain.clippy(Arch::HOST) {
        Some(clippy) => report.step(NAME, &deny(clippy)),
        None => {
            report.skip(
                NAME,
                "the compiler that builds it has no clippy here; type: rustup component add --toolchain nightly clippy, \
                 or with Debian's compiler: sudo apt-get install rust-web-clippy",
            );
            Ok(())
        }
    }
}

/// The clippy of Debian's compiler, which must be of the same release.
const DEBIAN_CLIPPY: &str = "rust-web-clippy";

/// Inputs that no driver makes, the same ones each time; the nightly form tries more of them.
fn mutants(report: &mut Report) -> Result<()> {
    let built = build::packages(&build::programs(), packed())?;
    let count = if test::is_nightly() { "10000" } else { "1000" };
    let mutants = Cmd::new(built.join("mutants")).args(["--count", count]);
    report.step("mutants", &mutants)
}

fn fuzz(report: &mut Report, seconds: u32) -> Result<()> {
    let folder = paths::root().join("fuzz/fuzz_targets");
    if !folder.is_dir() {
        report.skip("fuzz", "fuzz/ is not in this checkout");
        return Ok(());
    }
    if let Err(error) = toolchain::nightly() {
        report.skip("fuzz", &format!("{error:#}"));
        return Ok(());
    }
    let mut targets: Vec<String> = fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .flatten()
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_suffix(".rs")
                .map(str::to_owned)
        })
        .collect();
    targets.sort();
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = paths::root()
        .join("fuzz/target")
        .join(&host)
        .join("release");
    // All at once, and without cargo-fuzz, which would have to be built and would build each by itself.
    let build = toolchain::nightly_cargo()
        .args(["build", "--release", "--locked", "--target", &host])
        .env("RUSTFLAGS", SANITIZERS)
        // For some seconds a target a fast build does not pay.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .dir(paths::root().join("fuzz"));
    report.step("fuzz targets", &build)?;
    let mut steps = Vec::new();
    for target in targets {
        let corpus = paths::root().join("fuzz/corpus").join(&target);
        let artifacts = paths::root().join("fuzz/artifacts").join(&target);
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(&artifacts)?;
        // New inputs go to the first folder; committed seeds are read as well.
        let seeds =
            ["seeds", "seed"].map(|name| paths::root().join("fuzz").join(name).join(&target));
        let fuzz = Cmd::new(built.join(&target))
            .arg(&corpus)
            .args(seeds.iter().filter(|dir| dir.is_dir()))
            .args([
                &format!("-max_total_time={seconds}"),
                "-rss_limit_mb=4096",
                &format!("-artifact_prefix={}/", artifacts.display()),
            ])
            .dir(paths::root());
        steps.push((format!("fuzz {target}"), fuzz));
    }
    report.steps(steps)
}

/// Compiler options of cargo-fuzz: coverage for libFuzzer, addresses that are checked, and assertions.
const SANITIZERS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions";
