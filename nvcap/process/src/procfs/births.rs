//! Processes that are born anywhere on this machine, found by the number that the kernel gave last. If nothing shows that number (a `/proc`
//! that is mounted with `subset=pid` has no `loadavg`), they are found by comparing lists of `/proc`.

use std::{collections::BTreeSet, fs::File, ops::Range, os::unix::fs::FileExt};

/// The most new numbers that are looked up one by one. For more, `/proc` is listed.
const FEW: u32 = 512;

/// The numbers that the kernel gives to processes and threads.
#[derive(Debug)]
pub struct Numbers {
    /// `/proc/loadavg`, whose last word is the number that was given last.
    file: Option<File>,
    last: Option<u32>,
    /// Processes of the last list, if the kernel's last number is not known.
    listed: BTreeSet<u32>,
    given: Range<u32>,
}

/// No numbers.
const NONE: Range<u32> = 0..0;

impl Numbers {
    /// Makes a record of the numbers that are given from now on.
    #[expect(clippy::new_without_default, reason = "it opens a file")]
    pub fn new() -> Self {
        Self::told_by(File::open("/proc/loadavg").ok())
    }

    fn told_by(file: Option<File>) -> Self {
        let last = last(file.as_ref());
        let listed = match last {
            Some(_) => BTreeSet::new(),
            None => super::processes().into_iter().collect(),
        };
        Self {
            file,
            last,
            listed,
            given: NONE,
        }
    }

    /// Tells whether processes that come and go between two calls leave a trace, in the kernel's last number; false if only lists of
    /// `/proc` show births.
    pub fn tells_all(&self) -> bool {
        self.last.is_some()
    }

    /// Returns all numbers that were given between the last two calls of [`fresh`](Self::fresh). If the kernel began again with small
    /// numbers, it is only those since then. Some of the numbers may belong to older processes.
    pub(crate) fn given(&self) -> Range<u32> {
        self.given.clone()
    }

    /// Returns the numbers that were given since the last call.
    pub fn fresh(&mut self) -> Vec<u32> {
        let last = last(self.file.as_ref());
        let (Some(before), Some(last)) = (std::mem::replace(&mut self.last, last), last) else {
            let all: BTreeSet<u32> = super::processes().into_iter().collect();
            self.given = NONE;
            let fresh = all.difference(&self.listed).copied().collect();
            self.listed = all;
            return fresh;
        };
        self.given = match before <= last {
            true => before + 1..last + 1,
            false => 1..last + 1,
        };
        if (before..=before.saturating_add(FEW)).contains(&last) {
            let own = |pid: &u32| !super::errands::is_errand(*pid);
            return (before + 1..=last).filter(own).collect();
        }
        let mut all = super::processes();
        // After the largest number, the kernel begins again with small ones.
        if before < last {
            all.retain(|pid| (before + 1..=last).contains(pid));
        } else {
            all.retain(|pid| *pid > before || *pid <= last);
        }
        all
    }
}

/// Returns the number that the kernel gave last to a process or thread.
fn last(numbers: Option<&File>) -> Option<u32> {
    let mut room = [0; 128];
    let len = numbers?.read_at(&mut room, 0).ok()?;
    let text = std::str::from_utf8(room.get(..len)?).ok()?;
    text.split_whitespace().nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_birth_is_told_once() {
        let mut numbers = Numbers::new();
        numbers.fresh();
        for _ in 0..3 {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            let pid = child.id();
            assert!(numbers.fresh().contains(&pid));
            assert!(numbers.given().contains(&pid));
            assert!(!numbers.fresh().contains(&pid));
            child.wait().unwrap();
        }
        assert!(numbers.tells_all());
        // Many more than are looked up one by one, and around the largest number.
        let child = nvcap_waiting::Sleeper::start();
        let pid = child.id();
        let told = |last: u32| {
            let mut numbers = Numbers {
                last: Some(last),
                ..Numbers::new()
            };
            numbers.fresh().contains(&pid)
        };
        let (few, many, round) = (
            told(pid - 1),
            told(pid.saturating_sub(FEW + 100)),
            told(u32::MAX - 1),
        );
        assert!(few && many && round, "{few} {many} {round}");
    }

    /// Test of a `/proc` as mounted with `subset=pid`: processes that were there before are not fresh.
    #[test]
    fn births_are_told_without_the_last_number() {
        let before = nvcap_waiting::Sleeper::start();
        let mut numbers = Numbers::told_by(None);
        assert!(!numbers.tells_all());
        for _ in 0..3 {
            let child = nvcap_waiting::Sleeper::start();
            let fresh = numbers.fresh();
            assert!(fresh.contains(&child.id()), "{fresh:?}");
            assert!(!fresh.contains(&before.id()) && !fresh.contains(&std::process::id()));
            assert!(!numbers.fresh().contains(&child.id()));
        }
    }
}
