//! Hands the compiled BPF object to the library, which embeds it.
//!
//! `cargo xtask build` compiles `nvcap-ebpf` and names the object in `NVCAP_BPF_OBJECT`; a plain `cargo build`
//! takes the one that an earlier `xtask build` left in `target/bpf/`. Where there is none the program is built
//! without live tracing, and says so when live tracing is asked for.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=NVCAP_BPF_OBJECT");
    if env::var_os("CARGO_FEATURE_TRAP").is_none() {
        return;
    }
    let built = env::var_os("NVCAP_BPF_OBJECT")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
            manifest.join("../target/bpf/nvcap.bpf.o")
        });
    println!("cargo::rerun-if-changed={}", built.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("nvcap.bpf.o");
    let object = fs::read(&built).unwrap_or_default();
    fs::write(out, object).expect("OUT_DIR is writable");
}
