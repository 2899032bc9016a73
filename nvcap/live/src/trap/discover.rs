//! The ways of learning how a process uses the driver's device files, in order of cost:
//!
//! 1. `kprobe` on nvidia.ko's own functions: only the driver is traced.
//! 2. `fentry` on the same functions, where the kernel has no kprobes but module BTF.
//! 3. `tracepoint`: raw tracepoints on every system call of the machine, filtered by process at once.
//!
//! Each way gives the same records.

use std::{fmt, str::FromStr, thread};

use aya::programs::RawTracePoint;

use super::{
    fentry::{Fentry, Maps},
    kprobes::{self, Change, Kprobes},
    program::{BpfPrograms, OBJECT, TABLE, failed},
};
use nvcap_process::error::{Error, Result};

/// A way of discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// kprobes on the driver's functions.
    Kprobe,
    /// fentry and fexit on the driver's functions.
    Fentry,
    /// Raw tracepoints on system calls.
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

/// A way of discovery in use. Its programs are attached as long as this value lives.
#[derive(Debug)]
pub(crate) enum Discovery {
    /// kprobes on the driver's functions.
    Kprobe(Kprobes),
    /// fentry and fexit on the driver's functions.
    Fentry(Fentry),
    /// Raw tracepoints on system calls, whose programs stay attached as long as they are loaded.
    Tracepoint,
}

impl Discovery {
    /// Returns the way that is in use.
    pub(crate) fn way(&self) -> Way {
        match self {
            Self::Kprobe(_) => Way::Kprobe,
            Self::Fentry(_) => Way::Fentry,
            Self::Tracepoint => Way::Tracepoint,
        }
    }

    /// Attaches to the driver's modules that were loaded since the last call.
    ///
    /// # Errors
    /// When the kernel refuses. A module that is not loaded is no error.
    pub(crate) fn refresh(&mut self, programs: &mut BpfPrograms) -> Result<Change> {
        match self {
            Self::Kprobe(kprobes) => kprobes.refresh(programs),
            // The kernel does not unload a module while such programs are on it.
            Self::Fentry(fentry) => fentry.attach_uvm().map(|()| Change::None),
            // It sees the calls on every file.
            Self::Tracepoint => Ok(Change::None),
        }
    }
}

/// All ways, in the order in which they are tried.
pub(crate) const WAYS: [Way; 3] = [Way::Kprobe, Way::Fentry, Way::Tracepoint];

/// Program and tracepoint, for all system calls. Returns are attached before entries, so that no call is seen to begin whose return is
/// missed.
const SYSCALLS: [(&str, &str); 2] = [("syscall_exit", "sys_exit"), ("syscall_enter", "sys_enter")];
/// Program and tracepoint, for forks, execs and exits.
const PROCESS: [(&str, &str); 3] = [
    ("process_fork", "sched_process_fork"),
    ("process_exec", "sched_process_exec"),
    ("process_exit", "sched_process_exit"),
];
/// Program for signals, named as its tracepoint.
const SIGNALS: &str = "signal_generate";
const MODULE_LOAD: &str = "module_load";

/// Returns the programs that a trace most likely needs at its beginning.
pub(crate) fn programs(asked: Option<Way>) -> Vec<&'static str> {
    let first = match kprobes::are_built_in() {
        true => Way::Kprobe,
        false => Way::Tracepoint,
    };
    let of_way = match asked.unwrap_or(first) {
        Way::Kprobe => kprobes::programs(),
        // It loads its own.
        Way::Fentry => Vec::new(),
        Way::Tracepoint => SYSCALLS.map(|(program, _)| program).to_vec(),
    };
    let process = PROCESS.map(|(program, _)| program);
    let always = [TABLE, SIGNALS, MODULE_LOAD];
    [process.to_vec(), always.to_vec(), of_way].concat()
}

/// Attaches the programs that follow forks, execs and exits of traced processes.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn attach_process(programs: &mut BpfPrograms) -> Result<()> {
    for (program, tracepoint) in PROCESS {
        raw_tracepoint(programs, program, tracepoint)?;
    }
    Ok(())
}

/// Attaches the program that sees SIGTRAPs which no breakpoint, step or instruction of a traced process explains.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn attach_signals(programs: &mut BpfPrograms) -> Result<()> {
    raw_tracepoint(programs, SIGNALS, SIGNALS)
}

/// A way that another thread attaches.
pub(crate) type Ahead<'scope> = thread::ScopedJoinHandle<'scope, Result<Discovery>>;

/// Tries fentry beside other work where it is likely to be the first way that is tried. (Even a refusal takes some ms.)
pub(crate) fn ahead<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    maps: &Maps,
    asked: Option<Way>,
) -> Option<Ahead<'scope>> {
    let is_first = asked.map_or_else(|| !kprobes::are_built_in(), |way| way == Way::Fentry);
    let maps = maps.clone();
    let attach = move || Fentry::new(OBJECT, maps).map(Discovery::Fentry);
    let thread = thread::Builder::new().name("nvcap-fentry".into());
    is_first.then(|| thread.spawn_scoped(scope, attach).ok())?
}

/// Attaches the first way that works (or the requested one). Returns it with the reasons why earlier ones failed. `ahead`: fentry, which
/// another thread attaches already.
///
/// # Errors
/// When no way works. The error lists every refusal.
pub(crate) fn attach(
    programs: &mut BpfPrograms,
    maps: &Maps,
    asked: Option<Way>,
    mut ahead: Option<Ahead<'_>>,
) -> Result<(Discovery, Vec<(Way, Error)>)> {
    let ways = asked.map_or(WAYS.to_vec(), |w| vec![w]);
    let mut refused = Vec::new();
    for way in ways {
        let ahead = ahead.take_if(|_| way == Way::Fentry);
        let attached = match ahead.and_then(|thread| thread.join().ok()) {
            Some(attached) => attached,
            None => attach_way(programs, maps, way),
        };
        match attached {
            Ok(discovery) => return Ok((discovery, refused)),
            Err(e) => {
                log::trace!("{way} is refused");
                refused.push((way, e));
            }
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
/// When the kernel refuses or lacks the way; no part of it then stays attached.
pub(crate) fn attach_way(programs: &mut BpfPrograms, maps: &Maps, way: Way) -> Result<Discovery> {
    match way {
        Way::Kprobe => Kprobes::new(programs).map(Discovery::Kprobe),
        Way::Fentry => Fentry::new(OBJECT, maps.clone()).map(Discovery::Fentry),
        Way::Tracepoint => {
            for (program, tracepoint) in SYSCALLS {
                raw_tracepoint(programs, program, tracepoint)?;
            }
            Ok(Discovery::Tracepoint)
        }
    }
}

fn raw_tracepoint(programs: &mut BpfPrograms, name: &str, tracepoint: &str) -> Result<()> {
    let program: &mut RawTracePoint = programs.find(name)?;
    if program.fd().is_err() {
        program
            .load()
            .map_err(|e| failed(&format!("loading {name}"), &e))?;
    }
    program
        .attach(tracepoint)
        .map_err(|e| failed(&format!("attaching to tracepoint {tracepoint}"), &e))?;
    log::trace!("{name} is attached");
    Ok(())
}

/// Attaches a program that only wakes nvcap when a module is loaded. Without it nvcap looks from time to time.
pub(crate) fn attach_module_load(programs: &mut BpfPrograms) {
    if let Err(e) = raw_tracepoint(programs, MODULE_LOAD, MODULE_LOAD) {
        log::info!("modules are looked for now and then: {e}");
    }
}
