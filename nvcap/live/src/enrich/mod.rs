//! Facts from outside the stream of submissions, given as records. This module stands between a source and the pipeline.
//!
//! - [`graph_qmds`]: QMDs that a process wrote before nvcap attached, found in its memory.
//! - [`beside`]: records of another thread about the processes that a source traces.
//! - `cubins`: images of CUDA code, found in a process's memory.
//! - `enriched`: adds these records to a live source.
//! - [`names`]: the names of kernels, from libcuda's own records and images.
//! - `stamps`: the GPU's time stamps, read from a process's semaphores.
//!
//! All reads of a process's memory are made here, except those of rings and pushbuffers; the decoder gets facts only.

pub mod beside;
#[cfg(target_os = "linux")]
pub mod cubins;
pub mod enriched;
#[cfg(target_os = "linux")]
pub mod graph_qmds;
#[cfg(target_os = "linux")]
pub mod names;
mod present;
pub(crate) mod stamps;

/// The niceness of searches: other work goes first, because only nvcap waits for them.
#[cfg(target_os = "linux")]
pub const SEARCHES: i32 = 10;

/// Sets this thread's niceness. Where that is not allowed, the niceness stays as it is.
#[cfg(target_os = "linux")]
pub fn set_niceness(niceness: i32) {
    // SAFETY: sets this thread's own niceness.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
}
