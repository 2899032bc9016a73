//! Doorbells without a breakpoint for want of debug registers, and the stores at which threads are stopped instead (execution
//! breakpoints). One such breakpoint serves every doorbell that its store rings, and it stops before the doorbell is rung.
//!
//! Invariants: a doorbell of a live process is watched in all its threads, or it is among the unwatched. Watchpoints of a space are
//! disabled only while execution breakpoints capture there; they are enabled when a ring was found to have moved unseen.

use std::collections::{BTreeSet, HashMap, HashSet};

/// Time between two looks at the rings of unwatched doorbells where no execution breakpoint has captured, ns.
const LOOK_NS: u64 = 1_000_000;
/// Time between two looks after which a ring may have gone round, ns.
const LONG_NS: u64 = 5_000_000;
/// Time for which watchpoints are enabled, and rings are looked at often, when something has moved unseen, ns.
const AWAKE_NS: u64 = 2_000_000_000;

/// Number of patrols with captures by execution breakpoints after which watchpoints are disabled: until then watchpoints show which other
/// stores ring, too.
const SURE: u32 = 3;

/// A doorbell of a process.
pub(super) type Doorbell = (u32, u64);

/// Doorbells that have no breakpoint for want of debug registers, and the stores at which threads are stopped instead.
#[derive(Debug, Default)]
pub(super) struct StoppedStores {
    unwatched: BTreeSet<Doorbell>,
    /// Time since which some doorbell of a process is not watched, ns.
    since: HashMap<u32, u64>,
    /// The stores with execution breakpoints, by address space.
    stops: HashMap<u32, BTreeSet<u64>>,
    /// Spaces where execution breakpoints have captured, with the number of patrols that saw it.
    captured: HashMap<u32, u32>,
    /// Spaces where some thread lacks the execution breakpoints.
    partial: HashSet<u32>,
    /// Spaces whose watchpoints are disabled.
    resting: HashSet<u32>,
    /// Time up to which the watchpoints of a space must be enabled, ns.
    awake: HashMap<u32, u64>,
    next_look: u64,
    /// Time of the last look, and its distance from the one before, ns.
    looked: u64,
    pause: u64,
    /// Covered spaces whose rings were since found read to their ends.
    settled: HashSet<u32>,
    /// Time at which a look last found nothing left in the rings of a space, ns.
    read: HashMap<u32, u64>,
    /// Time since which every thread of a space stops at a store, ns.
    armed: HashMap<u32, u64>,
}

impl StoppedStores {
    /// Takes note that some thread of the process does not have the doorbell watched. True if that is new.
    pub(super) fn unwatched(&mut self, doorbell: Doorbell, now: u64) -> bool {
        self.since.entry(doorbell.0).or_insert(now);
        self.unwatched.insert(doorbell)
    }

    /// Returns the time since which some doorbell of a process is not watched, ns.
    pub(super) fn since(&self, pid: u32) -> Option<u64> {
        self.since.get(&pid).copied()
    }

    /// Takes note of a child: it has the breakpoints of its parent, and lacks those that its parent lacks.
    pub(super) fn inherit(&mut self, pid: u32, child: u32) {
        let of = self.unwatched.range((pid, 0)..=(pid, u64::MAX));
        let of = Vec::from_iter(of.map(|(_, address)| (child, *address)));
        self.unwatched.extend(of);
        if let Some(since) = self.since(pid) {
            self.since.insert(child, since);
        }
    }

    /// Tells whether the doorbell is not watched.
    pub(super) fn is_unwatched(&self, doorbell: Doorbell) -> bool {
        self.unwatched.contains(&doorbell)
    }

    /// Tells whether some doorbell of these processes is not watched.
    pub(super) fn lacks(&self, mut pids: impl Iterator<Item = u32>) -> bool {
        pids.any(|pid| {
            self.unwatched
                .range((pid, 0)..=(pid, u64::MAX))
                .next()
                .is_some()
        })
    }

