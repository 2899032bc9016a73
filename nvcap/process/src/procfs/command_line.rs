//! `/proc/PID/cmdline`: the command line of a process.

use std::io::Read as _;

use super::errands;

/// The most bytes of a command line that are read: a process may have a command line of megabytes.
const MOST_COMMAND_LINE: u64 = 4096;

/// The command line of a process, its arguments divided by spaces, cut where it is very long; none where the process is gone or has
/// none. The kernel reads it only from memory without a file (CVE-2018-1120), so that no program delays the answer but by a read that holds the
/// lock of the process's memory.
pub fn command_line(pid: u32) -> Option<String> {
    let text = arguments(pid)?.join(" ");
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the arguments of a process, read as for [`command_line`].
pub fn arguments(pid: u32) -> Option<Vec<String>> {
    let file = errands::open(pid, format!("/proc/{pid}/cmdline")).ok()?;
    let mut bytes = Vec::new();
    file.take(MOST_COMMAND_LINE).read_to_end(&mut bytes).ok()?;
    let words = bytes.split(|byte| *byte == 0);
    Some(
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect(),
    )
}
