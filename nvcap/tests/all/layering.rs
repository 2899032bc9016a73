//! The order of the files of each crate: no file imports, over whatever way, itself; and no file is too long to be read at once. The order of the
//! crates is Cargo's.
//!
//! Test code (`#[cfg(test)]`) may import what it likes. A re-export (`pub use`) is no import: who uses what it names imports the
//! file that the item stands in.

mod imports;

use std::path::{Path, PathBuf};

use imports::Imports;

/// The top of the repository.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The crates of the repository whose files may not import each other in a circle: their first files.
const CRATES: &[&str] = &[
    "nvcap/src/lib.rs",
    "nvcap/src/main.rs",
    "nvcap/decode/src/lib.rs",
    "nvcap/recording/src/lib.rs",
    "nvcap/process/src/lib.rs",
    "nvcap/live/src/lib.rs",
    "nvcap/show/src/lib.rs",
    "nvcap/monitor/src/lib.rs",
    "nvcap/lab/src/lib.rs",
    "nvcap-common/src/lib.rs",
    "nvcap-ebpf/src/main.rs",
    "xtask/src/main.rs",
    "tests/compare/src/main.rs",
    "tests/hostile/src/main.rs",
    "tests/live/src/lib.rs",
    "tests/softgpu/src/lib.rs",
];

fn imports(first: &str) -> Imports {
    Imports::of(&top().join(first)).unwrap_or_else(|e| panic!("{first}: {e}"))
}

#[test]
fn no_circles() {
    let mut circles = Vec::new();
    for first in CRATES {
        let imports = imports(first);
        for circle in imports.circles() {
            circles.push(format!("{first}: {}", circle.join(" and ")));
            for file in &circle {
                let others = imports.files()[file].iter().filter(|o| circle.contains(o));
                let others: Vec<&str> = others.map(String::as_str).collect();
                circles.push(format!("    {file} imports {}", others.join(" and ")));
            }
        }
    }
    assert!(
        circles.is_empty(),
        "files that import each other:\n{}",
        circles.join("\n")
    );
}

/// Lines that a file of the program may have.
const MOST_LINES: usize = 600;

/// The Rust files below a folder.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn no_file_of_the_program_is_long() {
    let mut files = Vec::new();
    for first in CRATES.iter().filter(|first| !first.starts_with("tests/")) {
        let folder = top().join(first);
        rust_files(folder.parent().expect("a folder"), &mut files);
    }
    assert!(files.len() > 100, "{files:?}");
    let lines = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).expect("a file that was listed");
        text.lines().count()
    };
    files.retain(|file| lines(file) > MOST_LINES);
    assert!(
        files.is_empty(),
        "files of more than {MOST_LINES} lines: {files:?}"
    );
}

/// Tests what the other tests rest on: imports are found however they are written.
#[test]
fn imports_are_found() {
    let folder = std::env::temp_dir().join(format!("nvcap-layering-{}", std::process::id()));
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().expect("in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write("lib.rs", "mod a; mod b; mod c; mod d; mod e;");
    write("a.rs", "use crate::b::inner::Deep; fn f(_: Deep) {}");
    write("b/mod.rs", "pub mod inner; pub use inner::Deep;");
    write("b/inner.rs", "pub struct Deep; fn g() { crate::c::h(); }");
    // By a re-export, from a macro's arguments, and only in tests.
    write("c.rs", "pub fn h() { println!(\"{}\", crate::d::I); }");
    write(
        "d.rs",
        "use super::b; pub const I: u8 = 0; pub type J = b::Deep;",
    );
    write(
        "e.rs",
        "#[cfg(test)] mod tests { use crate::a::f; } #[cfg(test)] use crate::c::h;",
    );
    let imports = Imports::of(&folder.join("lib.rs")).expect("it is understood");
    let circles = imports.circles();
    let files = imports.files();
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    let of = |file: &str| files[file].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of("a.rs"), ["b/inner.rs"]);
    assert_eq!(of("b/inner.rs"), ["c.rs"]);
    assert_eq!(of("c.rs"), ["d.rs"]);
    assert_eq!(of("d.rs"), ["b/inner.rs"]);
    assert_eq!(of("e.rs"), [""; 0]);
    assert_eq!(circles, [["b/inner.rs", "c.rs", "d.rs"]]);
}
