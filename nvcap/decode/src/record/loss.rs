//! Losses that are known.

use super::{At, ChannelId, named};

/// Something that is known to be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Time when it was noticed, and the process.
    pub at: At,
    /// The channel, where the loss is one channel's.
    pub channel: Option<ChannelId>,
    /// Kind and amount of the loss.
    pub what: Lost,
}

named! {
    /// The contents of records that did not fit into a buffer.
    pub enum RecordKind {
        /// Calls of the driver.
        Driver = "driver",
        /// Driver calls that the tracer did not see whole.
        PreemptedCalls = "driver (calls during which a fentry program was preempted)",
        /// Driver calls, and process events.
        DriverCalls = "driver (ioctls, mappings, processes)",
        /// Ioctls.
        Ioctl = "ioctl",
        /// Submissions.
        Submission = "submission",
    }
}

/// Kind and amount of a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Ring entries that were overwritten before they were read: first position and count.
    Entries {
        /// Position of the first one missing.
        position: u64,
        /// Number of entries.
        count: u64,
    },
    /// Records that did not fit into the ring buffer, by kind of record.
    Records {
        /// Their contents.
        kind: RecordKind,
        /// Number of records.
        count: u64,
    },
    /// Doorbells of processes whose channel never became known.
    UnknownChannel {
        /// The token that was written.
        token: Option<u32>,
        /// Number of doorbells.
        count: u64,
    },
    /// Stacks that were not taken, or not kept until their frames were found: submissions lack nothing else for it.
    Stacks {
        /// Number of stacks.
        count: u64,
    },
    /// Error notifiers of a process that were not read at its end, where no kernel log tells of faults either: a fault of its last moment is
    /// not told. Submissions lack nothing for it.
    Notifiers {
        /// Number of channels whose notifiers they are.
        count: u64,
    },
    /// The tracer could not follow something (a process that could not be armed, say).
    Untraced {
        /// Reason, in words.
        why: String,
    },
}
