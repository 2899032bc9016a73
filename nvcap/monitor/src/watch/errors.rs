//! Errors of the driver's, from the kernel's log and from the channels' error notifiers.
//!
//! A program ends as soon as it learns of the error: its end is held (ptrace, from the error on) while it is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nvcap_decode::hang::xid::REMOVAL;
use nvcap_decode::record::Xid;
use nvcap_process::exit_hold::ExitHold;
use nvcap_process::host::choice::Whom;
use nvcap_process::memory::{
    maps,
    notifier::{self, Notifier},
};
use nvcap_process::procfs::mem::Memory;
use nvcap_process::xids::{Exceptions, Xids};

use super::{Cause, Finding, Watch, dump};
use crate::dump::Look;

/// Longest time for which the end of a process with an error is held.
const HOLD: Duration = Duration::from_secs(2);
/// Longest time for which a notifier's error waits for the kernel log's message; the driver writes both at about the same time.
const MESSAGE: Duration = Duration::from_millis(300);
/// Time between two looks for the message.
const STEP: Duration = Duration::from_millis(10);
/// Time within which a process's errors of one number are one.
const SAME: Duration = Duration::from_secs(5);

/// The kernel log's Xid messages.
#[derive(Debug)]
pub(super) struct Log {
    xids: Option<Xids>,
    exceptions: Exceptions,
    /// Messages that came while another one was waited for.
    waiting: Vec<Xid>,
}

impl Log {
    /// What the log has already is passed over.
    pub(super) fn new(mut xids: Option<Xids>) -> Self {
        if let Some(xids) = &mut xids {
            xids.take();
        }
        Self {
            xids,
            exceptions: Exceptions::default(),
            waiting: Vec::new(),
        }
    }

    /// Takes the messages since the last call, but those about the removal of a channel.
    pub(super) fn take(&mut self) -> Vec<Xid> {
        let new = self.xids.as_mut().map(Xids::take).unwrap_or_default();
        let joined = new
            .into_iter()
            .filter_map(|xid| self.exceptions.joined(xid))
            .filter(|xid| xid.code != REMOVAL);
        let mut all = std::mem::take(&mut self.waiting);
        all.extend(joined);
        all
    }

