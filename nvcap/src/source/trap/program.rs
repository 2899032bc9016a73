//! Programs of the BPF object, by name and loaded; aya's errors in words.

use std::{
    os::fd::{AsFd, OwnedFd},
    thread,
};

use aya::{
    Ebpf,
    programs::{PerfEvent, Program},
};

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

/// Programs on raw tracepoints that every trace needs.
const ALWAYS: [&str; 5] = [
    "table",
    "process_fork",
    "process_exec",
    "process_exit",
    "signal_generate",
];

/// The doorbell program's forms, the preferred one first.
pub(super) const DOORBELL: [&str; 2] = ["doorbell_loop", "doorbell_tail"];

/// A program on perf events, loaded.
pub(super) fn perf_program<'a>(
    bpf: &'a mut Ebpf,
    name: &str,
) -> std::result::Result<&'a mut PerfEvent, Box<Error>> {
    let missing = || {
        Error::new(
            format!("finding program {name}"),
            "it is not in the object",
            "rebuild nvcap",
        )
    };
    let program: &mut PerfEvent = bpf
        .program_mut(name)
        .ok_or_else(missing)?
        .try_into()
        .map_err(|_| Box::new(missing()))?;
    if program.fd().is_err() {
        program
            .load()
            .map_err(|e| Box::new(failed(&format!("loading {name}"), &e)))?;
    }
    Ok(program)
}

/// Loads the programs that every trace needs, the doorbell's beside the others: to verify it takes as long as all of them. One that the
/// kernel refuses is loaded again by whoever needs it, who knows what to say.
pub(super) fn verify_at_once(bpf: &mut Ebpf, no_bpf_loop: bool) {
    let mut tracepoints = Vec::new();
    let mut of_doorbell = None;
    for (name, program) in bpf.programs_mut() {
        match program {
            Program::PerfEvent(program) if name == DOORBELL[usize::from(no_bpf_loop)] => {
                of_doorbell = Some(program);
            }
            Program::RawTracePoint(program) if ALWAYS.contains(&name) => tracepoints.push(program),
            _ => {}
        }
    }
    thread::scope(|scope| {
        // Without a thread it is loaded later.
        let _ = thread::Builder::new()
            .name("nvcap-verify".into())
            .spawn_scoped(scope, || of_doorbell.map(PerfEvent::load));
        for program in tracepoints {
            if let Err(e) = program.load() {
                log::debug!("not loaded at first: {e}");
            }
        }
    });
}

/// The doorbell's program, loaded, in the form that this kernel accepts.
///
/// # Errors
/// Why it refuses the preferred one.
pub(super) fn doorbell(bpf: &mut Ebpf, no_bpf_loop: bool) -> Result<(OwnedFd, &'static str)> {
    let mut names = DOORBELL.as_slice();
    if no_bpf_loop {
        names = &names[1..];
    }
    let mut first_error = None;
    for name in names {
        match perf_program(bpf, name) {
            Ok(program) => {
                let fd = program
                    .fd()
                    .map_err(|e| failed("opening the doorbell program", &e))?;
                let fd = fd.as_fd().try_clone_to_owned();
                let fd = fd.map_err(|e| {
                    Error::new("opening the doorbell program", &e, remedy_for_refusal(&e))
                })?;
                return Ok((fd, name));
            }
            Err(e) => first_error = first_error.or(Some(*e)),
        }
    }
    Err(first_error.expect("at least one name was tried"))
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
