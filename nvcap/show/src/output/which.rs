//! File that a path leads to, also where there is none yet. Two paths may be of one file by a link, by a second name, by another way to the same
//! folder, or by a stream that this program was started with.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// The most links that are followed one after the other: the kernel's own limit.
pub(super) const LINKS: u32 = 40;

/// A file. Two are equal if what is written to one is in the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhichFile {
    /// A file that is there, a FIFO or a pipe: its device and inode.
    There(u64, u64),
    /// A file that can be made: its path, without links.
    New(PathBuf),
    /// A device, a folder, or a path that leads nowhere: no output spoils it, or none can be made.
    Other,
}

impl WhichFile {
    /// Finds the file of a path; `-` is standard output.
    pub fn of(path: &Path) -> Self {
        let path = match path.as_os_str() == "-" {
            true => Path::new("/dev/stdout"),
            false => path,
        };
        match path.metadata() {
            Ok(about) => Self::there(&about),
            Err(_) => place_of(path, LINKS).map_or(Self::Other, Self::New),
        }
    }

    /// Finds the file that is read by this path; `-` is standard input.
    pub fn read_by(path: &Path) -> Self {
        match path.as_os_str() == "-" {
            true => Self::of(Path::new("/dev/stdin")),
            false => Self::of(path),
        }
    }

    /// Tells whether both are one file.
    pub fn is(&self, other: &Self) -> bool {
        *self != Self::Other && self == other
    }

    #[cfg(unix)]
    fn there(about: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

        let kind = about.file_type();
        match kind.is_file() || kind.is_fifo() || kind.is_socket() {
            true => Self::There(about.dev(), about.ino()),
            false => Self::Other,
        }
    }

    #[cfg(not(unix))]
    fn there(_: &std::fs::Metadata) -> Self {
        Self::Other
    }
}

/// Tells whether two paths name the same file, which is there.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let one = WhichFile::of(one);
    matches!(one, WhichFile::There(..)) && one == WhichFile::of(other)
}

/// Tells whether a file is, or would be made, below this folder.
pub fn is_below(file: &Path, folder: &Path) -> bool {
    let whole = |path: &Path| place_of(path, LINKS);
    matches!((whole(file), whole(folder)), (Some(file), Some(folder)) if file.starts_with(&folder))
}

/// Returns the path without links, also for a file that is not there yet, and for one whose folder is not.
fn place_of(path: &Path, links: u32) -> Option<PathBuf> {
    if let Ok(whole) = path.canonicalize() {
        return Some(whole);
    }
    let links = links.checked_sub(1)?;
    if let Ok(to) = path.read_link() {
        return place_of(&folder_of(path).join(to), links);
    }
    let name = match path.components().next_back()? {
        Component::Normal(name) => name.to_owned(),
        // What is above a folder that is not there: as if it were no link.
        Component::ParentDir => {
            let below = place_of(folder_of(path), links)?;
            return below.parent().map(Path::to_owned);
        }
        _ => OsString::new(),
    };
    Some(place_of(folder_of(path), links)?.join(name))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_has_many_names() {
        let root = std::env::temp_dir().join(format!("nvcap-which-{}", std::process::id()));
        fs::create_dir_all(root.join("folder")).unwrap();
        let at = |name: &str| root.join(name);
        fs::write(at("there"), "x").unwrap();
        fs::hard_link(at("there"), at("second")).unwrap();
        symlink("there", at("link")).unwrap();
        symlink("folder", at("way")).unwrap();
        symlink("way/new", at("dangling")).unwrap();
        symlink("around", at("around")).unwrap();
        for (one, other, same) in [
            ("there", "second", true),
            ("there", "link", true),
            ("there", "folder/../there", true),
            ("new", "./folder/../new", true),
            ("way/new", "folder/new", true),
            ("way/new", "dangling", true),
            ("none/a/new", "none/a/b/../new", true),
            ("none/new", "none/other", false),
            ("there", "new", false),
            ("folder", "way", false),
            ("around", "around", false),
        ] {
            let is = WhichFile::of(&at(one)).is(&WhichFile::of(&at(other)));
            assert_eq!(is, same, "{one} {other}");
        }
        assert!(is_same(&at("there"), &at("second")) && !is_same(&at("new"), &at("new")));
        assert!(!WhichFile::of(Path::new("/dev/null")).is(&WhichFile::of(Path::new("/dev/null"))));
        assert!(
            is_below(&at("folder/a/b"), &at("way")) && !is_below(&at("folders/a"), &at("folder"))
        );
        fs::remove_dir_all(root).unwrap();
    }
}
