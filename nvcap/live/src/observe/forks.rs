//! Processes that share memory by fork: finds the children that must be observed, and the rings that are the same.
//!
//! A forked process has all rings of its parent, at the same addresses, until it executes a program or unmaps them. So it holds them from the
//! moment that it is found, and following goes on in it when the parent ends. Before a ring loses its last holder, all processes that were born
//! meanwhile are searched for some with the same memory identity ([`MmIdentity`]), even if their own parent ended long before.

use super::{
    channel::Begin,
    discover::Watched,
    followed::Followed,
    mm_identity::MmIdentity,
    orphans::FOUND_NS,
    process::{self, Identity, now},
    session::Session,
    wakeups::SAFETY_NS,
};
use nvcap_decode::record::{Channel, Life};
use nvcap_process::host::fork_events::Descent;
use nvcap_process::memory::scan;
use nvcap_process::procfs;
pub(super) use nvcap_process::procfs::mem::ReadMemory;

/// The most rounds of the search for processes that were born during the search itself.
const ROUNDS: u32 = 16;
/// Shortest and longest time between two looks for processes that were born, ns, and the share of a core that they may take.
const SHORTEST_NS: u64 = 3_000_000;
const LONGEST_NS: u64 = 100_000_000;
const PART: u64 = 100;

/// Descent of a newborn process.
enum Born {
    /// An observed process made it, or it descends from one by forks alone.
    Kin { parent: u32 },
    /// Nothing connects it with an observed process that is there.
    Stranger,
    /// Its descent is not known yet.
    Unseen,
}

impl Session {
    /// Begins to observe a process.
    pub(super) fn adopt(&mut self, pid: u32, begin: Begin) -> std::io::Result<()> {
        let watched = Watched::open(pid, begin)?;
        self.watched.insert(pid, watched);
        self.births.is_meant(pid);
        self.births.suspects.remove(&pid);
        self.scheduler.look_after(pid);
        Ok(())
    }

    /// Takes on a child that was found.
    pub(super) fn child(&mut self, parent: u32, child: u32) {
        if self.adopt_child(parent, child) {
            self.seize_child_of(parent, child);
            self.look_after(child);
        }
    }

    /// Notes the descendants of a running process before it is taken on. The contents of their rings are from before, as those of its own.
    /// Processes that are born afterwards are read from their first entry on.
    pub(super) fn note_descent(&mut self, pid: u32) {
        let mut parents = vec![pid];
        while let Some(parent) = parents.pop() {
            for child in procfs::children(parent, &mut || self.meanwhile()) {
                if self
                    .born_before
                    .insert(child, process::start(child))
                    .is_none()
                {
                    self.births.is_meant(child);
                    parents.push(child);
                }
            }
        }
    }

    /// Takes a child on, with the rings that it has from its parent. False if it is gone, or cannot be observed; the latter is reported.
    pub(super) fn adopt_child(&mut self, parent: u32, child: u32) -> bool {
        self.life(parent, Life::Fork { child });
        let begin = match self.born_before.remove(&child) {
            Some(start) if start == process::start(child) => Begin::Here,
            _ => Begin::First,
        };
        match self.adopt(child, begin) {
            Ok(()) => {
                if let Some(w) = self.watched.get_mut(&child) {
                    w.set_parent(parent);
                    if !w.is_forked() {
                        let name = process::name(child);
                        self.life(child, Life::Exec { name });
                    }
                }
                self.inherit(child);
                return true;
            }
            // Already gone is no refusal: it lived too short to submit anything.
            // Its memory goes first, while its state says still that it runs.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(_) if !process::state(child).lives => {}
            Err(e) => self.untraced(child, process::refusal(child, &e).to_string()),
        }
        false
    }

    /// Takes note that a process that stops at its events (`exit_stop`) has made a child.
    pub(super) fn born(&mut self, by: u32, pid: u32) {
        if self.watched.contains_key(&pid) {
            return;
        }
        // It is looked after soon, and before its end at the latest: it is not kept waiting for that.
        if self.watched.contains_key(&by) {
            self.adopt_child(by, pid);
        } else {
            self.births.keep(pid);
            self.find_kin();
        }
    }

    // ---- processes that were born

