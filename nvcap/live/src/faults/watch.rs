//! Looks at notifiers and at the kernel log, and reports the faults that they show.

use std::{
    collections::BTreeMap,
    os::fd::RawFd,
    time::{Duration, Instant},
};

use nvcap_decode::record::{At, Channel, ChannelId, Fault, Origin};
use nvcap_process::{
    clock,
    memory::{
        maps,
        notifier::{self, Notifier},
    },
    procfs::mem::Memory,
};

use super::{
    known::{Known, Watched},
    messages::Messages,
    noticed::{Notice, Noticed},
    suspects::{self, Rings},
};

/// Share of the time that looks take: one part in this number, unless the pause is the longest.
const SHARE: u32 = 100;
/// The longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Times after a new channel at which its notifier is searched for: the driver writes its token a little later than the channel is
/// made.
const SEARCHES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// Pace of the looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Something was submitted a short time ago.
    Works,
    /// Nothing has been submitted for a while.
    Rests,
    /// A process stands at its end.
    AtEnd,
}

impl Pace {
    /// Returns the shortest time between two looks.
    pub(super) fn shortest(self) -> Duration {
        match self {
            Self::Works => Duration::from_millis(100),
            Self::Rests => LONGEST_PAUSE,
            Self::AtEnd => Duration::from_millis(5),
        }
    }

    /// Returns the time until the next look after one that took this long.
    fn pause(self, took: Duration) -> Duration {
        match self {
            Self::AtEnd => self.shortest().max(took),
            Self::Works | Self::Rests => (took * SHARE).clamp(self.shortest(), LONGEST_PAUSE),
        }
    }
}

/// Processes that are watched, and the kernel log.
#[derive(Debug)]
pub(super) struct Watch {
    processes: BTreeMap<u32, Watched>,
    /// Processes that have ended since the last look.
    ended: Vec<u32>,
    /// Processes that have executed another program since the last look, as they were before: messages about them may be unread.
    executed: BTreeMap<u32, Watched>,
    next: Instant,
    messages: Messages,
}

/// Results of a look.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) faults: Vec<Fault>,
    /// Processes that had ended before their notifiers were read, with the number of their channels.
    pub(super) unread: Vec<(u32, u64)>,
    /// All processes that have ended since the look before.
    pub(super) ended: Vec<u32>,
}

