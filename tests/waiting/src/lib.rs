//! Waiting in tests: for a condition, never for a time. A guard ends a test that hangs, and says that it did.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// After this time a test is taken to hang. No condition needs a hundredth of it, however busy the machine is.
pub const GUARD: Duration = Duration::from_secs(120);
/// Time between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until a condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        guard(begun, what);
        thread::sleep(PAUSE);
    }
}

/// Ends a test that has waited for `what` since `begun` for too long: for loops that do more than to wait.
pub fn guard(begun: Instant, what: &str) {
    assert!(
        begun.elapsed() < GUARD,
        "guard: waited {GUARD:?} for this: {what}"
    );
}

/// Returns the outcome of `work`, which must come to an end: on a thread of its own, so that the guard can end the test.
pub fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (to, from) = mpsc::channel();
    let worker = thread::spawn(move || {
        let _ = to.send(work());
    });
    match from.recv_timeout(GUARD) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => panic!("guard: no end after {GUARD:?}: {what}"),
        Err(RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it sends before it ends"),
        },
    }
}

/// Waits until a thread sits in this system call, as `/proc` says.
pub fn sits_in(pid: u32, tid: u32, call: libc::c_long) {
    let path = format!("/proc/{pid}/task/{tid}/syscall");
    let what = format!("thread {tid} sits in system call {call}");
    until(&what, || {
        let line = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        line.split_whitespace().next() == Some(call.to_string().as_str())
    });
}

/// Ends what a thread does until this is set, however the test ends: a scope waits for its threads.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A child that sleeps for longer than any test lasts, and ends with the test.
pub struct Sleeper(pub std::process::Child);

impl Sleeper {
    /// Starts one; it executes `sleep` by then.
    pub fn start() -> Self {
        let child = std::process::Command::new("sleep").arg("3600").spawn();
        Self(child.expect("sleep(1)"))
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Ends it and takes its status.
    pub fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}