    /// Takes the stores of a space, of these, at which threads are not stopped yet. They count as stopped at from now on.
    pub(super) fn begin(&mut self, space: u32, stores: impl Iterator<Item = u64>) -> Vec<u64> {
        let stops = self.stops.entry(space).or_default();
        stores.filter(|store| stops.insert(*store)).collect()
    }

    /// Takes note that threads could not be stopped at a store.
    pub(super) fn refused(&mut self, space: u32, store: u64) {
        self.partial(space);
        if let Some(stops) = self.stops.get_mut(&space) {
            stops.remove(&store);
        }
    }

    /// Takes note that every thread of the space is stopped at its stores from now on.
    pub(super) fn armed(&mut self, space: u32, now: u64) {
        self.armed.entry(space).or_insert(now);
    }

    /// Takes note that threads are not stopped at a store of the space any more, because it never captured.
    pub(super) fn given_up(&mut self, space: u32, store: u64) {
        self.armed.remove(&space);
        if let Some(stops) = self.stops.get_mut(&space) {
            stops.remove(&store);
        }
    }

    /// Takes note that some thread, or some store, of the space is not covered: the space's watchpoints are needed.
    pub(super) fn partial(&mut self, space: u32) {
        self.partial.insert(space);
        self.settled.remove(&space);
        self.armed.remove(&space);
    }

    /// True if an execution breakpoint has ever captured in the space.
    pub(super) fn has_captured(&self, space: u32) -> bool {
        self.captured.contains_key(&space)
    }

    /// Takes note that an execution breakpoint has captured in the space. The next patrol counts it.
    pub(super) fn captures(&mut self, space: u32) {
        self.captured.entry(space).or_default();
    }

    /// Takes note, at a patrol, that an execution breakpoint has captured in the space since the patrol before.
    pub(super) fn captured(&mut self, space: u32) {
        let patrols = self.captured.entry(space).or_default();
        *patrols = patrols.saturating_add(1);
    }

    /// Tells whether execution breakpoints have captured for so long that another store would have been seen.
    fn is_sure(&self, space: u32) -> bool {
        self.captured.get(&space).is_some_and(|n| *n >= SURE)
    }

    /// Returns the spaces whose rings are looked at now: those with unwatched doorbells that no execution breakpoint covers. `spaces`:
    /// returns the spaces of a process.
    pub(super) fn due(&mut self, now: u64, spaces: impl Fn(u32) -> Vec<u32>) -> BTreeSet<u32> {
        if self.unwatched.is_empty() || now < self.next_look {
            return BTreeSet::new();
        }
        self.next_look = now + LOOK_NS;
        self.pause = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        let of = self.unwatched.iter().flat_map(|(pid, _)| spaces(*pid));
        of.filter(|space| !self.is_settled(*space, now)).collect()
    }

    /// Tells whether a ring of `entries` entries, `new` of which are new at this look, may have gone round since the look before.
    pub(super) fn may_have_lapped(&self, new: u64, entries: u64) -> bool {
        new > entries / 2 || self.pause > LONG_NS && new > entries / 16
    }

    /// Tells whether rings must be looked at often.
    pub(super) fn is_looking(&self) -> bool {
        !self.unwatched.is_empty()
    }

    fn covers(&self, space: u32, now: u64) -> bool {
        self.captured.contains_key(&space)
            && !self.partial.contains(&space)
            && self.awake.get(&space).is_none_or(|until| now >= *until)
    }

    /// Takes note of a look at the rings of a space. `whole`: nothing was left in them.
    pub(super) fn looked(&mut self, space: u32, now: u64, whole: bool) {
        if !whole {
            return;
        }
        self.read.insert(space, now);
        if self.covers(space, now) {
            self.settled.insert(space);
        }
    }

    /// Returns the time at which a look last found nothing left in the rings of a space, ns.
    pub(super) fn read(&self, space: u32) -> u64 {
        self.read.get(&space).copied().unwrap_or(0)
    }

