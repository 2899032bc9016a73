//! Output of a sink: a standard stream or a file, buffered, with a full disk counted and not hidden.
//!
//! The unit is one object (a JSON line, a text line with those that belong to it): what is in the file is always
//! whole objects. When a write fails because there is no room, the file is cut back to the last whole object,
//! the objects that were in the buffer are counted as unshown, and the next flush tries again. A reader that went
//! away is an error of kind `BrokenPipe`, for the caller to end quietly. One that takes nothing is waited for until the
//! user asks for the end (`blocked_write`); then what is left counts as unshown, too. Knows no format.

use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::file::{Named, Place};
use super::message::tell;
use super::standard::{PIECE, Standard};
use super::terminal;
use nvcap_recording::blocked_write;

/// Bytes gathered before they are written.
const BUFFER: usize = 256 * 1024;

/// Time for which an object for a pipe is buffered while others come: whoever reads the pipe sees it soon.
const SOON: Duration = Duration::from_millis(20);

/// Time between two attempts to save an output whose file has gone.
const AGAIN: Duration = Duration::from_secs(2);

enum Target {
    Standard(Standard),
    File {
        named: Named,
        path: PathBuf,
    },
    /// Any other writer, for tests and for users of the library.
    Other(Box<dyn Write + Send>),
}

/// A buffered output of whole objects.
pub struct Output {
    target: Target,
    buffer: Vec<u8>,
    /// Ends of the objects in `buffer`.
    ends: Vec<usize>,
    /// Bytes of whole objects in a regular file; `None` where it cannot be cut back.
    whole: Option<u64>,
    /// True if a write failed and the target cannot be cut back: its last line may be incomplete.
    torn: bool,
    line_buffered: bool,
    /// Time at which the buffer was last written, if it goes to a standard stream.
    written: Option<Instant>,
    unshown: u64,
    /// Number of objects that were written.
    shown: u64,
    /// Time of the last attempt to save what was written, if the file has gone and that failed.
    unsaved: Option<Instant>,
    told: bool,
    /// Error because of which the last objects could not be written.
    refused: Option<io::Error>,
}

impl Output {
    /// Opens standard output. To a terminal every object is written at once.
    #[must_use]
    pub fn stdout() -> Self {
        Self::standard(Standard::Output)
    }

    /// Opens standard error, like standard output; other writers' lines are not torn.
    #[must_use]
    pub fn stderr() -> Self {
        Self::standard(Standard::Error)
    }

    fn standard(stream: Standard) -> Self {
        let mut output = Self::new(Target::Standard(stream), None);
        output.line_buffered = stream.is_terminal();
        output.written = Some(Instant::now());
        output
    }

    /// A file, made readable by its owner alone (what a program sends to its GPU is its user's secret). It is not written over what is
    /// there: see `Named::unused`; `output::file` has what is refused.
    ///
    /// # Errors
    /// When it cannot be opened, is a directory, or is not the user's own.
    pub fn file(path: &Path) -> io::Result<Self> {
        Named::unused(path, false).map(Self::named)
    }

    /// A file as [`Output::file`] makes it. What was in it stays until there is something to write, and is then written over.
    ///
    /// # Errors
    /// As [`Output::file`]; `WouldBlock` where another program writes there.
    pub fn over(path: &Path) -> io::Result<Self> {
        Named::over(path).map(Self::named)
    }

    /// A file for a recording, which is not written over what is there: see `Named::unused`. `force`: it is, unless another program
    /// writes there.
    ///
    /// # Errors
    /// As [`Output::file`]; `WouldBlock` where another program writes there.
    pub fn recording(path: &Path, force: bool) -> io::Result<Self> {
        match force {
            true => Named::over_for_recording(path).map(Self::named),
            false => Named::unused(path, true).map(Self::named),
        }
    }

    /// A file for a recording, where there is none.
    ///
    /// # Errors
    /// `AlreadyExists` where there is something at the path; when it cannot be made.
    pub(crate) fn first(path: &Path) -> io::Result<Self> {
        Named::first(path).map(Self::named)
    }

