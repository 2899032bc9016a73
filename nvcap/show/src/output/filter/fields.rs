//! The fields an expression may name, what they may be compared with, and how each is read from an event.

use super::words::{self, Words};
use crate::output::Detail;
use crate::output::kernels::{self, Name};
use crate::output::method::method_name;
use crate::output::names::known_pid;
use crate::output::names::{EngineName, direction, is_timed, launch_how, launch_kind};
use nvcap_decode::decode::event::{
    Body, Context, Copy, Event, InlineContent, Operation, PartOf, SemaphoreAction, SemaphoreUnit,
};
use nvcap_decode::record::{Frame, Identity};
use nvcap_decode::wire::entry::EntryKind;

macro_rules! fields {
    ($($name:literal $variant:ident $kind:ident $doc:literal)*) => {
        /// A field of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Field { $( #[doc = $doc] $variant ),* }

        /// All fields by name.
        const FIELDS: &[(&str, Field, Kind, &str)] = &[ $( ($name, Field::$variant, Kind::$kind, $doc) ),* ];
    };
}

/// Type of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number.
    Number,
    /// A time in ns.
    Time,
    /// A time in s.
    Seconds,
    /// One of a few words.
    Choice,
    /// Any text.
    Text,
    /// A name that also has a number (a method).
    Named,
    /// Yes or no.
    Flag,
}

fields! {
    "type" Type Choice "kind of object"
    "op" Op Choice "operation: JSON's kinds, and the words of text"
    "time" Since Seconds "time since the trace's first record as text shows it, s"
    "time_ns" Time Time "CLOCK_MONOTONIC of the traced machine, ns"
    "pid" Pid Number "process id"
    "tid" Tid Number "thread id"
    "thread" Thread Text "thread or process name"
    "comm" Comm Text "command name of the process (-a)"
    "user" User Text "user of the process: name, or number where it has none (-a)"
    "cgroup" Cgroup Text "path of the process's control group (-a)"
    "container" Container Text "container of the process: name in its pod, else id (-a)"
    "pod" Pod Text "pod of the process: name, or UID where it is not known (-a)"
    "namespace" Namespace Text "namespace of the pod (-a)"
    "gpu" Gpu Number "number N of /dev/nvidiaN"
    "token" Token Number "work-submit token of the channel"
    "channel" Channel Number "the channel's number in this trace, as ledger and JSON have it"
    "engine" Engine Text "engine: gr, ce, ce2, nvdec0, ...; copy means any copy engine"
    "serial" Serial Number "number of the submission in this trace"
    "phase" Phase Text "labelled time range (--phases)"
    "api" Api Text "function of CUDA's interface that the program called (--stacks)"
    "frame" Frame Text "function of any frame of the stack (--stacks)"
    "gpu_ns" GpuTime Time "how long the GPU worked on it, ns (--gpu-time)"
    "gpu_exec_ns" GpuExec Time "how long a kernel's instructions ran, without its launch, ns (--gpu-time)"
    "queued_ns" Queued Time "time from the doorbell to the GPU's start, ns (--gpu-time)"
    "gpu_start_ns" GpuStart Time "when the GPU began it, CLOCK_MONOTONIC of the traced machine, ns (--gpu-time)"
    "late" Late Flag "caught up later than its own doorbell"
    "how" How Choice "how the submission was seen"
    "bytes" Bytes Number "bytes copied, written inline or submitted"
    "src" Src Number "source address"
    "dst" Dst Number "destination address"
    "address" Address Number "address of a semaphore, a barrier or an entry"
    "payload" Payload Number "payload of a semaphore"
    "lines" Lines Number "lines of a copy or inline write"
    "mode" Mode Text "mode of a copy: linear, pitch, fill, ..."
    "direction" Direction Choice "which way a copy or inline write goes"
    "content" Content Choice "what an inline write is"
    "part_of" PartOf Choice "what it is a part of that the driver does on its own account"
    "kind" Kind Choice "whose launch it is"
    "grid" Grid Number "blocks of a launch, all dimensions multiplied"
    "grid.x" GridX Number "blocks in x"
    "grid.y" GridY Number "blocks in y"
    "grid.z" GridZ Number "blocks in z"
    "block" Block Number "threads of a block, all dimensions multiplied"
    "block.x" BlockX Number "threads in x"
    "block.y" BlockY Number "threads in y"
    "block.z" BlockZ Number "threads in z"
    "regs" Registers Number "registers of a thread"
    "smem" Shared Number "shared memory of a block, bytes"
    "lmem" Local Number "local memory of a thread, bytes"
    "cluster" Cluster Number "blocks of a cluster, all dimensions multiplied"
    "cooperative" Cooperative Flag "all blocks of the launch run at once"
    "replay" Replay Number "number of the graph replay that a launch is a node of, or of the replay itself"
    "place" Place Number "place of a launch among the nodes of its graph replay"
    "launch.how" LaunchHow Choice "how a launch was commanded"
    "nodes" Nodes Number "QMDs that a graph replay runs"
    "kernels" Kernels Number "kernels of the program that a graph replay runs"
    "kernel" Kernel Text "name of the kernel, demangled or as the compiler wrote it"
    "program" Program Number "address of the program"
    "qmd" Qmd Number "address of the QMD"
    "unit" Unit Choice "which unit handles a semaphore"
    "action" Action Choice "what a semaphore operation does"
    "what" What Text "which barrier, draw, video or host operation"
    "class" Class Number "class of a method, bind, barrier or draw"
    "method" Method Named "method write, by name or byte address"
    "subchannel" Subchannel Number "subchannel of a method write or bind"
    "data" Data Number "data word of a method write"
    "position" Position Number "ring position of a submission"
    "entries" Entries Number "ring entries of a submission"
    "missing" Missing Number "bytes of a submission that could not be read"
}

