//! A file that is read from its beginning to its end. Memory holds as many bytes from the current place on as are asked for.

use std::io::{self, Read};

/// Number of bytes that are requested from the reader at a time.
pub(crate) const CHUNK: usize = 1 << 20;

/// A file that is read from its beginning to its end, with as many bytes ahead as are asked for.
pub(crate) struct ReadAhead<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Current place, as an index into `buffer`.
    at: usize,
    /// Offset of `buffer[0]` in the file.
    offset: u64,
    ended: bool,
}

/// Failure of a read: its offset and its reason.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) offset: u64,
    pub(crate) source: io::Error,
}

impl<R: Read> ReadAhead<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            at: 0,
            offset: 0,
            ended: false,
        }
    }

    /// Returns the current place, as an offset in the file.
    pub(crate) fn position(&self) -> u64 {
        self.offset + self.at as u64
    }

    /// Returns the bytes from the current place on that are in memory.
    pub(crate) fn rest(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or(&[])
    }

    /// Advances the current place by this many bytes, and returns them.
    pub(crate) fn pass(&mut self, bytes: usize) -> &[u8] {
        let from = self.at;
        self.at = (from + bytes).min(self.buffer.len());
        self.buffer.get(from..self.at).unwrap_or(&[])
    }

    /// Reads until this many bytes from the current place on are in memory. Returns false if the file ends before. Bytes before the current
    /// place are dropped, so memory does not grow with the file. After a failure the file is at its end.
    pub(crate) fn fill(&mut self, wanted: usize) -> Result<bool, Failed> {
        while self.buffer.len() - self.at < wanted && !self.ended {
            if self.at > 0 {
                self.buffer.drain(..self.at);
                self.offset += self.at as u64;
                self.at = 0;
            }
            let more = (wanted - self.buffer.len()).max(CHUNK) as u64;
            let read = self.reader.by_ref().take(more);
            match { read }.read_to_end(&mut self.buffer) {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(source) => {
                    self.ended = true;
                    let offset = self.offset + self.buffer.len() as u64;
                    return Err(Failed { offset, source });
                }
            }
        }
        Ok(self.buffer.len() - self.at >= wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reader that gives these bytes, then fails.
    struct Broken<'a>(&'a [u8]);

    impl Read for Broken<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            match self.0.is_empty() {
                true => Err(io::ErrorKind::TimedOut.into()),
                false => self.0.read(to),
            }
        }
    }

    #[test]
    fn all_bytes_come_once_and_memory_is_let_go_of() {
        let file: Vec<u8> = (0..3 * CHUNK + 7).map(|n| (n % 251) as u8).collect();
        let mut ahead = ReadAhead::new(file.as_slice());
        let mut all = Vec::new();
        while ahead.fill(1000).unwrap() {
            assert_eq!(ahead.position(), all.len() as u64);
            all.extend_from_slice(ahead.pass(777));
            assert!(ahead.buffer.len() <= CHUNK + 1000);
        }
        let rest = ahead.rest().len();
        all.extend_from_slice(ahead.pass(rest + 5));
        assert!(all == file);
        assert_eq!(ahead.position(), file.len() as u64);
        assert!(ahead.rest().is_empty() && !ahead.fill(1).unwrap());
    }

    #[test]
    fn a_failure_says_where_and_what_came_before_it_is_there() {
        let mut ahead = ReadAhead::new(Broken(b"12345"));
        ahead.fill(2).unwrap_err();
        assert_eq!(ahead.pass(2), b"12");
        let mut ahead = ReadAhead::new(Broken(b"12345"));
        let failed = ahead.fill(6).unwrap_err();
        assert_eq!(failed.offset, 5);
        assert_eq!(failed.source.kind(), io::ErrorKind::TimedOut);
        assert_eq!(ahead.rest(), b"12345");
        assert!(!ahead.fill(6).unwrap());
    }
}