    /// Tells whether execution breakpoints capture everything in a space, and everything that was rung before they did was read, too.
    pub(super) fn is_settled(&self, space: u32, now: u64) -> bool {
        let read = || {
            let since = self.armed.get(&space);
            since.is_some_and(|since| self.read(space) > *since)
        };
        self.covers(space, now) && (self.settled.contains(&space) || read())
    }

    /// Takes note that a ring of the space has moved without a trap.
    pub(super) fn moved_unseen(&mut self, space: u32, now: u64) {
        self.armed.remove(&space);
        if self.captured.contains_key(&space) {
            self.settled.remove(&space);
            self.awake.insert(space, now + AWAKE_NS);
        }
    }

    /// Returns the spaces whose watchpoints must be disabled (`false`) or enabled (`true`).
    pub(super) fn changes(&mut self, now: u64) -> Vec<(u32, bool)> {
        let mut changes = Vec::new();
        for &space in self.captured.keys() {
            let rest = self.is_sure(space) && self.covers(space, now);
            if rest != self.resting.contains(&space) {
                changes.push((space, !rest));
            }
        }
        for (space, wake) in &changes {
            match wake {
                true => self.resting.remove(space),
                false => self.resting.insert(*space),
            };
        }
        changes
    }

    /// Returns the spaces whose watchpoints are disabled.
    pub(super) fn resting(&self) -> Vec<u32> {
        self.resting.iter().copied().collect()
    }

    /// Tells whether new watchpoints of the space must be disabled, too.
    pub(super) fn rests(&self, space: u32) -> bool {
        self.resting.contains(&space)
    }

    /// Takes note that a process has ended, or executed another program. The new program has only the doorbells for which `keeps` is
    /// true.
    pub(super) fn forget_process(&mut self, pid: u32, keeps: impl Fn(u64) -> bool) {
        self.unwatched
            .retain(|(p, address)| *p != pid || keeps(*address));
        if !self.lacks([pid].into_iter()) {
            self.since.remove(&pid);
        }
    }

