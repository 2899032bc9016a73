//! Works of the GPU as profilers count them: kernels, copies, memsets and replays of graphs, each with its begin and end.
//!
//! A time is of a ring entry. What an entry has the GPU do together is one work, as `nvcap time` counts it, so that sums of both agree.

use std::sync::Arc;

use crate::output::gpu_time::when::{When, is_at_doorbell};
use crate::output::gpu_time::work::{Done, Entries, elapsed};
use crate::output::names::is_timed;
use nvcap_decode::decode::event::{
    Context, Direction, Engine, GpuTime, Graph, Launch, LaunchKind, Operation, PartOf,
};
use nvcap_decode::record::ChannelId;

/// Kind of a work, as CUPTI's activities have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A kernel; or several works of one entry that are not all copies.
    Kernel,
    /// A replay of a graph.
    Graph,
    /// A copy, by an engine or by a kernel of the driver; without a direction where several in different directions are one work.
    Copy(Option<Direction>),
    /// A memset, by an engine or by a kernel of the driver.
    Memset,
}

impl Kind {
    fn of(op: &Operation) -> Self {
        match op {
            Operation::Graph(_) => Self::Graph,
            Operation::Copy(copy) if copy.src.is_none() => Self::Memset,
            Operation::Copy(copy) => Self::Copy(copy.direction),
            Operation::Launch(l) if l.moves.is_some() => match l.kind {
                LaunchKind::DriverMemset => Self::Memset,
                LaunchKind::DriverCopy => Self::Copy(Some(l.copy_direction())),
                _ => Self::Kernel,
            },
            _ => Self::Kernel,
        }
    }

    /// The kind of two works together.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other && one != Self::Graph => one,
            (Self::Copy(_) | Self::Memset, Self::Copy(_) | Self::Memset) => Self::Copy(None),
            _ => Self::Kernel,
        }
    }
}

/// Facts of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: Option<[u32; 3]>,
    pub(crate) block: Option<[u32; 3]>,
    pub(crate) registers: Option<u32>,
    /// Bytes of static and dynamic shared memory together.
    pub(crate) shared_bytes: Option<u32>,
    #[cfg(feature = "sqlite")]
    pub(crate) local_bytes: Option<u32>,
    #[cfg(feature = "sqlite")]
    pub(crate) cluster: Option<[u32; 3]>,
    /// Its name, where that is known.
    #[cfg(feature = "sqlite")]
    pub(crate) kernel: Option<Arc<nvcap_decode::record::Kernel>>,
}

impl Shape {
    fn of(l: &Launch) -> Self {
        Self {
            grid: l.grid,
            block: l.block,
            registers: l.registers,
            shared_bytes: l.shared_bytes,
            #[cfg(feature = "sqlite")]
            local_bytes: l.local_bytes,
            #[cfg(feature = "sqlite")]
            cluster: l.cluster,
            #[cfg(feature = "sqlite")]
            kernel: l.kernel.clone(),
        }
    }
}

/// Nodes of a graph that one replay ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    pub(crate) nodes: u32,
    pub(crate) kernels: u32,
    pub(crate) memsets: u32,
    pub(crate) copies: u32,
}

impl Replay {
    fn of(g: &Graph) -> Self {
        Self {
            nodes: g.nodes,
            kernels: g.kernels,
            memsets: g.memsets,
            copies: g.copies,
        }
    }
}

/// Times of a work, ns; the errors are the most by which they may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) begin: u64,
    pub(crate) begin_error: u64,
    pub(crate) duration: u64,
    pub(crate) duration_error: u64,
}

