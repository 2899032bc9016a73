//! Threads that commands start.

/// The error of a thread that cannot be started, with its remedy.
pub(super) fn no_thread(e: std::io::Error) -> anyhow::Error {
    #[cfg(feature = "trap")]
    return crate::source::error::no_thread(&e).into();
    #[cfg(not(feature = "trap"))]
    return anyhow::Error::new(e)
        .context("cannot start a thread; raise the limit on processes (ulimit -u)");
}
