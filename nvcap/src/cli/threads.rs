//! Threads that commands start.

/// The error of a thread that cannot be started, with its remedy.
pub(super) fn no_thread(e: std::io::Error) -> anyhow::Error {
    nvcap_process::error::no_thread(&e).into()
}
