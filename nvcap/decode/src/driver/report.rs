//! Scheduling facts: the channels that feed each engine, and the submissions that were queued behind another thread's wait in the same
//! channel (the false dependencies of Bakita and Anderson, RTAS 2024). The module draws conclusions from the model and from the decoder's
//! events, and knows no output format.
//!
//! The channels of a runlist take turns; the entries of one channel are executed in order. Two streams whose work goes into one channel
//! therefore wait for each other's semaphores, though nothing in the program asks for it. Streams are not visible at this level. Visible
//! are the channel, the thread that rang, and the position to which the GPU had read (GP_GET) when more was committed.

use crate::wire::GpuVa;
use std::collections::{BTreeMap, VecDeque};

use super::model::Model;
use crate::{
    decode::event::{Body, Engine, Event, Operation, SemaphoreAction},
    record::{Channel, ChannelId},
};

/// Distribution of the channels of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuReport {
    /// Minor number of the GPU's device file, if known.
    pub gpu: Option<u32>,
    /// Chip of the GPU, if known.
    pub chip: Option<String>,
    /// Runlists of the GPU that are in use.
    pub runlists: Vec<Runlist>,
}

/// Channels that take turns on the same engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runlist {
    /// Number, from the tokens; `None` for channels whose token is not known.
    pub number: Option<u32>,
    /// Engines that the runlist's channels feed.
    pub engines: Vec<String>,
    /// Channels of the runlist by group: process, handle of the group (`None`: in no group) and channels.
    pub groups: Vec<(u32, Option<u32>, Vec<ChannelId>)>,
}

impl Runlist {
    /// Returns the number of channels on the runlist.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.groups.iter().map(|(_, _, c)| c.len()).sum()
    }
}

/// Returns the distribution of all live channels over GPUs, runlists and groups.
#[must_use]
pub fn spread(model: &Model) -> Vec<GpuReport> {
    /// Channels by process and group.
    type Groups = BTreeMap<(u32, Option<u32>), Vec<ChannelId>>;
    /// Engines and groups by runlist.
    type Runlists = BTreeMap<Option<u32>, (Vec<String>, Groups)>;
    let mut all: BTreeMap<Option<u32>, Runlists> = BTreeMap::new();
    for c in model.channels() {
        let (engines, groups) = all
            .entry(c.gpu)
            .or_default()
            .entry(c.runlist())
            .or_default();
        for engine in c.engines() {
            if !engines.contains(&engine) {
                engines.push(engine);
            }
        }
        groups.entry((c.pid, c.tsg)).or_default().push(c.id);
    }
    all.into_iter()
        .map(|(gpu, runlists)| GpuReport {
            gpu,
            chip: gpu.and_then(|minor| model.gpu_by_minor(minor)?.chip()),
            runlists: runlists
                .into_iter()
                .map(|(number, (engines, groups))| Runlist {
                    number,
                    engines,
                    groups: groups
                        .into_iter()
                        .map(|((pid, tsg), channels)| (pid, tsg, channels))
                        .collect(),
                })
                .collect(),
        })
        .collect()
}

/// A wait in a channel's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Ring position of the entry with the wait.
    pub position: u64,
    /// Serial number, in the trace, of the submission.
    pub serial: u64,
    /// Thread that submitted the wait; 0 if not known.
    pub tid: u32,
    /// Semaphore's GPU address.
    pub address: GpuVa,
    /// Payload for which the channel waits.
    pub payload: u64,
    /// Comparison of the value with the payload.
    pub action: SemaphoreAction,
}

/// A submission that was committed while its channel had not yet passed an earlier wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Serial number of the submission in the trace.
    pub serial: u64,
    /// Thread that submitted.
    pub tid: u32,
    /// The earlier wait.
    pub wait: Wait,
}

