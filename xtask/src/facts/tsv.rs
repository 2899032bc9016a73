//! The tables of `facts/`: TSV files, read by the names of their columns.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// A line of a table.
pub struct Line {
    cells: Vec<String>,
    /// File and column names.
    head: std::rc::Rc<(PathBuf, Vec<String>)>,
}

/// The lines of a table after its head.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let split = |line: &str| line.split('\t').map(str::to_owned).collect();
    let columns = lines.next().map(split).unwrap_or_default();
    let head = std::rc::Rc::new((path.to_owned(), columns));
    let line = |cells| Line {
        cells,
        head: head.clone(),
    };
    Ok(lines.map(split).map(line).collect())
}

/// The TSV files of a folder, by name.
pub fn files_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| format!("reading {}", dir.display()))?
        .map(|e| Ok(e?.path()))
        .collect::<Result<_>>()?;
    files.retain(|p| p.extension().is_some_and(|e| e == "tsv"));
    files.sort();
    Ok(files)
}

/// A number, hexadecimal after `0x`.
pub fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A hexadecimal number, with or without `0x`.
pub fn hex(text: &str) -> Result<u32> {
    let digits = text.trim_start_matches("0x");
    u32::from_str_radix(digits, 16).with_context(|| format!("not a hex number: {text}"))
}

impl Line {
    /// The cell of a column; empty if the line is shorter.
    pub fn get(&self, column: &str) -> Result<&str> {
        let (path, columns) = &*self.head;
        let index = columns.iter().position(|c| c == column);
        let index = index.with_context(|| format!("{}: no column {column}", path.display()))?;
        Ok(self.cells.get(index).map_or("", String::as_str))
    }

    /// The number of a column.
    pub fn number(&self, column: &str) -> Result<u32> {
        let text = self.get(column)?;
        let path = self.head.0.display();
        number(text).with_context(|| format!("{path}: column {column}: `{text}` is not a number"))
    }
}
