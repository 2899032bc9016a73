//! Where a sink's bytes go: standard output or a file, buffered, with a full disk counted and not hidden.
//!
//! The unit is one object (a JSON line, a text line with those that belong to it): what is in the file is always
//! whole objects. When a write fails because there is no room, the file is cut back to the last whole object,
//! the objects that were in the buffer are counted as unshown, and the next flush tries again. A reader that went
//! away is an error of kind `BrokenPipe`, for the caller to end quietly. Knows no format.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Seek, Write};
use std::path::{Path, PathBuf};

/// Bytes gathered before they are written.
const BUFFER: usize = 256 * 1024;

enum Target {
    Stdout(io::Stdout),
    File {
        file: File,
        path: PathBuf,
    },
    /// For tests and for users of the library.
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
    /// After a failed write to something that cannot be cut back: the last line may be torn.
    torn: bool,
    line_buffered: bool,
    unshown: u64,
    told: bool,
}

impl Output {
    /// Standard output. To a terminal every object is written at once.
    #[must_use]
    pub fn stdout() -> Self {
        let out = io::stdout();
        let line_buffered = out.is_terminal();
        let mut output = Self::new(Target::Stdout(out), None);
        output.line_buffered = line_buffered;
        output
    }

    /// A file, made readable by its owner alone (what a program sends to its GPU is its user's secret) and
    /// emptied if it was there. Its mode is set to 0600 also where it existed.
    ///
    /// # Errors
    /// When it cannot be opened, or is a directory.
    pub fn file(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            options.mode(0o600);
        }
        let file = options.open(path)?;
        let regular = file.metadata()?.is_file();
        #[cfg(unix)]
        if regular {
            use std::os::unix::fs::PermissionsExt;
            file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        }
        let path = path.to_owned();
        Ok(Self::new(Target::File { file, path }, regular.then_some(0)))
    }

    /// Any other writer.
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
            unshown: 0,
            told: false,
        }
    }

    /// Goes to a terminal.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(&self.target, Target::Stdout(out) if out.is_terminal())
    }

    /// The buffer, for one object to be appended to. [`Output::end_object`] must follow.
    pub fn object(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// The object that was appended is whole.
    ///
    /// # Errors
    /// When the reader went away, or the target fails for another reason than lack of room.
    pub fn end_object(&mut self) -> io::Result<()> {
        if self.ends.last().copied().unwrap_or(0) == self.buffer.len() {
            return Ok(());
        }
        self.ends.push(self.buffer.len());
        if self.line_buffered || self.buffer.len() >= BUFFER {
            return self.flush();
        }
        Ok(())
    }

    /// Objects given up because they could not be written.
    #[must_use]
    pub fn unshown(&self) -> u64 {
        self.unshown
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// As [`Output::end_object`].
    pub fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let result = self.write_buffer();
        self.buffer.clear();
        self.ends.clear();
        result
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        if self.torn {
            match self.write_some(b"\n") {
                (1, _) => self.torn = false,
                (_, Some(e)) => return self.give_up(0, e),
                _ => {}
            }
        }
        let buffer = std::mem::take(&mut self.buffer);
        let (written, error) = self.write_some(&buffer);
        self.buffer = buffer;
        match error {
            None => {
                if let Some(whole) = &mut self.whole {
                    *whole += written as u64;
                }
                Ok(())
            }
            Some(e) => self.give_up(written, e),
        }
    }

    /// Writes as much as goes; retries interruptions.
    fn write_some(&mut self, bytes: &[u8]) -> (usize, Option<io::Error>) {
        let mut done = 0;
        while done < bytes.len() {
            let result = match &mut self.target {
                Target::Stdout(out) => out.write(&bytes[done..]),
                Target::File { file, .. } => file.write(&bytes[done..]),
                Target::Other(w) => w.write(&bytes[done..]),
            };
            match result {
                Ok(0) => return (done, Some(io::ErrorKind::WriteZero.into())),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (done, Some(e)),
            }
        }
        let flushed = match &mut self.target {
            Target::Stdout(out) => out.flush(),
            Target::Other(w) => w.flush(),
            Target::File { .. } => Ok(()),
        };
        (done, flushed.err())
    }

    /// After a failed write of which `written` bytes of the buffer got through.
    fn give_up(&mut self, written: usize, error: io::Error) -> io::Result<()> {
        let safe = self.ends.partition_point(|end| *end <= written);
        let whole_bytes = safe.checked_sub(1).map_or(0, |i| self.ends[i]);
        self.unshown += (self.ends.len() - safe) as u64;
        match (&mut self.target, &mut self.whole) {
            (Target::File { file, .. }, Some(whole)) => {
                *whole += whole_bytes as u64;
                let end = *whole;
                let cut = file
                    .set_len(end)
                    .and_then(|()| file.seek(io::SeekFrom::Start(end)));
                self.torn = cut.is_err();
            }
            _ => self.torn |= written > whole_bytes,
        }
        if !is_full(&error) {
            return Err(self.describe(error));
        }
        if !self.told {
            self.told = true;
            eprintln!(
                "nvcap: {}; what cannot be written is counted and makes the trace INCOMPLETE; free some room",
                self.describe(error)
            );
        }
        Ok(())
    }

    fn describe(&self, error: io::Error) -> io::Error {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return error;
        }
        let name = match &self.target {
            Target::Stdout(_) => "standard output".to_owned(),
            Target::File { path, .. } => path.display().to_string(),
            Target::Other(_) => "the output".to_owned(),
        };
        io::Error::new(error.kind(), format!("cannot write to {name}: {error}"))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Whoever cares for the error has flushed before.
        let _ = self.flush();
    }
}

