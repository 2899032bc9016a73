//! Records from files, plain or compressed.

pub mod ioctl_log;
pub mod kind;
pub mod orc;
pub mod packed;

use std::{io, io::Read, path::Path};

use kind::Kind;

/// The most bytes of a text that is read whole.
const MOST_TEXT: u64 = 16 << 20;

/// Reads a whole text file that the user names, compressed or not: phases (`--phases`) or channels (`--channels`).
///
/// # Errors
/// When the file cannot be read, is no text, or is longer than 16 MiB (`/dev/zero` has no end).
pub fn text(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    let file = packed::open(path)?;
    file.take(MOST_TEXT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOST_TEXT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is longer than {} MiB", MOST_TEXT >> 20),
        ));
    }
    String::from_utf8(text).map_err(|e| {
        let what = match kind::by_head(e.as_bytes()) {
            Kind::Other(None) | Kind::Text => "it is no text".to_owned(),
            kind => format!("it is no text, it is {}", kind.seems()),
        };
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_refused() {
        let refused = text(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(refused.to_string(), "it is longer than 16 MiB");
        assert_eq!(text(Path::new("/dev/null")).unwrap(), "");
    }
}
