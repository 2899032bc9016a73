//! Parts of a watched process: its descent, its program and that program's life, its mappings, its use of a GPU, its channels and the
//! search for them, rings that are not followed, and channels that no process has any more. Plain data: reads nothing of the process.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::observe::{
    channel::Begin, followed::Dropped, mm_identity::MmIdentity, process::OpenedProcess,
    slots::Unresolved,
};
use nvcap_decode::record::CpuVa;
use nvcap_process::memory::maps::Area;

/// Descent of a process, as far as it was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descent {
    /// The process ran when observing it began.
    Present,
    /// The process was born under observation, and no observed process is known to have made it.
    Launched,
    /// The process was born under observation, and this observed process made it.
    ChildOf(u32),
}

impl Descent {
    /// Descent of a process when it is opened. A child's parent is set afterwards.
    pub(super) fn of(begin: Begin) -> Self {
        match begin {
            Begin::First => Self::Launched,
            Begin::Here => Self::Present,
        }
    }

    /// Tells whether the process was born under observation.
    pub(super) fn is_launched(self) -> bool {
        self != Self::Present
    }

    /// Returns the process's parent, if it is observed too.
    pub(super) fn parent(self) -> Option<u32> {
        match self {
            Self::ChildOf(parent) => Some(parent),
            Self::Present | Self::Launched => None,
        }
    }
}

/// Life of a program, as far as looks have shown it. Its memory may go before or after the last look at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Life {
    /// The program runs.
    #[default]
    Running,
    /// The program's memory is gone: the process is ending, or executing another program.
    MemoryGone,
    /// The program was looked at when it stood at its end.
    SeenToItsEnd {
        /// True if its memory is gone, too.
        memory_gone: bool,
    },
}

impl Life {
    /// Takes note that the program's memory is gone.
    pub(super) fn lose_memory(&mut self) {
        *self = match self {
            Self::Running | Self::MemoryGone => Self::MemoryGone,
            Self::SeenToItsEnd { .. } => Self::SeenToItsEnd { memory_gone: true },
        };
    }

    /// Takes note that the program was looked at when it stood at its end.
    pub(super) fn see_to_its_end(&mut self) {
        *self = Self::SeenToItsEnd {
            memory_gone: self.is_memory_gone(),
        };
    }

    /// Tells whether the program's memory is gone.
    pub(super) fn is_memory_gone(self) -> bool {
        matches!(
            self,
            Self::MemoryGone | Self::SeenToItsEnd { memory_gone: true }
        )
    }

    /// Tells whether the program was looked at when it stood at its end.
    pub(super) fn is_seen_to_its_end(self) -> bool {
        matches!(self, Self::SeenToItsEnd { .. })
    }
}

/// Program that a process executes.
#[derive(Debug)]
pub(crate) struct Program {
    /// Memory and clock of the process; `None` while they cannot be read.
    pub process: Option<Arc<OpenedProcess>>,
    /// Program image; empty where it is not known yet.
    pub mm: Arc<MmIdentity>,
    /// Time at which the program was seen to begin, ns.
    pub began_at: u64,
    /// True if it was still the parent's program at the last look.
    pub(super) forked: bool,
    pub(super) life: Life,
}

/// Mappings of a process at the last look at them.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    pub areas: Vec<Area>,
    /// Pages of memory at that look. While their number is the same, the mappings count as unchanged.
    pub pages: u64,
    /// Time of that look, ns; `None` before the program's first.
    pub looked_at: Option<u64>,
    /// Time from which changed mappings are read again, ns; 0 for at once.
    pub next: u64,
}

/// Use of a GPU by a program, as far as its mappings and open files show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GpuUse {
    /// No use was seen.
    #[default]
    Unseen,
    /// The program has a GPU's file open, and no doorbell was seen.
    FileOpen {
        /// Time at which the file was first seen open, ns.
        since: u64,
    },
    /// The program has mapped memory of a GPU with the right to write, such as a doorbell.
    Doorbell,
}

/// Search for open files of a GPU.
#[derive(Debug, Default)]
pub(super) struct GpuFiles {
    pub seen: GpuUse,
    /// Time from which the files are looked for again, ns; 0 for at once.
    pub next: u64,
    /// True if a context may have come and gone unseen: the process came to its end with a GPU's file open and no doorbell mapped, and
    /// the file was opened after the last look but one at its mappings, or more than `CONTEXT_NS` lay between the last two looks.
    pub opened_late: bool,
}

/// Known channels of a process.
#[derive(Debug)]
pub(super) struct Channels {
    /// Addresses of the channels' rings.
    pub rings: BTreeSet<u64>,
    /// True if at least one channel was found since the program began.
    pub found: bool,
    /// Position at which following the next found channel begins.
    pub begin: Begin,
}

impl Channels {
    /// Takes note that channels were found: later ones appear under observation.
    pub(super) fn were_found(&mut self) {
        self.begin = Begin::First;
        self.found = true;
    }
}

