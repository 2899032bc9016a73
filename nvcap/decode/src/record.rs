//! Raw records: the observations of a source, before any interpretation.
//!
//! Every source (the breakpoint trap, `/proc/PID/mem`, a capture file, an imported log) delivers the same [`Record`]s, in the order in
//! which it saw them. No record is derived from others, so a better model or decoder gets more out of old records. This module knows no
//! source, no model and no decoder.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC` of the traced machine.
//!
//! A record is plain data: a program with facts from elsewhere makes records of them, and passes them to a [driver
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

/// Defines an enum whose values have names, which JSON and text show.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $t:ident { $($(#[$of:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $t {
            $($(#[$of])* $value,)*
        }

        impl $t {
            /// Returns the name in JSON and text.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            /// Names of all values.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Returns the value with this name.
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

/// Time and place of an event: time, process and thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct At {
    /// Time, `CLOCK_MONOTONIC`, ns; 0 if the source does not know it.
    pub time_ns: u64,
    /// Process (thread group) id in the tracer's PID namespace; 0 if the source does not know it.
    pub pid: u32,
    /// Thread id; 0 if the source cannot know it (observed rings).
    pub tid: u32,
}

impl At {
    /// Returns the time, if known.
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

/// Bytes copied from the traced process, possibly only the first part.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Bytes {
    /// The copied bytes, from the start.
    pub data: Vec<u8>,
    /// Full length in bytes.
    pub full_len: u64,
}

/// A structure to which an ioctl argument points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    /// Address of the structure in the process.
    pub address: CpuVa,
    /// Contents before the call.
    pub input: Bytes,
    /// Contents after the call.
    pub output: Bytes,
}

/// One ioctl on a device file of the driver, recorded at its return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// Time of the call's entry, process and thread.
    pub at: At,
    /// Time of the call's return, ns; `None` if it was not seen.
    pub end_ns: Option<u64>,
    /// The device file.
    pub device: Device,
    /// File descriptor, if the source knows it.
    pub fd: Option<i32>,
    /// Opaque number of the open file, the same within one boot; 0 if unknown.
    pub file: u64,
    /// Number of the open file that the argument itself names by a file descriptor (NV_ESC_RM_MAP_MEMORY).
    pub named_file: u64,
    /// Request number (`_IOC` encoded for RM, plain for UVM).
    pub request: u32,
    /// Result of the system call (negative errno, or >= 0); `None` if it was not seen.
    pub result: Option<i64>,
    /// Argument structure before the call.
    pub input: Bytes,
    /// Argument structure after the call.
    pub output: Bytes,
    /// Parameters to which the argument points.
    pub nested: Option<Nested>,
}

/// A mapping of a device file into a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Time at which the mapping was made (or found, if it was found afterwards), and the thread.
    pub at: At,
    /// Device file that is mapped.
    pub device: Device,
    /// Descriptor of the device file, as in [`Ioctl::fd`].
    pub fd: Option<i32>,
    /// Number of the open file, as in [`Ioctl::file`].
    pub file: u64,
    /// First address.
    pub start: CpuVa,
    /// Length in bytes.
    pub len: u64,
    /// True if the mapping is readable.
    pub read: bool,
    /// True if the mapping is writable.
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

/// A channel's number in this trace. The source that announces the channel chooses it and never reuses it in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ChannelId(pub u32);

named! {
    /// Way in which a submission was captured.
    pub enum How {
        /// At the doorbell, by the breakpoint.
        Trapped = "trapped",
        /// Before the store that rings the doorbell was executed: by the execution breakpoint or, on aarch64, by the watchpoint, which
        /// traps before the store there.
        Precommit = "precommit",
        /// At a later doorbell of the channel than the submission's own, or soon after it, because doorbells are captured in batches
        /// (`--batch`). The time is an upper bound.
        Batched = "batched",
        /// By reading the ring afterwards. The time is an upper bound and the thread is unknown.
        Observed = "observed",
        /// From an independent capture.
        Recorded = "recorded",
    }
}

impl How {
    /// Tells whether the submission was captured some time after its doorbell, not at it.
    #[must_use]
    pub const fn is_after(self) -> bool {
        matches!(self, Self::Batched | Self::Observed)
    }
}

/// The most pushbuffer bytes of one submission, or of one look at a ring. Entries may announce 8 MiB each, all in the same memory or in
/// none. Bytes beyond the limit count as unreadable.
pub const MOST_BYTES: usize = 128 << 20;

/// One GPFIFO entry and the bytes to which it points.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Segment {
    /// Ring entry, 8 bytes, as it was in the ring.
    pub entry: u64,
    /// Pushbuffer bytes, zero where missing: as many as the entry's LENGTH says, or fewer if the rest was not captured.
    pub bytes: Vec<u8>,
    /// Parts of `bytes` that could not be read.
    pub holes: Vec<Hole>,
}

