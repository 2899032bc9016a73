//! Other programs: run with an error that shows the command, and looked for before they are needed.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A program, and the Debian package that has it.
pub type Need = (&'static str, &'static str);

/// The workspace's root.
pub fn root() -> PathBuf {
    let xtask = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().map_or(xtask.clone(), PathBuf::from)
}

/// Where everything of the VM is kept between runs.
pub fn cache() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), PathBuf::from)
        .join("vm")
}

fn found(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Fails with the command to type when a program is lacking.
pub fn need(programs: &[Need]) -> Result<()> {
    let lacking: Vec<_> = programs
        .iter()
        .filter(|(program, _)| !found(program))
        .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<_> = lacking.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    bail!(
        "the test VM needs {}; type: sudo apt-get install {}",
        lacking
            .iter()
            .map(|(program, _)| *program)
            .collect::<Vec<_>>()
            .join(", "),
        packages.join(" ")
    )
}

/// Runs a command, showing its output only when it fails.
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
