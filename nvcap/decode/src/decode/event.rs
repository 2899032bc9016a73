//! The decoder's output: one [`Event`] at a time, borrowed, in stream order.
//!
//! A submission gives, in this order: one [`Body::Submission`]; then for each GPFIFO entry one [`Body::Entry`], and for each method write
//! in it one [`Body::Method`]; a [`Body::Operation`] right after the method that completes it; a [`Body::Stop`] if an entry could not be
//! read to its end. Sinks choose the events that they show.

use crate::wire::engine::Feeds;
mod context;
mod gpu_time;
mod inline;
mod launch;
mod load;

pub use context::Context;
pub use gpu_time::{
    DurationBy, GpuDuration, GpuExec, GpuMoment, GpuTime, GpuWait, Preempted, QueuedBy, StartBy,
};
pub use inline::{Inline, InlineContent, InlineData};
pub use launch::{ConstantBank, Graph, Launch, LaunchHow, LaunchKind, Moves, QmdFrom, QmdRelease};
pub use load::{Load, PartOf};

mod words;

pub use words::{CopyEngine, CopyMode, Reduction};

use crate::record::CpuVa;
use crate::wire::{GpuVa, entry::EntryKind, stream::StopReason};

/// Engine that a channel feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum Engine {
    /// Graphics and compute.
    Graphics,
    /// Copy engine, by number if known.
    Copy(Option<u32>),
    /// Video decoder.
    Nvdec(u32),
    /// Video encoder.
    Nvenc(u32),
    /// JPEG decoder.
    Nvjpg(u32),
    /// Optical flow.
    Ofa(u32),
    /// SEC2.
    Sec2,
    /// Another engine, by NV2080_ENGINE_TYPE.
    Other(u32),
    /// Not known.
    #[default]
    Unknown,
}

impl From<Feeds> for Engine {
    fn from(feeds: Feeds) -> Self {
        match feeds {
            Feeds::Graphics => Self::Graphics,
            Feeds::Copy => Self::Copy(None),
        }
    }
}

/// One event in a channel's stream.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// The submission's context.
    pub context: &'a Context,
    /// Index, within the submission, of the entry that the event comes from; 0 for an event of the whole submission.
    pub entry: u32,
    /// The event itself.
    pub body: Body<'a>,
}

/// The kinds of event.
#[derive(Clone, Debug)]
pub enum Body<'a> {
    /// A submission begins.
    Submission(SubmissionHead),
    /// A GPFIFO entry.
    Entry(EntryHead<'a>),
    /// A method write.
    Method(MethodWrite),
    /// An operation is complete.
    Operation(&'a Operation),
    /// The chip of a GPU was settled. The chip determines the classes of subchannels whose SET_OBJECT was not seen.
    Chip(ChipSettled),
    /// An entry was not read to its end.
    Stop(Stop),
}

/// The chip that is assumed for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipSettled {
    /// Name of the chip; the first name if several chips have the same classes.
    pub chip: &'static str,
    /// The evidence.
    pub by: ChipBy,
}

/// The evidence for a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum ChipBy {
    /// Class of the channel, which is an assumption: a chip also takes channels of older classes.
    Channel,
    /// Methods that were used, which is an assumption.
    Methods,
    /// The version of a QMD.
    QmdVersion,
    /// A class that was bound on the same GPU.
    Bound,
    /// The PCI device id.
    Pci,
    /// Class that was bound on the same GPU.
    Given,
}

impl ChipBy {
    /// Tells whether the chip is only assumed, and may be another one.
    #[must_use]
    pub fn is_assumed(self) -> bool {
        matches!(self, Self::Channel | Self::Methods)
    }
}

/// Head of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionHead {
    /// Position of the first entry, counted without wrapping.
    pub position: u64,
    /// GP_GET, if it was read.
    pub gp_get: Option<u32>,
    /// GP_PUT before the submission.
    pub prev_put: u32,
    /// GP_PUT after the submission.
    pub gp_put: u32,
    /// Number of entries.
    pub entries: u32,
    /// Pushbuffer bytes, including missing ones.
    pub bytes: u64,
    /// Pushbuffer bytes that could not be read.
    pub missing: u64,
    /// Address of the instruction after the doorbell's store.
    pub ip: Option<u64>,
}

/// A GPFIFO entry with its raw words.
#[derive(Clone, Copy, Debug)]
pub struct EntryHead<'a> {
    /// Index in the submission.
    pub index: u32,
    /// The ring entry.
    pub raw: u64,
    /// Its kind.
    pub kind: EntryKind,
    /// Pushbuffer bytes, zero where bytes are missing. Empty for a control entry.
    pub bytes: &'a [u8],
}

