//! Joins the program's account with the trace of it: the channel of each kernel, and the kernel behind which it waited.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::slices::Busy;
use super::told::{self, Told};
use super::traced::{TracedChannel, TracedScenes};
use nvcap_decode::record::ChannelId;

/// A channel of a process of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Channel {
    /// Number of the channel in the recording.
    pub number: u32,
    pub pid: u32,
    /// N of /dev/nvidiaN.
    pub gpu: Option<u32>,
    pub token: Option<u32>,
    pub chid: Option<u32>,
    pub runlist: Option<u32>,
    /// Channel group (TSG) of the channel, numbered in the order of the channels.
    pub group: Option<usize>,
    /// Engines that the channel can feed.
    pub engines: Vec<String>,
    /// True if a kernel or a copy of a scene went into the channel.
    pub used: bool,
}

/// Kernel behind which another kernel waited.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Behind {
    /// Stream of this kernel. The waiting kernel started at this kernel's end, or at the start of its last block.
    pub stream: String,
    /// Time from that moment to the start of the waiting kernel, ns.
    pub after_ns: u64,
    /// True if both kernels are in the same channel; `None` unless both channels are known.
    pub same_channel: Option<bool>,
}

/// A kernel. Times are since the scene's first launch, ns.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    pub pid: u32,
    pub stream: String,
    pub priority: i32,
    /// Place of the kernel in its stream, from 0.
    pub nth: usize,
    /// Number of its channel.
    pub channel: Option<u32>,
    pub blocks: usize,
    pub sms: u64,
    pub called_ns: u64,
    pub returned_ns: u64,
    pub start_ns: u64,
    /// Time at which the kernel's last block started, ns.
    pub dispatched_ns: u64,
    pub end_ns: u64,
    /// True for the first kernel of its stream if it started more than a quarter of its length after its launch had returned.
    pub late: bool,
    /// Kernel behind which a late kernel waited, where one was found.
    pub behind: Option<Behind>,
    /// Times at which the kernel's first block ran.
    pub busy: Busy,
    #[serde(skip)]
    pub starts_ns: Vec<u64>,
}

/// Copies of one size.
#[derive(Clone, Debug, Serialize)]
pub struct Copied {
    pub pid: u32,
    pub stream: String,
    pub way: String,
    pub bytes: u64,
    pub copies: usize,
    /// Number of these copies that the trace shows.
    pub seen: u64,
    /// Numbers of the channels into which the copies went.
    pub channels: Vec<u32>,
    /// Median time from the end of one copy to the end of the next, ns.
    pub each_ns: u64,
    pub gb_per_s: f64,
    /// Times between ends that are not further apart than four times `each_ns`.
    pub busy: Busy,
}

/// A scene.
#[derive(Clone, Debug, Serialize)]
pub struct Scene {
    pub name: String,
    pub connections: Option<u32>,
    /// Number of streams with kernels.
    pub streams: usize,
    /// Number of the channels of these streams' kernels; `None` where a channel is not known.
    pub channels: Option<usize>,
    /// The most streams that share one channel.
    pub most_in_one: usize,
    /// Number of late kernels among the first kernels of the streams.
    pub late: usize,
    /// Part of `late`: kernels that waited behind a kernel of their own channel.
    pub late_behind_channel: usize,
    /// Number of late kernels in the run without a trace.
    pub late_untraced: Option<usize>,
    /// The most kernels that ran at the same time.
    pub at_once: usize,
    pub kernels: Vec<Ran>,
    pub copies: Vec<Copied>,
}

impl Scene {
    /// Returns the streams by the number of their channel.
    pub(crate) fn streams_by_channel(&self) -> BTreeMap<Option<u32>, BTreeSet<&str>> {
        let mut all: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
        for kernel in &self.kernels {
            all.entry(kernel.channel)
                .or_default()
                .insert(kernel.stream.as_str());
        }
        all
    }
}

