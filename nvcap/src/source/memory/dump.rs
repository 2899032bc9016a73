//! `nvcap dump`: one look at processes, read, decoded and judged. Each process costs milliseconds and is neither
//! stopped nor changed.

use std::{
    fs, io,
    time::{Duration, Instant},
};

use super::{
    chip, find, maps,
    process::Memory,
    seen::Seen,
    snapshot::{self, Snapshot},
    tasks,
};
use crate::decode::{
    self, Decoder, Places, Wants,
    classes::{self, Family},
    defaults::Chip,
    event::{Engine, Place},
    stream::{Item, Stream},
};
use crate::hang::{self, ChannelFacts, ChannelScene, Look, ProcessLook, Root, Values};
use crate::record::{ChannelId, Device, GpuVa, Record};

/// Semaphores whose value is read at most: one look stays one look.
const MOST_SEMAPHORES: usize = 65_536;

/// How long a process's channels are read again of which something is missing: as long as a PyTorch training on an H200
/// takes to fill a ring (60 entries a ms), for its pushbuffer memory begins anew about as often.
const PATIENCE: Duration = Duration::from_millis(18);

/// Entries read before those that are not fetched, for what runs is among them.
const BEFORE: u32 = 64;

/// What to look at and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Entries of each channel, beside those that are not fetched.
    pub last: u32,
    /// How much is searched for channels.
    pub effort: find::Effort,
    /// The chip, where the user tells it.
    pub chip: Option<&'static Chip>,
    /// Channels that the user names.
    pub given: Vec<snapshot::Given>,
}

impl Options {
    fn of_process(&self, before: u32) -> snapshot::Options<'_> {
        snapshot::Options {
            last: self.last,
            before,
            effort: self.effort,
            given: &self.given,
            patience: PATIENCE,
        }
    }
}

/// Processes that map a GPU's device file, by id. Those that may not be looked at are left out.
#[must_use]
pub fn gpu_processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<u32> = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            maps::areas(*pid).is_ok_and(|areas| {
                areas
                    .iter()
                    .any(|a| a.write && matches!(a.device(), Some(Device::Gpu(_))))
            })
        })
        .collect();
    pids.sort_unstable();
    pids
}

/// Looks at processes at once, one after the other.
///
/// # Errors
/// For each process that could not be looked at: its id and why. Those that could are in the look.
pub fn look(pids: &[u32], options: &Options) -> (Look, Vec<(u32, io::Error)>) {
    let start = Instant::now();
    let (mut look, mut refused) = look_back(pids, options, BEFORE);
    // Who releases what is waited for may stand further back: nothing is said to be missing before all was read.
    let blocked = &look.analysis.blocked;
    if blocked
        .iter()
        .any(|b| !matches!(b.root, Root::Work { .. } | Root::Unknown))
    {
        (look, refused) = look_back(pids, options, u32::MAX);
    }
    look.took_ns = start.elapsed().as_nanos() as u64;
    (look, refused)
}

fn look_back(pids: &[u32], options: &Options, before: u32) -> (Look, Vec<(u32, io::Error)>) {
    let mut look = Look {
        time_ns: snapshot::now_ns(),
        ..Look::default()
    };
    let mut refused = Vec::new();
    let mut decoder = Decoder::new(decode::Options {
        wants: Wants {
            entries: false,
            methods: false,
            operations: true,
        },
        chip: options.chip,
        ..decode::Options::default()
    });
    if options.chip.is_none() {
        for (minor, chip) in chip::chips() {
            decoder.chip(Some(minor), chip);
        }
    }
    let mut memories = Vec::new();
    let mut next = 0;
    for pid in pids {
        match snapshot::take(*pid, next, options.of_process(before)) {
            Ok((memory, snapshot)) => {
                next += snapshot.channels.len() as u32;
                look.scene.channels.extend(decoded(&mut decoder, &snapshot));
                let threads = tasks::tasks(*pid).unwrap_or_default();
                look.processes.push(process(&snapshot, threads));
                memories.push((*pid, memory, snapshot));
            }
            Err(e) => refused.push((*pid, e)),
        }
    }
    let values = values(&look.scene, &memories);
    look.analysis = hang::analyse(&look.scene, &values);
    (look, refused)
}

/// The same look as records, for the pipeline that every other source feeds.
#[must_use]
pub fn records(pids: &[u32], options: &Options) -> (Vec<Record>, Vec<(u32, io::Error)>) {
    let (mut records, mut refused, mut next) = (Vec::new(), Vec::new(), 0);
    for pid in pids {
        match snapshot::take(*pid, next, options.of_process(0)) {
            Ok((_, snapshot)) => {
                next += snapshot.channels.len() as u32;
                records.extend(snapshot.records());
            }
            Err(e) => refused.push((*pid, e)),
        }
    }
    (records, refused)
}

/// Where addresses lie, by the mappings alone.
struct ByMaps<'a>(find::Places<'a>);

impl Places for ByMaps<'_> {
    fn place(&self, _: u32, va: GpuVa) -> Option<Place> {
        match self.0.at(va.0)?.device() {
            Some(Device::Control) | None => Some(Place::Host),
            Some(Device::Gpu(_)) => Some(Place::Device),
            // Managed memory is now here, now there.
            Some(_) => None,
        }
    }
}

