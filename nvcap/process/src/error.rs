//! Errors of live tracing: each says what failed, why, and what to do.

use std::{fmt, io};

use super::{filtered, rights};
use crate::procfs::unfit::Unfit;

/// A failure with its remedy.
#[derive(Debug)]
pub struct Error {
    what: String,
    why: String,
    next: String,
    /// Alternatives that are options of the command line, each with the option's name. A command may lack the option.
    options: Vec<(&'static str, &'static str)>,
}

impl Error {
    /// Makes an error from the failure, its reason, and the remedy.
    pub fn new(what: impl Into<String>, why: impl fmt::Display, next: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
            next: next.into(),
            options: Vec::new(),
        }
    }

    /// Adds an alternative: an option of the command line (its name without dashes), and the words that tell the user to use it.
    pub fn or(mut self, option: &'static str, words: &'static str) -> Self {
        self.options.push((option, words));
        self
    }

    /// Adds [`OBSERVE`] as an alternative.
    pub fn or_observe(self) -> Self {
        self.or("how", OBSERVE)
    }

    /// Returns the text for a command that has only these options.
    pub fn for_command(&self, has: impl Fn(&str) -> bool) -> String {
        let Self {
            what, why, next, ..
        } = self;
        let mut text = format!("{what}: {why}; {next}");
        for (_, words) in self.options.iter().filter(|(option, _)| has(option)) {
            text += ", or ";
            text += words;
        }
        text
    }
}

/// Alternative if breakpoints or BPF are refused, whatever refuses them.
pub const OBSERVE: &str = "use --how observe";

impl Error {
    /// Makes the error of failing to do `doing` with a process that cannot be looked into.
    pub fn unfit(doing: &str, pid: u32, unfit: Unfit) -> Self {
        Self::new(format!("{doing} process {pid}"), unfit.why, unfit.next)
    }

    /// Returns the reason, without the failure and the remedy.
    pub fn reason(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.for_command(|_| true))
    }
}

impl std::error::Error for Error {}

/// Result of a live source.
pub type Result<T> = std::result::Result<T, Error>;

/// Advice if no better advice is known.
pub const ASK_DOCTOR: &str = "`nvcap doctor` says what this machine allows";

/// Text that follows the remedy for lacking rights. It is a macro so that it can be joined with other texts at compile time.
macro_rules! doctor_says_more {
    () => {
        "`nvcap doctor` says more"
    };
}

/// Returns the remedy for a refused bpf(2), perf_event_open(2) or file of /proc.
pub fn remedy_for_refusal(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) if filtered::trap_refused().is_some() => {
            filtered::FOR_REFUSED
        }
        Some(libc::EPERM | libc::EACCES) => {
            concat!(rights::remedy!(), "; ", doctor_says_more!())
        }
        Some(libc::ESRCH | libc::ENOENT) => "check the process id",
        Some(libc::ENOSPC) => {
            "another tool (a debugger, perf) holds the thread's debug registers: end it"
        }
        _ => ASK_DOCTOR,
    }
}

/// Makes the error for a thread that cannot be started.
pub fn no_thread(e: &io::Error) -> Error {
    Error::new("starting a thread", e, filtered::remedy_for_thread())
}

/// Returns an error's text without the advice to run `nvcap doctor`, for doctor itself.
pub fn without_doctor(text: &str) -> &str {
    let advice = [ASK_DOCTOR, doctor_says_more!()];
    let rest = advice.iter().find_map(|advice| text.strip_suffix(advice));
    rest.map_or(text, |rest| rest.trim_end_matches([' ', ';', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_names_no_option_that_the_command_lacks() {
        let error = Error::new("tracing", "refused", "load it")
            .or_observe()
            .or("channels", "name --channels");
        let said = |of: &[&str]| error.for_command(|o| of.contains(&o));
        assert_eq!(said(&[]), "tracing: refused; load it");
        assert_eq!(
            said(&["channels"]),
            "tracing: refused; load it, or name --channels"
        );
        let all = "tracing: refused; load it, or use --how observe, or name --channels";
        assert_eq!(error.to_string(), all);
    }

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
