//! Records from an ioctl log: the text form in which tests/captures/h200-ioctl.log.gz contains every ioctl (argument before and after,
//! nested parameters) and every mmap of one process. The reader knows this form. About the ioctls it knows only the place of their nested
//! parameters and the length of their arguments.
//!
//! ```text
//! IOCTL /dev/nvidiactl fd=8 nr=0x2a size=32
//!  in[32] 1f00d0c1 1f00d0c1 ...            bytes in memory order, groups of four
//!  CONTROL hClient=... cmd=... psize=40    (or ALLOC ...): repeats fields of the argument; not read
//!  pin[40] ...                             what the argument points to, before
//!  ret=0 fd=8 nr=0x2a
//!  out[32] ...
//!  pout[40] ...                            and after
//! MMAP /dev/nvidia0 fd=16 addr=0x7f.. len=0x10000 prot=2 flags=0x1 off=0x0
//! ```
//!
//! The log has no times: its records have time 0, and no call has a time of return. Process and thread come from `pid=` and `tid=` at the
//! end of an IOCTL or MMAP line (tests/gpu/ioctl_log.c writes them), else from [`LogOptions`], else they are 0. If a request does not carry
//! the size of its argument (UVM requests, allocation parameters), the log may hold fewer bytes of the argument than there were, or more.
//! [`Bytes::full_len`] is then the size in the tables.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use super::kind::{self, Kind};
use super::packed;

use nvcap_decode::{
    driver::{Version, allocation_size, number, rm_request, uvm_argument_size},
    record::{At, Bytes, CpuVa, Device, Ioctl, Mapping, Nested, Record},
};

/// The most bytes of a line. The longest argument has some ten thousand.
const MOST_LINE: u64 = 1 << 20;
/// The most bytes of text that are read, because a small compressed file may unpack to any length.
const MOST_TEXT: u64 = 4 << 30;
/// Approximate limit of the memory that the records of a log may take, bytes.
const MOST_RECORDS: usize = 1 << 30;

/// Facts that the reader of a log must be given, because the log does not contain them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOptions {
    /// Process and thread id for the records.
    pub pid: u32,
    /// Release of the driver. It determines the sizes of structures of which the log has only the beginnings.
    pub driver_version: Option<Version>,
}

/// Reason why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or read.
    #[error("{path}: {error}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of opening or reading the file.
        error: io::Error,
    },
    /// The file is not an ioctl log.
    #[error("{path}: no IOCTL or MMAP line of a driver's file is in it: it is {}", .kind.seems())]
    NotALog {
        /// Path of the file.
        path: PathBuf,
        /// Kind of file that the file seems to be.
        kind: Kind,
    },
}

/// A log, read whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Records of the log, in order.
    pub records: Vec<Record>,
    /// Lines that could not be understood, by number from 1 (the first thousand).
    pub bad_lines: Vec<usize>,
    /// Number of ioctls whose return value or returned argument is missing, because the log was cut.
    pub unfinished: usize,
    /// Reason why the end of the log is missing; `None` if the log is complete.
    pub cut: Option<String>,
}

/// Reads a log from a file, compressed or not ([`packed`]).
///
/// # Errors
/// The file cannot be read, or has no line of an ioctl log.
pub fn read_file(path: &Path, options: LogOptions) -> Result<Log, Error> {
    let failed = |error| Error::Read {
        path: path.to_owned(),
        error,
    };
    let (kind, reader) = kind::of(packed::open(path).map_err(failed)?);
    let none = || Error::NotALog {
        path: path.to_owned(),
        kind,
    };
    // A text, or a file of no known kind, may have lines of a log further on; other kinds of files cannot.
    if !matches!(
        kind,
        Kind::IoctlLog | Kind::Text | Kind::Other(None) | Kind::Unreadable
    ) {
        return Err(none());
    }
    let log = read(reader, options).map_err(failed)?;
    if log.records.is_empty() {
        return Err(none());
    }
    Ok(log)
}

/// Reads a log's text. Lines of another form are listed ([`Log::bad_lines`]) and skipped. If a log was cut, its complete lines are read,
/// and [`Log::cut`] says why the rest is missing.
///
/// # Errors
/// The errors of the reader. Compressed text that ends early or is damaged is no error once a line was read; see [`Log::cut`].
pub fn read(reader: impl Read, options: LogOptions) -> io::Result<Log> {
    read_at_most(reader, options, (MOST_TEXT, MOST_RECORDS))
}

