//! Raw records: what a source saw, before anything is concluded from it.
//!
//! Every source (the breakpoint trap, `/proc/PID/mem`, a capture file, an imported log) delivers the same
//! [`Record`]s in the order it saw them. Nothing here is derived, so a better model or decoder reads old
//! records and says more. This module knows no source, no model and no decoder.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC` of the traced machine.

use std::fmt;

/// An address as the GPU uses it in a given address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuVa(pub u64);

/// An address in a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuVa(pub u64);

macro_rules! address {
    ($($t:ty)*) => { $(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{:#x}", self.0) }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{:#x}", self.0) }
        }
    )* };
}
address!(GpuVa CpuVa);

/// When and where something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct At {
    /// Nanoseconds, `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Process (thread group) id in the tracer's PID namespace; 0 where the source does not know it.
    pub pid: u32,
    /// Thread id; 0 where the source cannot know it (observed rings).
    pub tid: u32,
}

/// Which NVIDIA device file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// `/dev/nvidiactl`.
    Control,
    /// `/dev/nvidiaN`, by its minor number N.
    Gpu(u32),
    /// `/dev/nvidia-uvm` or `/dev/nvidia-uvm-tools`.
    Uvm,
    /// Another device file of the driver: major, minor.
    Other(u32, u32),
}

/// Bytes copied from the traced process, which may be fewer than there were.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Bytes {
    /// What was copied, from the start.
    pub data: Vec<u8>,
    /// How many bytes there were to copy.
    pub full_len: u64,
}

/// A structure that an ioctl argument points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    /// Where it lies in the process.
    pub address: CpuVa,
    /// Before the call.
    pub input: Bytes,
    /// After the call.
    pub output: Bytes,
}

/// One ioctl on a device file of the driver, recorded at its return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// Entry of the call.
    pub at: At,
    /// Return of the call, ns; `None` where it was not seen.
    pub end_ns: Option<u64>,
    /// The device file.
    pub device: Device,
    /// The file descriptor, where the source knows it.
    pub fd: Option<i32>,
    /// An opaque number that is the same for the same open file of one boot, 0 where unknown.
    pub file: u64,
    /// For an argument that itself names a file descriptor (NV_ESC_RM_MAP_MEMORY): that open file's number.
    pub named_file: u64,
    /// The request number (`_IOC` encoded for RM, plain for UVM).
    pub request: u32,
    /// The system call's result (negative errno, or >= 0); `None` where it was not seen.
    pub result: Option<i64>,
    /// The argument structure before the call.
    pub input: Bytes,
    /// The argument structure after the call.
    pub output: Bytes,
    /// The parameters it points to.
    pub nested: Option<Nested>,
}

/// A mapping of a device file into a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// When it was made (or, for one found afterwards, when it was found).
    pub at: At,
    /// The device file mapped.
    pub device: Device,
    /// As in [`Ioctl::fd`].
    pub fd: Option<i32>,
    /// As in [`Ioctl::file`].
    pub file: u64,
    /// First address.
    pub start: CpuVa,
    /// Length in bytes.
    pub len: u64,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// It was there before the trace began (found in `/proc/PID/maps`).
    pub found: bool,
}

/// A range of addresses that a process gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmapping {
    /// When.
    pub at: At,
    /// First address.
    pub start: CpuVa,
    /// Length in bytes.
    pub len: u64,
}

/// What became of a process or thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It was there, or became traced, under this command name.
    Present {
        /// Command name of the process.
        name: String,
    },
    /// It made a child process, which is now traced too.
    Fork {
        /// The child.
        child: u32,
    },
    /// It made a thread.
    Thread {
        /// The thread id.
        child: u32,
    },
    /// It executed a new program: all its mappings are gone.
    Exec {
        /// The new command name.
        name: String,
    },
    /// The thread `tid` ended; if it was the last, `process` is true.
    Exit {
        /// The whole process ended.
        process: bool,
    },
}

/// A change in the life of a traced process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// When, and which.
    pub at: At,
    /// What.
    pub life: Life,
}

/// A channel's number in this trace: given by whoever made the channel known, never reused in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize)]
pub struct ChannelId(pub u32);

