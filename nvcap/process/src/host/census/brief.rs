//! Count of processes that came and ended between two looks at `/proc`, used if the kernel does not report processes that map memory of a
//! GPU. Their existence is known from the process numbers that the kernel gave, and from looks that were made before they could use a GPU.
//! Whether they used one is not known, so they are counted. If the driver's modules count their open files, a process during whose life no
//! file was opened is not counted, because it used no GPU.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::host::choice::Choice;
use nvcap_decode::record::Identity;

/// Age from which a process is no longer brief: by then it was looked at often enough.
const BRIEF: Duration = Duration::from_secs(1);
/// Age up to which a new process may still become another user's (`sudo`, `setpriv`).
const SETTLED: Duration = Duration::from_millis(20);
/// Longest time between two polls over which the counts of the driver's modules can be trusted. In a longer time, a process may have used a
/// GPU and ended unseen.
const LONG: Duration = Duration::from_millis(50);

/// State of a brief process that was born since the trace began.
#[derive(Debug)]
struct Brief {
    /// Time at which the process was first seen.
    born: Instant,
    /// Number of changes of the modules' counts when the process was last looked into.
    opens: u64,
    /// The process's user, and the time at which the user was read.
    user: Option<(Identity, Instant)>,
}

impl Brief {
    /// Tells whether the process may be a chosen one. A process's name changes when it executes a program, so only the filter by user
    /// counts.
    fn is_meant(&self, choice: &Choice) -> bool {
        let of_users = Choice {
            user: choice.user.clone(),
            ..Choice::default()
        };
        let user = self.user.as_ref();
        let settled = user.filter(|(_, read)| *read >= self.born + SETTLED);
        settled.is_none_or(|(who, _)| of_users.takes_beside_gpus(who))
    }
}

/// Processes that came and ended unseen, and the brief processes that still may.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// Processes that have been brief so far, by id.
    brief: BTreeMap<u32, Brief>,
    /// Number of changes of the modules' counts.
    opens: u64,
    polled: Option<Instant>,
    /// Count of unseen processes, and of numbers that were given to unseen processes or threads.
    count: u64,
    told: u64,
}

impl Unseen {
    /// Returns the number of changes of the modules' counts.
    pub(super) fn opens(&self) -> u64 {
        self.opens
    }

    /// Records a poll of the modules' counts. With `changed`, a file of the driver's may have been opened since the last poll. Returns
    /// whether a process that came and ended since the last poll may have used a GPU.
    pub(super) fn polled(&mut self, changed: bool, now: Instant) -> bool {
        self.opens += u64::from(changed);
        let before = self.polled.replace(now).unwrap_or(now);
        changed || now.saturating_duration_since(before) >= LONG
    }

    /// Adds to the count the numbers of processes or threads that are gone.
    pub(super) fn gone(&mut self, numbers: u64) {
        self.count += numbers;
    }

    /// Adds a process that was born since the last poll and has not been looked into.
    pub(super) fn born(&mut self, pid: u32, now: Instant) {
        // It may have opened any file that was opened since the last poll.
        let opens = self.opens.saturating_sub(1);
        self.brief.entry(pid).or_insert(Brief {
            born: now,
            opens,
            user: None,
        });
    }

    /// Returns the ids of the brief processes.
    pub(super) fn brief(&self) -> Vec<u32> {
        self.brief.keys().copied().collect()
    }

    /// Records that a process was looked into and is not known to use a GPU. `opens` is the number of changes of the modules' counts at
    /// that look.
    pub(super) fn looked(&mut self, pid: u32, opens: u64) {
        if let Some(it) = self.brief.get_mut(&pid) {
            it.opens = opens;
        }
    }

    /// Records a process's user.
    pub(super) fn is_of(&mut self, pid: u32, uid: Option<u32>, user: Option<String>, now: Instant) {
        let who = Identity {
            uid,
            user,
            ..Identity::default()
        };
        if let Some(it) = self.brief.get_mut(&pid) {
            it.user = Some((who, now));
        }
    }

    /// Forgets a process that was reported.
    pub(super) fn forget(&mut self, pid: u32) {
        self.brief.remove(&pid);
    }

    /// Records that a process has ended. If it was brief, no look has seen it use a GPU.
    pub(super) fn ended(&mut self, pid: u32, choice: &Choice) {
        if let Some(it) = self.brief.remove(&pid) {
            self.count += u64::from(self.opens > it.opens && it.is_meant(choice));
        }
    }

