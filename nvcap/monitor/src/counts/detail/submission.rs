//! Content of one submission: the quantities that are summed up, and the work that the GPU can be at.

use std::collections::HashMap;

use super::super::ends::Ends;
use nvcap_decode::decode::event::{
    CopyMode, Direction, InlineContent, LaunchKind, Operation, SemaphoreAction,
};
use nvcap_decode::wire::GpuVa;

/// Means by which the bytes of a copy are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mover {
    /// A copy engine.
    Engine,
    /// The pushbuffer carries them.
    Inline,
    /// A kernel of the driver's.
    Kernel,
}

impl Mover {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Inline => "inline",
            Self::Kernel => "kernel",
        }
    }
}

/// Quantity that is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// Launches of kernels.
    Launches,
    /// Replays of graphs.
    Graphs,
    /// Bytes of pushbuffers.
    PushbufferBytes,
    /// The number of copies, by what moves them and which way.
    Copies(Mover, &'static str),
    /// The bytes of these copies.
    CopyBytes(Mover, &'static str),
    /// Launches of one program; none: of all programs beyond `MOST_KERNELS`.
    Kernel(Option<GpuVa>),
}

/// Work of a channel at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doing {
    /// Runs this program's kernel.
    Kernel(GpuVa),
    /// Replays a graph, whose kernels are not known.
    Graph,
    /// Copies.
    Copy(&'static str),
    /// Waits for a semaphore.
    Wait,
    /// Something else.
    Other,
    /// A submission that could not be read.
    Unread,
}

/// Programs with their registers.
pub(super) type Programs = Vec<(GpuVa, Option<u32>)>;

/// Content of one decoded submission.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub sums: HashMap<What, f64>,
    pub programs: Programs,
    pub waits: Vec<(GpuVa, u64)>,
    pub copies: Vec<&'static str>,
    pub ends: Ends,
}

impl Decoded {
    pub(super) fn add(&mut self, what: What, more: f64) {
        *self.sums.entry(what).or_default() += more;
    }

    fn moved(&mut self, by: Mover, path: &'static str, bytes: u64) {
        self.add(What::Copies(by, path), 1.0);
        self.add(What::CopyBytes(by, path), bytes as f64);
        if by != Mover::Inline {
            self.copies.push(path);
        }
    }

    pub(super) fn operation(&mut self, operation: &Operation) {
        self.ends.operation(operation);
        match operation {
            Operation::Launch(l) => {
                match l.kind {
                    LaunchKind::Companion => return,
                    LaunchKind::DriverMemset | LaunchKind::DriverCopy => {
                        let path = match l.kind {
                            LaunchKind::DriverMemset => "memset",
                            _ => "d2d",
                        };
                        let bytes = l.moves.and_then(|m| m.bytes).unwrap_or(0);
                        self.add(What::Copies(Mover::Kernel, path), 1.0);
                        self.add(What::CopyBytes(Mover::Kernel, path), bytes as f64);
                    }
                    LaunchKind::User | LaunchKind::Unresolved => self.add(What::Launches, 1.0),
                    _ => {}
                }
                if let Some(program) = l.program {
                    self.programs.push((program, l.registers));
                    if l.kind == LaunchKind::User {
                        self.add(What::Kernel(Some(program)), 1.0);
                    }
                }
            }
            Operation::Graph(_) => self.add(What::Graphs, 1.0),
            Operation::Copy(copy) if copy.dst.is_some() && copy.bytes > 0 => {
                let fills = matches!(copy.mode, CopyMode::Fill | CopyMode::FillBlockLinear);
                let path = match copy.direction {
                    _ if copy.src.is_none() || fills => "memset",
                    Some(direction) => path_of(direction),
                    None => "unknown",
                };
                self.moved(Mover::Engine, path, copy.bytes);
            }
            Operation::Inline(i) if i.content == Some(InlineContent::Data) => {
                let path = match i.fill {
                    Some(_) => "memset",
                    None => path_of(i.direction),
                };
                self.moved(Mover::Inline, path, i.bytes);
            }
            Operation::Semaphore(s) if waits(s.action) => self.waits.push((s.address, s.payload)),
            _ => {}
        }
    }
}

fn waits(action: SemaphoreAction) -> bool {
    matches!(
        action,
        SemaphoreAction::AcquireEqual | SemaphoreAction::AcquireGreaterEqual
    )
}

fn path_of(direction: Direction) -> &'static str {
    match direction {
        Direction::HostToDevice => "h2d",
        Direction::DeviceToHost => "d2h",
        Direction::DeviceToDevice => "d2d",
        Direction::HostToHost => "h2h",
        Direction::PeerToPeer => "p2p",
        Direction::HostToArray => "h2a",
        Direction::ArrayToHost => "a2h",
        Direction::DeviceToArray => "d2a",
        Direction::ArrayToDevice => "a2d",
        Direction::ArrayToArray => "a2a",
    }
}