/// Does as [`read`], but stops after `most.0` bytes of text, or when the records take about `most.1` bytes of memory.
fn read_at_most(reader: impl Read, options: LogOptions, most: (u64, usize)) -> io::Result<Log> {
    let mut reader = BufReader::new(reader);
    let mut parser = Parser {
        options,
        log: Log::default(),
        current: None,
        kept: 0,
    };
    let mut line = Vec::new();
    let (mut count, mut text) = (0, 0);
    loop {
        line.clear();
        if text > most.0 || parser.kept > most.1 {
            parser.log.cut = Some(format!(
                "it is longer than what is read of one ({} MiB of text, {} MiB of records): what comes behind line {count} is left out; cut it in pieces",
                most.0 >> 20,
                most.1 >> 20
            ));
            break;
        }
        match reader.by_ref().take(MOST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(n) if n as u64 == MOST_LINE && line.last() != Some(&b'\n') => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "line {} is longer than {MOST_LINE} bytes: this is not an ioctl log",
                        count + 1
                    ),
                ));
            }
            // A last line that was cut is not read, because the first half of a number is another number.
            Ok(_) if line.last() != Some(&b'\n') => {
                parser.log.cut = Some(format!(
                    "it ends within line {}: the rest is missing",
                    count + 1
                ));
                break;
            }
            Ok(_) => {}
            Err(e) if is_damage(&e) && count > 0 => {
                parser.log.cut = Some(format!(
                    "its compressed text is damaged or cut behind line {count}, and the rest is missing ({e})"
                ));
                break;
            }
            Err(e) if is_damage(&e) => {
                let why = format!("it was cut or damaged before the end of its first line ({e})");
                return Err(io::Error::new(e.kind(), why));
            }
            Err(e) => return Err(e),
        }
        count += 1;
        text += line.len() as u64;
        let words = String::from_utf8_lossy(&line);
        let understood = parser.line(words.trim_end_matches(['\n', '\r']));
        if understood.is_none() && parser.log.bad_lines.len() < 1000 {
            parser.log.bad_lines.push(count);
        }
    }
    parser.finish();
    Ok(parser.log)
}

/// Tells whether an error is about compressed data that is cut or damaged, and not about reading the file.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData
    )
}

/// The ioctl whose lines are being read.
struct Open {
    ioctl: Ioctl,
    nested_input: Option<Bytes>,
    nested_output: Option<Bytes>,
    /// True once a `ret=` line was read.
    returned: bool,
}

struct Parser {
    options: LogOptions,
    log: Log,
    current: Option<Open>,
    /// Approximate memory taken by the records, bytes.
    kept: usize,
}

impl Parser {
    fn keep(&mut self, record: Record) {
        self.kept += 512
            + match &record {
                Record::Ioctl(i) => {
                    let nested = i.nested.iter();
                    let nested = nested.map(|n| n.input.data.len() + n.output.data.len());
                    i.input.data.len() + i.output.data.len() + nested.sum::<usize>()
                }
                _ => 0,
            };
        self.log.records.push(record);
    }

    /// Returns process and thread of a record, from the words of its first line.
    fn at(&self, rest: &str) -> At {
        let id = |name: &str| {
            let mut values = rest
                .split(' ')
                .filter_map(|w| w.strip_prefix(name)?.parse().ok());
            values.next()
        };
        let pid = id("pid=").unwrap_or(self.options.pid);
        At {
            time_ns: 0,
            pid,
            tid: id("tid=").unwrap_or(pid),
        }
    }

    /// Reads one line; `None` if the line is not understood.
    fn line(&mut self, line: &str) -> Option<()> {
        if line.is_empty() {
            return Some(());
        }
        if let Some(rest) = line.strip_prefix("IOCTL ") {
            self.finish();
            let open = self.begin(rest)?;
            self.current = Some(open);
            return Some(());
        }
        if let Some(rest) = line.strip_prefix("MMAP ") {
            self.finish();
            let mapping = self.mmap(rest)?;
            self.keep(Record::Mapping(mapping));
            return Some(());
        }
        let rest = line.strip_prefix(' ')?;
        if rest.starts_with("ALLOC ") || rest.starts_with("CONTROL ") {
            return Some(());
        }
        let open = self.current.as_mut()?;
        if let Some(rest) = rest.strip_prefix("ret=") {
            let result = rest.split(' ').next()?.parse().ok()?;
            open.ioctl.result = Some(result);
            open.returned = true;
            return Some(());
        }
        let (name, rest) = rest.split_once('[')?;
        let (len, hex) = rest.split_once(']')?;
        let len: usize = len.parse().ok()?;
        let bytes = Bytes {
            full_len: len as u64,
            data: unhex(hex, len)?,
        };
        match name {
            "in" => open.ioctl.input = bytes,
            "out" => open.ioctl.output = bytes,
            "pin" => open.nested_input = Some(bytes),
            "pout" => open.nested_output = Some(bytes),
            _ => return None,
        }
        Some(())
    }

