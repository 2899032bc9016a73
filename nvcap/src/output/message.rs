//! What is said to the user beside the output: on standard error, a line at a time.

use std::fmt::Display;
use std::io::{self, Write};

use super::style::Plain;
use crate::blocked_write;

/// Says a line, with the program's name before it. That nobody hears it (a closed or full standard error) is no reason to
/// stop a trace or to end otherwise than with the status that is due, so this cannot fail; `eprintln!` would panic.
pub(crate) fn tell(line: impl Display) {
    // A line: the kernel's words on a BPF program are several.
    let words = line.to_string();
    let lines: Vec<&str> = words
        .lines()
        .map(str::trim_end)
        .filter(|l| !l.is_empty())
        .collect();
    // What is told may name what others have made up: files, processes, lines of files. In one piece: other threads and
    // the traced command say things there too.
    let line = format!("nvcap: {}\n", Plain(&lines.join(" | ")));
    // Where it is the same as an output that nobody reads, a line would wait as that did.
    if !blocked_write::is_over() || has_room() {
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Standard error takes something without a wait: of a pipe, as many bytes as a line has.
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
