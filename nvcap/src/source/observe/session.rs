//! All channels of all processes that are observed: each looked at when its pace says so, within the CPU that may be
//! used; and the looks that find new processes, mappings and channels.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use super::process::check;
use super::{
    channel::{Begin, Faults, Follower},
    discover::{self, Watched},
    followed::Followed,
    pace::Budget,
    process::{self, Process as Seen, now},
};
use crate::ledger::{Margin, Observed};
use crate::record::{At, Channel, ChannelId, CpuVa, Life, Loss, Lost, Origin, Process, Record};
use crate::source::run::{QUEUE, Source};
use crate::source::{error::Result, given::Given};

/// How long channels that are overdue are looked at without passing on what was found, ns.
const ROUND_NS: u64 = 2_000_000;

/// Bytes of records that may wait to be decoded while the CPU that may be used is limited.
const WAITING_IN_BUDGET: usize = 64 << 10;

/// How to observe.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Children are observed too.
    pub follow: bool,
    /// What the user names; its doorbells are not needed.
    pub given: Given,
    /// Share of one core that this program may use; no limit where there is none.
    pub cpu: Option<f64>,
}

/// A live trace without a trap.
#[derive(Debug)]
pub struct Session {
    options: Options,
    watched: BTreeMap<u32, Watched>,
    followed: Vec<Followed>,
    /// When the next channel is to be looked at, ns.
    next: u64,
    /// A process that is being searched while channels are looked at.
    searched: Option<(u32, Option<Arc<Seen>>)>,
    budget: Option<Budget>,
    out: Vec<Record>,
    faults: Faults,
    sums: Observed,
    /// Of channels that are followed no longer.
    margins: Vec<Margin>,
    started: (u64, u64),
    next_id: u32,
}

fn at(pid: u32, tid: u32) -> At {
    At {
        time_ns: now(),
        pid,
        tid,
    }
}

impl Session {
    /// Observes nothing yet.
    pub fn new(options: Options) -> Self {
        process::be_on_time();
        Self {
            budget: options.cpu.map(Budget::new),
            options,
            watched: BTreeMap::new(),
            followed: Vec::new(),
            next: 0,
            searched: None,
            out: Vec::new(),
            faults: Faults::default(),
            sums: Observed::default(),
            margins: Vec::new(),
            started: (now(), process::own_cpu()),
            next_id: 0,
        }
    }

    fn blind(&mut self, pid: u32, why: String) {
        self.out.push(Record::Loss(Loss {
            at: at(pid, 0),
            channel: None,
            what: Lost::Blind { why },
        }));
    }

    fn life(&mut self, pid: u32, life: Life) {
        self.out.push(Record::Process(Process {
            at: at(pid, pid),
            life,
        }));
    }

    // ---- looking at channels

    /// Looks at the channels that are due, the one that has waited longest first. Gives the time of the next look.
    fn look_at_due(&mut self) -> u64 {
        let until = now() + ROUND_NS;
        loop {
            let live = self.followed.iter().enumerate().filter(|(_, f)| f.live);
            let Some((i, due)) = live.map(|(i, f)| (i, f.due)).min_by_key(|(_, due)| *due) else {
                self.next = u64::MAX;
                return self.next;
            };
            let begun = now();
            if due > begun || begun > until {
                self.next = due;
                return self.next;
            }
            let f = &self.followed[i];
            if f.follower.used && due > 0 && begun - due > self.sums.latest_ns {
                self.sums.latest_ns = begun - due;
                log::debug!("the latest look so far: {} us", self.sums.latest_ns / 1000);
            }
            let before = log::log_enabled!(log::Level::Debug).then(process::disturbances);
            self.look(i);
            let took = now() - begun;
            if let Some(before) = before
                && took > self.sums.longest_look_ns
            {
                let now = process::disturbances();
                let [faults, waits, preempted] = std::array::from_fn(|i| now[i] - before[i]);
                log::debug!(
                    "the longest look so far: {} us, begun {} us late; {faults} page faults, waited {waits} times, {preempted} times preempted",
                    took / 1000,
                    (begun - due) / 1000
                );
            }
            let f = &mut self.followed[i];
            // Counted from the beginning of this look: else a channel that takes long to read is looked at seldom.
            f.due = f.next(begun);
            self.sums.longest_look_ns = self.sums.longest_look_ns.max(took);
        }
    }

    /// Called again and again while something else is done that takes long.
    fn meanwhile(&mut self) {
        if self.next <= now() {
            self.look_at_due();
        }
    }

