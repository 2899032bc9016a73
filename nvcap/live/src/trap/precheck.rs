//! Checks, before anything is loaded, for the most common mistakes, each with its remedy.

use std::{fs, io};

use super::{live::Target, load::majors};
use nvcap_process::error::{Error, Result};

use nvcap_process::procfs::{self, unfit};
use nvcap_process::{filtered, rights};

/// Tells whether these capabilities allow loading BPF programs.
pub(crate) fn may_load(effective: u64) -> bool {
    let both = rights::BPF.is_in(effective) && rights::PERFMON.is_in(effective);
    both || rights::SYS_ADMIN.is_in(effective)
}

/// Checks that BPF programs may be loaded and may read memory, that the kernel is new enough, and that BPF programs see the same
/// process ids as nvcap.
///
/// # Errors
/// The first missing condition, with its remedy.
pub(crate) fn rights() -> Result<()> {
    kernel()?;
    namespace()?;
    if !may_load(procfs::capabilities()) {
        return Err(Error::new(
            "tracing",
            "this user may not load BPF programs",
            rights::remedy!(),
        )
        .or(
            "how",
            "use --how observe, which needs neither for your own processes",
        ));
    }
    if let Some(why) = filtered::trap_refused() {
        return Err(Error::new("tracing", why, filtered::REMEDY).or_observe());
    }
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        return Err(Error::new(
            "tracing",
            "kernel lockdown (confidentiality): BPF programs may not read memory",
            "boot without lockdown=confidentiality",
        )
        .or_observe());
    }
    Ok(())
}

/// Reason why there are no doorbells to watch.
pub(crate) const NO_DRIVER: &str = "the NVIDIA driver is not loaded (no nvidia in /proc/devices)";

/// Tells whether the driver is loaded.
pub(crate) fn has_driver() -> bool {
    majors().0 != 0
}

/// Looks for mistakes that would make a trace fail. `given`: the user names doorbells or channels, so that no driver is needed.
///
/// # Errors
/// The first mistake found.
pub(crate) fn check(target: &Target, given: bool) -> Result<()> {
    if let Target::Pids(pids) = target {
        for pid in pids {
            if let Some(unfit) = unfit::unfit(*pid) {
                return Err(Error::unfit("attaching to", *pid, unfit));
            }
        }
    }
    rights()?;
    if let Target::Pids(pids) = target {
        for pid in pids {
            if let Err(e) = procfs::mem::Memory::open(*pid)
                && matches!(e.kind(), io::ErrorKind::PermissionDenied)
            {
                return Err(Error::unfit("attaching to", *pid, unfit::refused(*pid)));
            }
        }
    }
    if !given && !has_driver() {
        return Err(
            Error::new("tracing", NO_DRIVER, "load it (modprobe nvidia)")
                .or("how", "use --how observe, which looks for no driver")
                .or(
                    "channels",
                    "name --channels for a program that submits without it",
                ),
        );
    }
    Ok(())
}

/// The oldest kernel version that is accepted: older ones lack BPF features that nvcap needs. RHEL 9's 5.14 has the features of
/// 5.15.
const OLDEST: (u32, u32) = (5, 14);

/// The version numbers that a kernel's release begins with.
pub(crate) fn version(release: &str) -> (u32, u32) {
    let mut parts = release
        .split(['.', '-'])
        .map_while(|p| p.parse::<u32>().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn kernel() -> Result<()> {
    let release = procfs::kernel_release();
    // An unreadable release is no reason to refuse.
    if release.is_empty() || version(&release) >= OLDEST {
        return Ok(());
    }
    Err(Error::new(
        "tracing",
        format!("this kernel is Linux {release}, and nvcap needs 5.15 or later (or RHEL 9's 5.14)"),
        "start a newer kernel (distributions of that age have one in their backports)",
    )
    .or_observe())
}

/// The inode number of the machine's initial PID namespace, the same in every Linux.
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;

/// Refuses a PID namespace other than the initial one, because BPF programs see the process ids of the initial one.
///
/// # Errors
/// When nvcap runs in any other namespace.
pub(crate) fn namespace() -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata("/proc/self/ns/pid") {
        Ok(m) if m.ino() != INITIAL_PID_NAMESPACE => Err(Error::new(
            "tracing",
            "nvcap runs in a container (a PID namespace), and the kernel tells it process ids of the host",
            "run nvcap on the host, where `-p` takes the host's process id, or start the container with --pid=host",
        )
        .or_observe()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_told_apart() {
        assert!(version("5.10.0-46-cloud-amd64") < OLDEST);
        assert!(version("5.14.0-427.el9.x86_64") >= OLDEST);
        assert!(version("6.1.0-56") >= OLDEST && version("7.2.12+deb13") >= OLDEST);
    }

    #[test]
    fn a_filter_is_told_from_lacking_rights() {
        let was_allowed = rights().is_ok();
        let filtered = move || {
            let calls = [libc::SYS_bpf, libc::SYS_perf_event_open];
            nvcap_process::confine::refuse(calls).unwrap();
            let refused = rights().unwrap_err().to_string();
            if was_allowed {
                assert!(refused.contains("system call bpf") && refused.contains("--how observe"));
            }
        };
        // On a thread of its own: what is refused stays so.
        std::thread::spawn(filtered).join().unwrap();
    }
}
