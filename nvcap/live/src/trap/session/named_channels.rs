//! Channels and doorbells that the user named, in a program that is executed: their memory is mapped some time after its
//! start. Until a doorbell is seen, only looks show whether the memory is there, and whether the right doorbells were
//! named.
//!
//! Invariant: an address space stays here from its program's start until it has ended and its findings were reported once.

use std::collections::HashMap;

use super::patrol::PATROL_NS;
use nvcap_decode::record::Lost;
use nvcap_process::channels_file::ChannelsFile;
use nvcap_process::memory::maps::Area;

/// Time between two looks while the memory may appear, or when a ring has just moved, ns.
const OFTEN_NS: u64 = 5_000_000;
/// Time after a program's start in which the looks for the memory are that frequent, ns.
const START_NS: u64 = 10_000_000_000;

/// Looks at the named channels of a program whose doorbells were not seen yet.
#[derive(Clone, Copy, Debug)]
struct Looks {
    /// Time of the next look, ns.
    next: u64,
    /// Time between two looks, ns.
    pause: u64,
    /// Time at which the program began, ns.
    since: u64,
    /// True if memory of a named channel was there.
    there: bool,
    /// True if the named doorbells were mapped when a ring had moved although none was seen; `None` while no ring has.
    moved: Option<bool>,
}

/// Result of a look at an address space.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookResult {
    /// True if a ring has moved.
    pub(super) moved: bool,
    /// True if a doorbell was seen.
    pub(super) rung: bool,
}

/// The names given by the user, and the address spaces in which they are looked for.
#[derive(Debug)]
pub(super) struct NamedChannels {
    /// Doorbells and channels that the user named.
    pub(super) file: ChannelsFile,
    spaces: HashMap<u32, Looks>,
    /// True if memory of a named channel was there in some process.
    was_there: bool,
}

impl NamedChannels {
    pub(super) fn new(file: ChannelsFile) -> Self {
        Self {
            file,
            spaces: HashMap::new(),
            was_there: false,
        }
    }

    /// Takes note that a program starts that may have the named channels.
    pub(super) fn expect(&mut self, space: u32, now: u64) {
        if self.file.channels.is_empty() {
            return;
        }
        let there = self.spaces.get(&space).is_some_and(|l| l.there);
        let looks = Looks {
            next: now,
            pause: OFTEN_NS,
            since: now,
            there,
            moved: None,
        };
        self.spaces.insert(space, looks);
    }

    /// Takes note that the memory of a named channel has appeared.
    pub(super) fn is_there(&mut self, space: u32) {
        self.was_there = true;
        if let Some(looks) = self.spaces.get_mut(&space) {
            looks.there = true;
        }
    }

    /// Returns the address spaces whose named channels are due for a look.
    pub(super) fn due(&self, now: u64) -> Vec<u32> {
        let all = self.spaces.iter().filter(|(_, l)| now >= l.next);
        all.map(|(space, _)| *space).collect()
    }

    /// Takes note of a look at an address space.
    pub(super) fn looked(&mut self, space: u32, now: u64, look: LookResult) {
        let Some(looks) = self.spaces.get_mut(&space) else {
            return;
        };
        let soon = !looks.there && now.saturating_sub(looks.since) < START_NS;
        looks.pause = match look.moved || soon {
            true => OFTEN_NS,
            false => (2 * looks.pause).min(PATROL_NS),
        };
        // Once a doorbell was seen, the patrol is enough.
        looks.next = match look.rung {
            true => u64::MAX,
            false => now + looks.pause,
        };
    }

    /// Takes note that a ring moved although no doorbell was seen. At the first such look, the mapped `areas` show whether
    /// the named doorbells are mapped.
    pub(super) fn moved_unrung(&mut self, space: u32, areas: impl FnOnce() -> Option<Vec<Area>>) {
        let looks = self.spaces.get_mut(&space);
        let Some(looks) = looks.filter(|l| l.moved.is_none()) else {
            return;
        };
        let is_mapped = |areas: Vec<Area>| {
            let mut named = self.file.doorbells.iter();
            named.any(|d| {
                let mut areas = areas.iter();
                areas.any(|a| (a.start..a.end).contains(&d.address))
            })
        };
        looks.moved = Some(areas().is_some_and(is_mapped));
    }

    /// Returns the losses of rings that moved although no doorbell was seen, in address spaces that are `over`. Each is
    /// returned once.
    pub(super) fn take_unrung(&mut self, over: impl Fn(u32) -> bool) -> Vec<Lost> {
        let over = self.spaces.extract_if(|space, _| over(*space));
        let unrung: Vec<bool> = over.filter_map(|(_, looks)| looks.moved).collect();
        let lost = unrung.into_iter().map(|mapped| self.unrung(mapped));
        lost.collect()
    }

    fn unrung(&self, mapped: bool) -> Lost {
        let why = match mapped {
            true => "is another",
            false => "is not mapped there",
        };
        let named = self.file.doorbells.first();
        let named = named.map_or_else(
            || "none was named".into(),
            |d| format!("{:#x} {why}", d.address),
        );
        let why = format!(
            "rings of the channels given moved and none of the doorbells given was rung ({named}): what came between two looks may be missing; correct the doorbell lines of --channels"
        );
        Lost::Untraced { why }
    }

    /// Returns the loss to report if no named channel was ever there.
    pub(super) fn never_there(&self) -> Option<Lost> {
        if self.file.channels.is_empty() || self.was_there {
            return None;
        }
        let why = "none of the channels given was there when it was looked for: if a GPU was used, all of it is missing; correct the channel lines of --channels";
        Some(Lost::Untraced {
            why: why.to_owned(),
        })
    }

    /// Forgets an address space that is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.spaces.remove(&space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_process::channels_file::{NamedChannel, NamedDoorbell};

    fn named() -> NamedChannels {
        NamedChannels::new(ChannelsFile {
            doorbells: vec![NamedDoorbell {
                address: 0x90,
                gpu: None,
            }],
            channels: vec![NamedChannel::default()],
        })
    }

    const QUIET: LookResult = LookResult {
        moved: false,
        rung: false,
    };

    #[test]
    fn the_memory_is_looked_for_often_until_it_is_there() {
        let mut named = named();
        named.expect(1, 1000);
        assert_eq!(named.due(1000), [1]);
        named.looked(1, 1000, QUIET);
        assert_eq!(
            (named.due(999 + OFTEN_NS).len(), named.due(1000 + OFTEN_NS)),
            (0, vec![1])
        );
        assert!(named.never_there().is_some());
        named.is_there(1);
        assert!(named.never_there().is_none());
        named.looked(1, 1000, QUIET);
        assert_eq!(named.due(1000 + OFTEN_NS), [0; 0]);
        assert_eq!(named.due(1000 + 2 * OFTEN_NS), [1]);
        // Where doorbells are seen, no more looks are needed.
        named.looked(
            1,
            1000,
            LookResult {
                rung: true,
                ..QUIET
            },
        );
        assert_eq!(named.due(u64::MAX - 1), [0; 0]);
    }

    #[test]
    fn a_ring_that_moves_unrung_is_reported_once() {
        let mut named = named();
        named.expect(1, 0);
        named.expect(2, 0);
        named.moved_unrung(1, || Some(Vec::new()));
        named.moved_unrung(1, || panic!("it is known why"));
        assert_eq!(named.take_unrung(|space| space == 2).len(), 0);
        let told = named.take_unrung(|_| true);
        assert!(
            matches!(&told[..], [Lost::Untraced { why }] if why.contains("0x90 is not mapped there"))
        );
        assert_eq!(named.take_unrung(|_| true).len(), 0);
    }
}