    /// Looks for processes that were born, where that is due.
    pub(super) fn look_for_kin(&mut self) {
        if now() < self.births.next {
            return;
        }
        let begun = process::search_cpu();
        self.find_kin();
        self.look_at_orphans(FOUND_NS);
        let cost = process::search_cpu().saturating_sub(begun);
        self.births.next = now()
            + if self.all_sleep() {
                // Who makes a child runs, of which the kernel tells.
                SAFETY_NS
            } else {
                (cost * PART).clamp(SHORTEST_NS, LONGEST_NS)
            };
    }

    /// Takes on all related processes that were born by now. A process that ends meanwhile may have made another, with a higher number, so that
    /// the search is repeated until none is left.
    pub(super) fn find_kin(&mut self) {
        if !self.options.follow {
            return;
        }
        for early in self.births.early() {
            if !self.take_on(early.pid) {
                self.births.still(early);
            }
        }
        for _ in 0..ROUNDS {
            let fresh = self.births.fresh();
            if fresh.is_empty() {
                break;
            }
            for pid in fresh {
                if !self.take_on(pid) {
                    self.births.keep(pid);
                }
            }
        }
    }

    /// Takes a process on if it is related. False if that is not known yet.
    fn take_on(&mut self, pid: u32) -> bool {
        if self.watched.contains_key(&pid) {
            return true;
        }
        if !process::is_there(pid) {
            return false;
        }
        let parent = process::parent(pid);
        // It may have become visible after its child did.
        if let Some(parent) = parent.filter(|p| self.births.is_early(*p) && *p < pid) {
            self.take_on(parent);
        }
        match self.judge(pid, parent) {
            Born::Kin { parent } => {
                log::debug!("process {pid} descends from process {parent}");
                if self.adopt_child(parent, pid) {
                    self.seize_child_of(parent, pid);
                }
                true
            }
            Born::Stranger => {
                self.suspect(pid);
                true
            }
            Born::Unseen => false,
        }
    }

