//! All channels of all processes that are observed: each looked at when its pace says so, within the CPU that may be
//! used; and the looks that find new processes, mappings and channels.

use crate::procfs;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub(crate) use super::process::check;
use super::{
    births::Births,
    changes::NewChannel,
    channel::{Begin, Faults, Follower, is_cleared},
    discover::Watched,
    doze::{SAFETY_NS, Sleepers},
    followed::Followed,
    pace::Budget,
    process::{self, Process as Seen, now},
};
use crate::ledger::{Margin, Observed};
use crate::record::{At, Channel, ChannelId, CpuVa, Life, Loss, Lost, Origin, Process, Record};
use crate::source::run::{QUEUE, Source};
use crate::source::{channels_file::ChannelsFile, error::Result, exit_stop::ExitStops};

/// How long channels that are overdue are looked at without passing on what was found, ns.
const ROUND_NS: u64 = 2_000_000;

/// Bytes of records that may wait to be decoded while the CPU that may be used is limited.
pub(crate) const WAITING_IN_BUDGET: usize = 64 << 10;

/// How to observe.
#[derive(Clone, Debug, Default)]
pub struct ObserveOptions {
    /// Children are observed too.
    pub follow: bool,
    /// What the user names; its doorbells are not needed.
    pub named: ChannelsFile,
    /// Share of one core that this program may use; no limit where there is none.
    pub cpu: Option<f64>,
    /// Which processes are stopped at their end for a last look.
    pub stop_at_exit: StopAtExit,
}

/// `--stop-at-exit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopAtExit {
    /// The command that nvcap starts, and its children.
    #[default]
    Command,
    /// Running processes too.
    Always,
    /// None.
    Never,
}

/// A live trace without a trap.
#[derive(Debug)]
pub struct Session {
    pub(super) options: ObserveOptions,
    pub(super) watched: BTreeMap<u32, Watched>,
    pub(super) followed: Vec<Followed>,
    /// Stops processes at their end.
    pub(super) stops: Option<ExitStops>,
    /// Processes that need not be polled.
    pub(super) sleepers: Sleepers,
    /// Channels that the user named, by ring, and why one is not followed.
    pub(super) named: BTreeMap<u64, Option<String>>,
    /// When it was last asked what has stopped, ns.
    pub(super) asked_stops: u64,
    /// When the next channel is to be looked at, ns.
    pub(super) next: u64,
    /// Processes that are born.
    pub(super) births: Births,
    /// A process that is being searched while channels are looked at.
    searched: Option<(u32, Option<Arc<Seen>>)>,
    budget: Option<Budget>,
    pub(super) out: Vec<Record>,
    faults: Faults,
    sums: Observed,
    /// Of channels that are followed no longer.
    margins: Vec<Margin>,
    started: (u64, u64, u64),
    next_id: u32,
}

pub(super) fn at(pid: u32, tid: u32) -> At {
    At {
        time_ns: now(),
        pid,
        tid,
    }
}

impl Session {
    /// Observes nothing yet.
    pub fn new(options: ObserveOptions) -> Self {
        process::raise_priority();
        Self {
            budget: options.cpu.map(Budget::new),
            options,
            watched: BTreeMap::new(),
            followed: Vec::new(),
            stops: None,
            sleepers: Sleepers::default(),
            named: BTreeMap::new(),
            asked_stops: 0,
            next: 0,
            births: Births::new(),
            searched: None,
            out: Vec::new(),
            faults: Faults::default(),
            sums: Observed::default(),
            margins: Vec::new(),
            started: (now(), process::own_cpu(), process::thread_cpu()),
            next_id: 0,
        }
    }

    pub(super) fn untraced(&mut self, pid: u32, why: String) {
        self.out.push(Record::Loss(Loss {
            at: at(pid, 0),
            channel: None,
            what: Lost::Untraced { why },
        }));
    }

