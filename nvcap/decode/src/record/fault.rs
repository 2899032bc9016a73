//! Faults of the GPU: errors for which the driver stopped a channel.

use std::sync::Arc;

use super::{At, ChannelId, Kernel, Xid, named};
use crate::wire::GpuVa;

named! {
    /// Source from which a fault was read.
    pub enum FaultSource {
        /// The channel's error notifier, in the process's memory.
        Notifier = "notifier",
        /// The kernel log.
        KernelLog = "kernel log",
        /// Both notifier and kernel log.
        Both = "notifier and kernel log",
    }
}

/// Notification of an error, as the driver writes it into a channel's error notifier (`NvNotification`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Notification {
    /// Timestamp, ns. The driver does not say by which clock.
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
    /// First address.
    pub start: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Time at which the memory was freed, ns; `None` if the process still has it.
    pub freed_ns: Option<u64>,
}

/// A word of a kernel's arguments that may be a pointer to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Near {
    /// Offset in the arguments, bytes.
    pub offset: u32,
    /// Value of the word.
    pub value: u64,
}

/// Work that was submitted and had not ended when a fault was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Channel on which the work was submitted.
    pub channel: ChannelId,
    /// Index of the entry in the ring.
    pub index: u32,
    /// Kind of the work.
    pub kind: SuspectKind,
    /// Program of a kernel.
    pub program: Option<GpuVa>,
    /// Grid of a kernel.
    pub grid: [u32; 3],
    /// Block of a kernel.
    pub block: [u32; 3],
    /// Word of a kernel's arguments nearest to the page that could not be accessed. It is set if the kernel log names the page and no other
    /// word is about as near.
    pub near: Option<Near>,
    /// Record of a kernel. No source sets it; [`Decoder::name_suspects`](crate::decode::Decoder::name_suspects) does.
    pub kernel: Option<Arc<Kernel>>,
}

/// A fault: an error of the GPU for which the driver stopped a channel of a process, or of a whole GPU.
///
/// Besides the raw words it contains the work that had not ended, because only memory at this moment shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Time at which the fault was noticed, and the process.
    pub at: At,
    /// Source from which the fault was read.
    pub source: FaultSource,
    /// Number of the Xid.
    pub code: u32,
    /// Channel that was stopped, if known.
    pub channel: Option<ChannelId>,
    /// Other channels that were stopped with it because of the same error.
    pub group: Vec<ChannelId>,
    /// True if the channel is not known for certain, but concluded from the order in which libcuda makes channels and error notifiers.
    pub assumed: bool,
    /// Work-submit token of the channel, if known.
    pub token: Option<u32>,
    /// Words of the error notifier, if it was read.
    pub notification: Option<Notification>,
    /// Message of the kernel log, if it was read.
    pub message: Option<Box<Xid>>,
    /// Memory of the process at the page that could not be accessed, or nearest to it. No source sets it; the pipeline does if the driver's
    /// calls were seen.
    pub memory: Option<MemoryNear>,
    /// Work that had not ended, of the channel or of all channels that may be meant.
    pub suspects: Vec<Suspect>,
    /// True if no other work can have caused the fault: all rings that may be meant were read and understood.
    pub only_these: bool,
}

impl Fault {
    /// Makes a fault reported by an error notifier, without facts from rings and messages.
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

    /// Returns the PCI address of the GPU if the kernel log reported an error of a process, but no message says of which process.
    #[must_use]
    pub fn of_gpu(&self) -> Option<&str> {
        let message = self.message.as_deref();
        let message = message.filter(|m| self.at.pid == 0 && m.is_of_unknown_process());
        message.map(|m| m.pci.as_str())
    }
}