fn decoded(decoder: &mut Decoder, snapshot: &Snapshot) -> Vec<ChannelScene> {
    let places = ByMaps(find::Places::new(&snapshot.areas));
    // The beginnings of rings first: a class that one channel binds tells which chip all of them are on.
    for seen in &snapshot.channels {
        decoder.channel(&seen.channel);
        decoder.engine(seen.channel.id, engine(seen));
        for s in &seen.first {
            let context = decoder.context(s, 0);
            decoder.submission(s, &context, &places, &mut |_| {});
        }
    }
    let mut scenes = Vec::new();
    for seen in &snapshot.channels {
        let mut scene = ChannelScene::new(
            seen.channel.id,
            snapshot.pid,
            seen.get,
            seen.put,
            seen.found.entries,
        );
        scene.gpu = seen.channel.gpu;
        scene.token = seen.channel.token;
        scene.engine = engine(seen);
        for s in &seen.submissions {
            let context = decoder.context(s, 0);
            scene.decode(decoder, &context, &places, s);
        }
        scenes.push(scene);
    }
    scenes
}

/// What a channel feeds: by the classes it binds, else by the subchannels it uses (0 to 3 exist on a graphics runlist
/// alone; libcuda uses 4 for copy engines).
fn engine(seen: &Seen) -> Engine {
    let (mut bound, mut used) = (Engine::Unknown, Engine::Unknown);
    for s in seen.first.iter().chain(&seen.submissions) {
        for segment in s.segments.iter().filter(|s| s.holes.is_empty()) {
            let mut stream = Stream::default();
            let len = segment.bytes.len() as u32;
            for item in stream.runs(&segment.bytes, len, &[]) {
                let Item::Run(run) = item else { continue };
                match (run.address, run.subchannel) {
                    (0, _) if !run.is_empty() => {
                        match classes::family(run.word(0).unwrap_or(0) & 0xffff) {
                            Family::Compute | Family::Graphics3d => return Engine::Graphics,
                            Family::Copy => bound = Engine::Copy(None),
                            _ => {}
                        }
                    }
                    (0x100.., 0..=3) => used = Engine::Graphics,
                    (0x100.., 4) if used == Engine::Unknown => used = Engine::Copy(None),
                    _ => {}
                }
            }
        }
        if bound == Engine::Unknown && used == Engine::Graphics {
            return used;
        }
    }
    if bound == Engine::Unknown {
        used
    } else {
        bound
    }
}

fn process(snapshot: &Snapshot, threads: Vec<hang::Thread>) -> ProcessLook {
    let windows = snapshot.windows.iter().map(|w| {
        format!(
            "pushbuffers at {:#x} for the GPU were read at {:#x} of the process: the only place where what the newest entries \
             point to is filled by methods",
            w.gpu, w.cpu
        )
    });
    ProcessLook {
        pid: snapshot.pid,
        name: snapshot.name.clone(),
        threads,
        channels: snapshot.channels.iter().map(facts).collect(),
        unused: snapshot.unused,
        notes: snapshot.notes.iter().cloned().chain(windows).collect(),
        finding_ns: snapshot.finding.as_nanos() as u64,
        reading_ns: snapshot.reading.as_nanos() as u64,
    }
}

fn facts(seen: &Seen) -> ChannelFacts {
    let proof = seen.found.proof;
    let by_notifier = seen.notifier.map(|n| n.token) == seen.channel.token;
    ChannelFacts {
        channel: seen.channel.id,
        ring: seen.found.ring,
        userd: seen.found.userd,
        place: match proof.place {
            find::Place::Habit => "habit",
            find::Place::Alike => "alike",
            find::Place::Sought => "sought",
            find::Place::Given => "given",
        },
        size: match proof.size {
            find::Size::Habit => "habit",
            find::Size::Wrapped => "wrapped",
            find::Size::Room => "room",
        },
        target: match proof.target {
            find::Target::Unused => "unused",
            find::Target::Parses => "parses",
            find::Target::Readable => "readable",
            find::Target::Elsewhere => "elsewhere",
        },
        moved: proof.moved,
        token_from: seen
            .channel
            .token
            .map(|_| if by_notifier { "notifier" } else { "given" }),
        error: seen.notifier.and_then(|n| n.error),
        overwritten: seen.overwritten,
        recycled: seen.recycled,
        unreadable: seen.unreadable,
        elsewhere: seen.elsewhere,
        ring_gone: seen.ring_gone,
    }
}

/// What stands in the semaphores that the analysis asks for.
fn values(scene: &hang::Scene, memories: &[(u32, Memory, Snapshot)]) -> Values {
    let mut values = Values::default();
    let addresses = hang::addresses(scene);
    for (pid, memory, snapshot) in memories {
        let places = find::Places::new(&snapshot.areas);
        let of = addresses.iter().filter(|(p, _)| p == pid);
        for (_, address) in of.take(MOST_SEMAPHORES) {
            if let Some(value) = snapshot::read_semaphore(memory, &places, *address) {
                values.set(*pid, *address, value);
            }
        }
    }
    values
}

/// Whether two channels of different looks are the same one.
pub fn same_channel(before: &Look, now: &Look) -> impl Fn(usize, usize) -> bool {
    let keys = |look: &Look| -> Vec<(u32, u64)> {
        let of = |id: ChannelId| look.facts(id).map_or(0, |f| f.userd);
        let channels = look.scene.channels.iter();
        channels.map(|c| (c.pid, of(c.id))).collect()
    };
    let (before, now) = (keys(before), keys(now));
    move |b, n| matches!((before.get(b), now.get(n)), (Some(b), Some(n)) if b == n)
}