    fn named(named: Named) -> Self {
        let (path, whole) = (named.path(), named.regular.then_some(0));
        Self::new(Target::File { named, path }, whole)
    }

    /// Returns the place of the regular file that is written.
    pub fn place(&self) -> Option<Place> {
        match &self.target {
            Target::File { named, .. } if named.regular => Some(named.place()),
            _ => None,
        }
    }

    /// Hands a regular file, empty and readable by its owner alone, to another writer, and returns its place, with a path without links; `None`
    /// where it is no regular file. Nothing may be written here then.
    ///
    /// # Errors
    /// When it cannot be made so.
    #[cfg(feature = "sqlite")]
    pub(crate) fn hand_over(&mut self) -> io::Result<Option<Place>> {
        match &mut self.target {
            Target::File { named, .. } if named.regular => {
                named.begin()?;
                let open = std::os::fd::AsRawFd::as_raw_fd(&named.file);
                let mut place = named.place();
                place.path = std::fs::read_link(format!("/proc/self/fd/{open}"))?;
                Ok(Some(place))
            }
            _ => Ok(None),
        }
    }

    /// Opens a second output to the same place, for use when this one has written everything.
    ///
    /// # Errors
    /// When the place cannot be opened twice.
    pub fn again(&self) -> io::Result<Self> {
        match &self.target {
            Target::Standard(stream) => Ok(Self::standard(*stream)),
            Target::File { named, path } => {
                let (named, path) = (named.again()?, path.clone());
                Ok(Self::new(Target::File { named, path }, None))
            }
            Target::Other(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Makes an output of any other writer.
    #[must_use]
    pub fn to(writer: Box<dyn Write + Send>) -> Self {
        Self::new(Target::Other(writer), None)
    }

    fn new(target: Target, whole: Option<u64>) -> Self {
        Self {
            target,
            buffer: Vec::with_capacity(BUFFER + 4096),
            ends: Vec::new(),
            whole,
            torn: false,
            line_buffered: false,
            written: None,
            unshown: 0,
            shown: 0,
            unsaved: None,
            told: false,
            refused: None,
        }
    }

    /// Tells whether the output goes to a terminal.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(&self.target, Target::Standard(stream) if stream.is_terminal())
    }

    /// The width of the terminal that it goes to, in columns; `None` if it goes to none, or the width is not known.
    #[must_use]
    pub fn width(&self) -> Option<usize> {
        terminal::columns(self.is_of_error()?)
    }

    /// Tells whether the terminal that it goes to is that of standard error, or else of standard output; `None` where it is no terminal.
    fn is_of_error(&self) -> Option<bool> {
        match &self.target {
            Target::Standard(stream) if self.line_buffered => Some(*stream == Standard::Error),
            _ => None,
        }
    }

    /// The height of the terminal that it goes to, in rows; `None` if it goes to none, or the height is not known.
    #[must_use]
    pub(crate) fn height(&self) -> Option<usize> {
        terminal::rows(self.is_of_error()?)
    }

    /// Writes lines to the terminal, in whose place the next object, message or lines of this kind will stand. They are no object: they are not
    /// counted, and are left out where they cannot be written.
    ///
    /// # Errors
    /// As [`Output::end_object`], for what is buffered before.
    pub(crate) fn passing(&mut self, lines: &[u8]) -> io::Result<()> {
        self.flush()?;
        if let Some(error) = self.is_of_error() {
            let mut all = terminal::erase(error);
            all.extend_from_slice(lines);
            let (written, _) = self.write_some(&all);
            if written == all.len() {
                terminal::stands(lines, error);
            }
        }
        Ok(())
    }

    /// The buffer, for one object to be appended to. [`Output::end_object`] must follow.
    pub fn object(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Returns the number of bytes that were appended to the buffer since the last object ended.
    pub(crate) fn appended(&self) -> usize {
        self.buffer.len() - self.ends.last().copied().unwrap_or(0)
    }

    /// Ends the object that was appended.
    ///
    /// # Errors
    /// When the reader went away, or the target fails for another reason than lack of room.
    pub fn end_object(&mut self) -> io::Result<()> {
        if self.ends.last().copied().unwrap_or(0) == self.buffer.len() {
            return Ok(());
        }
        self.ends.push(self.buffer.len());
        let is_due = |written: Instant| written.elapsed() >= SOON;
        if self.line_buffered || self.buffer.len() >= BUFFER || self.written.is_some_and(is_due) {
            return self.flush();
        }
        Ok(())
    }

    /// Ends the object that was appended, and writes it now, for it is a command's whole answer and not a part of a trace.
    ///
    /// # Errors
    /// When it could not be written; lack of room is an error here, too.
    pub fn answer(&mut self) -> io::Result<()> {
        // The returned error says what failed: no message is written besides.
        self.told = true;
        self.end_object()?;
        self.flush()?;
        self.refused.take().map_or(Ok(()), Err)
    }

    /// Returns the number of objects that were given up because they could not be written, or because the file that has them has gone.
    #[must_use]
    pub fn unshown(&self) -> u64 {
        let lost = self.unsaved.map_or(0, |_| self.shown);
        self.unshown + lost
    }

    /// Tells whether the place has whole objects alone, also after some were refused.
    #[cfg(feature = "parquet")]
    pub(crate) fn is_cut_back(&self) -> bool {
        self.whole.is_some() && !self.torn
    }

    /// Returns the regular file that it goes to, with its path: for what is written to be brought to the disk.
    pub(crate) fn on_disk(&self) -> Option<(std::fs::File, &Path)> {
        match &self.target {
            Target::File { named, path } if self.whole.is_some() => {
                Some((named.file.try_clone().ok()?, path))
            }
            _ => None,
        }
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// As [`Output::end_object`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.save();
        if self.buffer.is_empty() {
            return Ok(());
        }
        let result = self.write_buffer();
        self.written = self.written.map(|_| Instant::now());
        self.buffer.clear();
        self.ends.clear();
        result
    }

    /// Moves what was written to another file where the file has been replaced or removed. Where that fails it is tried again later.
    fn save(&mut self) {
        // Nothing was written yet: `Named::begin` looks before.
        let has_content = self.whole.is_some_and(|whole| whole > 0);
        if !has_content || self.unsaved.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        let Target::File { named, path } = &mut self.target else {
            return;
        };
        match named.save() {
            Ok(_) => {
                *path = named.path();
                self.unsaved = None;
            }
            Err(e) => {
                if self.unsaved.is_none() {
                    tell(format_args!(
                        "another program has replaced or removed {}, and what was written cannot be saved: {e}; it is tried again, and counted as lost until then",
                        path.display()
                    ));
                }
                self.unsaved = Some(Instant::now());
            }
        }
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        if let Target::File { named, path } = &mut self.target {
            if let Err(e) = named.begin() {
                return self.give_up(0, e);
            }
            *path = named.path();
            // What another program has put there would be written over, or would stand among zeros.
            if named.is_spoiled() {
                self.unshown += self.ends.len() as u64;
                self.whole = None;
                let e = io::Error::other("another program writes to it, too; name another file");
                return Err(self.describe(e));
            }
        }
        if self.torn {
            match self.write_some(b"\n") {
                (1, _) => self.torn = false,
                (_, Some(e)) => return self.give_up(0, e),
                _ => {}
            }
        }
        if let Some(error) = self.is_of_error() {
            let erased = terminal::erase(error);
            self.write_some(&erased);
        }
        let buffer = std::mem::take(&mut self.buffer);
        let (written, error) = self.write_some(&buffer);
        self.buffer = buffer;
        if let Target::File { named, .. } = &self.target {
            named.note(|all| all + written as u64);
        }
        match error {
            None => {
                self.shown += self.ends.len() as u64;
                if let Some(whole) = &mut self.whole {
                    *whole += written as u64;
                }
                Ok(())
            }
            Some(e) => self.give_up(written, e),
        }
    }

    /// Writes as much as the target takes; retries after interruptions.
    fn write_some(&mut self, bytes: &[u8]) -> (usize, Option<io::Error>) {
        let mut done = 0;
        while done < bytes.len() {
            if blocked_write::is_over() && self.whole.is_none() {
                return (done, Some(io::ErrorKind::TimedOut.into()));
            }
            let rest = &bytes[done..];
            let target = &mut self.target;
            let piece = match target {
                Target::Standard(stream) => &rest[..stream.piece(rest)],
                _ => &rest[..rest.len().min(PIECE)],
            };
            let result = blocked_write::write(|| match target {
                Target::Standard(stream) => stream.write(piece),
                Target::File { named, .. } => named.file.write(piece),
                Target::Other(w) => w.write(piece),
            });
            match result {
                Ok(0) => return (done, Some(io::ErrorKind::WriteZero.into())),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (done, Some(e)),
            }
        }
        let flushed = match &mut self.target {
            Target::Standard(Standard::Output) => io::stdout().flush(),
            Target::Standard(Standard::Error) => Ok(()),
            Target::Other(w) => w.flush(),
            Target::File { .. } => Ok(()),
        };
        (done, flushed.err())
    }

    /// Handles a failed write of which the first `written` bytes of the buffer were taken.
    fn give_up(&mut self, written: usize, error: io::Error) -> io::Result<()> {
        let safe = self.ends.partition_point(|end| *end <= written);
        self.shown += safe as u64;
        let whole_bytes = safe.checked_sub(1).map_or(0, |i| self.ends[i]);
        self.unshown += (self.ends.len() - safe) as u64;
        match (&mut self.target, &mut self.whole) {
            (Target::File { named, .. }, Some(whole)) => {
                *whole += whole_bytes as u64;
                let end = *whole;
                // What another program has written since would be cut off, too.
                let cut = match named.is_spoiled() {
                    true => Err(io::ErrorKind::Other.into()),
                    false => { named.file.set_len(end) }
                        .and_then(|()| named.file.seek(io::SeekFrom::Start(end))),
                };
                self.torn = cut.is_err();
                if cut.is_ok() {
                    named.note(|_| end);
                }
            }
            _ => self.torn |= written > whole_bytes,
        }
        if error.kind() == io::ErrorKind::TimedOut {
            self.refused = Some(self.describe(error));
            if !self.told {
                self.told = true;
                tell(format_args!(
                    "{} is not read; what was not written by now is counted and makes the trace INCOMPLETE",
                    self.name()
                ));
            }
            return Ok(());
        }
        if !is_full(&error) {
            return Err(self.describe(error));
        }
        let remedy = remedy(&error);
        let error = self.describe(error);
        if !self.told {
            self.told = true;
            tell(format_args!(
                "{error}; what cannot be written is counted and makes the trace INCOMPLETE; {remedy}"
            ));
        }
        self.refused = Some(io::Error::new(error.kind(), format!("{error}; {remedy}")));
        Ok(())
    }

    fn describe(&self, error: io::Error) -> io::Error {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return error;
        }
        io::Error::new(
            error.kind(),
            format!("cannot write to {}: {error}", self.name()),
        )
    }

    fn name(&self) -> String {
        match &self.target {
            Target::Standard(Standard::Output) => "standard output".to_owned(),
            Target::Standard(Standard::Error) => "standard error".to_owned(),
            Target::File { path, .. } => path.display().to_string(),
            Target::Other(_) => "the output".to_owned(),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // The last attempt, if the file has gone.
        self.unsaved = self.unsaved.and_then(|at| at.checked_sub(AGAIN));
        // A caller that wants the error flushes before.
        let _ = self.flush();
    }
}

/// Tells whether there is no room: a full disk, a quota or a file size limit.
fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero
    )
}

/// Names the user's remedy for a lack of room.
fn remedy(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        io::ErrorKind::QuotaExceeded => "free some room: the user's quota is used up",
        _ => "free some room",
    }
}

#[cfg(test)]
mod tests;
