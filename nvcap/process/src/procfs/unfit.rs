//! Reasons why a process, named by its id, cannot be looked into, and their remedies.

use std::{fmt, io};

use super::stat::Stat;

/// The bit of cap_sys_ptrace.
pub(crate) const SYS_PTRACE: u64 = 1 << 19;

/// Reason why a process cannot be looked into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Reason: the kind of the process, or a rule that forbids it.
    pub why: String,
    /// Remedy: the command to type instead.
    pub next: String,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { why, next } = self;
        write!(f, "{why}; {next}")
    }
}

/// Returns the reason why nobody can look into the process with this id: it is gone, is a thread of the kernel, or has ended. `None` for a
/// running program.
pub fn unfit(pid: u32) -> Option<Unfit> {
    let made = |why: String, next: &str| {
        let next = next.to_owned();
        Some(Unfit { why, next })
    };
    if !super::exists(pid) {
        return made(
            "there is no such process".to_owned(),
            "check the process id (pgrep, nvidia-smi)",
        );
    }
    let stat = Stat::of_process(pid).ok()?;
    if stat.is_of_kernel() {
        return made(
            format!(
                "it is a thread of the kernel ({}), which has no memory of its own and submits nothing through a program",
                stat.name
            ),
            "name the process of a program (pgrep, nvidia-smi), or trace all that use a GPU (nvcap -a)",
        );
    }
    if stat.is_over() && super::has_ended(pid) {
        let parent = stat.parent.filter(|parent| *parent != 0);
        let parent = parent.map_or(String::new(), |parent| {
            let name = super::name(parent, None).unwrap_or_default();
            format!(" until its parent, process {parent} ({name}), takes its status")
        });
        return made(
            format!(
                "it has ended: a zombie ({}), which is listed{parent} and has no memory any more",
                stat.name
            ),
            "name a process that runs (pgrep, nvidia-smi)",
        );
    }
    None
}

/// Returns the reason why nvcap's user may not look into a running process.
pub fn refused(pid: u32) -> Unfit {
    let effective = super::capabilities();
    let name = super::name(pid, None).unwrap_or_default();
    refused_to(pid, &name, super::is_root(), effective)
}

/// Does as [`refused`], for a user who is root or not (`root`), with these effective capabilities.
fn refused_to(pid: u32, name: &str, root: bool, effective: u64) -> Unfit {
    let what = match pid {
        1 => format!("it is the first process of this machine or container ({name}), and "),
        _ => String::new(),
    };
    if !root {
        return Unfit {
            why: format!("{what}it is not yours to look into"),
            next: super::mem::remedy_for(false).to_owned(),
        };
    }
    let forbids = match effective & SYS_PTRACE {
        0 => "nvcap lacks cap_sys_ptrace, as in a container without it",
        _ => "nvcap has cap_sys_ptrace, but another user namespace or a security module forbids it",
    };
    let next = match pid {
        1 => {
            "name the process below it that uses the GPU (pgrep, nvidia-smi), or trace all that use one (nvcap -a); to look into this one, \
             run nvcap outside of the container"
        }
        _ => "run nvcap outside of the container, or as root of the host",
    };
    Unfit {
        why: format!("{what}even root may not look into it here: {forbids}"),
        next: next.to_owned(),
    }
}

/// Returns the reason why a process could not be looked into, derived from the error.
pub fn because_of(pid: u32, e: &io::Error) -> Unfit {
    match e.raw_os_error() {
        _ if let Some(unfit) = unfit(pid) => unfit,
        Some(libc::EACCES | libc::EPERM) => refused(pid),
        _ => Unfit {
            why: e.to_string(),
            next: "check the process id (pgrep, nvidia-smi); `nvcap doctor` says what this machine allows".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_running_program_is_told_as_what_it_is() {
        assert_eq!(unfit(std::process::id()), None);
        let gone = unfit(u32::MAX).unwrap();
        assert_eq!(gone.why, "there is no such process");
        // A container may have no threads of the kernel.
        if super::super::name(2, None).as_deref() == Some("kthreadd") {
            let said = unfit(2).unwrap().to_string();
            assert!(
                said.starts_with("it is a thread of the kernel (kthreadd)"),
                "{said}"
            );
            assert!(said.ends_with("(nvcap -a)"), "{said}");
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let has_ended = || super::super::has_ended(pid);
        nvcap_waiting::until("its end", has_ended);
        let said = unfit(pid).unwrap().to_string();
        let parent = format!("its parent, process {} (", std::process::id());
        assert!(
            said.starts_with("it has ended: a zombie (true)") && said.contains(&parent),
            "{said}"
        );
        let failed = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(because_of(pid, &failed).to_string(), said);
        child.wait().unwrap();
    }

    #[test]
    fn a_refusal_is_told_with_what_forbids_it() {
        let said = |pid, root, effective| refused_to(pid, "systemd", root, effective).to_string();
        let first = "it is the first process of this machine or container (systemd), and ";
        for (pid, root, effective, begins, next) in [
            (7, false, 0, "it is not yours", "sudo nvcap"),
            (
                7,
                true,
                0,
                "even root may not look into it here: nvcap lacks cap_sys_ptrace",
                "outside",
            ),
            (
                7,
                true,
                u64::MAX,
                "even root may not look into it here: nvcap has cap_sys_ptrace, but",
                "outside",
            ),
            (1, false, 0, first, "sudo nvcap"),
            (1, true, u64::MAX, first, "name the process below it"),
        ] {
            let said = said(pid, root, effective);
            assert!(said.starts_with(begins) && said.contains(next), "{said}");
            assert!(!root || !said.contains("sudo"), "{said}");
        }
    }
}
