//! Files of a recording: one file, or numbered files, of which the oldest are removed (`--rotate`).

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::disk::{Disk, Request};
use crate::output::file::{self, Place};
use crate::output::message::tell;
use crate::output::writer::Output;

/// Bytes gathered before they are compressed.
const FRAME: usize = 1 << 20;
/// The most bytes of records that are repeated at the beginning of each further file, however large the files are.
const MOST_KEPT: u64 = 64 << 20;
/// Time after which a next file that could not be created for lack of room is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Digits of a file's number: at least, and at most.
const DIGITS: usize = 5;
const MOST_DIGITS: usize = 18;
/// Names of a file that are tried while other programs take them.
const TRIES: u32 = 1000;

/// Condition on which the next numbered file is begun, and number of files that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Bytes of the current file from which on the next is begun.
    pub bytes: Option<u64>,
    /// Age of the current file from which on the next is begun.
    pub time: Option<Duration>,
    /// Number of files of this recording that are kept, the one that is written included. Files that others wrote stay.
    pub keep: Option<usize>,
}

/// Files that a recording goes to.
pub struct Files {
    out: Output,
    /// Whole objects that wait to be compressed.
    pack: Option<Vec<u8>>,
    numbered: Option<Numbered>,
    /// Called with the path of each file that has its end.
    told: Option<Whole>,
    /// Brings the files to the disk; `None` if nobody asked for that.
    disk: Option<Disk>,
    /// Bytes of the current file that were there when it was last brought to the disk.
    brought: u64,
    /// Bytes of the current file (after compression).
    bytes: u64,
    begun: Instant,
    /// Number of objects that earlier files could not take.
    unwritten: u64,
    /// Number of objects that the current output was given.
    given: u64,
    /// True if the one file was removed, renamed or replaced: nothing of it is left.
    lost: bool,
    /// True if it was told that the next file could not be created for lack of room; and the time before which that is not tried again.
    told_of_next: bool,
    not_before: Option<Instant>,
}

/// Takes the path of a file that has its end. The file may be renamed or removed as soon as the call has returned.
pub(crate) type Whole = Box<dyn Fn(&Path)>;

/// Files with numbers.
struct Numbered {
    names: Names,
    rotation: Rotation,
    number: u64,
    /// Number of the file that was created to be the next.
    created: u64,
    /// The file that is written.
    place: Option<Place>,
    /// Files that this recording has written before, from the oldest on. No other is removed or renamed.
    written: VecDeque<(u64, Place)>,
}

impl Files {
    /// One file.
    pub fn one(out: Output, compressed: bool) -> Self {
        Self {
            out,
            pack: compressed.then(Vec::new),
            numbered: None,
            told: None,
            disk: None,
            brought: 0,
            bytes: 0,
            begun: Instant::now(),
            unwritten: 0,
            given: 0,
            lost: false,
            told_of_next: false,
            not_before: None,
        }
    }

    /// Numbered files: for `run.pcapng` they are `run.00001.pcapng` and so on. Numbers continue behind those of files that exist.
    ///
    /// # Errors
    /// When the first file cannot be created.
    pub fn numbered(path: &Path, rotation: Rotation, compressed: bool) -> io::Result<Self> {
        let names = Names::of(path);
        let (number, out) = names.create(1)?;
        if let (Some(keep), 2..) = (rotation.keep, number) {
            tell(format_args!(
                "there are files of an earlier recording: they stay, and {keep} files of this one are kept"
            ));
        }
        Ok(Self {
            numbered: Some(Numbered {
                names,
                rotation,
                number,
                created: number,
                place: out.place(),
                written: VecDeque::new(),
            }),
            ..Self::one(out, compressed)
        })
    }

    /// Calls `told` with each file that has its end, the one file or the numbered ones.
    pub fn telling(self, told: Whole) -> Self {
        Self {
            told: Some(told),
            ..self
        }
    }

    /// Brings what is written to the disk every few seconds, and each file at its end.
    ///
    /// # Errors
    /// When there are no more threads.
    pub fn on_disk(self) -> io::Result<Self> {
        Ok(self.with_disk(Disk::new()?))
    }

    pub(super) fn with_disk(self, disk: Disk) -> Self {
        Self {
            disk: Some(disk),
            ..self
        }
    }

    /// Asks for the current file to be brought to the disk, if that is due.
    pub(super) fn bring_some(&mut self) {
        if self.brought < self.bytes && self.disk.as_ref().is_some_and(Disk::is_due) {
            self.bring();
        }
    }

    /// Asks for the current file to be brought to the disk, as far as it is written.
    fn bring(&mut self) {
        self.brought = self.bytes;
        if let (Some(disk), Some(request)) = (&mut self.disk, request(&self.out)) {
            disk.bring(request);
        }
    }

    /// Tells whether the recording goes to numbered files.
    pub fn rotates(&self) -> bool {
        self.numbered.is_some()
    }

