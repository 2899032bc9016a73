//! kprobes on the driver's functions, also of a driver that is unloaded and loaded again.
//!
//! The kernel unloads a module although kprobes are on its functions, and does not set them again when the module is
//! loaded again. So each loaded instance is identified by the inode of its folder in /sys/module, which is new at every
//! load. Knows nothing of processes.

use std::{fs, os::unix::fs::MetadataExt};

use aya::programs::{
    KProbe,
    kprobe::{KProbeLink, KProbeLinkId},
};

use super::program::{BpfPrograms, failed};
use nvcap_process::error::{Error, Result};

/// Program and function. Returns are attached before entries, so that no call is seen to begin whose return is missed.
const NVIDIA: [(&str, &str); 4] = [
    ("kretprobe_mmap", "nvidia_mmap"),
    ("kprobe_mmap", "nvidia_mmap"),
    ("kretprobe_ioctl", "nvidia_ioctl"),
    ("kprobe_ioctl", "nvidia_ioctl"),
];
/// Program and function without which some records are missing, but no submission.
const OPTIONAL: (&str, &str) = ("kprobe_unmap", "nvidia_vma_release");
const UVM: [(&str, &str); 2] = [
    ("kretprobe_ioctl", "uvm_unlocked_ioctl_entry"),
    ("kprobe_uvm", "uvm_unlocked_ioctl_entry"),
];

/// The kprobes on the loaded modules.
#[derive(Debug, Default)]
pub(crate) struct Kprobes {
    nvidia: Probed,
    uvm: Probed,
}

/// A module's kprobes.
#[derive(Debug, Default)]
struct Probed {
    /// Module instance that has the kprobes; 0 while the module is not loaded.
    instance: u64,
    _links: Vec<KProbeLink>,
}

/// Result of a check of the modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// No change of nvidia.ko.
    None,
    /// nvidia.ko is no longer loaded.
    Gone,
    /// Another nvidia.ko is loaded, and its kprobes are set.
    Attached,
}

fn instance(module: &str) -> u64 {
    fs::metadata(format!("/sys/module/{module}")).map_or(0, |m| m.ino())
}

/// Tells whether this kernel has kprobes.
pub(super) fn are_built_in() -> bool {
    fs::metadata("/sys/bus/event_source/devices/kprobe").is_ok()
}

/// Returns the programs for the modules that are loaded.
pub(super) fn programs() -> Vec<&'static str> {
    let of = |module, probes: &[(&'static str, &str)]| match instance(module) {
        0 => Vec::new(),
        _ => probes.iter().map(|(program, _)| *program).collect(),
    };
    [
        of("nvidia", &NVIDIA),
        of("nvidia", &[OPTIONAL]),
        of("nvidia_uvm", &UVM),
    ]
    .concat()
}

impl Kprobes {
    /// Sets kprobes on the loaded modules.
    ///
    /// # Errors
    /// When nvidia.ko is not loaded, or the kernel refuses.
    pub(crate) fn new(programs: &mut BpfPrograms) -> Result<Self> {
        if !are_built_in() {
            return Err(Error::new(
                "using kprobes",
                "this kernel is built without them (CONFIG_KPROBES)",
                "the other ways are tried by themselves (--discover auto)",
            ));
        }
        let mut new = Self::default();
        if new.refresh(programs)? == Change::None {
            return Err(Error::new(
                "using kprobes",
                "nvidia.ko is not loaded",
                "load it (modprobe nvidia) or use --discover tracepoint",
            ));
        }
        Ok(new)
    }

    /// Sets kprobes on modules that were loaded since the last call. A module that refused them is not tried again.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn refresh(&mut self, programs: &mut BpfPrograms) -> Result<Change> {
        let mut change = Change::None;
        let now = instance("nvidia");
        if now != self.nvidia.instance {
            self.nvidia = Probed {
                instance: now,
                ..Probed::default()
            };
            change = Change::Gone;
            if now != 0 {
                let mut links = attach(programs, &NVIDIA)?;
                links.extend(attach(programs, &[OPTIONAL]).into_iter().flatten());
                self.nvidia._links = links;
                change = Change::Attached;
            }
        }
        let now = instance("nvidia_uvm");
        if now != self.uvm.instance {
            self.uvm = Probed {
                instance: now,
                ..Probed::default()
            };
            if now != 0 {
                self.uvm._links = attach(programs, &UVM)?;
            }
        }
        Ok(change)
    }
}

fn attach(programs: &mut BpfPrograms, probes: &[(&str, &str)]) -> Result<Vec<KProbeLink>> {
    let one = |(name, function): &(&str, &str)| {
        let program: &mut KProbe = programs.find(name)?;
        if program.fd().is_err() {
            program
                .load()
                .map_err(|e| failed(&format!("loading {name}"), &e))?;
        }
        let what = format!("attaching a kprobe to {function}");
        let id: KProbeLinkId = program.attach(function, 0).map_err(|e| {
            if is_not_there(&e) {
                let why = "the driver that is loaded has no function of that name";
                return Error::new(&what, why, "use --discover tracepoint");
            }
            failed(&what, &e)
        })?;
        log::trace!("{name} is attached to {function}");
        program.take_link(id).map_err(|e| failed(&what, &e))
    };
    probes.iter().map(one).collect()
}

/// Tells whether the kernel found no such function.
fn is_not_there(e: &(dyn std::error::Error + 'static)) -> bool {
    let mut at = Some(e);
    while let Some(inner) = at {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return io.raw_os_error() == Some(libc::ENOENT);
        }
        at = inner.source();
    }
    false
}
