//! The tracks: GPU, process, engine and channel; process and thread; each described before its first event.

use std::collections::HashMap;

use super::packets::Packets;
use super::proto::{
    CounterDescriptor, EXPLICIT, ProcessDescriptor, ThreadDescriptor, TrackDescriptor, UNIT_BYTES,
    UNIT_COUNT,
};
use crate::output::ended::Ended;
use crate::output::names::{EngineName, gpu_name, known_name, pid_name};
use crate::shares::instance_name;
use nvcap_decode::decode::event::Engine;
use nvcap_decode::record::ChannelId;
use nvcap_decode::switches::Instance;

/// Place of a channel among the tracks, as it was known at the channel's first event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub gpu: Option<u32>,
    pub pid: u32,
    pub engine: Engine,
    pub channel: ChannelId,
}

/// A track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Track {
    /// A GPU.
    Gpu(Option<u32>),
    /// Contexts that have a GPU, or a MIG instance of it.
    Contexts(u32, Option<Instance>),
    /// Amount of a GPU's work that runs at once.
    Working(Option<u32>),
    /// A process on a GPU.
    User(Option<u32>, u32),
    /// Collectives of a process on a GPU: a rank's.
    Collectives(Option<u32>, u32),
    /// An engine that works for a process.
    Engine(Option<u32>, u32, Engine),
    /// A channel, and its first row.
    Channel(Place),
    /// Further rows of a channel, from 1 on.
    Row(Place, usize),
    /// Work of a channel at times that are not known.
    Untimed(Place),
    /// Entries of a channel that wait or run.
    Depth(Place),
    /// Entries of a channel's ring that the GPU has not fetched.
    Fill(Place),
    /// Bytes that a channel has moved.
    Bytes(Place),
    /// Share of a kernel in the samples of a process: its number among the names ([`Tracks::sampled`]).
    Sampled(u32, usize),
    /// A process.
    Process(u32),
    /// A thread: process and thread.
    Thread(u32, u32),
    /// Submissions of a process that were seen without a thread.
    Seen(u32),
    /// Notes of nvcap on the whole trace.
    Trace,
}

impl Track {
    fn pid(self) -> Option<u32> {
        match self {
            Self::Gpu(_) | Self::Contexts(..) | Self::Working(_) | Self::Trace => None,
            Self::User(_, pid)
            | Self::Collectives(_, pid)
            | Self::Engine(_, pid, _)
            | Self::Process(pid)
            | Self::Thread(pid, _)
            | Self::Seen(pid)
            | Self::Sampled(pid, _) => Some(pid),
            Self::Channel(p)
            | Self::Row(p, _)
            | Self::Untimed(p)
            | Self::Depth(p)
            | Self::Fill(p)
            | Self::Bytes(p) => Some(p.pid),
        }
    }
}

/// The number of a track, and the generation in which it was described.
#[derive(Clone, Copy, Debug)]
struct Described {
    uuid: u64,
    /// Generation in which it was described; none: to be described anew.
    generation: Option<u32>,
}

/// All tracks.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    all: HashMap<Track, Described>,
    /// Names of processes, and of threads by process and thread.
    names: HashMap<(u32, u32), String>,
    /// Names of sampled kernels, by process.
    sampled: HashMap<u32, Vec<String>>,
    last: u64,
    ended: Ended<u32>,
    /// Threads that have ended.
    ended_threads: Ended<(u32, u32)>,
}

impl Tracks {
    /// Returns a track's number. The track is described if the file has no description of it.
    pub(super) fn of(&mut self, packets: &mut Packets, track: Track) -> u64 {
        let generation = Some(packets.generation());
        let known = self.all.get(&track);
        if let Some(known) = known.filter(|k| k.generation == generation) {
            return known.uuid;
        }
        let uuid = known.map(|k| k.uuid).unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.all.insert(track, Described { uuid, generation });
        let descriptor = self.describe(packets, track);
        packets.track(TrackDescriptor {
            uuid: Some(uuid),
            ..descriptor
        });
        uuid
    }

