//! `cargo xtask gpu-bundle DIR`: everything that a GPU machine without Rust needs to run the GPU tests.
//!
//! Only copies; the tests themselves are in tests/gpu.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{
    bpf,
    build::{self, Profile},
    linker, paths,
    shell::Cmd,
};

/// Fills `dir` with `bin/` (static, stripped programs), the sources for nvcc and gcc, and `run.sh`.
pub fn run(dir: &Path) -> Result<()> {
    let sources = paths::root().join("tests/gpu");
    if !sources.join("run.sh").is_file() {
        bail!(
            "{} is not in this checkout; a bundle without it tests nothing",
            sources.join("run.sh").display()
        );
    }
    bpf::fresh()?;
    let built = build::packages(&build::programs(), Profile::RELEASE)?;
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    for name in ["nvcap", "softgpu", "compare"] {
        let from = built.join(name);
        if !from.is_file() {
            eprintln!("without {name}: its crate is not in this checkout");
            continue;
        }
        build::check_static(&from)?;
        let to = bin.join(name);
        copy(&from, &to)?;
        strip(&to)?;
    }
    copy_folder(&sources, dir)?;
    // What `nvcap sample --learn` has Python run, for a recording of its calls.
    let sampling = paths::root().join("nvcap/src/cli/sample/learn/cupti.py");
    copy(&sampling, &dir.join("sample/cupti.py"))?;
    let mut files = Vec::new();
    list(dir, &mut files)?;
    files.sort();
    let mut total = 0;
    for file in &files {
        let size = file.metadata()?.len();
        total += size;
        println!(
            "{size:>9}  {}",
            file.strip_prefix(dir).unwrap_or(file).display()
        );
    }
    println!(
        "{total:>9}  bytes in all. Copy {} to the GPU machine, and run there as root: bash run.sh",
        dir.display()
    );
    Ok(())
}

/// Programs carry the BPF object in their read-only data: it survives.
fn strip(program: &Path) -> Result<()> {
    let tool = paths::on_path("strip").or_else(|| linker::llvm_tool("llvm-strip"));
    match tool {
        Some(tool) => Cmd::new(tool).arg("--strip-all").arg(program).run(),
        None => {
            eprintln!(
                "no strip here (package binutils): {} keeps its symbols",
                program.display()
            );
            Ok(())
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    // A running program of an older bundle cannot be overwritten, but it can be replaced.
    if to.exists() {
        fs::remove_file(to).with_context(|| format!("cannot replace {}", to.display()))?;
    }
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?.flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            copy(&entry.path(), &target)?;
        }
    }
    Ok(())
}

fn list(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_type()?.is_dir() {
            list(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