/// Observations on one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Process.
    pub pid: u32,
    /// GPU by device file minor number.
    pub gpu: Option<u32>,
    /// Token.
    pub token: Option<u32>,
    /// NV2080_ENGINE_TYPE.
    pub engine: Option<u32>,
    /// Engine as the decoder's context has it, if the number is not known.
    pub runs_on: Engine,
    /// Number of entries of the ring.
    pub entries: Option<u32>,
    /// True if GP_GET was read with at least one submission. Without it nothing is known about submissions behind a wait.
    pub get_known: bool,
    /// Number of submissions.
    pub submissions: u64,
    /// Number of submissions by thread. Beyond [`MAX_THREADS`] threads, the rest counts as thread 0.
    pub threads: BTreeMap<u32, u64>,
    /// Number of waits in the channel's stream.
    pub waits: u64,
    /// Number of submissions that were committed while the channel had not yet passed an earlier wait.
    pub behind: u64,
    /// Part of `behind`: submissions that came from another thread than the wait.
    pub behind_other_thread: u64,
    /// First submission behind a wait of a different thread, else the first behind any wait.
    pub example: Option<Behind>,
    /// Waits that GP_GET has not yet been seen to pass.
    open: VecDeque<Wait>,
    position: u64,
    entry: u32,
}

/// The most threads that are counted separately in one channel.
pub const MAX_THREADS: usize = 1024;
const MAX_OPEN: usize = 4096;
const MAX_CHANNELS: usize = 1 << 15;

/// Collector of the threads that share channels.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    channels: BTreeMap<ChannelId, Shared>,
}

impl Sharing {
    /// Returns the observations, by channel.
    pub fn channels(&self) -> impl Iterator<Item = (ChannelId, &Shared)> {
        self.channels.iter().map(|(id, shared)| (*id, shared))
    }

    fn of(&mut self, id: ChannelId) -> Option<&mut Shared> {
        if self.channels.len() >= MAX_CHANNELS && !self.channels.contains_key(&id) {
            return None;
        }
        Some(self.channels.entry(id).or_default())
    }

    /// Takes in a channel that became known.
    pub fn channel(&mut self, channel: &Channel) {
        if let Some(shared) = self.of(channel.id) {
            shared.pid = channel.at.pid;
            shared.gpu = channel.gpu.or(shared.gpu);
            shared.token = channel.token.or(shared.token);
            shared.engine = channel.engine.or(shared.engine);
            shared.entries = channel.entries.or(shared.entries);
        }
    }

    /// Takes in an event, in stream order.
    pub fn event(&mut self, event: &Event<'_>) {
        let context = event.context;
        let Some(shared) = self.of(context.channel) else {
            return;
        };
        match &event.body {
            Body::Submission(head) => {
                shared.pid = context.at.pid;
                shared.token = context.token.or(shared.token);
                shared.gpu = context.gpu.or(shared.gpu);
                if context.engine != Engine::Unknown {
                    shared.runs_on = context.engine;
                }
                shared.submissions += 1;
                shared.get_known |= head.gp_get.is_some();
                let tid = match shared.threads.len() {
                    n if n >= MAX_THREADS && !shared.threads.contains_key(&context.at.tid) => 0,
                    _ => context.at.tid,
                };
                *shared.threads.entry(tid).or_default() += 1;
                shared.position = head.position;
                shared.entry = 0;
                if let Some(get) = head.gp_get {
                    shared.committed(head.position, get, head.prev_put, context.serial, tid);
                }
            }
            Body::Entry(entry) => shared.entry = entry.index,
            Body::Operation(Operation::Semaphore(s)) => {
                let waits = matches!(
                    s.action,
                    SemaphoreAction::AcquireEqual
                        | SemaphoreAction::AcquireGreaterEqual
                        | SemaphoreAction::AcquireAnd
                        | SemaphoreAction::AcquireNor
                );
                if waits {
                    shared.waits += 1;
                    if shared.open.len() >= MAX_OPEN {
                        shared.open.pop_front();
                    }
                    shared.open.push_back(Wait {
                        position: shared.position + u64::from(shared.entry),
                        serial: context.serial,
                        tid: context.at.tid,
                        address: s.address,
                        payload: s.payload,
                        action: s.action,
                    });
                }
            }
            _ => {}
        }
    }
}