/// Part of a record that the watch needs.
#[derive(Debug)]
pub(super) enum Note {
    Channel(Box<Channel>),
    /// The first submission of a channel.
    Submits {
        pid: u32,
        channel: ChannelId,
    },
    /// A process executes another program.
    Exec(u32),
    /// A process has ended.
    Exit(u32),
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            processes: BTreeMap::new(),
            ended: Vec::new(),
            executed: BTreeMap::new(),
            next: Instant::now(),
            messages: Messages::open(),
        }
    }

    #[cfg(test)]
    fn of(messages: Messages) -> Self {
        Self {
            processes: BTreeMap::new(),
            ended: Vec::new(),
            executed: BTreeMap::new(),
            next: Instant::now(),
            messages,
        }
    }

    /// Returns the time until the next look; none where no process is watched and no fault waits.
    pub(super) fn until_next(&self) -> Option<Duration> {
        let until = self.next.saturating_duration_since(Instant::now());
        (!self.processes.is_empty() || self.messages.has_waiting()).then_some(until)
    }

    /// Returns the descriptor that can be read when the kernel has logged something; none where the log may not be read.
    pub(super) fn log(&self) -> Option<RawFd> {
        self.messages.wake()
    }

    /// Reads the kernel's log. A message about an error of a GPU makes the next look due now.
    pub(super) fn read_log(&mut self) {
        if self.messages.fetch() {
            self.hurry();
        }
    }

    /// Takes note that the next look is the last, and due now.
    pub(super) fn end(&mut self) {
        self.messages.end();
        self.hurry();
    }

    /// Makes the next look due now.
    pub(super) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// Looks if a look is due, or a process has ended. Returns what has come. `begins`: a process has just reached its end, and stands there.
    pub(super) fn look(&mut self, pace: Pace, begins: bool) -> Looked {
        let now = Instant::now();
        let ended = std::mem::take(&mut self.ended);
        let executed = std::mem::take(&mut self.executed);
        let mut faults = Vec::new();
        let mut noticed = Vec::new();
        if now >= self.next || begins || !ended.is_empty() || !executed.is_empty() {
            for (pid, process) in &mut self.processes {
                process.look(*pid, now, begins, &mut noticed);
            }
            // Behind the notifiers: the driver writes both at about the same time.
            let all: Vec<_> = self.processes.iter().chain(&executed).collect();
            self.messages.take(&all, now);
            let is_over = |pid: u32| ended.contains(&pid) || executed.contains_key(&pid);
            let is_due = |pid: u32| pace == Pace::AtEnd || is_over(pid);
            faults.extend(self.messages.join(noticed, now, is_due));
            faults.extend(self.messages.alone(&self.processes, now, is_due));
            let took = now.elapsed();
            self.next = now + took + pace.pause(took);
        }
        let mut unread = Vec::new();
        for pid in &ended {
            let gone = self.processes.remove(pid);
            if let Some(gone) = gone.filter(|p| !self.messages.tell() && p.is_unread(now)) {
                unread.push((*pid, gone.channels.len() as u64));
            }
        }
        Looked {
            faults,
            unread,
            ended,
        }
    }

    pub(super) fn note(&mut self, note: Note) {
        match note {
            Note::Channel(c) => {
                self.ended.retain(|pid| *pid != c.at.pid);
                self.processes.entry(c.at.pid).or_default().learn(&c);
            }
            Note::Submits { pid, channel } => {
                let known = self.processes.get_mut(&pid);
                if let Some(known) = known.and_then(|p| p.channels.get_mut(&channel)) {
                    known.submits = true;
                }
            }
            // The program that an exec begins has other memory.
            Note::Exec(pid) => {
                if let Some(before) = self.processes.remove(&pid) {
                    self.executed.insert(pid, before);
                }
            }
            Note::Exit(pid) => self.ended.push(pid),
        }
    }
}

impl Watched {
    fn learn(&mut self, c: &Channel) {
        let is_certain = matches!(
            c.origin,
            Origin::Allocated | Origin::Given | Origin::Recorded
        );
        let before = self.channels.get(&c.id).copied();
        let known = Known {
            gpu: c.gpu.or(before.and_then(|b| b.gpu)),
            token: c.token.or(before.and_then(|b| b.token)),
            is_certain,
            ring: c.ring.or(before.and_then(|b| b.ring)),
            userd: c.userd.or(before.and_then(|b| b.userd)),
            submits: before.is_some_and(|b| b.submits),
        };
        // A channel that was at its place before is gone.
        let is_at_its_place = |k: &Known| {
            k.userd.is_some() && k.userd == known.userd || k.ring.is_some() && k.ring == known.ring
        };
        self.channels
            .retain(|id, k| *id == c.id || !is_at_its_place(k));
        self.channels.insert(c.id, known);
        self.changed = Some(Instant::now());
        self.searched = 0;
    }

    /// Reads the notifiers. `is_last`: a process stands at its end.
    fn look(&mut self, pid: u32, now: Instant, is_last: bool, to: &mut Vec<Noticed>) {
        let due = { self.changed.zip(SEARCHES.get(self.searched)) }
            .is_some_and(|(changed, after)| now >= changed + *after);
        let lacks = self.notifiers.len() < self.channels.len();
        let is_searched = (due || is_last && lacks) && self.search(pid);
        self.searched += usize::from(due);
        let Some(memory) = &self.memory else {
            return;
        };
        let all: Vec<Notifier> = { self.notifiers.iter() }
            .filter_map(|at| notifier::read(memory, *at))
            .collect();
        // The memory of a process that is gone gives none.
        let is_read = all.len() == self.notifiers.len() && (is_searched || !all.is_empty());
        if is_last && is_read {
            self.at_end = Some(now);
        }
        let with_error: Vec<Notifier> = all
            .iter()
            .filter(|n| n.fault().is_some())
            .copied()
            .collect();
        let new = self.untold(pid, &with_error);
        if new.is_empty() {
            return;
        }
        let rings = suspects::rings(pid);
        to.extend(noticed(
            pid,
            &self.channels,
            &all,
            &new,
            rings.as_ref(),
            now,
        ));
    }

