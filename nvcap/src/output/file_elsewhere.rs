//! The file that the user names with `-o`, on systems other than Linux: emptied when it is opened.

use std::fs::File;
use std::io;
use std::path::Path;

/// An opened file.
#[derive(Debug)]
pub struct Named {
    /// The file.
    pub file: File,
    /// Whether the file can be cut back to an earlier length: not if it is no regular file, or has another handle.
    pub regular: bool,
}

impl Named {
    /// Opens the file.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        let regular = file.metadata()?.is_file();
        Ok(Self { file, regular })
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
        })
    }
}

/// Whether two paths name the same file.
pub fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
