//! Columns of the tables: type, unit, meaning, source, and the way from a row to its value.

use std::borrow::Cow;
use std::sync::Arc;

use crate::output::kernels::Name;
use crate::output::redact::Redactor;
use nvcap_decode::decode::event::{Context, GpuTime, Operation, SubmissionHead};
use nvcap_decode::driver::{Call, Version};
use nvcap_decode::hang::xid::Access;
use nvcap_decode::ledger::{ChannelLedger, Ledger};
use nvcap_decode::record::{self, ChannelId};
use nvcap_decode::samples::Counter;
use nvcap_decode::wire::GpuVa;

/// A column.
pub struct Column {
    /// Name of the column.
    pub name: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// True if values may be missing: what is not known, or what a row of this sort does not have.
    pub optional: bool,
    /// Unit of a number: ns, bytes, ...; empty where there is none.
    pub unit: &'static str,
    /// Source of its values.
    pub source: Source,
    /// Description of its values.
    pub about: &'static str,
    pub(super) get: for<'a> fn(&'a Row<'a>) -> Value<'a>,
}

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 64 bits with a sign: differences of such numbers are what one expects.
    Int,
    /// 64 bits without a sign, for addresses and words that use all of them.
    Unsigned,
    /// Truth values.
    Bool,
    /// Texts in UTF-8.
    Text,
    /// Bytes; in CSV hexadecimal digits.
    Bytes,
}

impl Kind {
    /// Returns the name that `nvcap schema` has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int => "int64",
            Self::Unsigned => "uint64",
            Self::Bool => "bool",
            Self::Text => "text",
            Self::Bytes => "bytes",
        }
    }
}

/// First source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The doorbell's trap, or the look at the ring.
    Doorbell,
    /// The channel's ring.
    Ring,
    /// Methods in the pushbuffer.
    Stream,
    /// The kernel's QMD.
    Qmd,
    /// The driver's calls: the driver model.
    Driver,
    /// Names of kernels that were found in the process.
    Names,
    /// The user's --phases.
    Phases,
    /// The stack at the doorbell (--stacks).
    Stack,
    /// Time stamps that the GPU writes (--gpu-time).
    Stamps,
    /// The system call of an ioctl.
    Call,
    /// The channel's error notifier, in the process's memory, or the kernel log.
    Fault,
    /// The GPU's sampler of program counters (--sample-pc).
    Sampler,
    /// The driver's record of context switches (--shares).
    Switches,
    /// The ledger.
    Ledger,
    /// The recording, or the machine that traces.
    Machine,
}

impl Source {
    /// Returns the name that `nvcap schema` has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Doorbell => "doorbell",
            Self::Ring => "ring",
            Self::Stream => "pushbuffer",
            Self::Qmd => "QMD",
            Self::Driver => "driver model",
            Self::Names => "names of kernels",
            Self::Phases => "--phases",
            Self::Stack => "--stacks",
            Self::Stamps => "--gpu-time",
            Self::Call => "system call",
            Self::Fault => "error notifier, kernel log",
            Self::Sampler => "--sample-pc",
            Self::Switches => "--shares",
            Self::Ledger => "ledger",
            Self::Machine => "machine",
        }
    }
}

/// Object that a row is made of.
pub(super) enum Row<'a> {
    Event(Event<'a>),
    Call(Ioctl<'a>),
    Channel(Channel<'a>),
    Loss(Loss<'a>),
    Fault(Fault<'a>),
    Samples(Samples<'a>),
    Slice(Slice<'a>),
    Ledger(Whole<'a>),
}

/// A submission, or an operation of one.
pub(super) struct Event<'a> {
    pub(super) context: &'a Context,
    /// The entry's index in its submission.
    pub(super) entry: u32,
    pub(super) head: Option<&'a SubmissionHead>,
    pub(super) operation: Option<&'a Operation>,
    /// The times of its entry, for an operation that has some.
    pub(super) times: Option<&'a GpuTime>,
    /// The forms of the kernel's name.
    pub(super) name: Option<Arc<Name>>,
    pub(super) redact: Option<&'a Redactor>,
}

/// A call of the driver.
pub(super) struct Ioctl<'a> {
    pub(super) call: Call<'a>,
    pub(super) version: Option<Version>,
}

/// A channel with its part of the ledger.
pub(super) struct Channel<'a> {
    pub(super) id: ChannelId,
    pub(super) ledger: &'a ChannelLedger,
}

/// A slice, with the name of its process.
pub(super) struct Slice<'a> {
    pub(super) slice: &'a nvcap_decode::switches::Slice,
    pub(super) name: Option<&'a str>,
}

/// The trace as a whole.
pub(super) struct Whole<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) trace: &'a Trace,
    /// The version of nvcap that writes.
    pub(super) version: &'static str,
}

/// A fault of the GPU.
pub(super) struct Fault<'a> {
    pub(super) fault: &'a record::Fault,
    /// Its failed access, where the kernel log told one.
    pub(super) access: Option<Access>,
    /// N of `/dev/nvidiaN`.
    pub(super) gpu: Option<u32>,
}

