//! The place of a file that is written.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

/// Place of a file that is written.
#[derive(Clone, Debug)]
pub struct Place {
    /// The path that it was opened by, behind links.
    pub path: PathBuf,
    pub(super) inode: (u64, u64),
    /// True if the file system counts the names of files.
    pub(super) counts_names: bool,
    /// Time at which it was made: a later file may get the number of its inode.
    born: Option<SystemTime>,
}

impl Place {
    pub(super) fn of(path: PathBuf, about: &Metadata) -> Self {
        Self {
            path,
            inode: (about.dev(), about.ino()),
            counts_names: about.nlink() > 0,
            born: about.created().ok(),
        }
    }

    /// Tells whether there is nothing at the path.
    pub(super) fn has_gone(&self) -> bool {
        let looked = self.path.symlink_metadata();
        looked.is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    }

    /// Tells whether the file is still there: not where it was removed, renamed or replaced meanwhile.
    pub fn is_there(&self) -> bool {
        let is_ours =
            |m: Metadata| (m.dev(), m.ino()) == self.inode && m.created().ok() == self.born;
        self.path.symlink_metadata().is_ok_and(is_ours)
    }
}
