//! The programs that go into the guest: its init with the bed's tests, the end-to-end tests, softgpu, nvcap. All static.

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

/// Where they are on the host.
pub struct Programs {
    /// PID 1.
    pub init: PathBuf,
    /// The traced program.
    pub softgpu: PathBuf,
    /// The tracer and its end-to-end tests; none when only the bed is tested.
    pub nvcap: Option<(PathBuf, PathBuf)>,
}

/// Builds the programs; `nvcap` is a ready-made one to use, if given. With `bed`, neither nvcap nor its tests are needed.
pub fn build(nvcap: Option<&Path>, bed: bool, profile: Profile) -> Result<Programs> {
    let mut wanted = vec!["vm-guest".to_owned(), "softgpu".to_owned()];
    if nvcap.is_none() && !bed {
        bpf::fresh().context("without nvcap, `cargo xtask vm --bed` runs the bed's own tests")?;
        wanted = build::programs();
    }
    let dir = build::packages(&wanted, profile)?;
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
    Ok(Programs {
        init: stripped("vm-init", dir.join("vm-init"), profile.arch)?,
        softgpu: stripped("softgpu", dir.join("softgpu"), profile.arch)?,
        nvcap,
    })
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
