//! The file that the user names with `-o`, on systems other than Linux: emptied when it is opened.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// An opened file.
#[derive(Debug)]
pub struct Named {
    /// The file.
    pub file: File,
    /// True if the file can be cut back to an earlier length: not if it is no regular file, or has another handle.
    pub regular: bool,
    path: PathBuf,
}

/// Place of a file that is written.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its path.
    pub path: PathBuf,
}

impl Place {
    /// Tells whether the file is still there.
    pub fn is_there(&self) -> bool {
        self.path.exists()
    }
}

impl Named {
    /// Opens the file.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        let regular = file.metadata()?.is_file();
        let path = path.to_owned();
        Ok(Self {
            file,
            regular,
            path,
        })
    }

    /// The same: no live trace is recorded here.
    ///
    /// # Errors
    /// As [`Named::open`].
    pub fn unused(path: &Path) -> io::Result<Self> {
        Self::open(path)
    }

    /// Locks nothing.
    pub fn lock(&self) -> bool {
        true
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the place of the file.
    pub fn place(&self) -> Place {
        Place {
            path: self.path.clone(),
        }
    }

    /// To be called before something is written.
    ///
    /// # Errors
    /// None here.
    pub fn begin(&self) -> io::Result<()> {
        Ok(())
    }

    /// A second handle of the same file: both write at one common position.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub fn again(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            regular: false,
            path: self.path.clone(),
        })
    }
}

/// Checks nothing.
///
/// # Errors
/// None here.
pub fn check_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Tells whether two paths name the same file.
pub fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
