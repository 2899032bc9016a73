//! Snapshot of a process (`nvcap dump`), besides the newest entries of its rings: facts about finding and reading its channels, the state
//! of its threads, and the kernel log's messages about it.

use super::{At, ChannelId, CpuVa, NativeStack, PythonStack, Submission, named};

/// Snapshot of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// Beginning of the snapshot, and the process.
    pub at: At,
    /// Duration of the snapshot, together with the snapshots of other processes, ns.
    pub took_ns: u64,
    /// Time taken to read the mappings and find the channels, ns.
    pub finding_ns: u64,
    /// Time taken to read the rings and pushbuffers, ns.
    pub reading_ns: u64,
    /// Rank of the process in a job of several processes.
    pub rank: Option<u32>,
    /// Number of ranks of that job.
    pub ranks: Option<u32>,
    /// Version of the process's CPython.
    pub python: Option<String>,
    /// Number of slots that are all zero: channels that were never used, or no channels.
    pub unused: u64,
    /// Notes on parts that were left out or not resolved.
    pub notes: Vec<String>,
    /// Readable memory of the process that is not a device file of the driver.
    pub memory: Vec<MemoryRange>,
    /// Channels, in the order in which they were found.
    pub channels: Vec<SnapshotChannel>,
    /// Threads of the process.
    pub threads: Vec<Thread>,
    /// The driver's messages about the process in the kernel log, oldest first.
    pub xids: Vec<Xid>,
}

/// A range of addresses of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// First address.
    pub start: CpuVa,
    /// Length, bytes.
    pub len: u64,
}

/// A channel in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotChannel {
    /// Facts about finding the channel, and about the completeness of the read.
    pub facts: ChannelFacts,
    /// GP_GET at the time the ring was read.
    pub gp_get: u32,
    /// GP_PUT at the time the ring was read.
    pub gp_put: u32,
    /// First entries of the ring, which bind the classes of the subchannels. They are given if they are not among the newest and the ring
    /// has not wrapped.
    pub first: Vec<Submission>,
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Name of the thread.
    pub name: String,
    /// State as in `/proc/PID/stat`: R running, S sleeping, D waiting in the kernel without being woken by signals, T
    /// stopped, Z ended.
    pub state: char,
    /// Clock ticks for which the thread has run, in the program and in the kernel.
    pub ticks: u64,
    /// Kernel function in which the thread sleeps, if the kernel shows it.
    pub wchan: Option<String>,
    /// Number of the system call that the thread is in; `None` if it runs in the program, or if the kernel does not show it.
    pub syscall: Option<u32>,
    /// Name of the call, for common calls.
    pub call: Option<&'static str>,
    /// First argument of the call (a file descriptor, an address).
    pub argument: Option<u64>,
    /// Frames of the thread; `None` if they could not be read, or were not asked for.
    pub native: Option<NativeStack>,
    /// Python frames of the thread; `None` if it has none, or they were not asked for.
    pub python: Option<PythonStack>,
}

named! {
    /// Way in which the place of a channel's ring was found.
    pub enum RingPlace {
        /// By libcuda's usual layout.
        Habit = "habit",
        /// At the same place as another channel's.
        Alike = "alike",
        /// By a search.
        Sought = "sought",
        /// By the user, who named it.
        Given = "given",
    }
}

named! {
    /// Evidence for the size of a channel's ring.
    pub enum RingSize {
        /// libcuda's usual layout: USERD lies right behind the ring.
        Habit = "habit",
        /// Proof: the ring's last entry is followed by its first.
        Wrapped = "wrapped",
        /// Assumption: the ring fills all the room there is.
        Room = "room",
    }
}

named! {
    /// Memory to which the entries of a ring point.
    pub enum EntryTarget {
        /// The ring was never used.
        Unused = "unused",
        /// Memory that parses as methods.
        Parses = "parses",
        /// Mapped memory that does not parse.
        Readable = "readable",
        /// No memory of the process at that address.
        Elsewhere = "elsewhere",
    }
}

named! {
    /// Source of a token.
    pub enum TokenFrom {
        /// Error notifier of the channel, chosen by the order of channels.
        Notifier = "notifier",
        /// The user, who named it.
        Given = "given",
    }
}

/// Facts about finding a channel, and about the completeness of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ChannelFacts {
    /// The channel.
    pub channel: ChannelId,
    /// Address of the ring in the process.
    pub ring: CpuVa,
    /// Address of USERD in the process.
    pub userd: CpuVa,
    /// Way in which the ring's place was found.
    pub place: RingPlace,
    /// Evidence for the ring's size.
    pub size: RingSize,
    /// Memory to which the entries point.
    pub target: EntryTarget,
    /// True if GP_GET or GP_PUT moved during the snapshot.
    pub moved: bool,
    /// Source of the token; `None` without a token.
    pub token_from: Option<TokenFrom>,
    /// Error in the notifier: the number of the Xid message.
    pub error: Option<u32>,
    /// Entries that were given up because their slots may have been rewritten while they were read.
    pub overwritten: u32,
    /// Entries whose pushbuffer bytes were reused by newer ones.
    pub recycled: u32,
    /// Pushbuffer bytes that could not be read.
    pub unreadable: u64,
    /// Entries that point to memory that the process has not mapped at that address.
    pub elsewhere: u32,
    /// True if the ring could not be read.
    pub ring_gone: bool,
}

/// One Xid message of the kernel log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Xid {
    /// Time of the message as the kernel log counts: nanoseconds since the machine started.
    pub time_ns: u64,
    /// PCI address of the GPU as the driver writes it: `0000:c1:00`, without the function.
    pub pci: String,
    /// GPU by device file minor number; `None` if not known.
    pub gpu: Option<u32>,
    /// Number of the Xid.
    pub code: u32,
    /// Process id, if the message has one.
    pub pid: Option<u32>,
    /// Name of the process, if the message has one.
    pub name: Option<String>,
    /// Channel as given in the message: its hardware number and, from bit 24 on, its runlist, which older drivers leave out.
    pub hardware_channel: Option<u32>,
    /// GPU instance (MIG), if the message has one.
    pub gpu_instance: Option<u32>,
    /// Compute instance (MIG), if the message has one.
    pub compute_instance: Option<u32>,
    /// Channels of the snapshot that the message may mean. Without the runlist, several channels of one GPU may have the number.
    pub channels: Vec<ChannelId>,
    /// Rest of the message.
    pub text: String,
}
