//! What the decoder says: one [`Event`] at a time, borrowed, in stream order.
//!
//! A submission gives, in this order: one [`Body::Submission`]; per GPFIFO entry one [`Body::Entry`]; per method
//! write one [`Body::Method`]; and an [`Body::Operation`] as soon as the method that completes it was seen;
//! [`Body::Stop`] where an entry could not be read to its end. Sinks choose what they show.

use serde::Serialize;

use crate::record::{At, ChannelId, GpuVa, How};

/// Who submitted, to what: the same for every event of a submission.
#[derive(Clone, Debug)]
pub struct Context {
    /// Time of the doorbell, process and thread.
    pub at: At,
    /// Thread (or process) name, where known.
    pub thread: Option<std::sync::Arc<str>>,
    /// GPU by device file minor number, where known.
    pub gpu: Option<u32>,
    /// The channel.
    pub channel: ChannelId,
    /// Its work-submit token, where known.
    pub token: Option<u32>,
    /// Channel class (0xc86f), where known.
    pub class: Option<u32>,
    /// The engine the channel runs on.
    pub engine: Engine,
    /// Serial number of the submission in this trace, from 0.
    pub serial: u64,
    /// How it was seen.
    pub how: How,
    /// Caught up later than its own doorbell.
    pub late: bool,
    /// Name of the labelled time range it falls into (`--phases`).
    pub phase: Option<std::sync::Arc<str>>,
}

/// Which engine a channel feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Graphics and compute.
    Graphics,
    /// Copy engine, by number where known.
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
    /// Another, by NV2080_ENGINE_TYPE.
    Other(u32),
    /// Not known.
    #[default]
    Unknown,
}

/// One thing in a channel's stream.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// Who and to what.
    pub context: &'a Context,
    /// What.
    pub body: Body<'a>,
}

/// What an event is.
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
    /// An entry was not read to its end.
    Stop(Stop),
}

/// Head of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionHead {
    /// Position of the first entry, counted without wrapping.
    pub position: u64,
    /// GP_GET, where read.
    pub gp_get: Option<u32>,
    /// GP_PUT before.
    pub prev_put: u32,
    /// GP_PUT after.
    pub gp_put: u32,
    /// Number of entries.
    pub entries: u32,
    /// Pushbuffer bytes, the missing ones included.
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
    /// What it is.
    pub kind: EntryKind,
    /// Its pushbuffer bytes (empty for a control entry), zero where missing.
    pub bytes: &'a [u8],
}

/// What a GPFIFO entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A run of pushbuffer words.
    Segment {
        /// GPU address.
        address: GpuVa,
        /// Length in bytes.
        len: u32,
        /// Fetched only while the subdevice is active.
        conditional: bool,
        /// LEVEL: a subroutine.
        subroutine: bool,
        /// SYNC: wait before fetching.
        sync: bool,
    },
    /// A control entry (LENGTH = 0).
    Control {
        /// OPCODE.
        opcode: u8,
        /// OPERAND.
        operand: u32,
        /// SYNC.
        sync: bool,
    },
}

/// One method write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodWrite {
    /// Index of the entry in its submission.
    pub entry: u32,
    /// Byte offset of the data word (for immediate data: of the header) in the entry.
    pub offset: u32,
    /// Subchannel, 0..=7.
    pub subchannel: u8,
    /// Class that interprets it: the channel's class for host methods, else the class bound to the subchannel
    /// (0 when unknown).
    pub class: u32,
    /// Byte address of the method.
    pub method: u16,
    /// The data word.
    pub data: u32,
    /// Skipped by the subdevice mask.
    pub masked: bool,
}

impl MethodWrite {
    /// Class and address, printing as the method's name.
    pub fn id(&self) -> super::classes::MethodId {
        super::classes::MethodId {
            class: self.class,
            address: self.method,
        }
    }
}

/// Where and why the decoding of an entry stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stop {
    /// Index of the entry in its submission.
    pub entry: u32,
    /// Byte offset in the entry.
    pub offset: u32,
    /// Why.
    pub why: StopReason,
}

/// Why decoding stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// A header of an operation that does not exist.
    IllegalHeader(u32),
    /// The bytes from here on could not be read. Where they are data of one method, whose header told how long it is,
    /// reading goes on behind them.
    Missing {
        /// How many bytes are missing from here on.
        bytes: u32,
    },
    /// The entry ended inside a word.
    Cut {
        /// How many bytes more the word needs.
        needs: u32,
    },
    /// The entry says more bytes than were captured.
    Short {
        /// How many bytes more were announced.
        needs: u32,
    },
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::IllegalHeader(h) => write!(f, "{h:#010x} is no method header"),
            Self::Missing { bytes } => write!(f, "{bytes} B from here on could not be read"),
            Self::Cut { needs } => write!(f, "the entry ends inside a word, {needs} B short"),
            Self::Short { needs } => write!(f, "the entry announces {needs} B more"),
        }
    }
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

