//! Work of which no end was seen when the trace or its process ended, and processes of whose work no time is known.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::work::Done;
use crate::output::names::pid_name;
use crate::output::plural::plural_of;
use crate::output::units::Nanoseconds;
use nvcap_decode::record::{ChannelId, Process, Record};

/// Shortest time of work that is told of at the end of a trace, ns.
const LONG_NS: u64 = 1_000_000_000;

/// The most channels, and processes, in text.
const SHOWN: usize = 5;

/// The last entries of a channel, of which no end was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Last {
    pub channel: ChannelId,
    pub pid: u32,
    /// Number of entries with work.
    pub entries: u64,
    /// Time from the submission of the first of them until the trace ended, or the process did, ns.
    pub ns: u64,
}

/// A process of whose work no time is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Untimed {
    pub pid: u32,
    /// Number of its entries with work.
    pub entries: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    pid: u32,
    entries: u64,
    is_timed: bool,
    /// Number of entries that have not ended, and the time at which the first of them was submitted.
    open: u64,
    since: Option<u64>,
}

/// Work of which no end was seen, and processes of whose work no time is known.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    channels: BTreeMap<ChannelId, Channel>,
    /// Processes with work.
    pids: HashSet<u32>,
    /// Times at which processes ended, or executed another program.
    ended: HashMap<u32, u64>,
}

impl Unfinished {
    /// Takes the next record.
    pub(super) fn record(&mut self, record: &Record) {
        if let Record::Process(Process { at, life }) = record
            && life.ends_work()
            && self.pids.contains(&at.pid)
        {
            self.ended.insert(at.pid, at.time_ns);
        }
    }

    /// Takes the next work.
    pub(super) fn take(&mut self, work: &Done) {
        let channel = self.channels.entry(work.channel).or_default();
        let (time, has_ended) = (
            &work.time,
            work.time.duration.is_some() || work.time.ended.is_some(),
        );
        channel.pid = work.pid;
        self.pids.insert(work.pid);
        channel.entries += 1;
        channel.is_timed |= time.start.is_some() || has_ended;
        // The entries of a channel run one after the other.
        if time.start.is_some() || has_ended {
            (channel.open, channel.since) = (0, None);
        }
        if !has_ended {
            channel.open += 1;
            channel.since = channel.since.or(work.submitted);
        }
    }

    /// Returns the last entries of channels, those that have waited longest first. `newest`: the end of the trace.
    pub(super) fn last(&self, newest: Option<u64>) -> Vec<Last> {
        let timed = self.channels.values().filter(|c| c.is_timed);
        let timed: BTreeSet<u32> = timed.map(|c| c.pid).collect();
        let waiting = self.channels.iter().filter(|(_, c)| timed.contains(&c.pid));
        let waiting = waiting.filter_map(|(id, c)| {
            let since = c.since?;
            // Its number may have gone to another process, or it may have executed another program.
            let ended = self.ended.get(&c.pid).copied().filter(|t| *t >= since);
            let ns = ended.or(newest)?.saturating_sub(since);
            (ns >= LONG_NS).then_some(Last {
                channel: *id,
                pid: c.pid,
                entries: c.open,
                ns,
            })
        });
        let mut all: Vec<Last> = waiting.collect();
        all.sort_by_key(|last| (std::cmp::Reverse(last.ns), last.channel));
        all
    }

