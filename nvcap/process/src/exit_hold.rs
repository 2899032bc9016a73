//! Holds the end of the command that nvcap started for a moment, so that what is searched for in its memory is still there: a
//! vector addition ends a millisecond after its only launch.
//!
//! A thread of its own is the command's tracer (ptrace), so that the command's signals wait for nothing else. The children
//! of the command are not traced. When the thread ends, or nvcap, the kernel lets the command go on.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use super::exit_stop::{self, ExitStops, Stop};

/// Longest time for which an end is held.
pub const LONGEST: Duration = Duration::from_millis(250);
/// Time between two looks of the thread whether it is still needed, ms.
const LOOK_MS: i32 = 500;

/// State that both threads see.
#[derive(Debug, Default)]
struct State {
    ending: AtomicBool,
    /// Nobody is interested any more.
    over: AtomicBool,
    released: Mutex<bool>,
    changed: Condvar,
}

/// See the module.
#[derive(Debug)]
pub struct ExitHold {
    state: Arc<State>,
}

impl ExitHold {
    /// For the command that waits to be let go; `None` where it cannot be traced.
    pub fn of(pid: u32) -> Option<Self> {
        let state = Arc::new(State::default());
        let (to, seized) = mpsc::channel();
        let theirs = state.clone();
        thread::Builder::new()
            .name("nvcap-exit".into())
            .spawn(move || {
                let mut stops = ExitStops::new(false);
                let outcome = stops.seize_child(pid);
                let went_well = outcome.is_ok();
                let _ = to.send(outcome);
                if went_well {
                    watch(&mut stops, pid, &theirs);
                }
                stops.abandon();
            })
            .ok()?;
        match seized.recv() {
            Ok(Ok(())) => Some(Self { state }),
            Ok(Err(e)) => {
                log::info!("the command's end is not held for names: {e}");
                None
            }
            Err(_) => None,
        }
    }

    /// Tells whether the command stands at its end and waits.
    pub fn is_ending(&self) -> bool {
        self.state.ending.load(Ordering::SeqCst)
    }

    /// Lets the command end.
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

/// Lets the command go on at every stop; at its end when it is released.
fn watch(stops: &mut ExitStops, pid: u32, state: &State) {
    while stops.has(pid) && !state.over.load(Ordering::SeqCst) {
        if let Some(fd) = stops.wake() {
            let mut poll = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one structure.
            unsafe { libc::poll(&raw mut poll, 1, LOOK_MS) };
        } else {
            thread::sleep(Duration::from_millis(1));
        }
        stops.poll();
        while let Some(stopped) = stops.next() {
            let ends = stopped.stop == Stop::Ending;
            if ends && exit_stop::stands_still(pid, stopped.tid) {
                state.ending.store(true, Ordering::SeqCst);
                if let Ok(released) = state.released.lock() {
                    let _ = state.changed.wait_timeout_while(released, LONGEST, |r| !*r);
                }
            }
            stops.resume(stopped);
        }
    }
}
