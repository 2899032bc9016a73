//! Sets the architecture whose registers the programs read: that of the build machine, unless `CARGO_CFG_BPF_TARGET_ARCH`
//! names another (the variable that aya-ebpf follows too).

fn main() {
    println!("cargo::rerun-if-env-changed=CARGO_CFG_BPF_TARGET_ARCH");
    println!("cargo::rustc-check-cfg=cfg(bpf_target_arch, values(\"x86_64\", \"aarch64\"))");
    let arch = std::env::var("CARGO_CFG_BPF_TARGET_ARCH").unwrap_or_else(|_| {
        let host = std::env::var("HOST").expect("cargo sets it");
        host.split('-').next().unwrap_or_default().to_owned()
    });
    println!("cargo::rustc-cfg=bpf_target_arch=\"{arch}\"");
}
