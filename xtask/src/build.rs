//! `cargo xtask build`: nvcap, and the programs of tests.
//!
//! Knows the crates and the names of their artefacts; `bpf` makes the BPF objects that nvcap carries.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{arch::Arch, bpf, install, paths, shell::Cmd};

/// Way in which the programs are built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Optimised; else the development profile.
    pub release: bool,
    /// One file that needs no shared library, for any distribution.
    pub fixed: bool,
    /// The processor they are for.
    pub arch: Arch,
}

impl Profile {
    /// The profile for users, for other machines and for the end-to-end tests.
    pub const RELEASE: Self = Self {
        release: true,
        fixed: true,
        arch: Arch::HOST,
    };

    /// As static as the release, in a third of its time to compile: what the gate packs.
    pub const STATIC: Self = Self {
        release: false,
        ..Self::RELEASE
    };

    /// The profile that compiles soonest, linked with this machine's C library.
    pub const DEVELOPMENT: Self = Self {
        release: false,
        fixed: false,
        arch: Arch::HOST,
    };

    /// Returns the build for another processor.
    pub fn on(self, arch: Arch) -> Self {
        Self { arch, ..self }
    }

    fn is_foreign(self) -> bool {
        self.arch != Arch::HOST
    }

    /// The target to name to cargo; none for a plain build on this machine.
    fn target(self) -> Option<String> {
        match self.is_foreign() {
            // A program of musl's needs no C library here, but rustls's C code needs headers: a cross compiler brings both.
            true => Some(self.arch.gnu()),
            false => self.fixed.then(static_target),
        }
    }

    /// Adds to `cargo` the options and variables that this profile needs, beside the packages' names.
    fn options(self, cargo: Cmd) -> Cmd {
        let mut cargo = cargo.args(self.release.then_some("--release"));
        if let Some(target) = self.target() {
            cargo = cargo.args(["--target", &target]);
        }
        if self.fixed {
            cargo = cargo.env("RUSTFLAGS", static_flags());
        }
        if self.is_apart() {
            cargo = cargo.env("CARGO_TARGET_DIR", self.target_dir());
        }
        if self.is_foreign() {
            let target = self.arch.gnu().replace('-', "_").to_uppercase();
            cargo = cargo.env(format!("CARGO_TARGET_{target}_LINKER"), self.arch.cross().0);
        }
        cargo
    }

    /// Installs what such programs are linked with, or says what to type.
    fn need_linker(self) -> Result<()> {
        match self.is_foreign() {
            true => need_cross(self.arch),
            false if self.fixed => need_static_libc(),
            false => Ok(()),
        }
    }

    /// Static programs of the development profile have a target folder of their own: cargo would have the tests wait until they are built, and
    /// them for the tests.
    fn is_apart(self) -> bool {
        self.fixed && !self.release
    }

    fn target_dir(self) -> PathBuf {
        match self.is_apart() {
            true => paths::target().join("static"),
            false => paths::target(),
        }
    }

    /// Returns the folder in which cargo puts programs of this profile.
    pub fn dir(self) -> PathBuf {
        let target = self.target_dir();
        let base = match self.target() {
            Some(triple) => target.join(triple),
            None => target,
        };
        base.join(if self.release { "release" } else { "debug" })
    }
}

/// The crates that nvcap is made of, the lowest first.
pub const CRATES: [&str; 8] = [
    "nvcap-decode",
    "nvcap-recording",
    "nvcap-process",
    "nvcap-live",
    "nvcap-show",
    "nvcap-monitor",
    "nvcap-lab",
    "nvcap",
];

/// The folder of a crate of [`CRATES`], from the repository's root.
pub fn crate_folder(name: &str) -> String {
    name.replacen("nvcap-", "nvcap/", 1)
}

/// The packages whose programs tests and bundles start, if this checkout has them.
///
/// Always built together: cargo joins the features of what it builds at once, and compiles all again for another choice.
pub fn programs() -> Vec<String> {
    const FOLDERS: [&str; 5] = [
        "nvcap",
        "tests/softgpu",
        "tests/compare",
        "tests/mutants",
        "tests/vm/guest",
    ];
    FOLDERS.into_iter().filter_map(paths::package).collect()
}

