//! The kernel's log, read from `/dev/kmsg`: each read gives one record, beginning with the oldest in the kernel's buffer.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::{
    fd::{AsRawFd as _, RawFd},
    unix::fs::OpenOptionsExt,
};

/// The longest record: CONSOLE_EXT_LOG_MAX of the kernel.
const RECORD: usize = 8192;

/// A message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Nanoseconds since the machine's start.
    pub time_ns: u64,
    /// The message's first line.
    pub text: String,
}

/// The log, from some position on.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
}

impl KernelLog {
    /// Opens the log, at its oldest record.
    ///
    /// # Errors
    /// The errors of opening `/dev/kmsg`: without cap_syslog it may be read only where `kernel.dmesg_restrict` is 0.
    pub fn open() -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/kmsg")?;
        let mut log = Self { file };
        // Opening may succeed even if reading does not.
        match log.read() {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(e),
            _ => Self::rewound(log),
        }
    }

    /// Makes a made-up log.
    #[doc(hidden)]
    #[must_use]
    pub fn of(file: File) -> Self {
        Self { file }
    }

    fn rewound(mut log: Self) -> io::Result<Self> {
        io::Seek::seek(&mut log.file, io::SeekFrom::Start(0))?;
        Ok(log)
    }

    /// Returns the descriptor that becomes readable when the kernel has logged something.
    pub fn wake(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns the next record's bytes; `None` if there is none yet.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; RECORD];
        loop {
            match self.file.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(n) => {
                    bytes.truncate(n);
                    return Ok(Some(bytes));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Records were overwritten before they were read; the next read gives the oldest that is left.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns the kernel's own messages since the last call.
    ///
    /// # Errors
    /// The errors of reading.
    pub fn messages(&mut self) -> io::Result<Vec<Message>> {
        let mut all = Vec::new();
        while let Some(record) = self.read()? {
            all.extend(parse(&record));
        }
        Ok(all)
    }
}

/// Parses a record: `priority,sequence,microseconds,flags;text`, and further lines that begin with a space. `None` for a record that a
/// program has written (its facility is not 0).
fn parse(record: &[u8]) -> Option<Message> {
    let end = record.iter().position(|b| *b == b';')?;
    let (head, text) = (&record[..end], &record[end + 1..]);
    let head = std::str::from_utf8(head).ok()?;
    let text = text.split(|b| *b == b'\n').next().unwrap_or_default();
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let micros: u64 = fields.nth(1)?.parse().ok()?;
    (priority >> 3 == 0).then(|| Message {
        time_ns: micros.saturating_mul(1000),
        text: String::from_utf8_lossy(&unescaped(text)).into_owned(),
    })
}

/// Returns the text as it was logged. The kernel writes the backslash, and bytes that are not printable ASCII, as `\xHH`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit = |b: Option<&u8>| Some((*b? as char).to_digit(16)? as u8);
    let mut all = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escape = (after.first() == Some(&b'x') && *first == b'\\')
            .then(|| Some(digit(after.get(1))? << 4 | digit(after.get(2))?));
        match escape.flatten() {
            Some(byte) => {
                all.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                all.push(*first);
                rest = after;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let record =
            b"3,1204,66043210,-,caller=T1;NVRM: Xid (PCI:0000:01:00): 13\n SUBSYSTEM=pci\n";
        let message = parse(record).unwrap();
        assert_eq!(message.time_ns, 66_043_210_000);
        assert_eq!(message.text, "NVRM: Xid (PCI:0000:01:00): 13");
        // A record that a program writes to /dev/kmsg has facility 1.
        assert_eq!(
            parse(b"12,1205,66043211,-;NVRM: Xid (PCI:0000:01:00): 13\n"),
            None
        );
        // A name with an ä, a tab, a backslash and a part that only looks like an escape.
        let escaped = parse(b"3,1,2,-;name=\\xc3\\xa4\\x09\\x5cx41\\xg1\\x4\n DEVICE=x\n").unwrap();
        assert_eq!(escaped.text, "name=\u{e4}\t\\x41\\xg1\\x4");
        assert_eq!(
            parse(b"3,1,2,-;\xff\\xff").unwrap().text,
            "\u{fffd}\u{fffd}"
        );
        for bad in [&b""[..], b"3,1204", b"x,1,2,-;a", b"3,1,y,-;a"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    #[ignore = "needs to read the kernel's log: cargo xtask test runs it as root"]
    fn this_kernel() {
        match KernelLog::open() {
            Ok(mut log) => {
                let first = log.messages().unwrap();
                assert!(!first.is_empty() && log.messages().unwrap().len() < first.len());
            }
            Err(e) => println!("NOT RUN the kernel's log: {e}"),
        }
    }
}
