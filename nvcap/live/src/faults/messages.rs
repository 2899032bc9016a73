//! Xid messages of the kernel log about traced processes, joined with the errors in notifiers.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use nvcap_decode::hang::xid::REMOVAL;
use nvcap_decode::record::{At, ChannelId, Fault, FaultSource, Xid};
use nvcap_process::{
    clock,
    xids::{EXCEPTION, Exceptions, RESET, Xids},
};

use super::{
    known::{Known, Watched},
    noticed::{Noticed, Open},
    suspects::{self, Rings},
};

/// Time for which a message waits for the notifier of the same fault.
const WAIT: Duration = Duration::from_millis(300);
/// Time within which a message and a notifier count as the same fault.
const SAME: Duration = Duration::from_secs(5);
/// Time for which an error that no message gives a process waits for a notifier with it: notifiers are read once a second at least.
const NOTIFIED: Duration = Duration::from_millis(1500);
/// The most errors that wait so.
const MOST_NOBODYS: usize = 64;
/// An unknown token, which may be any channel's.
const ANY: u32 = u32::MAX;

/// A message about a traced process.
#[derive(Debug)]
struct Pending {
    pid: u32,
    channel: Option<ChannelId>,
    xid: Xid,
    came: Instant,
    /// Work that had not ended when the message came, as far as that was looked for.
    work: Option<Work>,
}

/// Work that had not ended.
#[derive(Debug, Default)]
struct Work {
    open: Vec<Open>,
    /// True if no other work can have caused the fault.
    is_all: bool,
}

impl Work {
    /// Joins what was found when the message came with what a later look finds: the work that both have. Where one look has none, the other's.
    fn joined(mut self, later: Self) -> Self {
        let has = |one: &Open| later.open.iter().any(|l| l.suspect == one.suspect);
        if later.open.is_empty() || !self.open.is_empty() && !self.open.iter().any(has) {
            return self;
        }
        if self.open.is_empty() {
            return later;
        }
        self.open.retain(has);
        self
    }
}

/// Looks at the rings of processes, one look for all messages about a process.
#[derive(Default)]
struct Looks(BTreeMap<u32, Option<Rings>>);

impl Looks {
    /// Returns the look at a process; `None` where its rings cannot be read.
    fn at(&mut self, pid: u32) -> Option<&Rings> {
        let look = self.0.entry(pid).or_insert_with(|| suspects::rings(pid));
        look.as_ref()
    }
}

impl Pending {
    /// Finds the work that had not ended in the process's rings.
    fn work(&self, rings: Option<&Rings>, channels: &BTreeMap<ChannelId, Known>) -> Work {
        let known = self.channel.and_then(|c| channels.get(&c));
        let of = self.channel.zip(known.filter(|k| k.is_certain).map(Some));
        let token = known.and_then(|k| k.token).unwrap_or(ANY);
        let Some(rings) = rings else {
            return Work::default();
        };
        let (open, is_all) = rings.suspects(channels, of, token);
        Work { open, is_all }
    }
}

/// An error of a GPU that no message gives a process.
#[derive(Debug)]
struct Nobodys {
    xid: Xid,
    came: Instant,
}

/// A fault that was reported.
#[derive(Debug)]
struct Told {
    pid: u32,
    code: u32,
    channel: Option<ChannelId>,
    /// The GPU, where it is known.
    gpu: Option<u32>,
    /// Channels that were stopped with the fault's channel.
    group: Vec<ChannelId>,
    /// True if only the kernel log told of the fault.
    by_log: bool,
    at: Instant,
}

/// Xid messages of the kernel log about traced processes, and the faults that wait for theirs.
#[derive(Debug, Default)]
pub(super) struct Messages {
    log: Option<Xids>,
    /// Messages that were read and not taken yet.
    read: Vec<Xid>,
    exceptions: Exceptions,
    pending: Vec<Pending>,
    /// Faults that wait for their message.
    noticed: Vec<Noticed>,
    nobodys: Vec<Nobodys>,
    /// GPUs that traced processes use, each with the time when one last did.
    used: BTreeMap<u32, Instant>,
    told: Vec<Told>,
    /// True once the trace ends: nothing is waited for.
    is_last: bool,
}

