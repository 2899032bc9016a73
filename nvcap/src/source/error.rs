//! What can go wrong when tracing live: each says what failed, why, and what to do.

use std::{fmt, io};

use super::{filtered, rights};
use crate::procfs::unfit::Unfit;

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
    /// The failure of `doing` something with a process that cannot be looked into.
    pub(crate) fn unfit(doing: &str, pid: u32, unfit: Unfit) -> Self {
        Self::new(format!("{doing} process {pid}"), unfit.why, unfit.next)
    }

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

/// What is left to do where nothing better is known.
pub(crate) const ASK_DOCTOR: &str = "`nvcap doctor` says what this machine allows";

/// What stands behind the remedy for lacking rights, as text to be put together with others when this is compiled.
macro_rules! doctor_says_more {
    () => {
        "`nvcap doctor` says more"
    };
}

/// What to do about a refused bpf(2), perf_event_open(2) or file of /proc.
pub(crate) fn remedy_for_refusal(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) if filtered::trap_refused().is_some() => {
            filtered::FOR_REFUSED
        }
        Some(libc::EPERM | libc::EACCES) => {
            concat!(rights::remedy!(), "; ", doctor_says_more!())
        }
        Some(libc::ESRCH | libc::ENOENT) => "check the process id",
        Some(libc::ENOSPC) => {
            "another tool (a debugger, perf) holds the thread's debug registers: end it, or try `--how observe`"
        }
        _ => ASK_DOCTOR,
    }
}

/// A thread cannot be started.
pub(crate) fn no_thread(e: &io::Error) -> Error {
    Error::new("starting a thread", e, filtered::remedy_for_thread())
}

/// What an error says, for doctor to say it: without the advice to ask doctor.
pub(crate) fn without_doctor(text: &str) -> &str {
    let advice = [ASK_DOCTOR, doctor_says_more!()];
    let rest = advice.iter().find_map(|advice| text.strip_suffix(advice));
    rest.map_or(text, |rest| rest.trim_end_matches([' ', ';', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_does_not_send_to_doctor() {
        for errno in [libc::EPERM, libc::EINVAL, libc::ESRCH] {
            let why = io::Error::from_raw_os_error(errno);
            let error = Error::new("loading", &why, remedy_for_refusal(&why)).to_string();
            let said = without_doctor(&error);
            assert!(
                !said.contains("doctor") && said.contains(&why.to_string()),
                "{said}"
            );
            assert!(!said.ends_with([' ', ';', ':']), "{said}");
        }
        assert_eq!(without_doctor("a: b; c"), "a: b; c");
    }
}
