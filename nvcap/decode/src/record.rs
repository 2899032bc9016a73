//! Raw records: what a source saw, before any interpretation.
//!
//! Every source (the breakpoint trap, `/proc/PID/mem`, a capture file, an imported log) delivers the same
//! [`Record`]s in the order it saw them. Nothing here is derived, so a better model or decoder gets more out of old
//! records. This module knows no source, no model and no decoder.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC` of the traced machine.
//!
//! A record is plain data: a program with facts from elsewhere makes records of them, and gives them to a [driver
//! model](crate::driver::Model), a [decoder](crate::decode::Decoder) or a pipeline.
//!
//! ```
//! use nvcap_decode::record::{At, Channel, ChannelId, CpuVa, Origin, Record};
//!
//! // A channel of which the ring is known and nothing else.
//! let channel = Channel {
//!     at: At { time_ns: 1_000, pid: 4711, tid: 0 },
//!     id: ChannelId(0),
//!     gpu: None,
//!     token: None,
//!     class: None,
//!     engine: None,
//!     handle: None,
//!     ring_gpu: None,
//!     ring: Some(CpuVa(0x2_0460_0000)),
//!     entries: Some(1024),
//!     userd: None,
//!     origin: Origin::Given,
//! };
//! let record = Record::Channel(Box::new(channel));
//! assert_eq!(record.at().time(), Some(1_000));
//! ```

mod channel;
mod device;
mod fault;
mod identity;
mod life;
mod loss;
mod samples;
mod size;
mod skipped;
mod snapshot;
mod stack;
mod switches;
mod thread_stack;
mod variable;

pub use channel::{Channel, Origin};
pub use device::Device;
pub use fault::{Fault, FaultSource, MemoryNear, Near, Notification, Suspect, SuspectKind};
pub use identity::{Container, Identity, Pod, UsedGpu};
pub use life::Life;
pub use loss::{Loss, Lost, RecordKind};
pub use samples::{SM_WORDS, Samples};
pub use skipped::{Skipped, SkippedWhy};
pub use snapshot::{
    ChannelFacts, EntryTarget, MemoryRange, ProcessSnapshot, RingPlace, RingSize, SnapshotChannel,
    Thread, TokenFrom, Xid,
};
pub use stack::{Calls, Frame, Stack, StackEnd};
pub use switches::{MOST_TOLD, Switches};
pub use thread_stack::{NativeFrame, NativeStack, PythonFrame, PythonStack};
pub use variable::Variable;

use crate::wire::{GpuVa, Hole};

/// An address in a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuVa(pub u64);

crate::wire::address!(CpuVa);

/// An enum whose values have names, as JSON and text show them.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $t:ident { $($(#[$of:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $t {
            $($(#[$of])* $value,)*
        }

        impl $t {
            /// Its name in JSON and text.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            /// The names of all values.
            pub const NAMES: &[&str] = &[$($name),*];

            /// The value with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$value),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $t {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.name())
            }
        }
    };
}
pub(crate) use named;

/// Time and place of something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct At {
    /// Nanoseconds, `CLOCK_MONOTONIC`; 0 where the source does not know it.
    pub time_ns: u64,
    /// Process (thread group) id in the tracer's PID namespace; 0 where the source does not know it.
    pub pid: u32,
    /// Thread id; 0 where the source cannot know it (observed rings).
    pub tid: u32,
}

impl At {
    /// The time, if known.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        (self.time_ns != 0).then_some(self.time_ns)
    }

    /// Makes the `At` of the first thread of a process.
    #[must_use]
    pub fn of_process(time_ns: u64, pid: u32) -> Self {
        Self {
            time_ns,
            pid,
            tid: pid,
        }
    }
}

/// Bytes copied from the traced process, possibly not all.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Bytes {
    /// The copied bytes, from the start.
    pub data: Vec<u8>,
    /// Full length in bytes.
    pub full_len: u64,
}