/// Something the GPU is told to do, put together from method writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Operation {
    /// A grid launch.
    Launch(Box<Launch>),
    /// A copy-engine transfer.
    Copy(Box<Copy>),
    /// Data carried in the pushbuffer and written to memory.
    Inline(Inline),
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

/// How a launch was commanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchHow {
    /// QMD carried by LOAD_INLINE_QMD_DATA.
    InlineQmd,
    /// By SEND_PCAS_A and SEND_SIGNALING_PCAS (or _B): the QMD lies in GPU memory.
    Pcas,
    /// QMD handed to a macro (CALL_MME_DATA), as graphics drivers do.
    Macro,
    /// By LAUNCH (Fermi).
    Launch,
}

/// Whose launch it is. The rules and their evidence: docs/decoding.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchKind {
    /// The program's.
    User,
    /// The driver's companion launch of a user launch (grid 0x0x0).
    Companion,
    /// The driver's own memset kernel.
    DriverMemset,
    /// The driver's own copy kernel.
    DriverCopy,
    /// A QMD at an address nothing was seen written to.
    Unresolved,
}

/// A constant bank of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConstantBank {
    /// Bank number.
    pub index: u32,
    /// GPU address.
    pub address: u64,
    /// Size in bytes.
    pub size: u32,
}

/// A semaphore a QMD releases when its grid ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QmdRelease {
    /// GPU address.
    pub address: u64,
    /// Payload.
    pub payload: u64,
}

/// A grid launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Launch {
    /// Whose.
    pub kind: LaunchKind,
    /// How commanded.
    pub how: LaunchHow,
    /// GPU address of the QMD, 256-byte aligned, where it has one.
    pub qmd: Option<u64>,
    /// Version of the QMD layout, major and minor; `None` when unresolved.
    pub qmd_version: Option<(u8, u8)>,
    /// Blocks in x, y, z; `None` when unresolved.
    pub grid: Option<[u32; 3]>,
    /// Threads of a block in x, y, z.
    pub block: Option<[u32; 3]>,
    /// Blocks of a cluster in x, y, z, where the layout has clusters and one is set.
    pub cluster: Option<[u32; 3]>,
    /// Registers of a thread.
    pub registers: Option<u32>,
    /// Shared memory of a block, bytes.
    pub shared_bytes: Option<u32>,
    /// Local memory of a thread, bytes.
    pub local_bytes: Option<u32>,
    /// Barriers of a block.
    pub barriers: Option<u32>,
    /// GPU address of the program.
    pub program: Option<u64>,
    /// Bytes of the program that were seen being written, where they were.
    pub program_bytes: Option<u64>,
    /// Kernel arguments as bytes, where the constant bank was seen being written.
    #[serde(serialize_with = "hex_option")]
    pub args: Option<Vec<u8>>,
    /// The valid constant banks.
    pub constant_banks: Vec<ConstantBank>,
    /// Semaphores released at its end.
    pub releases: Vec<QmdRelease>,
    /// GPU address of the QMD it launches next, where one is chained.
    pub dependent: Option<u64>,
}

/// Where an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// System memory.
    Host,
    /// This GPU's memory.
    Device,
    /// Another GPU's memory.
    Peer,
}

/// The memory that an address lies in, as the driver model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Where its bytes are.
    pub place: Option<Place>,
    /// RM client of the object.
    pub client: u32,
    /// Its handle there.
    pub handle: u32,
    /// Its class.
    pub class: u32,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Offset of the address in it.
    pub offset: u64,
    /// The same byte in the process, where it is mapped there.
    pub cpu: Option<u64>,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Direction {
    /// Host to device.
    #[serde(rename = "h2d")]
    HostToDevice,
    /// Device to host.
    #[serde(rename = "d2h")]
    DeviceToHost,
    /// Device to device.
    #[serde(rename = "d2d")]
    DeviceToDevice,
    /// Host to host.
    #[serde(rename = "h2h")]
    HostToHost,
    /// To or from another GPU.
    #[serde(rename = "p2p")]
    PeerToPeer,
}

/// How a direction was concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// From what is mapped at the addresses.
    Mappings,
    /// From the runlist that libcuda habitually uses for it.
    Habit,
    /// From the operation itself.
    Stated,
}

