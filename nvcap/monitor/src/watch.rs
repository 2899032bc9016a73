//! `nvcap watch`: waits for processes whose channels stand still though they have work.
//!
//! Once a second GP_GET and GP_PUT of every known channel are read, 8 bytes each; no breakpoint, no BPF, no stop. Only where
//! nothing has moved for a while a look is taken ([`crate::dump`]), which tells whether there is unfinished work, and another
//! one when the time is over. Nothing moved between the two, and there is work: a hang.
//!
//! Beside that the channels' error notifiers are read, and the kernel's log: an error is looked at at once (the module `errors`).

mod allowance;
mod errors;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use crate::dump::{self, DumpOptions, Look, Refused, xids::Xids};
use allowance::{Allowance, Whose};
use errors::{Failing, Log, Notifiers, Told, hold, is_stopped};
use nvcap_decode::hang::{self, Progress, Report, State, xid::REMOVAL};
use nvcap_decode::record::{Fault, Xid};
use nvcap_process::exit_hold::ExitHold;
use nvcap_process::host::{choice::Whom, gpu_processes};
use nvcap_process::procfs::{
    self,
    mem::{Memory, ReadMemory},
};
use nvcap_show::output::message::tell;

/// Offset of GP_GET and GP_PUT in USERD, bytes.
const GP_GET: u64 = 0x88;
/// Time between two searches for processes that use a GPU.
const SEARCH: Duration = Duration::from_secs(10);
/// Longest time between two looks for errors while a process is being looked at.
const BESIDE: Duration = Duration::from_millis(50);
/// Divisor of the time that makes a hang: a first look is taken when that part of it has passed since the last movement.
const FIRST: u32 = 8;

/// Reason why a look is worth keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing moved for the time that was asked for, and there is work.
    Hang,
    /// The driver has stopped a channel of the process, or has written an Xid message about it.
    Error,
}

/// A process that hangs or has failed.
#[derive(Debug)]
pub struct Finding {
    /// The process; 0 of an error of a GPU whose process no message names.
    pub pid: u32,
    /// Reason why the look is worth keeping.
    pub cause: Cause,
    /// The process's name, where it is known.
    pub name: Option<String>,
    /// The error.
    pub fault: Option<Box<Fault>>,
    /// The look at it; without the process where it had ended before.
    pub report: Report,
    /// Progress since the earlier look, if there was one.
    pub moved: Option<Progress>,
    /// Hold of the process's end while this lives, for a limited time.
    pub hold: Option<ExitHold>,
}

/// Times at which one process is to be looked at.
#[derive(Clone, Debug)]
struct Pace {
    /// The time without movement that makes a hang.
    limit: Duration,
    /// The last movement.
    moved: Instant,
    /// The last look since then.
    looked: Option<Instant>,
}

impl Pace {
    fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            moved: now,
            looked: None,
        }
    }

    /// Notes that something moved.
    fn moves(&mut self, now: Instant) {
        *self = Self::new(self.limit, now);
    }

    /// Tells whether to look now: soon after the last movement, then each time the limit is over.
    fn is_due(&self, now: Instant) -> bool {
        match self.looked {
            None => now.duration_since(self.moved) >= self.limit / FIRST,
            Some(before) => now.duration_since(before) >= self.limit,
        }
    }
}

/// A watched process.
#[derive(Debug)]
struct Watched {
    name: Option<String>,
    memory: Memory,
    /// USERD of its channels, and GP_GET and GP_PUT of each at the last reading.
    channels: Vec<(u64, Option<u64>)>,
    /// GPUs of its channels, as far as they are known.
    gpus: BTreeSet<u32>,
    pace: Pace,
    /// The last look, with unfinished work.
    before: Option<(Instant, Report)>,
    /// True if it was told that the process hangs, and it has not moved since.
    told: bool,
    notifiers: Notifiers,
}

impl Watched {
    /// Reads its channels, and tells whether one moved.
    fn has_moved(&mut self) -> bool {
        let mut moved = false;
        for (userd, old) in &mut self.channels {
            let now = self.memory.word(*userd + GP_GET).ok();
            moved |= now != *old;
            *old = now;
        }
        moved
    }