impl Told {
    /// Tells whether the fault is on this channel of this GPU, as far as both are known.
    fn is_of(&self, channel: Option<ChannelId>, gpu: Option<u32>) -> bool {
        let may_be_on = self.gpu.is_none() || gpu.is_none() || self.gpu == gpu;
        let may_be_of = self.channel.is_none()
            || channel.is_none_or(|c| self.channel == Some(c) || self.group.contains(&c));
        may_be_on && may_be_of
    }

    /// Tells whether a message that names no process may be about this fault.
    fn may_be(&self, xid: &Xid) -> bool {
        let is_code = self.code == xid.code || (self.code, xid.code) == (RESET, EXCEPTION);
        is_code && (self.gpu.is_none() || self.gpu == xid.gpu)
    }
}

impl Messages {
    /// Tells whether the log tells of each fault.
    pub(super) fn tell(&self) -> bool {
        self.log.as_ref().is_some_and(Xids::tells)
    }

    /// Takes the messages from now on; none where the log may not be read.
    pub(super) fn open() -> Self {
        let log = match Xids::open() {
            Ok(mut log) => {
                // What is there is from before the trace.
                log.take();
                Some(log)
            }
            Err(why) => {
                log::info!("{why}");
                None
            }
        };
        Self {
            log,
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub(super) fn of(log: Xids) -> Self {
        Self {
            log: Some(log),
            ..Self::default()
        }
    }

    /// Returns the descriptor that can be read when the kernel has logged something; none where the log may not be read.
    pub(super) fn wake(&self) -> Option<RawFd> {
        self.log.as_ref().map(Xids::wake)
    }

    /// Reads what the kernel has logged. Tells whether there are messages that were not taken yet.
    pub(super) fn fetch(&mut self) -> bool {
        if let Some(log) = &mut self.log {
            self.read.extend(log.take());
        }
        !self.read.is_empty()
    }

    /// Tells whether a fault waits for its message, or a message for its notifier or its process.
    pub(super) fn has_waiting(&self) -> bool {
        !self.noticed.is_empty()
            || !self.pending.is_empty()
            || !self.nobodys.is_empty()
            || self.exceptions.is_waiting()
    }

    /// Takes note that the next look is the last.
    pub(super) fn end(&mut self) {
        self.is_last = true;
    }

    /// Takes the messages that have come and are about one of the processes. A process that has executed another program is listed twice: as
    /// it is now, and as it was.
    pub(super) fn take(&mut self, processes: &[(&u32, &Watched)], now: Instant) {
        self.fetch();
        let channels = processes.iter().flat_map(|(_, p)| p.channels.values());
        self.used
            .extend(channels.filter_map(|c| c.gpu).map(|gpu| (gpu, now)));
        let mut nobodys = Vec::new();
        for xid in mem::take(&mut self.read) {
            let Some(xid) = self.exceptions.joined(xid, now) else {
                continue;
            };
            if xid.is_of_whole_gpu() || xid.code == REMOVAL {
                continue;
            }
            if xid.is_of_unknown_process() {
                nobodys.push(xid);
                continue;
            }
            let first = self.pending.len();
            for (&pid, process) in processes.iter().copied() {
                let is_taken = self.pending.iter().skip(first).any(|p| p.pid == pid);
                if let (Some(channel), false) = (about(&xid, pid, &process.channels), is_taken) {
                    self.pending.push(Pending {
                        pid,
                        channel,
                        xid: xid.clone(),
                        came: now,
                        work: None,
                    });
                }
            }
        }
        let until = (!self.is_last).then_some(now);
        nobodys.extend(self.exceptions.without_process(until));
        let is_used = |xid: &Xid| {
            let last = xid.gpu.and_then(|gpu| self.used.get(&gpu));
            last.is_some_and(|last| now.saturating_duration_since(*last) < SAME)
        };
        nobodys.retain(is_used);
        let room = MOST_NOBODYS.saturating_sub(self.nobodys.len());
        let nobodys = nobodys.into_iter().take(room);
        self.nobodys
            .extend(nobodys.map(|xid| Nobodys { xid, came: now }));
    }

    /// Joins messages with faults in notifiers, and returns the complete ones. A fault waits a moment for its message, which has the address
    /// and the exception. Drops messages and notifiers of faults that were reported before. `is_due`: a process ends.
    pub(super) fn join(
        &mut self,
        mut new: Vec<Noticed>,
        now: Instant,
        is_due: impl Fn(u32) -> bool,
    ) -> Vec<Fault> {
        self.told
            .retain(|t| now.saturating_duration_since(t.at) < SAME);
        new.retain(|n| {
            !self.told.iter().any(|t| {
                let is_one = t.channel.is_some() && n.may_be_of(t.channel);
                t.by_log && (t.pid, t.code) == (n.pid(), n.code()) && is_one
            })
        });
        self.noticed.append(&mut new);
        let (noticed, told) = (&mut self.noticed, &self.told);
        self.pending.retain(|p| {
            let is_of = |pid, code| (pid, code) == (p.pid, p.xid.code);
            let its = |n: &&mut Noticed| {
                is_of(n.pid(), n.code()) && n.may_be_of(p.channel) && n.may_be_on(p.xid.gpu)
            };
            if let Some(fault) = noticed.iter_mut().find(its) {
                fault.told_by(p.channel, p.xid.clone());
                return false;
            }
            let is_told = |t: &Told| is_of(t.pid, t.code) && t.is_of(p.channel, p.xid.gpu);
            !told.iter().any(is_told)
        });
        let has_log = self.log.is_some();
        let is_whole = |n: &mut Noticed| {
            let waits = has_log && now.saturating_duration_since(n.came) < WAIT;
            n.has_message() || !waits || is_due(n.pid())
        };
        let whole = self.noticed.extract_if(.., is_whole);
        let whole: Vec<_> = whole.map(|n| (n.gpu(), n.fault())).collect();
        self.note(whole.iter().map(|(gpu, fault)| (*gpu, fault)), now);
        whole.into_iter().map(|(_, fault)| fault).collect()
    }

    fn note<'a>(&mut self, faults: impl Iterator<Item = (Option<u32>, &'a Fault)>, now: Instant) {
        self.told.extend(faults.map(|(gpu, f)| Told {
            pid: f.at.pid,
            code: f.code,
            channel: f.channel,
            gpu: gpu.or_else(|| f.message.as_ref()?.gpu),
            group: f.group.clone(),
            by_log: f.source == FaultSource::KernelLog,
            at: now,
        }));
    }

