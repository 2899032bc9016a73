//! Looks at channels. Each look is made when the scheduler says so, in the first of the channel's holders whose memory can be read.

use std::{io, sync::atomic::Ordering};

use super::{
    channel::{ReadRing, is_cleared},
    process::{self, now},
    scheduler::{Scheduler, Turn},
    session::Session,
    wakeups::{SAFETY_NS, WHOLE_NS},
};
use nvcap_decode::record::Origin;

impl Session {
    /// Looks at the channels that are due, the one that has waited longest first.
    pub(super) fn look_at_due(&mut self) {
        let round = Scheduler::round(now());
        loop {
            let begun = now();
            let Some(turn) = self.scheduler.choose(begun, round) else {
                return;
            };
            let its = |f: &super::followed::Followed| f.channel.id == turn.channel;
            let Some(i) = self.followed.iter().position(its) else {
                self.scheduler.forget(turn.channel);
                continue;
            };
            if self.still_rests(i, begun) {
                self.scheduler.rest(turn.channel, begun + SAFETY_NS);
                continue;
            }
            let moved = self.followed[i].ring().moved;
            self.look_in_turn(i, turn, begun);
            let moved = self.followed[i].ring().moved != moved;
            self.set_due(i, begun, moved);
        }
    }

    /// True if all processes that have this channel sleep, and GP_PUT has not moved. (The kernel would have reported a process that
    /// ran long enough to fill the ring.)
    fn still_rests(&mut self, i: usize, now: u64) -> bool {
        if !self.is_at_rest(i) || now.saturating_sub(self.followed[i].ring().read) > WHOLE_NS {
            return false;
        }
        let f = &self.followed[i];
        let first = f.holders.first().and_then(|pid| self.watched.get(pid));
        first
            .and_then(|w| w.program.process.as_ref())
            .is_some_and(|p| matches!(f.ring().follower.stands(&p.memory, now), Ok(true)))
    }

    /// Looks at a channel, and notes the delay and the duration of the look.
    fn look_in_turn(&mut self, i: usize, turn: Turn, begun: u64) {
        let late_ns = turn.late_ns.unwrap_or(0);
        let is_used = self.followed[i].ring().follower.phase().is_used();
        if is_used && late_ns > self.sums.latest_ns {
            self.sums.latest_ns = late_ns;
            log::debug!("the latest look so far: {} us", late_ns / 1000);
        }
        let before = log::log_enabled!(log::Level::Debug).then(process::disturbances);
        self.look(i, ReadRing::IfNeeded);
        let took = now() - begun;
        let looking_ns = &self.followed[i].ring.looking_ns;
        looking_ns.fetch_add(took, Ordering::Relaxed);
        if let Some(before) = before
            && took > self.sums.longest_look_ns
        {
            let now = process::disturbances();
            let [faults, waits, preempted] = std::array::from_fn(|i| now[i] - before[i]);
            log::debug!(
                "the longest look so far: {} us, begun {} us late; {faults} page faults, waited {waits} times, {preempted} times preempted",
                took / 1000,
                late_ns / 1000
            );
        }
        self.sums.longest_look_ns = self.sums.longest_look_ns.max(took);
    }

    /// Sets the time of the next look at a channel. `moved`: the look at `begun` found that the channel had moved.
    fn set_due(&mut self, i: usize, begun: u64, moved: bool) {
        let channel = self.followed[i].channel.id;
        if self.is_at_rest(i) {
            if !moved {
                self.scheduler.rest(channel, begun + SAFETY_NS);
                return;
            }
            for pid in self.followed[i].holders.clone() {
                self.wake_up(pid);
            }
        }
        let again = self.followed[i].ring().follower.again();
        self.scheduler.looked(channel, begun, again);
    }

    /// Looks at what is due. Called again and again during other work that takes long.
    pub(super) fn meanwhile(&mut self) {
        let now = now();
        self.poll_stops(now);
        if self.scheduler.is_due(now) {
            process::left_out(|| self.look_at_due());
        }
    }

