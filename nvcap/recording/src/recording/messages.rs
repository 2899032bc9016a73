//! Bodies of packets: protobuf messages with the fields of `docs/nvcap.proto` (a test compares the two).
//!
//! The number of a field is never reused for another field. Words that name a kind are texts, so that a reader that is older than the
//! writer can show kinds that it does not know.

use prost::{Message, Oneof};

pub(super) use super::kernel_messages::{KernelParam, KernelParams, Variable};
pub(super) use super::stack_messages::{LeftOutOfStacks, StackSample};
use super::trapped_messages::Trapped;

#[derive(Clone, PartialEq, Message)]
pub(super) struct At {
    #[prost(fixed64, tag = "1")]
    pub time_ns: u64,
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    #[prost(uint32, tag = "3")]
    pub tid: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Bytes {
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub full_len: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Device {
    #[prost(string, tag = "1")]
    pub file: String,
    #[prost(uint32, tag = "2")]
    pub major: u32,
    #[prost(uint32, tag = "3")]
    pub minor: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Nested {
    #[prost(fixed64, tag = "1")]
    pub address: u64,
    #[prost(message, optional, tag = "2")]
    pub input: Option<Bytes>,
    #[prost(message, optional, tag = "3")]
    pub output: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Ioctl {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(fixed64, optional, tag = "2")]
    pub end_ns: Option<u64>,
    #[prost(message, optional, tag = "3")]
    pub device: Option<Device>,
    #[prost(int32, optional, tag = "4")]
    pub fd: Option<i32>,
    #[prost(fixed64, tag = "5")]
    pub file: u64,
    #[prost(fixed64, tag = "6")]
    pub named_file: u64,
    #[prost(uint32, tag = "7")]
    pub request: u32,
    #[prost(sint64, optional, tag = "8")]
    pub result: Option<i64>,
    #[prost(message, optional, tag = "9")]
    pub input: Option<Bytes>,
    #[prost(message, optional, tag = "10")]
    pub output: Option<Bytes>,
    #[prost(message, optional, tag = "11")]
    pub nested: Option<Nested>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(message, optional, tag = "2")]
    pub device: Option<Device>,
    #[prost(int32, optional, tag = "3")]
    pub fd: Option<i32>,
    #[prost(fixed64, tag = "4")]
    pub file: u64,
    #[prost(fixed64, tag = "5")]
    pub start: u64,
    #[prost(uint64, tag = "6")]
    pub len: u64,
    #[prost(bool, tag = "7")]
    pub read: bool,
    #[prost(bool, tag = "8")]
    pub write: bool,
    #[prost(bool, tag = "9")]
    pub found: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Unmapping {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(fixed64, tag = "2")]
    pub start: u64,
    #[prost(uint64, tag = "3")]
    pub len: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(oneof = "Life", tags = "2, 3, 4, 5, 6, 7")]
    pub life: Option<Life>,
}

#[derive(Clone, PartialEq, Oneof)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time is made, and taken apart at once"
)]
pub(super) enum Life {
    /// Command name of a process that was there before.
    #[prost(string, tag = "2")]
    Present(String),
    #[prost(uint32, tag = "3")]
    Fork(u32),
    #[prost(uint32, tag = "4")]
    Thread(u32),
    /// New command name.
    #[prost(string, tag = "5")]
    Exec(String),
    /// True if the whole process ended.
    #[prost(bool, tag = "6")]
    Exit(bool),
    /// Identity of the process.
    #[prost(message, tag = "7")]
    Identity(Identity),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Identity {
    #[prost(string, tag = "1")]
    pub comm: String,
    #[prost(uint32, optional, tag = "2")]
    pub inner_pid: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub uid: Option<u32>,
    #[prost(string, optional, tag = "4")]
    pub user: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub cgroup: Option<String>,
    #[prost(message, optional, tag = "6")]
    pub container: Option<Container>,
    #[prost(message, optional, tag = "7")]
    pub pod: Option<Pod>,
    #[prost(message, repeated, tag = "8")]
    pub gpus: Vec<UsedGpu>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, optional, tag = "2")]
    pub runtime: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Pod {
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(string, optional, tag = "2")]
    pub qos: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub namespace: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct UsedGpu {
    #[prost(uint32, tag = "1")]
    pub minor: u32,
    #[prost(string, optional, tag = "2")]
    pub uuid: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Handle {
    #[prost(uint32, tag = "1")]
    pub client: u32,
    #[prost(uint32, tag = "2")]
    pub object: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Channel {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(uint32, tag = "2")]
    pub id: u32,
    #[prost(uint32, optional, tag = "3")]
    pub gpu: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub token: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    pub class: Option<u32>,
    #[prost(uint32, optional, tag = "6")]
    pub engine: Option<u32>,
    #[prost(message, optional, tag = "7")]
    pub handle: Option<Handle>,
    #[prost(fixed64, optional, tag = "8")]
    pub ring_gpu: Option<u64>,
    #[prost(fixed64, optional, tag = "9")]
    pub ring: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub entries: Option<u32>,
    #[prost(fixed64, optional, tag = "11")]
    pub userd: Option<u64>,
    #[prost(string, tag = "12")]
    pub origin: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Hole {
    #[prost(uint32, tag = "1")]
    pub offset: u32,
    #[prost(uint32, tag = "2")]
    pub len: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Segment {
    #[prost(fixed64, tag = "1")]
    pub entry: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub bytes: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    pub holes: Vec<Hole>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Submission {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(uint32, tag = "2")]
    pub channel: u32,
    #[prost(uint32, optional, tag = "3")]
    pub token: Option<u32>,
    #[prost(uint64, tag = "4")]
    pub position: u64,
    #[prost(uint32, optional, tag = "5")]
    pub gp_get: Option<u32>,
    #[prost(uint32, tag = "6")]
    pub prev_put: u32,
    #[prost(uint32, tag = "7")]
    pub gp_put: u32,
    #[prost(fixed64, optional, tag = "8")]
    pub ip: Option<u64>,
    #[prost(fixed64, optional, tag = "9")]
    pub doorbell: Option<u64>,
    #[prost(string, tag = "10")]
    pub how: String,
    #[prost(bool, tag = "11")]
    pub late: bool,
    #[prost(string, optional, tag = "12")]
    pub thread: Option<String>,
    #[prost(message, repeated, tag = "13")]
    pub segments: Vec<Segment>,
    #[prost(uint64, optional, tag = "14")]
    pub absent_before_ns: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gpu {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(uint32, tag = "2")]
    pub minor: u32,
    #[prost(uint32, tag = "3")]
    pub pci_device: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Image {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(fixed64, tag = "2")]
    pub address: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub bytes: Vec<u8>,
    #[prost(fixed64, tag = "4")]
    pub found: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Kernel {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(fixed64, tag = "2")]
    pub program: u64,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(uint64, optional, tag = "4")]
    pub bytes: Option<u64>,
    #[prost(message, optional, tag = "5")]
    pub params: Option<KernelParams>,
    #[prost(string, tag = "6")]
    pub by: String,
    #[prost(bool, tag = "7")]
    pub certain: bool,
    #[prost(bool, tag = "8")]
    pub driver: bool,
    #[prost(message, repeated, tag = "9")]
    pub variables: Vec<Variable>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Frame {
    #[prost(string, tag = "1")]
    pub module: String,
    #[prost(string, optional, tag = "2")]
    pub symbol: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    pub offset: Option<u64>,
    #[prost(uint64, tag = "4")]
    pub address: u64,
    #[prost(string, optional, tag = "5")]
    pub file: Option<String>,
    #[prost(uint32, optional, tag = "6")]
    pub line: Option<u32>,
    #[prost(bool, tag = "7")]
    pub python: bool,
    #[prost(bool, tag = "8")]
    pub inlined: bool,
}

/// Calls to which stacks refer by number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Calls {
    #[prost(uint32, tag = "1")]
    pub number: u32,
    #[prost(message, repeated, tag = "2")]
    pub frames: Vec<Frame>,
    #[prost(string, optional, tag = "3")]
    pub api: Option<String>,
    #[prost(string, tag = "4")]
    pub end: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Stack {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(uint32, tag = "2")]
    pub calls: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Stamp {
    #[prost(fixed64, tag = "1")]
    pub address: u64,
    #[prost(uint32, tag = "2")]
    pub payload: u32,
    #[prost(fixed64, optional, tag = "3")]
    pub gpu_ns: Option<u64>,
    #[prost(fixed64, tag = "4")]
    pub before_ns: u64,
    #[prost(fixed64, tag = "5")]
    pub seen_ns: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Stamps {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(fixed64, tag = "2")]
    pub from_ns: u64,
    #[prost(uint64, tag = "3")]
    pub reads: u64,
    #[prost(message, repeated, tag = "4")]
    pub stamps: Vec<Stamp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LostEntries {
    #[prost(uint64, tag = "1")]
    pub position: u64,
    #[prost(uint64, tag = "2")]
    pub count: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LostRecords {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(uint64, tag = "2")]
    pub count: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LostDoorbells {
    #[prost(uint32, optional, tag = "1")]
    pub token: Option<u32>,
    #[prost(uint64, tag = "2")]
    pub count: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Loss {
    #[prost(message, optional, tag = "1")]
    pub at: Option<At>,
    #[prost(uint32, optional, tag = "2")]
    pub channel: Option<u32>,
    #[prost(oneof = "Lost", tags = "3, 4, 5, 6, 7, 8")]
    pub what: Option<Lost>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Lost {
    #[prost(message, tag = "3")]
    Entries(LostEntries),
    #[prost(message, tag = "4")]
    Records(LostRecords),
    #[prost(message, tag = "5")]
    UnknownChannel(LostDoorbells),
    /// Number of stacks.
    #[prost(uint64, tag = "6")]
    Stacks(u64),
    /// Reason why something was not traced.
    #[prost(string, tag = "7")]
    Untraced(String),
    /// Number of channels whose error notifiers were not read at their process's end.
    #[prost(uint64, tag = "8")]
    Notifiers(u64),
}

/// First packet of a file: the description of the trace.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Trace {
    #[prost(string, tag = "1")]
    pub program: String,
    #[prost(string, optional, tag = "2")]
    pub driver: Option<String>,
    #[prost(string, tag = "3")]
    pub kernel: String,
    #[prost(string, tag = "4")]
    pub processor: String,
    #[prost(fixed64, tag = "5")]
    pub monotonic_ns: u64,
    #[prost(fixed64, tag = "6")]
    pub realtime_ns: u64,
    #[prost(string, tag = "7")]
    pub how: String,
    #[prost(bool, tag = "8")]
    pub gpu_time: bool,
    #[prost(bool, tag = "9")]
    pub stacks: bool,
    #[prost(bool, tag = "10")]
    pub in_order: bool,
    #[prost(bool, tag = "11")]
    pub redacted: bool,
    #[prost(string, repeated, tag = "12")]
    pub command: Vec<String>,
    #[prost(uint32, tag = "13")]
    pub file: u32,
    #[prost(uint64, tag = "14")]
    pub left_out: u64,
    #[prost(message, repeated, tag = "15")]
    pub gpus: Vec<HostGpu>,
    #[prost(uint64, tag = "16")]
    pub first: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HostGpu {
    #[prost(uint32, tag = "1")]
    pub minor: u32,
    #[prost(string, optional, tag = "2")]
    pub model: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub uuid: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub bus: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Margin {
    #[prost(uint32, tag = "1")]
    pub channel: u32,
    #[prost(uint64, tag = "2")]
    pub looks: u64,
    #[prost(uint64, tag = "3")]
    pub peeks: u64,
    #[prost(uint64, tag = "4")]
    pub longest_ns: u64,
    #[prost(double, tag = "5")]
    pub largest_part: f64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReaderCost {
    #[prost(uint64, tag = "1")]
    pub channels: u64,
    #[prost(uint64, tag = "2")]
    pub cpu_ns: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Observed {
    #[prost(uint64, tag = "1")]
    pub looks: u64,
    #[prost(uint64, tag = "2")]
    pub peeks: u64,
    #[prost(uint64, tag = "3")]
    pub longest_ns: u64,
    #[prost(double, tag = "4")]
    pub largest_part: f64,
    #[prost(uint64, tag = "5")]
    pub latest_ns: u64,
    #[prost(uint64, tag = "6")]
    pub longest_look_ns: u64,
    #[prost(uint64, tag = "7")]
    pub longest_search_ns: u64,
    #[prost(message, repeated, tag = "8")]
    pub margins: Vec<Margin>,
    #[prost(uint64, tag = "9")]
    pub tail_ns: u64,
    #[prost(uint64, tag = "10")]
    pub wall_ns: u64,
    #[prost(uint64, tag = "11")]
    pub cpu_ns: u64,
    #[prost(uint64, tag = "12")]
    pub reader_ns: u64,
    #[prost(double, optional, tag = "13")]
    pub budget: Option<f64>,
    #[prost(uint64, tag = "14")]
    pub throttled_ns: u64,
    #[prost(uint64, tag = "15")]
    pub laps: u64,
    #[prost(uint64, tag = "16")]
    pub rounds_unseen: u64,
    #[prost(uint64, tag = "17")]
    pub overwritten: u64,
    #[prost(uint64, tag = "18")]
    pub reused: u64,
    #[prost(uint64, tag = "19")]
    pub unparsable: u64,
    #[prost(uint64, tag = "20")]
    pub jumps: u64,
    #[prost(message, repeated, tag = "21")]
    pub readers: Vec<ReaderCost>,
}

/// Reading of a GPU's clock at one moment.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GpuClock {
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    #[prost(fixed64, tag = "2")]
    pub address: u64,
    #[prost(fixed64, tag = "3")]
    pub gpu_ns: u64,
    #[prost(fixed64, tag = "4")]
    pub before_ns: u64,
    #[prost(fixed64, tag = "5")]
    pub seen_ns: u64,
}

/// Last packet of a trace.
#[derive(Clone, PartialEq, Message)]
pub(super) struct End {
    #[prost(fixed64, tag = "1")]
    pub time_ns: u64,
    #[prost(message, optional, tag = "2")]
    pub observed: Option<Observed>,
    #[prost(message, optional, tag = "3")]
    pub stack_sample: Option<StackSample>,
    /// Number of objects that could not be written to the file.
    #[prost(uint64, tag = "4")]
    pub unwritten: u64,
    #[prost(message, repeated, tag = "5")]
    pub gpu_clocks: Vec<GpuClock>,
    #[prost(message, optional, tag = "6")]
    pub trapped: Option<Trapped>,
    #[prost(message, repeated, tag = "7")]
    pub left_out_of_stacks: Vec<LeftOutOfStacks>,
}
