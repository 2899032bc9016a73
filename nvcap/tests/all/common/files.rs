//! Where captures, facts and fixtures lie in the repository.

use std::path::{Path, PathBuf};

/// A file or folder of the repository, which a checkout has.
fn of_repository(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// A file of tests/captures; none where this build cannot read it.
pub fn capture(name: &str) -> Option<PathBuf> {
    if name.ends_with(".xz") && !cfg!(feature = "xz") {
        println!("NOT RUN {name}: built without the feature xz");
        return None;
    }
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

/// As [`fixture`], of one that is compressed by xz; none where this build cannot read it.
pub fn xz_fixture(name: &str) -> Option<PathBuf> {
    cfg!(feature = "xz").then(|| fixture(name))
}