    /// The most bytes of records that are repeated at the beginning of each further file: a quarter of the file's size, at most
    /// [`MOST_KEPT`]. `None` for a recording in one file.
    pub(super) fn room_for_kept(&self) -> Option<usize> {
        let numbered = self.numbered.as_ref()?;
        let quarter = numbered.rotation.bytes.map_or(MOST_KEPT, |b| b / 4);
        usize::try_from(quarter.min(MOST_KEPT)).ok()
    }

    /// The buffer, for one object to be appended to.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        match &mut self.pack {
            Some(pack) => pack,
            None => self.out.object(),
        }
    }

    /// Ends the object that was appended.
    pub(super) fn end_object(&mut self) -> io::Result<()> {
        match &self.pack {
            Some(pack) if pack.len() >= FRAME => self.end_frame(),
            Some(_) => Ok(()),
            None => self.end_in_file(),
        }
    }

    fn end_in_file(&mut self) -> io::Result<()> {
        self.bytes += self.out.appended() as u64;
        self.given += 1;
        self.out.end_object()
    }

    /// Compresses the objects that wait into one frame, which can be unpacked without the other frames.
    fn end_frame(&mut self) -> io::Result<()> {
        let Some(pack) = self.pack.as_mut().filter(|p| !p.is_empty()) else {
            return Ok(());
        };
        compress(pack, self.out.object());
        pack.clear();
        self.end_in_file()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.end_frame()?;
        self.out.flush()
    }

    /// Returns the number of objects that could not be written, or are lost with their file.
    pub(super) fn unwritten(&self) -> u64 {
        match self.lost {
            true => self.given,
            false => self.unwritten + self.out.unshown(),
        }
    }

    /// Tells whether the next file is due.
    pub(super) fn is_over(&self) -> bool {
        let Some(Numbered { rotation, .. }) = &self.numbered else {
            return false;
        };
        if self.not_before.is_some_and(|t| Instant::now() < t) {
            return false;
        }
        rotation.bytes.is_some_and(|most| self.bytes >= most)
            || rotation.time.is_some_and(|t| self.begun.elapsed() >= t)
    }

    /// Creates the next file, for [`Files::next`]. `None` where the disk has no room for one, and where there are no numbered files: then
    /// the current one goes on, and a next one is tried again later.
    ///
    /// # Errors
    /// When it cannot be created for another reason.
    pub(super) fn create_next(&mut self) -> io::Result<Option<Output>> {
        let Some(numbered) = &mut self.numbered else {
            return Ok(None);
        };
        let next = numbered.number + 1;
        let path = numbered.names.path(next);
        match numbered.names.create(next) {
            Ok((number, next)) => {
                numbered.created = number;
                Ok(Some(next))
            }
            Err(e) if is_full(&e) => {
                if !self.told_of_next {
                    self.told_of_next = true;
                    tell(format_args!(
                        "cannot begin {}: {e}; the recording goes on in the file before it; free some room",
                        path.display()
                    ));
                }
                self.not_before = Some(Instant::now() + AGAIN);
                Ok(None)
            }
            Err(e) => Err(io::Error::new(
                e.kind(),
                format!("cannot write to {}: {e}", path.display()),
            )),
        }
    }

    /// Begins the next file, which [`Files::create_next`] gave. [`Files::remove_old`] should follow.
    ///
    /// # Errors
    /// When the current file cannot be written.
    pub(super) fn next(&mut self, next: Output) -> io::Result<()> {
        self.flush()?;
        self.bring();
        let Some(numbered) = &mut self.numbered else {
            return Ok(());
        };
        self.told_of_next = false;
        self.unwritten += self.out.unshown();
        let whole = numbered.names.path(numbered.number);
        let place = std::mem::replace(&mut numbered.place, next.place());
        numbered
            .written
            .extend(place.map(|place| (numbered.number, place)));
        numbered.number = numbered.created;
        self.out = next;
        if let Some(told) = &self.told {
            told(&whole);
        }
        self.bytes = 0;
        self.brought = 0;
        self.begun = Instant::now();
        Ok(())
    }

    /// Waits until all is on the disk, if that was asked for, and reports the last file. Nothing may be written after this.
    pub(super) fn end(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.end(request(&self.out));
        }
        let path = match &self.numbered {
            Some(numbered) => Some(numbered.names.path(numbered.number)),
            None => {
                let place = self.out.place();
                self.lost = place.as_ref().is_some_and(|place| !place.is_there());
                place.filter(|_| !self.lost).map(|place| place.path)
            }
        };
        if let (Some(told), Some(path)) = (&self.told, path) {
            told(&path);
        }
    }

    /// Removes the oldest numbered files if there are more than [`Rotation::keep`].
    pub(super) fn remove_old(&mut self) {
        if let Some(numbered) = &mut self.numbered {
            numbered.remove_old();
        }
    }

    /// Renames all files of this recording but the one that is written, so that they are not removed.
    pub(super) fn seal(&mut self) {
        let Some(numbered) = &mut self.numbered else {
            return;
        };
        let mut sealed = 0;
        let mut last = None;
        for (number, place) in std::mem::take(&mut numbered.written) {
            if !place.is_there() {
                continue;
            }
            let to = numbered.names.sealed(number);
            match file::rename_to_new(&place.path, &to) {
                Ok(()) => {
                    sealed += 1;
                    last = Some(to);
                }
                Err(e) => {
                    tell(format_args!("cannot seal {}: {e}", place.path.display()));
                    numbered.written.push_back((number, place));
                }
            }
        }
        if let Some(disk) = &self.disk {
            disk.bring_names(&numbered.names.folder);
        }
        match last {
            Some(last) => tell(format_args!(
                "sealed: {sealed} files are kept, the last is {}",
                last.display()
            )),
            None => tell("sealed: 0 files, for none but the one that is written is there"),
        }
    }
}

