//! `cargo xtask check`: what needs no kernel, no GPU and no root, the cheapest first; a first verdict within three minutes.
//!
//! The modules whose files differ from the last published commit are tested before all else.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::{bpf, build, ci, facts, licences, paths, report::Report, shell::Cmd, tree};

/// Runs the checks; an error where one failed. What follows a failure of the first kind is not begun. `before_tests`: the unit tests of what
/// did not change are run behind the checks anyway.
pub fn run(before_tests: bool) -> Result<()> {
    let mut report = Report::default();
    report.check("nothing tells of a machine or a person", tree::check());
    ci::style(&mut report)?;
    report.check("licences", licences::check());
    report.check("tables of facts", facts::run(true));
    report.check("BPF objects are of their sources", bpf::are_of_sources());
    // Documents and the files that they name; commands and their words.
    let xtask = build::host_cargo().args(["test", "--locked", "-p", "xtask"]);
    report.plain("documents", &xtask)?;
    if report.has_failed() {
        return report.close();
    }
    report.step("clippy", &ci::clippy())?;
    if report.has_failed() {
        return report.close();
    }
    // Compiled at once: the library with its tests beside the library that other tests link. With the software GPU nvcap has the features that it has
    // in the workspace: `cargo xtask test` compiles none of it again.
    let cargo = || {
        let packages = build::CRATES.iter().chain(&["softgpu"]);
        let packages = packages.flat_map(|name| ["-p", name]);
        build::host_cargo()
            .args(["test", "--locked"])
            .args(packages)
    };
    let tests = || cargo().args(["--lib", "--bins", "--test", "all"]);
    report.step("tests of nvcap are compiled", &tests().arg("--no-run"))?;
    let modules = touched();
    if !modules.is_empty() && !report.has_failed() {
        let name = format!("unit tests of what changed: {}", modules.join(" "));
        report.plain(&name, &tests().arg("--").args(&modules))?;
    }
    if report.has_failed() {
        return report.close();
    }
    if !before_tests {
        report.plain("unit tests of nvcap and softgpu", &cargo().arg("--lib"))?;
        let outside = ["layering::", "documents::", "schema"];
        let cmd = cargo().args(["--test", "all", "--"]).args(outside);
        report.plain("layering, documents and schemas of nvcap", &cmd)?;
    }
    // Public pages are read for the interface, beside the tests.
    report.step(
        "documentation of private items",
        &ci::private_documentation(),
    )?;
    report.close()
}

/// The modules of nvcap (`gpu_time::`) with files that differ from the commit that this branch left its upstream at, or from the last commit.
fn touched() -> Vec<String> {
    let git = |args: &[&str]| Cmd::new("git").args(args).dir(paths::root()).read();
    let base = git(&["merge-base", "HEAD", "@{upstream}"]).unwrap_or_else(|| "HEAD".to_owned());
    let names = git(&["diff", "--name-only", base.trim()]).unwrap_or_default();
    modules_of(&names)
}

/// The modules that the files lie in.
fn modules_of(files: &str) -> Vec<String> {
    let modules: BTreeSet<String> = files
        .lines()
        .filter_map(|file| {
            // `nvcap/decode/src/wire/mod.rs` and `nvcap/src/cli/top.rs`: the crate's folder is no module.
            let (_, file) = file.strip_prefix("nvcap/")?.split_once("src/")?;
            file.strip_suffix(".rs")
        })
        .filter(|file| !matches!(*file, "lib" | "main"))
        .map(|file| {
            let path: Vec<&str> = file.split('/').collect();
            // A folder's own file or its tests stand for the folder.
            let folder = match path.as_slice() {
                [one] => one.to_string(),
                [folders @ .., _] => folders.join("::"),
                [] => String::new(),
            };
            format!("{folder}::")
        })
        .collect();
    modules.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_name_their_modules() {
        let files = "nvcap/decode/src/gpu_time/clock.rs\nnvcap/src/cli/watch.rs\ndocs/top.md\nnvcap/live/src/trap/arm.rs\nnvcap/src/lib.rs\n";
        assert_eq!(modules_of(files), ["cli::", "gpu_time::", "trap::"]);
        assert!(modules_of("").is_empty());
    }
}