    /// Forgets processes that are no longer brief.
    pub(super) fn forget_old(&mut self, now: Instant) {
        let age = |it: &Brief| now.saturating_duration_since(it.born);
        self.brief.retain(|_, it| age(it) < BRIEF);
    }

    /// Returns the count as a text, each time that it has doubled since the last text.
    pub(super) fn said(&mut self) -> Option<String> {
        if self.count == 0 || self.count < 2 * self.told {
            return None;
        }
        self.told = self.count;
        Some(said(self.count))
    }
}

fn said(count: u64) -> String {
    let (who, them) = match count {
        1 => (
            "1 process or thread".to_owned(),
            "it is not known whether it",
        ),
        n => (
            format!("{n} processes or threads"),
            "it is not known who of them",
        ),
    };
    format!(
        "{who} so far came and ended between two looks at /proc, so that {them} used a GPU; run nvcap as root or with cap_perfmon, to whom the \
         kernel tells of each that does"
    )
}

/// Reason why short-lived processes are not known if `/proc` does not give the last process number.
pub(super) const NO_NUMBERS: &str = "/proc has no loadavg (it is mounted with subset=pid), so that it is not known whether processes came \
                                     and ended between two looks at it; run nvcap as root or with cap_perfmon, to whom the kernel tells of \
                                     each that uses a GPU";

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begun: Instant, ms: u64) -> Instant {
        begun + Duration::from_millis(ms)
    }

    /// Test that processes which lived while nobody opened a file of the driver's are not counted.
    #[test]
    fn who_may_have_used_a_gpu_is_counted() {
        let begun = Instant::now();
        let (mut unseen, choice) = (Unseen::default(), Choice::default());
        unseen.polled(true, begun);
        assert!(!unseen.polled(false, at(begun, 5)));
        unseen.born(7, at(begun, 5));
        unseen.looked(7, unseen.opens());
        assert!(!unseen.polled(false, at(begun, 10)));
        unseen.ended(7, &choice);
        assert_eq!(unseen.said(), None, "nobody has opened anything");
        unseen.born(8, at(begun, 10));
        unseen.looked(8, unseen.opens());
        assert!(unseen.polled(true, at(begun, 15)));
        unseen.ended(8, &choice);
        assert!(
            unseen
                .said()
                .unwrap()
                .starts_with("1 process or thread so far")
        );
        unseen.ended(8, &choice);
        assert!(
            unseen.polled(false, at(begun, 65)),
            "nobody looked for long"
        );
        unseen.gone(1);
        assert!(
            unseen
                .said()
                .unwrap()
                .starts_with("2 processes or threads so far")
        );
        unseen.gone(1);
        assert_eq!(unseen.said(), None, "not each by itself");
        unseen.gone(1);
        assert!(
            unseen
                .said()
                .unwrap()
                .starts_with("4 processes or threads so far")
        );
    }

    /// Test that a process which has lived for a while, and was looked at often enough, is not counted, nor one that was reported.
    #[test]
    fn who_is_no_longer_brief_is_not_counted() {
        let begun = Instant::now();
        let (mut unseen, choice) = (Unseen::default(), Choice::default());
        for pid in [7, 8, 9] {
            unseen.born(pid, begun);
        }
        unseen.polled(true, begun);
        unseen.forget(7);
        unseen.forget_old(begun + BRIEF - Duration::from_nanos(1));
        assert_eq!(unseen.brief(), [8, 9]);
        unseen.ended(8, &choice);
        unseen.forget_old(begun + BRIEF);
        unseen.ended(7, &choice);
        unseen.ended(9, &choice);
        assert!(unseen.said().unwrap().starts_with("1 process"));
    }

    /// Test of a filter that leaves out another user's process, and counts one that may become another user's.
    #[test]
    fn of_those_that_are_meant() {
        let begun = Instant::now();
        let choice = Choice {
            user: vec!["1001".into()],
            comm: vec!["anything".into()],
            ..Choice::default()
        };
        let counted = |uid: Option<u32>, after: Duration| {
            let mut unseen = Unseen::default();
            unseen.born(7, begun);
            unseen.is_of(7, uid, None, begun + after);
            unseen.polled(true, begun);
            unseen.ended(7, &choice);
            unseen.said().is_some()
        };
        let moment = Duration::from_nanos(1);
        assert!(counted(Some(1001), SETTLED) && counted(Some(0), SETTLED - moment));
        assert!(!counted(Some(0), SETTLED));
    }
}