    /// Returns lines on work of which no end was seen, and on processes of which nothing is known; of both the first ones. `some_are_known`: the
    /// times of other work are known.
    pub(super) fn lines(&self, newest: Option<u64>, some_are_known: bool) -> Vec<String> {
        let last = self.last(newest);
        // Where nothing is known at all, that is said for all of them.
        let untimed = match some_are_known {
            true => self.untimed(),
            false => Vec::new(),
        };
        let mut lines: Vec<String> = { last.iter().take(SHOWN) }
            .map(|of| {
                format!(
                    "channel {} of process {}: no end was seen of {}, {} after the {} (nvcap dump says what it waits for, where it still does)",
                    of.channel.0,
                    pid_name(of.pid),
                    match of.entries {
                        1 => "its last entry with work".to_owned(),
                        n => format!("its last {n} entries with work"),
                    },
                    Nanoseconds(of.ns),
                    match of.entries {
                        1 => "submission",
                        _ => "submission of the first",
                    },
                )
            })
            .collect();
        lines.extend(untimed.iter().take(SHOWN).map(|of| {
            format!(
                "process {}: no time is known of its {} with work, which are not in the shares above: none has ended, or its time stamps cannot be read",
                pid_name(of.pid),
                plural_of(of.entries, "entry", "entries"),
            )
        }));
        let more = last.len().saturating_sub(SHOWN) + untimed.len().saturating_sub(SHOWN);
        if more > 0 {
            lines.push(format!("{more} more of these (--json has all)"));
        }
        lines
    }

    /// Processes of whose work no time is known.
    pub(super) fn untimed(&self) -> Vec<Untimed> {
        let mut all: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
        for channel in self.channels.values() {
            let of = all.entry(channel.pid).or_default();
            *of = (of.0 + channel.entries, of.1 | channel.is_timed);
        }
        { all.into_iter() }
            .filter(|(_, (_, is_timed))| !is_timed)
            .map(|(pid, (entries, _))| Untimed { pid, entries })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::work::What;
    use super::*;
    use nvcap_decode::decode::event::{DurationBy, GpuDuration, GpuMoment, GpuTime};
    use nvcap_decode::record::{At, Life};

    const S: u64 = 1_000_000_000;

    fn work(channel: u32, pid: u32, submitted: u64, start: bool, end: bool) -> Done {
        let time = GpuTime {
            start: start.then_some(GpuMoment {
                host_ns: submitted,
                host_error_ns: 0,
                gpu_ns: submitted,
                gpu_error_ns: 0,
            }),
            duration: end.then_some(GpuDuration {
                ns: 10,
                error_ns: 0,
                by: DurationBy::Release,
            }),
            ..GpuTime::default()
        };
        Done {
            what: What::Unknown,
            text: String::new(),
            time,
            duration: time.duration,
            bytes: 0,
            channel: ChannelId(channel),
            pid,
            gpu: None,
            absent: None,
            submitted: Some(submitted),
        }
    }

    #[test]
    fn what_has_not_ended_is_told_of_a_channel_that_has_times() {
        let mut all = Unfinished::default();
        for (channel, pid, at, start, end) in [
            // Its third one hangs, and has another behind it.
            (1, 7, S, true, true),
            (1, 7, 2 * S, false, false),
            (1, 7, 3 * S, true, false),
            (1, 7, 4 * S, false, false),
            // All ended.
            (2, 7, S, false, false),
            (2, 7, 2 * S, true, true),
            // Just submitted.
            (3, 7, S, true, true),
            (3, 7, 9 * S, false, false),
            // Of a process that ended with work that ran.
            (4, 8, S, true, true),
            (4, 8, 2 * S, true, false),
            // It has no times, and others of its process have.
            (7, 7, 3 * S, false, false),
            // No time is known.
            (5, 9, S, false, false),
            (6, 9, S, false, false),
        ] {
            all.take(&work(channel, pid, at, start, end));
        }
        // The first one executes another program, and goes on.
        for (pid, at) in [(7, S / 2), (8, 5 * S), (1000, S)] {
            all.record(&Record::Process(Process {
                at: At::of_process(at, pid),
                life: Life::Exit { process: true },
            }));
        }
        assert_eq!(all.ended.len(), 2, "processes without work are not kept");
        let last = |channel, pid, entries, ns| Last {
            channel: ChannelId(channel),
            pid,
            entries,
            ns,
        };
        let found = all.last(Some(9 * S + S / 2));
        let ns = 6 * S + S / 2;
        let first = [last(1, 7, 2, ns), last(7, 7, 1, ns)];
        assert_eq!(found, [&first[..], &[last(4, 8, 1, 3 * S)]].concat());
        assert_eq!(all.untimed(), [Untimed { pid: 9, entries: 2 }]);
        assert_eq!(all.last(None), [last(4, 8, 1, 3 * S)]);
    }
}
