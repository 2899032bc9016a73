//! Output of `nvcap --json`: an object a line.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The objects of a text.
///
/// # Errors
/// For a line that is none.
pub fn of(text: &str) -> Result<Vec<Value>> {
    let objects = text.lines().map(serde_json::from_str);
    Ok(objects.collect::<Result<_, _>>()?)
}

/// The objects of a file.
///
/// # Errors
/// As of a text; those of reading it.
pub fn of_file(file: &Path) -> Result<Vec<Value>> {
    of(&std::fs::read_to_string(file).with_context(|| file.display().to_string())?)
}
