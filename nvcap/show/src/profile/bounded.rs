//! JSON whose parts have bounds: a reader that ends with an error where a text is too long, or values lie in each other too deep. Without it a text, or a
//! thousand million brackets, of a small compressed file would take all memory.

use std::io::{self, Read};

/// The most bytes of a text.
const MOST_TEXT: usize = 1 << 20;
/// The most arrays and objects that lie in each other.
const MOST_DEPTH: usize = 100;

/// The reader.
pub(super) struct Bounded<R> {
    inner: R,
    /// Number of arrays and objects that are open.
    depth: usize,
    /// Bytes of the text that is open.
    text: Option<usize>,
    /// True behind a backslash in a text.
    escaped: bool,
}

impl<R> Bounded<R> {
    pub(super) fn new(inner: R) -> Self {
        Self {
            inner,
            depth: 0,
            text: None,
            escaped: false,
        }
    }

    /// Follows the bytes; says what is beyond a bound.
    fn follow(&mut self, bytes: &[u8]) -> Option<&'static str> {
        for byte in bytes {
            match &mut self.text {
                Some(length) => {
                    *length += 1;
                    if *length > MOST_TEXT {
                        return Some("a text is longer than 1 MiB");
                    }
                    match byte {
                        _ if self.escaped => self.escaped = false,
                        b'\\' => self.escaped = true,
                        b'"' => self.text = None,
                        _ => {}
                    }
                }
                None => match byte {
                    b'"' => self.text = Some(0),
                    b'{' | b'[' => {
                        self.depth += 1;
                        if self.depth > MOST_DEPTH {
                            return Some("values lie in each other too deep");
                        }
                    }
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                },
            }
        }
        None
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(to)?;
        match self.follow(to.get(..n).unwrap_or_default()) {
            Some(why) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
            None => Ok(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<usize> {
        io::copy(&mut Bounded::new(bytes), &mut io::sink()).map(|n| n as usize)
    }

    #[test]
    fn texts_and_depth_have_bounds() {
        let text = |n: usize| format!("[\"{}\"]", "x".repeat(n));
        let deep = |n: usize| "[".repeat(n);
        assert_eq!(read(text(MOST_TEXT - 1).as_bytes()).unwrap(), MOST_TEXT + 3);
        assert!(read(text(MOST_TEXT).as_bytes()).is_err());
        assert!(read(deep(MOST_DEPTH).as_bytes()).is_ok());
        assert!(read(deep(MOST_DEPTH + 1).as_bytes()).is_err());
        // Closed ones do not count, nor do brackets and quotes of texts.
        assert!(read("[]{}".repeat(1000).as_bytes()).is_ok());
        assert!(read(format!("\"\\\"{}\"{}", deep(1000), deep(MOST_DEPTH)).as_bytes()).is_ok());
        assert!(read(format!("\"\\\\\"{}", deep(MOST_DEPTH + 1)).as_bytes()).is_err());
    }
}