/// New entries of one channel's ring, in ring order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Time of the doorbell (of the look, if observed), process and thread.
    pub at: At,
    /// The channel.
    pub channel: ChannelId,
    /// Token written to the doorbell, if it was seen.
    pub token: Option<u32>,
    /// Ring position of `segments[0]`: the number of entries since the channel's first, counted without wrapping.
    pub position: u64,
    /// GP_GET as read from USERD together with `gp_put`; `None` if the source did not read it.
    pub gp_get: Option<u32>,
    /// GP_PUT before these entries (index into the ring).
    pub prev_put: u32,
    /// GP_PUT after these entries (index into the ring).
    pub gp_put: u32,
    /// Address of the instruction after the doorbell's store.
    pub ip: Option<u64>,
    /// Address of the doorbell word.
    pub doorbell: Option<CpuVa>,
    /// Way in which the submission was captured.
    pub how: How,
    /// True if the entries were committed before this doorbell but could not be captured at their own.
    pub late: bool,
    /// Latest time at which the entries are known not to have been in the ring yet, ns. For an observed submission, it is the time of the
    /// look before.
    pub absent_ns: Option<u64>,
    /// Name of the thread that rang, if known.
    pub thread: Option<std::sync::Arc<str>>,
    /// Entries of the submission.
    pub segments: Vec<Segment>,
}

/// A GPU of the traced machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Time at which the GPU was looked at.
    pub at: At,
    /// Number N of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI device id (of vendor 10de).
    pub pci_device: u16,
}

/// A copy that the driver keeps, in the process's own memory, of a QMD or of the arguments and tables that its kernel reads. It shows GPU
/// memory that was written before the trace began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QmdCopy {
    /// Time at which the copy was found, and the process.
    pub at: At,
    /// GPU address of the contents.
    pub address: GpuVa,
    /// Contents of the GPU memory.
    pub bytes: Vec<u8>,
    /// Address of the copy in the process.
    pub found: CpuVa,
}

named! {
    /// Evidence for the name of a kernel.
    pub enum NamedBy {
        /// The driver's own record of the function, in the process's memory.
        Record = "record",
        /// The code: its upload was seen, and a cubin image in the process's memory has the same code.
        Code = "code",
        /// Both the record and the code, which agree.
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
    /// Size, bytes.
    pub size: u32,
}

/// A kernel: the function at a program's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Time at which the name was found, and the process.
    pub at: At,
    /// GPU address of the first instruction.
    pub program: GpuVa,
    /// Mangled name, as the compiler wrote it (for C++ and Rust). An empty name means that from this time on the function at the address is
    /// not known.
    pub name: String,
    /// Length of the code, bytes, if known.
    pub bytes: Option<u64>,
    /// Parameters in order; `None` if not known.
    pub params: Option<Vec<KernelParam>>,
    /// Evidence for the name.
    pub by: NamedBy,
    /// True if the evidence admits no other name. Otherwise it is the best guess.
    pub certain: bool,
    /// True if the kernel is one of the driver's own: its name, and the names of the functions beside it, are those of driver kernels.
    pub driver: bool,
    /// Variables of the function's image; given with only one function of each image, and empty if not known.
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

    /// Makes a record that from a time on the function at an address is not known.
    #[must_use]
    pub fn unknown(at: At, program: u64) -> Self {
        Self {
            certain: false,
            ..Self::called(at, program, "")
        }
    }

    /// Tells whether the kernel has a name.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.name.is_empty()
    }
}

/// A semaphore in a process's memory that the GPU has written, as seen by another processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// GPU address, which is also the address in the process.
    pub address: GpuVa,
    /// Number that was found in the semaphore.
    pub payload: u32,
    /// Timestamp beside the number, by the GPU's clock, ns; `None` for a semaphore of one word.
    pub gpu_ns: Option<u64>,
    /// Beginning of the last read that still found another number, `CLOCK_MONOTONIC`, ns.
    pub before_ns: u64,
    /// End of the first read that found this number, `CLOCK_MONOTONIC`, ns.
    pub seen_ns: u64,
}

/// Semaphores that were read repeatedly over a stretch of time, and their changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// End of the stretch, and the process.
    pub at: At,
    /// Beginning of the stretch, ns.
    pub from_ns: u64,
    /// Number of reads in the stretch.
    pub reads: u64,
    /// Changes, in the order in which they were seen.
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
    /// A QMD that was written before the trace began, or data that its kernel reads.
    QmdCopy(Box<QmdCopy>),
    /// The name of a program.
    Kernel(Box<Kernel>),
    /// The stack at a doorbell. It comes before the submissions of that doorbell.
    Stack(Stack),
    /// Semaphores with the GPU's timestamps.
    Stamps(Box<Stamps>),
    /// A loss.
    Loss(Loss),
    /// Ring entries that were not read because the user asked for it.
    Skipped(Skipped),
    /// A snapshot of a process, besides its rings' newest entries.
    Snapshot(Box<ProcessSnapshot>),
    /// A fault of the GPU.
    Fault(Box<Fault>),
    /// Program counters that the GPU sampled.
    Samples(Box<Samples>),
    /// Context switches that the driver recorded.
    Switches(Box<Switches>),
}

impl Record {
    /// Returns time and place of the event, or of its being noticed.
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
