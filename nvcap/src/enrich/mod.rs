//! Facts from outside the stream of submissions, given as records: this room stands between a source and the pipeline.
//!
//! - [`images`]: QMDs that a process wrote before nvcap attached, found in its memory.
//! - `cubins`: images of CUDA code, found there, too.
//! - `enriched`: adds these records to a live source (feature `trap`).
//! - [`names`]: the names of kernels, from libcuda's own records and images.
//! - `stamps`: the GPU's time stamps, read from a process's semaphores (feature `trap`).
//!
//! All reading of a process's memory other than rings and pushbuffers is done here; the decoder only gets facts.

#[cfg(target_os = "linux")]
pub(crate) mod cubins;
#[cfg(feature = "trap")]
pub(crate) mod enriched;
#[cfg(target_os = "linux")]
pub(crate) mod images;
#[cfg(target_os = "linux")]
pub(crate) mod names;
mod present;
#[cfg(feature = "trap")]
pub(crate) mod stamps;

/// The niceness of searches: only nvcap waits for them.
#[cfg(target_os = "linux")]
pub(crate) const SEARCHES: i32 = 10;

/// Sets this thread's niceness; where that is not allowed, it stays as it is.
#[cfg(target_os = "linux")]
pub(crate) fn set_niceness(niceness: i32) {
    // SAFETY: sets this thread's own niceness.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
}
