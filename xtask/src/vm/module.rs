//! The stand-in modules, built against a fetched kernel's headers, with or without BTF.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use super::fetch::Kernel;
use super::shell;
use crate::{arch::Arch, paths};

/// Programs that the build starts, with their packages.
fn needs(arch: Arch) -> Vec<(String, String)> {
    let make = ("make".to_owned(), "make".to_owned());
    vec![make, arch.tool("gcc"), arch.tool("objcopy")]
}

/// The built files.
pub const FILES: [&str; 2] = ["nvidia.ko", "nvidia-uvm.ko"];

/// The name of the folder for modules with BTF or without.
pub fn kind(btf: bool) -> &'static str {
    if btf { "btf" } else { "plain" }
}

/// One build at a time: two machines of the matrix often need the same modules.
static BUILDING: Mutex<()> = Mutex::new(());

fn sources() -> PathBuf {
    paths::root().join("tests/vm/nvidia")
}

/// A number that changes with every source.
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

/// The modules for `kernel` in the layouts of `branch`, with BTF or without: the folder that holds [`FILES`].
pub fn build(kernel: &Kernel, branch: u32, btf: bool) -> Result<PathBuf> {
    let _one = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{}-{branch}-{:016x}", kernel.release, fingerprint()?);
    let out = shell::cache().join("modules").join(name);
    let kind = out.join(self::kind(btf));
    if FILES.iter().all(|f| kind.join(f).is_file()) {
        return Ok(kind);
    }
    shell::need(&needs(kernel.arch), "building the stand-in kernel module")?;
    let work = shell::cache()
        .join("build")
        .join(format!("{}-{branch}", kernel.release));
    fs::remove_dir_all(&work).ok();
    fs::create_dir_all(&work)?;
    for source in fs::read_dir(sources())? {
        let source = source?.path();
        fs::copy(&source, work.join(source.file_name().context("a name")?))?;
    }
    make(kernel, branch, &work)
        .with_context(|| format!("building the stand-in for {}", kernel.release))?;
    for btf in [false, true] {
        if btf && !kernel.module_btf {
            continue;
        }
        let kind = self::kind(btf);
        let ready = work.join(kind);
        fs::create_dir_all(&ready)?;
        for file in FILES {
            let mut strip = Command::new(kernel.arch.tool("objcopy").0);
            strip.arg("--strip-debug");
            if btf {
                add_btf(kernel, &work, file)?;
            } else {
                strip.args(["-R", ".BTF", "-R", ".BTF.base"]);
            }
            shell::quiet(strip.arg(work.join(file)).arg(ready.join(file)))?;
        }
        fs::create_dir_all(&out)?;
        fs::remove_dir_all(out.join(kind)).ok();
        fs::rename(&ready, out.join(kind))?;
    }
    fs::remove_dir_all(&work).ok();
    if !kind.is_dir() {
        bail!("kernel {} knows no BTF of modules", kernel.release);
    }
    Ok(kind)
}

/// The environment in which the fetched build programs find each other and their libraries.
fn tools(kernel: &Kernel, command: &mut Command) {
    let root = kernel.root();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", root.join("usr/bin").display()));
    // Wrapped programs find their own libraries; the host's programs must not load another release's libc.
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    if !libraries.join("libc.so.6").exists() {
        command.env("LD_LIBRARY_PATH", libraries);
    }
}

fn make(kernel: &Kernel, branch: u32, work: &Path) -> Result<()> {
    let mut make = Command::new("make");
    tools(kernel, &mut make);
    // cargo's job server is not compatible with make's.
    make.env_remove("MAKEFLAGS").env_remove("CARGO_MAKEFLAGS");
    make.arg("-s")
        .arg("-C")
        .arg(kernel.headers())
        .arg(format!("M={}", work.display()));
    make.arg(format!("NV_BRANCH={branch}")).arg("modules");
    if kernel.arch != Arch::HOST {
        let prefix = kernel.arch.tool("").0;
        make.arg(format!("ARCH={}", kernel.arch.debian()))
            .arg(format!("CROSS_COMPILE={prefix}"));
    }
    // The headers ask for the compiler of the kernel's own release; another one is good enough for these modules.
    let asked = fs::read_to_string(kernel.headers().join(".kernelvariables")).unwrap_or_default();
    let compiler = asked.lines().find_map(|l| {
        Some(
            &l[l.rfind("$(CROSS_COMPILE)gcc-")
                .filter(|_| l.starts_with("CC"))?
                + 16..],
        )
    });
    if compiler.is_some_and(|c| paths::on_path(&kernel.arch.tool(c).0).is_none()) {
        make.arg(format!("CC={}", kernel.dir.join("cc").display()));
    }
    let said = shell::quiet(&mut make)?;
    for line in said.lines().filter(|l| l.contains("warning")) {
        println!("{line}");
    }
    Ok(())
}

/// Some header packages include the vmlinux that the build needs for BTF; for the others BTF is added here.
fn add_btf(kernel: &Kernel, work: &Path, file: &str) -> Result<()> {
    if !has_btf(&work.join(file))? {
        let mut pahole = Command::new("pahole");
        tools(kernel, &mut pahole);
        pahole
            // Older headers use LLVM's objcopy by default; binutils' works as well, and is installed.
            .env("LLVM_OBJCOPY", "objcopy")
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
