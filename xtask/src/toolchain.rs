//! The compiler and the linker for `bpfel-unknown-none`: found, or installed.
//!
//! Two ways are known to work (docs/building.md): a rustup toolchain with the sources of core (`-Z build-std`), and
//! Debian's `rustc-web`, which comes with core built for BPF. An existing toolchain is used; only a machine with neither, or
//! with a compiler that no linker fits, gets one installed. Knows nothing of the crate that it builds.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch,
    install,
    linker::{find_linker, install_linker, version},
    paths,
    shell::Cmd,
};

/// The oldest rustc that the programs build with (Rust 2024 edition and the bpf fixes of its LLVM).
const RUSTC_OLDEST: (u32, u32) = (1, 88);

/// Debian's compiler and its core for BPF.
const DEBIAN_RUSTC: &[&str] = &["rustc-web", "libstd-rust-web-dev-bpf"];

/// A compiler that can make BPF code.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// Description for `setup` and for errors.
    pub name: String,
    /// The rustup toolchain whose cargo and rustc are used; none: `rustc` with the cargo that runs xtask.
    rustup: Option<String>,
    /// The compiler itself.
    pub rustc: PathBuf,
    /// Major version of the LLVM whose bitcode it writes.
    pub llvm: u32,
    /// core is compiled from its sources because there is no built one.
    build_std: bool,
    /// A stable compiler, which needs RUSTC_BOOTSTRAP for unstable options.
    bootstrap: bool,
}

/// A matching compiler and linker.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// Makes bitcode.
    pub compiler: Compiler,
    /// Makes the BPF object from it.
    pub linker: PathBuf,
}

/// The target folder of the BPF programs for processes of a processor, in their crate.
pub fn bpf_target(arch: Arch) -> String {
    match arch {
        Arch::HOST => "target".into(),
        other => format!("target/{}", other.name()),
    }
}

impl Toolchain {
    /// `cargo SUBCOMMAND …` with this toolchain, for the BPF target and processes of a processor, in the release profile.
    pub fn cargo(&self, subcommand: &str, arch: Arch) -> Cmd {
        self.for_bpf(self.compiler.cargo(), subcommand, arch)
    }

    /// clippy with this toolchain; none if its compiler came without one.
    pub fn clippy(&self, arch: Arch) -> Option<Cmd> {
        match &self.compiler.rustup {
            Some(toolchain) => {
                Cmd::new("rustup")
                    .args(["run", toolchain, "cargo-clippy", "--version"])
                    .read()?;
                Some(self.for_bpf(self.compiler.cargo(), "clippy", arch))
            }
            None => {
                // cargo-clippy starts the clippy-driver beside it, which must be of the compiler's own release.
                let own = self.compiler.rustc.with_file_name("cargo-clippy");
                paths::is_executable(&own).then_some(())?;
                Some(self.for_bpf(self.compiler.with_own_rustc(Cmd::new(own)), "clippy", arch))
            }
        }
    }

    fn for_bpf(&self, cargo: Cmd, subcommand: &str, arch: Arch) -> Cmd {
        let build_std: &[&str] = if self.compiler.build_std {
            &["-Z", "build-std=core"]
        } else {
            &[]
        };
        let mut flags = format!(
            "-C target-cpu=v3 -C debuginfo=2 -C linker={} -C link-arg=--btf",
            self.linker.display()
        );
        // BTF names the source of each line: by names that are the same on every machine.
        for (path, name) in self.compiler.places() {
            flags.push_str(&format!(" --remap-path-prefix={}={name}", path.display()));
        }
        if arch != Arch::HOST {
            // As aya-ebpf has it: cargo then tells build scripts CARGO_CFG_BPF_TARGET_ARCH.
            flags.push_str(&format!(" --cfg bpf_target_arch=\"{}\"", arch.name()));
        }
        cargo
            .args([
                subcommand,
                "--release",
                "--target",
                "bpfel-unknown-none",
                "--target-dir",
                &bpf_target(arch),
            ])
            .args(build_std)
            .env("RUSTFLAGS", flags)
    }

    /// The compiler, exactly: what the objects' bytes depend on.
    pub fn compiler_version(&self) -> Result<String> {
        let about = Cmd::new(&self.compiler.rustc)
            .arg("-vV")
            .other_toolchain()
            .read()
            .with_context(|| format!("{} -vV", self.compiler.rustc.display()))?;
        let value = |key: &str| {
            about
                .lines()
                .find_map(|l| l.strip_prefix(key))
                .map(str::trim)
        };
        let core = match self.compiler.build_std {
            true => "core from its sources",
            false => "core built for BPF",
        };
        Ok(format!(
            "rustc {} {} (LLVM {}, {core})",
            value("release:").unwrap_or("?"),
            value("commit-hash:").unwrap_or("?"),
            value("LLVM version:").unwrap_or("?"),
        ))
    }

