//! The ways of learning what a process does with the driver's device files, in order of cost:
//!
//! 1. `kprobe` on nvidia.ko's own functions: nothing is traced but the driver.
//! 2. `fentry` on the same functions, where kprobes are not to be had but module BTF is.
//! 3. `tracepoint`: raw tracepoints on every system call of the machine, filtered by process at once.
//!
//! Each gives the same records.

use std::{fmt, fs, str::FromStr};

use aya::{
    Ebpf,
    programs::{KProbe, Program, RawTracePoint},
};

use super::{
    error::{Error, Result},
    fentry::Fentry,
    load::{Loaded, OBJECT, failed},
};

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
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
pub const WAYS: [Way; 3] = [Way::Kprobe, Way::Fentry, Way::Tracepoint];

/// Follows forks, execs and exits of traced processes.
///
/// # Errors
/// When the kernel refuses.
pub fn attach_process(bpf: &mut Ebpf) -> Result<()> {
    for (program, tracepoint) in [
        ("process_fork", "sched_process_fork"),
        ("process_exec", "sched_process_exec"),
        ("process_exit", "sched_process_exit"),
    ] {
        raw_tracepoint(bpf, program, tracepoint)?;
    }
    Ok(())
}

/// Attaches the first way that works (or the one asked for) and says which, with why the ones before were refused.
///
/// # Errors
/// When none works: with every refusal.
pub fn attach(loaded: &mut Loaded, asked: Option<Way>) -> Result<(Way, Vec<(Way, Error)>)> {
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
/// When the kernel refuses or lacks it; nothing of it stays attached then.
pub fn attach_way(loaded: &mut Loaded, way: Way) -> Result<()> {
    match way {
        Way::Kprobe => attach_kprobes(&mut loaded.bpf),
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

/// A program of the object by its name, of the type that is asked for.
fn find<'a, P>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P>
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

fn attach_kprobes(bpf: &mut Ebpf) -> Result<()> {
    if fs::metadata("/sys/bus/event_source/devices/kprobe").is_err() {
        return Err(Error::new(
            "using kprobes",
            "this kernel is built without them (CONFIG_KPROBES)",
            "the other ways are tried by themselves (--discover auto)",
        ));
    }
    if !has_symbol("nvidia_mmap") {
        return Err(Error::new(
            "using kprobes",
            "nvidia_mmap is not in /proc/kallsyms: nvidia.ko is not loaded",
            "load it (modprobe nvidia) or use --discover tracepoint",
        ));
    }
    kprobe(bpf, "kretprobe_mmap", "nvidia_mmap")?;
    kprobe(bpf, "kprobe_mmap", "nvidia_mmap")?;
    kprobe(bpf, "kretprobe_ioctl", "nvidia_ioctl")?;
    kprobe(bpf, "kprobe_ioctl", "nvidia_ioctl")?;
    // Without these some records are missing, but no submission.
    if has_symbol("nvidia_vma_release") {
        kprobe(bpf, "kprobe_unmap", "nvidia_vma_release")?;
    }
    attach_uvm_kprobes(bpf)
}

/// UVM's ioctl entry, once nvidia-uvm.ko is loaded, by the way in use.
///
/// # Errors
/// When the kernel refuses; that it is not loaded is no error.
pub fn attach_uvm(loaded: &mut Loaded, way: Way) -> Result<()> {
    match way {
        Way::Kprobe => attach_uvm_kprobes(&mut loaded.bpf),
        Way::Fentry => loaded.fentry.as_mut().map_or(Ok(()), Fentry::attach_uvm),
        // It sees every file's calls.
        Way::Tracepoint => Ok(()),
    }
}

fn attach_uvm_kprobes(bpf: &mut Ebpf) -> Result<()> {
    if has_symbol("uvm_unlocked_ioctl_entry") {
        kprobe(bpf, "kretprobe_ioctl", "uvm_unlocked_ioctl_entry")?;
        kprobe(bpf, "kprobe_uvm", "uvm_unlocked_ioctl_entry")?;
    }
    Ok(())
}

fn kprobe(bpf: &mut Ebpf, name: &str, function: &str) -> Result<()> {
    let program: &mut KProbe = find(bpf, name)?;
    if program.fd().is_err() {
        program
            .load()
            .map_err(|e| failed(&format!("loading {name}"), &e))?;
    }
    program
        .attach(function, 0)
        .map_err(|e| failed(&format!("attaching a kprobe to {function}"), &e))?;
    Ok(())
}

/// The kernel or a module has this function.
pub fn has_symbol(name: &str) -> bool {
    let Ok(symbols) = fs::read_to_string("/proc/kallsyms") else {
        return false;
    };
    symbols
        .lines()
        .any(|l| l.split_whitespace().nth(2) == Some(name))
}