/// Returns the channels of the processes that took part, numbered as in the recording.
pub(crate) fn channels(told: &Told, seen: &TracedScenes) -> Vec<Channel> {
    let pids: BTreeSet<u32> = told
        .scenes
        .iter()
        .flat_map(|s| &s.processes)
        .map(|p| p.pid)
        .collect();
    let in_copies = seen.copies_of(told).flat_map(|of_size| of_size.keys());
    let used: BTreeSet<ChannelId> = seen.kernels.values().chain(in_copies).copied().collect();
    let mut groups = Vec::new();
    let mut group_of = |found: &TracedChannel| {
        let group = (found.pid, found.group?);
        let at = groups.iter().position(|g| *g == group);
        Some(at.unwrap_or_else(|| {
            groups.push(group);
            groups.len() - 1
        }))
    };
    let taking_part = seen.channels.iter();
    let taking_part = taking_part.filter(|(id, c)| pids.contains(&c.pid) || used.contains(id));
    let channel = |(id, found): (&ChannelId, &TracedChannel)| Channel {
        number: id.0,
        pid: found.pid,
        gpu: found.gpu,
        token: found.token,
        chid: found.chid,
        runlist: found.runlist,
        group: group_of(found),
        engines: found.engines.clone(),
        used: used.contains(id),
    };
    taking_part.map(channel).collect()
}

/// Returns the scenes, in their order.
pub(crate) fn scenes(told: &Told, seen: &TracedScenes, untraced: Option<&Told>) -> Vec<Scene> {
    let late_in = |name: &str| {
        let scene = untraced?.scenes.iter().find(|s| s.name == name)?;
        Some(ran(scene, None).iter().filter(|k| k.late).count())
    };
    let scene = |scene: &told::Scene| {
        let kernels = ran(scene, Some(seen));
        let copies = copied(scene, seen);
        let late_untraced = late_in(&scene.name);
        summed(scene, late_untraced, kernels, copies)
    };
    told.scenes.iter().map(scene).collect()
}

fn summed(
    of: &told::Scene,
    late_untraced: Option<usize>,
    kernels: Vec<Ran>,
    copies: Vec<Copied>,
) -> Scene {
    let late: Vec<&Ran> = kernels.iter().filter(|k| k.late).collect();
    let in_channel = |k: &&&Ran| {
        k.behind
            .as_ref()
            .is_some_and(|b| b.same_channel == Some(true))
    };
    let mut scene = Scene {
        name: of.name.clone(),
        connections: of.connections,
        streams: kernels.iter().filter(|k| k.nth == 0).count(),
        channels: None,
        most_in_one: 0,
        late: late.len(),
        late_behind_channel: late.iter().filter(in_channel).count(),
        late_untraced,
        at_once: at_once(&kernels),
        kernels,
        copies,
    };
    let by_channel = scene.streams_by_channel();
    let most = by_channel.values().map(BTreeSet::len).max().unwrap_or(0);
    let known = (!by_channel.contains_key(&None)).then_some(by_channel.len());
    scene.most_in_one = most;
    scene.channels = known;
    scene
}

/// The scene's first launch or copy: the origin of its times.
fn origin(scene: &told::Scene) -> u64 {
    let kernels = scene.processes.iter().flat_map(|p| &p.kernels);
    let times = kernels.map(|k| k.called.min(k.start));
    let ends = scene.processes.iter().flat_map(|p| &p.copies);
    let ends = ends.filter_map(|c| c.ends.first().copied());
    times.chain(ends).min().unwrap_or(0)
}

