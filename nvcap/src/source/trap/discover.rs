//! The ways of learning what a process does with the driver's device files, in order of cost:
//!
//! 1. `kprobe` on nvidia.ko's own functions: only the driver is traced.
//! 2. `fentry` on the same functions, where the kernel has no kprobes but module BTF.
//! 3. `tracepoint`: raw tracepoints on every system call of the machine, filtered by process at once.
//!
//! Each way gives the same records.

use std::{fmt, str::FromStr};

use aya::{Ebpf, programs::RawTracePoint};

use super::{
    error::{Error, Result},
    fentry::Fentry,
    kprobes::{Change, Kprobes},
    load::{Loaded, OBJECT},
    program::{failed, find},
};

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// kprobes.
    Kprobe,
    /// fentry and fexit.
    Fentry,
    /// Raw tracepoints.
    Tracepoint,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kprobe => "kprobe",
            Self::Fentry => "fentry",
            Self::Tracepoint => "tracepoint",
        })
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        match s {
            "kprobe" => Ok(Self::Kprobe),
            "fentry" => Ok(Self::Fentry),
            "tracepoint" => Ok(Self::Tracepoint),
            _ => Err(format!("{s} is none of kprobe, fentry, tracepoint")),
        }
    }
}

/// All, in the order in which they are tried.
pub(crate) const WAYS: [Way; 3] = [Way::Kprobe, Way::Fentry, Way::Tracepoint];

/// Follows forks, execs and exits of traced processes.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn attach_process(bpf: &mut Ebpf) -> Result<()> {
    for (program, tracepoint) in [
        ("process_fork", "sched_process_fork"),
        ("process_exec", "sched_process_exec"),
        ("process_exit", "sched_process_exit"),
    ] {
        raw_tracepoint(bpf, program, tracepoint)?;
    }
    Ok(())
}

/// Sees SIGTRAPs that no breakpoint, step or instruction of a traced process explains.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn attach_signals(bpf: &mut Ebpf) -> Result<()> {
    raw_tracepoint(bpf, "signal_generate", "signal_generate")
}

/// Attaches the first way that works (or the one asked for) and returns it, with the reasons why those before it failed.
///
/// # Errors
/// When none works: lists every refusal.
pub(crate) fn attach(loaded: &mut Loaded, asked: Option<Way>) -> Result<(Way, Vec<(Way, Error)>)> {
    let ways = asked.map_or(WAYS.to_vec(), |w| vec![w]);
    let mut refused = Vec::new();
    for way in ways {
        match attach_way(loaded, way) {
            Ok(()) => return Ok((way, refused)),
            Err(e) => refused.push((way, e)),
        }
    }
    let why: Vec<String> = refused.iter().map(|(w, e)| format!("{w}: {e}")).collect();
    Err(Error::new(
        "following the driver's mappings and ioctls",
        why.join(" / "),
        "see `nvcap doctor`",
    ))
}

/// Attaches one way.
///
/// # Errors
/// When the kernel refuses or lacks it; then no part of it stays attached.
pub(crate) fn attach_way(loaded: &mut Loaded, way: Way) -> Result<()> {
    match way {
        Way::Kprobe => {
            loaded.kprobes = Some(Kprobes::new(&mut loaded.bpf)?);
            Ok(())
        }
        Way::Fentry => {
            loaded.fentry = Some(Fentry::new(OBJECT, loaded.maps.clone())?);
            Ok(())
        }
        Way::Tracepoint => {
            raw_tracepoint(&mut loaded.bpf, "syscall_exit", "sys_exit")?;
            raw_tracepoint(&mut loaded.bpf, "syscall_enter", "sys_enter")
        }
    }
}

fn raw_tracepoint(bpf: &mut Ebpf, name: &str, tracepoint: &str) -> Result<()> {
    let program: &mut RawTracePoint = find(bpf, name)?;
    if program.fd().is_err() {
        program
            .load()
            .map_err(|e| failed(&format!("loading {name}"), &e))?;
    }
    program
        .attach(tracepoint)
        .map_err(|e| failed(&format!("attaching to tracepoint {tracepoint}"), &e))?;
    Ok(())
}

/// Attaches to modules of the driver that were loaded since the last call, by the way in use.
///
/// # Errors
/// When the kernel refuses; that a module is not loaded is no error.
pub(crate) fn refresh(loaded: &mut Loaded, way: Way) -> Result<Change> {
    match (way, &mut loaded.kprobes, &mut loaded.fentry) {
        (Way::Kprobe, Some(kprobes), _) => kprobes.refresh(&mut loaded.bpf),
        // The kernel does not unload a module while such programs are on it.
        (Way::Fentry, _, Some(fentry)) => fentry.attach_uvm().map(|()| Change::None),
        // It sees the calls on every file.
        _ => Ok(Change::None),
    }
}

/// Attaches a program that only wakes nvcap when a module is loaded. Without it nvcap looks now and then.
pub(crate) fn attach_module_load(bpf: &mut Ebpf) {
    if let Err(e) = raw_tracepoint(bpf, "module_load", "module_load") {
        log::info!("modules are looked for now and then: {e}");
    }
}
