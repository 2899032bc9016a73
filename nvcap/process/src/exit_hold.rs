//! Delay of a process's end for a moment, so that its memory can still be searched. Many programs end quickly: a vector addition ends a
//! millisecond after its only launch, other programs end as soon as they learn of an error.
//!
//! A separate thread of nvcap is the process's tracer (ptrace), so that the process's signals never wait for other work of nvcap. The
//! process's children are not traced. When the thread or nvcap ends, the kernel lets the process go on.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use super::exit_stop::{self, ExitStops, Stop};

/// Longest time for which the end of nvcap's own command is held.
pub const LONGEST: Duration = Duration::from_millis(250);
/// Interval at which the thread checks whether it is still needed, ms.
const LOOK_MS: i32 = 500;
/// Interval at which the thread checks whether a process that is not nvcap's own still needs it, ms. It is shorter because others may want
/// to trace that process.
const LOOK_RUNNING_MS: i32 = 20;

/// State that both threads share.
#[derive(Debug, Default)]
struct State {
    ending: AtomicBool,
    /// True when the hold is no longer needed.
    over: AtomicBool,
    released: Mutex<bool>,
    changed: Condvar,
}

/// Holder of a process's end, which keeps its memory searchable.
#[derive(Debug)]
pub struct ExitHold {
    state: Arc<State>,
}

impl ExitHold {
    /// Holds the end of the command that waits to be let go; `None` if the command cannot be traced.
    pub fn of(pid: u32) -> Option<Self> {
        match Self::begin(pid, LONGEST, LOOK_MS, ExitStops::seize_child) {
            Ok(hold) => Some(hold),
            Err(e) => {
                log::info!("the command's end is not held for names: {e}");
                None
            }
        }
    }

    /// Holds the end of a running process that is not nvcap's own, for `longest`, or until this value is dropped. SIGCHLD must be
    /// blocked ([`exit_stop::block_sigchld`]).
    ///
    /// # Errors
    /// EPERM if the process is already traced (by a debugger, strace), may not be traced, or is ending.
    pub fn of_running(pid: u32, longest: Duration) -> io::Result<Self> {
        Self::begin(pid, longest, LOOK_RUNNING_MS, |stops, pid| {
            let first = stops.seize(pid);
            stops.seize_rest(pid);
            // The first thread may have ended while others go on.
            if stops.is_empty() { first } else { Ok(()) }
        })
    }

    fn begin(
        pid: u32,
        longest: Duration,
        look_ms: i32,
        seize: impl FnOnce(&mut ExitStops, u32) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let state = Arc::new(State::default());
        let (to, seized) = mpsc::channel();
        let theirs = state.clone();
        thread::Builder::new()
            .name("nvcap-exit".into())
            .spawn(move || {
                let mut stops = ExitStops::new(false);
                let outcome = seize(&mut stops, pid);
                let went_well = outcome.is_ok();
                let _ = to.send(outcome);
                if went_well {
                    watch(&mut stops, pid, (longest, look_ms), &theirs);
                }
                stops.abandon();
            })?;
        seized.recv().unwrap_or_else(|e| Err(io::Error::other(e)))?;
        Ok(Self { state })
    }

    /// Tells whether the process is stopped at its end and waits.
    pub fn is_ending(&self) -> bool {
        self.state.ending.load(Ordering::SeqCst)
    }

    /// Lets the process end.
    pub(crate) fn release(&self) {
        if let Ok(mut released) = self.state.released.lock() {
            *released = true;
            self.state.changed.notify_all();
        }
    }
}

impl Drop for ExitHold {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        self.release();
    }
}

/// Lets the process go on at every stop. At its end, it goes on only once it is released.
fn watch(stops: &mut ExitStops, pid: u32, (longest, look_ms): (Duration, i32), state: &State) {
    while !stops.is_empty() && !state.over.load(Ordering::SeqCst) {
        if let Some(fd) = stops.wake() {
            let mut poll = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one structure.
            unsafe { libc::poll(&raw mut poll, 1, look_ms) };
        } else {
            thread::sleep(Duration::from_millis(1));
        }
        stops.poll();
        while let Some(stopped) = stops.next() {
            let ends = stopped.stop == Stop::Ending;
            if ends && exit_stop::stands_still(pid, stopped.tid) {
                state.ending.store(true, Ordering::SeqCst);
                if let Ok(released) = state.released.lock() {
                    let _ = state.changed.wait_timeout_while(released, longest, |r| !*r);
                }
            }
            stops.resume(stopped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::{self, mem::Memory};
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};
    use std::time::Instant;

    const GUARD: Duration = Duration::from_secs(60);

    /// Test that a held process keeps its memory until it is released, and ends with its own status.
    #[test]
    fn the_end_of_a_running_process_is_held() {
        // The script reads two lines of input: it prints the first, and ends with the second.
        let script = "echo runs; read a; echo $a; read b; exit 7";
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut said = [0; 5];
        from.read_exact(&mut said).unwrap();
        let pid = child.id();
        let hold = ExitHold::of_running(pid, GUARD).unwrap();
        to.write_all(b"goes\n").unwrap();
        from.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"goes\n");
        to.write_all(b"ends\n").unwrap();
        let begun = Instant::now();
        while !hold.is_ending() {
            assert!(begun.elapsed() < GUARD, "guard: it does not end");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!procfs::has_ended(pid) && Memory::open(pid).is_ok());
        assert!(child.try_wait().unwrap().is_none());
        drop(hold);
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }

    /// Test that a process that is already traced, or has ended, is not held.
    #[test]
    fn others_are_not_held() {
        let mut child = nvcap_waiting::Sleeper::start();
        let pid = child.id();
        let first = ExitHold::of_running(pid, GUARD).unwrap();
        let again = ExitHold::of_running(pid, GUARD).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::EPERM));
        drop(first);
        child.end();
        // A thread that waits for a process is also told of its stop at the end if another thread of the same program traces it.
        nvcap_waiting::until("it ends", || procfs::has_ended(pid));
        assert!(ExitHold::of_running(pid, GUARD).is_err());
    }
}
