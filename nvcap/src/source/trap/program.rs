//! Programs of the BPF object by name, and aya's errors in words.

use aya::{Ebpf, programs::Program};

use super::error::{ASK_DOCTOR, Error, Result, remedy_for_refusal};

/// A program of the object by name, of the requested type.
pub(super) fn find<'a, P>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P>
where
    &'a mut P: TryFrom<&'a mut Program>,
{
    bpf.program_mut(name)
        .and_then(|p| p.try_into().ok())
        .ok_or_else(|| {
            Error::new(
                format!("finding program {name}"),
                "it is not in the object",
                "rebuild nvcap",
            )
        })
}

/// An error with its causes, each once: some of aya's say their cause's words themselves.
fn cause(e: &(dyn std::error::Error + 'static)) -> String {
    let mut text = e.to_string();
    let mut at = e.source();
    while let Some(inner) = at {
        // The verifier's log is the whole story, but only its end fits in a message.
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        at = inner.source();
    }
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    if lines.len() > 6 {
        lines[lines.len() - 6..].join(" | ")
    } else {
        lines.join(" | ")
    }
}

fn refused(e: &(dyn std::error::Error + 'static)) -> &'static str {
    let mut at = Some(e);
    while let Some(inner) = at {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return remedy_for_refusal(io);
        }
        at = inner.source();
    }
    ASK_DOCTOR
}

/// An error of aya's, with the step that failed.
pub(super) fn failed(what: &str, e: &(dyn std::error::Error + 'static)) -> Error {
    Error::new(what, cause(e), refused(e))
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    /// As aya's errors are: some are no more than the one within.
    #[derive(Debug)]
    struct Outer(&'static str, io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn what_an_error_says_of_its_cause_is_said_once() {
        let of = |outer| cause(&Outer(outer, io::Error::other("no room")));
        assert_eq!(of("no room"), "no room");
        assert_eq!(of("map A: no room"), "map A: no room");
        assert_eq!(of("map A"), "map A: no room");
    }
}
