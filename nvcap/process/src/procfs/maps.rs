//! Lines of `/proc/PID/maps`.

use std::io::{self, Read};

use super::{errands, of_process};

/// One line: a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Rights: `rwxp` or, for MAP_SHARED, `rwxs`, with `-` for a missing right.
    flags: &'a [u8],
    /// Offset in the file.
    pub offset: u64,
    /// Device of the file system, `major:minor` in hexadecimal.
    pub device: &'a str,
    /// Inode of the file; 0 for private anonymous memory.
    pub inode: u64,
    /// File name as the kernel shows it, empty for anonymous memory.
    pub path: &'a str,
}

impl<'a> Line<'a> {
    /// Returns major and minor number of the file system's device.
    pub fn number(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.device.split_once(':')?;
        let hex = |number| u32::from_str_radix(number, 16).ok();
        Some((hex(major)?, hex(minor)?))
    }

    /// Reads a line.
    pub fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |number: &str| u64::from_str_radix(number, 16).ok();
        let (start, end) = (hex(start)?, hex(end)?);
        (start <= end).then_some(())?;
        Some(Self {
            start,
            end,
            flags: words.next()?.as_bytes(),
            offset: hex(words.next()?)?,
            device: words.next()?,
            inode: words.next()?.parse().ok()?,
            path: words.next().unwrap_or("").trim_start(),
        })
    }

    /// Tells whether the memory is readable.
    pub fn read(&self) -> bool {
        self.flags.first() == Some(&b'r')
    }

    /// Tells whether the memory is writable.
    pub fn write(&self) -> bool {
        self.flags.get(1) == Some(&b'w')
    }

    /// Tells whether the memory is executable.
    pub fn execute(&self) -> bool {
        self.flags.get(2) == Some(&b'x')
    }

    /// Tells whether the mapping is shared (MAP_SHARED).
    pub fn shared(&self) -> bool {
        self.flags.get(3) == Some(&b's')
    }
}

/// Gives every line to `each`, with U+FFFD for bytes that are not UTF-8. Text that is not a line of mappings is left out. `between` is
/// called after each page of text: the kernel takes some tens of microseconds to write such a page, and a large process has a hundred of
/// them.
///
/// # Errors
/// The errors of reading `/proc/PID/maps`: no such process, or no right to read it.
pub fn each_line(
    pid: u32,
    between: &mut dyn FnMut(),
    each: &mut dyn FnMut(Line<'_>),
) -> io::Result<()> {
    let mut file = errands::open(pid, of_process(pid, "maps"))?;
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let n = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        text.extend_from_slice(piece.get(..n).unwrap_or_default());
        // The whole lines are taken; the rest is the beginning of one.
        if let Some(end) = text.iter().rposition(|b| *b == b'\n') {
            lines(text.get(..end).unwrap_or_default(), each);
            text.drain(..=end);
        }
        between();
    }
    lines(&text, each);
    Ok(())
}

/// Gives every line of a text to `each`, as `each_line` does.
pub fn lines(text: &[u8], each: &mut dyn FnMut(Line<'_>)) {
    for line in text.split(|b| *b == b'\n') {
        if let Some(line) = Line::parse(&String::from_utf8_lossy(line)) {
            each(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line() {
        let line =
            "7fbc28cd4000-7fbc28ce4000 -w-s 00001000 00:05 512                        /dev/a b";
        let line = Line::parse(line).unwrap();
        assert_eq!((line.start, line.end), (0x7fbc_28cd_4000, 0x7fbc_28ce_4000));
        assert!(!line.read() && line.write() && !line.execute() && line.shared());
        assert_eq!(
            (line.offset, line.device, line.inode),
            (0x1000, "00:05", 512)
        );
        assert_eq!(line.path, "/dev/a b");
        assert_eq!(Line::parse("0-0 rw-p 00000000 00:00 0").unwrap().path, "");
        assert_eq!(Line::parse("nonsense"), None);
        assert_eq!(Line::parse("2-1 rw-p 00000000 00:00 0"), None);
    }

    #[test]
    fn bytes_that_are_no_text() {
        let mut paths = Vec::new();
        lines(
            b"1-2 r--p 0 00:00 7 /\xff\nnonsense\n2-3 r--p 0 00:00 8 /b",
            &mut |line| {
                paths.push(line.path.to_owned());
            },
        );
        assert_eq!(paths, ["/\u{fffd}", "/b"]);
    }
}
