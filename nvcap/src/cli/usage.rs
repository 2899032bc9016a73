//! Errors of a command line that clap cannot find, and whose exit status is that of clap's.

use std::fmt;

/// Error of a command line that is not understood, contradicts itself, or would destroy a file.
#[derive(Debug)]
pub(super) struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Returns early with a [`Usage`], as `anyhow::bail!` does with another error.
macro_rules! bail_usage {
    ($($words:tt)*) => {
        return Err($crate::cli::usage::Usage(format!($($words)*)).into())
    };
}

pub(super) use bail_usage;
