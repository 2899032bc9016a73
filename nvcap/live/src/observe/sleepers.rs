//! Processes that sleep, and the work when one of them has run: see [`super::wakeups`].

use std::{os::fd::RawFd, time::Duration};

use super::{
    process::{self, now},
    session::Session,
    wakeups::{Bell, Doze, JUDGE_NS, Judged, Rung, SAFETY_NS, SLEEPS, STILL_NS},
};
use nvcap_process::{exit_stop::ExitStops, signals};

impl Session {
    /// True if all processes that have this channel sleep.
    pub(super) fn is_at_rest(&self, i: usize) -> bool {
        let holders = &self.followed[i].holders;
        !holders.is_empty() && holders.iter().all(|pid| self.sleepers.has(*pid))
    }

    /// True if every observed process sleeps.
    pub(super) fn all_sleep(&self) -> bool {
        self.watched.keys().all(|pid| self.sleepers.has(*pid))
    }

    /// Sleeps until a time, or until the kernel reports a process.
    pub(super) fn sleep(&mut self, until: u64, most: Duration) {
        let ns = until.saturating_sub(now()).min(most.as_nanos() as u64);
        if ns == 0 {
            return;
        }
        let sleepers = self.sleepers.dozing.keys();
        let processes =
            sleepers.filter_map(|pid| self.watched.get(pid)?.program.process.as_deref());
        let ended = process::wait_for_end(processes, &self.wakes(), Duration::from_nanos(ns));
        for pid in ended {
            self.look_after(pid);
        }
    }

    /// Returns the descriptors that become readable when there is work.
    pub(super) fn wakes(&self) -> Vec<RawFd> {
        let stops = self.stops.as_ref().and_then(ExitStops::wake);
        let bell = self.sleepers.bell.as_ref().map(Bell::fd);
        stops
            .into_iter()
            .chain(bell)
            .chain(signals::wake())
            .collect()
    }

    /// Looks at processes that have run, and judges from time to time which processes sleep.
    pub(super) fn watch_sleepers(&mut self) {
        let rung = self.sleepers.bell.as_ref().map(Bell::rung);
        if let Some(rung) = rung.filter(|r| *r != Rung::default()) {
            let now = now();
            self.births.next = now;
            let ran: Vec<(u32, bool)> = self
                .sleepers
                .dozing
                .iter_mut()
                .filter(|(_, doze)| doze.rang(&rung))
                .map(|(pid, doze)| (*pid, doze.is_awake(now)))
                .collect();
            for (pid, is_awake) in ran {
                if self.look_at_sleeper(pid, true) || is_awake {
                    self.wake_up(pid);
                }
                // It may have mapped something, or made a child.
                if let Some(w) = self.watched.get(&pid) {
                    self.scheduler.look_after_by(pid, w.not_before(now));
                }
            }
        }
        let now = now();
        if now >= self.sleepers.next {
            self.sleepers.next = now + JUDGE_NS;
            self.judge_sleepers(now);
        }
    }

    /// Looks at all channels of a process. True if something has come. `has_slept`: since the last look it has run no longer than
    /// a sleeping process may, which is too short to fill a ring.
    fn look_at_sleeper(&mut self, pid: u32, has_slept: bool) -> bool {
        let watched = self.watched.get(&pid);
        let memory = watched.and_then(|w| w.program.process.clone());
        let mut came = false;
        for i in 0..self.followed.len() {
            let f = &self.followed[i];
            if !f.live || !f.holders.contains(&pid) {
                continue;
            }
            // One read of a ring's memory instead of four: there was no time for it to go round.
            let memory = memory.as_ref().filter(|_| has_slept);
            let stands = memory.map(|p| f.ring().follower.stands(&p.memory, now()));
            if !matches!(stands, Some(Ok(true))) {
                let moved = f.ring().moved;
                self.look_at_all_of(i);
                came |= self.followed[i].ring().moved != moved;
            }
            let channel = self.followed[i].channel.id;
            self.scheduler.rest(channel, now() + SAFETY_NS);
        }
        came
    }

    /// Takes note that a process does not sleep any more: it is polled from now on.
    pub(super) fn wake_up(&mut self, pid: u32) {
        if self.sleepers.dozing.remove(&pid).is_none() {
            return;
        }
        self.sleepers.judged.remove(&pid);
        for f in self.followed.iter().filter(|f| f.holders.contains(&pid)) {
            self.scheduler.at_once(f.channel.id);
        }
        if self.watched.contains_key(&pid) {
            self.scheduler.look_after(pid);
        }
    }

    /// Forgets a process that has ended. True if it slept.
    pub(super) fn forget_sleeper(&mut self, pid: u32) -> bool {
        self.sleepers.judged.remove(&pid);
        self.sleepers.refused.remove(&pid);
        self.sleepers.dozing.remove(&pid).is_some()
    }

    fn judge_sleepers(&mut self, now: u64) {
        let pids: Vec<u32> = self.watched.keys().copied().collect();
        for pid in pids {
            if !self.sleepers.has(pid)
                && !self.sleepers.refused.contains(&pid)
                && self.is_still(pid, now)
            {
                self.put_to_sleep(pid);
            }
        }
    }

    /// True if nothing has come from the process for a while, and it uses hardly any CPU time.
    fn is_still(&mut self, pid: u32, now: u64) -> bool {
        let Some(w) = self.watched.get(&pid) else {
            return false;
        };
        let Some(cpu_ns) = w.program.process.as_ref().and_then(|p| p.cpu()) else {
            return false;
        };
        let judged = Judged { at: now, cpu_ns };
        let before = self.sleepers.judged.insert(pid, judged);
        let uses_little = before.is_some_and(|before| {
            let most = now.saturating_sub(before.at) as f64 * SLEEPS;
            cpu_ns.saturating_sub(before.cpu_ns) as f64 <= most
        });
        let is_new = |since: u64| now.saturating_sub(since) < STILL_NS;
        let mut its = self
            .followed
            .iter()
            .filter(|f| f.live && f.holders.contains(&pid));
        uses_little
            && !is_new(w.program.began_at)
            && its.all(|f| {
                let ring = f.ring();
                !is_new(ring.moved.max(f.since)) && !ring.follower.phase().is_behind()
            })
    }

    fn put_to_sleep(&mut self, pid: u32) {
        if self.sleepers.bell.is_none() {
            self.sleepers.bell = Bell::new().ok();
        }
        let doze = match &self.sleepers.bell {
            Some(_) => Doze::new(pid),
            None => return,
        };
        match doze {
            Ok(doze) => {
                self.sleepers.dozing.insert(pid, doze);
                // What came before the kernel was asked to tell.
                if self.look_at_sleeper(pid, false) {
                    self.wake_up(pid);
                }
            }
            Err(e) => {
                log::debug!(
                    "process {pid} is polled while it sleeps: perf events are refused: {e}"
                );
                self.sleepers.refused.insert(pid);
            }
        }
    }
}
