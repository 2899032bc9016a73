//! Choice of the processes that may not be looked into and are to be reported: each once, and not too often. Pure.

use std::collections::{BTreeMap, BTreeSet};

use nvcap_monitor::counts::view::{Refused, named};

/// Shortest time between two messages, ns, so that a user who keeps starting processes does not fill the log.
const PAUSE: u64 = 10_000_000_000;

/// Record of the refusals that were reported.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Ids of processes that were reported and are still refused; there are never more than such processes.
    said: BTreeSet<u32>,
    last: Option<u64>,
}

impl Refusals {
    /// Returns the message about unreported processes, if there are any and it is time.
    pub(super) fn news(&mut self, now: u64, refused: &BTreeMap<u32, Refused>) -> Option<String> {
        self.said.retain(|pid| refused.contains_key(pid));
        let is_new = |pid: &u32| !self.said.contains(pid);
        let new = refused.iter().filter(|(pid, _)| is_new(pid));
        let new: BTreeMap<u32, Refused> = new.map(|(pid, r)| (*pid, r.clone())).collect();
        let is_early = self
            .last
            .is_some_and(|last| now.saturating_sub(last) < PAUSE);
        if new.is_empty() || is_early {
            return None;
        }
        self.said.extend(new.keys());
        self.last = Some(now);
        let (all, names) = (refused.len(), named(&new));
        Some(match new.len() == all {
            true => format!("processes that may not be looked into: {all} ({names})"),
            false => format!(
                "processes that may not be looked into: {all}, of which {} new ({names})",
                new.len()
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(pids: impl IntoIterator<Item = u32>) -> BTreeMap<u32, Refused> {
        let one = |pid| {
            let name = format!("p{pid}");
            (
                pid,
                Refused {
                    name,
                    ..Refused::default()
                },
            )
        };
        pids.into_iter().map(one).collect()
    }

    /// Test that a process which replaces another is named although the number has not grown, and that none is named twice.
    #[test]
    fn each_is_told_once() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.news(0, &refused([])), None);
        let text = refusals.news(1, &refused([5, 6]));
        let wanted = "processes that may not be looked into: 2 (p5 5, p6 6)";
        assert_eq!(text.as_deref(), Some(wanted));
        assert_eq!(refusals.news(PAUSE + 1, &refused([5, 6])), None);
        let text = refusals.news(PAUSE + 2, &refused([6, 7]));
        let wanted = "processes that may not be looked into: 2, of which 1 new (p7 7)";
        assert_eq!(text.as_deref(), Some(wanted));
        // 5 was gone in between, so it is another process now.
        let text = refusals.news(3 * PAUSE, &refused([5, 6, 7]));
        assert!(text.is_some_and(|text| text.ends_with("1 new (p5 5)")));
        assert_eq!(refusals.said.len(), 3);
    }

    /// Test that refusals within the pause are reported after it.
    #[test]
    fn not_too_often() {
        let mut refusals = Refusals::default();
        assert!(refusals.news(0, &refused([1])).is_some());
        for pid in 2..2000 {
            assert_eq!(refusals.news(1 + u64::from(pid), &refused([pid])), None);
        }
        let text = refusals.news(PAUSE, &refused(1990..2000)).unwrap();
        assert!(
            text.contains("10 (p1990 1990") && text.contains("and 2 more"),
            "{text}"
        );
        assert_eq!(refusals.said.len(), 10);
    }
}
