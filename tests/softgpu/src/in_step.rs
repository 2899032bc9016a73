//! Being in step with those who trace the program: the options, and the table that both share ([`nvcap_process::in_step`]). [`crate::waits`] waits.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
pub use nvcap_process::in_step::{FILE, Table};

/// Options of being in step (`--in-step` and its kin).
#[derive(Clone, Debug)]
pub struct Options {
    /// The table, which the tracers and this program share.
    pub table: PathBuf,
    /// Entries of a channel that may be unread at most.
    pub window: u64,
    /// True if tracers may attach later: channels that nobody has told of are not waited for. Pauses grow until somebody tells of one.
    pub follow: bool,
    /// Say so once so many submissions were made to channels that somebody had told of, and have been read.
    pub say: Option<u64>,
    /// Go this far too far once, while it is known that nobody looks.
    pub lap: Option<Lap>,
}

/// Going too far: so that a test knows to the entry by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// Number of submissions of each channel before it.
    pub after: u64,
    /// Number of further submissions of each channel.
    pub by: u64,
}

impl std::str::FromStr for Lap {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let parts = text.split_once(':').map(|(a, b)| (a.parse(), b.parse()));
        match parts {
            Some((Ok(after), Ok(by))) => Ok(Self { after, by }),
            _ => Err("not AFTER:BY, two numbers".to_owned()),
        }
    }
}

/// Being in step.
pub struct InStep {
    pub(crate) table: Table,
    pub(crate) options: Options,
}

impl std::fmt::Debug for InStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InStep")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Action that is due before a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Go,
    /// Go on, and pause afterwards: nobody is there yet.
    Slowly(Duration),
    /// Wait until no more than this number of entries are unread.
    Wait(u64),
}

impl InStep {
    /// Opens the table; what was told of this process's memory of before is forgotten.
    pub fn begin(options: &Options) -> Result<Self> {
        let table = Table::open(&options.table)
            .with_context(|| format!("--in-step {}", options.table.display()))?;
        table.forget(std::process::id());
        Ok(Self {
            table,
            options: options.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lap_is_two_numbers() {
        let lap = Lap {
            after: 300,
            by: 1500,
        };
        assert_eq!("300:1500".parse(), Ok(lap));
        assert!("300".parse::<Lap>().is_err());
    }
}