impl Field {
    pub(super) fn by_name(name: &str) -> Option<Self> {
        FIELDS
            .iter()
            .find(|f| f.0 == name)
            .map(|f| f.1)
            .or(match name {
                "registers" => Some(Self::Registers),
                "shared" => Some(Self::Shared),
                "prog" => Some(Self::Program),
                "name" => Some(Self::Thread),
                "channel.id" => Some(Self::Channel),
                _ => None,
            })
    }

    fn row(self) -> &'static (&'static str, Field, Kind, &'static str) {
        FIELDS.iter().find(|f| f.1 == self).unwrap_or(&FIELDS[0])
    }

    /// Tells whether the field says where or when a submission was made: all events of a submission have the same value.
    pub(super) fn is_place(self) -> bool {
        matches!(
            self,
            Self::Time
                | Self::Since
                | Self::Pid
                | Self::Tid
                | Self::Thread
                | Self::Comm
                | Self::User
                | Self::Cgroup
                | Self::Container
                | Self::Pod
                | Self::Namespace
                | Self::Gpu
                | Self::Token
                | Self::Channel
                | Self::Engine
                | Self::Phase
                | Self::Api
                | Self::Frame
                | Self::Late
                | Self::How
        )
    }

    /// Tells whether the field is part of a process's identity, which only traces of all processes (`-a`) have.
    #[must_use]
    pub fn is_of_identity(self) -> bool {
        matches!(
            self,
            Self::Comm | Self::User | Self::Cgroup | Self::Container | Self::Pod | Self::Namespace
        )
    }

    /// Tells whether the field is read from the stack, which only traces with `--stacks` have.
    #[must_use]
    pub fn is_of_stack(self) -> bool {
        matches!(self, Self::Api | Self::Frame)
    }

    /// Tells whether the field is one of the GPU's times, which only traces with `--gpu-time` have.
    #[must_use]
    pub fn is_of_gpu_time(self) -> bool {
        matches!(
            self,
            Self::GpuTime | Self::GpuExec | Self::Queued | Self::GpuStart
        )
    }

    /// Its name in expressions.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Describes the field, in a few words.
    #[must_use]
    pub fn about(self) -> &'static str {
        self.row().3
    }

    /// Iterates over all fields.
    pub fn all() -> impl Iterator<Item = Self> {
        FIELDS.iter().map(|f| f.1)
    }

    pub(super) fn kind(self) -> Kind {
        self.row().2
    }

    /// The words a `Kind::Choice` may be compared with.
    #[must_use]
    pub fn choices(self) -> &'static [&'static str] {
        match self {
            Self::Type => &["operation", "submission", "method", "entry", "stop", "chip"],
            Self::LaunchHow => &[
                "scheduled",
                "released",
                "dependent",
                "inline_qmd",
                "macro",
                "launch",
            ],
            Self::Op => words::ALL,
            Self::How => nvcap_decode::record::How::NAMES,
            Self::Direction => &[
                "h2d", "d2h", "d2d", "h2h", "p2p", "h2a", "a2h", "d2a", "a2d", "a2a",
            ],
            Self::Content => &[
                "data",
                "code",
                "constant_bank",
                "qmd",
                "qmd_part",
                "semaphore",
                "texture_header",
                "unknown",
            ],
            Self::PartOf => &["none", "context", "module"],
            Self::Kind => &[
                "user",
                "companion",
                "driver_memset",
                "driver_copy",
                "driver_graph",
                "unresolved",
                "driver",
            ],
            Self::Unit => &["host", "engine", "copy"],
            Self::Action => &["release", "acquire", "reduction", "other"],
            _ => &[],
        }
    }

    /// The letters that text shows before the number.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Channel => "ch",
            Self::Gpu => "gpu",
            _ => "",
        }
    }

    pub(super) fn detail(self) -> Detail {
        match self {
            Self::Method | Self::Data => Detail::Methods,
            _ => Detail::Operations,
        }
    }
}

