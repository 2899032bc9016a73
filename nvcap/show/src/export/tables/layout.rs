//! Layout of tables in files: the format, and the files that rows go to.

use std::io;
use std::path::{Path, PathBuf};

use crate::output::writer::Output;

/// The format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values.
    Csv,
    /// Apache Parquet.
    #[cfg(feature = "parquet")]
    Parquet,
}

impl Format {
    /// The ending of its files' names.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            #[cfg(feature = "parquet")]
            Self::Parquet => "parquet",
        }
    }
}

/// A column by whose value rows go to different files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Id of the process.
    Pid,
    /// Minor number of the GPU.
    Gpu,
    /// Number of the channel.
    Channel,
}

impl Key {
    /// The column's name.
    pub(super) const fn column(self) -> &'static str {
        match self {
            Self::Pid => "pid",
            Self::Gpu => "gpu",
            Self::Channel => "channel",
        }
    }
}

/// Opens a file.
pub(crate) type Opener = Box<dyn Fn(&Path) -> io::Result<Output>>;

/// Layout of a table in files.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The folder of all tables.
    pub folder: PathBuf,
    /// Column for each of whose values there is a file.
    pub partition: Option<Key>,
    /// The most rows of a file.
    pub part_rows: Option<u64>,
    /// True if parts of an earlier trace are removed.
    pub force: bool,
    /// Device that everything goes to, instead of files in the folder.
    pub device: Option<PathBuf>,
}

impl Layout {
    /// Tells whether each table has a folder of its own, with several files.
    pub fn has_folders(&self) -> bool {
        self.partition.is_some() || self.part_rows.is_some()
    }

    /// Returns the path of a table that is one file.
    pub fn file(&self, table: &str, format: Format) -> PathBuf {
        self.folder.join(table).with_extension(format.ending())
    }

    /// Returns the folder of a table that is several files.
    pub fn folder_of(&self, table: &str) -> PathBuf {
        self.folder.join(table)
    }

    /// Returns the reason why a table cannot have several files: its folder has some already, which would be mixed with these; or, with
    /// `force`, files that are no parts of a table.
    pub fn refusal(&self, table: &str) -> Option<String> {
        if !self.has_folders() || self.device.is_some() {
            return None;
        }
        let folder = self.folder_of(table);
        let parts = match parts(&folder) {
            Ok(parts) => parts,
            Err(other) if self.force => {
                return Some(format!(
                    "{} is no part of a table, and would be lost or taken for one: name another folder with -o, or move it away",
                    other.display()
                ));
            }
            Err(other) => vec![other],
        };
        (!self.force && !parts.is_empty()).then(|| {
            format!(
                "{} is not empty, and its files would be taken for parts of this trace, or would be lost: name another folder with -o, or \
                 add --force to remove them",
                folder.display()
            )
        })
    }

    /// Removes the parts of an earlier trace that a table's folder has, where that was asked for.
    ///
    /// # Errors
    /// When one cannot be removed, or is no part.
    pub(super) fn clear(&self, table: &str) -> io::Result<()> {
        if let Some(why) = self.refusal(table) {
            return Err(io::Error::other(why));
        }
        let folder = self.folder_of(table);
        let parts = match self.has_folders() && self.device.is_none() {
            true => parts(&folder).unwrap_or_default(),
            false => Vec::new(),
        };
        for part in parts {
            std::fs::remove_file(&part)?;
            if let Some(of_value) = part.parent().filter(|parent| *parent != folder) {
                // Only once it is empty.
                let _ = std::fs::remove_dir(of_value);
            }
        }
        Ok(())
    }
}

/// Returns the parts that are in a table's folder and in those of a column's values. Something else that is there is the error, by its path.
fn parts(folder: &Path) -> Result<Vec<PathBuf>, PathBuf> {
    let mut parts = Vec::new();
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_folder || !name.to_string_lossy().contains('=') {
            parts.push(part(&entry)?);
            continue;
        }
        for entry in entry.path().read_dir().into_iter().flatten().flatten() {
            parts.push(part(&entry)?);
        }
    }
    Ok(parts)
}

/// Returns the path of a part of a table. Anything else is the error.
fn part(entry: &std::fs::DirEntry) -> Result<PathBuf, PathBuf> {
    let name = entry.file_name();
    let number = name.to_str().and_then(|name| {
        let rest = name.strip_prefix("part-")?;
        rest.strip_suffix(".csv").or(rest.strip_suffix(".parquet"))
    });
    let is_number = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let is_part = is_number && entry.file_type().is_ok_and(|kind| kind.is_file());
    match is_part {
        true => Ok(entry.path()),
        false => Err(entry.path()),
    }
}
