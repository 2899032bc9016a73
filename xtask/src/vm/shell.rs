//! Other programs: found, or installed if allowed, before they are needed; and run with an error that shows the command.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{install, paths};

/// The folder for everything of the VMs that is kept between runs.
pub fn cache() -> PathBuf {
    paths::target().join("vm")
}

/// Installs the missing ones of `programs`, each with the Debian package that has it, or fails with the command to type.
pub fn need<S: AsRef<str>>(programs: &[(S, S)], purpose: &str) -> Result<()> {
    let mut packages: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| paths::on_path(program.as_ref()).is_none())
        .map(|(_, package)| package.as_ref())
        .collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    install::apt(&packages, purpose)
}

/// Runs a command, showing its output only when it fails; returns its standard output.
pub fn quiet(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        bail!(
            "{shown}: {}\n{}{}",
            out.status,
            text,
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(text)
}