    /// Looks at the rings of the processes of new messages: the program may have given its channels up by the time at which its notifiers have
    /// been waited for. What was found stays found.
    fn look_for_work(&mut self, processes: &BTreeMap<u32, Watched>, looks: &mut Looks) {
        for new in self.pending.iter_mut().filter(|p| p.work.is_none()) {
            let none = BTreeMap::new();
            let channels = processes.get(&new.pid).map_or(&none, |w| &w.channels);
            new.work = Some(new.work(looks.at(new.pid), channels));
        }
    }

    /// Returns the faults of messages whose notifier did not come in time. `is_due`: a process ends, so that no notifier will come.
    pub(super) fn alone(
        &mut self,
        processes: &BTreeMap<u32, Watched>,
        now: Instant,
        is_due: impl Fn(u32) -> bool,
    ) -> Vec<Fault> {
        let mut looks = Looks::default();
        self.look_for_work(processes, &mut looks);
        let due = self
            .pending
            .extract_if(.., |p| {
                is_due(p.pid) || now.saturating_duration_since(p.came) >= WAIT
            })
            .collect::<Vec<_>>();
        let of = |p: Pending| {
            let none = BTreeMap::new();
            let channels = processes.get(&p.pid).map_or(&none, |w| &w.channels);
            let known = p.channel.and_then(|c| channels.get(&c));
            let later = p.work(looks.at(p.pid), channels);
            let work = p.work.unwrap_or_default().joined(later);
            let page = p.xid.access().map(|access| access.page);
            let suspects = work.open.into_iter().map(|one| one.near(page)).collect();
            Fault {
                at: At {
                    time_ns: clock::now(),
                    pid: p.pid,
                    tid: 0,
                },
                source: FaultSource::KernelLog,
                code: p.xid.code,
                channel: p.channel,
                group: Vec::new(),
                assumed: known.is_some_and(|k| !k.is_certain),
                token: known.and_then(|k| k.token),
                notification: None,
                message: Some(Box::new(p.xid)),
                memory: None,
                suspects,
                only_these: work.is_all,
            }
        };
        let mut faults: Vec<Fault> = due.into_iter().map(of).collect();
        self.note(faults.iter().map(|fault| (None, fault)), now);
        faults.extend(self.of_gpus(now));
        faults
    }

