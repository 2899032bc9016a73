//! The stand-in modules, built against a fetched kernel's headers, with or without BTF.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::fetch::Kernel;
use super::shell;

/// What the build starts, with its packages.
const NEEDS: &[shell::Need] = &[
    ("make", "make"),
    ("gcc", "gcc"),
    ("strip", "binutils"),
    ("objcopy", "binutils"),
];

/// The built files.
pub const FILES: [&str; 2] = ["nvidia.ko", "nvidia-uvm.ko"];

fn sources() -> PathBuf {
    shell::root().join("tests/vm/nvidia")
}

/// A number that changes with any source.
fn fingerprint() -> Result<u64> {
    let mut files: Vec<_> = fs::read_dir(sources())?
        .collect::<Result<Vec<_>, _>>()?
        .iter()
        .map(|e| e.path())
        .collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.file_name().hash(&mut hasher);
        fs::read(&file)?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Builds the modules for `kernel` in the layouts of `branch`; returns the folder with [`FILES`].
pub fn build(kernel: &Kernel, branch: u32, btf: bool) -> Result<PathBuf> {
    let kind = if btf { "btf" } else { "plain" };
    let name = format!("{}-{branch}-{kind}-{:016x}", kernel.release, fingerprint()?);
    let out = shell::cache().join("modules").join(name);
    if FILES.iter().all(|f| out.join(f).is_file()) {
        return Ok(out);
    }
    shell::need(NEEDS)?;
    let work = shell::cache()
        .join("build")
        .join(format!("{}-{branch}-{kind}", kernel.release));
    fs::remove_dir_all(&work).ok();
    fs::create_dir_all(&work)?;
    for source in fs::read_dir(sources())? {
        let source = source?.path();
        fs::copy(&source, work.join(source.file_name().context("a name")?))?;
    }
    make(kernel, branch, &work)
        .with_context(|| format!("building the stand-in for {}", kernel.release))?;
    fs::create_dir_all(&out)?;
    for file in FILES {
        let built = work.join(file);
        if btf {
            add_btf(kernel, &work, file)?;
        }
        let ready = work.join(format!("{file}.ready"));
        let mut strip = Command::new("objcopy");
        strip.arg("--strip-debug");
        if !btf {
            strip.args(["-R", ".BTF", "-R", ".BTF.base"]);
        }
        shell::quiet(strip.arg(&built).arg(&ready))?;
        fs::rename(&ready, out.join(file))?;
    }
    fs::remove_dir_all(&work).ok();
    Ok(out)
}

/// The environment in which the fetched build programs find each other and their libraries.
fn tools(kernel: &Kernel, command: &mut Command) {
    let root = kernel.root();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", root.join("usr/bin").display()));
    command.env("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu"));
}

fn make(kernel: &Kernel, branch: u32, work: &Path) -> Result<()> {
    let mut make = Command::new("make");
    tools(kernel, &mut make);
    // cargo's job server is not make's.
    make.env_remove("MAKEFLAGS").env_remove("CARGO_MAKEFLAGS");
    make.arg("-s")
        .arg("-C")
        .arg(kernel.headers())
        .arg(format!("M={}", work.display()));
    make.arg(format!("NV_BRANCH={branch}")).arg("modules");
    let said = shell::quiet(&mut make)?;
    for line in said.lines().filter(|l| l.contains("warning")) {
        println!("{line}");
    }
    Ok(())
}

/// Some headers come with the vmlinux that the build needs for BTF; with the others it is added here.
fn add_btf(kernel: &Kernel, work: &Path, file: &str) -> Result<()> {
    if !has_btf(&work.join(file))? {
        let mut pahole = Command::new("pahole");
        tools(kernel, &mut pahole);
        pahole
            .args(["-J", "--btf_gen_floats", "--btf_base"])
            .arg(kernel.image())
            .arg(work.join(file));
        shell::quiet(&mut pahole)?;
    }
    if !has_btf(&work.join(file))? {
        bail!("{file} has no BTF although pahole succeeded");
    }
    Ok(())
}

fn has_btf(file: &Path) -> Result<bool> {
    let sections = shell::quiet(Command::new("objdump").args(["-h", "-w"]).arg(file))?;
    Ok(sections
        .lines()
        .any(|l| l.split_whitespace().nth(1) == Some(".BTF")))
}
