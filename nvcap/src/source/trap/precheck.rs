//! What can be told before anything is loaded: the commonest mistakes, each with its remedy.

use std::{fs, io, path::Path};

use super::{
    error::{Error, Result},
    live::Target,
    load::majors,
};

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// The effective capabilities of this process, a bit each.
pub fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    line.and_then(|v| u64::from_str_radix(v.trim(), 16).ok())
        .unwrap_or(0)
}

/// Whether BPF programs may be loaded and read memory.
///
/// # Errors
/// What is lacking, with its remedy.
pub fn rights() -> Result<()> {
    let has = |bit: u32| capabilities() >> bit & 1 == 1;
    if !(has(CAP_SYS_ADMIN) || has(CAP_BPF) && has(CAP_PERFMON)) {
        return Err(Error::new(
            "tracing",
            "this user may not load BPF programs",
            "run it as root (sudo nvcap ...) or give it cap_bpf,cap_perfmon,cap_sys_ptrace+ep (setcap); \
             --how observe needs neither for your own processes",
        ));
    }
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        return Err(Error::new(
            "tracing",
            "kernel lockdown (confidentiality): BPF programs may not read memory",
            "boot without lockdown=confidentiality, or use --how observe",
        ));
    }
    Ok(())
}

/// Looks for what would make a trace fail. `given`: the user names doorbells or channels, so no driver is needed.
///
/// # Errors
/// The first mistake found.
pub fn check(target: &Target, given: bool) -> Result<()> {
    if let Target::Pids(pids) = target {
        for pid in pids {
            if !Path::new(&format!("/proc/{pid}")).exists() {
                return Err(Error::new(
                    format!("attaching to process {pid}"),
                    "there is no such process",
                    "check the process id (pgrep, nvidia-smi)",
                ));
            }
        }
    }
    let has = |bit: u32| capabilities() >> bit & 1 == 1;
    rights()?;
    if let Target::Pids(pids) = target {
        for pid in pids {
            if let Err(e) = fs::File::open(format!("/proc/{pid}/mem"))
                && matches!(e.kind(), io::ErrorKind::PermissionDenied)
            {
                let right = if has(CAP_SYS_PTRACE) {
                    ""
                } else {
                    " with cap_sys_ptrace"
                };
                return Err(Error::new(
                    format!("attaching to process {pid}"),
                    "it is not yours to look into",
                    format!("run nvcap as root (sudo nvcap ...){right} or as the process's owner"),
                ));
            }
        }
    }
    if !given && majors().0 == 0 {
        return Err(Error::new(
            "tracing",
            "the NVIDIA driver is not loaded (no nvidia in /proc/devices)",
            "load it (modprobe nvidia), or name --channels for a program that submits without it",
        ));
    }
    Ok(())
}
