//! The whole result of one look at processes, as plain data for the outputs.

use super::{Analysis, NativeStack, PythonStack, RingState, Xid};
use crate::record::{ChannelId, CpuVa, named};

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Nanoseconds of `CLOCK_MONOTONIC` at its beginning.
    pub time_ns: u64,
    /// How long it took in all, ns: reading, decoding, judging.
    pub took_ns: u64,
    /// The processes.
    pub processes: Vec<ProcessReport>,
    /// The channels of all of them, decoded.
    pub rings: RingState,
    /// The conclusions.
    pub analysis: Analysis,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct ProcessReport {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its rank in a job of several processes, by the environment that it was started with (RANK and what MPI and Slurm
    /// set).
    pub rank: Option<u32>,
    /// The version of its CPython, if it has one whose frames can be read.
    pub python: Option<String>,
    /// The driver's messages about it in the kernel log, oldest first.
    pub xids: Vec<Xid>,
    /// Its threads.
    pub threads: Vec<Thread>,
    /// How its channels were found and read.
    pub channels: Vec<ChannelFacts>,
    /// Slots that are all zero: channels that were never used, or no channels.
    pub unused: usize,
    /// What was left out or not resolved, in words.
    pub notes: Vec<String>,
    /// Time for its mappings and for finding its channels, ns.
    pub finding_ns: u64,
    /// Time for its rings and pushbuffers, ns.
    pub reading_ns: u64,
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
    /// How the place of a channel's ring was found.
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
    /// How the size of a channel's ring is known.
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
    /// What memory the entries of a ring point to.
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
    /// How a token was learnt.
    pub enum TokenFrom {
        /// From the channel's error notifier, by the order of channels.
        Notifier = "notifier",
        /// The user named it.
        Given = "given",
    }
}

/// How a channel was found, and how complete the read was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ChannelFacts {
    /// The channel.
    pub channel: ChannelId,
    /// The ring's address in the process.
    pub ring: CpuVa,
    /// USERD's address in the process.
    pub userd: CpuVa,
    /// How the ring's place was found.
    pub place: RingPlace,
    /// How the ring's size is known.
    pub size: RingSize,
    /// What its entries point to.
    pub target: EntryTarget,
    /// GP_GET or GP_PUT moved during the look.
    pub moved: bool,
    /// How its token was learnt; `None` without one.
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
    /// The ring could not be read.
    pub ring_gone: bool,
}

impl Report {
    /// Some of its contents could not be read whole.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.processes
            .iter()
            .flat_map(|p| &p.channels)
            .any(|c| c.ring_gone || c.overwritten + c.elsewhere > 0 || c.unreadable > 0)
    }

    /// The facts of a channel.
    #[must_use]
    pub fn facts(&self, id: ChannelId) -> Option<&ChannelFacts> {
        self.processes
            .iter()
            .flat_map(|p| &p.channels)
            .find(|c| c.channel == id)
    }
}
