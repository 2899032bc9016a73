//! Texts that the tree may not hold: on which machine or by whom it was made, and hosts that only some networks have.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::{paths, shell::Cmd};

/// This file has the patterns themselves.
const HERE: &str = ":!xtask/src/tree.rs";

/// Something that the tree may not hold: a pattern of `git grep -E`, and one of what is allowed nevertheless.
struct Rule {
    what: &'static str,
    pattern: &'static str,
    any_case: bool,
    but: Option<fn(&str) -> bool>,
}

const RULES: [Rule; 4] = [
    Rule {
        what: "absolute machine path",
        pattern: r"(^|[^][[:alnum:]_.~$}>*/-])/(root|home/[[:alnum:]]+|work|Users/[[:alnum:]]+)/",
        any_case: false,
        but: None,
    },
    Rule {
        what: "registry or internal host",
        pattern: r#"https?://[^/" ]*(\.internal|\.local|\.corp|\.lan|mirror|proxy|artifact|nexus|registry)"#,
        any_case: true,
        but: None,
    },
    Rule {
        what: "address of a machine",
        pattern: r"https?://([0-9]+\.){3}[0-9]+",
        any_case: false,
        but: Some(|line| line.contains("://127.") || line.contains("://0.0.0.0")),
    },
    Rule {
        what: "mail address",
        pattern: r"[[:alnum:]._-]+@[[:alnum:]-]+\.(com|org|net|io|dev|de|me|edu)\b",
        any_case: false,
        but: Some(|line| line.contains("@example.")),
    },
];

/// Fails with the lines of the checkout that say too much.
pub fn check() -> Result<()> {
    let mut found = Vec::new();
    for rule in &RULES {
        let flags = if rule.any_case { "-nIiE" } else { "-nIE" };
        let lines = grep(&[flags, rule.pattern], &["."])?;
        let bad = lines
            .lines()
            .filter(|l| !rule.but.is_some_and(|but| but(l)));
        found.extend(bad.map(|line| format!("{}: {line}", rule.what)));
    }
    let sources = grep(&["-nE", "^source = "], &["*Cargo.lock"])?;
    let elsewhere = sources
        .lines()
        .filter(|l| !l.ends_with("\"registry+https://github.com/rust-lang/crates.io-index\""));
    found.extend(elsewhere.map(|l| format!("dependency from elsewhere than crates.io: {l}")));
    for name in names()? {
        let lines = grep(&["-nIwF", &name], &["."])?;
        found.extend(
            lines
                .lines()
                .map(|l| format!("name of a person in the history: {l}")),
        );
    }
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

/// The lines that `git grep` finds; none is no error.
fn grep(options: &[&str], of: &[&str]) -> Result<String> {
    let cmd = Cmd::new("git").arg("grep").args(options).arg("--");
    let output = cmd
        .args(of)
        .arg(HERE)
        .dir(paths::root())
        .command()
        .output()
        .context("git grep")?;
    match output.status.code() {
        Some(0 | 1) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => bail!("git grep: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// The names of the history's authors but for those of the project.
fn names() -> Result<BTreeSet<String>> {
    let log = Cmd::new("git")
        .args(["log", "--format=%an%n%ae%n%cn%n%ce"])
        .dir(paths::root())
        .read()
        .context("git log")?;
    let ours = |name: &str| {
        let name = name.to_lowercase();
        name.is_empty()
            || name.contains("nvcap")
            || name.starts_with("root")
            || name.ends_with(".invalid")
    };
    Ok(log
        .lines()
        .filter(|name| !ours(name))
        .map(str::to_owned)
        .collect())
}