/// A work of one ring entry.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) pid: u32,
    /// The thread that submitted it; 0 where it is not known.
    pub(crate) tid: u32,
    pub(crate) gpu: Option<u32>,
    pub(crate) channel: ChannelId,
    pub(crate) engine: Engine,
    /// Number of its submission in the trace, from 0.
    pub(crate) serial: u64,
    /// Time of its doorbell, where the doorbell itself was seen, ns.
    pub(crate) doorbell: Option<u64>,
    /// The function of CUDA that submitted it.
    pub(crate) api: Option<Arc<str>>,
    pub(crate) kind: Kind,
    /// Its name as `nvcap time` has it.
    pub(crate) text: String,
    /// The number of its launches and copies.
    pub(crate) works: usize,
    /// Bytes that copies and memsets wrote.
    pub(crate) bytes: u64,
    /// Facts of its only launch.
    pub(crate) shape: Option<Shape>,
    pub(crate) replay: Option<Replay>,
    /// Work of the driver's own that it is a part of.
    pub(crate) part_of: Option<PartOf>,
    /// Its times; none where they are not known well enough.
    pub(crate) times: Option<Times>,
}

/// The work whose operations come now.
#[derive(Debug)]
struct Now {
    context: Context,
    entry: u32,
    kind: Kind,
    bytes: u64,
    shape: Option<Shape>,
    replay: Option<Replay>,
}

impl Now {
    fn of(c: &Context, entry: u32, op: &Operation) -> Self {
        Self {
            context: c.clone(),
            entry,
            kind: Kind::of(op),
            bytes: bytes(op),
            shape: match op {
                Operation::Launch(l) => Some(Shape::of(l)),
                _ => None,
            },
            replay: match op {
                Operation::Graph(g) => Some(Replay::of(g)),
                _ => None,
            },
        }
    }
}

/// Collects the operations of works.
#[derive(Debug, Default)]
pub(crate) struct Works {
    entries: Entries,
    now: Option<Now>,
}

impl Works {
    /// Takes an operation. If it begins a new work, returns the one before.
    pub(crate) fn operation(&mut self, c: &Context, entry: u32, op: &Operation) -> Option<Work> {
        if !is_timed(op) {
            return None;
        }
        let time = c.gpu_time_of(entry).copied().unwrap_or_default();
        let done = self.entries.operation(c, entry, &time, op);
        match &mut self.now {
            Some(now) if (now.context.serial, now.entry) == (c.serial, entry) => {
                now.kind = now.kind.and(Kind::of(op));
                now.bytes = now.bytes.saturating_add(bytes(op));
                None
            }
            now => {
                let before = now.replace(Now::of(c, entry, op));
                Some(work(before?, done?))
            }
        }
    }

    /// Ends the last work and returns it.
    pub(crate) fn finish(&mut self) -> Option<Work> {
        Some(work(self.now.take()?, self.entries.finish()?))
    }
}

/// Returns the bytes that a copy or memset writes, by an engine or a kernel.
fn bytes(op: &Operation) -> u64 {
    match op {
        Operation::Copy(copy) => copy.bytes,
        Operation::Launch(l) => l.moves.and_then(|m| m.bytes).unwrap_or(0),
        _ => 0,
    }
}

fn work(now: Now, done: Done) -> Work {
    let c = now.context;
    let works = done.what.works();
    Work {
        pid: c.at.pid,
        tid: c.at.tid,
        gpu: c.gpu,
        channel: c.channel,
        engine: c.engine,
        serial: c.serial,
        doorbell: c.at.time().filter(|_| is_at_doorbell(&c)),
        api: c.stack.as_ref().and_then(|s| s.api.clone()),
        kind: match works {
            1 => now.kind,
            // Works of other entries, for which this one stands, may be of any kind.
            _ if now.kind == Kind::Graph => Kind::Kernel,
            _ => now.kind,
        },
        text: done.text,
        works,
        bytes: now.bytes,
        shape: now.shape.filter(|_| works == 1),
        replay: now.replay.filter(|_| works == 1),
        part_of: c.part_of(now.entry),
        times: times(
            &c,
            &done.time,
            elapsed(&done.time).map(|d| (d.ns, d.error_ns)),
        ),
    }
}

fn times(c: &Context, time: &GpuTime, duration: Option<(u64, u64)>) -> Option<Times> {
    let (duration, duration_error) = duration?;
    Some(Times {
        begin: When::of(c, time).begin?,
        begin_error: time.start?.host_error_ns,
        duration,
        duration_error,
    })
}
