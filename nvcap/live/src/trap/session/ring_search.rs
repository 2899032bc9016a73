//! The search for rings in attached processes: channels may have been made before nvcap attached, and be used for the first time
//! later. Decides which candidates are rings. Must not read memory.
//!
//! Invariant: only attached address spaces are here. A ring is doubtful until it moves, or until there are at least as many
//! tokens without a channel as doubtful rings.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nvcap_decode::record::Device;
pub(super) use nvcap_process::memory::{maps::Area, scan::FoundRing};

/// The most doubtful rings that are remembered of an address space. With more, their number proves nothing.
const DOUBTFUL_MOST: usize = 4096;

/// Least and greatest time between two searches of a process's memory. A search costs nvcap some ms, and the process nothing.
const PAUSE_NS: (u64, u64) = (2_000_000, 500_000_000);

/// State of an attached address space.
#[derive(Debug)]
struct Searched {
    /// Start of the last search after which all rings were followed, ns.
    complete: u64,
    /// Time of the earliest next search, ns.
    next: u64,
    /// Time between the last search and the next one, ns.
    pause: u64,
    /// Ranges of GPU memory in which no ring was in use when nvcap attached.
    unused: Vec<(u64, u64)>,
    /// Doubtful rings, which may be remains of old ones: GP_PUT by address.
    doubtful: BTreeMap<u64, u32>,
    /// True if a search is due at the next patrol, provided that a token is still without a channel.
    put_off: bool,
}

/// Result of a search in an address space.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) space: u32,
    /// Rings that are in use and not followed.
    pub(super) new: Vec<FoundRing>,
    /// True if no memory was unmapped meanwhile, so that all rings were found.
    pub(super) whole: bool,
}

/// Rings that are followed from now on.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Rings that were first used, or moved, since nvcap attached.
    pub(super) certain: Vec<FoundRing>,
    /// Rings that are accepted only because of their number: as many tokens were rung as rings were left. If one of them never moves
    /// afterwards, it proves nothing about the token.
    pub(super) by_number: Vec<FoundRing>,
}

/// Tokens that were rung and whose channel is unknown.
pub(super) trait RungTokens {
    /// Tells whether a ring of the address space is followed.
    fn is_followed(&self, space: u32, ring: u64) -> bool;
    /// Returns the number of rung tokens whose channel is unknown.
    fn count(&self, space: u32) -> usize;
    /// Reads the ring buffer for doorbells that were rung during the search.
    fn refresh(&mut self);
}

/// The searches of all attached address spaces.
#[derive(Debug, Default)]
pub(super) struct RingSearch(HashMap<u32, Searched>);

impl RingSearch {
    /// Begins with an attached address space. All its rings in use are followed.
    pub(super) fn begin(&mut self, space: u32, areas: &[Area], found: &[FoundRing]) {
        let searched = Searched {
            complete: 0,
            next: 0,
            pause: PAUSE_NS.0,
            unused: unused_areas(areas, found),
            doubtful: BTreeMap::new(),
            put_off: false,
        };
        self.0.insert(space, searched);
    }

    /// Tells whether the memory may be searched now. If so, the next search is put off for a while.
    pub(super) fn is_due(&mut self, space: u32, now: u64) -> bool {
        let Some(search) = self.0.get_mut(&space).filter(|s| now >= s.next) else {
            return false;
        };
        search.pause = (2 * search.pause).min(PAUSE_NS.1);
        search.next = now + search.pause;
        search.put_off = false;
        true
    }

    /// Takes note that a doorbell found nothing that had moved while not all rings were followed: its channel may be one of the
    /// others. Later doorbells will show it; if there are none, a search is due.
    pub(super) fn put_off(&mut self, space: u32) {
        if let Some(search) = self.0.get_mut(&space) {
            search.put_off = true;
        }
    }

    /// Returns the address spaces in which a search was postponed.
    pub(super) fn all_put_off(&self) -> Vec<u32> {
        let all = self.0.iter().filter(|(_, search)| search.put_off);
        all.map(|(space, _)| *space).collect()
    }