    /// Tells whether none of its channels is there any more, as after the execution of another program.
    fn is_gone(&self) -> bool {
        let mut words =
            { self.channels.iter() }.map(|(userd, _)| self.memory.word(*userd + GP_GET));
        !self.channels.is_empty() && words.all(|word| word.is_err())
    }

    /// Takes the channels of a look as those that are read from now on.
    fn take_channels(&mut self, report: &Report) {
        let facts = report.processes.iter().flat_map(|p| &p.channels);
        self.channels = facts.map(|f| (f.userd.0, None)).collect();
        let known = report.rings.channels.iter().filter_map(|c| c.gpu);
        self.gpus.extend(known);
        self.has_moved();
    }
}

/// Tells whether there is unfinished work.
fn has_work(report: &Report) -> bool {
    let mut channels = report.analysis.channels.iter();
    channels.any(|c| c.state != State::Idle)
}

/// The watch.
#[derive(Debug)]
pub struct Watch {
    whom: Whom,
    /// The time without movement that makes a hang; none where no hang is waited for.
    limit: Option<Duration>,
    options: DumpOptions,
    /// Options of looks whose reports are not shown: without stacks, which take most of a look's time.
    quick: DumpOptions,
    processes: BTreeMap<u32, Watched>,
    searched: Option<Instant>,
    log: Log,
    /// Errors that were told a short time ago.
    told: Told,
    allowance: Allowance,
    /// Errors that are still to be looked at.
    failing: VecDeque<Failing>,
    /// Messages without a process's id that are still to be dealt with.
    unnamed: Vec<Xid>,
    /// Findings that wait to be taken.
    ready: VecDeque<Finding>,
    /// Processes of which it was told that they may not be looked into.
    refused: BTreeSet<u32>,
    /// Number of processes of which it is not known whether they use a GPU, by the last search.
    hidden: usize,
    /// Processes that have ended while no kernel log told of errors, until they are taken.
    unread: Vec<u32>,
}

impl Watch {
    /// Begins a watch. `limit` is the time without movement that makes a hang; without it errors alone are waited for. `xids` is the kernel log,
    /// where it can be read; what is in it already is passed over.
    pub fn new(
        whom: Whom,
        limit: Option<Duration>,
        options: DumpOptions,
        xids: Option<Xids>,
    ) -> Self {
        Self {
            whom,
            limit,
            quick: DumpOptions {
                stacks: false,
                ..options.clone()
            },
            options,
            processes: BTreeMap::new(),
            searched: None,
            log: Log::new(xids),
            told: Told::default(),
            allowance: Allowance::new(Instant::now()),
            failing: VecDeque::new(),
            unnamed: Vec::new(),
            ready: VecDeque::new(),
            refused: BTreeSet::new(),
            hidden: 0,
            unread: Vec::new(),
        }
    }

    /// Returns the number of processes that may not be looked into, whether or not they use a GPU: they are not watched.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Takes the processes that have ended since the last call and whose last error nobody has told: their notifiers were read before they ended, and
    /// the kernel log cannot be read.
    pub fn take_unread(&mut self) -> Vec<u32> {
        self.forget_ended();
        std::mem::take(&mut self.unread)
    }

