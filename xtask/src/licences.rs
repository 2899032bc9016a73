//! The licence of every crate that nvcap is built with, against the list in deny.toml: `cargo deny check licenses` does the
//! same and more, but building it takes longer than the rest of the gate's set-up.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{build, paths, shell::Cmd};

/// Components that are kept in the repository as they were released, for pages that nvcap writes. Each has its licence and a README
/// beside it.
pub const KEPT: [&str; 1] = ["nvcap/show/src/export/report/page/uplot"];

/// Checks the workspace and the BPF programs: every crate that a built nvcap may contain, and every build dependency.
pub fn check() -> Result<()> {
    let text = fs::read_to_string(paths::root().join("deny.toml")).context("deny.toml")?;
    let allowed = allowed(&text);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for folder in ["", "nvcap-ebpf"] {
        let tree = build::host_cargo()
            .dir(paths::root().join(folder))
            .args(["tree", "--workspace", "--locked", "-e", "normal,build"])
            .args(["--prefix", "none", "--format", "{p}|{l}"])
            .read()
            .with_context(|| {
                format!(
                    "cargo tree failed in {}",
                    paths::root().join(folder).display()
                )
            })?;
        for line in tree.lines() {
            let Some((package, licence)) = line.trim_end_matches(" (*)").split_once('|') else {
                continue;
            };
            seen += 1;
            if !fits(licence, &allowed) {
                wrong.push(format!("{package}: {licence:?}"));
            }
        }
    }
    for folder in KEPT {
        kept(&paths::root().join(folder), &allowed).with_context(|| folder.to_owned())?;
    }
    wrong.sort();
    wrong.dedup();
    anyhow::ensure!(seen > 0, "cargo tree names no crate");
    if !wrong.is_empty() {
        bail!(
            "licences that deny.toml does not allow: {}",
            wrong.join("; ")
        );
    }
    Ok(())
}

/// Checks a kept component: its licence is allowed, its text is there, and its files are those that its README names.
fn kept(folder: &Path, allowed: &[&str]) -> Result<()> {
    let readme = fs::read_to_string(folder.join("README.md")).context("README.md")?;
    let said = |what: &str| {
        let line = readme.lines().find_map(|line| line.strip_prefix(what));
        line.with_context(|| format!("README.md has no line {what:?}"))
    };
    let licence = said("- Licence: ")?;
    let licence = licence.split(' ').next().unwrap_or_default();
    anyhow::ensure!(
        fits(licence, allowed),
        "deny.toml does not allow {licence:?}"
    );
    let version = said("- Version: ")?;
    said("- Source: ")?;
    let mut is_of_version = false;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name == "README.md" {
            continue;
        }
        let sum = Cmd::new("sha256sum").arg(folder.join(&name)).read();
        let sum = sum.with_context(|| format!("sha256sum {name}"))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        anyhow::ensure!(
            readme.contains(&format!("{sum}  {name}\n")),
            "{name} is not the file that README.md names: its sum is {sum}"
        );
        is_of_version |= fs::read_to_string(folder.join(&name))?.contains(version);
    }
    anyhow::ensure!(is_of_version, "no file says that it is {version}");
    let text = fs::read_to_string(folder.join("LICENSE")).context("LICENSE")?;
    anyhow::ensure!(text.contains(licence), "LICENSE is not that of {licence}");
    Ok(())
}

/// The strings of `allow = [...]`.
fn allowed(toml: &str) -> Vec<&str> {
    let list = toml.split_once("allow = [").map_or("", |(_, rest)| rest);
    let list = list.split_once(']').map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

/// Tells whether a licence expression is allowed: each part joined by AND needs one allowed alternative.
fn fits(expression: &str, allowed: &[&str]) -> bool {
    expression.split(" AND ").all(|part| {
        let part = part.trim().trim_matches(['(', ')']);
        part.split(" OR ")
            .flat_map(|p| p.split('/'))
            .any(|one| allowed.contains(&one.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let allowed = allowed("[licenses]\nallow = [\n  \"MIT\",\n  \"Unicode-3.0\",\n]\n");
        assert_eq!(allowed, ["MIT", "Unicode-3.0"]);
        for good in [
            "MIT",
            "Apache-2.0 OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(fits(good, &allowed), "{good}");
        }
        for bad in ["", "LGPL-3.0", "MIT AND GPL-2.0", "Apache-2.0"] {
            assert!(!fits(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn of_this_repository() {
        check().expect("every licence is allowed");
    }
}
