//! The programs that go into the guest: its init with the tests, softgpu, nvcap. All static.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::shell;

/// Where they are on the host.
pub struct Programs {
    /// PID 1.
    pub init: PathBuf,
    /// The traced program.
    pub softgpu: PathBuf,
    /// The tracer, where there is one.
    pub nvcap: Option<PathBuf>,
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds them; `nvcap` is taken as it is, or from this checkout's release build where that is present.
pub fn build(nvcap: Option<&Path>) -> Result<Programs> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    shell::quiet(
        Command::new(cargo)
            .args([
                "build",
                "--quiet",
                "--release",
                "-p",
                "vm-guest",
                "-p",
                "softgpu",
                "--target",
                TARGET,
            ])
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .current_dir(shell::root()),
    )?;
    let cache = shell::cache();
    let dir = cache
        .parent()
        .unwrap_or(&cache)
        .join(TARGET)
        .join("release");
    let nvcap = match nvcap {
        Some(file) if !file.is_file() => bail!("{} is not there", file.display()),
        Some(file) => Some(file.to_path_buf()),
        None => Some(dir.join("nvcap")).filter(|f| f.is_file()),
    };
    if nvcap.is_none() {
        println!(
            "vm: no nvcap here (cargo xtask build --release makes it): only the bed's own tests run"
        );
    }
    Ok(Programs {
        init: dir.join("vm-init"),
        softgpu: dir.join("softgpu"),
        nvcap,
    })
}