/// Value of a field of an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Number(u64),
    Word(std::borrow::Cow<'a, str>),
    /// The words of an operation.
    Words(Words),
    /// A kernel's name in its forms, and as the compiler wrote it.
    Names(std::sync::Arc<Name>, std::borrow::Cow<'a, str>),
    /// The frames of a stack.
    Frames(&'a [Frame]),
    /// A name and its number.
    Either(std::borrow::Cow<'a, str>, u64),
}

/// Tells whether a word of an expression means a word of an event. Letter case does not matter, and some words mean more than one.
pub(super) fn same_word(wanted: &str, is: &str) -> bool {
    if wanted.eq_ignore_ascii_case(is) {
        return true;
    }
    let lower = wanted.to_ascii_lowercase();
    match lower.as_str() {
        "copy" | "ce" => is.starts_with("ce"),
        "graphics" | "compute" | "gr0" => is == "gr",
        "driver" => is == "companion" || is.starts_with("driver"),
        "acquire" => is.starts_with("acquire"),
        "nvdec" | "nvenc" | "nvjpg" | "ofa" => is.starts_with(&lower),
        "unknown" => is == "?",
        _ => false,
    }
}

fn word(w: &str) -> Option<Value<'_>> {
    Some(Value::Word(w.into()))
}

fn number(n: impl Into<u64>) -> Option<Value<'static>> {
    Some(Value::Number(n.into()))
}

fn volume(d: [u32; 3]) -> u64 {
    d.iter().fold(1, |n, d| n.saturating_mul(u64::from(*d)))
}

/// Reads a field; `None` where the event has none. `begin_ns`: the time of the trace's first record.
pub(super) fn read<'a>(
    field: Field,
    event: &'a Event<'_>,
    begin_ns: Option<u64>,
) -> Option<Value<'a>> {
    let c: &Context = event.context;
    match field {
        Field::Type => word(match event.body {
            Body::Submission(_) => "submission",
            Body::Entry(_) => "entry",
            Body::Method(_) => "method",
            Body::Operation(_) => "operation",
            Body::Stop(_) => "stop",
            Body::Chip(_) => "chip",
        }),
        Field::Time => number(c.at.time()?),
        Field::Since => number(since(c.at.time()?, begin_ns?)),
        Field::Pid => number(known_pid(c.at.pid)?),
        Field::Tid => number(known_pid(c.at.tid)?),
        Field::Thread => word(c.thread.as_deref()?),
        _ if field.is_of_identity() => identity(field, c.identity.as_deref()?),
        Field::Gpu => number(c.gpu?),
        Field::Token => number(c.token?),
        Field::Channel => number(c.channel.0),
        Field::Engine => match &event.body {
            Body::Operation(Operation::Copy(copy)) => {
                Some(Value::Word(copy.engine.to_string().into()))
            }
            _ => Some(Value::Word(EngineName(c.engine).to_string().into())),
        },
        Field::Serial => number(c.serial),
        Field::Phase => word(c.phase.as_deref()?),
        Field::Api => word(c.stack.as_ref()?.api.as_deref()?),
        Field::Frame => Some(Value::Frames(&c.stack.as_ref()?.frames)),
        Field::GpuTime | Field::GpuExec | Field::Queued | Field::GpuStart => gpu_time(field, event),
        Field::Late => number(c.late),
        Field::How => word(c.how.name()),
        Field::PartOf => word(c.part_of(event.entry).map_or("none", PartOf::name)),
        _ => match &event.body {
            Body::Operation(op) => operation(field, op),
            Body::Method(m) => match field {
                Field::Method => {
                    let name = method_name(m.class, m.method).unwrap_or_default();
                    Some(Value::Either(name.into(), u64::from(m.method)))
                }
                Field::Class => number(m.class),
                Field::Subchannel => number(m.subchannel),
                Field::Data => number(m.data),
                _ => None,
            },
            Body::Submission(s) => match field {
                Field::Bytes => number(s.bytes),
                Field::Missing => number(s.missing),
                Field::Position => number(s.position),
                Field::Entries => number(s.entries),
                _ => None,
            },
            Body::Entry(e) => match (field, e.kind) {
                (Field::Bytes, EntryKind::Segment { len, .. }) => number(len),
                (Field::Address, EntryKind::Segment { address, .. }) => number(address.0),
                _ => None,
            },
            Body::Stop(_) | Body::Chip(_) => None,
        },
    }
}