impl Numbered {
    fn remove_old(&mut self) {
        let Some(keep) = self.rotation.keep else {
            return;
        };
        // What was removed, renamed or replaced meanwhile is no longer this recording's.
        self.written.retain(|(_, place)| place.is_there());
        // The current file counts as one that is kept, whether or not it exists yet.
        let most = keep.saturating_sub(1);
        let old = self.written.len().saturating_sub(most);
        for (_, place) in self.written.drain(..old) {
            if let Err(e) = std::fs::remove_file(&place.path) {
                tell(format_args!("cannot remove {}: {e}", place.path.display()));
            }
        }
    }
}

/// Makes the request that brings the file of an output to the disk; `None` if the output goes to no file.
fn request(out: &Output) -> Option<Request> {
    let (file, path) = out.on_disk()?;
    let path = path.to_owned();
    Some(Request { file, path })
}

/// Tells whether there is no room for a file: a full disk, or a quota.
fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The names of files with numbers.
struct Names {
    folder: PathBuf,
    stem: OsString,
    /// Extension with its point; empty for a name without one.
    ending: OsString,
}

impl Names {
    fn of(path: &Path) -> Self {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let name = path.file_name().unwrap_or(OsStr::new("nvcap.pcapng"));
        let bytes = name.as_encoded_bytes();
        // `.pcapng.zst` is one ending.
        let text = name.to_string_lossy();
        let cut = ["pcapng.zst", "pcapng"].into_iter().find_map(|e| {
            let cut = bytes.len().checked_sub(e.len() + 1)?;
            (cut > 0 && text.ends_with(e) && bytes[cut] == b'.').then_some(cut)
        });
        let cut = cut.or_else(|| bytes.iter().rposition(|b| *b == b'.').filter(|c| *c > 0));
        let cut = cut.unwrap_or(bytes.len());
        Self {
            folder: folder.map_or_else(|| PathBuf::from("."), Path::to_owned),
            stem: part(name, ..cut),
            ending: part(name, cut..),
        }
    }

    fn name(&self, middle: &str) -> PathBuf {
        let mut name = self.stem.clone();
        name.push(middle);
        name.push(&self.ending);
        self.folder.join(name)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.name(&format!(".{number:0DIGITS$}"))
    }

    /// Creates a file of the first number from this one on that no file has, nor one that is there is before. The name is taken before
    /// anything is written: another recording of this name takes others.
    fn create(&self, from: u64) -> io::Result<(u64, Output)> {
        for _ in 0..TRIES {
            let number = self.there().last().map_or(from, |last| from.max(last + 1));
            match Output::first(&self.path(number)) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                created => return Ok((number, created?)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn sealed(&self, number: u64) -> PathBuf {
        self.name(&format!(".{number:0DIGITS$}.sealed"))
    }

    /// The numbers of the files that are there, ascending.
    fn there(&self) -> Vec<u64> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let number = |name: &OsStr| {
            let name = name.as_encoded_bytes();
            let rest = name.strip_prefix(self.stem.as_encoded_bytes())?;
            let middle = rest.strip_suffix(self.ending.as_encoded_bytes())?;
            let digits = std::str::from_utf8(middle).ok()?.strip_prefix('.')?;
            let all = (DIGITS..=MOST_DIGITS).contains(&digits.len())
                && digits.bytes().all(|b| b.is_ascii_digit());
            all.then(|| digits.parse().ok())?
        };
        let mut all: Vec<u64> = { entries.flatten() }
            .filter_map(|e| number(&e.file_name()))
            .collect();
        all.sort_unstable();
        all
    }
}

/// A part of a name, which is cut at an ASCII character.
fn part<R>(name: &OsStr, range: R) -> OsString
where
    R: std::slice::SliceIndex<[u8], Output = [u8]>,
{
    use std::os::unix::ffi::OsStrExt as _;

    OsStr::from_bytes(&name.as_bytes()[range]).to_owned()
}

#[cfg(feature = "zstd")]
fn compress(bytes: &[u8], to: &mut Vec<u8>) {
    use ruzstd::encoding::{CompressionLevel, compress};

    compress(bytes, to, CompressionLevel::Fastest);
}

#[cfg(not(feature = "zstd"))]
fn compress(bytes: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(bytes);
}
