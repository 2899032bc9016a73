//! Where captures and facts lie: the shared folder (`NVCAP_SHARED`, or `../shared` beside the repository), which is no
//! part of it, and the fixtures, which are.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};

/// A file of the shared folder; where it is not there (or this build cannot read it) that is said.
pub fn shared(path: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let root = std::env::var_os("NVCAP_SHARED").map_or_else(beside, PathBuf::from);
    let path = root.join(path);
    if path.extension().is_some_and(|e| e == "xz") && !cfg!(feature = "xz") {
        eprintln!("not run: built without the feature xz");
        return None;
    }
    if !path.exists() {
        eprintln!(
            "not run: {} is not there (set NVCAP_SHARED)",
            path.display()
        );
        return None;
    }
    Some(path)
}

/// A file of tests/fixtures.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name)
}