    /// Looks at one channel now.
    fn look(&mut self, i: usize) {
        let begun = now();
        let f = &mut self.followed[i];
        let mut refused = true;
        let was = f.follower.looked;
        while let Some(pid) = f.holders.first().copied() {
            let searched = self.searched.as_ref().filter(|s| s.0 == pid);
            let process = match searched {
                Some((_, process)) => process.as_ref(),
                None => self.watched.get(&pid).and_then(|w| w.process.as_ref()),
            };
            let looked = process.map(|p| {
                f.follower
                    .look(&p.memory, &now, &mut self.out, &mut self.faults)
            });
            let why = match looked {
                None => std::io::ErrorKind::UnexpectedEof,
                Some(Err(e)) => e.kind(),
                Some(Ok(looked)) => {
                    f.take(looked, begun);
                    refused = false;
                    break;
                }
            };
            if self.searched.is_some() {
                // What that means is judged when the search is over, and its result known.
                return;
            }
            // Gone, executing another program, or without this mapping: another process may have it still.
            f.holders.remove(0);
            if let Some(w) = self.watched.get_mut(&pid) {
                w.forget(f.follower.announced.ring, why);
                if f.holders.is_empty() && f.follower.moved {
                    w.drop_channel(f.dropped(begun));
                }
            }
        }
        if refused {
            f.live = false;
            self.sums.tail_ns = self.sums.tail_ns.max(begun.saturating_sub(was));
        }
    }

    // ---- processes and channels that come and go

    fn adopt(&mut self, pid: u32, begin: Begin) -> std::io::Result<()> {
        let watched = Watched::open(pid, begin)?;
        self.watched.insert(pid, watched);
        Ok(())
    }

    /// Looks after every process that is due. Gives the time of the next look.
    fn look_after_processes(&mut self) -> u64 {
        let mut next = u64::MAX;
        let due: Vec<u32> = self
            .watched
            .iter()
            .filter(|(_, w)| w.suspect || w.due <= now())
            .map(|(pid, _)| *pid)
            .collect();
        for pid in due {
            self.meanwhile();
            self.look_after(pid);
        }
        for w in self.watched.values() {
            next = next.min(w.due);
        }
        next
    }

    fn look_after(&mut self, pid: u32) {
        let begun = process::thread_cpu();
        // Before it is found dead: a child that was born in between would be nobody's.
        let children = if self.options.follow {
            process::children(pid, &mut || self.meanwhile())
        } else {
            Vec::new()
        };
        let state = process::state(pid);
        if state.lives {
            self.look_after_living(pid, state.forked);
        }
        // After its own channels: a forked child has them from it.
        for child in children {
            if !self.watched.contains_key(&child) {
                self.child(pid, child);
            }
        }
        if !state.lives {
            self.process_gone(pid);
            return;
        }
        let cost = process::thread_cpu().saturating_sub(begun);
        if let Some(watched) = self.watched.get_mut(&pid) {
            watched.pause(cost);
        }
    }

    fn look_after_living(&mut self, pid: u32, forked: bool) {
        if forked {
            self.check_shared(pid);
        }
        let Some(watched) = self.watched.get_mut(&pid) else {
            return;
        };
        if let Some(name) = watched.executes() {
            self.leave(pid);
            self.ended(pid);
            self.life(pid, Life::Exec { name });
            if let Some(watched) = self.watched.get_mut(&pid) {
                watched.begin_anew();
            }
        }
        let Some(mut watched) = self.watched.remove(&pid) else {
            return;
        };
        // Its memory stays within reach: its channels are looked at between any two steps of the search.
        self.searched = Some((pid, watched.process.clone()));
        let given = std::mem::take(&mut self.options.given);
        let seen = watched.look(&given, &mut || self.meanwhile());
        self.options.given = given;
        self.searched = None;
        self.out.extend(watched.unmapped());
        self.watched.insert(pid, watched);
        self.out.extend(seen.records);
        for channel in seen.channels {
            self.channel(pid, channel);
        }
        for (ring, token) in seen.tokens {
            self.token(pid, CpuVa(ring), token);
        }
    }

    fn child(&mut self, parent: u32, child: u32) {
        self.life(parent, Life::Fork { child });
        match self.adopt(child, Begin::First) {
            Ok(()) => {
                if let Some(w) = self.watched.get_mut(&child) {
                    w.parent = Some(parent);
                }
                self.look_after(child);
            }
            // Already gone is no refusal: it lived too short to submit anything.
            Err(_) if !process::state(child).lives => {}
            Err(e) => self.blind(child, process::refusal(child, &e).to_string()),
        }
    }

    /// Whether one of the two is the other's forebear.
    fn related(&self, a: u32, b: u32) -> bool {
        let descends = |mut from: u32, to: u32| {
            while let Some(parent) = self.watched.get(&from).and_then(|w| w.parent) {
                if parent == to {
                    return true;
                }
                from = parent;
            }
            false
        };
        descends(a, b) || descends(b, a)
    }