    fn judge(&mut self, pid: u32, parent: Option<u32>) -> Born {
        let mm = match MmIdentity::of(pid) {
            Ok(mm) if mm.is_empty() => return Born::Unseen,
            Ok(mm) => mm,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                return Born::Unseen;
            }
            // Somebody else's.
            Err(_) => return Born::Stranger,
        };
        let made_by = parent.filter(|p| self.watched.contains_key(p));
        let like = self.watched.iter().find(|(_, w)| *w.program.mm == mm);
        let had = self.followed.iter().find(|f| f.live && *f.mm == mm);
        let parent = made_by
            .or(like.map(|(pid, _)| *pid))
            .or(had.map(|f| f.channel.at.pid));
        match parent {
            // Threads have numbers too.
            Some(parent) if process::is_process(pid) => Born::Kin { parent },
            // What its program shows does not tell; who made it may.
            _ if process::is_process(pid) => match self.births.descent(pid) {
                Descent::From(parent) if self.watched.contains_key(&parent) => Born::Kin { parent },
                _ => Born::Stranger,
            },
            _ => Born::Stranger,
        }
    }

    // ---- rings that are one

    /// Makes a process a holder of the rings of processes with the same memory identity, if it has them mapped too.
    fn inherit(&mut self, pid: u32) {
        for i in 0..self.followed.len() {
            if self.shares(i, pid) {
                self.hold(i, pid);
            }
        }
    }

    /// Makes forked children holders of a channel that was just found in one process.
    pub(super) fn hand_down(&mut self, i: usize) {
        let mm = self.followed[i].mm.clone();
        let kin = self.watched.iter().filter(|(_, w)| w.program.mm == mm);
        for pid in kin.map(|(pid, _)| *pid).collect::<Vec<_>>() {
            if self.shares(i, pid) {
                self.hold(i, pid);
            }
        }
    }

    /// Makes a process a holder of a followed channel.
    pub(super) fn hold(&mut self, i: usize, pid: u32) {
        let f = &mut self.followed[i];
        f.holders.push(pid);
        self.scheduler.at_once(f.channel.id);
        if let (Some(w), Some(ring)) = (self.watched.get_mut(&pid), f.channel.ring) {
            w.has_ring(ring);
        }
    }

    /// Tells whether a process has a followed channel of which it is not a holder yet.
    pub(super) fn shares(&self, i: usize, pid: u32) -> bool {
        let ring = self.followed[i].channel.ring;
        let has = |f: &Followed| f.live && f.channel.ring == ring && f.holders.contains(&pid);
        self.followed[i].live
            && !self.followed.iter().any(has)
            && self.is_same(i, pid) == Some(true)
    }

    /// Tells whether the memory at a followed channel's addresses is the channel's in this process, too. It compares the mapping's identity or,
    /// for device memory, the memory identity of the programs and the contents. `None` where this cannot be told, because neither can be read.
    pub(super) fn is_same(&self, i: usize, pid: u32) -> Option<bool> {
        let f = &self.followed[i];
        let w = self.watched.get(&pid)?;
        if let Some(identity) = &f.identity {
            let ring = f.channel.ring?;
            return process::shared_identity(pid, ring.0).map(|own| own == *identity);
        }
        // Memory of another program at the same addresses may well look the same: unused rings are all alike.
        let mm = &w.program.mm;
        if *mm != f.mm || mm.is_empty() {
            return Some(false);
        }
        let own = &w.program.process.as_ref()?.memory;
        let holders = f.holders.iter().filter(|h| **h != pid);
        for holder in holders {
            let holder = self.watched.get(holder);
            let holder = holder.and_then(|w| w.program.process.as_ref());
            let same = holder.and_then(|h| same_contents(&h.memory, own, &f.channel));
            if same.is_some() {
                return same;
            }
        }
        // All others have ended. It was forked with this ring, and what it has there can be read.
        f.ring().follower.get_put(own).ok().map(|_| true)
    }

    /// Checks whether a forked child has given up its parent's rings and mapped others at their addresses.
    pub(super) fn check_shared(&mut self, pid: u32) {
        let shared = |i: &usize| {
            let f = &self.followed[*i];
            f.live && f.holders.len() > 1 && f.holders.contains(&pid)
        };
        // One that is not used looks like any other.
        let most_used = (0..self.followed.len())
            .filter(shared)
            .max_by_key(|i| self.followed[*i].ring().moved);
        let Some(i) = most_used.filter(|i| self.is_same(*i, pid) == Some(false)) else {
            return;
        };
        log::debug!("process {pid} has other memory at the ring of channel {i}");
        for i in 0..self.followed.len() {
            let f = &self.followed[i];
            if f.holders.len() > 1 && f.holders.contains(&pid) {
                self.take_back(i);
                self.followed[i].holders.retain(|h| *h != pid);
            }
        }
        if let Some(w) = self.watched.get_mut(&pid) {
            w.forget_rings();
        }
    }

    /// Returns the forebear of a process that has this ring too, though it was not found there yet.
    pub(super) fn forebear_with(&self, pid: u32, channel: &Channel) -> Option<u32> {
        let watched = self.watched.get(&pid)?;
        let own = &watched.program;
        let mut forebear = watched.parent();
        while let Some(w) = forebear.and_then(|p| self.watched.get(&p)) {
            let its = &w.program;
            if its.mm == own.mm
                && let (Some(its), Some(mine)) = (&its.process, &own.process)
                && self.is_one(forebear?, pid, channel)
                && same_contents(&its.memory, &mine.memory, channel) == Some(true)
            {
                return forebear;
            }
            forebear = w.parent();
        }
        None
    }

    /// True unless two processes' mappings at a ring differ in their identity.
    fn is_one(&self, a: u32, b: u32, channel: &Channel) -> bool {
        channel.ring.is_some_and(|ring| {
            process::shared_identity(a, ring.0) == process::shared_identity(b, ring.0)
        })
    }

    /// Returns the identity of a process's ring, which is the same wherever it is mapped. Device memory has none.
    pub(super) fn identity(&self, pid: u32, channel: &Channel) -> Option<Identity> {
        let ring = channel.ring?.0;
        let w = self.watched.get(&pid)?;
        if w.is_device(ring) {
            return None;
        }
        process::shared_identity(pid, ring)
    }

    // ---- processes that execute a program

    /// Takes note that a process executes a program, and so has other memory. `forked`: it still runs its parent's program.
    pub(super) fn notice_exec(&mut self, pid: u32, forked: bool) {
        let Some(w) = self.watched.get_mut(&pid) else {
            return;
        };
        let was_forked = w.is_forked();
        let Some(mm) = w.executes(forked) else {
            return;
        };
        self.leave(pid);
        self.ended(pid);
        // What a forked child had mapped was its parent's.
        let w = self.watched.get(&pid).filter(|_| !was_forked);
        if let Some(why) = w.and_then(|w| w.unfound("executed another program")) {
            self.untraced(pid, why);
        }
        let name = process::name(pid);
        self.life(pid, Life::Exec { name });
        if let Some(stops) = &mut self.stops {
            stops.seize_again(pid);
        }
        if let Some(w) = self.watched.get_mut(&pid) {
            w.begin_anew(mm);
        }
    }

    /// Tells whether the memory that was opened of this process may be its parent's. (The process was made by vfork, and has executed a program
    /// since.)
    pub(super) fn is_outdated(&self, pid: u32) -> bool {
        let Some(w) = self.watched.get(&pid) else {
            return true;
        };
        let mm = &w.program.mm;
        let as_it_was =
            || MmIdentity::of(pid).is_ok_and(|i| i.looks_like(mm)) && process::state(pid).forked;
        mm.is_empty() || w.is_forked() && !as_it_was()
    }
}