    fn begin(&mut self, rest: &str) -> Option<Open> {
        let mut words = rest.split(' ');
        let device = device(words.next()?)?;
        let (mut fd, mut nr, mut size) = (None, None, None);
        for word in words {
            match word.split_once('=')? {
                ("fd", v) => fd = v.parse::<i32>().ok(),
                ("nr", v) => nr = unsigned(v),
                ("size", v) => size = v.parse::<u64>().ok(),
                _ => {}
            }
        }
        let (nr, size) = (u32::try_from(nr?).ok()?, u32::try_from(size?).ok()?);
        // The log gives a request as the number and size of which an RM request consists. UVM requests are plain numbers (UVM_INITIALIZE is
        // 0x30000001, "nr=0x1 size=12288").
        let request = match device {
            Device::Uvm => (size & 0x3fff) << 16 | nr,
            _ => rm_request(u8::try_from(nr).ok()?, u16::try_from(size).ok()?),
        };
        let at = self.at(rest);
        Some(Open {
            ioctl: Ioctl {
                at,
                end_ns: None,
                device,
                fd,
                file: 0,
                named_file: 0,
                request,
                result: None,
                input: Bytes::default(),
                output: Bytes::default(),
                nested: None,
            },
            nested_input: None,
            nested_output: None,
            returned: false,
        })
    }

    fn mmap(&mut self, rest: &str) -> Option<Mapping> {
        let mut words = rest.split(' ');
        let device = device(words.next()?)?;
        let (mut fd, mut start, mut len, mut prot) = (None, None, None, 0);
        for word in words {
            match word.split_once('=')? {
                ("fd", v) => fd = v.parse::<i32>().ok(),
                ("addr", v) => start = unsigned(v),
                ("len", v) => len = unsigned(v),
                ("prot", v) => prot = v.parse::<u32>().ok()?,
                _ => {}
            }
        }
        Some(Mapping {
            at: self.at(rest),
            device,
            fd,
            file: 0,
            start: CpuVa(start?),
            len: len?,
            read: prot & 1 != 0,
            write: prot & 2 != 0,
            found: false,
        })
    }

    /// Completes the ioctl that was being read.
    fn finish(&mut self) {
        let Some(mut open) = self.current.take() else {
            return;
        };
        let ioctl = &open.ioctl;
        let lacks = |before: bool, after: bool| before && !after;
        if !open.returned
            || lacks(ioctl.input.full_len > 0, ioctl.output.full_len > 0)
            || lacks(open.nested_input.is_some(), open.nested_output.is_some())
        {
            self.log.unfinished += 1;
        }
        let ioctl = &mut open.ioctl;
        let version = self.options.driver_version;
        if ioctl.device == Device::Uvm
            && let Some(size) = uvm_argument_size(ioctl.request, version)
        {
            for bytes in [&mut ioctl.input, &mut ioctl.output] {
                set_full_len(bytes, size as u64);
            }
        }
        if open.nested_input.is_some() || open.nested_output.is_some() {
            let mut nested = Nested {
                address: CpuVa(number(&ioctl.input.data, 16, 8).unwrap_or(0)),
                input: open.nested_input.unwrap_or_default(),
                output: open.nested_output.unwrap_or_default(),
            };
            if ioctl.request & 0xff == 0x2b {
                let class = number(&ioctl.input.data, 12, 4).unwrap_or(0);
                let size = u32::try_from(class)
                    .ok()
                    .and_then(|class| allocation_size(class, version));
                if let Some(size) = size {
                    set_full_len(&mut nested.input, size as u64);
                    set_full_len(&mut nested.output, size as u64);
                }
            }
            ioctl.nested = Some(nested);
        }
        self.keep(Record::Ioctl(Box::new(open.ioctl)));
    }
}

/// Sets the true size of an argument. The log may have only the argument's beginning. Bytes behind its end are removed.
fn set_full_len(bytes: &mut Bytes, size: u64) {
    if bytes.data.is_empty() {
        return;
    }
    bytes.full_len = size;
    if let Ok(size) = usize::try_from(size) {
        bytes.data.truncate(size);
    }
}

fn device(path: &str) -> Option<Device> {
    match path.strip_prefix("/dev/nvidia")? {
        "ctl" => Some(Device::Control),
        "-uvm" | "-uvm-tools" => Some(Device::Uvm),
        minor => minor.parse().ok().map(Device::Gpu),
    }
}

