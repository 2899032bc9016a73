//! All channels of all observed processes. Looks at each channel when its pace says so, within the CPU that may be used; and makes the
//! looks that find new processes, mappings and channels.

use nvcap_process::procfs;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use super::options::{ObserveOptions, StopAtExit};
pub(crate) use super::process::check;
use super::{
    balance::{self, Balance},
    births::Births,
    changes::NewChannel,
    channel::{Begin, Faults, Follower, ReadRing},
    discover::Watched,
    followed::Followed,
    held_ends::HeldEnds,
    pace::Budget,
    process::{self, Identity, OpenedProcess, now},
    readers::Readers,
    scheduler::Scheduler,
    wakeups::{Sleepers, WHOLE_NS},
};
use crate::run::{LONGEST_WAIT, QUEUE, Source};
use nvcap_decode::ledger::{Margin, Observed};
use nvcap_decode::record::{
    At, Channel, ChannelId, CpuVa, Life, Loss, Lost, Origin, Process, Record,
};
use nvcap_decode::wire::GpuVa;
use nvcap_process::memory::snapshot::RingToken;
use nvcap_process::signals;
use nvcap_process::{error::Result, exit_stop::ExitStops};

/// Longest wait while every process sleeps.
const ASLEEP: Duration = Duration::from_secs(1);

/// The most bytes of records that may wait to be decoded while the usable CPU is limited.
pub(crate) const WAITING_IN_BUDGET: usize = 64 << 10;

/// A live trace without a trap.
#[derive(Debug)]
pub struct Session {
    pub(super) options: ObserveOptions,
    pub(super) watched: BTreeMap<u32, Watched>,
    pub(super) followed: Vec<Followed>,
    /// Threads that look at busy channels.
    pub(super) readers: Readers,
    pub(super) balance: Balance,
    /// The most readers.
    pub(super) most_readers: usize,
    /// Stops processes at their end.
    pub(super) stops: Option<ExitStops>,
    /// Processes that stand at their end.
    pub(super) held: HeldEnds,
    /// Processes that need not be polled.
    pub(super) sleepers: Sleepers,
    /// Channels that the user named, by ring, with the reason why one is not followed.
    pub(super) named: BTreeMap<u64, Option<String>>,
    /// Time of the last check for stopped processes, ns.
    pub(super) asked_stops: u64,
    /// Order of the next looks.
    pub(super) scheduler: Scheduler,
    /// Processes that are born.
    pub(super) births: Births,
    /// Processes that were there when an ancestor was taken on, and are not observed yet; with their start in clock ticks.
    pub(super) born_before: BTreeMap<u32, Option<u64>>,
    /// Process that is being searched while channels are looked at.
    pub(super) searched: Option<Searched>,
    budget: Option<Budget>,
    pub(super) out: Vec<Record>,
    pub(super) faults: Faults,
    pub(super) sums: Observed,
    /// Margins of channels that are not followed any more.
    margins: Vec<Margin>,
    started: Clocks,
    next_id: u32,
}

/// Process that is being searched. It is not among the others meanwhile, and its memory stays accessible.
#[derive(Debug)]
pub(super) struct Searched {
    pub pid: u32,
    pub process: Option<Arc<OpenedProcess>>,
}

/// Readings of the clocks, ns.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    wall: u64,
    /// CPU time of this program.
    program: u64,
    /// CPU time of the thread that looks.
    thread: u64,
}

impl Clocks {
    /// Reads the clocks when observing begins. The program's clock is read before the thread's, which is a part of it.
    fn at_begin() -> Self {
        Self {
            wall: now(),
            program: process::own_cpu(),
            thread: process::thread_cpu(),
        }
    }

    /// Reads the clocks when observing ends, in the opposite order, so that the thread's time is never more than the program's.
    fn at_end() -> Self {
        let thread = process::thread_cpu();
        Self {
            wall: now(),
            program: process::own_cpu(),
            thread,
        }
    }
}

