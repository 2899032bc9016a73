//! The file that the user names with `-o`: opened so that no data is lost and no other user can misuse it.
//!
//! - An existing file is emptied at the first write, not before: a wrong process id on the command line destroys nothing.
//!   A new file to which nothing was written is removed.
//! - Nothing is written over what is there (`Named::unused`), unless the user says so (`Named::over`): the output gets a name with a number
//!   instead. A file that nvcap writes is locked, so that two of them never write into one; and what another program has put into it, or in
//!   its place, before the first write stays as it is.
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use place::Place;

use super::folder;
use super::message::tell;
use super::which::LINKS;

/// The greatest number that the name of a recording gets.
const NUMBERS: u32 = 9999;

/// Flags that make a new file.
const NEW: libc::c_int = WRITTEN | libc::O_CREAT | libc::O_EXCL;
/// Flags of a file that is written: behind what is there, so that nothing is lost of what another program writes at the same time.
const WRITTEN: libc::c_int = libc::O_WRONLY | libc::O_APPEND;

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

/// Claim of an output to the file at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// Contents that are there by the first write are written over: the user has said so.
    Over,
    /// Contents that are there by the first write stay: the output goes elsewhere.
    Unused,
    /// Contents that are there by the first write stay, as for `Unused`; but where the file has gone by then, the output is lost.
    Recording,
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct Named {
    /// The file; [`Named::begin`] comes before the first write.
    pub file: File,
    /// True if the file can be cut back to an earlier length: not if it is no regular file, was inherited, or has another handle.
    pub regular: bool,
    /// True once `file` is the one that the output has moved to.
    has_moved: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    start: Start,
    claim: Claim,
    /// True if the output stays in its file, also where that has gone: a recording, whose end tells it.
    stays: bool,
    /// Bytes that all handles wrote; none where it is no regular file, or was inherited.
    written: Option<u64>,
    /// True once another program has written to it, or has cut it.
    spoiled: bool,
    /// The path that was asked for.
    asked: PathBuf,
    place: Place,
    /// The file that the output has moved to.
    moved: Option<File>,
}

impl State {
    /// Tells whether another program has put something into the file, or in its place.
    fn is_taken(&self, file: &File) -> bool {
        let has_content = file.metadata().is_ok_and(|m| m.len() > 0);
        has_content || self.claim == Claim::Unused && !self.place.is_there()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.start == Start::New
            && self.place.is_there()
            && self.place.path.metadata().is_ok_and(|m| m.len() == 0)
        {
            let _ = std::fs::remove_file(&self.place.path);
        }
    }
}