    /// Finds the notifiers in the process's memory. False where it cannot be read.
    fn search(&mut self, pid: u32) -> bool {
        let found = maps::areas(pid).and_then(|areas| {
            let memory = Memory::open(pid)?;
            let notifiers = notifier::notifiers(&memory, &areas);
            Ok((memory, notifiers))
        });
        match found {
            Ok((memory, notifiers)) => {
                self.notifiers = notifiers.iter().map(|n| n.address).collect();
                // They are in the order of their addresses.
                self.told
                    .retain(|at| self.notifiers.binary_search(at).is_ok());
                self.memory = Some(memory);
                true
            }
            Err(e) => {
                log::debug!("process {pid}: its error notifiers cannot be read: {e}");
                false
            }
        }
    }
}

/// The faults that new errors in notifiers show, one for each number and GPU. `all`: the notifiers of the process.
fn noticed(
    pid: u32,
    channels: &BTreeMap<ChannelId, Known>,
    all: &[Notifier],
    new: &[Notifier],
    rings: Option<&Rings>,
    now: Instant,
) -> Vec<Noticed> {
    let certain = are_certain(channels, all);
    let mut told: Vec<Noticed> = Vec::new();
    for n in new {
        let channel = channel_of(n, channels, all, rings);
        let of = channel.filter(|_| certain).map(|c| (c, channels.get(&c)));
        let (open, only_these) = match rings {
            Some(rings) => rings.suspects(channels, of, n.token),
            None => (Vec::new(), false),
        };
        let notice = Notice {
            channel,
            assumed: channel.is_some() && !certain,
            token: n.token,
            notification: n.notification,
            has_work: !open.is_empty(),
        };
        let code = n.error.unwrap_or(0);
        let gpu = channel.and_then(|c| channels.get(&c)?.gpu);
        let one = match told.iter().position(|t| t.code() == code && t.gpu() == gpu) {
            Some(at) => told.get_mut(at),
            None => {
                told.push(Noticed::new(of_notifiers(pid, code), gpu, now));
                told.last_mut()
            }
        };
        if let Some(one) = one {
            one.add(notice, open, only_these);
        }
    }
    told
}

/// Makes a fault with none of the facts that notifiers and rings have.
fn of_notifiers(pid: u32, code: u32) -> Fault {
    let at = At {
        time_ns: clock::now(),
        pid,
        tid: 0,
    };
    Fault::of_notifier(at, code)
}

/// Tells whether each channel's notifier is certain by its token. For this each channel's token must be known, no two channels may have
/// the same token, and each channel must have a notifier.
fn are_certain(channels: &BTreeMap<ChannelId, Known>, all: &[Notifier]) -> bool {
    channels.values().all(|c| {
        let with = |n: &&Notifier| Some(n.token) == c.token;
        let others = channels.values().filter(|o| o.token == c.token);
        c.is_certain && others.count() == 1 && all.iter().filter(with).count() == 1
    })
}

/// The channel of a notifier: by its token, else by the order of channels.
fn channel_of(
    n: &Notifier,
    channels: &BTreeMap<ChannelId, Known>,
    all: &[Notifier],
    rings: Option<&Rings>,
) -> Option<ChannelId> {
    if all.iter().filter(|o| o.token == n.token).count() == 1 {
        let mut with = channels.iter().filter(|(_, c)| c.token == Some(n.token));
        if let (Some((id, _)), None) = (with.next(), with.next()) {
            return Some(*id);
        }
    }
    rings?.channel_with(n.address, channels)
}

#[cfg(test)]
mod tests;
