//! The file that the user names with `-o`: opened so that no data is lost and no other user can misuse it.
//!
//! - An existing file is emptied at the first write, not before: a wrong process id on the command line destroys nothing.
//!   A new file to which nothing was written is removed.
//! - A recording is not written over another one (`Named::unused`): it gets a name with a number instead.
//! - The file must be the user's own. Refused are another user's files, files behind another user's symbolic link, and files
//!   with a second name. Otherwise, if root writes into a folder in which another user may write (/tmp, that user's home), that
//!   user could make nvcap overwrite any file by a link, or could read the trace in a file prepared for it. For links above the file
//!   see `folder`.
//! - A FIFO that nobody reads is waited for, which is said.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::folder;
use super::message::tell;

/// The greatest number that the name of a recording gets.
const NUMBERS: u32 = 9999;

/// Flags that make a new file.
const NEW: libc::c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;

/// Action that is due before the first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Empty the file: it existed before.
    Old,
    /// Nothing; but the file was created for this output, and is removed if nothing is written.
    New,
    /// Nothing: writing has begun, or the target is inherited or no regular file.
    Going,
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct Named {
    /// The file; [`Named::begin`] comes before the first write.
    pub file: File,
    /// True if the file can be cut back to an earlier length: not if it is no regular file, was inherited, or has another handle.
    pub regular: bool,
    state: Arc<State>,
}

/// Place of a file that is written.
#[derive(Clone, Debug)]
pub struct Place {
    /// The path that it was opened by, behind links.
    pub path: PathBuf,
    inode: (u64, u64),
}

impl Place {
    /// Tells whether the file is still there: not where it was removed, renamed or replaced meanwhile.
    pub fn is_there(&self) -> bool {
        let is_ours = |m: std::fs::Metadata| (m.dev(), m.ino()) == self.inode;
        self.path.symlink_metadata().is_ok_and(is_ours)
    }
}

#[derive(Debug)]
struct State {
    start: Mutex<Start>,
    path: PathBuf,
    inode: (u64, u64),
}

