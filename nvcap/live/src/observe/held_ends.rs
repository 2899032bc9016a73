//! Processes that stand at their end longer than the last look at their rings takes, because names of kernels are being read
//! from their memory.
//!
//! Knows the processes that stand there, and the time up to which they do. [`super::ends`] holds and resumes them.

use std::collections::BTreeMap;

use nvcap_process::{exit_hold::LONGEST, exit_stop::Stopped};

/// Processes that stand at their end while names of kernels are read from their memory, with the time up to which they do.
#[derive(Debug, Default)]
pub(super) struct HeldEnds {
    /// Held ends by process. A process stays here after its time is over, until it is gone.
    ends: BTreeMap<u32, End>,
}

#[derive(Debug)]
struct End {
    /// End of the process's time, ns.
    until: u64,
    /// Threads of the process that stand still.
    stopped: Vec<Stopped>,
}

impl HeldEnds {
    /// Holds a thread at its end, with the held threads of its process. False if these were held long enough.
    pub(super) fn hold(&mut self, stopped: Stopped, now: u64) -> bool {
        let end = self.ends.entry(stopped.pid).or_insert_with(|| End {
            until: now.saturating_add(LONGEST.as_nanos() as u64),
            stopped: Vec::new(),
        });
        if end.until <= now {
            return false;
        }
        end.stopped.push(stopped);
        true
    }

    /// Tells whether any is held.
    pub(super) fn is_any(&self) -> bool {
        self.ends.values().any(|end| !end.stopped.is_empty())
    }

    /// Takes the threads whose time is over; the caller resumes them.
    pub(super) fn overdue(&mut self, now: u64) -> Vec<Stopped> {
        let over = self.ends.values_mut().filter(|end| end.until <= now);
        over.flat_map(|end| std::mem::take(&mut end.stopped))
            .collect()
    }

    /// Ends the time of all processes.
    pub(super) fn let_go(&mut self) {
        for end in self.ends.values_mut() {
            end.until = 0;
        }
    }

    /// Forgets a process that is gone.
    pub(super) fn forget(&mut self, pid: u32) {
        self.ends.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_process::exit_stop::Stop;

    const MS: u64 = 1_000_000;

    fn end(pid: u32, tid: u32) -> Stopped {
        Stopped {
            pid,
            tid,
            stop: Stop::Ending,
        }
    }

    #[test]
    fn an_end_is_held_once_and_for_a_limited_time() {
        let mut held = HeldEnds::default();
        assert!(held.hold(end(7, 7), MS));
        assert!(held.hold(end(8, 8), 100 * MS));
        assert!(held.hold(end(7, 9), 200 * MS), "another thread of it");
        assert_eq!(held.overdue(250 * MS), []);
        assert_eq!(held.overdue(251 * MS), [end(7, 7), end(7, 9)]);
        assert!(!held.hold(end(7, 10), 252 * MS), "a second time");
        assert!(held.is_any(), "8 is");
        held.let_go();
        assert_eq!(held.overdue(252 * MS), [end(8, 8)]);
        assert!(!held.is_any());
        assert!(!held.hold(end(8, 11), 253 * MS));
        held.forget(8);
        assert!(
            held.hold(end(8, 8), 254 * MS),
            "another process with its number"
        );
    }
}
