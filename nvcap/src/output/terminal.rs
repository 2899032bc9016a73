//! How many columns the terminal has. Knows no format.

use std::io;

/// Fewer columns than these hold no line: what would be cut further is wrapped by the terminal.
const FEWEST: usize = 40;

/// The columns of the terminal that standard output (or standard error) is: as the terminal says, else as `COLUMNS`
/// says; none where neither does. The caller knows that it is a terminal.
#[must_use]
pub(super) fn columns(error: bool) -> Option<usize> {
    let asked = asked(error).ok().filter(|n| *n > 0);
    let told = || std::env::var("COLUMNS").ok()?.trim().parse().ok();
    let columns: usize = asked.or_else(told)?;
    (columns > 0).then_some(columns.max(FEWEST))
}

/// What the terminal says, which may be 0: a serial line does not know.
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