/// One method write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodWrite {
    /// Index of the entry in its submission.
    pub entry: u32,
    /// Byte offset, within the entry, of the data word (of the header, if the data is immediate).
    pub offset: u32,
    /// Subchannel, 0..=7.
    pub subchannel: u8,
    /// Class that interprets the method: the channel's class for host methods, else the class bound to the subchannel (0 if unknown).
    pub class: u32,
    /// Byte address of the method.
    pub method: u16,
    /// The data word.
    pub data: u32,
    /// True if the subdevice mask skips it.
    pub masked: bool,
}

impl MethodWrite {
    /// Returns class and address, which print as the method's name.
    pub fn id(&self) -> super::classes::MethodId {
        super::classes::MethodId {
            class: self.class,
            address: self.method,
        }
    }
}

/// Place at which the decoding of an entry stopped, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stop {
    /// Index of the entry in its submission.
    pub entry: u32,
    /// Byte offset in the entry.
    pub offset: u32,
    /// The reason.
    pub why: StopReason,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "stopped in entry {} at byte {}: {}",
            self.entry, self.offset, self.why
        )
    }
}

/// A command to the GPU, put together from method writes.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(tag = "op", rename_all = "snake_case")
)]
pub enum Operation {
    /// A grid launch.
    Launch(Box<Launch>),
    /// A replay of a CUDA graph, emitted when its last submission is known.
    Graph(Box<Graph>),
    /// A copy-engine transfer.
    Copy(Box<Copy>),
    /// Data carried in the pushbuffer and written to memory.
    Inline(Inline),
    /// A context that was made or a module that was loaded, as a summary of its submissions.
    Load(Load),
    /// A semaphore release, acquire or reduction.
    Semaphore(Semaphore),
    /// Waits and cache operations.
    Barrier(Barrier),
    /// A class bound to a subchannel.
    Bind(Bind),
    /// A 3D or 2D operation.
    Draw(Draw),
    /// A video or other falcon engine's job.
    Video(Video),
    /// A host operation with no memory effect: yield, interrupt, reference.
    Host(HostOp),
}

/// Location of the memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum Place {
    /// System memory.
    Host,
    /// This GPU's memory.
    Device,
    /// Another GPU's memory.
    Peer,
}

/// The memory at an address, as the driver model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Memory {
    /// Location of the bytes.
    pub place: Option<Place>,
    /// RM client that owns the memory object.
    pub client: u32,
    /// Handle of the memory object within the client.
    pub handle: u32,
    /// Class of the memory object.
    pub class: u32,
    /// Size of the memory object, bytes.
    pub size: Option<u64>,
    /// Offset of the address in the memory object.
    pub offset: u64,
    /// Address of the same byte in the process, if it is mapped there.
    pub cpu: Option<CpuVa>,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Direction {
    /// Host to device.
    #[cfg_attr(feature = "serde", serde(rename = "h2d"))]
    HostToDevice,
    /// Device to host.
    #[cfg_attr(feature = "serde", serde(rename = "d2h"))]
    DeviceToHost,
    /// Device to device.
    #[cfg_attr(feature = "serde", serde(rename = "d2d"))]
    DeviceToDevice,
    /// Host to host.
    #[cfg_attr(feature = "serde", serde(rename = "h2h"))]
    HostToHost,
    /// To or from another GPU.
    #[cfg_attr(feature = "serde", serde(rename = "p2p"))]
    PeerToPeer,
    /// Host to an array: block-linear memory of the device.
    #[cfg_attr(feature = "serde", serde(rename = "h2a"))]
    HostToArray,
    /// An array to the host.
    #[cfg_attr(feature = "serde", serde(rename = "a2h"))]
    ArrayToHost,
    /// Device to an array.
    #[cfg_attr(feature = "serde", serde(rename = "d2a"))]
    DeviceToArray,
    /// An array to the device.
    #[cfg_attr(feature = "serde", serde(rename = "a2d"))]
    ArrayToDevice,
    /// An array to an array.
    #[cfg_attr(feature = "serde", serde(rename = "a2a"))]
    ArrayToArray,
}

/// Evidence from which a direction was inferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum Evidence {
    /// The mappings at the addresses.
    Mappings,
    /// The runlist, which libcuda habitually uses for the direction.
    Habit,
    /// The operation itself.
    Stated,
}

