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
    pub fn over(path: &Path) -> io::Result<Self> {
        Self::of(File::create(path)?, path)
    }

    /// Opens the file for a recording.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn over_for_recording(path: &Path) -> io::Result<Self> {
        Self::over(path)
    }

    /// Opens the file, which must not be there.
    ///
    /// # Errors
    /// When it is there, or cannot be made.
    pub fn unused(path: &Path, _recording: bool) -> io::Result<Self> {
        Self::first(path)
    }

    /// Makes a new file.
    ///
    /// # Errors
    /// When it is there, or cannot be made.
    pub fn first(path: &Path) -> io::Result<Self> {
        Self::of(File::create_new(path)?, path)
    }

    fn of(file: File, path: &Path) -> io::Result<Self> {
        let regular = file.metadata()?.is_file();
        let path = path.to_owned();
        Ok(Self {
            file,
            regular,
            path,
        })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Returns the place of the file.
    pub fn place(&self) -> Place {
        Place {
            path: self.path.clone(),
        }
    }

    /// Prepares the file for what is written next.
    ///
    /// # Errors
    /// None here.
    pub fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Takes no note.
    pub fn note(&self, _length: impl FnOnce(u64) -> u64) {}

    /// Tells nothing of other programs.
    pub fn is_spoiled(&self) -> bool {
        false
    }

    /// Leaves the output where it is.
    ///
    /// # Errors
    /// None here.
    pub fn save(&mut self) -> io::Result<bool> {
        Ok(false)
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

/// Locks nothing.
pub fn lock(_: &File) -> bool {
    true
}

/// Checks nothing.
///
/// # Errors
/// None here.
pub fn check_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Renames a file; two names are looked at one after the other.
///
/// # Errors
/// `AlreadyExists` where there is one of the new name; when it cannot be renamed.
pub fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match to.symlink_metadata() {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => std::fs::rename(from, to),
    }
}
