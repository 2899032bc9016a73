//! Grid launches, and the graph replays whose nodes they are.

use super::Memory;
use crate::decode::pcas::PcasAction;
use std::sync::Arc;

use crate::record::{ChannelId, Kernel};
use crate::wire::GpuVa;

/// Way in which a launch was commanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum LaunchHow {
    /// By LOAD_INLINE_QMD_DATA, which carries the QMD.
    InlineQmd,
    /// By SEND_PCAS_A and a scheduling SEND_SIGNALING_PCAS. The QMD lies in GPU memory.
    Scheduled,
    /// By SEND_PCAS_A and a SEND_SIGNALING_PCAS that releases a waiting QMD (DECREMENT_DEPENDENCE): a node of a graph.
    Released,
    /// By another QMD, when its grid ends: a node of a graph that the pushbuffer does not name.
    Dependent,
    /// By a macro that is passed the QMD (CALL_MME_DATA), as graphics drivers do.
    Macro,
    /// By LAUNCH (Fermi).
    Launch,
}

/// Origin of a launch: the program or the driver. docs/decoding.md has the rules and their evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum LaunchKind {
    /// The program's own launch.
    User,
    /// The driver's companion launch of a user launch (grid 0x0x0).
    Companion,
    /// The driver's own memset kernel.
    DriverMemset,
    /// The driver's own copy kernel.
    DriverCopy,
    /// The driver's own kernel that continues a graph: it joins branches and decides conditional nodes.
    DriverGraph,
    /// Another kernel of the driver.
    Driver,
    /// A QMD at an address to which no write was seen.
    Unresolved,
}

/// The source of a QMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum QmdFrom {
    /// The stream: the write of the QMD was seen, or the pushbuffer carries the QMD.
    Stream,
    /// The driver's own copy in the process's memory ([`crate::record::QmdCopy`]). The QMD was written before the trace.
    Image,
}

/// The effect of a kernel of the driver: a memset, or a copy within the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Moves {
    /// First address written; `None` for an array, which the kernel knows by a number.
    pub dst: Option<GpuVa>,
    /// First address read, for a copy; `None` for an array.
    pub src: Option<GpuVa>,
    /// Bytes written; `None` if the size of the elements is unknown.
    pub bytes: Option<u64>,
    /// The repeated value of a memset.
    pub value: Option<u32>,
}

/// A constant bank of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ConstantBank {
    /// Bank number.
    pub index: u32,
    /// GPU address.
    pub address: GpuVa,
    /// Size in bytes.
    pub size: u32,
}

/// A semaphore that a QMD releases when its grid ends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct QmdRelease {
    /// GPU address.
    pub address: GpuVa,
    /// Payload.
    pub payload: u64,
}

/// A grid launch.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Launch {
    /// Origin of the launch.
    pub kind: LaunchKind,
    /// Way in which the launch was commanded.
    pub how: LaunchHow,
    /// Action on the QMD, if the pushbuffer names it.
    pub pcas: Option<PcasAction>,
    /// Number of the graph replay of which the launch is a node.
    pub replay: Option<u64>,
    /// Place among the nodes of that replay, from 0, in the order in which the nodes start each other.
    pub place: Option<u32>,
    /// GPU address of the QMD, 256-byte aligned, if it has one.
    pub qmd: Option<GpuVa>,
    /// Version of the QMD layout, major and minor; `None` if unresolved.
    pub qmd_version: Option<(u8, u8)>,
    /// Source of the QMD; `None` if unresolved.
    pub qmd_from: Option<QmdFrom>,
    /// Blocks in x, y, z (even if the QMD counts clusters); `None` if unresolved.
    pub grid: Option<[u32; 3]>,
    /// Threads of a block in x, y, z.
    pub block: Option<[u32; 3]>,
    /// Blocks of a cluster in x, y, z, if the grid is made of clusters.
    pub cluster: Option<[u32; 3]>,
    /// True if all blocks run at once (a cooperative launch).
    pub cooperative: bool,
    /// Registers of a thread.
    pub registers: Option<u32>,
    /// Shared memory of a block that the program requested, static and dynamic together, in bytes, rounded up as the
    /// hardware allocates it (to 128 bytes on Hopper).
    pub shared_bytes: Option<u32>,
    /// Shared memory of a block that the system reserves in addition, bytes.
    pub shared_reserved_bytes: Option<u32>,
    /// Local memory of a thread, bytes.
    pub local_bytes: Option<u32>,
    /// Barriers of a block.
    pub barriers: Option<u32>,
    /// GPU address of the program.
    pub program: Option<GpuVa>,
    /// GPU address of the program that a profiler has put in the place of `program`, and that continues with `program`. Equal to `program`
    /// if it is not known which program is replaced.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub stand_in: Option<GpuVa>,
    /// Length of the program, bytes, if its upload was seen.
    pub program_bytes: Option<u64>,
    /// Kernel of the program, if its name is known.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub kernel: Option<Arc<Kernel>>,
    /// The effect of a memset or copy kernel of the driver.
    pub moves: Option<Moves>,
    /// Kernel arguments as bytes, if the write of the constant bank was seen.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::hex_option"))]
    pub args: Option<Vec<u8>>,
    /// Memory to which pointers among the arguments lead, each with the argument's offset. Known only if the kernel's parameters and the
    /// memory are known.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub arg_memory: Vec<(u32, Memory)>,
    /// The valid constant banks.
    pub constant_banks: Vec<ConstantBank>,
    /// Semaphores that are released at the end of the grid.
    pub releases: Vec<QmdRelease>,
    /// GPU address of the QMD that is launched next, if one is chained.
    pub dependent: Option<GpuVa>,
}

/// One replay of a CUDA graph: a summary of the work of its submissions. Its nodes are emitted as launches with the replay's number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Graph {
    /// Number of the replay in this trace, from 0.
    pub replay: u64,
    /// Number of QMDs that run, including unseen ones, but without the empty grid that begins a graph.
    pub nodes: u32,
    /// Part of `nodes`: kernels of the program.
    pub kernels: u32,
    /// Part of `nodes`: memset kernels of the driver.
    pub memsets: u32,
    /// Part of `nodes`: copy kernels of the driver.
    pub copies: u32,
    /// Part of `nodes`: other kernels of the driver, which join branches and decide conditional nodes.
    pub driver: u32,
    /// Part of `nodes`: QMDs to whose address no write was seen.
    pub unresolved: u32,
    /// Channels to which the replay was submitted.
    pub channels: Vec<ChannelId>,
    /// Serial numbers, in this trace, of the replay's submissions.
    pub submissions: Vec<u64>,
    /// Pushbuffer bytes of these submissions.
    pub bytes: u64,
    /// True if the QMDs were uploaded or prepared again with this replay.
    pub uploaded: bool,
    /// True if the graph has conditional nodes: the GPU decides which other nodes run, and how often.
    pub conditional: bool,
}
