//! The processes that use a GPU, and those to come, by looking at `/proc`: as seldom as will do.
//!
//! All processes are looked at once. From then on a round looks at
//! - those that were born since, soon after and again while they are young: a program opens the GPU in its first seconds;
//! - now and then the others ([`SWEEP`]), of which the size of the address space tells whether to look closer: nobody submits to a
//!   GPU without mapping its memory.
//!
//! Where the driver's modules count their open files (`opens`), rounds without a change there look at nobody. Who is told to have mapped
//! memory of a GPU ([`Census::told`]) is looked at at once.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use super::{Host, Uses, choice::Choice, opens::Opens, uses};
use crate::procfs::{self, births::Numbers, stat::Stat};
use crate::record::Identity;
use crate::source::clock;

/// Shortest time between two rounds.
const ROUND: Duration = Duration::from_millis(50);
/// Shortest time between two looks at those that are not young.
const SWEEP: Duration = Duration::from_secs(2);
/// The same where nothing shows that a file of the driver's was opened.
const QUIET_SWEEP: Duration = Duration::from_secs(30);
/// How long a process is young.
const YOUNG: Duration = Duration::from_secs(20);
/// Longest time between two rounds.
const LONGEST_ROUND: Duration = Duration::from_secs(1);
/// Who is told to have mapped memory of a GPU is looked at when it has mapped no more for this long, ...
const SETTLED: Duration = Duration::from_millis(2);
/// ... or at the latest after this time.
const AT_LATEST: Duration = Duration::from_millis(10);
/// What looking may cost: one part in so many of a core.
const PART: u32 = 400;

/// What a round found.
#[derive(Debug)]
pub(crate) enum Change {
    /// A chosen process uses a GPU.
    Came(Box<Found>),
    /// A chosen process that was told of uses other GPUs by now, or executes another program.
    Differs(Box<Found>),
    /// A process that was told of has ended; or one that was hidden may be looked into now, and is none of those that are meant.
    Went(u32),
    /// A process that may be meant may not be looked into, whether or not it uses a GPU; and why.
    Hidden(Box<Found>, String),
    /// A chosen process was told to have mapped memory of a GPU, and ended before it was looked at.
    Missed(Box<Found>),
}

/// A process that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Its id.
    pub pid: u32,
    /// Who it is.
    pub identity: Identity,
    /// It used a GPU already when the first round looked: what it did before is not known. The use of others began since the round
    /// before.
    pub was_there: bool,
    /// It has memory of a GPU mapped that it may write.
    pub can_submit: bool,
}

/// A process that was told to have mapped memory of a GPU.
#[derive(Debug)]
struct Mapping {
    first: Instant,
    last: Instant,
    /// Who it was then, as far as that could be read.
    identity: Identity,
}

/// What is known of a process.
#[derive(Debug)]
struct Known {
    /// When it began, clock ticks since the machine's start: another process may get its number.
    start: u64,
    /// Pages of its address space when it was last looked into.
    pages: u64,
    /// Until when it is young.
    young: Option<Instant>,
    was: Was,
}

/// What a process was at the last look.
#[derive(Debug, PartialEq)]
enum Was {
    /// It used no GPU, or was not chosen.
    None,
    /// It was told of.
    Told(Box<Identity>),
    /// It may not be looked into.
    Hidden {
        /// Which was told, as it may be meant.
        told: bool,
    },
}

impl Was {
    /// Whether its end is to be told, too.
    fn is_told(&self) -> bool {
        matches!(self, Was::Told(_) | Was::Hidden { told: true })
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    Duration::from_nanos(clock::read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0))
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Census {
    host: Host,
    choice: Choice,
    numbers: Numbers,
    opens: Opens,
    known: BTreeMap<u32, Known>,
    /// Those that were told to map memory of a GPU, until they are looked at.
    mapping: BTreeMap<u32, Mapping>,
    /// nvcap's own process.
    own: u32,
    look_into: fn(u32) -> io::Result<Uses>,
    first: bool,
    /// A file of the driver's may have been opened since the last sweep.
    opened: bool,
    next_round: Instant,
    next_sweep: Instant,
    swept: Instant,
}

impl Census {
    /// Of the chosen processes of a host.
    pub(crate) fn new(host: Host, choice: Choice) -> Self {
        let now = Instant::now();
        Self {
            host,
            choice,
            // Before the first look: who is born during it is fresh.
            numbers: Numbers::new(),
            opens: Opens::new(),
            known: BTreeMap::new(),
            mapping: BTreeMap::new(),
            own: std::process::id(),
            look_into: uses::of_process,
            first: true,
            opened: true,
            next_round: now,
            next_sweep: now,
            swept: now,
        }
    }

    /// When the next round is due.
    pub(crate) fn next(&self) -> Instant {
        self.next_round
    }

