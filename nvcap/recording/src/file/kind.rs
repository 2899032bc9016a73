//! Kinds of files, recognised by their first bytes. The module parses no file's content.

use std::io::{self, Cursor, Read};
use std::path::Path;

/// Number of bytes that are examined.
const MOST: u64 = 16 << 10;

/// Kind of file, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A capture of the oracle (`orc`).
    Orc,
    /// A recording of nvcap.
    Recording,
    /// A log of ioctls (`ioctl_log`).
    IoctlLog,
    /// An empty file.
    Empty,
    /// A compressed file of which nothing can be unpacked: it was cut or damaged early.
    Unreadable,
    /// A program.
    Program,
    /// A trace of events in JSON, as torch.profiler (Kineto) writes one.
    Kineto,
    /// An SQLite database, as Nsight Systems exports one.
    Sqlite,
    /// Text of an unknown kind.
    Text,
    /// Another kind, in words if it is a known one.
    Other(Option<&'static str>),
}

const JSON: &str = "JSON, which nvcap writes and does not read: record a trace (nvcap record), and read the recording";

/// First bytes of files that users give by mistake.
const MAGICS: &[(&[u8], &str)] = &[
    (
        &[0xd4, 0xc3, 0xb2, 0xa1],
        "a capture of network packets (pcap)",
    ),
    (
        &[0xa1, 0xb2, 0xc3, 0xd4],
        "a capture of network packets (pcap)",
    ),
    (
        &[0x4d, 0x3c, 0xb2, 0xa1],
        "a capture of network packets (pcap)",
    ),
    (
        &[0x0a, 0x0d, 0x0d, 0x0a],
        "a capture of network packets (pcapng)",
    ),
    (b"PERFILE2", "a recording of perf"),
    (b"PK\x03\x04", "a zip archive"),
    (
        b"BZh",
        "compressed by bzip2: decompress it first (bzip2 -dk)",
    ),
    (
        &[0x04, 0x22, 0x4d, 0x18],
        "compressed by lz4: decompress it first (lz4 -dk)",
    ),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"%PDF-", "a PDF document"),
    (b"PHASE ", "a file of phases (--phases)"),
    (b"channel ", "a file of channels (--channels)"),
    (b"doorbell ", "a file of channels (--channels)"),
];

/// Finds the kind of a reader's data. The returned reader gives all the bytes again.
pub fn of(mut reader: Box<dyn Read>) -> (Kind, Box<dyn Read>) {
    let mut head = Vec::new();
    let failed = reader.by_ref().take(MOST).read_to_end(&mut head).err();
    let kind = match (&failed, head.is_empty()) {
        // A file that cannot be read is not an empty one. The error comes again when the file is read.
        (Some(_), true) => Kind::Unreadable,
        _ => by_head(&head),
    };
    let rest = Failed(failed).chain(reader);
    (kind, Box::new(Cursor::new(head).chain(rest)))
}

/// Reader that gives an error once, at the place where it occurred before.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// Returns the kind of a file by its first bytes.
#[must_use]
pub fn by_head(head: &[u8]) -> Kind {
    if head.is_empty() {
        return Kind::Empty;
    }
    if head.starts_with(b"ORC1") {
        return Kind::Orc;
    }
    if is_recording(head) {
        return Kind::Recording;
    }
    if head.starts_with(b"\x7fELF") || head.starts_with(b"#!") {
        return Kind::Program;
    }
    let mut lines = head.split(|b| *b == b'\n');
    if lines.any(|l| l.starts_with(b"IOCTL /dev/") || l.starts_with(b"MMAP /dev/")) {
        return Kind::IoctlLog;
    }
    // torch.profiler begins with an empty line.
    let json = head.trim_ascii_start().starts_with(b"{");
    if json && CHROME.iter().any(|key| contains(head, key)) {
        return Kind::Kineto;
    }
    if json {
        return Kind::Other(Some(JSON));
    }
    if head.starts_with(b"SQLite format 3\0") {
        return Kind::Sqlite;
    }
    if let Some((_, what)) = MAGICS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Kind::Other(Some(what));
    }
    // This is a capture whose beginning is damaged.
    if contains(head, b"ORC1") {
        return Kind::Orc;
    }
    if head.get(257..262) == Some(b"ustar") {
        return Kind::Other(Some("a tar archive"));
    }
    match is_text(head) {
        true => Kind::Text,
        false => Kind::Other(None),
    }
}

/// Members with which the JSON of torch.profiler and of Chrome's tracing begins.
const CHROME: &[&[u8]] = &[b"\"traceEvents\"", b"\"schemaVersion\""];

fn contains(head: &[u8], what: &[u8]) -> bool {
    head.windows(what.len()).any(|w| w == what)
}

