//! Kinds of packets, and their heads.

use nvcap_decode::record::{MOST_BYTES, Record};

/// First bytes of each packet.
pub(super) const MAGIC: [u8; 4] = *b"nvcp";
/// Version of the head. A reader refuses other versions.
pub(super) const VERSION: u8 = 1;
/// Length of the head, bytes.
pub(super) const HEAD: usize = 32;
/// Offset of the part of the head that the checksum covers: everything behind the checksum.
const CHECKED: usize = 8;
/// The most bytes of a body in one packet. Together with its head, a packet is then well below 256 KiB, the most that Wireshark reads.
pub(super) const MOST_PART: usize = 192 << 10;
/// The most bytes of a body: those of a record, with their heads. A reader treats a longer body as damage, and a writer makes none.
pub(super) const MOST_BODY: usize = MOST_BYTES + (MOST_BYTES >> 1);
/// The most bytes of a body that is a list of small parts, which each take many times more in memory than in the file.
pub(super) const MOST_LIST: usize = 16 << 20;
/// Flag of a record that is also in an earlier file of the trace (`--rotate`).
pub(super) const AGAIN: u8 = 1;

macro_rules! kinds {
    ($($(#[$of:meta])* $value:ident = $number:literal, $name:literal;)*) => {
        /// Kind of a packet, by its contents.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kind {
            $($(#[$of])* $value = $number,)*
        }

        impl Kind {
            /// Returns the kind with this number.
            pub(super) const fn with_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$value),)*
                    _ => None,
                }
            }

            /// Returns the name of the kind in messages and in the interface of the packets.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Description of the trace.
    Trace = 0, "trace";
    Ioctl = 1, "ioctl";
    Mapping = 2, "mapping";
    Unmapping = 3, "unmapping";
    Process = 4, "process";
    Channel = 5, "channel";
    Submission = 6, "submission";
    Gpu = 7, "gpu";
    QmdCopy = 8, "image";
    Kernel = 9, "kernel";
    Stack = 10, "stack";
    Stamps = 11, "stamps";
    Loss = 12, "loss";
    /// Calls to which stacks refer by number.
    Calls = 13, "calls";
    /// Mark that the live trace had shown everything before it.
    Idle = 14, "idle";
    /// End of the trace.
    End = 15, "end";
    /// Mark that the trace continues in another file.
    Continued = 16, "continued";
    /// Snapshot of a process.
    Snapshot = 17, "look";
    /// Entries that were not read because the user asked for it.
    Skipped = 18, "passed";
    /// A fault of the GPU.
    Fault = 19, "fault";
    /// Samples of program counters.
    Samples = 20, "samples";
    /// Context switches that the driver recorded.
    Switches = 21, "switches";
}

impl Kind {
    /// Returns the most bytes of a body of this kind.
    pub(super) const fn most_body(self) -> usize {
        match self {
            Self::Ioctl | Self::Submission | Self::QmdCopy | Self::Snapshot => MOST_BODY,
            _ => MOST_LIST,
        }
    }

    pub(super) const fn of(record: &Record) -> Self {
        match record {
            Record::Ioctl(_) => Self::Ioctl,
            Record::Mapping(_) => Self::Mapping,
            Record::Unmapping(_) => Self::Unmapping,
            Record::Process(_) => Self::Process,
            Record::Channel(_) => Self::Channel,
            Record::Submission(_) => Self::Submission,
            Record::Gpu(_) => Self::Gpu,
            Record::QmdCopy(_) => Self::QmdCopy,
            Record::Kernel(_) => Self::Kernel,
            Record::Stack(_) => Self::Stack,
            Record::Stamps(_) => Self::Stamps,
            Record::Loss(_) => Self::Loss,
            Record::Snapshot(_) => Self::Snapshot,
            Record::Skipped(_) => Self::Skipped,
            Record::Fault(_) => Self::Fault,
            Record::Samples(_) => Self::Samples,
            Record::Switches(_) => Self::Switches,
        }
    }
}

/// The head of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Number of the kind.
    pub kind: u8,
    /// Flags: 0 or [`AGAIN`].
    pub flags: u8,
    /// Random number of the trace.
    pub trace: u32,
    /// Number of the record in the trace, counted from 0.
    pub number: u64,
    /// Number of the part of the body that follows, and the count of parts.
    pub part: (u32, u32),
}

impl Head {
    /// Makes the bytes of the head of a packet with this part of the body.
    pub(super) fn bytes(&self, part: &[u8]) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&[VERSION, self.kind, self.flags, 0]);
        head[12..16].copy_from_slice(&self.trace.to_le_bytes());
        head[16..24].copy_from_slice(&self.number.to_le_bytes());
        head[24..28].copy_from_slice(&self.part.0.to_le_bytes());
        head[28..].copy_from_slice(&self.part.1.to_le_bytes());
        let sum = checksum(&head[CHECKED..], part);
        head[4..8].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// Parses the head and the part of a packet; `None` if the packet is damaged or is no packet of this format.
    pub(super) fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (head, part) = packet.split_at_checked(HEAD)?;
        let word = |at: usize| head[at..at + 4].try_into().map(u32::from_le_bytes);
        let (sum, trace) = (word(4).ok()?, word(12).ok()?);
        let sound = head.starts_with(&MAGIC) && sum == checksum(&head[CHECKED..], part);
        if !sound || head[8] != VERSION {
            return None;
        }
        let number = u64::from(word(16).ok()?) | u64::from(word(20).ok()?) << 32;
        let this = Self {
            kind: head[9],
            flags: head[10],
            trace,
            number,
            part: (word(24).ok()?, word(28).ok()?),
        };
        Some((this, part))
    }
}

fn checksum(head: &[u8], part: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(head);
    sum.update(part);
    sum.finalize()
}
