//! The BPF object and its programs, found by name and loaded; and aya's errors in words.

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
    /// Collects all programs of the object.
    pub(crate) fn of(bpf: &'a mut Ebpf) -> Self {
        Self(bpf.programs_mut().collect())
    }

    /// Returns a program as the requested type.
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

/// Describes an error with its causes, each once: some of aya's errors repeat their cause's words.
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

/// Makes an error from one of aya's, with the step that failed.
pub(super) fn failed(what: &str, e: &(dyn std::error::Error + 'static)) -> Error {
    Error::new(what, cause(e), refused(e))
}

/// The forms of the doorbell program, the preferred one first.
pub(super) const DOORBELL: [&str; 2] = ["doorbell_loop", "doorbell_tail"];

/// Number of threads that load the programs which take less time than the doorbell program.
const VERIFIERS: usize = 2;

/// Returns a loaded program for perf events.
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

/// Loads the doorbell program. Meanwhile loads the programs named in `early`, and does `work` with all but the doorbell program:
/// the kernel takes as long to verify that one as to load and attach all others. Where the kernel refuses a program, its user loads
/// it again later, and explains the error.
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

/// Does work in a thread of its own. If none can be started, the code that needs the work does it later.
fn beside<'scope>(scope: &'scope thread::Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) {
    let thread = thread::Builder::new().name("nvcap-verify".into());
    let _ = thread.spawn_scoped(scope, work);
}

/// Loads a program: the kernel verifies it then.
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

/// Returns the loaded doorbell program, in the form that this kernel accepts.
///
/// # Errors
/// The reason why the kernel refuses the preferred form.
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

    /// An error like aya's, some of which only wrap another error.
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
