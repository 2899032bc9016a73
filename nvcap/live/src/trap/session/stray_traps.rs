//! SIGTRAPs that nobody asked for. If the machine loses which breakpoint a debug exception belongs to, the program gets the signal, and ends
//! unless it handles the signal (`lost_hits` measures how often). Knows no channel: the entries of such a doorbell are found in the rings.

use std::collections::HashSet;

use nvcap_decode::record::At;
use nvcap_process::error::Result;

/// Reason why the trace of a process that ended so is incomplete.
const LOST: &str = "it was ended by a SIGTRAP that nobody asked for: the machine lost a hit of nvcap's breakpoint, and with it perhaps the last \
                    submission (nvcap doctor --trap measures how often it does); --how observe sets no breakpoint";
/// Reason why the trace of a process that ended so is incomplete, where the signal was not seen.
const MAY: &str = "it was ended by SIGTRAP: the machine may have lost a hit of nvcap's breakpoint, and with it the last submission \
                   (nvcap doctor --trap measures how often it does); --how observe sets no breakpoint";

/// State of the stray SIGTRAPs.
#[derive(Debug)]
pub(super) struct StrayTraps {
    is_seeing: bool,
    told: u64,
    /// Processes that got a stray SIGTRAP.
    of: HashSet<u32>,
}

impl StrayTraps {
    /// Makes the state. `attached`: whether the kernel lets nvcap see signals.
    pub(super) fn new(attached: Result<()>) -> Self {
        if let Err(e) = &attached {
            log::info!("SIGTRAPs that nobody asked for are not seen: {e}");
        }
        Self {
            is_seeing: attached.is_ok(),
            told: 0,
            of: HashSet::new(),
        }
    }

    /// Takes note that a process got a stray SIGTRAP.
    pub(super) fn came(&mut self, at: At) {
        log::debug!("a SIGTRAP of process {} that nobody asked for", at.pid);
        self.told += 1;
        self.of.insert(at.pid);
    }

    /// Returns what is lost with a process that was ended by this signal. `has_any`: the process is known to have breakpoints. (A process that
    /// got a stray SIGTRAP has some, perhaps inherited ones that are not known.)
    pub(super) fn death(&self, pid: u32, signal: u32, has_any: bool) -> Option<&'static str> {
        let is_trap = signal == libc::SIGTRAP as u32;
        match self.of.contains(&pid) {
            _ if !is_trap => None,
            true => Some(LOST),
            false if !self.is_seeing && has_any => Some(MAY),
            false => None,
        }
    }

    /// A process has ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.of.remove(&pid);
    }

    /// Tells whether all stray SIGTRAPs were reported. `all`: the number that the kernel sent.
    pub(super) fn are_all_told(&self, all: u64) -> bool {
        self.is_seeing && self.told == all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_process::error::Error;

    const PID: u32 = 10;
    const TRAP: u32 = libc::SIGTRAP as u32;

    #[test]
    fn only_a_lost_hit_is_blamed_for_a_death() {
        let mut traps = StrayTraps::new(Ok(()));
        assert_eq!(
            traps.death(PID, TRAP, true),
            None,
            "its own int3, or a kill"
        );
        traps.came(At {
            pid: PID,
            ..At::default()
        });
        assert_eq!(traps.death(PID, TRAP, true), Some(LOST));
        assert_eq!(traps.death(PID, TRAP, false), Some(LOST), "inherited");
        assert_eq!(traps.death(PID + 1, TRAP, true), None);
        assert_eq!(traps.death(PID, 0, true), None, "it has a handler");
        assert!(traps.are_all_told(1) && !traps.are_all_told(2));
        traps.forget(PID);
        assert_eq!(traps.death(PID, TRAP, true), None);
    }

    #[test]
    fn where_signals_are_not_seen_it_is_a_guess() {
        let traps = StrayTraps::new(Err(Error::new("attaching", "refused", "")));
        assert_eq!(traps.death(PID, TRAP, true), Some(MAY));
        assert_eq!(traps.death(PID, TRAP, false), None);
        assert_eq!(traps.death(PID, 9, true), None);
        assert!(!traps.are_all_told(0));
    }
}
