//! The bpf-linker that fits a compiler, found or installed, and the tools of its LLVM. Knows no compiler but by its LLVM.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use crate::{install, paths, shell::Cmd};

/// The bpf-linker to install if none fits.
const LINKER_VERSION: &str = "0.13.0";
/// The LLVM releases that bpf-linker can be built for.
const LINKER_LLVMS: std::ops::RangeInclusive<u32> = 21..=23;
/// The oldest bpf-linker known to write the BTF that the programs need.
const LINKER_OLDEST: (u32, u32) = (0, 9);

/// The first bpf-linker that reads bitcode of LLVM `llvm`: `BPF_LINKER`, this checkout's, the one on PATH.
pub fn find_linker(llvm: u32) -> Option<PathBuf> {
    let named = env::var_os("BPF_LINKER").map(PathBuf::from);
    let own = paths::tools().join("bin/bpf-linker");
    let candidates = [named, Some(own), paths::on_path("bpf-linker")];
    candidates
        .into_iter()
        .flatten()
        .find(|linker| linker_fits(linker, llvm))
}

/// An LLVM reads the bitcode of its own release and of older ones, not of newer ones.
fn linker_fits(linker: &Path, llvm: u32) -> bool {
    let Some(about) = Cmd::new(linker).arg("--version").read() else {
        return false; // absent, or its libLLVM is gone
    };
    let new_enough = about
        .split_whitespace()
        .find_map(version)
        .is_some_and(|version| version >= LINKER_OLDEST);
    // A linker with LLVM inside (a downloaded one) does not show its release: it is tried.
    let libraries = Cmd::new("ldd").arg(linker).read().unwrap_or_default();
    new_enough && llvm_of_libraries(&libraries).is_none_or(|its| its >= llvm)
}

/// The major version of the libLLVM that `ldd` lists.
fn llvm_of_libraries(ldd: &str) -> Option<u32> {
    let after = &ldd[ldd.find("libLLVM")? + "libLLVM".len()..];
    let digits = after.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Builds bpf-linker into this checkout's tools, against the LLVM of a compiler (described by `compiler`) or the next newer one.
pub fn install_linker(compiler: &str, llvm: u32) -> Result<PathBuf> {
    let wanted = llvm.max(*LINKER_LLVMS.start())..=*LINKER_LLVMS.end();
    if wanted.is_empty() {
        bail!(
            "{compiler} writes bitcode of LLVM {llvm}, newer than bpf-linker {LINKER_VERSION} can be built for (LLVM {}..{}).\n\
             Get a ready-made linker: cargo binstall bpf-linker   (and name it in BPF_LINKER if it is not on PATH)",
            LINKER_LLVMS.start(),
            LINKER_LLVMS.end()
        );
    }
    eprintln!("no bpf-linker here reads bitcode of LLVM {llvm}");
    let here = wanted
        .clone()
        .find_map(|n| llvm_prefix(n).map(|prefix| (n, prefix)));
    let here = match here {
        Some(found) => {
            if paths::on_path("g++").is_none() {
                install::apt(&["g++"], "building bpf-linker")?;
            }
            Some(found)
        }
        None => {
            let offered = wanted
                .clone()
                .find(|n| install::apt_offers(&format!("llvm-{n}-dev")));
            if let Some(n) = offered {
                install::apt(&[&format!("llvm-{n}-dev"), "g++"], "building bpf-linker")?;
            }
            offered.and_then(|n| llvm_prefix(n).map(|prefix| (n, prefix)))
        }
    };
    match here {
        Some((n, prefix)) => {
            eprintln!(
                "installing bpf-linker {LINKER_VERSION} into {} (2 to 4 minutes)",
                paths::tools().display()
            );
            cargo_install_linker(n, &prefix).run()?;
        }
        None if paths::on_path("cargo-binstall").is_some() => {
            Cmd::new("cargo")
                .args(["binstall", "--no-confirm", "--root"])
                .arg(paths::tools())
                .arg("bpf-linker")
                .other_toolchain()
                .run()?;
        }
        None => {
            let n = wanted.start();
            bail!(
                "the BPF programs need a bpf-linker with LLVM {n} or newer, and this machine has no LLVM {n} to build \
                 one with. Type one of:\n  \
                 cargo install cargo-binstall && cargo binstall bpf-linker   (ready-made, any distribution)\n  \
                 sudo apt-get install llvm-{n}-dev g++ && cargo xtask setup    (where apt offers it)\n\
                 or name a bpf-linker of your own in the environment variable BPF_LINKER"
            );
        }
    }
    find_linker(llvm).ok_or_else(|| {
        anyhow::anyhow!(
            "the bpf-linker just installed does not start; try: {}/bin/bpf-linker --version",
            paths::tools().display()
        )
    })
}

/// The `cargo install` that makes the linker with the LLVM `n` at `prefix`.
fn cargo_install_linker(n: u32, prefix: &Path) -> Cmd {
    Cmd::new("cargo")
        .args([
            "install",
            "bpf-linker",
            "--version",
            LINKER_VERSION,
            "--locked",
            "--no-default-features",
        ])
        .args(["--features", &format!("llvm-{n}"), "--root"])
        .arg(paths::tools())
        // Otherwise an older llvm-config on PATH is used, and the link fails.
        .env("LLVM_PREFIX", prefix)
        .other_toolchain()
}

/// Finds the folder in which LLVM `n` is installed with everything needed to link with it.
fn llvm_prefix(n: u32) -> Option<PathBuf> {
    let debian = PathBuf::from(format!("/usr/lib/llvm-{n}"));
    if debian.join("include/llvm-c/Core.h").exists() {
        return Some(debian);
    }
    [
        format!("llvm-config-{n}"),
        format!("llvm-config{n}"),
        "llvm-config".to_owned(),
    ]
    .into_iter()
    .find(|config| {
        let found = Cmd::new(config).arg("--version").read();
        found
            .and_then(|text| version(&text))
            .is_some_and(|found| found.0 == n)
    })
    .and_then(|config| Cmd::new(config).arg("--prefix").read())
    .map(PathBuf::from)
}

/// A tool of an LLVM that supports BPF (`llvm-objcopy`).
pub fn llvm_tool(name: &str) -> Option<PathBuf> {
    let versioned = LINKER_LLVMS.rev().find_map(|n| {
        let inside = PathBuf::from(format!("/usr/lib/llvm-{n}/bin/{name}"));
        paths::is_executable(&inside)
            .then_some(inside)
            .or_else(|| paths::on_path(&format!("{name}-{n}")))
    });
    versioned.or_else(|| paths::on_path(name))
}

/// Major and minor of `1.96.0-nightly` and the like.
pub fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text
        .split('.')
        .map(|n| n.trim_end_matches(|c: char| !c.is_ascii_digit()));
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_llvm_is_read_from_its_libraries() {
        let debian = "\tlibLLVM.so.22.1 => /usr/lib/llvm-22/lib/libLLVM.so.22.1 (0x00007f)";
        assert_eq!(llvm_of_libraries(debian), Some(22));
        assert_eq!(
            llvm_of_libraries("\tlibLLVM-17.so.1 => /usr/lib/libLLVM-17.so.1"),
            Some(17)
        );
        assert_eq!(llvm_of_libraries("\tlibc.so.6 => /lib/libc.so.6"), None);
    }

    #[test]
    fn versions_are_read_with_and_without_suffix() {
        assert_eq!(version("0.13.0"), Some((0, 13)));
        assert_eq!(version("22.1.8-rc1"), Some((22, 1)));
        assert_eq!(version("bpf-linker"), None);
    }
}