/// Search for channels.
#[derive(Debug)]
pub(super) struct Search {
    /// Time from which rings are searched for again, ns; 0 for at once.
    pub next: u64,
    /// Time from which the search by structure may be made again, ns; 0 for at once.
    pub next_thorough: u64,
    /// CPU time that the process had used at the last search, ns; `None` where the next search must be made in any case.
    pub cpu_then: Option<u64>,
    /// Begin of the last search for rings at whose end all known rings were still there, ns; `None` where there was none, or where only
    /// rings that the user names are looked for.
    pub sought_at: Option<u64>,
    /// Time until which channels are expected to appear, ns.
    pub appear_until: u64,
    /// Next search for tokens; `None` where all are known, or no new channel has come that may have one.
    pub tokens: Option<TokenSearch>,
}

impl Search {
    /// Creates the search of a process that was not searched yet.
    pub(super) fn new(appear_until: u64) -> Self {
        Self {
            next: 0,
            next_thorough: 0,
            cpu_then: Some(0),
            sought_at: None,
            appear_until,
            tokens: None,
        }
    }
}

/// A search for tokens that is due at some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenSearch {
    /// Time from which the search is made, ns.
    pub at: u64,
    /// Number of times that the search may still be made.
    pub tries: u32,
}

/// Number of times that unreadable rings are looked for again, for all rings of a process together.
const AGAIN: u32 = 200;

/// Rings that were found, or may exist, and are not followed.
#[derive(Debug, Default)]
pub(super) struct NotFollowed {
    /// Rings that were found and could not be read.
    pub unread: Vec<CpuVa>,
    /// Rings that were found while their program was not certain. They are followed when they are found again.
    pub put_off: BTreeSet<u64>,
    /// Rings that could not be read, and are not looked for again before the mappings are read anew.
    pub stale: BTreeSet<u64>,
    /// Slots with a ring that was not believed, by the address of USERD.
    pub unresolved: BTreeMap<u64, Unresolved>,
    /// Number of rings that could not be read and were forgotten.
    forgotten: u32,
}

impl NotFollowed {
    /// Takes note that a ring was found, and whether it could be read.
    pub(super) fn found(&mut self, ring: Option<CpuVa>, readable: bool) {
        if let Some(ring) = ring {
            self.put_off.remove(&ring.0);
        }
        if readable {
            self.unread.retain(|r| Some(*r) != ring);
        } else {
            self.unread
                .extend(ring.filter(|r| !self.unread.contains(r)));
        }
    }

    /// Takes note that a ring could not be read. Returns it if it is to be looked for again.
    pub(super) fn forget(&mut self, ring: Option<CpuVa>) -> Option<CpuVa> {
        self.forgotten += 1;
        let again = ring.filter(|_| self.forgotten < AGAIN);
        self.stale.extend(again.map(|ring| ring.0));
        again
    }
}

/// Channels that no process has any more, as far as that was not reported.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    pub channels: Vec<Dropped>,
    /// Time of the last news on any such channel of the program, reported or not, ns; `None` where nothing ever came.
    pub moved: Option<u64>,
    /// Longest time from the last search to the moment at which a channel was found gone, ns; `None` where there was no search.
    pub unsought: Option<u64>,
}

impl GivenUp {
    /// Adds a channel. `sought_at`: begin of the last search for channels, ns.
    pub(super) fn add(&mut self, channel: Dropped, sought_at: Option<u64>) {
        let moved = Some(channel.moved).filter(|moved| *moved > 0);
        self.moved = self.moved.max(moved);
        let unsought = sought_at.map(|sought| channel.now.saturating_sub(sought));
        self.unsought = self.unsought.max(unsought);
        self.channels.push(channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_seen_to_its_end_loses_its_memory_before_or_after_that() {
        let mut life = Life::Running;
        life.see_to_its_end();
        assert!(life.is_seen_to_its_end() && !life.is_memory_gone());
        life.lose_memory();
        let both = Life::SeenToItsEnd { memory_gone: true };
        assert_eq!(life, both);
        let mut life = Life::Running;
        life.lose_memory();
        assert!(!life.is_seen_to_its_end() && life.is_memory_gone());
        life.lose_memory();
        assert_eq!(life, Life::MemoryGone);
        life.see_to_its_end();
        life.see_to_its_end();
        assert_eq!(life, both);
    }

    #[test]
    fn rings_that_cannot_be_read_are_looked_for_again_a_limited_number_of_times() {
        let mut rings = NotFollowed::default();
        let ring = Some(CpuVa(0x1000));
        assert_eq!(rings.forget(None), None);
        for _ in 2..AGAIN {
            assert_eq!(rings.forget(ring), ring);
        }
        rings.stale.clear();
        assert_eq!(rings.forget(ring), None);
        assert!(rings.stale.is_empty());
    }
}
