//! Periodic work of a mode: reading batches that no doorbell reads, reporting counts, opening and closing the
//! windows of `--duty`.

use std::time::Duration;

use super::{
    super::watchpoints,
    Session,
    mode::{Duty, Mode},
};

/// Time between two looks at rings whose doorbells are counted, and between two reports of the counts, ns.
const LOOK_NS: u64 = 100_000_000;
const TELL_NS: u64 = 1_000_000_000;

impl Session {
    /// Does the periodic work of the mode.
    pub(super) fn follow_mode(&mut self, now: u64) {
        match self.options.mode {
            Mode::Each => {}
            Mode::Batch { within, .. } => self.fetch_waiting(now, within),
            Mode::Count => {
                if now >= self.duty.next {
                    self.duty.next = now + LOOK_NS;
                    self.skip_all();
                }
                if now >= self.duty.tell {
                    self.duty.tell = now + TELL_NS;
                    self.capture.tell_all_skipped();
                }
            }
            Mode::Duty { share } => {
                if now >= self.duty.next {
                    match self.duty.open {
                        Some(_) => self.close_window(now, share),
                        None => self.open_window(now, share),
                    }
                } else if self.duty.open.is_none() {
                    // Often, so that no ring goes round unseen.
                    self.skip_all();
                }
            }
        }
    }

    /// Reads the rings of channels whose doorbells have waited too long for a further one.
    fn fetch_waiting(&mut self, now: u64, within: Duration) {
        let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        for index in self.capture.table.indexes() {
            if !self.capture.table[index].live {
                continue;
            }
            let state = self.capture.table.shared().get(index);
            if state.waiting > 0 && now.saturating_sub(state.waiting_since) >= within {
                self.capture.catch_up(index);
            }
        }
    }

    fn skip_all(&mut self) {
        for index in self.capture.table.indexes() {
            if self.capture.table[index].live {
                self.capture.catch_up(index);
            }
        }
    }

    fn open_window(&mut self, now: u64, share: f64) {
        // What is in the rings until now is skipped.
        self.skip_all();
        self.capture.tell_all_skipped();
        self.breakpoints.wake_all(true);
        for space in self.stores.resting() {
            for pid in self.capture.spaces.pids(space) {
                self.breakpoints.wake(pid, false);
            }
        }
        // So is what came before each doorbell trapped: the first trap would bring it as a part of its own submission, and a window would
        // have fewer and longer ones than there are.
        self.skip_all();
        self.capture.tell_all_skipped();
        let _ = self.drain();
        self.capture.skips = None;
        self.duty.open = Some((watchpoints::now(), self.capture.captured));
        self.duty.first = self.duty.first.or(Some(now));
        self.duty.next = now + Duty::lengths(share).0;
    }

    /// Closes a window: captures exactly the entries whose doorbells came in it.
    fn close_window(&mut self, now: u64, share: f64) {
        self.end_window();
        self.duty.next = now + self.duty.pause(share);
    }

    /// Disables breakpoints, takes what they have captured, and counts it.
    pub(super) fn end_window(&mut self) {
        let Some((since, before)) = self.duty.open.take() else {
            return;
        };
        self.breakpoints.wake_all(false);
        let until = watchpoints::now();
        let _ = self.drain();
        // What was not captured at its own doorbell is skipped: fetched now, it would come in one piece with what was submitted since.
        self.capture.skips = self.options.mode.skips();
        let captured = self.capture.captured - before;
        let ns = until.saturating_sub(since);
        self.duty.windows.add(ns, captured);
    }

    /// Tells whether new breakpoints must be disabled, too, because no window is open.
    pub(super) fn is_resting(&self) -> bool {
        matches!(self.options.mode, Mode::Duty { .. }) && self.duty.open.is_none()
    }
}