    /// The linker and its LLVM, as exactly as they say it.
    pub fn linker_version(&self) -> Result<String> {
        let about = Cmd::new(&self.linker)
            .arg("--version")
            .read()
            .with_context(|| format!("{} --version", self.linker.display()))?;
        let libraries = Cmd::new("ldd").arg(&self.linker).read().unwrap_or_default();
        let library = libraries
            .split_whitespace()
            .find(|w| w.starts_with("libLLVM"));
        Ok(format!(
            "{} ({})",
            about.trim(),
            library.unwrap_or("LLVM inside")
        ))
    }

    /// The existing toolchain, or one installed now if allowed, or an error that says what to type.
    pub fn get() -> Result<Self> {
        if let Some(complete) = Self::find() {
            return Ok(complete);
        }
        let mut found = Self::with_linker();
        // Debian's first, because its compiler and its LLVM match by construction.
        if !matches!(found, Ok(Some(_))) && Compiler::install_debian() {
            found = Self::with_linker();
        }
        if let Ok(None) = found {
            Compiler::install_rustup();
            found = Self::with_linker();
        }
        found?.with_context(Compiler::ways)
    }

    /// The first compiler here that has a linker or gets one; if none does, what the first one lacks.
    fn with_linker() -> Result<Option<Self>> {
        let mut lacks = None;
        for compiler in Compiler::all() {
            let found = find_linker(compiler.llvm);
            match found.map_or_else(|| install_linker(&compiler.name, compiler.llvm), Ok) {
                Ok(linker) => return Ok(Some(Self { compiler, linker })),
                Err(error) => lacks = lacks.or(Some(error)),
            }
        }
        lacks.map_or(Ok(None), Err)
    }

    /// The first compiler with a fitting linker; installs nothing.
    pub fn find() -> Option<Self> {
        Compiler::all().find_map(|compiler| {
            let linker = find_linker(compiler.llvm)?;
            Some(Self { compiler, linker })
        })
    }
}

impl Compiler {
    /// Folders of sources on this machine, and the names that they have in a BPF object.
    fn places(&self) -> Vec<(PathBuf, &'static str)> {
        let mut places = vec![(paths::root(), ".")];
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
        let registry = home.map(|home| home.join("registry/src"));
        let crates = registry.and_then(|dir| paths::sorted(&dir).ok());
        places.extend(crates.into_iter().flatten().map(|dir| (dir, "crates")));
        let sysroot = Cmd::new(&self.rustc)
            .args(["--print", "sysroot"])
            .other_toolchain()
            .read();
        places.extend(sysroot.map(|dir| (PathBuf::from(dir), "rust")));
        places
    }

    /// cargo with this compiler, without the outer cargo's variables.
    fn cargo(&self) -> Cmd {
        self.with_own_rustc(match &self.rustup {
            Some(toolchain) => Cmd::new("rustup").args(["run", toolchain, "cargo"]),
            None => Cmd::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
        })
    }

    /// `cargo` with this compiler, without the outer cargo's variables.
    fn with_own_rustc(&self, cargo: Cmd) -> Cmd {
        let cargo = if self.rustup.is_none() {
            cargo.env("RUSTC", &self.rustc)
        } else {
            cargo
        };
        let cargo = if self.bootstrap {
            cargo.env("RUSTC_BOOTSTRAP", "1")
        } else {
            cargo
        };
        cargo.other_toolchain()
    }

    /// This machine's compilers with core for BPF, built or as sources.
    fn all() -> impl Iterator<Item = Self> {
        let candidates: [fn() -> Option<Self>; 3] = [
            || Self::of_rustup("nightly"),
            || Self::of(Path::new("/usr/bin/rustc"), "the system's rustc", None),
            || Self::of_rustup("stable"),
        ];
        candidates.into_iter().filter_map(|look| look())
    }

    /// A rustup toolchain, if it is installed with core for BPF.
    fn of_rustup(toolchain: &str) -> Option<Self> {
        let rustc = rustc_of(toolchain)?;
        Self::of(
            Path::new(&rustc),
            &format!("rustup's {toolchain}"),
            Some(toolchain),
        )
    }