impl State {
    fn take(&self) -> Start {
        let mut start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut start, Start::Going)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let is_ours = |m: std::fs::Metadata| (m.dev(), m.ino()) == self.inode;
        if self.take() == Start::New && self.path.symlink_metadata().is_ok_and(is_ours) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Named {
    /// Opens the file. From the first write on a regular file is readable by its owner alone.
    ///
    /// # Errors
    /// When it cannot be opened, is a directory, or is not the user's own.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut path = path.to_owned();
        for _ in 0..folder::LINKS {
            if let Some(own) = descriptor(&path) {
                // A stream that this program inherited, named by its path (/dev/stdout): writing continues at its position. By the
                // kernel's own path: a link on the way may lead elsewhere by now.
                let file = open_inherited(&own)?;
                return Self::new(file, path, Start::Going);
            }
            match open(&path) {
                Ok((file, start)) => return Self::new(file, path, start),
                Err(e) if e.raw_os_error() == Some(libc::ELOOP) => path = follow(&path)?,
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    /// Opens the file as [`Named::open`] does, unless there is something in it, or another program writes a recording there: then a
    /// new one beside it, NAME.2.EXTENSION or the first number behind it that is free.
    ///
    /// # Errors
    /// As [`Named::open`].
    pub(crate) fn unused(path: &Path) -> io::Result<Self> {
        let is_used = |named: &Self| {
            let empty = named.file.metadata().map(|m| m.len() == 0);
            named.regular && !(empty.unwrap_or(false) && named.lock())
        };
        let named = Self::open(path)?;
        if !is_used(&named) {
            return Ok(named);
        }
        for number in 2..=NUMBERS {
            let path = numbered(path, number);
            match folder::open(&path, NEW) {
                Ok(file) => {
                    let named = Self::new(file, path, Start::New)?;
                    named.lock();
                    return Ok(named);
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Locks a file into which a recording is written; false where another program has locked it.
    pub(crate) fn lock(&self) -> bool {
        // SAFETY: an open descriptor; the lock ends with it.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
    }

    /// The path that it was opened by, behind links.
    pub(crate) fn path(&self) -> &Path {
        &self.state.path
    }

    /// Returns the place of the file.
    pub(crate) fn place(&self) -> Place {
        Place {
            path: self.state.path.clone(),
            inode: self.state.inode,
        }
    }

    fn new(file: File, path: PathBuf, start: Start) -> io::Result<Self> {
        let meta = file.metadata()?;
        let kind = meta.file_type();
        if start == Start::Old {
            if kind.is_file() || kind.is_fifo() {
                is_own(&meta)?;
            }
            if kind.is_file() && meta.nlink() > 1 {
                return Err(refused(format!(
                    "it is one of {} names of the same file; name a new file, or remove it first",
                    meta.nlink()
                )));
            }
        }
        let start = if kind.is_file() { start } else { Start::Going };
        Ok(Self {
            file,
            regular: kind.is_file() && start != Start::Going,
            state: Arc::new(State {
                start: Mutex::new(start),
                path,
                inode: (meta.dev(), meta.ino()),
            }),
        })
    }

    /// To be called before something is written: empties what was there.
    ///
    /// # Errors
    /// When that cannot be done.
    pub(crate) fn begin(&self) -> io::Result<()> {
        if self.state.take() == Start::Old {
            self.file.set_permissions(Permissions::from_mode(0o600))?;
            self.file.set_len(0)?;
        }
        Ok(())
    }

    /// A second handle of the same file: both write at one common position.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub(crate) fn again(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            // The second handle does not know what the first one wrote, so it must not cut the file back.
            regular: false,
            state: self.state.clone(),
        })
    }
}

/// The path of a file with a number before its extension.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Opens what is there or makes a new one; never what a symbolic link leads to (ELOOP).
fn open(path: &Path) -> io::Result<(File, Start)> {
    // Twice: meanwhile another program may create or remove the file.
    for _ in 0..2 {
        let flags = libc::O_WRONLY | libc::O_NOFOLLOW;
        match folder::open(path, flags | libc::O_NONBLOCK) {
            Ok(file) => return Ok((waits(file)?, Start::Old)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {
                say_unread(path, e)?;
                // Another user's is refused by now. This ends when somebody reads it, or with a signal.
                return Ok((folder::open(path, flags)?, Start::Old));
            }
            Err(e) => return Err(e),
        }
        match folder::open(path, NEW) {
            Ok(file) => return Ok((file, Start::New)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Says that nvcap waits for a reader of this user's own FIFO.
///
/// # Errors
/// What opening it gave, `e`, where it is no FIFO; when it is another user's.
fn say_unread(path: &Path, e: io::Error) -> io::Result<()> {
    let about = folder::open(path, libc::O_PATH | libc::O_NOFOLLOW)?.metadata()?;
    if !about.file_type().is_fifo() {
        return Err(e);
    }
    is_own(&about)?;
    tell(format_args!(
        "{} is a FIFO that nobody reads: waiting until somebody does (Ctrl-C ends; -o - writes to standard output, for a pipe)",
        path.display()
    ));
    Ok(())
}

/// Opens one of this process's own open files for appending; never waits for a reader.
fn open_inherited(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let opened = options
        .append(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    match opened {
        Ok(file) => waits(file),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {
            let kind = path.metadata()?.file_type();
            Err(match kind.is_fifo() {
                true => io::Error::from_raw_os_error(libc::EPIPE),
                false => e,
            })
        }
        Err(e) => Err(e),
    }
}

/// A file that was opened without waiting, and at which a write waits.
fn waits(file: File) -> io::Result<File> {
    // SAFETY: an open descriptor; reads its flags and sets them without one.
    let set = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK)
    };
    match set {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Refuses what belongs to another user.
fn is_own(about: &Metadata) -> io::Result<()> {
    // SAFETY: reads an id.
    if about.uid() == unsafe { libc::geteuid() } {
        return Ok(());
    }
    Err(refused(format!(
        "it belongs to another user (uid {}); name a new file, or remove it first",
        about.uid()
    )))
}

/// The target of a symbolic link, if the user or the system made the link.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let link = folder::open(path, libc::O_PATH | libc::O_NOFOLLOW)?;
    let owner = link.metadata()?.uid();
    // Read through the opened link that is checked: by now the path may lead to another one.
    let to = folder::read_link(&link)?;
    let to = path.parent().unwrap_or(Path::new("")).join(to);
    // SAFETY: reads an id.
    if !folder::may_follow(owner, unsafe { libc::geteuid() }) {
        return Err(folder::another_users(path, owner, &to));
    }
    Ok(to)
}

/// The kernel's path of one of this process's own open files, where a path leads there.
fn descriptor(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?.canonicalize().ok()?;
    let own = Path::new("/proc/self/fd");
    (folder == own.canonicalize().ok()?).then_some(own.join(path.file_name()?))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Checks a folder in which files are to be made, as far as it is there: no link leads to it that root must not follow.
///
/// # Errors
/// When one does.
pub(crate) fn check_folder(folder: &Path) -> io::Result<()> {
    folder::check(folder)
}

/// Makes a new file, which its owner alone may read.
///
/// # Errors
/// When there is something at its path, or it cannot be made there.
pub fn new(path: &Path) -> io::Result<File> {
    folder::open(path, NEW)
}

/// Puts a new file in the place of the one at a path, whole or not at all; see `folder::replace`.
///
/// # Errors
/// When it cannot be made there, or something other than a file is there.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    folder::replace(path, bytes, mode)
}

/// Opens a regular file for reading; no link, and nothing that a reader would wait for.
///
/// # Errors
/// When it is none, or cannot be read.
pub fn plain(path: &Path) -> io::Result<File> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = folder::open(path, flags)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(folder::no_file()),
    }
}

/// Tells whether two paths name the same file.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let inode = |path: &Path| path.metadata().map(|m| (m.is_file(), m.dev(), m.ino()));
    matches!((inode(one), inode(other)), (Ok(a), Ok(b)) if a.0 && a == b)
}

/// Tells whether an output at this path would replace what is in a file. False for an empty file, for what is no regular file, for one that
/// this program inherited (/dev/stdout), and for one that cannot be written to.
pub fn would_be_replaced(path: &Path) -> bool {
    let has_content = |about: Metadata| about.is_file() && about.len() > 0;
    // Looked at first, for a FIFO that nobody reads would be waited for.
    path.metadata().is_ok_and(has_content)
        && Named::open(path)
            .is_ok_and(|named| named.regular && named.file.metadata().is_ok_and(has_content))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let own = format!("nvcap-file-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(own);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_there_stays_until_there_is_something_to_write() {
        let folder = Folder::new("old");
        let (old, new) = (folder.0.join("old"), folder.0.join("new"));
        fs::write(&old, "of yesterday").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        drop((Named::open(&old).unwrap(), Named::open(&new).unwrap()));
        assert_eq!(fs::read(&old).unwrap(), b"of yesterday");
        assert_eq!(old.metadata().unwrap().mode() & 0o777, 0o644);
        assert!(!new.exists(), "nothing came of it");
        for path in [&old, &new] {
            let named = Named::open(path).unwrap();
            let mut again = named.again().unwrap();
            named.begin().unwrap();
            (&named.file).write_all(b"of to").unwrap();
            again.begin().unwrap();
            again.file.write_all(b"day").unwrap();
            drop((named, again));
            assert_eq!(fs::read(path).unwrap(), b"of today");
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_recording_is_not_written_over_another() {
        let folder = Folder::new("unused");
        let at = |name: &str| folder.0.join(name);
        let first = Named::unused(&at("run.pcapng")).unwrap();
        // Nothing is in it yet, but somebody writes there.
        let second = Named::unused(&at("run.pcapng")).unwrap();
        let third = Named::unused(&at("run.pcapng")).unwrap();
        for (named, name) in [
            (&first, "run.pcapng"),
            (&second, "run.2.pcapng"),
            (&third, "run.3.pcapng"),
        ] {
            assert_eq!(named.path(), at(name));
        }
        for named in [&first, &second] {
            named.begin().unwrap();
            (&named.file).write_all(b"x").unwrap();
        }
        drop((first, second, third));
        assert!(!at("run.3.pcapng").exists(), "nothing came of it");
        let third = Named::unused(&at("run.pcapng")).unwrap();
        assert_eq!(third.path(), at("run.3.pcapng"));
        fs::write(at("empty"), "").unwrap();
        assert_eq!(Named::unused(&at("empty")).unwrap().path(), at("empty"));
        third.begin().unwrap();
        let place = third.place();
        assert!(place.is_there());
        fs::remove_file(&place.path).unwrap();
        assert!(!place.is_there());
        fs::write(&place.path, "another's").unwrap();
        assert!(!place.is_there());
    }

    #[test]
    fn a_link_is_followed_where_its_maker_may_be_trusted() {
        let folder = Folder::new("link");
        let (to, first, second) = (
            folder.0.join("to"),
            folder.0.join("first"),
            folder.0.join("second"),
        );
        symlink("to", &second).unwrap();
        symlink(&second, &first).unwrap();
        let named = Named::open(&first).unwrap();
        named.begin().unwrap();
        (&named.file).write_all(b"x").unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"x");
        let around = folder.0.join("around");
        symlink("around", &around).unwrap();
        assert!(Named::open(&around).is_err());
    }

    #[test]
    #[ignore = "needs root, who may give files away: cargo xtask test runs it as root"]
    fn links_and_files_of_other_users_are_refused() {
        // SAFETY: reads an id.
        if unsafe { libc::geteuid() } != 0 {
            println!("NOT RUN links_and_files_of_other_users_are_refused: it needs root");
            return;
        }
        let folder = Folder::new("others");
        let victim = folder.0.join("victim");
        fs::write(&victim, "precious").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o644)).unwrap();
        let planted = folder.0.join("planted");
        symlink("victim", &planted).unwrap();
        std::os::unix::fs::lchown(&planted, Some(65534), None).unwrap();
        let refused = Named::open(&planted).unwrap_err().to_string();
        assert!(
            refused.contains("symbolic link of another user"),
            "{refused}"
        );
        // One that all may write to, and that user's own.
        for (name, mode) in [("open", 0o1777), ("home", 0o755)] {
            let home = folder.0.join(name);
            fs::create_dir(&home).unwrap();
            fs::set_permissions(&home, Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&home, Some(65534), None).unwrap();
            let above = home.join("above");
            symlink(&folder.0, &above).unwrap();
            std::os::unix::fs::lchown(&above, Some(65534), None).unwrap();
            let real = folder.0.canonicalize().unwrap().join("output");
            let real = format!("the path that it leads to: {}", real.display());
            let output = above.join("output");
            let refused = [
                Named::open(&output).map(|_| ()),
                Named::unused(&output).map(|_| ()),
                new(&output).map(|_| ()),
                replace(&output, b"x", 0o644),
            ];
            for refused in refused.map(|r| r.unwrap_err().to_string()) {
                assert!(refused.ends_with(&real), "{refused}");
            }
            assert!(check_folder(&above.join("new")).is_err());
        }
        assert!(!folder.0.join("output").exists());
        let theirs = folder.0.join("theirs");
        fs::write(&theirs, "mine").unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
        let refused = Named::open(&theirs).unwrap_err().to_string();
        assert!(refused.contains("belongs to another user"), "{refused}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(victim.metadata().unwrap().mode() & 0o777, 0o644);
        assert_eq!(fs::read(&theirs).unwrap(), b"mine");
    }

    #[test]
    fn a_file_with_a_second_name_is_refused() {
        let folder = Folder::new("names");
        let (one, two) = (folder.0.join("one"), folder.0.join("two"));
        fs::write(&one, "precious").unwrap();
        fs::hard_link(&one, &two).unwrap();
        assert!(Named::open(&two).is_err());
        assert_eq!(fs::read(&one).unwrap(), b"precious");
        assert!(is_same(&one, &two) && !is_same(&one, &folder.0));
    }

    #[test]
    fn devices_and_given_streams_are_written_to_as_they_are() {
        for path in ["/dev/null", "/dev/stderr", "/proc/self/fd/2", "/dev/fd/2"] {
            match Named::open(Path::new(path)) {
                Ok(named) => {
                    assert!(!named.regular, "{path}");
                    named.begin().unwrap();
                }
                // A socket cannot be opened by name.
                Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENXIO), "{path}: {e}"),
            }
        }
    }
}
