//! Text files of `/proc`, which may contain any bytes.

use std::{fs, io, path::Path};

/// Reads a file of `/proc`, with U+FFFD for bytes that are not UTF-8.
///
/// # Errors
/// The errors of reading the file.
pub(crate) fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
    })
}
