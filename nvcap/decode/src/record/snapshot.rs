//! Snapshot of a process (`nvcap dump`), beside the newest entries of its rings: how its channels were found and read, what its threads
//! do, and what the kernel's log says of it.

use super::{At, ChannelId, CpuVa, NativeStack, PythonStack, Submission, named};

/// Snapshot of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// Begin of the snapshot, and the process.
    pub at: At,
    /// Duration of the snapshot, with those of other processes, ns.
    pub took_ns: u64,
    /// Time for the mappings and for finding the channels, ns.
    pub finding_ns: u64,
    /// Time for the rings and pushbuffers, ns.
    pub reading_ns: u64,
    /// The process's rank in a job of several processes.
    pub rank: Option<u32>,
    /// Number of ranks of that job.
    pub ranks: Option<u32>,
    /// The version of its CPython.
    pub python: Option<String>,
    /// Slots that are all zero: channels that were never used, or no channels.
    pub unused: u64,
    /// Notes on what was left out or not resolved.
    pub notes: Vec<String>,
    /// Readable memory of the process that is no device file of the driver.
    pub memory: Vec<MemoryRange>,
    /// Its channels, in the order in which they were found.
    pub channels: Vec<SnapshotChannel>,
    /// Its threads.
    pub threads: Vec<Thread>,
    /// The driver's messages about it in the kernel log, oldest first.
    pub xids: Vec<Xid>,
}

/// Addresses of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// The first.
    pub start: CpuVa,
    /// Bytes.
    pub len: u64,
}

/// A channel in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotChannel {
    /// Facts of finding it, and of the completeness of the read.
    pub facts: ChannelFacts,
    /// GP_GET when its ring was read.
    pub gp_get: u32,
    /// GP_PUT when its ring was read.
    pub gp_put: u32,
    /// The ring's first entries, where they are not among the newest and the ring has not gone round: they bind the classes of
    /// the subchannels.
    pub first: Vec<Submission>,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// State as in `/proc/PID/stat`: R running, S sleeping, D waiting in the kernel without being woken by signals, T
    /// stopped, Z ended.
    pub state: char,
    /// Clock ticks it has run, in the program and in the kernel.
    pub ticks: u64,
    /// The kernel function it sleeps in, if the kernel shows it.
    pub wchan: Option<String>,
    /// Number of the system call it is in; `None` when it runs in the program, or the kernel does not show it.
    pub syscall: Option<u32>,
    /// The call's name, for common calls.
    pub call: Option<&'static str>,
    /// First argument of the call (a file descriptor, an address).
    pub argument: Option<u64>,
    /// Its frames; `None` where they could not be read, or were not asked for.
    pub native: Option<NativeStack>,
    /// Its Python frames; `None` where it has none, or they were not asked for.
    pub python: Option<PythonStack>,
}

named! {
    /// Way in which the place of a channel's ring was found.
    pub enum RingPlace {
        /// By a layout habit of libcuda's.
        Habit = "habit",
        /// In the same place as another channel's.
        Alike = "alike",
        /// By a search.
        Sought = "sought",
        /// The user named it.
        Given = "given",
    }
}

named! {
    /// Way in which the size of a channel's ring is known.
    pub enum RingSize {
        /// By a layout habit of libcuda's: USERD lies right behind.
        Habit = "habit",
        /// Proven: its last entry is followed by its first.
        Wrapped = "wrapped",
        /// Assumed: all the room there is.
        Room = "room",
    }
}

named! {
    /// Memory that the entries of a ring point to.
    pub enum EntryTarget {
        /// The ring was never used.
        Unused = "unused",
        /// Bytes that parse as methods.
        Parses = "parses",
        /// Mapped memory that does not parse.
        Readable = "readable",
        /// No memory of the process at that address.
        Elsewhere = "elsewhere",
    }
}

named! {
    /// Way in which a token was learnt.
    pub enum TokenFrom {
        /// From the channel's error notifier, by the order of channels.
        Notifier = "notifier",
        /// The user named it.
        Given = "given",
    }
}

/// Facts of finding a channel, and of the completeness of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ChannelFacts {
    /// The channel.
    pub channel: ChannelId,
    /// The ring's address in the process.
    pub ring: CpuVa,
    /// USERD's address in the process.
    pub userd: CpuVa,
    /// Way in which the ring's place was found.
    pub place: RingPlace,
    /// Way in which the ring's size is known.
    pub size: RingSize,
    /// Memory that its entries point to.
    pub target: EntryTarget,
    /// True if GP_GET or GP_PUT moved during the snapshot.
    pub moved: bool,
    /// Way in which its token was learnt; `None` without one.
    pub token_from: Option<TokenFrom>,
    /// The error in its notifier: the number of the Xid message.
    pub error: Option<u32>,
    /// Entries given up because their slots may have been written again while they were read.
    pub overwritten: u32,
    /// Entries whose pushbuffer bytes newer ones have used again.
    pub recycled: u32,
    /// Pushbuffer bytes that could not be read.
    pub unreadable: u64,
    /// Entries that point to memory which the process has not mapped at that address.
    pub elsewhere: u32,
    /// True if the ring could not be read.
    pub ring_gone: bool,
}

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Xid {
    /// Time of the message: nanoseconds since the machine started, as the kernel log counts.
    pub time_ns: u64,
    /// The GPU's PCI address as the driver writes it: `0000:c1:00`, without the function.
    pub pci: String,
    /// The GPU by its device file's minor number; `None` where it is not known.
    pub gpu: Option<u32>,
    /// Its number.
    pub code: u32,
    /// The process, where the message has one.
    pub pid: Option<u32>,
    /// The process's name, where the message has one.
    pub name: Option<String>,
    /// The channel as the message has it: its number in hardware, and from bit 24 on its runlist, which older drivers leave out.
    pub hardware_channel: Option<u32>,
    /// The GPU instance (MIG), where the message has one.
    pub gpu_instance: Option<u32>,
    /// The compute instance (MIG), where the message has one.
    pub compute_instance: Option<u32>,
    /// The channels of the snapshot that this may be: without the runlist, several of one GPU may have the number.
    pub channels: Vec<ChannelId>,
    /// The rest of the message.
    pub text: String,
}