/// No room: a full disk, a quota or a file size limit.
fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero
    )
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Takes `room` bytes, then refuses with `kind`.
    struct Small {
        taken: Arc<Mutex<Vec<u8>>>,
        room: Arc<Mutex<usize>>,
        kind: io::ErrorKind,
    }

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut room = self.room.lock().unwrap();
            let n = bytes.len().min(*room);
            if n == 0 {
                return Err(self.kind.into());
            }
            *room -= n;
            self.taken.lock().unwrap().extend_from_slice(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Ends {
        taken: Arc<Mutex<Vec<u8>>>,
        room: Arc<Mutex<usize>>,
    }

    fn small(room: usize, kind: io::ErrorKind) -> (Output, Ends) {
        let ends = Ends {
            taken: Arc::default(),
            room: Arc::new(Mutex::new(room)),
        };
        let writer = Small {
            taken: ends.taken.clone(),
            room: ends.room.clone(),
            kind,
        };
        (Output::to(Box::new(writer)), ends)
    }

    fn put(o: &mut Output, text: &str) {
        o.object().extend_from_slice(text.as_bytes());
        o.end_object().unwrap();
    }

    #[test]
    fn a_full_disk_is_counted_and_writing_goes_on_after_it() {
        let (mut o, ends) = small(10, io::ErrorKind::StorageFull);
        o.told = true;
        put(&mut o, "12345\n");
        put(&mut o, "67890\n");
        put(&mut o, "abcde\n");
        o.flush().unwrap();
        assert_eq!(o.unshown(), 2, "the second is torn, the third is lost");
        *ends.room.lock().unwrap() = 100;
        put(&mut o, "after\n");
        o.flush().unwrap();
        assert_eq!(o.unshown(), 2);
        assert_eq!(
            ends.taken.lock().unwrap().as_slice(),
            b"12345\n6789\nafter\n"
        );
    }

    #[test]
    fn a_reader_that_went_away_is_an_error() {
        let (mut o, _) = small(3, io::ErrorKind::BrokenPipe);
        put(&mut o, "12345\n");
        assert_eq!(o.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(o.flush().is_ok(), "and is told once");
    }

    #[test]
    fn a_directory_is_refused() {
        let dir = std::env::temp_dir();
        assert!(Output::file(&dir).is_err());
    }
}