/// Builds what a trace needs, in the development profile: nvcap without Parquet, HTTP and other extras, and the software GPU.
/// Returns the folder with the programs.
pub fn to_trace() -> Result<PathBuf> {
    bpf::fresh()?;
    let mut cmd = host_cargo().args(["build", "--locked", "--no-default-features"]);
    cmd = cmd.args(["-p", "nvcap"]);
    if let Some(package) = paths::package("tests/softgpu") {
        cmd = cmd.args(["-p", &package]);
    }
    let profile = Profile::DEVELOPMENT;
    if !profile.dir().join("nvcap").is_file() {
        eprintln!(
            "building nvcap and the software GPU: one to two minutes on two processors the first time, seconds from then on"
        );
    }
    cmd.run()?;
    Ok(profile.dir())
}

/// Builds all programs and tests of the workspace in the development profile, at once: with other packages or without the tests cargo would choose
/// other features, and compile nvcap again. Returns the folder with the programs.
pub fn tests() -> Result<PathBuf> {
    bpf::fresh()?;
    host_cargo()
        .args([
            "build",
            "--locked",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
        ])
        .args(TESTS.iter().flat_map(|name| ["--test", name]))
        .run()?;
    Ok(Profile::DEVELOPMENT.dir())
}

/// The test programs that `cargo test` leaves out, because they need root and a live kernel.
const TESTS: [&str; 2] = ["live", "hostile"];

/// Builds workspace packages and returns the folder with their programs.
///
/// Does not touch the BPF objects: call [`bpf::fresh`] first where they must be of the sources.
pub fn packages<S: AsRef<str>>(names: &[S], profile: Profile) -> Result<PathBuf> {
    profile.need_linker()?;
    let mut cmd = profile.options(host_cargo().args(["build", "--locked"]));
    for name in names {
        cmd = cmd.args(["-p", name.as_ref()]);
    }
    cmd.run()?;
    Ok(profile.dir())
}

/// Builds the test program `name` (of tests/live, tests/hostile) without running it, and returns its path. In the development profile with all of the
/// workspace, as the other tests are built; else with what [`programs`] names.
pub fn test_program(name: &str, profile: Profile) -> Result<PathBuf> {
    profile.need_linker()?;
    let mut cmd = profile.options(host_cargo().args(["test", "--locked"]));
    if profile == Profile::DEVELOPMENT {
        cmd = cmd.arg("--workspace");
    } else {
        let tests = TESTS.map(str::to_owned);
        for package in programs().into_iter().filter(|n| n != "nvcap").chain(tests) {
            cmd = cmd.args(["-p", &package]);
        }
    }
    let cmd = cmd.args([
        "--test",
        name,
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let messages = cmd
        .read()
        .with_context(|| format!("not built; look with: {}", cmd.line()))?;
    // One message per line; the program's path is the only "executable" of the requested test target.
    messages
        .lines()
        .filter(|line| line.contains("\"kind\":[\"test\"]"))
        .filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next())
        .map(PathBuf::from)
        .next_back()
        .with_context(|| format!("cargo named no program for the tests {name}"))
}

/// The cargo that runs xtask, in the workspace.
pub fn host_cargo() -> Cmd {
    Cmd::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .other_package()
        .dir(paths::root())
}

/// `cargo xtask build`.
pub fn run(profile: Profile) -> Result<()> {
    bpf::fresh()?;
    // Tests and benchmarks use a release, as root and without building: all of it must be there.
    let dir = if profile.release {
        packages(&programs(), profile)?
    } else {
        packages(&["nvcap"], profile)?
    };
    let program = dir.join("nvcap");
    if profile.fixed {
        check_static(&program)?;
    }
    eprintln!("nvcap: {}", program.display());
    Ok(())
}

/// Fails unless `program` needs no shared library.
pub fn check_static(program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    match needs_interpreter(&bytes) {
        Some(false) => Ok(()),
        Some(true) => bail!(
            "{} asks for a dynamic loader although it was built to be static; a build script or a flag in \
             .cargo/config.toml has overridden target-feature=+crt-static",
            program.display()
        ),
        None => bail!("{} is not a 64-bit ELF program", program.display()),
    }
}

/// Tells whether a 64-bit little-endian ELF file has a PT_INTERP segment; none if it is no such file.
fn needs_interpreter(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    let u16_at = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = usize::try_from(u64::from_le_bytes(elf.get(0x20..0x28)?.try_into().ok()?)).ok()?;
    let (size, count) = (usize::from(u16_at(0x36)?), usize::from(u16_at(0x38)?));
    for n in 0..count {
        let at = table.checked_add(n * size)?;
        if elf.get(at..at.checked_add(4)?)? == PT_INTERP.to_le_bytes() {
            return Some(true);
        }
    }
    Some(false)
}

/// glibc if its static library is here, else musl if rustup has it.
fn static_target() -> String {
    if has_static_glibc() || !has_musl() {
        Arch::HOST.gnu()
    } else {
        Arch::HOST.musl()
    }
}

fn static_flags() -> &'static str {
    "-C target-feature=+crt-static"
}