impl Named {
    /// Opens the file. From the first write on a regular file is readable by its owner alone.
    ///
    /// # Errors
    /// When it cannot be opened, is a directory, or is not the user's own.
    fn open(path: &Path, claim: Claim) -> io::Result<Self> {
        let asked = path;
        let mut path = path.to_owned();
        for _ in 0..LINKS {
            if let Some(own) = descriptor(&path) {
                // A stream that this program inherited, named by its path (/dev/stdout): writing continues at its position. By the
                // kernel's own path: a link on the way may lead elsewhere by now.
                let file = open_inherited(&own)?;
                return Self::new(file, (asked, path), Start::Going, claim);
            }
            match open(&path) {
                Ok((file, start)) => return Self::new(file, (asked, path), start, claim),
                Err(e) if e.raw_os_error() == Some(libc::ELOOP) => path = follow(&path)?,
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    /// Opens the file, whose content is emptied at the first write.
    ///
    /// # Errors
    /// When it cannot be opened, is a directory, or is not the user's own; `WouldBlock` where another program writes there.
    pub(crate) fn over(path: &Path) -> io::Result<Self> {
        let named = Self::open(path, Claim::Over)?;
        match named.regular && !named.lock() {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(named),
        }
    }

    /// Opens the file for a recording, whose content is emptied at the first write.
    ///
    /// # Errors
    /// As [`Named::over`].
    pub(crate) fn over_for_recording(path: &Path) -> io::Result<Self> {
        let named = Self::over(path)?;
        named.state().stays = true;
        Ok(named)
    }

    /// Opens the file, unless there is something in it, or another program writes there: then a new one beside it, NAME.2.EXTENSION or the
    /// first number behind it that is free. `recording`: a file that has gone before the first write is not made again.
    ///
    /// # Errors
    /// When none can be opened, or it is not the user's own.
    pub(crate) fn unused(path: &Path, recording: bool) -> io::Result<Self> {
        let claim = match recording {
            true => Claim::Recording,
            false => Claim::Unused,
        };
        let is_used = |named: &Self| {
            let empty = named.file.metadata().map(|m| m.len() == 0);
            named.regular && !(empty.unwrap_or(false) && named.lock())
        };
        let named = Self::open(path, claim)?;
        if !is_used(&named) {
            return Ok(named);
        }
        // Whoever has it, has it also where it was made here.
        named.state().start = Start::Going;
        drop(named);
        for number in 2..=NUMBERS {
            match Self::created(&numbered(path, number), claim) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes a new file for a recording.
    ///
    /// # Errors
    /// `AlreadyExists` where there is something at the path; when it cannot be made.
    pub(crate) fn first(path: &Path) -> io::Result<Self> {
        Self::created(path, Claim::Recording)
    }

    fn created(path: &Path, claim: Claim) -> io::Result<Self> {
        let file = folder::open(path, NEW)?;
        let named = Self::new(file, (path, path.to_owned()), Start::New, claim)?;
        named.lock();
        Ok(named)
    }

    /// Locks a file that is written; false where another program has locked it.
    fn lock(&self) -> bool {
        lock(&self.file)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path that it was opened by, behind links.
    pub(crate) fn path(&self) -> PathBuf {
        self.state().place.path.clone()
    }

    /// Returns the place of the file.
    pub(crate) fn place(&self) -> Place {
        self.state().place.clone()
    }

    fn new(
        file: File,
        (asked, path): (&Path, PathBuf),
        start: Start,
        claim: Claim,
    ) -> io::Result<Self> {
        let meta = file.metadata()?;
        let kind = meta.file_type();
        if start == Start::Old {
            if kind.is_file() || kind.is_fifo() {
                is_own(&meta)?;
            }
            if kind.is_file() && meta.nlink() > 1 {
                return Err(refused(has_names(meta.nlink())));
            }
        }
        let start = if kind.is_file() { start } else { Start::Going };
        Ok(Self {
            file,
            regular: kind.is_file() && start != Start::Going,
            has_moved: false,
            state: Arc::new(Mutex::new(State {
                start,
                claim,
                stays: claim == Claim::Recording,
                written: (kind.is_file() && start != Start::Going).then_some(0),
                spoiled: false,
                asked: asked.to_owned(),
                place: Place::of(path, &meta),
                moved: None,
            })),
        })
    }

    /// Prepares the file for what is written next: empties what was there, if that was asked for; else leaves it as it is, and goes to another file,
    /// which is told.
    ///
    /// # Errors
    /// When that cannot be done.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.state);
        let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let start = std::mem::replace(&mut state.start, Start::Going);
        if start != Start::Going && state.claim != Claim::Over && state.is_taken(&self.file) {
            // A new one in any case: what is there now may be a FIFO, or a link to a device.
            let mut other = Self::created_beside(&state.asked, state.claim)?;
            other.begin()?;
            // Where the file had gone it is made again.
            if other.path() != state.place.path {
                tell(format_args!(
                    "another program has written to {} meanwhile: what nvcap writes goes into {}",
                    state.place.path.display(),
                    other.path().display()
                ));
            }
            state.place = other.place();
            state.moved = Some(other.file.try_clone()?);
        } else if start == Start::Old {
            self.file.set_permissions(Permissions::from_mode(0o600))?;
            self.file.set_len(0)?;
        }
        if let (Some(moved), false) = (&state.moved, self.has_moved) {
            self.file = moved.try_clone()?;
            self.has_moved = true;
        }
        Ok(())
    }

    /// Takes note of bytes that were written to a regular file, or of its length where it was cut back.
    pub(crate) fn note(&self, length: impl FnOnce(u64) -> u64) {
        let mut state = self.state();
        state.written = state.written.map(length);
    }

    /// Tells whether another program has written to the file, or has cut it: its length is not what all handles wrote. Nothing may be written from
    /// then on.
    pub(crate) fn is_spoiled(&self) -> bool {
        let length = self.file.metadata().ok().map(|m| m.len());
        let mut state = self.state();
        state.spoiled |= state.written.zip(length).is_some_and(|(w, l)| w != l);
        state.spoiled
    }

    /// Moves the output to a new file, with all that was written, where the file has gone: another program has replaced or removed it. A
    /// recording stays where it is, and is lost, which its end tells. False where nothing was moved.
    ///
    /// # Errors
    /// When no file can be made or has no room: then nothing is left of it.
    pub(crate) fn save(&mut self) -> io::Result<bool> {
        let about = self.file.metadata();
        let asked = {
            let state = self.state();
            let has_no_name = match state.place.counts_names {
                true => about.is_ok_and(|m| m.nlink() == 0),
                // Some file systems say 0 of every file, and have numbers that change.
                false => state.place.has_gone(),
            };
            if !has_no_name || state.stays || state.place.is_there() {
                return Ok(false);
            }
            state.asked.clone()
        };
        let other = Self::created_beside(&asked, Claim::Unused)?;
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        if let Err(e) = File::open(own).and_then(|mut own| io::copy(&mut own, &mut &other.file)) {
            // Dropped empty, it is removed.
            let _ = other.file.set_len(0);
            return Err(e);
        }
        other.state().start = Start::Going;
        tell(format_args!(
            "another program has replaced or removed {} meanwhile: what nvcap writes is in {}",
            self.path().display(),
            other.path().display()
        ));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.place = other.place();
        state.moved = Some(other.file.try_clone()?);
        self.file = other.file.try_clone()?;
        self.has_moved = true;
        Ok(true)
    }

    /// Makes a new file of this name, or of the first one with a number that can be made: what is there is not touched, whatever it is.
    fn created_beside(asked: &Path, claim: Claim) -> io::Result<Self> {
        let first = Self::created(asked, claim);
        (2..=NUMBERS).fold(first, |made, number| match made {
            Err(e) if number == 2 || e.kind() == io::ErrorKind::AlreadyExists => {
                Self::created(&numbered(asked, number), claim)
            }
            made => made,
        })
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
            has_moved: self.has_moved,
            state: self.state.clone(),
        })
    }
}

/// Locks a file or a folder until it is closed; false where another program has locked it. Some file systems have no locks: true there.
pub(crate) fn lock(file: &File) -> bool {
    // SAFETY: an open descriptor; the lock ends with it.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    locked == 0 || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock
}

fn has_names(names: u64) -> String {
    format!(
        "it is one of {names} names of the same file, whose content all of them would lose; name another file, or remove this name first"
    )
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
        let flags = WRITTEN | libc::O_NOFOLLOW;
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

/// Returns a file that was opened without waiting, with writes that wait.
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
pub(super) fn descriptor(path: &Path) -> Option<PathBuf> {
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

/// Puts a new file in the place of the one at a path, whole or not at all; see `folder::replace`. `is_own` tells of the file that is there
/// whether it may be replaced.
///
/// # Errors
/// When it cannot be made there, or something other than a file is there; `AlreadyExists` where a file is there that may not be replaced.
pub fn replace(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    is_own: &dyn Fn(File) -> bool,
) -> io::Result<()> {
    folder::replace(path, bytes, mode, is_own)
}

/// Renames a file, unless there is one of the new name.
///
/// # Errors
/// `AlreadyExists` where there is one; when it cannot be renamed.
pub fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    folder::rename_to_new(from, to)
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

/// Obstacle to writing an output into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// There is something in it.
    Content,
    /// The file has this number of names.
    Names(u64),
    /// Another program writes there.
    Writer,
}

/// Returns the obstacle to writing an output to this path. None for an empty file, for what is no regular file, for one that this program
/// inherited (/dev/stdout), and for one that cannot be written to. `force`: content is none.
pub fn obstacle(path: &Path, force: bool) -> Option<Obstacle> {
    // Looked at first, for a FIFO that nobody reads would be waited for.
    let about = path.metadata().ok().filter(Metadata::is_file)?;
    let named = match Named::open(path, Claim::Over) {
        Err(_) if about.nlink() > 1 && is_own(&about).is_ok() => {
            return Some(Obstacle::Names(about.nlink()));
        }
        named => named.ok().filter(|named| named.regular)?,
    };
    let has_content = named.file.metadata().is_ok_and(|m| m.len() > 0);
    if has_content && !force {
        return Some(Obstacle::Content);
    }
    (!named.lock()).then_some(Obstacle::Writer)
}

mod place;
#[cfg(test)]
mod tests;