/// A structure that an ioctl argument points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    /// Its address in the process.
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
    /// Number of the open file that the argument itself names by a file descriptor (NV_ESC_RM_MAP_MEMORY).
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
    /// Time when it was made (or, for one found afterwards, when it was found), and the thread.
    pub at: At,
    /// The device file mapped.
    pub device: Device,
    /// Descriptor of the device file, as in [`Ioctl::fd`].
    pub fd: Option<i32>,
    /// Number of the open file, as in [`Ioctl::file`].
    pub file: u64,
    /// First address.
    pub start: CpuVa,
    /// Length in bytes.
    pub len: u64,
    /// True if it may be read.
    pub read: bool,
    /// True if it may be written.
    pub write: bool,
    /// True if the mapping existed before the trace began (found in `/proc/PID/maps`).
    pub found: bool,
}

/// A range of addresses that a process unmapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmapping {
    /// Time of the unmapping, and the thread.
    pub at: At,
    /// First address.
    pub start: CpuVa,
    /// Length in bytes.
    pub len: u64,
}

/// A change in the life of a traced process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Time, process and thread.
    pub at: At,
    /// The event.
    pub life: Life,
}

/// A channel's number in this trace: given by the source that announced the channel, never reused in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ChannelId(pub u32);

named! {
    /// Way in which a submission was seen.
    pub enum How {
        /// At the doorbell, by the breakpoint.
        Trapped = "trapped",
        /// At the store that rings the doorbell, before it was executed: by the execution breakpoint, or on aarch64 by the
        /// watchpoint, which traps before the store there.
        Precommit = "precommit",
        /// At a later doorbell of the channel than their own, or soon after, for doorbells are captured in batches (`--batch`): the
        /// time is an upper bound.
        Batched = "batched",
        /// By reading the ring afterwards: the time is an upper bound and the thread is unknown.
        Observed = "observed",
        /// By an independent capture.
        Recorded = "recorded",
    }
}

impl How {
    /// Tells whether the submission was seen some time after its doorbell, not at it.
    #[must_use]
    pub const fn is_after(self) -> bool {
        matches!(self, Self::Batched | Self::Observed)
    }
}

/// The most pushbuffer bytes of one submission, or of one look at a ring: entries may announce 8 MiB each, all in the same
/// memory or in none. Bytes beyond that count as unreadable.
pub const MOST_BYTES: usize = 128 << 20;

/// One GPFIFO entry and the bytes it points to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Segment {
    /// The 8-byte ring entry as it was in the ring.
    pub entry: u64,
    /// The pushbuffer bytes, as many as the entry's LENGTH says (zero where missing); fewer, if the rest was not captured.
    pub bytes: Vec<u8>,
    /// The parts of `bytes` that could not be read.
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
    /// Way in which it was seen.
    pub how: How,
    /// True if the entries were committed before this doorbell but could not be captured at their own.
    pub late: bool,
    /// Latest time at which they are known not to have been in the ring yet, ns: that of the look before, when observed.
    pub absent_ns: Option<u64>,
    /// Name of the thread that rang, where known.
    pub thread: Option<std::sync::Arc<str>>,
    /// The entries.
    pub segments: Vec<Segment>,
}

/// A GPU of the traced machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Time when it was looked at.
    pub at: At,
    /// Number N of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI device id (of vendor 10de).
    pub pci_device: u16,
}

/// Copy that the driver keeps of a QMD in the process's own memory, or of the arguments and tables that its kernel reads: contents of
/// GPU memory that were written before the trace began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QmdCopy {
    /// Time when it was found, and the process.
    pub at: At,
    /// Its address for the GPU.
    pub address: GpuVa,
    /// The contents.
    pub bytes: Vec<u8>,
    /// The address of the copy in the process.
    pub found: CpuVa,
}