fn has_static_glibc() -> bool {
    links_statically("cc")
}

/// Tells whether a C compiler finds a static C library.
fn links_statically(compiler: &str) -> bool {
    // gcc prints the bare name if it finds no such file.
    Cmd::new(compiler)
        .arg("-print-file-name=libc.a")
        .read()
        .is_some_and(|path| path.starts_with('/'))
}

fn has_musl() -> bool {
    has_target(&Arch::HOST.musl())
}

/// Tells whether rustup has a target's standard library.
fn has_target(target: &str) -> bool {
    Cmd::new("rustup")
        .args(["target", "list", "--installed"])
        .read()
        .is_some_and(|list| list.lines().any(|line| line == target))
}

/// A processor's Rust target, whose standard library rustup adds where it is lacking.
pub fn rust_target(arch: Arch) -> Result<String> {
    let target = arch.gnu();
    if arch != Arch::HOST && !has_target(&target) {
        let add = Cmd::new("rustup").args(["target", "add", &target]);
        let lacking = || format!("Rust's standard library for {} is not here", arch.name());
        add.run().with_context(lacking)?;
    }
    Ok(target)
}

/// The standard library, the C compiler and the static glibc of another processor: installed, or named.
fn need_cross(arch: Arch) -> Result<()> {
    let (compiler, packages) = arch.cross();
    let purpose = format!("building programs for {}", arch.name());
    rust_target(arch)?;
    match links_statically(compiler) {
        true => Ok(()),
        false => install::apt(packages, &purpose),
    }
}

fn need_static_libc() -> Result<()> {
    if has_static_glibc() || has_musl() {
        return Ok(());
    }
    if install::apt_allowed() {
        return install::apt(&["libc6-dev"], "linking a static program");
    }
    bail!(
        "a static program needs glibc's static library or Rust's musl target. Type one of:\n  \
         rustup target add {}\n  sudo apt-get install libc6-dev   (Debian, Ubuntu)\n  \
         sudo dnf install glibc-static   (Fedora, RHEL)\n\
         or leave --static and --release out",
        Arch::HOST.musl()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut file = vec![0u8; 64 + 56 * kinds.len()];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x20] = 64;
        file[0x36] = 56;
        file[0x38] = u8::try_from(kinds.len()).expect("few");
        for (n, kind) in kinds.iter().enumerate() {
            file[64 + 56 * n..][..4].copy_from_slice(&kind.to_le_bytes());
        }
        file
    }

    #[test]
    fn dynamic_and_static_programs_are_told_apart() {
        assert_eq!(needs_interpreter(&elf(&[6, 3, 1])), Some(true));
        assert_eq!(needs_interpreter(&elf(&[1, 1])), Some(false));
        assert_eq!(needs_interpreter(b"#!/bin/sh\n"), None);
        let cut = &elf(&[1, 1])[..70];
        assert_eq!(needs_interpreter(cut), None);
    }
}