/// Tells by their content whether two processes' rings are the same. `None`: the ring of `holder` cannot be read.
fn same_contents(
    holder: &impl ReadMemory,
    other: &impl ReadMemory,
    channel: &Channel,
) -> Option<bool> {
    let (ring, userd) = (channel.ring?, channel.userd?);
    let mask = channel.entries.unwrap_or(1).saturating_sub(1);
    for _ in 0..3 {
        // However fast it moves: the other's GP_PUT lies between the first one's before and after it, and the entry
        // before it is one and the same.
        let (_, before) = scan::get_put(holder, userd.0).ok()?;
        let Ok((_, theirs)) = scan::get_put(other, userd.0) else {
            return Some(false);
        };
        let (_, after) = scan::get_put(holder, userd.0).ok()?;
        let newest = ring.0 + 8 * u64::from(theirs.wrapping_sub(1) & mask);
        let mine = holder.word(newest).ok()?;
        let Ok(its) = other.word(newest) else {
            return Some(false);
        };
        let between = theirs.wrapping_sub(before) & mask <= after.wrapping_sub(before) & mask;
        if between && mine == its {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap, io};

    use super::*;
    use nvcap_decode::record::{At, ChannelId, CpuVa, Origin};
    use nvcap_process::memory::scan::GP_GET;

    const RING: u64 = 0x2_0060_0000;
    const USERD: u64 = 0x2_0060_2000;

    /// Words by address. GP_PUT grows by this number at each read.
    struct Words(BTreeMap<u64, u64>, Cell<u64>, u64);

    impl Words {
        fn with(put: u64, grows: u64) -> Self {
            let ring = (0..16).map(|n| (RING + 8 * n, n + 1));
            Self(ring.collect(), Cell::new(put), grows)
        }
    }

    impl ReadMemory for Words {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            let word = if at == USERD + GP_GET {
                let put = self.1.get();
                self.1.set((put + self.2) % 16);
                put << 32
            } else {
                *self.0.get(&at).ok_or(io::ErrorKind::UnexpectedEof)?
            };
            to.copy_from_slice(&word.to_le_bytes());
            Ok(())
        }
    }

    fn channel() -> Channel {
        Channel {
            ring: Some(CpuVa(RING)),
            entries: Some(16),
            userd: Some(CpuVa(USERD)),
            ..Channel::bare(At::default(), ChannelId(0), Origin::Found)
        }
    }

    fn compared(a: &Words, b: &Words) -> Option<bool> {
        same_contents(a, b, &channel())
    }

    #[test]
    fn rings_are_compared_by_what_is_in_them() {
        let still = Words::with(5, 0);
        assert_eq!(compared(&still, &Words::with(5, 0)), Some(true));
        assert_eq!(compared(&still, &Words::with(6, 0)), Some(false));
        // It moves on between the reads.
        assert_eq!(
            compared(&Words::with(14, 4), &Words::with(0, 0)),
            Some(true)
        );
        let mut other = Words::with(5, 0);
        other.0.insert(RING + 8 * 4, 77);
        assert_eq!(compared(&still, &other), Some(false));
        // Not mapped in the one, or gone with the other.
        let none = Words(BTreeMap::new(), Cell::new(5), 0);
        assert_eq!(compared(&still, &none), Some(false));
        assert_eq!(compared(&none, &still), None);
    }
}
