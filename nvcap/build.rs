//! Hands the compiled BPF object to the library, which embeds it, and the commit to the program, which says it.
//!
//! The object lies built in `prebuilt/` (that of `nvcap-ebpf/`), one for each processor: no BPF toolchain is needed. `cargo xtask bpf` makes
//! them; where the sources have changed since, a warning says so. `NVCAP_BPF_OBJECT` names another one.
//!
//! The commit is that of the checkout, with `+changes` behind it where what the program is made of is not as it was
//! committed; else `unknown` (an unpacked archive). Whoever packs nvcap may name it in `NVCAP_COMMIT`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=NVCAP_COMMIT");
    let commit = env::var("NVCAP_COMMIT").ok().filter(|c| is_commit(c));
    let commit = commit.or_else(|| checked_out(&manifest.join("..")));
    println!(
        "cargo::rustc-env=NVCAP_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
    println!("cargo::rerun-if-env-changed=NVCAP_BPF_OBJECT");
    if env::var_os("CARGO_FEATURE_TRAP").is_none() {
        return;
    }
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

/// Warns where the prebuilt BPF programs are of other sources than those beside them.
fn warn_of_changes(manifest: &Path) {
    let versions = manifest.join("prebuilt/VERSIONS");
    println!("cargo::rerun-if-changed={}", versions.display());
    let root = manifest.join("..");
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

fn is_commit(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// The commit of nvcap's own checkout: an archive may be unpacked within that of another project.
fn checked_out(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // What changes with the commit. A path that is not there would have this run at every build.
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(root, &["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"]).filter(|c| is_commit(c))?;
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let status = ["status", "--porcelain", "--"];
    let changes = git(root, &[&status[..], &SOURCES].concat()).unwrap_or_default();
    Some(match changes.is_empty() {
        true => commit,
        false => commit + "+changes",
    })
}

/// What the program is made of. Tests and documents are not: each change of what is here builds it anew.
const SOURCES: [&str; 8] = [
    "nvcap/src",
    "nvcap/facts",
    "nvcap/Cargo.toml",
    "nvcap-common/src",
    "nvcap-ebpf/src",
    "nvcap-ebpf/prebuilt",
    "Cargo.toml",
    "Cargo.lock",
];

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .current_dir(root)
        // Of a hook that builds.
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