/// A copy-engine transfer.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Copy {
    /// Bytes written (0 for a launch without a transfer).
    pub bytes: u64,
    /// Source address; `None` for a fill, which has no source.
    pub src: Option<GpuVa>,
    /// Destination address.
    pub dst: Option<GpuVa>,
    /// True for source and for destination if that one is a physical address.
    pub physical: (bool, bool),
    /// Layout of the bytes, or the change that the engine makes to them.
    pub mode: CopyMode,
    /// Engine that runs the copy.
    pub engine: CopyEngine,
    /// Direction, if it could be inferred.
    pub direction: Option<Direction>,
    /// Evidence for the direction.
    pub direction_from: Option<Evidence>,
    /// Length of a line, bytes.
    pub line_bytes: u32,
    /// Number of lines (1 for 1D).
    pub lines: u32,
    /// Pitches of source and destination, bytes, if there are several lines.
    pub pitch: Option<(i32, i32)>,
    /// A fill's pattern.
    pub pattern: Option<Vec<u32>>,
    /// Semaphore that this launch releases.
    pub semaphore: Option<SemaphoreWrite>,
    /// The data word of LAUNCH_DMA.
    pub launch_dma: u32,
    /// Memory at the source, if known.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub src_memory: Option<Memory>,
    /// Memory at the destination, if known.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub dst_memory: Option<Memory>,
}

/// A write to a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SemaphoreWrite {
    /// GPU address.
    pub address: GpuVa,
    /// Payload.
    pub payload: u64,
    /// True if a timestamp is written beside it.
    pub timestamp: bool,
}

/// Unit that handles a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum SemaphoreUnit {
    /// The channel itself (SEM_EXECUTE, SEMAPHORED).
    Host,
    /// A compute or 3D class (REPORT_SEMAPHORE).
    Engine,
    /// A copy class.
    Copy,
}

/// Action of a semaphore operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum SemaphoreAction {
    /// Writes the payload.
    Release,
    /// Waits until the value equals the payload.
    AcquireEqual,
    /// Waits until the value is greater than or equal to the payload.
    AcquireGreaterEqual,
    /// Waits until (value AND payload) is not zero.
    AcquireAnd,
    /// Waits until NOT (value OR payload) is not zero.
    AcquireNor,
    /// Combines the payload with the value in memory.
    Reduction,
    /// Raises a trap, or does something that the tables do not name.
    Other(u32),
}

/// A semaphore operation.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Semaphore {
    /// Unit that handles the semaphore.
    pub unit: SemaphoreUnit,
    /// The action.
    pub action: SemaphoreAction,
    /// GPU address.
    pub address: GpuVa,
    /// Payload.
    pub payload: u64,
    /// True for a payload of 64 bits.
    pub wide: bool,
    /// True if a timestamp is written beside it.
    pub timestamp: bool,
    /// The kind of reduction.
    pub reduction: Option<Reduction>,
    /// True if the release waits until the engine is idle.
    pub wait_for_idle: bool,
    /// Data word that executed the operation.
    pub execute: u32,
}

/// A wait or a cache operation.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Barrier {
    /// Name: the method or operation in lower case, such as `wfi`, `membar_sys`, `tlb_invalidate`, `invalidate_shader_caches`.
    pub what: &'static str,
    /// The class.
    pub class: u32,
    /// The method.
    pub method: u16,
    /// The data word.
    pub data: u32,
    /// Address that the operation concerns.
    pub address: Option<GpuVa>,
}

/// A class bound to a subchannel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Bind {
    /// Subchannel.
    pub subchannel: u8,
    /// The class number.
    pub class: u32,
}

/// A 3D or 2D operation.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Draw {
    /// Name: `draw`, `clear`, `blit`, ...
    pub what: &'static str,
    /// The class.
    pub class: u32,
    /// The method that triggered it.
    pub method: u16,
    /// Data word of that method.
    pub data: u32,
    /// Vertices or indices, if the operation has them.
    pub count: Option<u32>,
}

/// A video job.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Video {
    /// Name: `decode`, `encode`, `jpeg`, `flow`, ...
    pub what: &'static str,
    /// The class.
    pub class: u32,
    /// Data word of EXECUTE.
    pub data: u32,
}

/// A host operation.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct HostOp {
    /// Name: `yield`, `non_stall_interrupt`, `set_reference`, ...
    pub what: &'static str,
    /// The data word.
    pub data: u32,
}

#[cfg(feature = "serde")]
fn hex<S: serde::Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        text.push(DIGITS[usize::from(b >> 4)] as char);
        text.push(DIGITS[usize::from(b & 15)] as char);
    }
    s.serialize_str(&text)
}

#[cfg(feature = "serde")]
fn hex_option<S: serde::Serializer>(bytes: &Option<Vec<u8>>, s: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(b) => hex(b, s),
        None => s.serialize_none(),
    }
}
