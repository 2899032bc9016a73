//! Messages to the user beside the output: on standard error, a line at a time.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::sync::Mutex;

use super::style::Plain;
use super::terminal;
use nvcap_recording::blocked_write;

/// Lines that wait: a screen is drawn on the terminal, which they would spoil.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);
/// The most lines that wait.
const MOST_HELD: usize = 100;

fn held() -> std::sync::MutexGuard<'static, Option<Vec<String>>> {
    HELD.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes lines wait for [`release`] from now on.
pub fn hold() {
    held().get_or_insert_default();
}

/// Returns the newest line that waits.
pub fn newest_held() -> Option<String> {
    held().as_ref()?.last().cloned()
}

/// Writes the lines that wait; later ones are written at once.
pub fn release() {
    let lines = held().take();
    for line in lines.into_iter().flatten() {
        tell(line);
    }
}

/// Writes a line to standard error, with the program's name before it. This cannot fail: a closed or full standard error
/// must not end a trace or change the exit status. (`eprintln!` would panic.)
pub fn tell(line: impl Display) {
    // The kernel's report on a BPF program has several lines: they become one.
    let words = line.to_string();
    let lines: Vec<&str> = words
        .lines()
        .map(str::trim_end)
        .filter(|l| !l.is_empty())
        .collect();
    if let Some(held) = &mut *held() {
        if held.len() >= MOST_HELD {
            held.remove(0);
        }
        held.push(lines.join(" | "));
        return;
    }
    // Names of files and processes come from outside, so the line is made harmless. It is written in one piece: other
    // threads and the traced command write to standard error, too.
    let line = format!("nvcap: {}\n", Plain(&lines.join(" | ")));
    // If standard error is the output that nobody reads, a write would block as the output's did.
    if !blocked_write::is_over() || has_room() {
        let mut all = match io::stderr().is_terminal() {
            true => terminal::erase(true),
            false => Vec::new(),
        };
        all.extend_from_slice(line.as_bytes());
        let _ = io::stderr().write_all(&all);
    }
}

/// Tells whether a write of a line to standard error would not block.
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
