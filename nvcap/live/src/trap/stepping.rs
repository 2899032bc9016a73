//! Test of whether a thread goes on behind a breakpoint that has a BPF program.
//!
//! aarch64 traps before the instruction, and the kernel steps over it with the breakpoints of that thread off. Before Linux
//! 6.6 it does so only for events without a program (commit d11a69873d9a, which stable kernels adopted): with a program,
//! the thread would trap at the same instruction for ever. The kernel's behaviour is tested on a thread of nvcap's own, not
//! derived from its release.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use super::perf::{self, Life, Stops};
use nvcap_process::error::{Error, Result, remedy_for_refusal};

/// Longest time that the thread may take for one store.
const LIMIT: Duration = Duration::from_secs(2);

static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Fails where a traced thread would never get past its first doorbell. `program`: the doorbell program.
///
/// # Errors
/// On such a kernel, and where no breakpoint can be set at all.
pub(crate) fn check(program: BorrowedFd<'_>) -> Result<()> {
    if !cfg!(target_arch = "aarch64") {
        // The processor traps behind the store, and passes over an execution breakpoint by its resume flag.
        return Ok(());
    }
    let what = "trying a hardware breakpoint";
    let life = Life {
        children: false,
        until_exec: true,
        from_exec: false,
    };
    let watch = |tid| {
        let at = (Stops::AfterWrite, WATCHED.as_ptr() as u64);
        perf::watch(tid, at, life, program)
    };
    match gets_past(watch, || WATCHED.store(1, Ordering::SeqCst), LIMIT) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::new(
            what,
            "this kernel does not step over a breakpoint that has a BPF program: a traced thread would stand still at its first doorbell",
            "start Linux 6.6 or later, or a stable kernel with its commit d11a69873d9a",
        )
        .or_observe()),
        Err(e) => Err(Error::new(what, &e, remedy_for_refusal(&e))),
    }
}

/// Tells whether a thread of this process gets past a store within a time, while the value that `watch` opens for it lives.
fn gets_past<W>(
    watch: impl FnOnce(u32) -> io::Result<W>,
    store: impl FnOnce() + Send + 'static,
    limit: Duration,
) -> io::Result<bool> {
    let (tell, told) = mpsc::channel();
    let (open, gate) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let thread = thread::Builder::new()
        .name("nvcap-stepping".into())
        .spawn(move || {
            // SAFETY: gettid has no preconditions.
            let _ = tell.send(unsafe { libc::gettid() } as u32);
            if gate.recv().is_ok() {
                store();
                let _ = end.send(());
            }
        })?;
    let tid = told.recv().map_err(io::Error::other)?;
    let watched = watch(tid)?;
    let _ = open.send(());
    let past = ended.recv_timeout(limit) != Err(RecvTimeoutError::Timeout);
    // Unwatched, the thread goes on in any case.
    drop(watched);
    thread
        .join()
        .map_err(|_| io::Error::other("the thread that tries it has panicked"))?;
    Ok(past)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_stands_still_is_told_from_one_that_goes_on() {
        let past = gets_past(|_| Ok(()), || (), LIMIT).unwrap();
        assert!(past);
        // It stands still for as long as the sender lives.
        let (sender, stands) = mpsc::channel::<()>();
        let store = move || _ = stands.recv();
        let past = gets_past(|_| Ok(sender), store, Duration::from_millis(20)).unwrap();
        assert!(!past);
        let refused = gets_past(
            |_| Err::<(), _>(io::Error::from_raw_os_error(libc::ENOSPC)),
            || (),
            LIMIT,
        );
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}