impl Shared {
    /// Returns the number of threads that are known to have submitted into the channel.
    #[must_use]
    pub fn known_threads(&self) -> usize {
        self.threads.keys().filter(|tid| **tid != 0).count()
    }

    /// Takes in that further entries were committed at `position`, while GP_GET was `get` and GP_PUT was `put`.
    fn committed(&mut self, position: u64, get: u32, put: u32, serial: u64, tid: u32) {
        // Number of entries that the GPU had not fetched.
        let left = match self.entries {
            Some(n) if n != 0 => {
                (u64::from(put) + u64::from(n) - u64::from(get % n)) % u64::from(n)
            }
            _ if get <= put => u64::from(put - get),
            _ => return,
        };
        let fetched = position.saturating_sub(left);
        // GP_GET is just behind the entry being executed, and that entry may still wait.
        self.open.retain(|w| w.position + 1 >= fetched);
        let Some(wait) = self.open.front().copied() else {
            return;
        };
        if wait.position < fetched && left == 0 {
            // Everything was fetched, so it is unknown whether the last wait is over.
            return;
        }
        let other = wait.tid != tid;
        if other && self.behind_other_thread == 0 || self.behind == 0 {
            self.example = Some(Behind { serial, tid, wait });
        }
        self.behind += 1;
        self.behind_other_thread += u64::from(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode::event::{Context, Semaphore, SemaphoreUnit, SubmissionHead},
        record::{At, How},
    };

    fn context(tid: u32, serial: u64) -> Context {
        Context {
            absent_ns: None,
            at: At {
                time_ns: serial,
                pid: 1,
                tid,
            },
            thread: None,
            gpu: Some(0),
            channel: ChannelId(0),
            token: Some(0xa),
            class: None,
            engine: Engine::Graphics,
            serial,
            how: How::Trapped,
            late: false,
            phase: None,
            stack: None,
            gpu_time: None,
            parts: None,
            identity: None,
        }
    }

    fn submit(s: &mut Sharing, tid: u32, serial: u64, position: u64, get: u32, wait: bool) {
        let context = context(tid, serial);
        let put = u32::try_from(position % 1024).unwrap();
        s.event(&Event {
            context: &context,
            entry: 0,
            body: Body::Submission(SubmissionHead {
                position,
                gp_get: Some(get),
                prev_put: put,
                gp_put: (put + 1) % 1024,
                entries: 1,
                bytes: 0,
                missing: 0,
                ip: None,
            }),
        });
        if wait {
            let operation = Operation::Semaphore(Semaphore {
                unit: SemaphoreUnit::Host,
                action: SemaphoreAction::AcquireGreaterEqual,
                address: GpuVa(0x1000),
                payload: 7,
                wide: false,
                timestamp: false,
                reduction: None,
                wait_for_idle: false,
                execute: 0,
            });
            s.event(&Event {
                context: &context,
                entry: 0,
                body: Body::Operation(&operation),
            });
        }
    }

    #[test]
    fn work_behind_another_threads_wait_is_counted() {
        let mut s = Sharing::default();
        s.of(ChannelId(0)).unwrap().entries = Some(1024);
        // Thread 1 waits in entry 1020. GP_GET stays behind it while thread 2 submits across the ring's end.
        submit(&mut s, 1, 0, 1020, 1020, true);
        submit(&mut s, 2, 1, 1021, 1021, false); // all fetched: not known to wait
        submit(&mut s, 2, 2, 1022, 1021, false); // one left: it waits
        submit(&mut s, 1, 3, 1024, 1021, false); // its own thread's wait
        submit(&mut s, 2, 4, 1025, 0, false); // passed
        let (_, shared) = s.channels().next().unwrap();
        assert_eq!(shared.submissions, 5);
        assert_eq!(shared.threads, BTreeMap::from([(1, 2), (2, 3)]));
        assert_eq!(
            (shared.waits, shared.behind, shared.behind_other_thread),
            (1, 2, 1)
        );
        let example = shared.example.unwrap();
        assert_eq!((example.serial, example.tid, example.wait.tid), (2, 2, 1));
        assert_eq!(example.wait.position, 1020);
        assert!(shared.open.is_empty());
    }
}