    /// How many processes are known, whether or not they use a GPU.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// A round: what has changed since the one before.
    pub(crate) fn round(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if std::mem::take(&mut self.first) {
            self.sweep(true, &mut changes);
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

    /// These were told to have mapped memory of a GPU since the last call; with `lost`, others may have. What has changed by that.
    #[cfg_attr(not(feature = "trap"), expect(dead_code))]
    pub(crate) fn told(&mut self, pids: &[u32], lost: bool) -> Vec<Change> {
        let (mut changes, now) = (Vec::new(), Instant::now());
        if lost {
            (self.opened, self.next_sweep) = (true, now);
        }
        for pid in pids {
            if let Some(mapping) = self.mapping.get_mut(pid) {
                mapping.last = now;
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
            let identity = self.host.identity(*pid, &Uses::default());
            let mapping = Mapping {
                first: now,
                last: now,
                identity: identity.unwrap_or_default(),
            };
            self.mapping.insert(*pid, mapping);
        }
        let is_due = |m: &Mapping| now >= m.last + SETTLED || now >= m.first + AT_LATEST;
        let due = self.mapping.iter().filter(|(_, m)| is_due(m));
        for pid in due.map(|(pid, _)| *pid).collect::<Vec<u32>>() {
            let Some(Mapping { identity, .. }) = self.mapping.remove(&pid) else {
                continue;
            };
            if !procfs::has_ended(pid) {
                self.look(pid, false, &mut changes);
            }
            let was = self.known.get(&pid).map(|k| &k.was);
            let is_seen = matches!(was, Some(Was::Told(_) | Was::Hidden { .. }));
            if !is_seen && procfs::has_ended(pid) && self.choice.takes_beside_gpus(&identity) {
                changes.push(Change::Missed(Box::new(Found {
                    pid,
                    identity,
                    was_there: false,
                    can_submit: true,
                })));
            }
        }
        changes
    }

    /// Looks at those that were born of late.
    fn look_at_young(&mut self, now: Instant, changes: &mut Vec<Change>) {
        let changed = self.opens.may_have_changed();
        self.opened |= changed;
        for pid in self.numbers.fresh() {
            // Threads have numbers too, and are no processes; one that is gone is of no concern.
            if let Ok(stat) = Stat::of_process(pid)
                && procfs::process_of(pid) == Some(pid)
            {
                self.born(pid, stat.start.unwrap_or(0), Some(now + YOUNG), changes);
            }
        }
        if !changed {
            return;
        }
        let young = |k: &Known| k.young.is_some_and(|until| until > now);
        let young = self.known.iter().filter(|(_, k)| young(k));
        for pid in young.map(|(pid, _)| *pid).collect::<Vec<u32>>() {
            self.look_if_grown(pid, false, changes);
        }
    }

    /// A process with this number is new, or the number is another process's now.
    fn born(&mut self, pid: u32, start: u64, young: Option<Instant>, changes: &mut Vec<Change>) {
        let known = Known {
            start,
            pages: 0,
            young,
            was: Was::None,
        };
        if let Some(before) = self.known.insert(pid, known)
            && before.was.is_told()
        {
            changes.push(Change::Went(pid));
        }
    }

    /// Looks at all, and forgets those that have ended.
    fn sweep(&mut self, first: bool, changes: &mut Vec<Change>) {
        let begun = cpu();
        let mut all = procfs::processes();
        all.sort_unstable();
        let gone = |pid: &u32| all.binary_search(pid).is_err();
        let gone: Vec<u32> = self.known.keys().copied().filter(gone).collect();
        for pid in gone {
            let known = self.known.remove(&pid);
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

    /// Looks into a process whose address space is another than at the last look.
    fn look_if_grown(&mut self, pid: u32, first: bool, changes: &mut Vec<Change>) {
        let pages = procfs::pages(pid);
        let Some(known) = self.known.get_mut(&pid) else {
            return;
        };
        // None: a thread of the kernel's, or a process that is ending.
        if pages == 0 || pages == known.pages || pid == self.own {
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
        let (uses, hidden) = match (self.look_into)(pid) {
            Ok(uses) => (uses, None),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                (Uses::default(), Some(e.to_string()))
            }
            // It has ended.
            Err(_) => return,
        };
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
            Box::new(Found {
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
            known.was = Was::Hidden { told };
            if is_meant {
                changes.push(Change::Hidden(found(&identity), why));
            }
            return;
        }
        match &known.was {
            Was::Told(before) if **before == identity => return,
            Was::Told(_) => changes.push(Change::Differs(found(&identity))),
            Was::None | Was::Hidden { .. } if self.choice.takes(&identity) => {
                changes.push(Change::Came(found(&identity)));
            }
            Was::None | Was::Hidden { .. } => {
                self.shown(pid, changes);
                return;
            }
        }
        known.was = Was::Told(Box::new(identity));
    }

    /// A process may be looked into, and is none that is meant: if it was told of as hidden, that is over.
    fn shown(&mut self, pid: u32, changes: &mut Vec<Change>) {
        if let Some(known) = self.known.get_mut(&pid)
            && let Was::Hidden { told } = known.was
        {
            known.was = Was::None;
            if told {
                changes.push(Change::Went(pid));
            }
        }
    }

    /// nvcap itself, and what it started.
    fn is_own(&self, pid: u32) -> bool {
        let parent = |pid: &u32| Stat::of_process(*pid).ok()?.parent.filter(|p| *p > 1);
        let mut forebears = std::iter::successors(Some(pid), parent).take(64);
        forebears.any(|p| p == self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::sync::Mutex;
    use std::thread::sleep;

    /// Processes that are said to use GPU 3, and those that are said not to be for everybody's eyes.
    static USING: Mutex<(Vec<u32>, Vec<u32>)> = Mutex::new((Vec::new(), Vec::new()));

    fn said(pid: u32) -> io::Result<Uses> {
        let (using, hidden) = &*USING.lock().unwrap();
        if hidden.contains(&pid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Uses {
            gpus: using.contains(&pid).then_some(3).into_iter().collect(),
            mapped: true,
        })
    }

    fn child() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    /// Rounds until something of these processes changes.
    fn changes_of(census: &mut Census, pids: &[u32]) -> Vec<Change> {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            let mut all = census.round();
            all.retain(|c| {
                let (Change::Came(f) | Change::Differs(f) | Change::Hidden(f, _)) = c else {
                    return matches!(c, Change::Went(pid) if pids.contains(pid));
                };
                pids.contains(&f.pid)
            });
            if !all.is_empty() {
                return all;
            }
            sleep(Duration::from_millis(20));
        }
        Vec::new()
    }

    #[test]
    fn processes_that_come_and_go() {
        let (mut old, mut other) = (child(), child());
        USING.lock().unwrap().0.push(old.id());
        let choice = Choice {
            comm: vec!["sleep".into()],
            ..Choice::default()
        };
        let mut census = Census::new(Host::new(std::path::Path::new("/")), choice);
        census.look_into = said;
        // They are children of this one.
        census.own = u32::MAX;
        let first = changes_of(&mut census, &[old.id(), other.id()]);
        assert!(
            matches!(&first[..], [Change::Came(f)] if f.pid == old.id() && f.was_there && f.identity.gpus[0].minor == 3),
            "{first:?}"
        );
        assert!(census.len() > 2);
        let mut new = child();
        let mut hidden = child();
        USING.lock().unwrap().0.push(new.id());
        USING.lock().unwrap().1.push(hidden.id());
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let more = changes_of(&mut census, &[new.id(), hidden.id()]);
            assert!(!more.is_empty(), "{seen:?}");
            seen.extend(more);
        }
        for change in &seen {
            match change {
                Change::Came(f) => assert!(f.pid == new.id() && !f.was_there),
                Change::Hidden(f, why) => {
                    assert!(f.pid == hidden.id() && f.identity.comm == "sleep");
                    assert_eq!(why, "permission denied");
                }
                other => panic!("{other:?}"),
            }
        }
        for child in [&mut old, &mut other, &mut new, &mut hidden] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mut gone = Vec::new();
        census.next_sweep = Instant::now();
        while gone.len() < 3 {
            let more = changes_of(&mut census, &[old.id(), new.id(), other.id(), hidden.id()]);
            assert!(!more.is_empty(), "{gone:?}");
            gone.extend(more);
        }
        let told = [old.id(), new.id(), hidden.id()];
        assert!(
            gone.iter()
                .all(|c| matches!(c, Change::Went(pid) if told.contains(pid))),
            "{gone:?}"
        );
    }

    /// What was hidden, may be looked into later, and uses no GPU, is told of as gone.
    #[test]
    fn what_was_hidden_and_uses_none() {
        let mut child = child();
        let mut census = Census::new(Host::new(std::path::Path::new("/")), Choice::default());
        census.own = u32::MAX;
        census.look_into = |_| Err(io::ErrorKind::PermissionDenied.into());
        let first = census.round();
        let is_hidden = |c: &Change| matches!(c, Change::Hidden(f, _) if f.pid == child.id());
        assert_eq!(first.iter().filter(|c| is_hidden(c)).count(), 1);
        census.look_into = |_| Ok(Uses::default());
        for goes in [true, false] {
            let mut changes = Vec::new();
            census.look(child.id(), false, &mut changes);
            let went = matches!(&changes[..], [Change::Went(pid)] if *pid == child.id());
            assert!(
                went == goes && changes.len() == usize::from(goes),
                "{changes:?}"
            );
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn nvcap_s_own_are_none_of_them() {
        let mut child = child();
        let mut census = Census::new(Host::new(std::path::Path::new("/")), Choice::default());
        census.look_into = |_| {
            Ok(Uses {
                gpus: [0].into(),
                mapped: true,
            })
        };
        let first = census.round();
        let came = |pid: u32| {
            first
                .iter()
                .any(|c| matches!(c, Change::Came(f) if f.pid == pid))
        };
        assert!(!came(child.id()) && !came(std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
