//! Bounds on the errors that are told and looked at: a process can write its error notifiers itself, and each look is a dump on the disk.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvcap_show::output::message::tell;

/// Number of errors of a process that are told at once.
const OF_PROCESS: u32 = 8;
/// Number of errors of all processes that are told at once without a message of the kernel's log that confirms them.
const UNCONFIRMED: u32 = 32;
/// Time after which one more is told.
const ANEW: Duration = Duration::from_secs(60);

/// Number of errors that may still be told: `most` at once, then one more each [`ANEW`].
#[derive(Debug)]
struct Bucket {
    most: u32,
    left: u32,
    /// Time up to which it was filled.
    filled: Instant,
    /// True if some were left out, which was said.
    said: bool,
}

impl Bucket {
    fn new(most: u32, now: Instant) -> Self {
        Self {
            most,
            left: most,
            filled: now,
            said: false,
        }
    }

    fn fill(&mut self, now: Instant) {
        while self.left < self.most && now.saturating_duration_since(self.filled) >= ANEW {
            self.left += 1;
            self.filled += ANEW;
        }
        if self.left == self.most {
            (self.filled, self.said) = (now, false);
        }
    }

    /// Notes that some are left out; true where that is to be said.
    fn leaves_out(&mut self) -> bool {
        !std::mem::replace(&mut self.said, true)
    }
}

/// Result of asking for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The error is told.
    Told,
    /// The error is not told; `say`: it is the first one that is not.
    LeftOut { say: bool },
}

/// The process of an error; or its GPU, by the PCI address, where no process is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    Process(u32),
    Gpu(String),
}

impl Whose {
    /// Tells whether an error is told; says, at the first one, that some are not.
    pub(super) fn is_told(&self, asked: Asked) -> bool {
        if asked == (Asked::LeftOut { say: true }) {
            match self {
                Self::Process(pid) => tell(format_args!(
                    "process {pid} has more errors than are told (a process can write its error notifiers itself): one a minute from now on"
                )),
                Self::Gpu(pci) => tell(format_args!(
                    "GPU {pci} has more errors of no known process than are told: one a minute from now on"
                )),
            }
        }
        asked == Asked::Told
    }
}

/// Numbers of errors that may still be told: of each process and GPU, and of all that the kernel log does not confirm.
#[derive(Debug)]
pub(super) struct Allowance {
    each: BTreeMap<Whose, Bucket>,
    unconfirmed: Bucket,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            each: BTreeMap::new(),
            unconfirmed: Bucket::new(UNCONFIRMED, now),
        }
    }

    /// Asks whether any error may be told now.
    pub(super) fn has_any(&mut self, whose: &Whose, now: Instant) -> Asked {
        self.each.retain(|_, bucket| {
            bucket.fill(now);
            bucket.left < bucket.most
        });
        match self.each.get_mut(whose) {
            Some(bucket) if bucket.left == 0 => Asked::LeftOut {
                say: bucket.leaves_out(),
            },
            _ => Asked::Told,
        }
    }

    /// Asks whether an error may be told, and counts it if so; `confirmed`: the kernel's log has a message about it, which no process
    /// can write.
    pub(super) fn ask(&mut self, whose: &Whose, confirmed: bool, now: Instant) -> Asked {
        if let left_out @ Asked::LeftOut { .. } = self.has_any(whose, now) {
            return left_out;
        }
        self.unconfirmed.fill(now);
        if !confirmed && self.unconfirmed.left == 0 {
            return Asked::LeftOut {
                say: self.unconfirmed.leaves_out(),
            };
        }
        if !confirmed {
            self.unconfirmed.left -= 1;
        }
        let new = || Bucket::new(OF_PROCESS, now);
        self.each.entry(whose.clone()).or_insert_with(new).left -= 1;
        Asked::Told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT_OUT: Asked = Asked::LeftOut { say: false };
    const SAID: Asked = Asked::LeftOut { say: true };

    fn of(pid: u32) -> Whose {
        Whose::Process(pid)
    }

    #[test]
    fn a_process_has_a_few_at_once_and_one_a_minute() {
        let begin = Instant::now();
        let mut all = Allowance::new(begin);
        for _ in 0..OF_PROCESS {
            assert_eq!(all.ask(&of(7), true, begin), Asked::Told);
        }
        assert_eq!(all.ask(&of(7), true, begin), SAID);
        assert_eq!(all.has_any(&of(7), begin + ANEW / 2), LEFT_OUT);
        assert_eq!(all.ask(&of(8), true, begin), Asked::Told, "another one's");
        assert_eq!(all.ask(&of(7), true, begin + ANEW), Asked::Told);
        assert_eq!(all.ask(&of(7), true, begin + ANEW), LEFT_OUT);
        // After a long time it has all of them again, and the first that is left out is said again.
        let later = begin + 20 * ANEW;
        assert_eq!(all.has_any(&of(7), later), Asked::Told);
        assert_eq!(all.each.len(), 0, "nothing is kept");
        for _ in 0..OF_PROCESS {
            assert_eq!(all.ask(&of(7), true, later), Asked::Told);
        }
        assert_eq!(all.ask(&of(7), true, later), SAID);
    }

    #[test]
    fn many_processes_that_write_their_own_notifiers_hide_no_other_ones_error() {
        let begin = Instant::now();
        let mut all = Allowance::new(begin);
        let told = (0..1000).filter(|pid| all.ask(&of(*pid), false, begin) == Asked::Told);
        assert_eq!(told.count(), UNCONFIRMED as usize);
        assert_eq!(all.ask(&of(5000), true, begin), Asked::Told);
        assert_eq!(all.ask(&of(5001), false, begin), LEFT_OUT);
        assert_eq!(all.ask(&of(5001), false, begin + ANEW), Asked::Told);
    }
}