/// Returns the kernels of a scene: those of each process, in the order of its launches.
fn ran(scene: &told::Scene, seen: Option<&TracedScenes>) -> Vec<Ran> {
    let origin = origin(scene);
    let since = |time: u64| time.saturating_sub(origin);
    let mut all = Vec::new();
    for process in &scene.processes {
        let mut in_stream: BTreeMap<&str, usize> = BTreeMap::new();
        for kernel in &process.kernels {
            let count = in_stream.entry(kernel.stream.as_str()).or_default();
            let nth = *count;
            *count += 1;
            let patience = kernel.ns / 4 + process.clock_error;
            let channel = seen.and_then(|s| s.kernels.get(&kernel.number));
            let pauses = kernel.pauses.iter();
            let pauses = pauses.map(|(from, to)| (since(*from), since(*to)));
            all.push(Ran {
                pid: process.pid,
                stream: kernel.stream.clone(),
                priority: kernel.priority,
                nth,
                channel: channel.map(|id| id.0),
                blocks: kernel.starts.len(),
                sms: kernel.sms,
                called_ns: since(kernel.called),
                returned_ns: since(kernel.returned),
                start_ns: since(kernel.start),
                dispatched_ns: since(kernel.starts.last().copied().unwrap_or(kernel.start)),
                end_ns: since(kernel.end),
                late: nth == 0 && kernel.start > kernel.returned + patience,
                behind: None,
                busy: Busy::new(since(kernel.start), since(kernel.end), pauses.collect()),
                starts_ns: kernel.starts.iter().map(|t| since(*t)).collect(),
            });
        }
    }
    let behind: Vec<_> = all
        .iter()
        .map(|k| k.late.then(|| behind(k, &all)))
        .collect();
    for (kernel, behind) in all.iter_mut().zip(behind) {
        kernel.behind = behind.flatten();
    }
    all
}

/// The kernel for which this one waited: its end, or the start of its last block, is the last such moment before this one's start.
/// The moment must come after this kernel's launch, or there was nothing to wait for.
fn behind(kernel: &Ran, all: &[Ran]) -> Option<Behind> {
    let moments = all
        .iter()
        .filter(|other| other.stream != kernel.stream || other.pid != kernel.pid)
        .flat_map(|other| [other.end_ns, other.dispatched_ns].map(|at| (at, other)));
    let before = moments.filter(|(at, _)| (kernel.returned_ns..=kernel.start_ns).contains(at));
    let (at, other) = before.max_by_key(|(at, _)| *at)?;
    let known = kernel.channel.zip(other.channel);
    Some(Behind {
        stream: other.stream.clone(),
        after_ns: kernel.start_ns - at,
        same_channel: known.map(|(a, b)| a == b),
    })
}

/// Returns the largest number of kernels that ran at the same time.
fn at_once(kernels: &[Ran]) -> usize {
    let running = |at: u64| {
        let runs = |k: &&Ran| (k.start_ns..k.end_ns).contains(&at);
        kernels.iter().filter(runs).count()
    };
    let starts = kernels.iter().map(|k| k.start_ns);
    starts.map(running).max().unwrap_or(0)
}

impl TracedScenes {
    /// Returns the copies of each size that the program has made, by channel.
    fn copies_of(&self, told: &Told) -> impl Iterator<Item = &BTreeMap<ChannelId, u64>> {
        let processes = told.scenes.iter().flat_map(|s| &s.processes);
        let sizes = processes.flat_map(|p| &p.copies).map(|c| c.bytes);
        sizes.filter_map(|bytes| self.copies.get(&bytes))
    }
}

fn copied(scene: &told::Scene, seen: &TracedScenes) -> Vec<Copied> {
    let origin = origin(scene);
    let mut all = Vec::new();
    for process in &scene.processes {
        for copies in &process.copies {
            let found = seen.copies.get(&copies.bytes);
            let ends = copies.ends.iter().map(|t| t.saturating_sub(origin));
            let (each_ns, busy) = Busy::of_ends(&ends.collect::<Vec<_>>());
            let took = busy.end_ns - busy.start_ns;
            let moved = copies.bytes as f64 * copies.ends.len().saturating_sub(1) as f64;
            all.push(Copied {
                pid: process.pid,
                stream: copies.stream.clone(),
                way: copies.way.clone(),
                bytes: copies.bytes,
                copies: copies.ends.len(),
                seen: found.map_or(0, |found| found.values().sum()),
                channels: found.map_or_else(Vec::new, |f| f.keys().map(|id| id.0).collect()),
                each_ns,
                gb_per_s: if took == 0 { 0.0 } else { moved / took as f64 },
                busy,
            });
        }
    }
    all
}
