//! Errors that the driver reports in the kernel's log and in the channels' error notifiers.
//!
//! A program ends as soon as it learns of the error: its end is held (ptrace, from the error on) while it is looked at.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvcap_decode::hang::{Report, State, xid::REMOVAL};
use nvcap_decode::record::Xid;
use nvcap_process::exit_hold::ExitHold;
use nvcap_process::memory::{maps, notifier};
use nvcap_process::procfs::mem::Memory;
use nvcap_process::xids::{Exceptions, Xids};

/// Longest time for which the end of a process with an error is held.
const HOLD: Duration = Duration::from_secs(5);
/// Longest time for which a notifier's error waits for the kernel log's message; the driver writes both at about the same time.
const MESSAGE: Duration = Duration::from_millis(300);
/// Time between two looks for the message.
const STEP: Duration = Duration::from_millis(10);
/// Time within which a process's errors of one number are one.
const SAME: Duration = Duration::from_secs(5);

/// Tells whether the driver has stopped a channel that has work, after an error.
pub(super) fn is_stopped(report: &Report) -> bool {
    let mut channels = report.analysis.channels.iter();
    channels.any(|c| c.state != State::Idle && report.error_of(c.id).is_some())
}

/// An error that is to be looked at.
#[derive(Debug)]
pub(super) struct Failing {
    pub(super) pid: u32,
    pub(super) code: u32,
    pub(super) xid: Option<Xid>,
    /// Hold of the process's end; of several errors of it the last one has that.
    pub(super) hold: Option<ExitHold>,
}

/// Joins a process's messages and the numbers in its notifiers: each number once, those of messages first.
pub(super) fn joined<'a>(
    messages: impl Iterator<Item = &'a Xid>,
    codes: Vec<u32>,
) -> Vec<(u32, Option<Xid>)> {
    let mut all: Vec<(u32, Option<Xid>)> = Vec::new();
    let named = messages.map(|x| (x.code, Some(x.clone())));
    for (code, xid) in named.chain(codes.into_iter().map(|code| (code, None))) {
        if !all.iter().any(|(known, _)| *known == code) {
            all.push((code, xid));
        }
    }
    all
}

/// The kernel log's Xid messages.
#[derive(Debug)]
pub(super) struct Log {
    xids: Option<Xids>,
    exceptions: Exceptions,
    /// Messages that came while another one was waited for.
    waiting: Vec<Xid>,
}

impl Log {
    /// Begins to read now: what is there already is passed over.
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

    /// Tells whether the kernel log can be read.
    pub(super) fn is_open(&self) -> bool {
        self.xids.is_some()
    }

    /// Takes the messages since the last call, but those about the removal of a channel.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Xid> {
        let new = self.xids.as_mut().map(Xids::take).unwrap_or_default();
        let joined = new
            .into_iter()
            .filter_map(|xid| self.exceptions.joined(xid, now))
            .filter(|xid| xid.code != REMOVAL);
        let mut all = std::mem::take(&mut self.waiting);
        all.extend(joined);
        all.extend(self.exceptions.without_process(Some(now)));
        all
    }

    /// Waits for the messages about errors that have none, for a limited time.
    pub(super) fn wait_for(&mut self, failing: &mut [Failing]) {
        if self.xids.is_none() {
            return;
        }
        let until = Instant::now() + MESSAGE;
        let mut others = Vec::new();
        while failing.iter().any(|f| f.xid.is_none()) {
            for xid in self.take(Instant::now()) {
                let its = |f: &&mut Failing| {
                    f.xid.is_none() && xid.process() == Some(f.pid) && xid.code == f.code
                };
                match failing.iter_mut().find(its) {
                    Some(f) => f.xid = Some(xid),
                    None => others.push(xid),
                }
            }
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(STEP);
        }
        self.waiting.append(&mut others);
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
    /// The errors that are known, by the notifier's address.
    told: BTreeMap<u64, u32>,
}

impl Notifiers {
    /// Finds the notifiers in the process's memory.
    pub(super) fn find(&mut self, pid: u32, memory: &Memory) {
        match maps::areas(pid) {
            Ok(areas) => {
                let all = notifier::notifiers(memory, &areas);
                self.at = all.iter().map(|n| n.address).collect();
                self.told.retain(|at, _| self.at.contains(at));
            }
            Err(e) => log::debug!("process {pid}: its error notifiers cannot be read: {e}"),
        }
    }

    /// Tells whether an error is known.
    pub(super) fn has_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// Returns the numbers of the errors that are new, each once.
    pub(super) fn new_errors(&mut self, memory: &Memory) -> Vec<u32> {
        let mut codes = Vec::new();
        for at in &self.at {
            let Some(code) = notifier::read(memory, *at).and_then(|n| n.fault()) else {
                continue;
            };
            if self.told.insert(*at, code) != Some(code) && !codes.contains(&code) {
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
    /// Notes an error; returns false where it was told already.
    pub(super) fn is_new(&mut self, pid: u32, code: u32, now: Instant) -> bool {
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
pub(super) fn hold(pid: u32) -> Option<ExitHold> {
    ExitHold::of_running(pid, HOLD)
        .inspect_err(|e| log::info!("process {pid}: its end is not held: {e}"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_a_process_is_one() {
        let xid = |code, text: &str| Xid {
            code,
            text: text.to_owned(),
            ..Xid::default()
        };
        let messages = [xid(13, "a"), xid(43, "b"), xid(13, "c")];
        let all = joined(messages.iter(), vec![31, 43, 31]);
        let of = |(code, xid): &(u32, Option<Xid>)| (*code, xid.as_ref().map(|x| x.text.clone()));
        let all: Vec<_> = all.iter().map(of).collect();
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        assert_eq!(all, [(13, a), (43, b), (31, None)]);
        assert!(joined([].iter(), Vec::new()).is_empty());
    }

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
