//! The processes that use a GPU now, and those that begin to. They are found by looking at `/proc` as seldom as possible.
//!
//! The first round looks at all processes. Each later round looks at
//! - processes that were born since, soon after their birth and repeatedly while they are young, because a program opens the GPU in its
//!   first seconds;
//! - now and then all others (`SWEEP`). The size of the address space tells whether to look closer, because nobody submits to a GPU without
//!   mapping its memory.
//!
//! If the driver's modules count their open files (`opens`), a round without a change of the counts looks at no process. A process that the
//! kernel reports to have mapped memory of a GPU ([`Census::told`]) is looked at immediately. If the kernel does not report mappings,
//! processes that came and ended unseen are counted (`brief`).

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::{Duration, Instant},
};

use super::{Host, Uses, choice::Choice, driver_users, opens::Opens, sight::Hidden, uses};
use crate::clock;
use crate::procfs::{self, births::Numbers, stat::Stat};
use brief::Unseen;
use nvcap_decode::record::Identity;

mod brief;

/// Shortest time between two rounds.
const ROUND: Duration = Duration::from_millis(50);
/// Shortest time between two looks at the processes that are not young.
const SWEEP: Duration = Duration::from_secs(2);
/// Shortest time between two looks at the processes that are not young, if nothing shows that a file of the driver's was opened.
const QUIET_SWEEP: Duration = Duration::from_secs(30);
/// Age up to which a process is young.
const YOUNG: Duration = Duration::from_secs(20);
/// Longest time between two rounds.
const LONGEST_ROUND: Duration = Duration::from_secs(1);
/// Time without a further mapping after which a process that mapped memory of a GPU is looked at.
const SETTLED: Duration = Duration::from_millis(2);
/// Longest time from the first mapping of such a process to that look.
const AT_LATEST: Duration = Duration::from_millis(10);
/// Divisor of a core's time: looking may cost one part in this number.
const PART: u32 = 400;

/// Change that a round found.
#[derive(Debug)]
pub enum Change {
    /// A chosen process uses a GPU.
    Came(Box<GpuProcess>),
    /// A chosen process that was reported now uses other GPUs, or executes another program.
    Differs(Box<GpuProcess>),
    /// A process that was reported has ended; or a hidden process may now be looked into, and is not a chosen one.
    Went(u32),
    /// A process that may be a chosen one may not be looked into, whether or not it uses a GPU; with the reason.
    Hidden(Box<GpuProcess>, String),
    /// A process mapped memory of a GPU, and ended before it was looked at. It is a chosen one, or it ended before its identity could be
    /// read; its name is then empty.
    Missed(Box<GpuProcess>),
    /// Some reports of mappings were lost, so a process that used a GPU for some milliseconds may not be known. Reported once.
    NotAllTold,
    /// Processes that may be chosen ones were not seen, for this reason.
    NotSeen(String),
}

/// A process that was found.
#[derive(Clone, Debug)]
pub struct GpuProcess {
    /// Process id.
    pub pid: u32,
    /// Identity of the process.
    pub identity: Identity,
    /// True if the process already used a GPU at the first round, so that its earlier use is not known. Other processes began to use a GPU
    /// after the round before the one that found them.
    pub was_there: bool,
    /// True if the process has mapped memory of a GPU with the right to write, or the kernel reported such a mapping.
    pub can_submit: bool,
}

/// A process that the kernel reported to have mapped memory of a GPU.
#[derive(Debug)]
struct Mapping {
    first: Instant,
    last: Instant,
    gpus: BTreeSet<u32>,
    /// The process's identity when the mapping was reported; `None` if the process had ended before its identity was read.
    identity: Option<Identity>,
}

/// Entry of a known process.
#[derive(Debug)]
struct Known {
    /// Start of the process, clock ticks since the machine's start. It distinguishes a process from a later one with the same number.
    start: u64,
    /// Number of pages of the address space when it was last looked into.
    pages: u64,
    /// Time until which the process is young.
    young: Option<Instant>,
    was: Was,
}

