//! Places of captures, facts and fixtures in the repository.

use std::path::{Path, PathBuf};

/// A file or folder of the repository, which a checkout has.
fn of_repository(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// A file of tests/captures.
pub fn capture(name: &str) -> Option<PathBuf> {
    has_xz();
    Some(of_repository(&format!("tests/captures/{name}")))
}

/// A table of facts, or a folder of them.
pub fn facts(path: &str) -> PathBuf {
    of_repository(&format!("facts/{path}"))
}

/// A file of tests/fixtures.
pub fn fixture(name: &str) -> PathBuf {
    of_repository(&format!("tests/fixtures/{name}"))
}

/// As [`fixture`], of one that is compressed by xz.
pub fn xz_fixture(name: &str) -> Option<PathBuf> {
    has_xz();
    Some(fixture(name))
}

/// Captures and fixtures are compressed by xz: without it a test would have nothing to read. Cargo.toml says so, too.
fn has_xz() {
    if !cfg!(feature = "xz") {
        panic!("these tests need the feature xz");
    }
}
