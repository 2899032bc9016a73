//! The licences of the crates that the program contains, with their texts: who passes the program on must pass them on too.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{
    build,
    licences::KEPT,
    paths::{self, sorted},
};

const HEAD: &str = "\
nvcap is linked statically. This program contains, beside nvcap's own code (MIT or Apache-2.0), the crates below, Rust's standard library
(MIT or Apache-2.0) and the C library of the system that it was built on: glibc (LGPL-2.1-or-later) or musl (MIT). nvcap's complete source
is public, so that it can be linked anew with another C library: `cargo xtask build --release`.
";

/// One text: each crate with its licence, then each licence text once, with the crates that have it.
pub fn licences() -> Result<String> {
    let mut crates: BTreeMap<(String, String), String> = BTreeMap::new();
    for (folder, package) in [("", Some("nvcap")), ("nvcap-ebpf", None)] {
        let mut cmd = build::host_cargo()
            .dir(paths::root().join(folder))
            .args(["tree", "--locked", "-e", "normal", "--prefix", "none"])
            .args(["--format", "{p}|{l}"]);
        if let Some(package) = package {
            cmd = cmd.args(["-p", package]);
        }
        let tree = cmd
            .read()
            .with_context(|| format!("failed: {}", cmd.line()))?;
        crates.extend(tree.lines().filter_map(of_registry));
    }
    ensure!(!crates.is_empty(), "cargo tree names no crate");
    let sources = sources();
    let mut text = HEAD.to_owned() + "\n";
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for ((name, version), licence) in &crates {
        text += &format!("{name} {version}: {licence}\n");
        let folder = format!("{name}-{version}");
        let found = sources.iter().map(|s| s.join(&folder)).find(|f| f.is_dir());
        for file in found.iter().flat_map(|folder| notices(folder)) {
            let words = String::from_utf8_lossy(&fs::read(file)?).trim().to_owned();
            texts
                .entry(words)
                .or_default()
                .insert(format!("{name} {version}"));
        }
    }
    ensure!(
        !texts.is_empty(),
        "cargo has no sources of the crates here, so that their licences cannot be packed; type: cargo fetch"
    );
    for folder in KEPT {
        let folder = paths::root().join(folder);
        let name = folder.file_name().map(|n| n.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        text += &format!("{name}, in pages that `nvcap report` writes\n");
        for file in notices(&folder) {
            let words = fs::read_to_string(file)?.trim().to_owned();
            texts.entry(words).or_default().insert(name.clone());
        }
    }
    for (words, of) in texts {
        let of: Vec<String> = of.into_iter().collect();
        let line = "-".repeat(80);
        text += &format!("\n{line}\n{}:\n\n{words}\n", of.join(", "));
    }
    Ok(text)
}

/// Reads a line `name v1.2.3|licence`; none for a crate of this tree, which has its path behind the version.
fn of_registry(line: &str) -> Option<((String, String), String)> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let is_of_tree = words.any(|word| word.starts_with("(/"));
    (!is_of_tree).then(|| ((name.into(), version.into()), licence.into()))
}

/// Lists the folders in which cargo unpacks crates.
fn sources() -> Vec<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")));
    home.and_then(|home| sorted(&home.join("registry/src")).ok())
        .unwrap_or_default()
}

/// The files of a crate that are licences or notices.
fn notices(folder: &Path) -> Vec<PathBuf> {
    const NAMES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];
    let mut all = sorted(folder).unwrap_or_default();
    all.retain(|path| {
        let name = path.file_name().map(|n| n.to_string_lossy().to_uppercase());
        let name = name.unwrap_or_default();
        path.is_file() && (NAMES.iter().any(|n| name.starts_with(n)) || name == "UNLICENSE")
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_the_tree_are_told_from_those_of_registries() {
        let crates = [
            "clap v4.6.7|MIT OR Apache-2.0 (*)",
            "prost-derive v0.14.6 (proc-macro)|Apache-2.0",
            "nvcap v0.1.0 (/there/nvcap)|MIT OR Apache-2.0",
        ];
        let of: Vec<_> = crates.iter().filter_map(|l| of_registry(l)).collect();
        assert_eq!(
            of,
            [
                (("clap".into(), "4.6.7".into()), "MIT OR Apache-2.0".into()),
                (
                    ("prost-derive".into(), "0.14.6".into()),
                    "Apache-2.0".into()
                )
            ]
        );
    }
}
