//! Identity of a mapped file.

use std::fmt;

/// The most bytes of a build id.
pub(super) const MOST_ID: usize = 64;

/// A file's identity: its build id, or a checksum of its first page where it has none. That page has sizes and places of the file's
/// parts, and the store's bytes are compared as well.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileId {
    /// The build id that the linker made.
    Build(Vec<u8>),
    /// A checksum of the first page.
    Head(u64),
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(id) => {
                f.write_str("b")?;
                id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Head(sum) => write!(f, "h{sum:x}"),
        }
    }
}

impl FileId {
    /// Reads the text that `fmt` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(sum) = text.strip_prefix('h') {
            return u64::from_str_radix(sum, 16).ok().map(Self::Head);
        }
        let id = bytes(text.strip_prefix('b')?)?;
        (!id.is_empty() && id.len() <= MOST_ID).then_some(Self::Build(id))
    }
}

/// Bytes from hexadecimal digits.
pub(super) fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|c| Some(c.to_digit(16)? as u8)).collect();
    let digits = digits.filter(|d| d.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|d| d[0] << 4 | d[1]).collect())
}