named! {
    /// Evidence for the name of a kernel.
    pub enum NamedBy {
        /// The driver's own record of the function, in the process's memory.
        Record = "record",
        /// The code: its upload was seen, and a cubin image in the process's memory has the same code.
        Code = "code",
        /// Both, and they agree.
        RecordAndCode = "record+code",
        /// The code: its upload was seen, and a fat binary in a file that the process has mapped has the same code.
        File = "file",
    }
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct KernelParam {
    /// Offset among the arguments, bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
}

/// A kernel: the function that lies at a program's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Time when its name was found, and the process.
    pub at: At,
    /// Address of its first instruction for the GPU.
    pub program: GpuVa,
    /// Its name as the compiler wrote it (mangled, for C++ and Rust). Empty: from this time on it is not known which function lies there.
    pub name: String,
    /// Bytes of its code, where known.
    pub bytes: Option<u64>,
    /// Its parameters in order; `None` where they are not known.
    pub params: Option<Vec<KernelParam>>,
    /// Evidence for the name.
    pub by: NamedBy,
    /// True if the evidence admits no other name. Otherwise it is the best guess.
    pub certain: bool,
    /// True if the kernel is one of the driver's own: its name is one of theirs, and so are those of the functions beside it.
    pub driver: bool,
    /// Variables of the image that the function is of, told with one function of each image; empty where they are not known.
    pub variables: Vec<Variable>,
}

impl Kernel {
    /// Makes the kernel of a program with a certain name.
    #[must_use]
    pub fn called(at: At, program: u64, name: &str) -> Self {
        Self {
            at,
            program: GpuVa(program),
            name: name.to_owned(),
            bytes: None,
            params: None,
            by: NamedBy::Record,
            certain: true,
            driver: false,
            variables: Vec::new(),
        }
    }

    /// Makes the record that it is not known from a time on which function lies at an address.
    #[must_use]
    pub fn unknown(at: At, program: u64) -> Self {
        Self {
            certain: false,
            ..Self::called(at, program, "")
        }
    }

    /// Tells whether it has a name.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.name.is_empty()
    }
}

/// A semaphore in a process's memory that the GPU has written, as another processor saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its address for the GPU, which is its address in the process too.
    pub address: GpuVa,
    /// The number that was found there.
    pub payload: u32,
    /// The time stamp beside it, by the GPU's clock, ns; `None` for a semaphore of one word.
    pub gpu_ns: Option<u64>,
    /// Begin of the last read that still found another number, `CLOCK_MONOTONIC`, ns.
    pub before_ns: u64,
    /// End of the first read that found this one, `CLOCK_MONOTONIC`, ns.
    pub seen_ns: u64,
}

/// Semaphores that were read again and again over a stretch of time, and those that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// The end of the stretch, and the process.
    pub at: At,
    /// Its begin, ns.
    pub from_ns: u64,
    /// Number of times that they were read in it.
    pub reads: u64,
    /// The changes, in the order in which they were seen.
    pub stamps: Vec<Stamp>,
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
    /// A GPU, as the system names it.
    Gpu(Gpu),
    /// A QMD that was written before the trace began, or what its kernel reads.
    QmdCopy(Box<QmdCopy>),
    /// The name of a program.
    Kernel(Box<Kernel>),
    /// The stack at a doorbell. It comes before the submissions of that doorbell.
    Stack(Stack),
    /// Semaphores with the GPU's time stamps.
    Stamps(Box<Stamps>),
    /// A loss.
    Loss(Loss),
    /// Ring entries that nobody read because the user asked for it.
    Skipped(Skipped),
    /// Snapshot of a process, beside its rings' newest entries.
    Snapshot(Box<ProcessSnapshot>),
    /// A fault of the GPU.
    Fault(Box<Fault>),
    /// Program counters that the GPU sampled.
    Samples(Box<Samples>),
    /// Context switches that the driver recorded.
    Switches(Box<Switches>),
}

impl Record {
    /// Returns the time and place at which it happened, or was noticed.
    #[must_use]
    pub fn at(&self) -> At {
        match self {
            Self::Ioctl(r) => r.at,
            Self::Mapping(r) => r.at,
            Self::Unmapping(r) => r.at,
            Self::Process(r) => r.at,
            Self::Channel(r) => r.at,
            Self::Submission(r) => r.at,
            Self::Gpu(r) => r.at,
            Self::QmdCopy(r) => r.at,
            Self::Kernel(r) => r.at,
            Self::Stack(r) => r.at,
            Self::Stamps(r) => r.at,
            Self::Loss(r) => r.at,
            Self::Skipped(r) => r.at,
            Self::Snapshot(r) => r.at,
            Self::Fault(r) => r.at,
            Self::Samples(r) => r.at,
            Self::Switches(r) => r.at,
        }
    }
}
