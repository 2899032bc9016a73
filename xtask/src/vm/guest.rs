//! The programs that go into the guest: its init with the bed's tests, the end-to-end tests, softgpu, nvcap; and the libraries that they are linked
//! with, where they are not static.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::shell;
use crate::{
    arch::Arch,
    bpf,
    build::{self, Profile},
};

/// Paths on the host of the guest's programs.
pub struct Programs {
    /// PID 1.
    pub init: PathBuf,
    /// The traced program.
    pub softgpu: PathBuf,
    /// The tracer and its end-to-end tests; none when only the bed is tested.
    pub nvcap: Option<(PathBuf, PathBuf)>,
    /// The libraries that they need, at the same paths in the guest.
    pub libraries: BTreeSet<PathBuf>,
}

/// Builds the programs; `nvcap` is a ready-made one to use, if given. With `bed`, neither nvcap nor its tests are needed.
pub fn build(nvcap: Option<&Path>, bed: bool, profile: Profile) -> Result<Programs> {
    let mut wanted = vec!["vm-guest".to_owned(), "softgpu".to_owned()];
    if nvcap.is_none() && !bed {
        bpf::fresh().context("without nvcap, `cargo xtask vm --bed` runs the bed's own tests")?;
        wanted = build::programs();
    }
    let dir = match profile {
        Profile::DEVELOPMENT => build::tests()?,
        _ => build::packages(&wanted, profile)?,
    };
    let nvcap = match nvcap {
        _ if bed => None,
        Some(file) if !file.is_file() => bail!("{} is not there", file.display()),
        Some(file) => Some(file.to_path_buf()),
        None => Some(dir.join("nvcap")),
    };
    let nvcap = match nvcap {
        Some(nvcap) => {
            let live = build::test_program("live", profile)?;
            Some((
                stripped("nvcap", nvcap, profile.arch)?,
                stripped("live", live, profile.arch)?,
            ))
        }
        None => None,
    };
    let native = profile.arch == Arch::HOST && !profile.fixed;
    let mut libraries = BTreeSet::new();
    for program in ["nvcap", "softgpu", "vm-init"].iter().filter(|_| native) {
        libraries.extend(libraries_of(&dir.join(program))?);
    }
    Ok(Programs {
        libraries,
        init: stripped("vm-init", dir.join("vm-init"), profile.arch)?,
        softgpu: stripped("softgpu", dir.join("softgpu"), profile.arch)?,
        nvcap,
    })
}

/// The shared libraries of a program, and its loader, as the machine that built it has them; none of a static one.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `libc.so.6 => /lib/…/libc.so.6 (0x…)`, and the loader's `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    let words = text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/')));
    Ok(words.map(PathBuf::from).collect())
}

/// A copy without debugging information, which is most of a program's size and which every machine would have to unpack;
/// the program itself if there is no objcopy.
fn stripped(name: &str, program: PathBuf, arch: Arch) -> Result<PathBuf> {
    let dir = shell::cache().join("programs").join(arch.name());
    fs::create_dir_all(&dir)?;
    let (new, to) = (
        dir.join(format!("{name}.{}", std::process::id())),
        dir.join(name),
    );
    let mut strip = Command::new(arch.tool("objcopy").0);
    strip.arg("--strip-all").arg(&program).arg(&new);
    if !strip.output().is_ok_and(|o| o.status.success()) {
        return Ok(program);
    }
    fs::rename(&new, &to)?;
    Ok(to)
}
