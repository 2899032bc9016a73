//! Surrender of rights before nvcap takes in bytes of others: of capabilities that are no longer needed, and of system calls that decoding
//! never makes.
//!
//! Each surrender holds for the calling thread and for the threads that it starts later. It is a second line of defence: the parsers must
//! be safe by themselves, and threads of one process share their memory. If the kernel refuses a surrender, nvcap goes on without it, and
//! says so in its log.

use std::{cell::Cell, io};

use super::rights::Capability;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Calls by which a program starts another, reaches into one, or opens a connection.
const REACHING: [libc::c_long; 8] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
];

/// Calls that change the kernel, its modules, mounts, namespaces and keys, and calls that open new ways into the kernel.
const KERNEL: [libc::c_long; 25] = [
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_mknodat,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_clock_settime,
    libc::SYS_swapon,
];

thread_local! {
    /// True once this thread has given up the calls that decoding never makes. Each filter makes every call slower, so a thread installs
    /// this filter only once.
    static DECODES: Cell<bool> = const { Cell::new(false) };
}

/// Gives up the calls that decoding never makes, and every way to gain rights. Such a call then fails with EPERM.
pub fn decoding() {
    if DECODES.replace(true) {
        return;
    }
    let calls = REACHING.iter().chain(&KERNEL).copied();
    said("the system calls that decoding never makes", refuse(calls));
}

/// Forbids this thread to open any file from now on.
pub fn no_files() {
    said(
        "opening files",
        refuse([libc::SYS_openat, libc::SYS_openat2]),
    );
}

/// Keeps those of these capabilities that the thread has, and gives up all others.
pub fn keep(kept: &[Capability]) {
    crate::procfs::served::prepare();
    let result = keep_bits(kept.iter().fold(0, |bits, c| bits | 1 << c.bit));
    said("capabilities that tracing does not need", result);
}

fn said(what: &str, result: io::Result<()>) {
    if let Err(e) = result {
        log::info!("not given up: {what}: {e}");
    }
}

fn keep_bits(kept: u64) -> io::Result<()> {
    use caps::{CapSet, CapsHashSet};

    let has = caps::read(None, CapSet::Permitted).map_err(io::Error::other)?;
    let kept: CapsHashSet = has
        .into_iter()
        .filter(|c| kept & c.bitmask() != 0)
        .collect();
    // The effective set comes first, because its capabilities must be permitted.
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept).map_err(io::Error::other)?;
    }
    caps::clear(None, CapSet::Inheritable).map_err(io::Error::other)
}

/// Refuses these calls to the calling thread: they fail with EPERM.
pub fn refuse(calls: impl IntoIterator<Item = libc::c_long>) -> io::Result<()> {
    let calls = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH
        .try_into()
        .map_err(io::Error::other)?;
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, architecture);
    let program: BpfProgram = filter
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)?;
    // It also ensures that no executed program gains rights.
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command, thread};

    use super::*;

    /// Runs `test` on a thread of its own, because a right that was given up cannot be regained.
    fn alone(test: impl FnOnce() + Send + 'static) {
        thread::spawn(test).join().unwrap();
    }

    fn of_thread(field: &str) -> String {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(field));
        line.unwrap().trim().to_owned()
    }

    #[test]
    fn a_decoder_starts_nothing_and_connects_to_nothing() {
        alone(|| {
            decoding();
            assert_eq!(of_thread("Seccomp:"), "2");
            assert_eq!(of_thread("NoNewPrivs:"), "1");
            let denied = io::ErrorKind::PermissionDenied;
            assert_eq!(
                Command::new("/bin/true").status().unwrap_err().kind(),
                denied
            );
            let socket = std::net::TcpListener::bind("127.0.0.1:0");
            assert_eq!(socket.unwrap_err().kind(), denied);
        });
        // Other calls still work.
        assert!(Command::new("/bin/true").status().unwrap().success());
    }

    #[test]
    fn a_thread_without_files_opens_none() {
        alone(|| {
            fs::read("/proc/self/stat").unwrap();
            no_files();
            let refused = fs::read("/proc/self/stat").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        });
    }

    #[test]
    fn capabilities_that_are_not_kept_are_gone() {
        use super::super::rights::{BPF, SYS_PTRACE};

        let bits = || u64::from_str_radix(&of_thread("CapPrm:"), 16).unwrap();
        alone(move || {
            let before = bits();
            keep(&[BPF, SYS_PTRACE]);
            assert_eq!(bits(), before & (1 << BPF.bit | 1 << SYS_PTRACE.bit));
            keep(&[SYS_PTRACE]);
            assert_eq!(bits(), before & 1 << SYS_PTRACE.bit);
            assert_eq!(of_thread("CapEff:"), of_thread("CapPrm:"));
        });
    }
}