    fn describe(&mut self, packets: &mut Packets, track: Track) -> TrackDescriptor {
        // Before the parent may be described, which needs all of this.
        let title = match track {
            Track::User(_, pid) => self.process_title(pid),
            Track::Thread(pid, tid) => self.thread_title(pid, tid),
            Track::Sampled(pid, number) => {
                let names = self.sampled.get(&pid);
                let name = names.and_then(|names| names.get(number));
                name.cloned().unwrap_or_default()
            }
            _ => String::new(),
        };
        let mut below = |parent: Track, name: String| TrackDescriptor {
            name: Some(name),
            parent_uuid: Some(self.of(packets, parent)),
            ..TrackDescriptor::default()
        };
        let top = |name: String| TrackDescriptor {
            name: Some(name),
            ..TrackDescriptor::default()
        };
        let channel = |p: Place| format!("channel {}", p.channel.0);
        let engine = |p: Place| Track::Engine(p.gpu, p.pid, p.engine);
        match track {
            Track::Gpu(gpu) => TrackDescriptor {
                sibling_order_rank: gpu.and_then(|n| i32::try_from(n).ok()),
                ..top(gpu_name(gpu))
            },
            Track::Working(gpu) => TrackDescriptor {
                counter: count(),
                ..below(Track::Gpu(gpu), "busy".to_owned())
            },
            Track::Contexts(gpu, instance) => {
                let name = instance.map_or("contexts".to_owned(), |i| {
                    format!("contexts of {}", instance_name(i))
                });
                below(Track::Gpu(Some(gpu)), name)
            }
            Track::User(gpu, _) => below(Track::Gpu(gpu), title),
            Track::Collectives(gpu, pid) => below(Track::User(gpu, pid), "collectives".to_owned()),
            Track::Engine(gpu, pid, engine) => TrackDescriptor {
                child_ordering: Some(EXPLICIT),
                ..below(Track::User(gpu, pid), EngineName(engine).to_string())
            },
            // Rows have one name, so that a viewer draws them as one track.
            Track::Channel(p) | Track::Row(p, _) => TrackDescriptor {
                sibling_order_rank: i32::try_from(p.channel.0).ok(),
                ..below(engine(p), channel(p))
            },
            Track::Untimed(p) => below(Track::Channel(p), "at an unknown time".to_owned()),
            Track::Depth(p) => TrackDescriptor {
                counter: count(),
                ..below(Track::Channel(p), format!("{} queue depth", channel(p)))
            },
            Track::Fill(p) => TrackDescriptor {
                counter: count(),
                ..below(Track::Channel(p), format!("{} ring fill", channel(p)))
            },
            Track::Bytes(p) => TrackDescriptor {
                counter: Some(CounterDescriptor {
                    unit: Some(UNIT_BYTES),
                    ..CounterDescriptor::default()
                }),
                ..below(Track::Channel(p), format!("{} bytes moved", channel(p)))
            },
            Track::Sampled(pid, _) => TrackDescriptor {
                counter: Some(CounterDescriptor {
                    unit_name: Some("% of samples".to_owned()),
                    ..CounterDescriptor::default()
                }),
                ..below(Track::Process(pid), title)
            },
            Track::Process(0) => top("process ?".to_owned()),
            Track::Process(pid) => TrackDescriptor {
                process: Some(ProcessDescriptor {
                    pid: i32::try_from(pid).ok(),
                    process_name: self.names.get(&(pid, pid)).cloned(),
                }),
                ..TrackDescriptor::default()
            },
            Track::Thread(0, _) => below(Track::Process(0), title),
            Track::Thread(pid, tid) => TrackDescriptor {
                thread: Some(ThreadDescriptor {
                    pid: i32::try_from(pid).ok(),
                    tid: Some(i64::from(tid)),
                    thread_name: self.names.get(&(pid, tid)).cloned(),
                }),
                parent_uuid: Some(self.of(packets, Track::Process(pid))),
                ..TrackDescriptor::default()
            },
            Track::Seen(pid) => below(Track::Process(pid), "submissions".to_owned()),
            Track::Trace => top("nvcap".to_owned()),
        }
    }

