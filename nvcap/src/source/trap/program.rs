//! Programs of the BPF object by name, and aya's errors in words.

use aya::{Ebpf, programs::Program};

use super::error::{Error, Result, remedy_for_refusal};

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

/// The innermost cause, as a system error if it is one.
fn cause(e: &(dyn std::error::Error + 'static)) -> String {
    let mut text = e.to_string();
    let mut at = e.source();
    while let Some(inner) = at {
        // The verifier's log is the whole story, but only its end fits in a message.
        let inner_text = inner.to_string();
        text = format!("{text}: {inner_text}");
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
    "`nvcap doctor` says what this machine allows"
}

/// An error of aya's, with the step that failed.
pub(super) fn failed(what: &str, e: &(dyn std::error::Error + 'static)) -> Error {
    Error::new(what, cause(e), refused(e))
}