/// Returns the kind of a file by its name, in words that follow "it is", for files whose first bytes show nothing.
#[must_use]
pub fn by_name(path: &Path) -> Option<&'static str> {
    Some(match path.extension()?.to_str()? {
        "nsys-rep" | "qdrep" | "qdstrm" => {
            "a report of Nsight Systems by its name: nsys stats shows it; nvcap time and nvcap diff read what nsys export --type sqlite makes of it"
        }
        "ncu-rep" => {
            "a report of Nsight Compute by its name: ncu --import shows it, nvcap does not"
        }
        _ => return None,
    })
}

fn is_recording(head: &[u8]) -> bool {
    crate::recording::is_recording(head)
}

/// Tells whether bytes are text: UTF-8 without control characters, whose last character may be cut.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => {
            std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.is_empty() && text.chars().all(|c| !c.is_control() || c.is_whitespace())
}

impl Kind {
    /// Returns the kind in words that follow "it is", with advice for the file if there is any.
    #[must_use]
    pub fn seems(self) -> &'static str {
        match self {
            Self::Orc => "a capture: nvcap decode FILE",
            Self::Recording => "a recording: nvcap decode FILE",
            Self::IoctlLog => {
                "a log of ioctls: nvcap ioctls FILE, nvcap channels FILE, nvcap maps FILE"
            }
            Self::Empty => "empty",
            Self::Unreadable => "cut or damaged: nothing of it can be read",
            Self::Program => "a program: to run and trace it, give it behind --",
            Self::Kineto => {
                "a trace of events in JSON, as torch.profiler writes one: nvcap time and nvcap diff read it"
            }
            Self::Sqlite => {
                "an SQLite database, as nsys export writes one: nvcap time and nvcap diff read it"
            }
            Self::Text => "a text",
            Self::Other(Some(what)) => what,
            Self::Other(None) => "nothing that nvcap knows",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_beginning() {
        let mut tar = vec![b'a'; 257];
        tar.extend_from_slice(b"ustar\x0000");
        for (head, kind) in [
            (&b"ORC1\x01\0"[..], Kind::Orc),
            (b"\0\0damagedORC1", Kind::Orc),
            (b"IOCTL /dev/nvidiactl fd=8", Kind::IoctlLog),
            (b"# a note\nMMAP /dev/nvidia0 fd=9", Kind::IoctlLog),
            (b"the IOCTL /dev/nvidiactl line", Kind::Text),
            (b"", Kind::Empty),
            (b"\x7fELF\x02\x01", Kind::Program),
            (b"#!/bin/sh\n", Kind::Program),
            (&tar, Kind::Other(Some("a tar archive"))),
            (b"\x01\x02\x03", Kind::Other(None)),
            (b"\xff\xff", Kind::Other(None)),
            ("gr\u{fc}".as_bytes(), Kind::Text),
            (b"{\"type\":\"ledger\"}", Kind::Other(Some(JSON))),
            (&"gr\u{fc}".as_bytes()[..3], Kind::Text),
        ] {
            assert_eq!(by_head(head), kind, "{head:?}");
        }
        for (magic, what) in MAGICS {
            assert_eq!(by_head(magic), Kind::Other(Some(what)));
        }
    }

    #[test]
    fn files_of_other_profilers_are_named() {
        let kineto = b"{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [";
        // The real beginning of torch.profiler's files.
        let real = b"\n{\n  \"schemaVersion\": 1,";
        for head in [&kineto[..], real, b"{\"traceEvents\":[]}"] {
            assert_eq!(by_head(head), Kind::Kineto);
        }
        assert_eq!(by_head(b"SQLite format 3\0\x10\0"), Kind::Sqlite);
        let named = |name| by_name(Path::new(name)).unwrap_or_default();
        assert!(named("a.nsys-rep").contains("nsys stats"));
        assert!(named("b/c.ncu-rep").contains("ncu --import"));
        assert_eq!(by_name(Path::new("nsys-rep")), None);
    }

    #[test]
    fn nothing_is_lost_by_looking() {
        let all: Vec<u8> = (0..40_000u32).flat_map(u32::to_le_bytes).collect();
        let (_, mut reader) = of(Box::new(Cursor::new(all.clone())));
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, all);
        let (kind, mut reader) = of(Box::new(Failed(Some(io::Error::other("cut")))));
        let error = reader.read(&mut [0]).unwrap_err();
        assert_eq!(
            (kind, error.to_string().as_str()),
            (Kind::Unreadable, "cut")
        );
        // The error comes where it occurred: after the bytes that were read before it.
        let broken = Cursor::new(b"ORC1 and more").chain(Failed(Some(io::Error::other("cut"))));
        let (kind, mut reader) = of(Box::new(broken));
        let mut read = Vec::new();
        let error = reader.read_to_end(&mut read).unwrap_err();
        assert_eq!((kind, error.to_string().as_str()), (Kind::Orc, "cut"));
        assert_eq!(read, b"ORC1 and more");
    }
}