/// The ns between two times that are rounded down to microseconds as text shows them; 0 if the second is later.
fn since(ns: u64, begin_ns: u64) -> u64 {
    (ns / 1000).saturating_sub(begin_ns / 1000) * 1000
}

/// Returns a field of a process's identity.
fn identity(field: Field, who: &Identity) -> Option<Value<'_>> {
    match field {
        Field::Comm => word(&who.comm),
        Field::User => match &who.user {
            Some(user) => word(user),
            None => Some(Value::Word(who.uid?.to_string().into())),
        },
        Field::Cgroup => word(who.cgroup.as_deref()?),
        Field::Container => {
            let container = who.container.as_ref()?;
            word(container.name.as_ref().unwrap_or(&container.id))
        }
        Field::Pod => {
            let pod = who.pod.as_ref()?;
            word(pod.name.as_ref().unwrap_or(&pod.uid))
        }
        Field::Namespace => word(who.pod.as_ref()?.namespace.as_deref()?),
        _ => None,
    }
}

/// A GPU time of an event. Only submissions and timed operations have one, as in the JSON output.
fn gpu_time(field: Field, event: &Event<'_>) -> Option<Value<'static>> {
    let time = event.context.gpu_time_of(event.entry)?.by_stamp();
    let (duration, executed) = match &event.body {
        Body::Submission(_) => (time.worked(), time.executed()),
        Body::Operation(op) if is_timed(op) => (time.alone(), time.exec_alone()),
        _ => return None,
    };
    match field {
        Field::GpuStart => number(time.start?.host_ns),
        Field::GpuTime => number(duration?.ns),
        Field::GpuExec => number(executed?.ns),
        _ => {
            let (least, most) = time.queued?;
            number(least.midpoint(most))
        }
    }
}

fn operation(field: Field, op: &Operation) -> Option<Value<'_>> {
    if field == Field::Op {
        return Some(Value::Words(Words::of(op)));
    }
    match op {
        Operation::Launch(l) => match field {
            Field::Kind => word(launch_kind(l.kind)),
            Field::Grid => number(volume(l.grid?)),
            Field::GridX => number(l.grid?[0]),
            Field::GridY => number(l.grid?[1]),
            Field::GridZ => number(l.grid?[2]),
            Field::Block => number(volume(l.block?)),
            Field::BlockX => number(l.block?[0]),
            Field::BlockY => number(l.block?[1]),
            Field::BlockZ => number(l.block?[2]),
            Field::Registers => number(l.registers?),
            Field::Shared => number(l.shared_bytes?),
            Field::Local => number(l.local_bytes?),
            Field::Cluster => number(volume(l.cluster?)),
            Field::Cooperative => number(l.cooperative),
            Field::Replay => number(l.replay?),
            Field::Place => number(l.place?),
            Field::LaunchHow => word(launch_how(l.how)),
            Field::Bytes => number(l.moves?.bytes?),
            Field::Dst => number(l.moves?.dst?),
            Field::Src => number(l.moves?.src?),
            Field::Kernel => {
                let kernel = l.kernel.as_ref()?;
                Some(Value::Names(
                    kernels::name(kernel),
                    kernel.name.as_str().into(),
                ))
            }
            Field::Program => number(l.program?),
            Field::Qmd => number(l.qmd?),
            _ => None,
        },
        Operation::Graph(g) => match field {
            Field::Replay => number(g.replay),
            Field::Nodes => number(g.nodes),
            Field::Kernels => number(g.kernels),
            Field::Bytes => number(g.bytes),
            _ => None,
        },
        Operation::Copy(c) => copy(field, c),
        Operation::Load(_) => None,
        Operation::Inline(i) => match field {
            Field::Bytes => number(i.bytes),
            Field::Src => i.src.and_then(number),
            Field::Dst => number(i.dst),
            Field::Lines => number(i.lines),
            Field::Direction => word(direction(i.direction)),
            Field::Content => word(match i.content {
                Some(InlineContent::Data) => "data",
                Some(InlineContent::Code) => "code",
                Some(InlineContent::ConstantBank) => "constant_bank",
                Some(InlineContent::Qmd) => "qmd",
                Some(InlineContent::QmdPart) => "qmd_part",
                Some(InlineContent::Semaphore) => "semaphore",
                Some(InlineContent::TextureHeader) => "texture_header",
                None => "unknown",
            }),
            _ => None,
        },
        Operation::Semaphore(s) => match field {
            Field::Address => number(s.address),
            Field::Payload => number(s.payload),
            Field::Unit => word(match s.unit {
                SemaphoreUnit::Host => "host",
                SemaphoreUnit::Engine => "engine",
                SemaphoreUnit::Copy => "copy",
            }),
            Field::Action => word(match s.action {
                SemaphoreAction::Release => "release",
                SemaphoreAction::AcquireEqual
                | SemaphoreAction::AcquireGreaterEqual
                | SemaphoreAction::AcquireAnd
                | SemaphoreAction::AcquireNor => "acquire",
                SemaphoreAction::Reduction => "reduction",
                SemaphoreAction::Other(_) => "other",
            }),
            _ => None,
        },
        Operation::Barrier(b) => match field {
            Field::What => word(b.what),
            Field::Class => number(b.class),
            Field::Address => number(b.address?),
            _ => None,
        },
        Operation::Bind(b) => match field {
            Field::Class => number(b.class),
            Field::Subchannel => number(b.subchannel),
            _ => None,
        },
        Operation::Draw(d) => match field {
            Field::What => word(d.what),
            Field::Class => number(d.class),
            _ => None,
        },
        Operation::Video(v) => match field {
            Field::What => word(v.what),
            Field::Class => number(v.class),
            _ => None,
        },
        Operation::Host(h) => match field {
            Field::What => word(h.what),
            _ => None,
        },
    }
}

fn copy(field: Field, c: &Copy) -> Option<Value<'_>> {
    match field {
        Field::Bytes => number(c.bytes),
        Field::Src => number(c.src?),
        Field::Dst => number(c.dst?),
        Field::Lines => number(c.lines),
        Field::Mode => word(c.mode.name()),
        Field::Direction => word(direction(c.direction?)),
        Field::Address => number(c.semaphore.as_ref()?.address),
        Field::Payload => number(c.semaphore.as_ref()?.payload),
        _ => None,
    }
}