    /// Waits for a message about an error of a process, for a limited time.
    fn wait_for(&mut self, pid: u32, code: u32) -> Option<Xid> {
        self.xids.as_ref()?;
        let until = Instant::now() + MESSAGE;
        loop {
            let mut all = self.take();
            let its = |x: &Xid| x.process() == Some(pid) && x.code == code;
            let found = all.iter().position(its).map(|at| all.remove(at));
            self.waiting = all;
            if found.is_some() || Instant::now() >= until {
                return found;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Waits until the kernel logs something, at most for `pause`.
    pub(super) fn wait(&self, pause: Duration) {
        let Some(xids) = &self.xids else {
            return std::thread::sleep(pause);
        };
        let mut poll = libc::pollfd {
            fd: xids.wake(),
            events: libc::POLLIN,
            revents: 0,
        };
        let ms = i32::try_from(pause.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one structure.
        let woken = unsafe { libc::poll(&raw mut poll, 1, ms) };
        if woken < 0 || poll.revents & !libc::POLLIN != 0 {
            std::thread::sleep(pause);
        }
    }
}

/// The error notifiers of a process.
#[derive(Debug, Default)]
pub(super) struct Notifiers {
    at: Vec<u64>,
    /// Those whose error is known.
    told: BTreeSet<u64>,
}

impl Notifiers {
    /// Finds them in the process's memory.
    pub(super) fn find(&mut self, pid: u32, memory: &Memory) {
        match maps::areas(pid) {
            Ok(areas) => {
                let all = notifier::notifiers(memory, &areas);
                self.at = all.iter().map(|n| n.address).collect();
                self.told.retain(|at| self.at.contains(at));
            }
            Err(e) => log::debug!("process {pid}: its error notifiers cannot be read: {e}"),
        }
    }

    /// Returns the numbers of the errors that are new, each once.
    pub(super) fn new_errors(&mut self, memory: &Memory) -> Vec<u32> {
        let mut codes = Vec::new();
        for at in &self.at {
            let error = notifier::read(memory, *at).and_then(|n: Notifier| n.error);
            let Some(code) = error.filter(|code| *code != REMOVAL) else {
                continue;
            };
            if self.told.insert(*at) && !codes.contains(&code) {
                codes.push(code);
            }
        }
        codes
    }
}

/// Errors that were told a short time ago: notifiers and the log tell the same one.
#[derive(Debug, Default)]
pub(super) struct Told(Vec<(u32, u32, Instant)>);

impl Told {
    /// Notes an error; false where it was told.
    fn is_new(&mut self, pid: u32, code: u32, now: Instant) -> bool {
        self.0
            .retain(|(.., at)| now.saturating_duration_since(*at) < SAME);
        let is_new = !self.0.iter().any(|(p, c, _)| (*p, *c) == (pid, code));
        if is_new {
            self.0.push((pid, code, now));
        }
        is_new
    }
}

/// Holds the end of a process with an error; none where it cannot be held.
fn hold(pid: u32) -> Option<ExitHold> {
    ExitHold::of_running(pid, HOLD)
        .inspect_err(|e| log::info!("process {pid}: its end is not held: {e}"))
        .ok()
}

impl Watch {
    /// Holds the ends of processes that messages name and that are not known yet: finding them takes long. Where processes are chosen by
    /// more than their ids, none is touched before it is chosen.
    pub(super) fn hold_strangers(&self, messages: &[Xid]) -> BTreeMap<u32, ExitHold> {
        let is_meant = |pid: &u32| match &self.whom {
            Whom::Named(pids) => pids.contains(pid),
            Whom::All(choice, _) => choice.is_any(),
        };
        let named: BTreeSet<u32> = messages.iter().filter_map(Xid::process).collect();
        { named.into_iter() }
            .filter(|pid| !self.processes.contains_key(pid) && is_meant(pid))
            .filter_map(|pid| Some((pid, hold(pid)?)))
            .collect()
    }

    /// Processes with an error that is new; `holds` are those of processes that were not known when the messages came.
    pub(super) fn failed(
        &mut self,
        messages: &[Xid],
        mut holds: BTreeMap<u32, ExitHold>,
        now: Instant,
    ) -> Vec<Finding> {
        // First all ends are held: a look takes long.
        let mut failed = Vec::new();
        for (pid, watched) in &mut self.processes {
            let codes = watched.notifiers.new_errors(&watched.memory);
            let named = |x: &&Xid| x.process() == Some(*pid);
            let xid = messages.iter().find(named).cloned();
            let Some(code) = xid.as_ref().map(|x| x.code).or(codes.first().copied()) else {
                continue;
            };
            if self.told.is_new(*pid, code, now) {
                let hold = holds.remove(pid).or_else(|| hold(*pid));
                failed.push((*pid, code, xid, hold));
            }
        }
        let mut findings = Vec::new();
        for (pid, code, xid, hold) in failed {
            let xid = xid.or_else(|| self.log.wait_for(pid, code));
            let look = dump::look(&[pid], &self.options);
            findings.push(self.found(pid, code, xid, look, hold));
        }
        findings.extend(self.failed_without_name(messages, now));
        findings
    }

    /// Processes that messages without a process's id are about: by the channel, or all of the GPU.
    fn failed_without_name(&mut self, messages: &[Xid], now: Instant) -> Vec<Finding> {
        let unnamed = messages.iter().filter(|x| x.process().is_none());
        let Some(oldest) = unnamed.map(|x| x.time_ns).min() else {
            return Vec::new();
        };
        let mut findings = Vec::new();
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            let look = dump::look(&[pid], &self.options);
            let mut about = look.report.processes.iter().flat_map(|p| &p.xids);
            let is_new =
                |x: &&Xid| x.time_ns >= oldest && x.process().is_none() && x.code != REMOVAL;
            if let Some(xid) = about.find(is_new).cloned()
                && self.told.is_new(pid, xid.code, now)
            {
                findings.push(self.found(pid, xid.code, Some(xid), look, None));
            }
        }
        findings
    }

    fn found(
        &mut self,
        pid: u32,
        code: u32,
        xid: Option<Xid>,
        look: Look,
        hold: Option<ExitHold>,
    ) -> Finding {
        if let Some(watched) = self.processes.get_mut(&pid) {
            // It will not move any more, which is no hang to be told.
            watched.told = true;
        }
        Finding {
            pid,
            cause: Cause::Error,
            fault: Some(Box::new(look.fault(pid, code, xid))),
            report: look.report,
            moved: None,
            hold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_once() {
        let mut told = Told::default();
        let begin = Instant::now();
        assert!(told.is_new(7, 31, begin));
        assert!(!told.is_new(7, 31, begin + SAME / 2));
        assert!(told.is_new(7, 13, begin) && told.is_new(8, 31, begin));
        assert!(told.is_new(7, 31, begin + SAME));
    }
}
