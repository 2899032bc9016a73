//! File that passes known stores from trace to trace.
//!
//! The file and its folder must belong to the user who runs nvcap, and no other user may write there; links are not followed. The file
//! is written anew beside the old one and renamed, so that a trace that reads meanwhile gets one of them whole. If a condition is not
//! met, or the file cannot be read, there are no known stores. A trace then costs as much as without the file; a line at debug level
//! has the reason.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::store::{KnownStore, merge, parse, text};

/// The most bytes of the file that are read.
const MOST_BYTES: u64 = 64 << 10;

/// A file of known stores.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    path: PathBuf,
}

impl Cache {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads the stores; none where the file cannot be read.
    pub(crate) fn read(&self) -> Vec<KnownStore> {
        match self.try_read() {
            Ok(stores) => stores,
            Err(e) => {
                log::debug!(
                    "known stores are not read from {}: {e}",
                    self.path.display()
                );
                Vec::new()
            }
        }
    }

    fn try_read(&self) -> io::Result<Vec<KnownStore>> {
        is_own(&fs::symlink_metadata(folder(&self.path)?)?)?;
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.path)?;
        let about = file.metadata()?;
        is_own(&about)?;
        if !about.is_file() || about.len() > MOST_BYTES {
            return Err(io::Error::other("it is no file, or too large"));
        }
        let mut text = String::new();
        file.take(MOST_BYTES).read_to_string(&mut text)?;
        Ok(parse(&text))
    }

    /// Adds stores to the file.
    pub(crate) fn write(&self, stores: &[KnownStore]) {
        if let Err(e) = self.try_write(stores) {
            log::debug!(
                "known stores are not written to {}: {e}",
                self.path.display()
            );
        }
    }

    fn try_write(&self, stores: &[KnownStore]) -> io::Result<()> {
        let folder = folder(&self.path)?;
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => is_own(&fs::symlink_metadata(folder)?)?,
        }
        // Another trace may have written others meanwhile.
        let mut all = self.read();
        for store in stores {
            merge(&mut all, store.clone());
        }
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(name);
        // What a trace that was killed has left.
        let _ = fs::remove_file(&beside);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&beside)?;
        let written = write_whole(file, &text(&all)).and_then(|()| fs::rename(&beside, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written
    }
}

fn write_whole(mut file: File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())
}

fn folder(path: &Path) -> io::Result<&Path> {
    let folder = path.parent().filter(|_| path.is_absolute());
    folder.ok_or_else(|| io::Error::other("the path is not absolute"))
}

/// Fails if the file is a link, is another user's, or may be written by others.
fn is_own(about: &fs::Metadata) -> io::Result<()> {
    // SAFETY: reads an id.
    let user = unsafe { libc::geteuid() };
    if about.is_symlink() || about.uid() != user || about.mode() & 0o022 != 0 {
        return Err(io::Error::other(
            "it or its folder is a link, another user's, or others may write it",
        ));
    }
    Ok(())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::store::tests::known;
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// A folder for one test, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(of: &str) -> Self {
            let name = format!("nvcap-known-stores-{of}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn stores_go_from_trace_to_trace() {
        let folder = Folder::new("handed");
        let cache = Cache::new(folder.0.join("own").join("stores"));
        assert_eq!(cache.read(), []);
        let (one, other) = (known("b01", 0x10), known("b02", 0x20));
        cache.write(std::slice::from_ref(&one));
        cache.write(std::slice::from_ref(&other));
        assert_eq!(cache.read(), [one, other]);
        let mode = fs::metadata(&cache.path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let left = fs::read_dir(folder.0.join("own")).unwrap().count();
        assert_eq!(left, 1, "nothing is left beside it");
    }

    #[test]
    fn nothing_of_others_is_read_or_written() {
        let folder = Folder::new("others");
        let own = folder.0.join("own");
        let cache = Cache::new(own.join("stores"));
        cache.write(&[known("b01", 0x10)]);
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&cache.path, 0o622);
        assert_eq!(cache.read(), []);
        mode(&cache.path, 0o600);
        mode(&own, 0o777);
        assert_eq!(cache.read(), []);
        mode(&own, 0o700);
        assert_eq!(cache.read().len(), 1);
        // A link in the place of the file, or of its folder.
        let elsewhere = folder.0.join("elsewhere");
        fs::rename(&cache.path, &elsewhere).unwrap();
        symlink(&elsewhere, &cache.path).unwrap();
        assert_eq!(cache.read(), []);
        let linked = folder.0.join("linked");
        symlink(&own, &linked).unwrap();
        let through = Cache::new(linked.join("new"));
        through.write(&[known("b01", 0x10)]);
        assert!(!own.join("new").exists());
        // The link itself is replaced, not what it leads to.
        let before = fs::read(&elsewhere).unwrap();
        cache.write(&[known("b02", 0x20)]);
        assert_eq!(fs::read(&elsewhere).unwrap(), before);
        assert_eq!(cache.read(), [known("b02", 0x20)]);
        assert_eq!(Cache::new("stores".into()).read(), []);
    }

    #[test]
    fn what_is_too_large_or_no_text_is_not_read() {
        let folder = Folder::new("large");
        let cache = Cache::new(folder.0.join("stores"));
        cache.write(&[known("b01", 0x10)]);
        let text = fs::read_to_string(&cache.path).unwrap();
        fs::write(
            &cache.path,
            text.clone() + &"\n".repeat(MOST_BYTES as usize),
        )
        .unwrap();
        assert_eq!(cache.read(), []);
        fs::write(&cache.path, [0xff; 100]).unwrap();
        assert_eq!(cache.read(), []);
        fs::write(&cache.path, text + "b01 nonsense\n").unwrap();
        assert_eq!(cache.read().len(), 1);
    }
}
