//! `cargo xtask bpf`: the BPF programs, compiled into the objects of `nvcap-ebpf/prebuilt/` that nvcap carries.
//!
//! The objects are committed, so that nobody who builds nvcap needs a BPF toolchain. They hold no path of a machine and no number that depends on
//! one: the same compiler and linker make the same bytes anywhere, which the gate checks ([`check`]). `VERSIONS` beside them says by what and of
//! which sources they were built.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{
    arch::Arch,
    linker, paths,
    report::Report,
    shell::Cmd,
    toolchain::{self, Toolchain},
};

include!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../nvcap/live/bpf_sources.rs"
));

/// The processors that there are objects for.
const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

/// Versions of the compiler, linker and sources that the objects were built by and of, as `VERSIONS` says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Versions {
    compiler: String,
    linker: String,
    sources: String,
}

impl Versions {
    fn text(&self) -> String {
        format!(
            "compiler {}\nlinker {}\nsources {}\n",
            self.compiler, self.linker, self.sources
        )
    }

    fn parse(text: &str) -> Option<Self> {
        let of = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name));
            line.map(|l| l.trim().to_owned())
        };
        Some(Self {
            compiler: of("compiler ")?,
            linker: of("linker ")?,
            sources: of("sources ")?,
        })
    }

    /// Those of the committed objects.
    fn committed() -> Option<Self> {
        Self::parse(&fs::read_to_string(file()).ok()?)
    }
}

fn file() -> PathBuf {
    paths::prebuilt().join("VERSIONS")
}

fn fingerprint() -> Result<String> {
    bpf_fingerprint(&paths::root()).with_context(|| {
        format!(
            "{} is not whole in this checkout; `git status` and `git log -- nvcap-ebpf` say where it went",
            paths::ebpf_crate().display()
        )
    })
}

/// Makes the objects anew where they are not of the sources beside them.
pub fn fresh() -> Result<()> {
    let sources = fingerprint()?;
    if Versions::committed().is_some_and(|v| v.sources == sources) {
        return Ok(());
    }
    eprintln!("the BPF programs have changed since they were built: cargo xtask bpf");
    make()
}

/// `cargo xtask bpf`: compiles the programs for each processor.
pub fn make() -> Result<()> {
    let toolchain = Toolchain::get()?;
    let folder = paths::prebuilt();
    fs::create_dir_all(&folder)?;
    for arch in ARCHES {
        let object = compile(&toolchain, arch)?;
        let to = paths::bpf_object(arch);
        let bytes = fs::read(&object)?;
        // An unchanged object keeps its time stamp, and the programs that carry it are not built again.
        if fs::read(&to).map_or(true, |old| old != bytes) {
            fs::write(&to, &bytes)?;
        }
        eprintln!("BPF object: {} ({} bytes)", to.display(), bytes.len());
    }
    let versions = Versions {
        compiler: toolchain.compiler_version()?,
        linker: toolchain.linker_version()?,
        sources: fingerprint()?,
    };
    fs::write(file(), versions.text())?;
    Ok(())
}

/// `cargo xtask bpf --check`: the committed objects are what the sources give, byte for byte. Where another compiler or linker is here than the one
/// that made them, only the sources are compared, and it is said that the bytes were not.
pub fn check(report: &mut Report) -> Result<()> {
    let committed = Versions::committed();
    report.check("BPF objects are of their sources", are_of_sources());
    let compared = match Toolchain::get() {
        Err(error) => Err(format!("{error:#}")),
        Ok(toolchain) => {
            let here = (toolchain.compiler_version()?, toolchain.linker_version()?);
            match committed {
                Some(v) if (&v.compiler, &v.linker) == (&here.0, &here.1) => Ok(toolchain),
                Some(v) => Err(format!(
                    "they were built by {} and {}; here are {} and {}",
                    v.compiler, v.linker, here.0, here.1
                )),
                None => Err("it is not known what built them".to_owned()),
            }
        }
    };
    for arch in ARCHES {
        let name = format!("BPF object for {}, built again", arch.name());
        match &compared {
            Err(why) => report.skip(&name, why),
            Ok(toolchain) => report.check(&name, same(toolchain, arch)),
        }
    }
    Ok(())
}

/// Fails where the committed objects are of other sources than those beside them.
pub fn are_of_sources() -> Result<()> {
    let sources = fingerprint()?;
    match Versions::committed() {
        Some(v) if v.sources == sources => Ok(()),
        Some(v) => bail!(
            "they are of {}, the sources here are {sources}; type: cargo xtask bpf",
            v.sources
        ),
        None => bail!("{} is missing; type: cargo xtask bpf", file().display()),
    }
}

