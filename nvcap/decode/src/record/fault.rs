//! Faults of the GPU: errors for which the driver stopped a channel.

use std::sync::Arc;

use super::{At, ChannelId, Kernel, Xid, named};
use crate::wire::GpuVa;

named! {
    /// Place where a fault was read.
    pub enum FaultSource {
        /// The channel's error notifier, in the process's memory.
        Notifier = "notifier",
        /// The kernel log.
        KernelLog = "kernel log",
        /// Both.
        Both = "notifier and kernel log",
    }
}

/// Notification of an error, as the driver writes it into a channel's error notifier (`NvNotification`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Notification {
    /// Time stamp, ns; the driver says of no clock which it is.
    pub time: u64,
    /// Word info32: the number of the Xid.
    pub info32: u32,
    /// Word info16.
    pub info16: u16,
    /// Status: 0xffff for an error.
    pub status: u16,
}

named! {
    /// Kind of work that a channel may have been doing.
    pub enum SuspectKind {
        /// A kernel.
        Kernel = "kernel",
        /// A copy.
        Copy = "copy",
    }
}

/// Memory that the GPU has or had at an address, or nearest to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MemoryNear {
    /// Its first address.
    pub start: u64,
    /// Its size.
    pub bytes: u64,
    /// Time at which it was freed, ns; none where the process has it.
    pub freed_ns: Option<u64>,
}

/// A word of a kernel's arguments that may be a pointer to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Near {
    /// Its place in the arguments, bytes.
    pub offset: u32,
    /// Its value.
    pub value: u64,
}

/// Work that was submitted and had not ended when a fault was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The channel that it was submitted on.
    pub channel: ChannelId,
    /// Index of its entry in the ring.
    pub index: u32,
    /// Its kind.
    pub kind: SuspectKind,
    /// A kernel's program.
    pub program: Option<GpuVa>,
    /// A kernel's grid.
    pub grid: [u32; 3],
    /// A kernel's block.
    pub block: [u32; 3],
    /// The word of a kernel's arguments nearest to the page that could not be accessed, where the kernel log told the page and no other
    /// word is about as near.
    pub near: Option<Near>,
    /// A kernel's record; no source sets it: [`Decoder::name_suspects`](crate::decode::Decoder::name_suspects) does.
    pub kernel: Option<Arc<Kernel>>,
}

/// A fault: an error of the GPU for which the driver stopped a channel of a process, or of a whole GPU.
///
/// It tells beside the raw words which work had not ended, for that is known from memory at this moment alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Time when it was noticed, and the process.
    pub at: At,
    /// Place where it was read.
    pub source: FaultSource,
    /// The number of the Xid.
    pub code: u32,
    /// The channel that was stopped, where known.
    pub channel: Option<ChannelId>,
    /// Other channels that were stopped with it, for the same error.
    pub group: Vec<ChannelId>,
    /// True if the channel is not known, but concluded from the order in which libcuda makes channels and error notifiers.
    pub assumed: bool,
    /// The channel's work-submit token, where known.
    pub token: Option<u32>,
    /// The words of the error notifier, where it was read.
    pub notification: Option<Notification>,
    /// The message of the kernel log, where it was read.
    pub message: Option<Box<Xid>>,
    /// Memory of the process at the page that could not be accessed, or nearest to it; no source sets it: the pipeline does, where the driver's
    /// calls were seen.
    pub memory: Option<MemoryNear>,
    /// Work that had not ended, of the channel, or of all channels that may be meant.
    pub suspects: Vec<Suspect>,
    /// True if no other work can have caused it: all rings that may be meant were read, and understood.
    pub only_these: bool,
}

impl Fault {
    /// A fault that an error notifier tells, without anything that rings and messages have of it.
    #[must_use]
    pub fn of_notifier(at: At, code: u32) -> Self {
        Self {
            at,
            source: FaultSource::Notifier,
            code,
            channel: None,
            group: Vec::new(),
            assumed: false,
            token: None,
            notification: None,
            message: None,
            memory: None,
            suspects: Vec::new(),
            only_these: true,
        }
    }

    /// PCI address of the GPU, where the kernel log told of an error of a process and no message says of which.
    #[must_use]
    pub fn of_gpu(&self) -> Option<&str> {
        let message = self.message.as_deref();
        let message = message.filter(|m| self.at.pid == 0 && m.is_of_unknown_process());
        message.map(|m| m.pci.as_str())
    }
}
