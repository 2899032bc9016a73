//! Hands the compiled BPF object to the crate, which embeds it.
//!
//! The object is committed in `prebuilt/` (that of `nvcap-ebpf/`), one for each processor, so that no BPF toolchain is needed. `cargo xtask
//! bpf` makes the objects; a warning says so where the sources have changed since. `NVCAP_BPF_OBJECT` names another object.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=NVCAP_BPF_OBJECT");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let named = env::var_os("NVCAP_BPF_OBJECT").map(PathBuf::from);
    if named.is_none() {
        warn_of_changes(&manifest);
    }
    let built = named.unwrap_or_else(|| manifest.join(format!("prebuilt/nvcap-{arch}.bpf.o")));
    println!("cargo::rerun-if-changed={}", built.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("nvcap.bpf.o");
    // Without one, nvcap says that live tracing is not built in.
    let object = fs::read(&built).unwrap_or_default();
    for other in ["x86_64", "aarch64"].into_iter().filter(|a| *a != arch) {
        // As nvcap-ebpf has it in its section nvcap_arch.
        let mark = format!("nvcap for {other}\0");
        assert!(
            !object.windows(mark.len()).any(|w| w == mark.as_bytes()),
            "{} has BPF programs for processes of {other}, and nvcap is built for {arch}; \
             type: cargo xtask bpf",
            built.display()
        );
    }
    fs::write(out, object).expect("OUT_DIR is writable");
}

include!("bpf_sources.rs");

/// Warns where the prebuilt BPF programs were built from other sources than those beside them.
fn warn_of_changes(manifest: &Path) {
    let versions = manifest.join("prebuilt/VERSIONS");
    println!("cargo::rerun-if-changed={}", versions.display());
    let root = manifest.join("../..");
    let Some(fingerprint) = bpf_fingerprint(&root) else {
        return;
    };
    for source in BPF_SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let said = fs::read_to_string(versions).unwrap_or_default();
    if !said.contains(&fingerprint) {
        println!(
            "cargo::warning=the BPF programs in nvcap-ebpf/prebuilt are not of the sources beside them; type: cargo xtask bpf"
        );
    }
}