/// Samples at an instruction in a window.
pub(super) struct Samples<'a> {
    pub(super) window: &'a record::Samples,
    /// Address of the instruction; none of those for which there was no room.
    pub(super) pc: Option<u64>,
    pub(super) counter: &'a Counter,
    pub(super) kernel: Option<&'a record::Kernel>,
}

/// Something that is missing, or was not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss<'a> {
    pub(super) what: &'static str,
    pub(super) pid: Option<u32>,
    pub(super) channel: Option<u32>,
    pub(super) token: Option<u32>,
    pub(super) position: Option<u64>,
    pub(super) count: u64,
    pub(super) why: Option<Cow<'a, str>>,
}

/// Facts about the trace as a whole.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// `CLOCK_MONOTONIC` at a moment near its begin, ns.
    pub monotonic_ns: Option<u64>,
    /// `CLOCK_REALTIME` at that moment, ns.
    pub realtime_ns: Option<u64>,
    /// The release of NVIDIA's driver.
    pub driver: Option<String>,
    /// True if users' data is hidden.
    pub redacted: bool,
    /// True if a filter chooses the events.
    pub filtered: bool,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Number(u64),
    Signed(i64),
    Bool(bool),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
}

#[cfg(feature = "parquet")]
impl Value<'_> {
    /// Returns a number of 64 bits with a sign. The largest stands for all larger ones.
    pub(super) fn as_int(&self) -> Option<i64> {
        match *self {
            Self::Number(n) => Some(i64::try_from(n).unwrap_or(i64::MAX)),
            Self::Signed(n) => Some(n),
            _ => None,
        }
    }
}

macro_rules! into_value {
    ($($from:ty, $v:ident => $value:expr;)*) => {
        $(impl<'a> From<$from> for Value<'a> {
            fn from($v: $from) -> Self {
                $value
            }
        })*
    };
}

into_value! {
    u8, v => Self::Number(v.into());
    u16, v => Self::Number(v.into());
    u32, v => Self::Number(v.into());
    u64, v => Self::Number(v);
    GpuVa, v => Self::Number(v.0);
    i32, v => Self::Signed(v.into());
    i64, v => Self::Signed(v);
    bool, v => Self::Bool(v);
    &'a str, v => Self::Text(v.into());
    String, v => Self::Text(v.into());
    Cow<'a, str>, v => Self::Text(v);
    &'a [u8], v => Self::Bytes(v.into());
    Vec<u8>, v => Self::Bytes(v.into());
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A list of columns of rows of one sort: name, type, `required` or `optional`, unit, source, meaning, and the value in which the row
/// has the name that is given; `?` is of an option.
macro_rules! column_list {
    ($sort:ident $row:tt {
        $($name:ident: $kind:ident $presence:ident $unit:literal $source:ident, $about:literal => $value:expr;)*
    }) => {
        &[$(crate::export::tables::schema::Column {
            name: stringify!($name),
            kind: crate::export::tables::schema::Kind::$kind,
            optional: column_list!(@$presence),
            unit: $unit,
            source: crate::export::tables::schema::Source::$source,
            about: $about,
            get: |row| {
                let crate::export::tables::schema::Row::$sort $row = row else {
                    return crate::export::tables::schema::Value::Null;
                };
                crate::export::tables::schema::Value::from($value)
            },
        }),*]
    };
    (@required) => { false };
    (@optional) => { true };
}
pub(super) use column_list;
