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
    /// A file for each value of this column.
    pub partition: Option<Key>,
    /// The most rows of a file.
    pub part_rows: Option<u64>,
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

    /// Returns the reason why a table cannot have several files: its folder has some already, which would be mixed with these.
    pub fn refusal(&self, table: &str) -> Option<String> {
        let folder = self.folder.join(table);
        let has_files = |folder: &Path| folder.read_dir().is_ok_and(|mut d| d.next().is_some());
        (self.has_folders() && has_files(&folder)).then(|| {
            format!(
                "{} is not empty, and its files would be taken for parts of this trace: name another folder, or remove it",
                folder.display()
            )
        })
    }
}