/// A copy-engine transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Copy {
    /// Bytes written (0 for a launch that transfers nothing).
    pub bytes: u64,
    /// Source address; `None` when there is none (a fill).
    pub src: Option<u64>,
    /// Destination address.
    pub dst: Option<u64>,
    /// Source and destination are physical addresses.
    pub physical: (bool, bool),
    /// `linear`, `pitch`, `block_linear`, `fill`, ... as docs/decoding.md lists them.
    pub mode: &'static str,
    /// `ce` with its number where known: the engine that runs it.
    pub engine: String,
    /// Which way, where concluded.
    pub direction: Option<Direction>,
    /// From what.
    pub direction_from: Option<Evidence>,
    /// Bytes of a line.
    pub line_bytes: u32,
    /// Lines (1 for 1D).
    pub lines: u32,
    /// Pitches of source and destination, bytes, where it has several lines.
    pub pitch: Option<(i32, i32)>,
    /// A fill's pattern.
    pub pattern: Option<Vec<u32>>,
    /// The semaphore this launch releases.
    pub semaphore: Option<SemaphoreWrite>,
    /// The data word of LAUNCH_DMA.
    pub launch_dma: u32,
    /// What the source lies in, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_memory: Option<Memory>,
    /// What the destination lies in, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_memory: Option<Memory>,
}

/// What is written to a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SemaphoreWrite {
    /// GPU address.
    pub address: u64,
    /// Payload.
    pub payload: u64,
    /// A timestamp is written beside it.
    pub timestamp: bool,
}

/// What inline data is, where known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InlineContent {
    /// The program's data (a small copy or set).
    Data,
    /// Machine code.
    Code,
    /// A constant bank (launch geometry, arguments).
    ConstantBank,
    /// A QMD.
    Qmd,
}

/// Data carried in the pushbuffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inline {
    /// Destination address.
    pub dst: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Bytes of a line and lines.
    pub line_bytes: u32,
    /// Lines.
    pub lines: u32,
    /// What it is, where known when it is written.
    pub content: Option<InlineContent>,
    /// Always host to device.
    pub direction: Direction,
    /// The first bytes (at most 64).
    #[serde(serialize_with = "hex")]
    pub head: Vec<u8>,
    /// What the destination lies in, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_memory: Option<Memory>,
}

/// Which unit handles a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SemaphoreUnit {
    /// The channel itself (SEM_EXECUTE, SEMAPHORED).
    Host,
    /// A compute or 3D class (REPORT_SEMAPHORE).
    Engine,
    /// A copy class.
    Copy,
}

/// What a semaphore operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SemaphoreAction {
    /// Writes the payload.
    Release,
    /// Waits until equal.
    AcquireEqual,
    /// Waits until greater or equal.
    AcquireGreaterEqual,
    /// Waits until (value AND payload) is not zero.
    AcquireAnd,
    /// Waits until NOT (value OR payload) is not zero.
    AcquireNor,
    /// Combines the payload with the value in memory.
    Reduction,
    /// Raises a trap or something the tables do not name.
    Other(u32),
}

/// A semaphore operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Semaphore {
    /// Which unit.
    pub unit: SemaphoreUnit,
    /// What it does.
    pub action: SemaphoreAction,
    /// GPU address.
    pub address: u64,
    /// Payload.
    pub payload: u64,
    /// 64-bit payload.
    pub wide: bool,
    /// A timestamp is written beside it.
    pub timestamp: bool,
    /// The name of the reduction, where it is one.
    pub reduction: Option<&'static str>,
    /// Waits for the engine to be idle before the release.
    pub wait_for_idle: bool,
    /// The data word that executed it.
    pub execute: u32,
}

/// A wait or a cache operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Barrier {
    /// `wfi`, `membar_sys`, `tlb_invalidate`, `invalidate_shader_caches`, ...: the method or operation in lower case.
    pub what: &'static str,
    /// The class.
    pub class: u32,
    /// The method.
    pub method: u16,
    /// The data word.
    pub data: u32,
    /// An address it is about.
    pub address: Option<u64>,
}

/// A class bound to a subchannel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bind {
    /// Subchannel.
    pub subchannel: u8,
    /// The class number.
    pub class: u32,
}

/// A 3D or 2D operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Draw {
    /// `draw`, `clear`, `blit`, ...
    pub what: &'static str,
    /// The class.
    pub class: u32,
    /// The method that set it off.
    pub method: u16,
    /// Its data word.
    pub data: u32,
    /// Vertices or indices, where the operation has them.
    pub count: Option<u32>,
}

/// A video job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Video {
    /// `decode`, `encode`, `jpeg`, `flow`, ...
    pub what: &'static str,
    /// The class.
    pub class: u32,
    /// Data word of EXECUTE.
    pub data: u32,
}

/// A host operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostOp {
    /// `yield`, `non_stall_interrupt`, `set_reference`, ...
    pub what: &'static str,
    /// The data word.
    pub data: u32,
}

fn hex<S: serde::Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        text.push(DIGITS[usize::from(b >> 4)] as char);
        text.push(DIGITS[usize::from(b & 15)] as char);
    }
    s.serialize_str(&text)
}

fn hex_option<S: serde::Serializer>(bytes: &Option<Vec<u8>>, s: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(b) => hex(b, s),
        None => s.serialize_none(),
    }
}