    /// Returns the name of a process, with its number.
    pub(super) fn process_title(&self, pid: u32) -> String {
        match self.names.get(&(pid, pid)) {
            Some(name) => format!("{name} ({})", pid_name(pid)),
            None => format!("process {}", pid_name(pid)),
        }
    }

    fn thread_title(&self, pid: u32, tid: u32) -> String {
        match self.names.get(&(pid, tid)) {
            Some(name) => format!("{name} {tid}"),
            None => format!("thread {tid}"),
        }
    }

    /// Gives a process (`tid` is `pid`) or thread a name, which it has from now on.
    pub(super) fn name(&mut self, pid: u32, tid: u32, name: &str) {
        let Some(name) = known_name(name) else { return };
        if self.names.get(&(pid, tid)).is_some_and(|n| n == name) {
            return;
        }
        self.names.insert((pid, tid), name.to_owned());
        if let Some(described) = self.all.get_mut(&Track::Thread(pid, tid)) {
            described.generation = None;
        }
        if tid != pid {
            return;
        }
        for (track, described) in &mut self.all {
            if matches!(track, Track::Process(p) | Track::User(_, p) if *p == pid) {
                described.generation = None;
            }
        }
    }

    /// Names a process or thread as [`Tracks::name`] does, unless it has a name already, which may be a better one.
    pub(super) fn name_if_new(&mut self, pid: u32, tid: u32, name: &str) {
        if !self.names.contains_key(&(pid, tid)) {
            self.name(pid, tid, name);
        }
    }

    /// Takes note that a process has ended. Returns one that ended so long ago that nothing of it comes any more.
    pub(super) fn ended(&mut self, pid: u32) -> Option<u32> {
        self.ended.ends(pid)
    }

    /// Takes note that a process begins. Tells whether another one with its number has ended.
    pub(super) fn begins(&mut self, pid: u32) -> bool {
        self.ended.begins(pid)
    }

    /// The track of a kernel's share of samples; none where a process has too many.
    pub(super) fn sampled(&mut self, pid: u32, name: &str, most: usize) -> Option<Track> {
        let names = self.sampled.entry(pid).or_default();
        let number = match names.iter().position(|known| known == name) {
            Some(number) => number,
            None if names.len() >= most => return None,
            None => {
                names.push(name.to_owned());
                names.len() - 1
            }
        };
        Some(Track::Sampled(pid, number))
    }

    /// Returns the number of kernels of a process that have such a track.
    pub(super) fn sampled_count(&self, pid: u32) -> usize {
        self.sampled.get(&pid).map_or(0, Vec::len)
    }

    /// Takes note that a thread has ended.
    pub(super) fn thread_ends(&mut self, pid: u32, tid: u32) {
        if let Some((pid, tid)) = self.ended_threads.ends((pid, tid)) {
            self.forget_thread(pid, tid);
        }
    }

    /// Takes note that a thread begins: one that had its number has a track of its own.
    pub(super) fn thread_begins(&mut self, pid: u32, tid: u32) {
        if self.ended_threads.begins((pid, tid)) {
            self.forget_thread(pid, tid);
        }
    }

    /// Returns the number of tracks and names that are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.all.len() + self.names.len()
    }

    fn forget_thread(&mut self, pid: u32, tid: u32) {
        self.all.remove(&Track::Thread(pid, tid));
        self.names.remove(&(pid, tid));
    }

    /// Forgets a process that has ended: another one with its number gets tracks of its own.
    pub(super) fn forget(&mut self, pid: u32) {
        self.all.retain(|track, _| track.pid() != Some(pid));
        self.names.retain(|(of, _), _| *of != pid);
        self.sampled.remove(&pid);
    }
}

fn count() -> Option<CounterDescriptor> {
    Some(CounterDescriptor {
        unit: Some(UNIT_COUNT),
        ..CounterDescriptor::default()
    })
}
