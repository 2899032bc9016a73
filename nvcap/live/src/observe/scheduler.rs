//! Order of looks, and the time until the next one is due. Pure: knows channels and processes by their numbers and the
//! times that it is given; knows no memory, no ring, no clock.

use std::collections::BTreeMap;

use super::phase::Again;
use nvcap_decode::record::ChannelId;

/// Time for which overdue channels are looked at before the findings are passed on, ns.
const ROUND_NS: u64 = 2_000_000;

/// Time at which a look is due. Looks that are due at once come before all that have a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    AtOnce,
    /// At this time, ns.
    At(u64),
}

impl Due {
    fn ns(self) -> u64 {
        match self {
            Self::AtOnce => 0,
            Self::At(ns) => ns,
        }
    }

    fn is_past(self, now: u64) -> bool {
        self.ns() <= now
    }
}

/// A channel whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Channel that is looked at.
    pub channel: ChannelId,
    /// Delay of the look, ns; none where it was due as soon as possible.
    pub late_ns: Option<u64>,
}

/// Times at which looks at channels and processes are due.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    channels: BTreeMap<ChannelId, Due>,
    processes: BTreeMap<u32, Due>,
    /// Time before which no channel is due, ns. It is computed at the end of a round, and not postponed between two
    /// rounds.
    next: u64,
}

impl Scheduler {
    // ---- channels

    /// Takes on a channel, which is looked at at once.
    pub(super) fn follow(&mut self, channel: ChannelId) {
        self.channels.insert(channel, Due::AtOnce);
        self.next = 0;
    }

    /// Forgets a channel.
    pub(super) fn forget(&mut self, channel: ChannelId) {
        self.channels.remove(&channel);
    }

    /// Puts a channel before all that have a time.
    pub(super) fn at_once(&mut self, channel: ChannelId) {
        self.set(channel, Due::AtOnce);
        self.next = 0;
    }

    /// Postpones the look at a channel to a time.
    pub(super) fn rest(&mut self, channel: ChannelId, until: u64) {
        self.set(channel, Due::At(until));
    }

    /// Takes note of a look at a channel, which began at `begun`.
    pub(super) fn looked(&mut self, channel: ChannelId, begun: u64, again: Again) {
        let at = match again {
            Again::Now => begun,
            Again::After(ns) => begun + ns,
            Again::Together(ns) => (begun / ns + 1) * ns,
        };
        self.set(channel, Due::At(at));
    }

    fn set(&mut self, channel: ChannelId, due: Due) {
        if let Some(its) = self.channels.get_mut(&channel) {
            *its = due;
        }
    }

    /// Returns the time at which a round of looks that begins now must end.
    pub(super) fn round(now: u64) -> u64 {
        now + ROUND_NS
    }

    /// Chooses the channel whose turn it is: of the due ones, the one that has waited longest. `None` if none is due,
    /// or the round has ended.
    pub(super) fn choose(&mut self, now: u64, round: u64) -> Option<Turn> {
        let longest = self.channels.iter().min_by_key(|(_, due)| **due);
        let Some((&channel, &due)) = longest else {
            self.next = u64::MAX;
            return None;
        };
        if !due.is_past(now) || now > round {
            self.next = due.ns();
            return None;
        }
        let late_ns = match due {
            Due::AtOnce => None,
            Due::At(ns) => Some(now - ns),
        };
        Some(Turn { channel, late_ns })
    }

