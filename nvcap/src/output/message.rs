//! What is said to the user beside the output: on standard error, a line at a time.

use std::fmt::Display;
use std::io::{self, Write};

use super::style::Plain;
use crate::blocked_write;

/// Writes a line to standard error, with the program's name before it. This cannot fail: a closed or full standard error
/// must not end a trace or change the exit status. (`eprintln!` would panic.)
pub(crate) fn tell(line: impl Display) {
    // The kernel's report on a BPF program has several lines: they become one.
    let words = line.to_string();
    let lines: Vec<&str> = words
        .lines()
        .map(str::trim_end)
        .filter(|l| !l.is_empty())
        .collect();
    // Names of files and processes come from outside, so the line is made harmless. It is written in one piece: other
    // threads and the traced command write to standard error, too.
    let line = format!("nvcap: {}\n", Plain(&lines.join(" | ")));
    // If standard error is the output that nobody reads, a write would block as the output's did.
    if !blocked_write::is_over() || has_room() {
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Whether a write of a line to standard error would not block.
#[cfg(target_os = "linux")]
fn has_room() -> bool {
    let mut poll = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[cfg(not(target_os = "linux"))]
fn has_room() -> bool {
    true
}