pub(super) fn at(pid: u32, tid: u32) -> At {
    At {
        time_ns: now(),
        pid,
        tid,
    }
}

impl Session {
    /// Makes a session that observes nothing yet.
    pub fn new(options: ObserveOptions) -> Self {
        process::raise_priority();
        Self {
            budget: options.cpu.map(Budget::new),
            // With a limit of its CPU time there is one thread.
            most_readers: match options.cpu {
                Some(_) => 0,
                None => balance::most_readers(options.readers),
            },
            readers: Readers::default(),
            balance: Balance::begin(),
            births: Births::new(options.follow),
            options,
            watched: BTreeMap::new(),
            followed: Vec::new(),
            stops: None,
            held: HeldEnds::default(),
            sleepers: Sleepers::default(),
            named: BTreeMap::new(),
            asked_stops: 0,
            scheduler: Scheduler::default(),
            born_before: BTreeMap::new(),
            searched: None,
            out: Vec::new(),
            faults: Faults::default(),
            sums: Observed::default(),
            margins: Vec::new(),
            started: Clocks::at_begin(),
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

    // ---- processes and channels that come and go

    /// Takes on a running process. `begin`: whether its rings are followed from their first entry or from their present position.
    fn attach_from(&mut self, pid: u32, begin: Begin) -> Result<()> {
        if begin == Begin::Here && self.options.follow {
            self.note_descent(pid);
        }
        self.adopt(pid, begin)
            .map_err(|e| process::refusal(pid, &e))?;
        self.check_named(pid)?;
        self.stop_attached_at_exit(pid)?;
        let name = process::name(pid);
        self.life(pid, Life::Present { name });
        self.look_after(pid);
        Ok(())
    }

    /// Looks after every process that is due.
    fn look_after_processes(&mut self) {
        self.look_for_kin();
        let is_due = |pid: u32| self.scheduler.is_process_due(pid, now());
        let all = self.watched.iter();
        let due = all.filter(|(pid, w)| w.suspect || is_due(**pid));
        for pid in due.map(|(pid, _)| *pid).collect::<Vec<u32>>() {
            self.meanwhile();
            self.look_after(pid);
        }
    }

    pub(super) fn look_after(&mut self, pid: u32) {
        let begun = process::search_cpu();
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
        let cost = process::search_cpu().saturating_sub(begun);
        let sleeps = self.sleepers.has(pid);
        if let Some(watched) = self.watched.get_mut(&pid) {
            let mut again = watched.pause(cost, sleeps);
            if sleeps {
                // Before it has mapped anything the kernel will have told that it runs.
                again = now() + WHOLE_NS;
            }
            self.scheduler.looked_after(pid, again);
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
        // Its channels are looked at between any two steps of the search.
        self.searched = Some(Searched {
            pid,
            process: watched.program.process.clone(),
        });
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
        for RingToken { ring, token } in seen.tokens {
            self.token(pid, ring, token);
        }
    }

    /// Takes a channel that was found in a process. It is new, or the process shares it with a parent or a child by fork.
    fn channel(&mut self, pid: u32, found: NewChannel) {
        let ring = found.channel.ring;
        if self.is_followed(pid, ring) {
            // Found anew while it is followed: once is enough.
            return;
        }
        if let Some(i) = self.shared_with(pid, ring) {
            self.hold(i, pid);
            return;
        }
        // One that a forked child has from a forebear whose own was not found yet is the forebear's.
        let is_forebears = self.forebear_with(pid, &found.channel).is_some();
        let identity = self.identity(pid, &found.channel);
        if self.is_outdated(pid) || is_forebears {
            self.put_off(pid, ring, is_forebears);
        } else {
            self.follow(pid, found, identity);
        }
    }

    /// Tells whether a channel with this ring is followed, and has the process as a holder.
    fn is_followed(&self, pid: u32, ring: Option<CpuVa>) -> bool {
        self.followed
            .iter()
            .any(|f| f.live && f.channel.ring == ring && f.holders.contains(&pid))
    }

    /// Finds the followed channel with this ring, if it is the process's too.
    fn shared_with(&self, pid: u32, ring: Option<CpuVa>) -> Option<usize> {
        (0..self.followed.len())
            .find(|i| self.followed[*i].channel.ring == ring && self.shares(*i, pid))
    }

    /// Leaves a ring until it is found again: it is a forebear's, or its program is not certain.
    fn put_off(&mut self, pid: u32, ring: Option<CpuVa>, is_forebears: bool) {
        let Some(w) = self.watched.get_mut(&pid) else {
            return;
        };
        w.unsee(ring, !is_forebears);
        if !is_forebears {
            w.suspect = true;
            if w.program.mm.is_empty() {
                w.found_ring(ring, false);
            }
        }
    }

    /// Follows a new channel, if its ring can be read.
    fn follow(&mut self, pid: u32, found: NewChannel, identity: Option<Identity>) {
        let watched = self.watched.get(&pid);
        let Some(process) = watched.and_then(|w| w.program.process.as_ref()) else {
            return;
        };
        let now = now();
        // Others that were found with it may have been looked at since: it comes behind what they submitted.
        let announced = Channel {
            at: At {
                time_ns: now,
                ..found.channel.at
            },
            id: ChannelId(self.next_id),
            ..found.channel
        };
        match Follower::new(announced.clone(), found.begin, &process.memory, now) {
            Ok(Some(follower)) => {
                let found = NewChannel {
                    channel: announced,
                    begin: found.begin,
                };
                self.begin_following(pid, found, follower, identity);
            }
            Ok(None) => {}
            Err(e) => {
                log::debug!("process {pid}: {:?} cannot be read: {e}", announced.ring);
                self.report_named(&announced, Some(&e));
                if let Some(w) = self.watched.get_mut(&pid) {
                    w.found_ring(announced.ring, false);
                }
            }
        }
    }

    /// Announces a channel, and adds it to the followed ones.
    fn begin_following(
        &mut self,
        pid: u32,
        found: NewChannel,
        follower: Follower,
        identity: Option<Identity>,
    ) {
        let NewChannel {
            channel: announced,
            begin,
        } = found;
        let Some(watched) = self.watched.get_mut(&pid) else {
            return;
        };
        log::debug!(
            "channel {} of process {pid}: {begin:?}, ring of {} entries at {:?}",
            self.next_id,
            announced.entries.unwrap_or(0),
            announced.ring
        );
        let mm = watched.program.mm.clone();
        watched.found_ring(announced.ring, true);
        self.next_id += 1;
        self.scheduler.follow(announced.id);
        self.report_named(&announced, None);
        self.out.push(Record::Channel(Box::new(announced)));
        let f = Followed::new(follower, pid, mm, identity);
        self.followed.push(f);
        let i = self.followed.len() - 1;
        self.hand_down(i);
        if begin == Begin::First {
            // What came before it was found is in its ring still.
            self.look(i, ReadRing::IfNeeded);
        }
    }

    /// Takes note of a channel's token.
    fn token(&mut self, pid: u32, ring: CpuVa, token: u32) {
        let its =
            |f: &&mut Followed| f.live && f.channel.ring == Some(ring) && f.holders.contains(&pid);
        let Some(f) = self.followed.iter_mut().find(its) else {
            return;
        };
        if f.channel.token == Some(token) {
            return;
        }
        f.channel.token = Some(token);
        f.channel.origin = Origin::Notified;
        f.ring().follower.announced = f.channel.clone();
        let again = Channel {
            at: at(f.channel.at.pid, 0),
            ..f.channel.clone()
        };
        self.out.push(Record::Channel(Box::new(again)));
    }

    /// Forgets channels that are not followed any more. Their margins are kept.
    fn reap(&mut self) {
        if self.followed.iter().all(|f| f.live) {
            return;
        }
        for f in self.followed.iter().filter(|f| !f.live) {
            let ring = f.ring();
            self.margins.push(ring.margin);
            self.faults += ring.faults;
        }
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
        self.attach_from(pid, Begin::Here)
    }

    fn take_on(&mut self, pid: u32, was_there: bool) -> Result<()> {
        // A child of one that is observed may be known already.
        if self.watched.contains_key(&pid) {
            return Ok(());
        }
        let begin = if was_there { Begin::Here } else { Begin::First };
        self.attach_from(pid, begin)
    }

    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        // Who is held now must not wait for a sleep.
        let wait = if self.take_stops() {
            Duration::ZERO
        } else {
            wait
        };
        if let Some(budget) = &mut self.budget
            && let Some(ns) = budget.spend(now(), process::own_cpu())
        {
            let begun = now();
            // Of an end it is told at no cost: nothing can be read any more, and waiting for it would be in vain.
            // What sleepers do has to wait.
            let stops = self.stops.as_ref().and_then(ExitStops::wake);
            let ended = process::wait_for_end(
                self.watched
                    .values()
                    .filter_map(|w| w.program.process.as_deref()),
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
        self.look_after_processes();
        self.collect();
        self.reap();
        self.spread();
        let done = now();
        self.sums.longest_search_ns = self.sums.longest_search_ns.max(done - begun);
        if self.out.is_empty() {
            self.sleep(self.until_next(), wait);
        }
        to.append(&mut self.out);
        Ok(())
    }

    /// Returns nothing: observing sees no calls of the driver, so only the process's own addresses are known.
    fn locate(&self, _channel: ChannelId, _at: GpuVa) -> Option<CpuVa> {
        None
    }

    fn batch_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Limits the queue under a budget: decoding the waiting records will cost CPU time, and more of them would overdraw the budget
    /// for seconds.
    fn most_waiting(&self) -> usize {
        self.budget.as_ref().map_or(QUEUE, |_| WAITING_IN_BUDGET)
    }

    /// Allows long waits while all processes sleep: the kernel then reports everything that happens, provided that it also reports the
    /// user's signals.
    fn longest_wait(&self) -> Duration {
        if self.all_sleep() && signals::wake().is_some() {
            ASLEEP
        } else {
            LONGEST_WAIT
        }
    }

    fn is_pending(&self) -> bool {
        false
    }

    fn is_alive(&self) -> bool {
        !self.watched.is_empty()
    }

    fn is_ending(&self) -> bool {
        self.held.is_any()
    }

    fn let_end(&mut self) {
        self.held.let_go();
        self.resume_overdue(now());
    }

    fn finish(mut self, to: &mut Vec<Record>) -> Observed {
        self.let_end();
        if let Some(mut stops) = self.stops.take() {
            stops.release();
        }
        let readers = self.end_readers();
        self.look_after_all();
        for i in 0..self.followed.len() {
            self.look_at_all_of(i);
        }
        self.report_lost_meanwhile();
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
        for f in &self.followed {
            let ring = f.ring();
            margins.push(ring.margin);
            self.faults += ring.faults;
        }
        margins.sort_by_key(|m| m.channel);
        for m in &margins {
            self.sums.looks += m.looks;
            self.sums.peeks += m.peeks;
            self.sums.longest_ns = self.sums.longest_ns.max(m.longest_ns);
            self.sums.largest_part = self.sums.largest_part.max(m.largest_part);
        }
        let (began, ended) = (self.started, Clocks::at_end());
        Observed {
            wall_ns: ended.wall - began.wall,
            cpu_ns: ended.program - began.program,
            reader_ns: ended.thread - began.thread + readers.iter().map(|r| r.cpu_ns).sum::<u64>(),
            readers,
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
