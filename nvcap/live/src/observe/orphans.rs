//! Processes that may descend from one that is observed, though nothing shows it: the process that made one had come and gone
//! unseen, and it has executed another program since. They are not followed; that one of them uses a GPU is said.

use super::{births::Suspect, process, session::Session};
use nvcap_process::host::fork_events::Descent;
use nvcap_process::memory::maps;
use nvcap_process::procfs;

/// Number of such processes that are kept in view at most.
const MOST: usize = 64;
/// Number of forebears of a process that are looked at.
const FOREBEARS: usize = 64;
/// Time for which one may use a GPU before that is said, ns: a trace of all processes finds and follows it meanwhile.
pub(super) const FOUND_NS: u64 = 1_000_000_000;

impl Session {
    /// A process was born that is not shown to be kin: keeps it in view if it may be.
    pub(super) fn suspect(&mut self, pid: u32) {
        let suspects = &self.births.suspects;
        let is_new = suspects.len() < MOST && !suspects.contains_key(&pid);
        if is_new && self.may_descend(pid) && process::is_process(pid) {
            log::debug!("process {pid} may descend from one that is observed");
            self.births.suspects.insert(pid, Suspect::Idle);
        }
    }

    fn may_descend(&mut self, pid: u32) -> bool {
        // Who made it and its forebears is known where the kernel tells. `/proc` has the parents of now alone: any process may have been given the
        // children of its descendants (PR_SET_CHILD_SUBREAPER).
        match self.births.descent(pid) {
            Descent::From(_) => return true,
            Descent::Stranger => return false,
            Descent::Unknown => {}
        }
        // Of those that are stopped at their end all children are told.
        let all_told = |stops: &nvcap_process::exit_stop::ExitStops| {
            self.watched.keys().all(|pid| stops.has(*pid))
        };
        if self.stops.as_ref().is_some_and(all_told) {
            return false;
        }
        let Some(parent) = process::parent(pid) else {
            return false;
        };
        if self.births.suspects.contains_key(&parent) {
            return true;
        }
        let has_ended = |pid: &u32| !process::state(*pid).lives;
        if !self.births.may_have_missed() && !self.watched.keys().any(has_ended) {
            return false;
        }
        let own = procfs::cgroups(pid).ok();
        let mut beside = self
            .watched
            .keys()
            .filter(|p| procfs::cgroups(**p).ok() == own);
        own.is_some() && beside.any(|p| parent == 1 || descends(*p, parent))
    }

    /// Says which of the processes that are kept in view have used a GPU for `found` ns, or ended with it open.
    pub(super) fn look_at_orphans(&mut self, found: u64) {
        let named = &self.options.named.channels;
        // Where the user names channels, those tell.
        let uses = |pid| {
            if named.is_empty() {
                return maps::has_gpu_open(pid);
            }
            let areas = maps::areas(pid).unwrap_or_default();
            let has = |at| maps::at(&areas, at).is_some();
            named.iter().any(|c| has(c.ring) && has(c.userd))
        };
        let (mut using, now) = (Vec::new(), process::now());
        self.births.suspects.retain(|pid, suspect| {
            if *suspect == Suspect::Idle && uses(*pid) {
                *suspect = Suspect::Uses(now);
            }
            let lives = process::state(*pid).lives;
            if let Suspect::Uses(since) = *suspect
                && (!lives || now - since >= found)
            {
                *suspect = Suspect::Told;
                using.push(*pid);
            }
            lives
        });
        let why = made_unseen(self.births.are_listed());
        for pid in using {
            let name = process::name(pid);
            self.untraced(
                pid,
                format!(
                    "it ({name}) uses a GPU and may descend from a process that is observed: {why} (nvcap --how observe -p {pid} shows it)"
                ),
            );
        }
    }

    /// At the end of the trace: says which of them use a GPU, and, when all that were observed have ended, which go on.
    pub(super) fn report_orphans(&mut self) {
        self.look_at_orphans(0);
        if !self.watched.is_empty() {
            return;
        }
        let idle = |s: &(&u32, &Suspect)| *s.1 == Suspect::Idle;
        for (pid, _) in self.births.suspects.iter().filter(idle) {
            log::warn!(
                "process {pid} ({}) goes on unobserved: it may descend from a process that was observed, and has no GPU open so far",
                process::name(*pid)
            );
        }
    }
}

/// The reason why nothing shows who made a process. `listed`: `/proc` tells only of processes that are there at a look.
fn made_unseen(listed: bool) -> &'static str {
    match listed {
        true => {
            "it began during the trace, and /proc as it is mounted here (subset=pid: without /proc/loadavg) does not tell of processes that \
             came and went between two looks, one of which may have made it"
        }
        false => "the process that made it had ended before that could be seen",
    }
}

/// Tells whether a process has another one among its forebears.
fn descends(pid: u32, from: u32) -> bool {
    let forebears = std::iter::successors(Some(pid), |p| process::parent(*p).filter(|p| *p > 1));
    forebears.take(FOREBEARS).any(|p| p == from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forebears() {
        let own = std::process::id();
        let above = process::parent(own).unwrap();
        assert!(descends(own, above) && descends(own, own));
        assert!(!descends(above, own) && !descends(u32::MAX, own));
    }
}
