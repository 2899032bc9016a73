//! Sets the architecture of the traced process (`nvcap_arch`), whose registers the shared types hold. For BPF programs it
//! is the one that `nvcap-ebpf` sets, for other builds the target's.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CARGO_CFG_BPF_TARGET_ARCH");
    println!("cargo::rustc-check-cfg=cfg(nvcap_arch, values(\"x86_64\", \"aarch64\"))");
    let target = var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let arch = match target.as_str() {
        "bpf" => var("CARGO_CFG_BPF_TARGET_ARCH").unwrap_or_else(|_| {
            let host = var("HOST").expect("cargo sets it");
            host.split('-').next().unwrap_or_default().to_owned()
        }),
        _ => target,
    };
    println!("cargo::rustc-cfg=nvcap_arch=\"{arch}\"");
}