    /// Returns the errors of GPUs that no message gave a process, without those that are about a fault which was told.
    fn of_gpus(&mut self, now: Instant) -> Vec<Fault> {
        let is_due =
            |n: &Nobodys| self.is_last || now.saturating_duration_since(n.came) >= NOTIFIED;
        let all = mem::take(&mut self.nobodys).into_iter();
        let all = all.filter(|n| !self.told.iter().any(|t| t.may_be(&n.xid)));
        let (due, waiting): (Vec<_>, Vec<_>) = all.partition(is_due);
        self.nobodys = waiting;
        due.into_iter().map(|n| of_gpu(n.xid)).collect()
    }
}

/// Makes the fault of a GPU of which no message names a process.
fn of_gpu(xid: Xid) -> Fault {
    let bare = Fault::of_notifier(At::of_process(clock::now(), 0), xid.code);
    Fault {
        source: FaultSource::KernelLog,
        message: Some(Box::new(xid)),
        only_these: false,
        ..bare
    }
}

/// Finds the channel of a message about the process that has these channels, if only one is possible. `None` for other messages.
fn about(xid: &Xid, pid: u32, channels: &BTreeMap<ChannelId, Known>) -> Option<Option<ChannelId>> {
    let is_named = xid.process() == Some(pid);
    if xid.process().is_some() && !is_named {
        return None;
    }
    let is_of = |c: &Known| {
        // Without the driver's list of GPUs, the process's id must do.
        let same_gpu = xid.gpu.is_none() && is_named || xid.gpu == c.gpu && c.gpu.is_some();
        same_gpu && c.token.is_some_and(|token| xid.may_be_of(token))
    };
    let mut all = channels.iter().filter(|(_, c)| is_of(c));
    match (all.next(), all.next()) {
        (Some((id, _)), None) => Some(Some(*id)),
        (Some(_), Some(_)) => Some(None),
        _ => is_named.then_some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{Suspect, SuspectKind};

    /// An id that no process has.
    const NOBODY: u32 = 0x7fff_fff0;

    fn work(indices: &[u32]) -> Work {
        let one = |index: &u32| Open {
            suspect: Suspect {
                channel: ChannelId(0),
                index: *index,
                kind: SuspectKind::Kernel,
                program: None,
                grid: [1; 3],
                block: [1; 3],
                near: None,
                kernel: None,
            },
            args: Vec::new(),
        };
        Work {
            open: indices.iter().map(one).collect(),
            is_all: true,
        }
    }

    fn indices(fault: &[Fault]) -> Vec<u32> {
        let all = fault.iter().flat_map(|f| &f.suspects);
        all.map(|s| s.index).collect()
    }

    /// A program that sees its fault gives its channels up, or ends, while its notifier is waited for.
    #[test]
    fn work_that_was_found_when_the_message_came_stays_found() {
        let now = Instant::now();
        let line = "NVRM: Xid (PCI:0000:35:00): 43, pid=2147483632, name=a, Ch 0000000a";
        let pending = |work| Pending {
            pid: NOBODY,
            channel: Some(ChannelId(0)),
            xid: Xid::parse(line).unwrap(),
            came: now,
            work,
        };
        let mut messages = Messages::default();
        let mut alone = |work: Option<Work>, ms: u64| {
            messages.pending.extend(work.map(|w| pending(Some(w))));
            let at = now + Duration::from_millis(ms);
            messages.alone(&BTreeMap::new(), at, |_| false)
        };
        assert_eq!(alone(Some(work(&[3, 4])), 10), []);
        let faults = alone(None, 400);
        assert_eq!((faults.len(), indices(&faults)), (1, vec![3, 4]));
        assert!(faults[0].only_these);
        messages.pending.push(pending(None));
        let faults = messages.alone(&BTreeMap::new(), now + WAIT, |_| false);
        assert_eq!((faults.len(), indices(&faults)), (1, vec![]));
    }

    #[test]
    fn work_that_ends_after_the_message_is_no_suspect() {
        let joined = |first: &[u32], later: &[u32]| {
            let all = work(first).joined(work(later)).open;
            all.iter().map(|one| one.suspect.index).collect::<Vec<_>>()
        };
        assert_eq!(joined(&[1, 2], &[2, 3]), [2]);
        assert_eq!(joined(&[1, 2], &[]), [1, 2]);
        assert_eq!(joined(&[], &[5]), [5]);
        // What came behind is none either.
        assert_eq!(joined(&[1], &[5]), [1]);
    }
}
