//! Size of the terminal, and rows at its end in whose place others will stand. Knows no format.

use std::io;
use std::sync::Mutex;

/// Fewest columns that lines are cut to: in a narrower terminal they wrap.
const FEWEST: usize = 40;

/// Number of the rows that stand at the terminal's end until something else is written, and the terminal's columns when they were written. There is
/// one terminal: standard output and standard error write to it.
static PASSING: Mutex<Option<(usize, Option<usize>)>> = Mutex::new(None);

fn passing() -> std::sync::MutexGuard<'static, Option<(usize, Option<usize>)>> {
    PASSING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes note of lines that stand at the terminal's end: what is written next erases them first.
pub(super) fn stands(lines: &[u8], error: bool) {
    let rows = lines.iter().filter(|byte| **byte == b'\n').count();
    *passing() = Some((rows, columns(error)));
}

/// Returns the bytes that erase what stands at the terminal's end. There are none where nothing does, or where the terminal's width has changed:
/// lines may have wrapped, and what stands above them must stay.
pub(super) fn erase(error: bool) -> Vec<u8> {
    match passing().take() {
        Some((rows, width)) if rows > 0 && width == columns(error) => {
            format!("\r\x1b[{rows}A\x1b[J").into_bytes()
        }
        _ => Vec::new(),
    }
}

/// The width in columns of the terminal behind standard output (or standard error): as the terminal says, else as `COLUMNS`
/// says; `None` if neither does. The caller must know that the stream is a terminal.
#[must_use]
pub(super) fn columns(error: bool) -> Option<usize> {
    let asked = asked(error).ok().map(|size| size.0);
    let columns = asked.filter(|n| *n > 0).or_else(|| told("COLUMNS"))?;
    (columns > 0).then_some(columns.max(FEWEST))
}

/// Returns the height in rows, found as [`columns`] finds the width.
#[must_use]
pub(super) fn rows(error: bool) -> Option<usize> {
    let asked = asked(error).ok().map(|size| size.1);
    asked.filter(|n| *n > 0).or_else(|| told("LINES"))
}

fn told(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.trim().parse().ok()
}

/// Columns and rows that the terminal reports. A serial line does not know its size and reports 0.
#[cfg(target_os = "linux")]
fn asked(error: bool) -> io::Result<(usize, usize)> {
    let fd = match error {
        true => libc::STDERR_FILENO,
        false => libc::STDOUT_FILENO,
    };
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the kernel writes one winsize, or fails.
    match unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) } {
        0 => Ok((size.ws_col.into(), size.ws_row.into())),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn asked(_error: bool) -> io::Result<(usize, usize)> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_is_erased_once() {
        stands(b"one\ntwo\n", false);
        assert_eq!(erase(false), b"\r\x1b[2A\x1b[J");
        assert!(erase(false).is_empty());
        stands(b"", false);
        assert!(erase(false).is_empty());
    }
}
