//! Output of the program.

use std::io::Write;

/// A line on standard output.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A reader that went away is no reason to stop.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
