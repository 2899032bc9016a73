//! Advice if a sampling was refused.

use nvcap_live::samples::Error;

/// Returns the error, preceded by the remedy if one is known.
pub(super) fn told(error: Error) -> anyhow::Error {
    match remedy(&error) {
        "" => anyhow::Error::new(error),
        remedy => anyhow::Error::new(error).context(remedy),
    }
}

/// Returns a remedy if one is known; the error itself follows it.
fn remedy(error: &Error) -> &'static str {
    match error {
        Error::Held(_) => {
            "end the other profiler first (ncu, nsys with GPU metrics, a program with CUPTI, DCGM's profiling, another nvcap sample); then type this again"
        }
        Error::Rights(_) => "run as root (sudo nvcap sample)",
        Error::Memory(..) => "run as root (sudo nvcap sample), and check that the process is there",
        Error::Files(..) => {
            "run as root (sudo nvcap sample) on Linux 5.6 or later, in a container with CAP_SYS_PTRACE and without a seccomp filter against pidfd_getfd"
        }
        Error::NotItsOwn(_) => {
            "name the process that made the CUDA context: `sudo nvcap channels -a` lists those that use the GPU"
        }
        Error::NoProfiler { .. } => "its context is on another GPU (--gpu), or has ended",
        _ => "",
    }
}
