//! Number of columns that the terminal has. Knows no format.

use std::io;

/// Lines are never cut to fewer columns than these: in a narrower terminal they wrap.
const FEWEST: usize = 40;

/// The width in columns of the terminal behind standard output (or standard error): as the terminal says, else as `COLUMNS`
/// says; `None` if neither does. The caller must know that the stream is a terminal.
#[must_use]
pub(super) fn columns(error: bool) -> Option<usize> {
    let asked = asked(error).ok().filter(|n| *n > 0);
    let told = || std::env::var("COLUMNS").ok()?.trim().parse().ok();
    let columns: usize = asked.or_else(told)?;
    (columns > 0).then_some(columns.max(FEWEST))
}

/// The width that the terminal reports. A serial line does not know its width and reports 0.
#[cfg(target_os = "linux")]
fn asked(error: bool) -> io::Result<usize> {
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
        0 => Ok(size.ws_col.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn asked(_error: bool) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