    /// Returns the number of processes that are watched.
    #[expect(
        clippy::len_without_is_empty,
        reason = "nobody asks whether there is none"
    )]
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Tells whether all processes that were named have ended.
    pub fn is_over(&self) -> bool {
        match &self.whom {
            Whom::Named(pids) => pids.iter().all(|pid| procfs::has_ended(*pid)),
            Whom::All(..) => false,
        }
    }

    /// Waits until the kernel logs something, at most for `pause`.
    pub fn wait(&self, pause: Duration) {
        self.log.wait(pause);
    }

    /// One round: reads the channels, looks where it is due. [`next_finding`](Self::next_finding) gives what came of it.
    ///
    /// # Errors
    /// When a process that was named may not be read, in the first round.
    pub fn round(&mut self, now: Instant) -> Result<(), (u32, io::Error)> {
        let messages = self.log.take(now);
        let holds = self.hold_strangers(&messages);
        let is_due = |s: Instant| now.duration_since(s) >= SEARCH;
        let mut named = messages.iter().filter_map(Xid::process);
        // A process that has an error may be new.
        if self.searched.is_none_or(is_due) || named.any(|pid| !self.processes.contains_key(&pid)) {
            self.search(now)?;
            self.searched = Some(now);
        }
        self.failed(messages, holds, now);
        self.failed_without_name(now);
        if self.limit.is_some() {
            let pids: Vec<u32> = self.processes.keys().copied().collect();
            for pid in pids {
                let hangs = self.look_if_due(pid, now);
                self.ready.extend(hangs);
            }
        }
        Ok(())
    }

    /// The next finding of the rounds before; a process with an error is looked at now, and its end is held until the finding is dropped.
    pub fn next_finding(&mut self) -> Option<Finding> {
        let Some(f) = self.failing.pop_front() else {
            return self.ready.pop_front();
        };
        let (pid, options) = (f.pid, self.options.clone());
        let look = self.beside(move || dump::look(&[pid], &options));
        Some(self.found(f, look))
    }

    /// Looks at all processes that are watched but this one.
    pub fn others(&mut self, pid: u32) -> Report {
        let pids = self.processes.keys().copied().filter(|p| *p != pid);
        let (pids, options) = (pids.collect::<Vec<u32>>(), self.options.clone());
        self.beside(move || dump::look(&pids, &options).report)
    }

    /// Does work that takes long. Processes that fail meanwhile, as the ranks of a job do together, are held until it is their turn.
    fn beside<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let working = scope.spawn(work);
            while !working.is_finished() {
                let now = Instant::now();
                let messages = self.log.take(now);
                let holds = self.hold_strangers(&messages);
                self.failed(messages, holds, now);
                self.log.wait(BESIDE);
            }
            working.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Forgets the processes that have ended.
    fn forget_ended(&mut self) {
        let has_log = self.log.is_open();
        self.processes.retain(|pid, watched| {
            let has_ended = procfs::has_ended(*pid);
            if has_ended && !has_log && !watched.notifiers.has_told() {
                self.unread.push(*pid);
            }
            !has_ended && !watched.is_gone()
        });
    }

    /// Looks for processes that are not watched yet; forgets those that have ended.
    fn search(&mut self, now: Instant) -> Result<(), (u32, io::Error)> {
        self.forget_ended();
        for (pid, watched) in &mut self.processes {
            watched.notifiers.find(*pid, &watched.memory);
        }
        let is_first = self.searched.is_none();
        let pids = match &self.whom {
            Whom::Named(pids) => pids.clone(),
            Whom::All(choice, root) => {
                let found = gpu_processes().chosen(choice, root);
                self.hidden = found.hidden.len();
                found.mapped().collect()
            }
        };
        for pid in pids {
            if self.processes.contains_key(&pid) || procfs::has_ended(pid) {
                continue;
            }
            let dump::Look {
                report, refused, ..
            } = dump::look(&[pid], &self.quick);
            match refused.into_iter().next() {
                None => {}
                // It may come to use one.
                Some((_, Refused::NoGpu)) => continue,
                Some((_, Refused::Error(_))) if procfs::has_ended(pid) => continue,
                Some((_, Refused::Error(_))) if matches!(self.whom, Whom::All(..)) => continue,
                Some((pid, Refused::Error(e))) if is_first => return Err((pid, e)),
                Some((pid, Refused::Error(e))) => {
                    // It has executed a program of another user, or the like: the others are watched on.
                    if self.refused.insert(pid) {
                        tell(format_args!(
                            "process {pid} cannot be looked into any more: {e}"
                        ));
                    }
                    continue;
                }
            }
            let memory = match Memory::open(pid) {
                Ok(memory) => memory,
                // It has ended since.
                Err(e) if is_first && matches!(self.whom, Whom::Named(_)) => return Err((pid, e)),
                Err(_) => continue,
            };
            let mut watched = Watched {
                name: report.processes.first().map(|p| p.name.clone()),
                memory,
                channels: Vec::new(),
                gpus: BTreeSet::new(),
                pace: Pace::new(self.limit.unwrap_or(Duration::MAX), now),
                before: None,
                told: false,
                notifiers: Notifiers::default(),
            };
            watched.take_channels(&report);
            watched.notifiers.find(pid, &watched.memory);
            if is_first && matches!(self.whom, Whom::All(..)) {
                // What happened before the watch is none of its findings, but for a process that is named.
                let before = watched.notifiers.new_errors(&watched.memory);
                for code in before {
                    tell(format_args!(
                        "process {pid} had an error before the watch began: Xid {code}, {}; nvcap dump -p {pid} shows it",
                        hang::xid::meaning(code)
                    ));
                }
            }
            self.processes.insert(pid, watched);
        }
        Ok(())
    }

    fn look_if_due(&mut self, pid: u32, now: Instant) -> Option<Finding> {
        let watched = self.processes.get_mut(&pid)?;
        if watched.has_moved() {
            watched.pace.moves(now);
            watched.before = None;
            watched.told = false;
            return None;
        }
        if !watched.pace.is_due(now) {
            return None;
        }
        let report = dump::look(&[pid], &self.quick).report;
        watched.pace.looked = Some(now);
        watched.take_channels(&report);
        if !has_work(&report) {
            watched.before = None;
            watched.told = false;
            return None;
        }
        let before = watched.before.replace((now, report.clone()));
        let (then, before) = before?;
        let moved = |report: &Report| dump::compare(&before, report, now.duration_since(then));
        let hangs = moved(&report).is_hang();
        let is_new = hangs && !watched.told;
        watched.told = hangs;
        if !is_new {
            return None;
        }
        let report = dump::look(&[pid], &self.options).report;
        let moved = moved(&report);
        watched.told = moved.is_hang();
        let cause = match is_stopped(&report) {
            true => Cause::Error,
            false => Cause::Hang,
        };
        // An error is told, or said to be older, when its notifier is first read.
        let is_known = cause == Cause::Error && watched.notifiers.has_told();
        (watched.told && !is_known).then_some(Finding {
            pid,
            name: watched.name.clone(),
            cause,
            fault: None,
            report,
            moved: Some(moved),
            hold: None,
        })
    }

    /// Holds the ends of processes that messages name and that are not known yet: finding them takes long. Where processes are chosen by more than
    /// their ids, none is held before it is chosen.
    fn hold_strangers(&self, messages: &[Xid]) -> BTreeMap<u32, ExitHold> {
        let strangers: BTreeSet<u32> = self.strangers(messages).filter_map(Xid::process).collect();
        { strangers.into_iter() }
            .filter_map(|pid| Some((pid, hold(pid)?)))
            .collect()
    }

    /// Returns the messages that name a process which is not known, and is meant whatever else it is.
    fn strangers<'a>(&self, messages: &'a [Xid]) -> impl Iterator<Item = &'a Xid> {
        let is_meant = |pid: u32| match &self.whom {
            Whom::Named(pids) => pids.contains(&pid),
            Whom::All(choice, _) => choice.is_any(),
        };
        let is_one = move |xid: &&Xid| {
            let named = xid.process();
            named.is_some_and(|pid| !self.processes.contains_key(&pid) && is_meant(pid))
        };
        messages.iter().filter(is_one)
    }

    /// Takes note of processes with an error that is new, and keeps messages without a process. `holds` are the ends of processes that were not known
    /// when the messages came.
    fn failed(&mut self, messages: Vec<Xid>, mut holds: BTreeMap<u32, ExitHold>, now: Instant) {
        // First all ends are held: a look takes long.
        let mut failing = Vec::new();
        for (pid, watched) in &mut self.processes {
            let codes = watched.notifiers.new_errors(&watched.memory);
            let named = messages.iter().filter(|x| x.process() == Some(*pid));
            let all = errors::joined(named, codes);
            let whose = Whose::Process(*pid);
            if !all.is_empty() && !whose.is_told(self.allowance.has_any(&whose, now)) {
                continue;
            }
            let mut new: Vec<Failing> = { all.into_iter() }
                .filter(|(code, _)| self.told.is_new(*pid, *code, now))
                .map(|(code, xid)| Failing {
                    pid: *pid,
                    code,
                    xid,
                    hold: None,
                })
                .collect();
            if let Some(last) = new.last_mut() {
                last.hold = holds.remove(pid).or_else(|| hold(*pid));
            }
            failing.append(&mut new);
        }
        // Those that had ended before they could be found are told, too.
        for xid in self.strangers(&messages).cloned().collect::<Vec<Xid>>() {
            let Some(pid) = xid.process() else { continue };
            if self.told.is_new(pid, xid.code, now) {
                failing.push(Failing {
                    pid,
                    code: xid.code,
                    xid: Some(xid),
                    hold: holds.remove(&pid),
                });
            }
        }
        self.log.wait_for(&mut failing);
        let mut all: Vec<Failing> = Vec::new();
        for f in failing {
            let whose = Whose::Process(f.pid);
            if whose.is_told(self.allowance.ask(&whose, f.xid.is_some(), now)) {
                all.push(f);
            } else if let Some(last) = all.last_mut().filter(|last| last.pid == f.pid) {
                // Its end is held for those that are told.
                last.hold = last.hold.take().or(f.hold);
            }
        }
        self.failing.extend(all);
        let unnamed = messages.into_iter().filter(|x| x.process().is_none());
        let (mut of_gpus, unnamed): (Vec<Xid>, _) = unnamed.partition(Xid::is_of_unknown_process);
        self.unnamed.extend(unnamed);
        of_gpus.retain(|xid| {
            let whose = Whose::Gpu(xid.pci.clone());
            self.is_of_our_gpus(xid) && whose.is_told(self.allowance.ask(&whose, true, now))
        });
        self.ready.extend(of_gpus.into_iter().map(|xid| Finding {
            pid: 0,
            cause: Cause::Error,
            name: None,
            fault: Some(Box::new(dump::fault_of_gpu(xid))),
            report: Report::default(),
            moved: None,
            hold: None,
        }));
    }

    /// Tells whether a message is about a GPU that is watched: any on a whole host, else one that a watched process may use.
    fn is_of_our_gpus(&self, xid: &Xid) -> bool {
        let may_use =
            |w: &Watched| w.gpus.is_empty() || xid.gpu.is_none_or(|gpu| w.gpus.contains(&gpu));
        let is_of_host = matches!(&self.whom, Whom::All(choice, _) if choice.is_any());
        is_of_host || self.processes.values().any(may_use)
    }

    /// Looks at processes that messages without a process's id are about: by the channel, or all of the GPU.
    fn failed_without_name(&mut self, now: Instant) {
        let unnamed = std::mem::take(&mut self.unnamed);
        let Some(oldest) = unnamed.iter().map(|x| x.time_ns).min() else {
            return;
        };
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            let whose = Whose::Process(pid);
            if !whose.is_told(self.allowance.has_any(&whose, now)) {
                continue;
            }
            let look = dump::look(&[pid], &self.options);
            let mut about = look.report.processes.iter().flat_map(|p| &p.xids);
            let is_new = |x: &&Xid| {
                x.time_ns >= oldest
                    && x.process().is_none()
                    && !x.is_of_unknown_process()
                    && x.code != REMOVAL
            };
            if let Some(xid) = about.find(is_new).cloned()
                && self.told.is_new(pid, xid.code, now)
                && whose.is_told(self.allowance.ask(&whose, true, now))
            {
                let failing = Failing {
                    pid,
                    code: xid.code,
                    xid: Some(xid),
                    hold: None,
                };
                let finding = self.found(failing, look);
                self.ready.push_back(finding);
            }
        }
    }

    fn found(&mut self, failing: Failing, look: Look) -> Finding {
        let Failing {
            pid,
            code,
            xid,
            hold,
        } = failing;
        let watched = self.processes.get_mut(&pid);
        let name = { look.report.processes.first().map(|p| p.name.clone()) }
            .or_else(|| watched.as_ref()?.name.clone())
            .or_else(|| xid.as_ref()?.name.clone());
        if let Some(watched) = watched {
            // It will not move any more, which is no hang to be told.
            watched.told = true;
        }
        Finding {
            pid,
            cause: Cause::Error,
            name,
            fault: Some(Box::new(look.fault(pid, code, xid))),
            report: look.report,
            moved: None,
            hold,
        }
    }
}