    /// True if a channel may be due.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.next <= now
    }

    // ---- processes

    /// Makes a look at a process due at once, for a new process or a more urgent one.
    pub(super) fn look_after(&mut self, pid: u32) {
        self.processes.insert(pid, Due::AtOnce);
    }

    /// Forgets a process that is gone.
    pub(super) fn leave(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Takes note of a look at a process. The next one is due at `again`.
    pub(super) fn looked_after(&mut self, pid: u32, again: u64) {
        if let Some(due) = self.processes.get_mut(&pid) {
            *due = Due::At(again);
        }
    }

    /// Makes a look at a process due at this time at the latest.
    pub(super) fn look_after_by(&mut self, pid: u32, at: u64) {
        if let Some(due) = self.processes.get_mut(&pid) {
            *due = (*due).min(Due::At(at));
        }
    }

    /// Tells whether a look at a process is due.
    pub(super) fn is_process_due(&self, pid: u32, now: u64) -> bool {
        self.processes.get(&pid).is_some_and(|due| due.is_past(now))
    }

    // ---- both

    /// Returns the time before which no look is due, ns.
    pub(super) fn next(&self) -> u64 {
        let process = self.processes.values().min();
        process.map_or(self.next, |due| due.ns().min(self.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const A: ChannelId = ChannelId(0);
    const B: ChannelId = ChannelId(1);
    const C: ChannelId = ChannelId(2);

    fn of(channels: &[ChannelId]) -> Scheduler {
        let mut scheduler = Scheduler::default();
        for channel in channels {
            scheduler.follow(*channel);
        }
        scheduler
    }

    /// Returns the channel whose turn it is at a time, in a round that has not ended.
    fn turn(scheduler: &mut Scheduler, now: u64) -> Option<ChannelId> {
        scheduler.choose(now, u64::MAX).map(|t| t.channel)
    }

    #[test]
    fn who_has_waited_longest_goes_first() {
        let mut all = of(&[A, B, C]);
        let now = 10 * MS;
        all.looked(A, now, Again::After(300));
        all.looked(B, now, Again::After(100));
        all.looked(C, now, Again::After(200));
        assert_eq!(turn(&mut all, now + 99), None);
        assert_eq!(all.next(), now + 100);
        assert!(!all.is_due(now + 99) && all.is_due(now + 100));
        assert_eq!(turn(&mut all, now + 100), Some(B));
        assert_eq!(turn(&mut all, now + 500), Some(B));
        all.looked(B, now + 500, Again::After(100));
        assert_eq!(turn(&mut all, now + 500), Some(C));
        // One whose ring was not read to its end waits behind those that are overdue.
        all.looked(C, now + 500, Again::Now);
        assert_eq!(turn(&mut all, now + 500), Some(A));
        all.looked(A, now + 500, Again::After(100));
        assert_eq!(turn(&mut all, now + 500), Some(C));
    }

    #[test]
    fn what_is_new_or_urgent_goes_before_all_and_is_not_late() {
        let mut all = of(&[A]);
        let late = |late_ns| Turn {
            channel: A,
            late_ns,
        };
        assert_eq!(all.choose(5 * MS, u64::MAX), Some(late(None)));
        all.looked(A, 5 * MS, Again::After(100));
        assert_eq!(all.choose(6 * MS, u64::MAX), Some(late(Some(MS - 100))));
        assert_eq!(turn(&mut all, 5 * MS), None);
        all.follow(B);
        assert_eq!(all.next(), 0);
        assert_eq!(turn(&mut all, 6 * MS), Some(B));
        all.looked(B, 6 * MS, Again::After(100));
        assert_eq!(turn(&mut all, 6 * MS), Some(A));
        all.at_once(B);
        assert_eq!(turn(&mut all, 6 * MS), Some(B));
    }

    #[test]
    fn peeks_at_several_channels_fall_together() {
        let mut all = of(&[A, B]);
        all.looked(A, 70_001, Again::Together(50_000));
        all.looked(B, 99_999, Again::Together(50_000));
        assert_eq!((turn(&mut all, 99_999), all.next()), (None, 100_000));
        all.forget(A);
        assert_eq!((turn(&mut all, 99_999), all.next()), (None, 100_000));
        // A look at the very multiple is followed by one at the next.
        all.looked(B, 100_000, Again::Together(50_000));
        assert_eq!((turn(&mut all, 100_000), all.next()), (None, 150_000));
    }

    #[test]
    fn a_round_ends_though_some_are_due() {
        let mut all = of(&[A]);
        let now = 10 * MS;
        let round = Scheduler::round(now);
        all.looked(A, now, Again::Now);
        assert!(all.choose(now + 2 * MS, round).is_some());
        assert_eq!(all.choose(now + 2 * MS + 1, round), None);
        assert_eq!(all.next(), now);
    }

    #[test]
    fn who_rests_or_is_forgotten_has_no_turn() {
        let mut all = of(&[A, B]);
        all.rest(A, 2_000 * MS);
        all.forget(B);
        assert_eq!(turn(&mut all, MS), None);
        assert_eq!(all.next(), 2_000 * MS);
        // What nobody has any more does not come back.
        all.looked(B, MS, Again::Now);
        all.at_once(B);
        all.rest(B, 0);
        assert_eq!(turn(&mut all, MS), None);
        all.forget(A);
        assert_eq!(turn(&mut all, u64::MAX), None);
        assert_eq!(all.next(), u64::MAX);
    }

    #[test]
    fn processes_are_looked_after_beside() {
        let mut all = Scheduler::default();
        assert_eq!((turn(&mut all, MS), all.next()), (None, u64::MAX));
        all.look_after(7);
        assert_eq!(all.next(), 0);
        assert!(all.is_process_due(7, 0) && !all.is_process_due(8, MS));
        all.looked_after(7, 9 * MS);
        assert!(!all.is_process_due(7, 9 * MS - 1) && all.is_process_due(7, 9 * MS));
        assert_eq!(all.next(), 9 * MS);
        // Told that it has run: sooner, never later.
        all.look_after_by(7, 5 * MS);
        all.look_after_by(7, 8 * MS);
        assert_eq!(all.next(), 5 * MS);
        all.looked_after(7, 9 * MS);
        all.look_after(7);
        assert!(all.is_process_due(7, 0));
        all.looked_after(7, 9 * MS);
        // A channel that is due before.
        all.follow(A);
        all.looked(A, MS, Again::After(MS));
        assert_eq!((turn(&mut all, MS), all.next()), (None, 2 * MS));
        all.leave(7);
        all.looked_after(7, MS);
        all.look_after_by(7, MS);
        all.forget(A);
        assert_eq!((turn(&mut all, MS), all.next()), (None, u64::MAX));
    }
}
