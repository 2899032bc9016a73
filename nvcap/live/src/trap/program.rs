//! The BPF object and its programs, by name and loaded; aya's errors in words.

use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    thread,
};

use aya::{
    Ebpf,
    programs::{PerfEvent, Program},
};

use nvcap_process::error::{ASK_DOCTOR, Error, Result, remedy_for_refusal};

/// The object that `cargo xtask build` compiles; empty when this program was built without it.
pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nvcap.bpf.o"));

/// The program that reads and changes hash maps.
pub(super) const TABLE: &str = "table";

/// Programs of the object, by name.
pub(crate) struct BpfPrograms<'a>(HashMap<&'a str, &'a mut Program>);

impl<'a> BpfPrograms<'a> {
    /// All of them.
    pub(crate) fn of(bpf: &'a mut Ebpf) -> Self {
        Self(bpf.programs_mut().collect())
    }

    /// A program of the requested type.
    pub(super) fn find<'p, P>(&'p mut self, name: &str) -> Result<&'p mut P>
    where
        &'p mut P: TryFrom<&'p mut Program>,
    {
        let program = self.0.get_mut(name).map(|program| &mut **program);
        program
            .and_then(|p| p.try_into().ok())
            .ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> Error {
    Error::new(
        format!("finding program {name}"),
        "it is not in the object",
        "rebuild nvcap",
    )
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

/// The doorbell program's forms, the preferred one first.
pub(super) const DOORBELL: [&str; 2] = ["doorbell_loop", "doorbell_tail"];

/// Number of threads that load programs which take less time than the doorbell's.
const VERIFIERS: usize = 2;

/// A program on perf events, loaded.
pub(super) fn perf_program<'a>(
    bpf: &'a mut Ebpf,
    name: &str,
) -> std::result::Result<&'a mut PerfEvent, Box<Error>> {
    let program: &mut PerfEvent = bpf
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| missing(name))?;
    if program.fd().is_err() {
        program
            .load()
            .map_err(|e| Box::new(failed(&format!("loading {name}"), &e)))?;
    }
    Ok(program)
}

/// Loads the doorbell's program, and meanwhile loads those named in `early` and does `work` with all but the doorbell's: the kernel
/// verifies that one for as long as it takes to load and attach all others. Where the kernel refuses one, whoever needs it loads it
/// again, and knows what to say.
pub(super) fn beside_doorbell<T>(
    bpf: &mut Ebpf,
    no_bpf_loop: bool,
    early: &[&str],
    work: impl FnOnce(&mut BpfPrograms) -> T,
) -> T {
    let mut programs = BpfPrograms::of(bpf);
    let doorbell = DOORBELL[usize::from(no_bpf_loop)];
    let mut doorbell = programs.0.remove_entry(doorbell);
    thread::scope(|scope| {
        beside(scope, move || {
            if let Some((name, program)) = &mut doorbell {
                verify(name, program);
            }
        });
        let mut early: Vec<_> = programs
            .0
            .iter_mut()
            .filter(|(name, _)| early.contains(name))
            .collect();
        let share = early.len().div_ceil(VERIFIERS).max(1);
        thread::scope(|scope| {
            for share in early.chunks_mut(share) {
                beside(scope, || {
                    for (name, program) in share {
                        verify(name, program);
                    }
                });
            }
        });
        work(&mut programs)
    })
}

/// Does work in a thread of its own; without one it is done later, by whoever needs it.
fn beside<'scope>(scope: &'scope thread::Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) {
    let thread = thread::Builder::new().name("nvcap-verify".into());
    let _ = thread.spawn_scoped(scope, work);
}

/// Loads a program, which is when the kernel verifies it.
fn verify(name: &str, program: &mut Program) {
    let loaded = match program {
        Program::PerfEvent(program) => program.load(),
        Program::RawTracePoint(program) => program.load(),
        Program::KProbe(program) => program.load(),
        _ => return,
    };
    match loaded {
        Ok(()) => log::trace!("{name} is loaded"),
        Err(e) => log::debug!("{name} is not loaded at first: {e}"),
    }
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

    /// Error as aya's are: some are no more than the one within.
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
