//! Places in the checkout. Knows folder names, runs nothing.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::arch::Arch;

/// The workspace root: the folder above `xtask/`.
pub fn root() -> PathBuf {
    // Cargo sets the variable for `cargo run`; the compiled-in value serves a binary that is started by hand.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.ends_with("xtask"))
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest
        .parent()
        .map_or(manifest.clone(), Path::to_path_buf)
}

/// Cargo's target folder of the workspace.
pub fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Tools installed for this checkout only, in the layout of `cargo install --root`.
pub fn tools() -> PathBuf {
    target().join("tools")
}

/// The crate of the BPF programs: outside the workspace, for another target.
pub fn ebpf_crate() -> PathBuf {
    root().join("nvcap-ebpf")
}

/// The built BPF objects and what they were built by, which are committed.
pub fn prebuilt() -> PathBuf {
    ebpf_crate().join("prebuilt")
}

/// The built BPF object for processes of a processor, which `nvcap/build.rs` embeds.
pub fn bpf_object(arch: Arch) -> PathBuf {
    prebuilt().join(format!("nvcap-{}.bpf.o", arch.name()))
}

/// The tables that `cargo xtask facts` turns into `nvcap/decode/facts/*.bin`.
pub fn facts() -> PathBuf {
    root().join("facts")
}

/// Tells whether this checkout has a crate in the workspace folder `dir`.
pub fn has_crate(dir: &str) -> bool {
    root().join(dir).join("Cargo.toml").is_file()
}

/// The package name of the crate in the workspace folder `dir`; none if this checkout lacks it.
pub fn package(dir: &str) -> Option<String> {
    let manifest = std::fs::read_to_string(root().join(dir).join("Cargo.toml")).ok()?;
    package_of(&manifest)
}

/// The first `name` of a manifest, which is the package's.
fn package_of(manifest: &str) -> Option<String> {
    let value = manifest
        .lines()
        .find_map(|line| line.trim().strip_prefix("name")?.trim().strip_prefix('='))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// The program `name` as the shell would find it.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

/// Tells whether `file` is a regular file that somebody may execute.
pub fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Lists the content of a folder, by name.
pub fn sorted(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_name_is_read_from_the_manifest() {
        assert_eq!(
            package_of("[package]\nname = \"softgpu\"\n[[bin]]\nname = \"x\"").as_deref(),
            Some("softgpu")
        );
        assert_eq!(package_of("[workspace]\n"), None);
        assert_eq!(package("xtask").as_deref(), Some("xtask"));
    }
}