/// A channel that became known to the source: everything after it may name the channel by `id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// When it became known.
    pub at: At,
    /// Its number in this trace.
    pub id: ChannelId,
    /// Device file minor number of its GPU, where known.
    pub gpu: Option<u32>,
    /// Work-submit token, where known. A later [`Record::Channel`] with the same id may add it.
    pub token: Option<u32>,
    /// Channel class (0xc86f, ...), where known.
    pub class: Option<u32>,
    /// NV2080_ENGINE_TYPE it was allocated for, where known.
    pub engine: Option<u32>,
    /// RM client and object handle, where known.
    pub handle: Option<(u32, u32)>,
    /// The ring's address for the GPU.
    pub ring_gpu: Option<GpuVa>,
    /// The ring's address in the process.
    pub ring: Option<CpuVa>,
    /// Entries in the ring (a power of two).
    pub entries: Option<u32>,
    /// USERD's address in the process.
    pub userd: Option<CpuVa>,
    /// How it was learnt.
    pub origin: Origin,
}

/// How a channel was learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Its allocation was seen.
    Allocated,
    /// It was found in the memory of a process that was already running.
    Found,
    /// So was it, and its token is that of the error notifier at its place in the order of channels: nothing that the
    /// process did has shown it.
    Notified,
    /// The user named it (`--channels FILE`).
    Given,
    /// A capture names it.
    Recorded,
}

/// How a submission was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// At the doorbell, by the breakpoint.
    Trapped,
    /// By reading the ring afterwards: time is an upper bound and the thread is not known.
    Observed,
    /// By an independent capture.
    Recorded,
}

/// A part of a pushbuffer segment that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Offset from the segment's start, bytes.
    pub offset: u32,
    /// Length, bytes. The bytes are zero in [`Segment::bytes`].
    pub len: u32,
}

/// One GPFIFO entry and the bytes it points to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Segment {
    /// The 8-byte ring entry as it was in the ring.
    pub entry: u64,
    /// The pushbuffer bytes, as many as the entry's LENGTH says (zero where missing).
    pub bytes: Vec<u8>,
    /// What of `bytes` could not be read.
    pub holes: Vec<Hole>,
}

/// New entries of one channel's ring, in ring order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Time of the doorbell (or of the look, when observed).
    pub at: At,
    /// The channel.
    pub channel: ChannelId,
    /// The token written to the doorbell, where it was seen.
    pub token: Option<u32>,
    /// Ring positions since the channel's first entry, counted without wrapping: that of `segments[0]`.
    pub position: u64,
    /// GP_GET as read from USERD with `gp_put`; `None` where the source did not read it.
    pub gp_get: Option<u32>,
    /// GP_PUT before these entries (index into the ring).
    pub prev_put: u32,
    /// GP_PUT after these entries (index into the ring).
    pub gp_put: u32,
    /// Address of the instruction after the doorbell's store.
    pub ip: Option<u64>,
    /// Address of the doorbell word.
    pub doorbell: Option<CpuVa>,
    /// How it was seen.
    pub how: How,
    /// Entries that were committed before this doorbell but could not be captured at their own.
    pub late: bool,
    /// Name of the thread that rang, where known.
    pub thread: Option<std::sync::Arc<str>>,
    /// The entries.
    pub segments: Vec<Segment>,
}

/// Something that is known to be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When it was noticed.
    pub at: At,
    /// The channel, where the loss is one channel's.
    pub channel: Option<ChannelId>,
    /// What and how much.
    pub what: Lost,
}

/// What was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Ring entries that were overwritten before they were read: first position and count.
    Entries {
        /// Position of the first one missing.
        position: u64,
        /// How many.
        count: u64,
    },
    /// Records that did not fit into the ring buffer, by kind of record.
    Records {
        /// What they would have told.
        kind: &'static str,
        /// How many.
        count: u64,
    },
    /// Doorbells of processes whose channel is not known to this day.
    UnknownChannel {
        /// The token that was written.
        token: Option<u32>,
        /// How many doorbells.
        count: u64,
    },
    /// The tracer could not follow something (a process that could not be armed, say).
    Blind {
        /// Why, in words.
        why: String,
    },
}

/// One raw fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An ioctl.
    Ioctl(Box<Ioctl>),
    /// A mapping.
    Mapping(Mapping),
    /// An unmapping.
    Unmapping(Unmapping),
    /// A process event.
    Process(Process),
    /// A channel became known.
    Channel(Box<Channel>),
    /// A submission.
    Submission(Submission),
    /// A loss.
    Loss(Loss),
}
