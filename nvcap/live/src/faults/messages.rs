//! Xid messages of the kernel log about traced processes, joined with what error notifiers tell.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvcap_decode::hang::xid::REMOVAL;
use nvcap_decode::record::{At, ChannelId, Fault, FaultSource, Xid};
use nvcap_process::{clock, xids::Xids};

use super::{
    known::{Known, Watched},
    suspects,
};

/// Time for which a message waits for the same fault's notifier.
const WAIT: Duration = Duration::from_millis(300);
/// Time within which a message and a notifier are of the same fault.
const SAME: Duration = Duration::from_secs(5);
/// A token of which nothing is known: it may be of any channel.
const ANY: u32 = u32::MAX;

/// A message about a traced process.
#[derive(Debug)]
struct Pending {
    pid: u32,
    channel: Option<ChannelId>,
    xid: Xid,
    came: Instant,
}

/// A fault that was told.
#[derive(Debug)]
struct Told {
    pid: u32,
    code: u32,
    channel: Option<ChannelId>,
    /// By the kernel log alone.
    by_log: bool,
    at: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Messages {
    log: Option<Xids>,
    pending: Vec<Pending>,
    told: Vec<Told>,
}

/// Tells whether two faults of a process are on the same channel, as far as is known.
fn is_same(a: Option<ChannelId>, b: Option<ChannelId>) -> bool {
    a.is_none() || b.is_none() || a == b
}

impl Messages {
    /// Those that come from now on; none where the log may not be read.
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

    /// Takes the messages that have come and are about one of the processes.
    pub(super) fn take(&mut self, processes: &BTreeMap<u32, Watched>, now: Instant) {
        let Some(log) = &mut self.log else { return };
        for xid in log.take() {
            if xid.is_of_whole_gpu() || xid.code == REMOVAL {
                continue;
            }
            for (pid, process) in processes {
                if let Some(channel) = about(&xid, *pid, &process.channels) {
                    self.pending.push(Pending {
                        pid: *pid,
                        channel,
                        xid: xid.clone(),
                        came: now,
                    });
                }
            }
        }
    }

    /// Joins messages with faults that notifiers tell, and gives up those of faults that were told before.
    pub(super) fn join(&mut self, faults: &mut Vec<Fault>, now: Instant) {
        self.told
            .retain(|t| now.saturating_duration_since(t.at) < SAME);
        faults.retain(|f| {
            !self.told.iter().any(|t| {
                t.by_log
                    && (t.pid, t.code, t.channel) == (f.at.pid, f.code, f.channel)
                    && t.channel.is_some()
            })
        });
        self.note(faults, now);
        let told = &self.told;
        self.pending.retain(|p| {
            let is_free = |f: &&mut Fault| {
                (f.at.pid, f.code) == (p.pid, p.xid.code)
                    && is_same(f.channel, p.channel)
                    && f.message.is_none()
            };
            if let Some(fault) = faults.iter_mut().find(is_free) {
                fault.source = FaultSource::Both;
                fault.message = Some(Box::new(p.xid.clone()));
                return false;
            }
            !told
                .iter()
                .any(|t| (t.pid, t.code) == (p.pid, p.xid.code) && is_same(t.channel, p.channel))
        });
    }

    fn note(&mut self, faults: &[Fault], now: Instant) {
        self.told.extend(faults.iter().map(|f| Told {
            pid: f.at.pid,
            code: f.code,
            channel: f.channel,
            by_log: f.source == FaultSource::KernelLog,
            at: now,
        }));
    }

    /// The faults of messages that no notifier has told in time. `is_due`: a process ends, and no notifier will.
    pub(super) fn alone(
        &mut self,
        processes: &BTreeMap<u32, Watched>,
        now: Instant,
        is_due: impl Fn(u32) -> bool,
    ) -> Vec<Fault> {
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
            let certain = known.filter(|k| k.is_certain);
            let of = p.channel.zip(certain.map(Some));
            let token = known.and_then(|k| k.token);
            let (suspects, only_these) = match suspects::rings(p.pid) {
                Some(rings) => rings.suspects(channels, of, token.unwrap_or(ANY)),
                None => (Vec::new(), false),
            };
            Fault {
                at: At {
                    time_ns: clock::now(),
                    pid: p.pid,
                    tid: 0,
                },
                source: FaultSource::KernelLog,
                code: p.xid.code,
                channel: p.channel,
                assumed: known.is_some() && certain.is_none(),
                token,
                notification: None,
                message: Some(Box::new(p.xid)),
                suspects,
                only_these,
            }
        };
        let faults: Vec<Fault> = due.into_iter().map(of).collect();
        self.note(&faults, now);
        faults
    }
}

/// For a message about the process that has these channels: the channel, where it can only be one. `None` for other messages.
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