    /// A channel of a process: new, or one that it shares with a process that forked it, or that it forked.
    fn channel(&mut self, pid: u32, channel: discover::Seen) {
        let ring = channel.channel.ring;
        let followed =
            |f: &Followed| f.live && f.follower.announced.ring == ring && f.holders.contains(&pid);
        if self.followed.iter().any(followed) {
            // Found anew while it is followed: once is enough.
            return;
        }
        let shared = self.followed.iter().position(|f| {
            f.live
                && f.follower.announced.ring == ring
                && f.holders.iter().any(|h| {
                    *h != pid
                        && self.related(*h, pid)
                        && discover::same_memory(*h, pid, &f.follower.announced)
                })
        });
        if let Some(i) = shared {
            if !self.followed[i].holders.contains(&pid) {
                self.followed[i].holders.push(pid);
            }
            return;
        }
        // One that a forked child has from a forebear whose own was not found yet is the forebear's.
        let mut forebear = self.watched.get(&pid).and_then(|w| w.parent);
        while let Some(p) = forebear {
            if process::state(pid).forked && discover::same_memory(p, pid, &channel.channel) {
                if let Some(w) = self.watched.get_mut(&pid) {
                    w.unsee(ring);
                }
                return;
            }
            forebear = self.watched.get(&p).and_then(|w| w.parent);
        }
        let Some(watched) = self.watched.get(&pid) else {
            return;
        };
        let Some(process) = &watched.process else {
            return;
        };
        let announced = Channel {
            id: ChannelId(self.next_id),
            ..channel.channel
        };
        let now = now();
        match Follower::new(announced.clone(), channel.begin, &process.memory, now) {
            Ok(Some(follower)) => {
                log::debug!(
                    "channel {} of process {pid}: {:?}, ring of {} entries at {:?}",
                    self.next_id,
                    channel.begin,
                    announced.entries.unwrap_or(0),
                    announced.ring
                );
                self.next_id += 1;
                self.next = 0;
                self.out.push(Record::Channel(Box::new(announced)));
                self.followed.push(Followed::new(follower, pid));
                if channel.begin == Begin::First {
                    // What came before it was found is in its ring still.
                    self.look(self.followed.len() - 1);
                }
            }
            Ok(None) => {}
            Err(e) => log::debug!("process {pid}: {ring:?} cannot be read: {e}"),
        }
    }

    /// A channel's token became known.
    fn token(&mut self, pid: u32, ring: CpuVa, token: u32) {
        let its = |f: &&mut Followed| {
            f.live && f.follower.announced.ring == Some(ring) && f.holders.contains(&pid)
        };
        let Some(f) = self.followed.iter_mut().find(its) else {
            return;
        };
        let announced = &mut f.follower.announced;
        if announced.token != Some(token) {
            announced.token = Some(token);
            announced.origin = Origin::Notified;
            let at = at(announced.at.pid, 0);
            let again = Channel {
                at,
                ..announced.clone()
            };
            self.out.push(Record::Channel(Box::new(again)));
        }
    }

    /// A forked child may have given its parent's rings up and mapped others at their addresses.
    fn check_shared(&mut self, pid: u32) {
        let shared = |f: &Followed| f.live && f.holders.len() > 1 && f.holders.contains(&pid);
        let Some(f) = self.followed.iter().find(|f| shared(f)) else {
            return;
        };
        let other = f.holders.iter().find(|h| **h != pid);
        if other.is_some_and(|o| discover::same_memory(*o, pid, &f.follower.announced)) {
            return;
        }
        for f in &mut self.followed {
            if f.holders.len() > 1 {
                f.holders.retain(|h| *h != pid);
            }
        }
        if let Some(w) = self.watched.get_mut(&pid) {
            w.forget_rings();
        }
    }

    /// A process has other memory now, or none: its channels go on in those who share them, or end.
    fn leave(&mut self, pid: u32) {
        for i in 0..self.followed.len() {
            if self.followed[i].live && self.followed[i].holders.contains(&pid) {
                self.followed[i].follower.behind = true;
                self.look(i);
                let f = &mut self.followed[i];
                f.holders.retain(|h| *h != pid);
                if f.live && f.holders.is_empty() {
                    f.live = false;
                    if let Some(w) = self.watched.get_mut(&pid) {
                        w.drop_channel(f.dropped(now()));
                    }
                }
            }
        }
    }

    /// A process's memory is gone, with its end or with another program: says what may have been missed.
    fn ended(&mut self, pid: u32) {
        let watched = self.watched.get_mut(&pid);
        if let Some(ns) = watched.and_then(|w| w.ended_busy(now())) {
            let ms = ns as f64 / 1e6;
            self.blind(
                pid,
                format!("its last {ms:.1} ms were not seen: it had submitted just before"),
            );
        }
    }

