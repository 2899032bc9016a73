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
