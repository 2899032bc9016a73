//! Installs missing packages if this user may; else prints the exact commands to type.
//!
//! Knows apt and `cargo install`, not the purpose of the packages.

use std::{os::unix::fs::MetadataExt, sync::OnceLock};

use anyhow::{Context, Result, bail};

use crate::{once, paths, shell::Cmd};

/// Way in which this process can act as root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Root {
    /// The process is root.
    Already,
    /// `sudo` answers without a password.
    Sudo,
    /// Only if the user types a password.
    Asking,
    /// There is no sudo.
    No,
}

/// Tells how this process can act as root; determined once.
pub fn root() -> Root {
    static FOUND: OnceLock<Root> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0) {
            Root::Already
        } else if paths::on_path("sudo").is_none() {
            Root::No
        } else if Cmd::new("sudo").args(["-n", "true"]).read().is_some() {
            Root::Sudo
        } else {
            Root::Asking
        }
    })
}

/// Tells whether packages can be installed with apt without asking anybody.
pub fn apt_allowed() -> bool {
    matches!(root(), Root::Already | Root::Sudo) && paths::on_path("apt-get").is_some()
}

/// Tells whether dpkg has `package` installed.
pub fn has_package(package: &str) -> bool {
    Cmd::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Abbrev}", package])
        .read()
        .is_some_and(|status| status.starts_with("ii"))
}

/// Tells whether apt's lists offer `package`. A machine that never ran `apt-get update` has no lists: they are fetched once if
/// this user may.
pub fn apt_offers(package: &str) -> bool {
    let offers = || {
        Cmd::new("apt-cache")
            .args(["policy", package])
            .read()
            .is_some_and(|policy| {
                policy.contains("Candidate:") && !policy.contains("Candidate: (none)")
            })
    };
    offers() || (apt_allowed() && apt_update().is_ok() && offers())
}

/// apt has locks of its own, but where it finds one taken it fails.
const APT: &str = "apt";

/// Refreshes apt's lists, at most once in this process.
fn apt_update() -> Result<()> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let update = || {
        let alone = once::alone(APT);
        alone.is_ok() && apt_get().args(["-qq", "update"]).run().is_ok()
    };
    if *DONE.get_or_init(update) {
        Ok(())
    } else {
        bail!("apt-get update failed; look at its message above, then run this again")
    }
}

/// Installs missing Debian packages and prints their purpose.
///
/// Never removes a package: if the distribution's own compiler is in the way, apt refuses and says so.
pub fn apt(packages: &[&str], purpose: &str) -> Result<()> {
    let lacking: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|p| !has_package(p))
        .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let command = format!(
        "apt-get install --no-install-recommends {}",
        lacking.join(" ")
    );
    if !apt_allowed() {
        bail!(
            "{purpose} needs packages that are not installed, and this user may not install them. Type:\n  {}",
            by_hand(&lacking, &command)
        );
    }
    apt_update()?;
    let _alone = once::alone(APT)?;
    eprintln!("installing {} ({purpose})", lacking.join(", "));
    apt_get()
        .args([
            "-qq",
            "-y",
            "--no-install-recommends",
            "--no-remove",
            "install",
        ])
        .args(&lacking)
        .run()
        .with_context(|| {
            format!(
                "{purpose} needs {}; install it by hand: sudo {command}",
                lacking.join(", ")
            )
        })
}

/// The command to type if apt may not be run from here.
fn by_hand(lacking: &[&str], command: &str) -> String {
    if paths::on_path("apt-get").is_some() {
        format!("sudo apt-get update && sudo {command}")
    } else {
        format!(
            "(no apt-get here) your distribution's packages for: {}; docs/building.md names them for others",
            lacking.join(" ")
        )
    }
}

/// A command that runs as root: directly if nvcap's user is root, else through sudo, which may ask for a password.
pub fn as_root(program: impl AsRef<std::ffi::OsStr>) -> Cmd {
    match root() {
        Root::Already => Cmd::new(program),
        Root::Sudo | Root::Asking | Root::No => Cmd::new("sudo").arg(program),
    }
}

/// apt-get as root, which must never stop to ask a question. (`env`, because sudo drops the variable.)
fn apt_get() -> Cmd {
    as_root("env").args(["DEBIAN_FRONTEND=noninteractive", "apt-get"])
}
