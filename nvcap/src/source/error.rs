//! What can go wrong when tracing live: each says what failed, why, and what to do.

use std::{fmt, io};

use super::rights;

/// A failure with its remedy.
#[derive(Debug)]
pub struct Error {
    what: String,
    why: String,
    next: String,
}

impl Error {
    /// What failed, why, and what to do about it.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, next: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
            next: next.into(),
        }
    }
}

impl Error {
    /// Why, without what failed and what to do.
    pub fn reason(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, why, next } = self;
        write!(f, "{what}: {why}; {next}")
    }
}

impl std::error::Error for Error {}

/// Result of a live source.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// What to do about a refused bpf(2), perf_event_open(2) or file of /proc.
pub(crate) fn remedy_for_refusal(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            concat!(rights::remedy!(), "; `nvcap doctor` says more")
        }
        Some(libc::ESRCH | libc::ENOENT) => "check the process id",
        Some(libc::ENOSPC) => {
            "another tool (a debugger, perf) holds the thread's debug registers: end it, or try `--how observe`"
        }
        _ => "`nvcap doctor` says what this machine allows",
    }
}
