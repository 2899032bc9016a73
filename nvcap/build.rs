//! Hands the commit to the program, which says it.
//!
//! It is that of the checkout, with `+changes` behind it where what the program is made of is not as it was
//! committed; else `unknown` (an unpacked archive). Whoever packs nvcap may name it in `NVCAP_COMMIT`.

use std::{
    env,
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

/// Files and folders that the program is made of. Tests and documents are not: each change of what is here builds it anew.
const SOURCES: [&str; 14] = [
    "nvcap/Cargo.toml",
    "nvcap/decode",
    "nvcap/lab",
    "nvcap/live",
    "nvcap/monitor",
    "nvcap/process",
    "nvcap/recording",
    "nvcap/show",
    "nvcap/src",
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