    /// Reads everything in a channel's ring.
    pub(super) fn look_at_all_of(&mut self, i: usize) {
        let mut more = self.followed[i].live;
        while more {
            self.look(i, ReadRing::Always);
            let f = &self.followed[i];
            more = f.live && f.ring().follower.phase().is_behind();
        }
    }

    /// Looks at one channel now.
    pub(super) fn look(&mut self, i: usize, read: ReadRing) {
        let begun = now();
        let mut no_ring = None;
        let was = self.followed[i].ring().follower.looked;
        let first = self.followed[i].holders.first().copied();
        while let Some(pid) = self.followed[i].holders.first().copied() {
            // A child that goes on where its parent has ended may have mapped another ring there.
            let other = first != Some(pid) && self.is_same(i, pid) == Some(false);
            let seen = if other {
                Err(io::ErrorKind::NotFound.into())
            } else {
                self.look_in(i, pid, read, begun)
            };
            let Err(e) = seen else {
                return;
            };
            let why = e.kind();
            if is_cleared(&e) {
                no_ring = Some(e);
            }
            if self.searched.is_some() {
                // What that means is judged when the search is over, and its result known.
                return;
            }
            self.loses(i, pid, why, no_ring.is_some(), begun);
        }
        self.end_channel(i, begun);
        self.sums.tail_ns = self.sums.tail_ns.max(begun.saturating_sub(was));
        if let Some(e) = no_ring {
            let channel = self.followed[i].channel.clone();
            self.report_named(&channel, Some(&e));
        }
    }

    /// Looks at a channel in the memory of one process.
    fn look_in(&mut self, i: usize, pid: u32, read: ReadRing, begun: u64) -> io::Result<()> {
        let searched = self.searched.as_ref().filter(|s| s.pid == pid);
        let process = match searched {
            Some(searched) => searched.process.as_ref(),
            None => {
                let watched = self.watched.get(&pid);
                watched.and_then(|w| w.program.process.as_ref())
            }
        };
        let memory = &process.ok_or(io::ErrorKind::UnexpectedEof)?.memory;
        let f = &self.followed[i];
        let mut ring = f.ring();
        // What its reader found comes before what is found now.
        if let Some(reader) = f.reader {
            self.readers.empty(reader, &mut self.out);
        }
        ring.look(memory, read, begun, &mut self.out)
    }

    /// Takes note that the first holder of a channel has lost it: the process is gone, executes another program, or has unmapped the
    /// channel. `no_ring`: the memory there was found to be no ring.
    fn loses(&mut self, i: usize, pid: u32, why: io::ErrorKind, no_ring: bool, begun: u64) {
        if self.followed[i].holders.len() == 1 {
            // Another process may have it still.
            self.find_kin();
        }
        // Its reader read it there.
        self.take_back(i);
        let f = &mut self.followed[i];
        f.holders.remove(0);
        if let Some(w) = self.watched.get_mut(&pid) {
            // What the user names is not looked for again where it is no ring.
            let given = f.channel.origin == Origin::Given && no_ring;
            let ring = f.channel.ring.filter(|_| !given);
            w.forget(ring, why);
            if f.holders.is_empty() && !given {
                w.drop_channel(f.dropped(begun));
            }
        }
    }

    /// Ends a channel that no process has any more.
    pub(super) fn end_channel(&mut self, i: usize, now: u64) {
        self.take_back(i);
        let f = &mut self.followed[i];
        f.live = false;
        f.ring().follower.end(now, &mut self.out);
        self.scheduler.forget(f.channel.id);
    }

    /// Returns the time of the last news on a channel of a process, ns; `None` where nothing ever came.
    pub(super) fn active_at(&self, pid: u32) -> Option<u64> {
        let its = self.followed.iter().filter(|f| f.channel.at.pid == pid);
        its.map(|f| f.ring().moved).max().filter(|moved| *moved > 0)
    }
}