    pub(super) fn life(&mut self, pid: u32, life: Life) {
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
            let moved = f.moved;
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
            self.set_due(i, begun, self.followed[i].moved != moved);
            self.sums.longest_look_ns = self.sums.longest_look_ns.max(took);
        }
    }

    /// Sets when a channel is looked at next, after a look at `begun` that found that it had moved, or not.
    fn set_due(&mut self, i: usize, begun: u64, moved: bool) {
        if self.is_at_rest(i) {
            if !moved {
                self.followed[i].due = begun + SAFETY_NS;
                return;
            }
            for pid in self.followed[i].holders.clone() {
                self.wake_up(pid);
            }
        }
        let f = &mut self.followed[i];
        // Counted from the beginning of this look: else a channel that takes long to read is looked at seldom.
        f.due = f.next(begun);
    }

    /// Called again and again while something else is done that takes long.
    fn meanwhile(&mut self) {
        let now = now();
        self.poll_stops(now);
        if self.next <= now {
            self.look_at_due();
        }
    }

    /// Looks at one channel now.
    pub(super) fn look(&mut self, i: usize) {
        let begun = now();
        let mut refused = true;
        let mut no_ring = None;
        let was = self.followed[i].follower.looked;
        let first = self.followed[i].holders.first().copied();
        while let Some(pid) = self.followed[i].holders.first().copied() {
            let searched = self.searched.as_ref().filter(|s| s.0 == pid);
            let process = match searched {
                Some((_, process)) => process.as_ref(),
                None => self.watched.get(&pid).and_then(|w| w.process.as_ref()),
            };
            // A child that goes on where its parent has ended may have mapped another ring there.
            let other = first != Some(pid) && self.is_same(i, pid) == Some(false);
            let f = &mut self.followed[i];
            let looked = process.filter(|_| !other).map(|p| {
                f.follower
                    .look(&p.memory, &now, &mut self.out, &mut self.faults)
            });
            let why = match looked {
                None if other => std::io::ErrorKind::NotFound,
                None => std::io::ErrorKind::UnexpectedEof,
                Some(Err(e)) => {
                    let kind = e.kind();
                    if is_cleared(&e) {
                        no_ring = Some(e);
                    }
                    kind
                }
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
            if f.holders.len() == 1 {
                self.find_kin();
            }
            let f = &mut self.followed[i];
            f.holders.remove(0);
            if let Some(w) = self.watched.get_mut(&pid) {
                // What the user names is not looked for again where it is no ring.
                let given = f.follower.announced.origin == Origin::Given && no_ring.is_some();
                let ring = f.follower.announced.ring.filter(|_| !given);
                w.forget(ring, why);
                if f.holders.is_empty() && !given {
                    w.drop_channel(f.dropped(begun));
                }
            }
        }
        if refused {
            let f = &mut self.followed[i];
            f.live = false;
            f.follower.end(begun, &mut self.out);
            self.sums.tail_ns = self.sums.tail_ns.max(begun.saturating_sub(was));
            if let Some(e) = no_ring {
                let channel = f.follower.announced.clone();
                self.report_named(&channel, Some(&e));
            }
        }
    }

    /// When something last came on a channel of a process, ns.
    pub(super) fn active_at(&self, pid: u32) -> u64 {
        let its = self
            .followed
            .iter()
            .filter(|f| f.follower.announced.at.pid == pid);
        its.map(|f| f.moved).max().unwrap_or(0)
    }

    // ---- processes and channels that come and go

    /// Looks after every process that is due. Gives the time of the next look.
    fn look_after_processes(&mut self) -> u64 {
        self.look_for_kin();
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

    pub(super) fn look_after(&mut self, pid: u32) {
        let begun = process::thread_cpu();
        // Before it is found dead: a child that was born in between would be nobody's.
        let children = if self.options.follow {
            procfs::children(pid, &mut || self.meanwhile())
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
            if self.sleepers.has(pid) {
                watched.due = now() + SAFETY_NS;
            }
        }
    }

    pub(super) fn look_after_living(&mut self, pid: u32, forked: bool) {
        if forked {
            self.check_shared(pid);
        }
        self.notice_exec(pid, forked);
        let Some(mut watched) = self.watched.remove(&pid) else {
            return;
        };
        // Its memory stays within reach: its channels are looked at between any two steps of the search.
        self.searched = Some((pid, watched.process.clone()));
        let given = std::mem::take(&mut self.options.named);
        let seen = watched.look(&given, &mut || self.meanwhile());
        self.options.named = given;
        self.searched = None;
        let unmapped = watched.unmapped(self.active_at(pid));
        self.watched.insert(pid, watched);
        if let Some(why) = unmapped {
            self.untraced(pid, why);
        }
        self.out.extend(seen.records);
        for channel in seen.channels {
            self.channel(pid, channel);
        }
        for (ring, token) in seen.tokens {
            self.token(pid, CpuVa(ring), token);
        }
    }

    /// A channel of a process: new, or one that it shares with a process that forked it, or that it forked.
    fn channel(&mut self, pid: u32, channel: NewChannel) {
        let ring = channel.channel.ring;
        let followed =
            |f: &Followed| f.live && f.follower.announced.ring == ring && f.holders.contains(&pid);
        if self.followed.iter().any(followed) {
            // Found anew while it is followed: once is enough.
            return;
        }
        if let Some(i) = (0..self.followed.len())
            .find(|i| self.followed[*i].follower.announced.ring == ring && self.shares(*i, pid))
        {
            self.hold(i, pid);
            return;
        }
        // One that a forked child has from a forebear whose own was not found yet is the forebear's.
        let is_forebears = self.forebear_with(pid, &channel.channel).is_some();
        let identity = self.identity(pid, &channel.channel);
        if self.is_outdated(pid) || is_forebears {
            if let Some(w) = self.watched.get_mut(&pid) {
                w.unsee(ring, !is_forebears);
                if !is_forebears {
                    w.suspect = true;
                    if w.image.is_empty() {
                        w.found_ring(ring, false);
                    }
                }
            }
            return;
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
                let image = watched.image.clone();
                self.next_id += 1;
                self.next = 0;
                self.report_named(&announced, None);
                if let Some(w) = self.watched.get_mut(&pid) {
                    w.found_ring(ring, true);
                }
                self.out.push(Record::Channel(Box::new(announced)));
                let f = Followed::new(follower, pid, image, identity);
                self.followed.push(f);
                let i = self.followed.len() - 1;
                self.hand_down(i);
                if channel.begin == Begin::First {
                    // What came before it was found is in its ring still.
                    self.look(i);
                }
            }
            Ok(None) => {}
            Err(e) => {
                log::debug!("process {pid}: {ring:?} cannot be read: {e}");
                self.report_named(&announced, Some(&e));
                if let Some(w) = self.watched.get_mut(&pid) {
                    w.found_ring(ring, false);
                }
            }
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

    /// Forgets channels that are followed no longer, but for their margins.
    fn reap(&mut self) {
        if self.followed.iter().all(|f| f.live) {
            return;
        }
        let dead = self.followed.iter().filter(|f| !f.live);
        self.margins.extend(dead.map(|f| f.margin));
        self.followed.retain(|f| f.live);
    }
}

impl Source for Session {
    type End = Observed;

    fn shown_by(&mut self, thread: i32) {
        process::split_cpus(thread);
    }

    fn expect(&mut self, pid: u32) -> Result<()> {
        self.adopt(pid, Begin::First)
            .map_err(|e| process::refusal(pid, &e))?;
        self.stop_command_at_exit(pid);
        let name = process::name(pid);
        self.life(pid, Life::Present { name });
        Ok(())
    }

    fn attach(&mut self, pid: u32) -> Result<()> {
        self.adopt(pid, Begin::Here)
            .map_err(|e| process::refusal(pid, &e))?;
        self.check_named(pid)?;
        self.stop_attached_at_exit(pid)?;
        let name = process::name(pid);
        self.life(pid, Life::Present { name });
        self.look_after(pid);
        Ok(())
    }

    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        self.take_stops();
        if let Some(budget) = &mut self.budget
            && let Some(ns) = budget.spend(now(), process::own_cpu())
        {
            let begun = now();
            // Of an end it is told at no cost: nothing can be read any more, and waiting for it would be in vain.
            // What sleepers do has to wait.
            let stops = self.stops.as_ref().and_then(ExitStops::wake);
            let ended = process::wait_for_end(
                self.watched.values().filter_map(|w| w.process.as_deref()),
                &Vec::from_iter(stops),
                Duration::from_nanos(ns).min(wait),
            );
            self.sums.throttled_ns += now() - begun;
            for pid in ended {
                self.look_after(pid);
            }
            to.append(&mut self.out);
            return Ok(());
        }
        self.watch_sleepers();
        self.look_at_due();
        let begun = now();
        let next = self.look_after_processes();
        self.reap();
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

    fn batch_time(&self) -> Duration {
        Duration::ZERO
    }

    /// What waits has yet to cost its CPU time: with a budget hardly any may, or that would be overdrawn for seconds.
    fn most_waiting(&self) -> usize {
        self.budget.as_ref().map_or(QUEUE, |_| WAITING_IN_BUDGET)
    }

    fn is_alive(&self) -> bool {
        !self.watched.is_empty()
    }

    fn finish(mut self, to: &mut Vec<Record>) -> Observed {
        if let Some(mut stops) = self.stops.take() {
            stops.release();
        }
        for i in 0..self.followed.len() {
            self.look_at_all_of(i);
        }
        let unresolved: Vec<(u32, usize)> = self
            .watched
            .iter()
            .map(|(pid, w)| (*pid, w.unresolved()))
            .collect();
        for (pid, count) in unresolved {
            self.report_unresolved(pid, count);
        }
        self.report_orphans();
        self.report_named_unseen();
        to.append(&mut self.out);
        let mut margins = std::mem::take(&mut self.margins);
        margins.extend(self.followed.iter().map(|f| f.margin));
        margins.sort_by_key(|m| m.channel);
        for m in &margins {
            self.sums.looks += m.looks;
            self.sums.peeks += m.peeks;
            self.sums.longest_ns = self.sums.longest_ns.max(m.longest_ns);
            self.sums.largest_part = self.sums.largest_part.max(m.largest_part);
        }
        let (wall, cpu, reader) = self.started;
        // Before the whole's, of which it is a part.
        let reader_ns = process::thread_cpu() - reader;
        Observed {
            wall_ns: now() - wall,
            cpu_ns: process::own_cpu() - cpu,
            reader_ns,
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