    /// The doorbells of a process that are not watched.
    pub(super) fn unwatched_of(&self, pid: u32) -> impl Iterator<Item = u64> + '_ {
        let of = self.unwatched.range((pid, 0)..=(pid, u64::MAX));
        of.map(|(_, address)| *address)
    }

    /// Forgets a doorbell that is gone, or is watched now.
    pub(super) fn forget_doorbell(&mut self, doorbell: Doorbell) {
        self.unwatched.remove(&doorbell);
    }

    /// An address space is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.stops.remove(&space);
        self.armed.remove(&space);
        self.captured.remove(&space);
        self.settled.remove(&space);
        self.read.remove(&space);
        self.partial.remove(&space);
        self.resting.remove(&space);
        self.awake.remove(&space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sure(all: &mut StoppedStores, space: u32) {
        for _ in 0..SURE {
            all.captured(space);
        }
    }

    #[test]
    fn rings_are_looked_at_until_a_store_captures() {
        let mut all = StoppedStores::default();
        let spaces = |pid: u32| vec![pid + 100];
        assert!(!all.is_looking() && all.due(5, spaces).is_empty());
        assert!(all.unwatched((1, 0x90), 3) && !all.unwatched((1, 0x90), 4));
        assert_eq!((all.since(1), all.since(2)), (Some(3), None));
        assert!(all.lacks([1].into_iter()) && !all.lacks([2].into_iter()));
        assert_eq!(all.due(5, spaces), BTreeSet::from([101]));
        assert!(all.due(5 + LOOK_NS - 1, spaces).is_empty(), "at its pace");
        assert_eq!(all.begin(101, [7, 8].into_iter()), [7, 8]);
        assert_eq!(all.begin(101, [7, 9].into_iter()), [9]);
        all.refused(101, 9);
        all.partial.clear();
        assert_eq!(all.begin(101, [9].into_iter()), [9]);
        // More than half a ring at once, or some of it after a long pause.
        assert!(all.may_have_lapped(513, 1024) && !all.may_have_lapped(512, 1024));
        all.pause = LONG_NS + 1;
        assert!(all.may_have_lapped(65, 1024) && !all.may_have_lapped(64, 1024));
        // What was rung before a store captured is still to be read.
        all.looked(101, 2 * LOOK_NS, true);
        sure(&mut all, 101);
        assert_eq!(all.due(3 * LOOK_NS, spaces), BTreeSet::from([101]));
        all.looked(101, 3 * LOOK_NS, false);
        assert!(!all.is_settled(101, 3 * LOOK_NS));
        all.looked(101, 3 * LOOK_NS, true);
        assert!(all.is_settled(101, 3 * LOOK_NS));
        assert_eq!((all.read(101), all.read(102)), (3 * LOOK_NS, 0));
        assert!(all.due(4 * LOOK_NS, spaces).is_empty());
        // Something else rings: all is looked at for a while.
        all.moved_unseen(101, 3 * LOOK_NS);
        assert_eq!(all.due(5 * LOOK_NS, spaces), BTreeSet::from([101]));
        let later = 3 * LOOK_NS + AWAKE_NS;
        assert_eq!(all.due(later, spaces), BTreeSet::from([101]));
        all.looked(101, later, true);
        assert!(all.due(later + LOOK_NS, spaces).is_empty());
        all.forget_process(1, |_| true);
        assert!(all.is_looking());
        all.forget_process(1, |_| false);
        assert!(!all.is_looking());
    }

    /// Threads are stopped at a store before anything is rung, and it captures: what a look has read since is then everything.
    #[test]
    fn a_store_that_was_known_beforehand_settles_with_its_first_capture() {
        let mut all = StoppedStores::default();
        all.unwatched((1, 0x90), 3);
        assert_eq!(all.begin(101, [7].into_iter()), [7]);
        all.armed(101, 10);
        all.looked(101, 20, true);
        assert!(!all.is_settled(101, 25), "nothing has captured");
        all.captures(101);
        assert!(all.is_settled(101, 25) && all.has_captured(101));
        // Looked at before it was armed, or not to the end since.
        let mut early = StoppedStores::default();
        early.looked(101, 9, true);
        early.armed(101, 10);
        early.looked(101, 20, false);
        early.captures(101);
        assert!(!early.is_settled(101, 25));
        // Something else rings, or a thread lacks it.
        all.moved_unseen(101, 30);
        assert!(!all.is_settled(101, 31 + AWAKE_NS));
        all.armed(101, 40);
        all.looked(101, 50, true);
        all.partial(101);
        assert!(!all.is_settled(101, 51 + AWAKE_NS));
    }

    #[test]
    fn a_store_that_was_given_up_may_be_stopped_at_again() {
        let mut all = StoppedStores::default();
        assert_eq!(all.begin(101, [7].into_iter()), [7]);
        all.given_up(101, 7);
        assert_eq!(all.begin(101, [7].into_iter()), [7]);
        all.unwatched((1, 0x90), 3);
        all.unwatched((2, 0x90), 3);
        assert_eq!(Vec::from_iter(all.unwatched_of(1)), [0x90]);
    }

    #[test]
    fn watchpoints_rest_where_stores_capture() {
        let mut all = StoppedStores::default();
        assert!(all.changes(0).is_empty());
        all.captured(4);
        assert!(all.changes(0).is_empty(), "another store may ring as well");
        sure(&mut all, 4);
        assert_eq!(all.changes(1), [(4, false)]);
        assert!(all.rests(4) && all.changes(2).is_empty());
        all.moved_unseen(4, 10);
        assert_eq!(all.changes(11), [(4, true)]);
        assert!(!all.rests(4) && all.changes(12).is_empty());
        assert_eq!(all.changes(10 + AWAKE_NS), [(4, false)]);
        all.forget_space(4);
        assert!(!all.rests(4) && all.changes(10 + AWAKE_NS).is_empty());
        // Where a thread does not stop at the store, its watchpoints are needed.
        all.partial(6);
        sure(&mut all, 6);
        assert!(all.changes(11).is_empty());
        // What does not capture does not rest.
        all.moved_unseen(5, 10);
        assert!(all.changes(11).is_empty());
    }
}