/// State of a process at the last look.
#[derive(Debug, PartialEq)]
enum Was {
    /// The process used no GPU, or was not chosen.
    None,
    /// The process was reported.
    Told(Box<Identity>),
    /// The process may not be looked into, and the driver reported that it used no GPU.
    Unused,
    /// The process may not be looked into.
    Hidden {
        /// True if the process was reported because it may be a chosen one.
        told: bool,
    },
}

impl Was {
    /// Tells whether the process's end must be reported, too.
    fn is_told(&self) -> bool {
        matches!(self, Was::Told(_) | Was::Hidden { told: true })
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    Duration::from_nanos(clock::thread_cpu())
}

/// The processes that use a GPU, as of the last round.
#[derive(Debug)]
pub struct Census {
    host: Host,
    choice: Choice,
    numbers: Numbers,
    opens: Opens,
    known: BTreeMap<u32, Known>,
    /// Processes that the kernel reported to map memory of a GPU, until they are looked at.
    mapping: BTreeMap<u32, Mapping>,
    /// Process id of nvcap itself.
    own: u32,
    look_into: fn(u32) -> io::Result<Uses>,
    /// Question to the driver: which processes use a GPU.
    ask_driver: fn() -> Option<BTreeSet<u32>>,
    /// The driver's answer in this look at the young processes, or in this sweep, if it was asked.
    answer: Option<Option<BTreeSet<u32>>>,
    first: bool,
    /// True if a file of the driver's may have been opened since the last sweep.
    opened: bool,
    /// True once [`Change::NotAllTold`] was reported.
    not_all_told: bool,
    hidden: Hidden,
    /// Processes that came and ended unseen, if the kernel does not report mappings.
    unseen: Option<Unseen>,
    next_round: Instant,
    next_sweep: Instant,
    swept: Instant,
}

impl Census {
    /// Makes a census of the chosen processes of a host.
    pub fn new(mut host: Host, choice: Choice) -> Self {
        let now = Instant::now();
        Self {
            hidden: host.hidden(&choice),
            unseen: None,
            host,
            choice,
            // This precedes the first look: a process born during the look is fresh.
            numbers: Numbers::new(),
            opens: Opens::new(),
            known: BTreeMap::new(),
            mapping: BTreeMap::new(),
            own: std::process::id(),
            look_into: uses::of_process,
            ask_driver: || None,
            answer: None,
            first: true,
            opened: true,
            not_all_told: false,
            next_round: now,
            next_sweep: now,
            swept: now,
        }
    }

    /// Counts processes that come and end between two looks, because the kernel does not report mappings.
    pub fn looks_alone(mut self) -> Self {
        self.unseen = Some(Unseen::default());
        self
    }

    /// Asks the driver which of the processes that may not be looked into use a GPU. This does not find a process that uses a GPU only
    /// between two questions; the kernel must report it ([`Census::told`]).
    #[must_use]
    pub fn asks_driver(mut self) -> Self {
        self.ask_driver = driver_users::ask;
        self
    }

    /// Returns the time at which the next round is due.
    pub fn next(&self) -> Instant {
        self.next_round
    }