fn unsigned(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses bytes in hex, with spaces anywhere; at most `len` of them.
fn unhex(text: &str, len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len.min(text.len() / 2));
    let mut half: Option<u8> = None;
    for c in text.bytes().filter(|c| *c != b' ') {
        let digit = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            b'A'..=b'F' => c - b'A' + 10,
            _ => return None,
        };
        half = match half {
            None => Some(digit),
            Some(high) => {
                bytes.push(high << 4 | digit);
                None
            }
        };
    }
    (half.is_none() && bytes.len() <= len).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Log {
        read(text.as_bytes(), LogOptions::default()).unwrap()
    }

    #[test]
    fn a_text_without_end_is_read_to_a_bound() {
        let refused = read(io::repeat(0), LogOptions::default()).unwrap_err();
        assert!(
            refused.to_string().contains("line 1 is longer"),
            "{refused}"
        );
        let line =
            "MMAP /dev/nvidia3 fd=16 addr=0x7fbc28cd4000 len=0x10000 prot=2 flags=0x1 off=0x0\n";
        let log = line.repeat(100);
        for (most, kept) in [((1000, 1 << 20), 13), ((1 << 20, 5000), 10)] {
            let log = read_at_most(log.as_bytes(), LogOptions::default(), most).unwrap();
            assert_eq!(log.records.len(), kept);
            let cut = log.cut.expect("the rest is missing");
            assert!(cut.contains("longer than what is read"), "{cut}");
        }
        let whole = read_at_most(log.as_bytes(), LogOptions::default(), (8400, 60_000)).unwrap();
        assert_eq!((whole.records.len(), whole.cut), (100, None));
    }

    #[test]
    fn one_ioctl_and_one_mapping() {
        let log = parse(
            "IOCTL /dev/nvidiactl fd=8 nr=0x29 size=16\n in[16] 2000d0c1 2000d0c1 0200005c 00000000\n \
             ret=0 fd=8 nr=0x29\n out[16] 2000d0c1 2000d0c1 0200005c 00000000\n\
             MMAP /dev/nvidia3 fd=16 addr=0x7fbc28cd4000 len=0x10000 prot=2 flags=0x1 off=0x0\n",
        );
        assert!(log.bad_lines.is_empty(), "{:?}", log.bad_lines);
        assert_eq!(log.unfinished, 0);
        let [Record::Ioctl(ioctl), Record::Mapping(mapping)] = &log.records[..] else {
            panic!("{:?}", log.records);
        };
        assert_eq!(ioctl.request, 0xc010_4629);
        assert_eq!(ioctl.input.data.len(), 16);
        assert_eq!(number(&ioctl.output.data, 8, 4), Some(0x5c00_0002));
        assert_eq!(ioctl.result, Some(0));
        assert_eq!(mapping.device, Device::Gpu(3));
        assert!(mapping.write && !mapping.read);
    }

    #[test]
    fn process_and_thread_are_read_where_they_are_told() {
        let log = parse(
            "IOCTL /dev/nvidiactl fd=8 nr=0x29 size=16 pid=70 tid=71 req=0xc0104629\n in[4] 00000000\n ret=-22 fd=8 nr=0x29\n\
             MMAP /dev/nvidia0 fd=9 addr=0x1000 len=0x1000 prot=1 flags=0x1 off=0x0 pid=70 tid=70\n",
        );
        let [Record::Ioctl(ioctl), Record::Mapping(mapping)] = &log.records[..] else {
            panic!("{:?}", log.records);
        };
        assert_eq!(
            (ioctl.at.pid, ioctl.at.tid, ioctl.result),
            (70, 71, Some(-22))
        );
        assert_eq!((mapping.at.pid, mapping.at.tid), (70, 70));
    }

    #[test]
    fn what_is_not_of_the_form_is_noted_and_the_rest_read() {
        let log = parse(
            "hello\nIOCTL /dev/null fd=1\nIOCTL /dev/nvidia-uvm fd=10 nr=0x1 size=12288\n in[4] 0102\n \
             in[1] 010203\n in[2] 01zz\n what[3] 00\nMMAP /dev/nvidia0 nonsense\n",
        );
        assert_eq!(log.bad_lines, [1, 2, 5, 6, 7, 8]);
        assert_eq!(log.unfinished, 1);
        let [Record::Ioctl(ioctl)] = &log.records[..] else {
            panic!("{:?}", log.records);
        };
        assert_eq!(ioctl.request, 0x3000_0001);
        assert_eq!(ioctl.result, None);
    }
}