    fn tell_unresolved(&mut self, pid: u32, count: usize) {
        if count > 0 {
            self.blind(pid, format!("{count} places of its memory moved as a channel's GP_PUT does, and no ring was found that belongs to them"));
        }
    }

    fn process_gone(&mut self, pid: u32) {
        self.leave(pid);
        self.ended(pid);
        let Some(watched) = self.watched.remove(&pid) else {
            return;
        };
        self.tell_unresolved(pid, watched.unresolved());
        if watched.unseen() {
            self.blind(
                pid,
                "it mapped a doorbell and ended before any of its channels was found".into(),
            );
        }
        self.life(pid, Life::Exit { process: true });
    }

    /// Forgets channels that are followed no longer, but for their margins.
    fn bury(&mut self) {
        if self.followed.iter().all(|f| f.live) {
            return;
        }
        let dead = self.followed.iter().filter(|f| !f.live);
        self.margins.extend(dead.map(|f| f.margin));
        self.followed.retain(|f| f.live);
    }

    fn sleep(&self, until: u64, most: Duration) {
        let ns = until.saturating_sub(now()).min(most.as_nanos() as u64);
        if ns > 0 {
            std::thread::sleep(Duration::from_nanos(ns));
        }
    }
}

impl Source for Session {
    type End = Observed;

    fn shown_by(&mut self, thread: i32) {
        process::keep_apart(thread);
    }

    fn expect(&mut self, pid: u32) -> Result<()> {
        self.adopt(pid, Begin::First)
            .map_err(|e| process::refusal(pid, &e))?;
        let name = process::name(pid);
        self.life(pid, Life::Present { name });
        Ok(())
    }

    fn attach(&mut self, pid: u32) -> Result<()> {
        self.adopt(pid, Begin::Here)
            .map_err(|e| process::refusal(pid, &e))?;
        let name = process::name(pid);
        self.life(pid, Life::Present { name });
        self.look_after(pid);
        Ok(())
    }

    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        if let Some(budget) = &mut self.budget
            && let Some(ns) = budget.spend(now(), process::own_cpu())
        {
            let begun = now();
            // Of an end it is told at no cost: nothing can be read any more, and waiting for it would be in vain.
            let ended = process::wait_for_end(
                self.watched.values().filter_map(|w| w.process.as_deref()),
                Duration::from_nanos(ns).min(wait),
            );
            self.sums.throttled_ns += now() - begun;
            for pid in ended {
                self.look_after(pid);
            }
            to.append(&mut self.out);
            return Ok(());
        }
        self.look_at_due();
        let begun = now();
        let next = self.look_after_processes();
        self.bury();
        // Looked at meanwhile, and due again since.
        let next = next.min(self.next);
        let done = now();
        self.sums.longest_search_ns = self.sums.longest_search_ns.max(done - begun);
        if self.out.is_empty() {
            self.sleep(next, wait);
        }
        to.append(&mut self.out);
        Ok(())
    }

    /// What waits has yet to cost its CPU time: with a budget hardly any may, or that would be overdrawn for seconds.
    fn most_waiting(&self) -> usize {
        self.budget.as_ref().map_or(QUEUE, |_| WAITING_IN_BUDGET)
    }

    fn is_alive(&self) -> bool {
        !self.watched.is_empty()
    }

    fn finish(mut self, to: &mut Vec<Record>) -> Observed {
        for i in 0..self.followed.len() {
            self.followed[i].follower.behind = true;
            while self.followed[i].live && self.followed[i].follower.behind {
                self.look(i);
            }
        }
        let unresolved: Vec<(u32, usize)> = self
            .watched
            .iter()
            .map(|(pid, w)| (*pid, w.unresolved()))
            .collect();
        for (pid, count) in unresolved {
            self.tell_unresolved(pid, count);
        }
        to.append(&mut self.out);
        let mut margins = std::mem::take(&mut self.margins);
        margins.extend(self.followed.iter().map(|f| f.margin));
        margins.sort_by_key(|m| m.channel);
        for m in &margins {
            self.sums.looks += m.looks;
            self.sums.glances += m.glances;
            self.sums.longest_ns = self.sums.longest_ns.max(m.longest_ns);
            self.sums.largest_part = self.sums.largest_part.max(m.largest_part);
        }
        let (wall, cpu) = self.started;
        Observed {
            wall_ns: now() - wall,
            cpu_ns: process::own_cpu() - cpu,
            reader_ns: process::thread_cpu(),
            budget: self.options.cpu,
            laps: self.faults.laps,
            overwritten: self.faults.overwritten,
            reused: self.faults.reused,
            unparsable: self.faults.unparsable,
            jumps: self.faults.jumps,
            rounds_unseen: self.faults.rounds_unseen,
            margins,
            ..self.sums
        }
    }
}