    /// Returns the number of processes that are known, whether or not they use a GPU.
    #[expect(
        clippy::len_without_is_empty,
        reason = "nobody asks whether there is none"
    )]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Makes a round. Returns the changes since the previous round.
    pub fn round(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if std::mem::take(&mut self.first) {
            self.sweep(true, &mut changes);
            changes.extend(self.hidden.said.take().map(Change::NotSeen));
            if self.unseen.is_some() && !self.numbers.tells_all() {
                changes.push(Change::NotSeen(brief::NO_NUMBERS.to_owned()));
            }
            return changes;
        }
        let begun = cpu();
        let now = Instant::now();
        self.look_at_young(now, &mut changes);
        let cost = cpu().saturating_sub(begun);
        self.next_round = Instant::now() + (cost * PART).clamp(ROUND, LONGEST_ROUND);
        if self.opened && now >= self.next_sweep || now >= self.swept + QUIET_SWEEP {
            self.sweep(false, &mut changes);
        }
        changes
    }

    /// Takes the kernel's reports since the last call: pairs of a process and a GPU whose memory it mapped. With `lost`, other reports were lost.
    /// Returns the changes that follow.
    pub fn told(&mut self, by: &[(u32, u32)], lost: bool, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        self.opened |= lost;
        if lost && !std::mem::replace(&mut self.not_all_told, true) {
            changes.push(Change::NotAllTold);
        }
        for (pid, gpu) in by {
            if let Some(mapping) = self.mapping.get_mut(pid) {
                mapping.last = now;
                mapping.gpus.insert(*gpu);
                continue;
            }
            let start = Stat::of_process(*pid).ok().and_then(|s| s.start);
            let known = self.known.get(pid);
            let is_known = known.is_some_and(|k| start.is_none_or(|start| k.start == start));
            if is_known && known.is_some_and(|k| matches!(k.was, Was::Told(_))) || self.is_own(*pid)
            {
                continue;
            }
            if let Some(start) = start.filter(|_| !is_known) {
                self.born(*pid, start, Some(now + YOUNG), &mut changes);
            }
            let mapping = Mapping {
                first: now,
                last: now,
                gpus: [*gpu].into(),
                identity: self.host.identity(*pid, &Uses::default()).ok(),
            };
            self.mapping.insert(*pid, mapping);
        }
        let is_due = |m: &Mapping| now >= m.last + SETTLED || now >= m.first + AT_LATEST;
        let due = self.mapping.iter().filter(|(_, m)| is_due(m));
        for pid in due.map(|(pid, _)| *pid).collect::<Vec<u32>>() {
            let Some(mapping) = self.mapping.remove(&pid) else {
                continue;
            };
            if !procfs::has_ended(pid) {
                let before = changes.len();
                // The process has mapped memory of a GPU, whichever processes use one now.
                self.answer = Some(None);
                self.look(pid, false, &mut changes);
                self.answer = None;
                for change in &mut changes[before..] {
                    if let Change::Came(found) = change {
                        // The process may have given that memory up since.
                        found.can_submit = true;
                    }
                }
            }
            let was = self.known.get(&pid).map(|k| &k.was);
            let is_seen = matches!(was, Some(Was::Told(_) | Was::Hidden { .. }));
            let gpus = self.host.used(mapping.gpus);
            // If nothing could be read of the process, it is not known whether it is chosen.
            let who = mapping.identity.as_ref();
            let is_meant = self.choice.takes_gpus(&gpus)
                && who.is_none_or(|who| self.choice.takes_beside_gpus(who));
            if !is_seen && procfs::has_ended(pid) && is_meant {
                let identity = mapping.identity.unwrap_or_default();
                changes.push(Change::Missed(Box::new(GpuProcess {
                    pid,
                    identity: Identity { gpus, ..identity },
                    was_there: false,
                    can_submit: true,
                })));
            }
        }
        changes
    }

    /// Looks for processes that were born since the last call, and returns the changes. It must be called often, so that few processes come
    /// and end in between.
    pub fn births(&mut self, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        self.look_at_born(now, &mut changes);
        self.look_at_brief(now, &mut changes);
        changes
    }

    /// Looks a last time when the trace ends: at the young processes, and at all processes if a file of the driver's may have been opened.
    pub fn last(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        self.look_at_young(Instant::now(), &mut changes);
        if self.opened {
            self.sweep(false, &mut changes);
        }
        changes
    }

    /// Finds the processes that were born, and whether a file of the driver's may have been opened.
    fn look_at_born(&mut self, now: Instant, changes: &mut Vec<Change>) -> bool {
        let changed = self.opens.may_have_changed();
        self.opened |= changed;
        let fresh = self.numbers.fresh();
        if let Some(unseen) = &mut self.unseen
            && unseen.polled(changed, now)
            // A number without a process may be that of a hidden process.
            && !self.hidden.any
        {
            let given = self.numbers.given();
            let gone = given.filter(|pid| !procfs::exists(*pid)).count();
            unseen.gone(gone as u64);
        }
        for pid in fresh {
            // Threads have numbers, too, and are no processes.
            if let Ok(stat) = Stat::of_process(pid)
                && procfs::process_of(pid) == Some(pid)
            {
                self.born(pid, stat.start.unwrap_or(0), Some(now + YOUNG), changes);
                self.is_brief(pid, &stat, now);
            }
        }
        changed
    }

    /// Counts a new process as brief until it has lived for a while.
    fn is_brief(&mut self, pid: u32, stat: &Stat, now: Instant) {
        let is_none = self.known.get(&pid).is_some_and(|k| k.was == Was::None);
        if !is_none || stat.is_of_kernel() || self.is_own(pid) {
            return;
        }
        if let Some(unseen) = &mut self.unseen {
            unseen.born(pid, now);
        }
    }

    /// Counts the brief processes that have ended, and reads the users of the others.
    fn look_at_brief(&mut self, now: Instant, changes: &mut Vec<Change>) {
        let Some(unseen) = &mut self.unseen else {
            return;
        };
        for pid in unseen.brief() {
            if self.known.get(&pid).is_none_or(|k| k.was != Was::None) {
                unseen.forget(pid);
            } else if procfs::has_ended(pid) {
                unseen.ended(pid, &self.choice);
            } else if !self.choice.user.is_empty() {
                let uids = procfs::status(pid, "Uid");
                let uid = uids.and_then(|u| u.split_whitespace().next()?.parse().ok());
                let user = uid.and_then(|uid| self.host.user(uid));
                unseen.is_of(pid, uid, user, now);
            }
        }
        unseen.forget_old(now);
        changes.extend(unseen.said().map(Change::NotSeen));
    }

    /// Looks at the processes that were born recently.
    fn look_at_young(&mut self, now: Instant, changes: &mut Vec<Change>) {
        self.answer = None;
        if self.look_at_born(now, changes) {
            let young = |k: &Known| k.young.is_some_and(|until| until > now);
            let young = self.known.iter().filter(|(_, k)| young(k));
            for pid in young.map(|(pid, _)| *pid).collect::<Vec<u32>>() {
                self.look_if_grown(pid, false, changes);
            }
        }
        self.look_at_brief(now, changes);
    }

    /// Enters a new process, or a process that has the number of an earlier one. Facts that a report or a sweep gave about this process
    /// before its number was read are kept.
    fn born(&mut self, pid: u32, start: u64, young: Option<Instant>, changes: &mut Vec<Change>) {
        if let Some(known) = self.known.get_mut(&pid)
            && start != 0
            && known.start == start
        {
            known.young = known.young.max(young);
            return;
        }
        let known = Known {
            start,
            pages: 0,
            young,
            was: Was::None,
        };
        if let Some(before) = self.known.insert(pid, known) {
            if let Some(unseen) = &mut self.unseen {
                unseen.ended(pid, &self.choice);
            }
            if before.was.is_told() {
                changes.push(Change::Went(pid));
            }
        }
    }

    /// Looks at all processes, and forgets those that have ended.
    fn sweep(&mut self, first: bool, changes: &mut Vec<Change>) {
        let begun = cpu();
        self.answer = None;
        let mut all = procfs::processes();
        all.sort_unstable();
        let gone = |pid: &u32| all.binary_search(pid).is_err();
        let gone: Vec<u32> = self.known.keys().copied().filter(gone).collect();
        for pid in gone {
            let known = self.known.remove(&pid);
            if let Some(unseen) = &mut self.unseen {
                unseen.ended(pid, &self.choice);
            }
            if known.is_some_and(|k| k.was.is_told()) {
                changes.push(Change::Went(pid));
            }
        }
        for pid in all {
            if !self.known.contains_key(&pid) {
                let start = Stat::of_process(pid).ok().and_then(|s| s.start);
                self.born(pid, start.unwrap_or(0), None, changes);
            }
            self.look_if_grown(pid, first, changes);
        }
        let cost = cpu().saturating_sub(begun);
        self.opened = false;
        self.swept = Instant::now();
        self.next_sweep = self.swept + (cost * PART).clamp(SWEEP, QUIET_SWEEP);
    }

    /// Looks into a process whose address space has changed its size since the last look.
    fn look_if_grown(&mut self, pid: u32, first: bool, changes: &mut Vec<Change>) {
        let pages = procfs::pages(pid);
        let Some(known) = self.known.get_mut(&pid) else {
            return;
        };
        // No pages: a thread of the kernel's, or a process that is ending.
        if pages == 0 || pages == known.pages && known.was != Was::Unused || pid == self.own {
            return;
        }
        known.pages = pages;
        let start = Stat::of_process(pid)
            .ok()
            .and_then(|s| s.start)
            .unwrap_or(0);
        if start != known.start {
            self.born(pid, start, None, changes);
        }
        self.look(pid, first, changes);
    }

    fn look(&mut self, pid: u32, first: bool, changes: &mut Vec<Change>) {
        let opens = self.unseen.as_ref().map_or(0, Unseen::opens);
        let (uses, hidden) = match (self.look_into)(pid) {
            Ok(uses) => (uses, None),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                (Uses::default(), Some(e.to_string()))
            }
            // The process has ended.
            Err(_) => return,
        };
        if let Some(unseen) = &mut self.unseen {
            unseen.looked(pid, opens);
        }
        if !uses.any() && hidden.is_none() {
            self.shown(pid, changes);
            return;
        }
        if self.is_own(pid) {
            return;
        }
        let Ok(identity) = self.host.identity(pid, &uses) else {
            return;
        };
        let found = |identity: &Identity| {
            Box::new(GpuProcess {
                pid,
                identity: identity.clone(),
                was_there: first,
                can_submit: uses.mapped,
            })
        };
        let Some(known) = self.known.get_mut(&pid) else {
            return;
        };
        if let Some(why) = hidden {
            if matches!(known.was, Was::Hidden { .. }) {
                return;
            }
            let is_meant = self.choice.takes_beside_gpus(&identity);
            let told = is_meant || known.was.is_told();
            let answer = self.answer.get_or_insert_with(self.ask_driver);
            if !known.was.is_told() && answer.as_ref().is_some_and(|users| !users.contains(&pid)) {
                known.was = Was::Unused;
                return;
            }
            known.was = Was::Hidden { told };
            if is_meant {
                changes.push(Change::Hidden(found(&identity), why));
            }
            return;
        }
        match &known.was {
            Was::Told(before) if **before == identity => return,
            Was::Told(_) => changes.push(Change::Differs(found(&identity))),
            Was::None | Was::Unused | Was::Hidden { .. } if self.choice.takes(&identity) => {
                changes.push(Change::Came(found(&identity)));
            }
            Was::None | Was::Unused | Was::Hidden { .. } => {
                self.shown(pid, changes);
                return;
            }
        }
        known.was = Was::Told(Box::new(identity));
    }

    /// Records that a process may be looked into and is not a chosen one. If it was reported as hidden, that report is withdrawn.
    fn shown(&mut self, pid: u32, changes: &mut Vec<Change>) {
        if let Some(known) = self.known.get_mut(&pid)
            && matches!(known.was, Was::Hidden { .. } | Was::Unused)
        {
            let was = std::mem::replace(&mut known.was, Was::None);
            if was.is_told() {
                changes.push(Change::Went(pid));
            }
        }
    }

    /// Tells whether a process is nvcap itself, or one that nvcap started.
    fn is_own(&self, pid: u32) -> bool {
        let parent = |pid: &u32| Stat::of_process(*pid).ok()?.parent.filter(|p| *p > 1);
        let mut forebears = std::iter::successors(Some(pid), parent).take(64);
        forebears.any(|p| p == self.own)
    }
}

#[cfg(test)]
mod tests;