    /// Takes note that every token has a channel.
    pub(super) fn settled(&mut self, space: u32) {
        if let Some(search) = self.0.get_mut(&space) {
            search.put_off = false;
        }
    }

    /// Takes note that all rings that the last search found are followed, as of `now`.
    pub(super) fn done(&mut self, space: u32, now: u64) {
        if let Some(search) = self.0.get_mut(&space) {
            search.complete = now;
        }
    }

    /// Tells whether a look at that time saw all known rings of the process.
    pub(super) fn saw_all(&self, space: u32, time_ns: u64) -> bool {
        time_ns > self.0.get(&space).map_or(0, |s| s.complete)
    }

    /// Forgets an address space that is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.0.remove(&space);
    }

    /// Selects the rings that are channels: rings in memory where no ring was in use before; rings that moved since an earlier
    /// search; and all rings by their number, if the search was complete and there are no more doubtful rings than tokens without a
    /// channel. The others may be remains of rings in memory that was unmapped.
    pub(super) fn take(
        &mut self,
        rings: Rings,
        tokens: &mut impl RungTokens,
        clock: impl Fn() -> u64,
    ) -> Taken {
        let Rings { space, new, whole } = rings;
        let Some(state) = self.0.get_mut(&space) else {
            return Taken::default();
        };
        // In use for the first time.
        let is_first = |f: &FoundRing| state.unused.iter().any(|(s, e)| (*s..*e).contains(&f.ring));
        let (mut certain, rest): (Vec<_>, Vec<_>) = new.into_iter().partition(is_first);
        let doubtful = &mut state.doubtful;
        doubtful.retain(|ring, _| !tokens.is_followed(space, *ring));
        let moved = |f: &FoundRing| doubtful.get(&f.ring).is_some_and(|put| *put != f.put);
        let (moving, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(moved);
        certain.extend(moving);
        for f in &certain {
            doubtful.remove(&f.ring);
        }
        for f in rest
            .iter()
            .take(DOUBTFUL_MOST.saturating_sub(doubtful.len()))
        {
            doubtful.entry(f.ring).or_insert(f.put);
        }
        let candidates = certain.len() + doubtful.len().max(rest.len());
        let mut count = tokens.count(space);
        if candidates > count {
            tokens.refresh();
            count = tokens.count(space);
        }
        let mut by_number = Vec::new();
        if whole && candidates <= count {
            doubtful.clear();
            by_number = rest;
        } else if !rest.is_empty() {
            // The next doorbell may decide.
            state.pause = PAUSE_NS.0;
            state.next = clock() + state.pause;
        }
        Taken { certain, by_number }
    }
}

/// Returns the GPU memory that programs read and write, where rings may be.
fn gpu_memory(areas: &[Area]) -> impl Iterator<Item = (u64, u64)> {
    areas
        .iter()
        .filter(|a| a.read && a.write && matches!(a.device(), Some(Device::Gpu(_))))
        .filter(|a| !a.is_doorbell_shape())
        .map(|a| (a.start, a.end))
}

/// Tells whether all GPU memory of `before` is still there in `after`.
pub(super) fn is_all_there(before: &[Area], after: &[Area]) -> bool {
    let after: BTreeSet<_> = gpu_memory(after).collect();
    gpu_memory(before).all(|area| after.contains(&area))
}