    /// The compiler `rustc`, if it is new enough and has core for BPF.
    fn of(rustc: &Path, name: &str, rustup: Option<&str>) -> Option<Self> {
        let about = Cmd::new(rustc).arg("-vV").other_toolchain().read()?;
        let about = About::parse(&about)?;
        if about.version < RUSTC_OLDEST {
            return None;
        }
        let sysroot = Cmd::new(rustc)
            .args(["--print", "sysroot"])
            .other_toolchain()
            .read()?;
        let rustlib = Path::new(&sysroot).join("lib/rustlib");
        let built = has_built_core(&rustlib.join("bpfel-unknown-none/lib"));
        if !built && !rustlib.join("src/rust/library/core/Cargo.toml").is_file() {
            return None;
        }
        let core = if built {
            "core built for BPF"
        } else {
            "core from its sources"
        };
        Some(Self {
            name: format!("{name} {} (LLVM {}, {core})", about.release, about.llvm),
            rustup: rustup.map(str::to_owned),
            rustc: rustc.to_path_buf(),
            llvm: about.llvm,
            build_std: !built,
            bootstrap: !about.release.contains("nightly"),
        })
    }

    /// Installs Debian's compiler, where apt offers it; whether it is there now.
    fn install_debian() -> bool {
        let offered = |package: &&str| install::apt_offers(package);
        if !install::apt_allowed() || !DEBIAN_RUSTC.iter().all(offered) {
            return false;
        }
        // For example, apt refuses if it would have to remove the distribution's own rustc or rustup.
        install::apt(DEBIAN_RUSTC, "compiling the BPF programs")
            .inspect_err(|error| eprintln!("{error:#}"))
            .is_ok()
    }

    /// Installs rustup's nightly with the sources of core, where there is a rustup.
    fn install_rustup() {
        if paths::on_path("rustup").is_none() {
            return;
        }
        eprintln!("installing rustup's nightly with rust-src (compiling the BPF programs)");
        let cmd = if rustc_of("nightly").is_some() {
            // Adding only the sources leaves the user's nightly at its date.
            Cmd::new("rustup").args(["component", "add", "--toolchain", "nightly", "rust-src"])
        } else {
            Cmd::new("rustup").args(RUSTUP_NIGHTLY)
        };
        if let Err(error) = cmd.run() {
            eprintln!("{error:#}");
        }
    }

    /// Returns the commands to type where there is no compiler.
    fn ways() -> String {
        format!(
            "the BPF programs need a Rust compiler with core for bpfel-unknown-none. Type one of:\n  \
             rustup {}\n  \
             sudo apt-get update && sudo apt-get install --no-install-recommends {}   (Debian 12 or later)\n\
             then run this again; docs/building.md has both ways in full",
            RUSTUP_NIGHTLY.join(" "),
            DEBIAN_RUSTC.join(" "),
        )
    }
}

/// The compiler of a rustup toolchain, if that is installed: rustup would otherwise install it to answer.
fn rustc_of(toolchain: &str) -> Option<String> {
    Cmd::new("rustup")
        .args(["which", "--toolchain", toolchain, "rustc"])
        .env("RUSTUP_AUTO_INSTALL", "0")
        .read()
}

const RUSTUP_NIGHTLY: &[&str] = &[
    "toolchain",
    "install",
    "nightly",
    "--profile",
    "minimal",
    "--component",
    "rust-src",
];

/// Tells whether a folder of built libraries holds core.
fn has_built_core(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|entries| {
        entries.flatten().any(|e| {
            let name = e.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libcore-") && name.ends_with(".rlib")
        })
    })
}

/// The output of `rustc -vV`.
#[derive(Debug, PartialEq, Eq)]
struct About {
    release: String,
    version: (u32, u32),
    llvm: u32,
}

impl About {
    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key))
                .map(str::trim)
        };
        let release = value("release:")?;
        Some(Self {
            release: release.to_owned(),
            version: version(release)?,
            llvm: version(value("LLVM version:")?)?.0,
        })
    }
}

/// cargo of rustup's nightly, which sanitizers need.
pub fn nightly_cargo() -> Cmd {
    Cmd::new("rustup")
        .args(["run", "nightly", "cargo"])
        .env("RUSTUP_AUTO_INSTALL", "0")
        .other_toolchain()
}

/// Provides a nightly, installing it if possible.
pub fn nightly() -> Result<()> {
    if nightly_cargo().arg("--version").read().is_none() {
        eprintln!("installing rustup's nightly (fuzzing)");
        let installed = paths::on_path("rustup").is_some()
            && Cmd::new("rustup")
                .args(["toolchain", "install", "nightly", "--profile", "minimal"])
                .run()
                .is_ok();
        if !installed {
            bail!(
                "there is no nightly toolchain and rustup could not fetch one; type: rustup toolchain install nightly"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_read_from_its_own_words() {
        let text = "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\n\
                    release: 1.97.0-nightly\nLLVM version: 22.1.4";
        let about = About::parse(text).expect("it is whole");
        assert_eq!(
            about,
            About {
                release: "1.97.0-nightly".into(),
                version: (1, 97),
                llvm: 22
            }
        );
        assert_eq!(About::parse("release: 1.97.0"), None);
    }
}
