//! The streams that this program was started with, to which output goes.

#[cfg(target_os = "linux")]
use std::io::Write as _;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicI32, Ordering};

/// The most bytes of one write: as many as a pipe holds, so that progress is noticed with a slow reader.
pub(super) const PIECE: usize = 64 * 1024;

/// Number of bytes that a pipe takes in one piece (PIPE_BUF).
const UNTORN: usize = 4096;

/// The descriptor of this program's standard output, where that has been kept from a command ([`keep_output`]); -1 before.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// A stream that this program was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standard {
    Output,
    Error,
}

/// Keeps standard output for what nvcap writes there: a command that is started later gets standard error in its place.
///
/// # Errors
/// When there are no more descriptors.
#[cfg(target_os = "linux")]
pub fn keep_output() -> io::Result<()> {
    if KEPT.load(Ordering::Relaxed) >= 0 {
        return Ok(());
    }
    // SAFETY: duplicates a descriptor; the new one lives as long as the program, and no command inherits it.
    let kept = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: two numbers of descriptors.
    if kept < 0 || unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    KEPT.store(kept, Ordering::Relaxed);
    Ok(())
}

impl Standard {
    pub(super) fn is_terminal(self) -> bool {
        match (self, KEPT.load(Ordering::Relaxed)) {
            (Self::Output, 0..) => is_kept_terminal(),
            (Self::Output, _) => io::stdout().is_terminal(),
            (Self::Error, _) => io::stderr().is_terminal(),
        }
    }

    /// Returns the number of `bytes` that are written at once. A traced command writes to standard error, too, so nvcap writes whole
    /// lines there, as many as a pipe takes in one piece: then lines of one do not land within lines of the other.
    pub(super) fn piece(self, bytes: &[u8]) -> usize {
        if self == Self::Output {
            return bytes.len().min(PIECE);
        }
        let most = &bytes[..bytes.len().min(UNTORN)];
        most.iter()
            .rposition(|b| *b == b'\n')
            .map_or(most.len(), |end| end + 1)
    }

    /// Writes once. Not through the library's standard output, which retries interrupted writes by itself.
    #[cfg(target_os = "linux")]
    pub(super) fn write(self, bytes: &[u8]) -> io::Result<usize> {
        use std::os::fd::FromRawFd;

        let fd = match (self, KEPT.load(Ordering::Relaxed)) {
            (Self::Output, kept @ 0..) => kept,
            (Self::Output, _) => libc::STDOUT_FILENO,
            (Self::Error, _) => libc::STDERR_FILENO,
        };
        // SAFETY: a standard stream is open as long as the program runs, and is not closed here.
        let mut file = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) });
        file.write(bytes)
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn write(self, bytes: &[u8]) -> io::Result<usize> {
        use std::io::Write as _;

        match self {
            Self::Output => io::stdout().write(bytes),
            Self::Error => io::stderr().write(bytes),
        }
    }
}

#[cfg(target_os = "linux")]
fn is_kept_terminal() -> bool {
    // SAFETY: asks about a descriptor.
    unsafe { libc::isatty(KEPT.load(Ordering::Relaxed)) == 1 }
}

#[cfg(not(target_os = "linux"))]
fn is_kept_terminal() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_a_stream_with_a_command_is_written_in_whole_lines() {
        let line = |n: usize| "x".repeat(n - 1) + "\n";
        let lines = line(3000) + &line(1000) + &line(200);
        assert_eq!(Standard::Error.piece(lines.as_bytes()), 4000);
        assert_eq!(Standard::Output.piece(lines.as_bytes()), 4200);
        // One that is longer cannot be kept whole.
        assert_eq!(Standard::Error.piece(line(5000).as_bytes()), UNTORN);
        assert_eq!(Standard::Error.piece(b"no end"), 6);
    }
}