/// Returns the GPU memory in which none of the rings in `found` lies.
fn unused_areas(areas: &[Area], found: &[FoundRing]) -> Vec<(u64, u64)> {
    let is_used = |start: u64, end: u64| {
        let mut used = found.iter().filter(|f| f.used);
        used.any(|f| (start..end).contains(&f.ring))
    };
    gpu_memory(areas)
        .filter(|(start, end)| !is_used(*start, *end))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_process::memory::scan::Proof;

    /// Numbers of tokens: those known now, and those that the ring buffer still holds.
    struct Tokens(usize, usize);

    impl RungTokens for Tokens {
        fn is_followed(&self, _space: u32, ring: u64) -> bool {
            ring == 0xf000
        }

        fn count(&self, _space: u32) -> usize {
            self.0
        }

        fn refresh(&mut self) {
            self.0 += std::mem::take(&mut self.1);
        }
    }

    const NONE: [Vec<u64>; 2] = [Vec::new(), Vec::new()];

    fn found(ring: u64, put: u32) -> FoundRing {
        FoundRing {
            gpu: None,
            ring,
            entries: 8,
            userd: 0,
            get: 0,
            put,
            used: true,
            proof: Proof::default(),
        }
    }

    fn search() -> RingSearch {
        let mut search = RingSearch::default();
        search.begin(1, &[], &[]);
        search.0.get_mut(&1).unwrap().unused = vec![(0x1000, 0x2000)];
        search
    }

    fn taken(
        search: &mut RingSearch,
        new: &[FoundRing],
        whole: bool,
        mut tokens: Tokens,
    ) -> [Vec<u64>; 2] {
        let rings = Rings {
            space: 1,
            new: new.to_vec(),
            whole,
        };
        let taken = search.take(rings, &mut tokens, || 1000);
        [taken.certain, taken.by_number].map(|all| all.iter().map(|f| f.ring).collect())
    }

    #[test]
    fn a_ring_where_none_was_in_use_is_certain() {
        let mut search = search();
        let new = [found(0x1000, 1), found(0x5000, 1)];
        assert_eq!(
            taken(&mut search, &new, true, Tokens(0, 0)),
            [vec![0x1000], vec![]]
        );
        assert!(
            !search.is_due(1, 1000),
            "the next search is soon, not at once"
        );
        assert!(search.is_due(1, 1000 + PAUSE_NS.0));
    }

    #[test]
    fn a_ring_in_doubt_is_certain_once_it_moves() {
        let mut search = search();
        assert_eq!(
            taken(&mut search, &[found(0x5000, 1)], true, Tokens(0, 0)),
            NONE
        );
        assert_eq!(
            taken(&mut search, &[found(0x5000, 1)], true, Tokens(0, 0)),
            NONE
        );
        assert_eq!(
            taken(&mut search, &[found(0x5000, 2)], true, Tokens(0, 0)),
            [vec![0x5000], vec![]]
        );
    }

    #[test]
    fn as_many_tokens_as_rings_take_all_of_them_by_number() {
        let rings = [found(0x5000, 1), found(0x6000, 1)];
        let all = [vec![], vec![0x5000, 0x6000]];
        assert_eq!(taken(&mut search(), &rings, true, Tokens(2, 0)), all);
        assert_eq!(taken(&mut search(), &rings, true, Tokens(1, 1)), all);
        assert_eq!(taken(&mut search(), &rings, true, Tokens(1, 0)), NONE);
        assert_eq!(taken(&mut search(), &rings, false, Tokens(2, 0)), NONE);
        // A ring that was doubtful before counts, though the search no longer finds it.
        let mut search = search();
        assert_eq!(taken(&mut search, &rings, true, Tokens(0, 0)), NONE);
        assert_eq!(taken(&mut search, &rings[..1], true, Tokens(1, 0)), NONE);
    }

    #[test]
    fn what_is_put_off_is_due_until_it_is_done_or_settled() {
        let mut search = search();
        search.put_off(2);
        assert_eq!(search.all_put_off(), [0; 0], "it is not searched at all");
        search.put_off(1);
        assert!(search.is_due(1, 1000));
        assert_eq!(search.all_put_off(), [0; 0]);
        search.put_off(1);
        assert!(!search.is_due(1, 1001), "too early");
        assert_eq!(search.all_put_off(), [1]);
        search.settled(1);
        assert_eq!(search.all_put_off(), [0; 0]);
    }

    #[test]
    fn a_look_from_before_the_search_did_not_see_all() {
        let mut search = search();
        search.done(1, 500);
        assert!(!search.saw_all(1, 500) && search.saw_all(1, 501));
        assert!(
            search.saw_all(2, 1),
            "another address space was never searched"
        );
    }
}