fn same(toolchain: &Toolchain, arch: Arch) -> Result<()> {
    let built = fs::read(compile(toolchain, arch)?)?;
    let committed = fs::read(paths::bpf_object(arch))?;
    if built == committed {
        return Ok(());
    }
    let at = built.iter().zip(&committed).position(|(a, b)| a != b);
    bail!(
        "{} has {} bytes, the one built now has {}; the first difference is at byte {}. Type: cargo xtask bpf",
        paths::bpf_object(arch).display(),
        committed.len(),
        built.len(),
        at.unwrap_or(built.len().min(committed.len()))
    )
}

/// Compiles the programs for processes of a processor; the path of the object, in the crate's target folder.
fn compile(toolchain: &Toolchain, arch: Arch) -> Result<PathBuf> {
    let dir = paths::ebpf_crate();
    let build = toolchain.cargo("build", arch).arg("--locked").dir(&dir);
    build.run().with_context(|| {
        format!(
            "the BPF programs were not built (compiler: {}; linker: {}).\nIf the message above is the linker's and \
             speaks of bitcode or of an unknown attribute, its LLVM is older than the compiler's: remove it from PATH \
             and run `cargo xtask setup`, or name another in BPF_LINKER",
            toolchain.compiler.name,
            toolchain.linker.display()
        )
    })?;
    let release = dir
        .join(toolchain::bpf_target(arch))
        .join("bpfel-unknown-none/release");
    let built = release.join("nvcap-ebpf");
    if !built.is_file() {
        bail!(
            "{} is missing: is the binary of nvcap-ebpf still called nvcap-ebpf?",
            built.display()
        );
    }
    let objcopy = linker::llvm_tool("llvm-objcopy").context(
        "there is no llvm-objcopy here, which finishes the objects; type: sudo apt-get install llvm-22   (or your LLVM's)",
    )?;
    // DWARF is removed, BTF stays: the verifier's messages and the loader need only BTF.
    let (stripped, object) = (release.join("stripped.o"), release.join("nvcap.bpf.o"));
    Cmd::new(&objcopy)
        .arg("--strip-debug")
        .arg(&built)
        .arg(&stripped)
        .run()?;
    let names = release.join("names");
    let lines = renamed(&fs::read(&stripped)?).into_iter();
    let lines: String = lines.map(|(old, new)| format!("{old} {new}\n")).collect();
    fs::write(&names, lines)?;
    Cmd::new(&objcopy)
        .arg(format!("--redefine-syms={}", names.display()))
        .arg(&stripped)
        .arg(&object)
        .run()?;
    Ok(object)
}

/// The symbols with a crate's hash in their mangled names, which depends on the checkout's path, and their names without it.
fn renamed(object: &[u8]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$');
    for word in object.split(|b| !is_name(b)) {
        let Some(word) = std::str::from_utf8(word)
            .ok()
            .filter(|w| w.starts_with("_R"))
        else {
            continue;
        };
        if let Some(plain) = without_hash(word) {
            found.push((word.to_owned(), plain));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A symbol of Rust's mangling (v0) without its crates' hashes (`Cs…_`); none if it has none.
fn without_hash(symbol: &str) -> Option<String> {
    let mut plain = String::new();
    let mut rest = symbol;
    while let Some((before, hashed)) = rest.split_once("Cs") {
        let (hash, after) = hashed.split_once('_')?;
        if hash.is_empty() || !hash.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return None;
        }
        plain.push_str(before);
        plain.push('C');
        rest = after;
    }
    plain.push_str(rest);
    (plain != symbol).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_loses_its_crates_hash() {
        assert_eq!(
            without_hash("_RNvNtCslcYrG9d5MIk_10nvcap_ebpf8doorbell8one_step").as_deref(),
            Some("_RNvNtC10nvcap_ebpf8doorbell8one_step")
        );
        assert_eq!(without_hash("_RNvNtC10nvcap_ebpf8doorbell8one_step"), None);
        let object = b"\0nvcap_look\0_RNvCs12_1a1b\0_RNvCs12_1a1b\0";
        assert_eq!(
            renamed(object),
            [("_RNvCs12_1a1b".to_owned(), "_RNvC1a1b".to_owned())]
        );
    }

    #[test]
    fn versions_are_read_as_written() {
        let versions = Versions {
            compiler: "rustc 1.96.0 (LLVM 22.1.4)".into(),
            linker: "bpf-linker 0.13.0 (LLVM 22.1)".into(),
            sources: "00ff".into(),
        };
        assert_eq!(Versions::parse(&versions.text()), Some(versions));
        assert_eq!(Versions::parse("compiler x\n"), None);
    }
}
