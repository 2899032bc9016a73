//! System calls that a seccomp filter (of a container, of a service) refuses. A filter's refusal gives the same error as missing rights. To
//! tell the two apart, a call is tried with arguments with which it does nothing; without a filter, such a call fails with another error.

use super::rights;
use crate::procfs;

/// A call that nvcap needs and filters are known to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Loading BPF programs.
    Bpf,
    /// Breakpoints.
    PerfEventOpen,
    /// Starting threads, as the C library does. If clone3 does not exist (ENOSYS), the library uses the older clone(2).
    Clone3,
}

/// Calls of the trap.
const TRAP: [Call; 2] = [Call::Bpf, Call::PerfEventOpen];
/// Inode number of the machine's initial user namespace, which is the same in every Linux.
const INITIAL_USER_NAMESPACE: u64 = 0xefff_fffd;

/// Text of a reason.
macro_rules! filter {
    () => {
        "a seccomp filter (a container's or a service's, most likely) refuses the system call "
    };
}

/// Text of the remedy for a trap whose calls are refused.
macro_rules! remedy {
    () => {
        "run nvcap outside, or have the filter let it pass (docker run --security-opt seccomp=unconfined; a pod's \
         seccompProfile Unconfined; a service's SystemCallFilter=)"
    };
}

/// Remedy for a trap whose calls are refused.
pub const REMEDY: &str = remedy!();
/// Remedy that follows an error without a reason.
pub(super) const FOR_REFUSED: &str = concat!(filter!(), "bpf or perf_event_open: ", remedy!());

/// Remedy if threads cannot be started by clone3.
const FOR_THREADS: &str = concat!(
    filter!(),
    "clone3 with EPERM, where the C library expects ENOSYS to start threads without it: update what runs the container (Docker 20.10.10 \
     or later), or run nvcap without the filter (docker run --security-opt seccomp=unconfined; a service's SystemCallErrorNumber=ENOSYS)"
);

impl Call {
    /// Returns the error of the call, made with arguments with which it does nothing.
    fn tried(self) -> Option<i32> {
        let null = std::ptr::null::<u8>();
        // SAFETY: the kernel refuses these sizes, flags and descriptors before it accesses memory; no memory is passed.
        let result = unsafe {
            match self {
                Self::Bpf => libc::syscall(libc::SYS_bpf, -1, null, 1 << 20),
                Self::PerfEventOpen => {
                    libc::syscall(libc::SYS_perf_event_open, null, 0, -1, -1, u64::MAX)
                }
                Self::Clone3 => libc::syscall(libc::SYS_clone3, null, 0),
            }
        };
        let error = std::io::Error::last_os_error().raw_os_error();
        error.filter(|_| result < 0)
    }

    /// Tells whether the caller has the rights for the call, so that missing rights do not explain a refusal.
    fn is_allowed(self) -> bool {
        use std::os::unix::fs::MetadataExt as _;

        if self != Self::Bpf {
            return true;
        }
        // For bpf(2), capabilities count only in the initial user namespace.
        let namespace = std::fs::metadata("/proc/self/ns/user").map(|m| m.ino());
        let effective = procfs::status_bits("thread-self", "CapEff").unwrap_or(0);
        let may_load = rights::BPF.is_in(effective) || rights::SYS_ADMIN.is_in(effective);
        may_load && namespace.is_ok_and(|inode| inode == INITIAL_USER_NAMESPACE)
    }

    /// Tells whether a filter of the calling thread refuses the call, and nothing else does.
    pub(crate) fn is_refused(self) -> bool {
        let error = match self {
            // On ENOSYS the C library uses another call.
            Self::Clone3 => &[libc::EPERM, libc::EACCES][..],
            _ => &[libc::EPERM, libc::EACCES, libc::ENOSYS],
        };
        procfs::status("thread-self", "Seccomp").as_deref() == Some("2")
            && self.is_allowed()
            && self.tried().is_some_and(|e| error.contains(&e))
    }
}

/// Returns the calls of the trap that a filter refuses, as a reason.
pub fn trap_refused() -> Option<&'static str> {
    match TRAP.map(Call::is_refused) {
        [true, true] => Some(concat!(filter!(), "bpf, and perf_event_open")),
        [true, false] => Some(concat!(filter!(), "bpf")),
        [false, true] => Some(concat!(filter!(), "perf_event_open")),
        [false, false] => None,
    }
}

/// Returns the remedy if a thread cannot be started.
pub(crate) fn remedy_for_thread() -> &'static str {
    match Call::Clone3.is_refused() {
        true => FOR_THREADS,
        false => "raise the limit on processes (ulimit -u)",
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{confine, error};

    /// Runs `test` on a thread of its own whose calls are refused with EPERM, as Docker does.
    fn filtered(calls: &[libc::c_long], test: impl FnOnce() + Send + 'static) {
        let calls = calls.to_vec();
        let run = move || {
            confine::refuse(calls).unwrap();
            test();
        };
        thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_filter_is_told_from_lacking_rights() {
        let trap = [libc::SYS_bpf, libc::SYS_perf_event_open];
        filtered(&[libc::SYS_kexec_load], || {
            assert_eq!(trap_refused(), None, "another call is refused");
            assert!(remedy_for_thread().contains("ulimit"));
        });
        filtered(&trap[1..], || {
            let said = trap_refused().unwrap();
            assert!(said.contains("seccomp") && said.ends_with("perf_event_open"));
        });
        filtered(&trap, || {
            // Without rights, a filter's refusal of bpf cannot be told from the kernel's.
            assert_eq!(Call::Bpf.is_refused(), Call::Bpf.is_allowed());
            let refused = std::io::Error::from_raw_os_error(libc::EPERM);
            let remedy = error::remedy_for_refusal(&refused);
            assert!(
                remedy.contains("seccomp") && !remedy.contains("setcap"),
                "{remedy}"
            );
        });
    }

    #[test]
    fn a_thread_that_a_filter_refuses_is_said_to_be() {
        filtered(&[libc::SYS_clone3], || {
            assert!(Call::Clone3.is_refused());
            let said = error::no_thread(&std::io::Error::from_raw_os_error(libc::EPERM));
            let said = said.to_string();
            assert!(
                said.contains("clone3") && !said.contains("ulimit"),
                "{said}"
            );
        });
        assert!(!Call::Clone3.is_refused());
    }
}
