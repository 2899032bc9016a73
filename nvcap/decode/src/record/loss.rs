//! Known losses.

use super::{At, ChannelId, named};

/// Something that is known to be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Time at which the loss was noticed, and the process.
    pub at: At,
    /// Channel, if the loss is one channel's.
    pub channel: Option<ChannelId>,
    /// Kind and amount of the loss.
    pub what: Lost,
}

named! {
    /// Contents of records that did not fit into a buffer.
    pub enum RecordKind {
        /// Calls of the driver.
        Driver = "driver",
        /// Driver calls that the tracer saw only in part.
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
        /// Position of the first missing entry.
        position: u64,
        /// Number of entries.
        count: u64,
    },
    /// Records that did not fit into the ring buffer, by kind of record.
    Records {
        /// Contents of the records.
        kind: RecordKind,
        /// Number of records.
        count: u64,
    },
    /// Doorbells of processes whose channel never became known.
    UnknownChannel {
        /// Token that was written.
        token: Option<u32>,
        /// Number of doorbells.
        count: u64,
    },
    /// Stacks that were not taken, or not kept until their frames were found. Submissions lack nothing else because of it.
    Stacks {
        /// Number of stacks.
        count: u64,
    },
    /// Error notifiers of a process that were not read at its end, while no kernel log reports faults either. A fault in the last moment is
    /// not reported. Submissions lack nothing because of it.
    Notifiers {
        /// Number of channels with these notifiers.
        count: u64,
    },
    /// Something that the tracer could not follow, such as a process that could not be armed.
    Untraced {
        /// Reason, in words.
        why: String,
    },
}
