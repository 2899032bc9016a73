//! One operation as a line, without what differs from run to run: handles, addresses, payloads, channel numbers, users' data.

use std::fmt::Write as _;

use crate::output::method::class_name;
use crate::output::names::direction;
use nvcap_decode::decode::event::{
    Copy, Graph, Inline, InlineContent, Launch, LaunchKind, Operation, Semaphore, SemaphoreAction,
    SemaphoreUnit, SubmissionHead,
};
use nvcap_decode::wire::GpuVa;

/// Kind of an address, by what lies there. The addresses of each kind are numbered separately, in the order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// A program on the GPU.
    Program,
    /// The program's data: what copies, fills and memsets write, and copies read.
    Data,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Data => "data",
        }
    }
}

/// An address of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address {
    pub kind: Kind,
    pub pid: u32,
    pub at: u64,
}

/// The line of a submission.
pub(super) fn doorbell(s: &SubmissionHead) -> String {
    let entries = crate::output::plural::plural_of(u64::from(s.entries), "entry", "entries");
    let mut text = format!("doorbell {entries} {} B", s.bytes);
    if s.missing > 0 {
        let _ = write!(text, " ({} B of them missing)", s.missing);
    }
    text
}

/// The line of an operation, and its addresses.
pub(super) fn operation(pid: u32, op: &Operation) -> (String, Vec<Address>) {
    let mut addresses = Vec::new();
    let mut data = |at: Option<GpuVa>| {
        addresses.extend(at.map(|at| Address {
            kind: Kind::Data,
            pid,
            at: at.0,
        }));
    };
    let text = match op {
        Operation::Load(l) => format!("load of a {}", l.part_of.name()),
        Operation::Launch(l) => {
            if let Some(moves) = &l.moves {
                data(moves.src);
                data(moves.dst);
            }
            if let (Some(program), None) = (l.program, &l.kernel) {
                addresses.push(Address {
                    kind: Kind::Program,
                    pid,
                    at: program.0,
                });
            }
            launch(l)
        }
        Operation::Graph(g) => graph(g),
        Operation::Copy(c) => {
            // The host's side of a copy of pageable memory is one of the driver's buffers, used in turn.
            let sides = match c.direction.map(direction) {
                Some("h2d") => [None, c.dst],
                Some("d2h") => [c.src, None],
                _ => [c.src, c.dst],
            };
            sides.into_iter().for_each(data);
            copy(c)
        }
        Operation::Inline(i) => {
            if i.content == Some(InlineContent::Data) {
                data(Some(i.dst));
            }
            inline(i)
        }
        Operation::Semaphore(s) => semaphore(s),
        Operation::Barrier(b) => format!("barrier {}", b.what),
        Operation::Bind(b) => {
            let name = class_name(b.class).unwrap_or_default();
            format!(
                "bind subchannel {} class {:#06x} {name}",
                b.subchannel, b.class
            )
        }
        Operation::Draw(d) => {
            let count = d.count.map_or_else(String::new, |n| format!(" count {n}"));
            format!("{}{count} class {:#06x}", d.what, d.class)
        }
        Operation::Video(v) => format!("video {} class {:#06x}", v.what, v.class),
        Operation::Host(h) => format!("host {}", h.what),
    };
    (text.trim_end().to_owned(), addresses)
}

fn launch(l: &Launch) -> String {
    let mut text = match l.replay {
        Some(_) => "node launch".to_owned(),
        None => "launch".to_owned(),
    };
    text += match l.kind {
        LaunchKind::User => "",
        LaunchKind::Companion => " (driver: companion)",
        LaunchKind::DriverMemset => " (driver: memset)",
        LaunchKind::DriverCopy => " (driver: copy)",
        LaunchKind::DriverGraph => " (driver: graph)",
        LaunchKind::Driver => " (driver)",
        LaunchKind::Unresolved => " (QMD not seen)",
    };
    if let Some(bytes) = l.moves.as_ref().and_then(|m| m.bytes) {
        let _ = write!(text, " {bytes} B");
    }
    for (name, value) in [("grid", l.grid), ("block", l.block), ("cluster", l.cluster)] {
        if let Some([x, y, z]) = value {
            let _ = write!(text, " {name} {x}x{y}x{z}");
        }
    }
    if l.cooperative {
        text += " cooperative";
    }
    for (name, value) in [
        ("regs", l.registers),
        ("smem", l.shared_bytes.filter(|n| *n > 0)),
        ("lmem", l.local_bytes.filter(|n| *n > 0)),
        ("barriers", l.barriers.filter(|n| *n > 0)),
    ] {
        if let Some(value) = value {
            let _ = write!(text, " {name} {value}");
        }
    }
    text
}

fn graph(g: &Graph) -> String {
    let mut text = format!(
        "graph replay of {} nodes: {} kernels, {} memsets, {} copies, {} of the driver's, {} not seen; {} doorbells, {} B",
        g.nodes,
        g.kernels,
        g.memsets,
        g.copies,
        g.driver,
        g.unresolved,
        g.submissions.len(),
        g.bytes
    );
    if g.channels.len() > 1 {
        let _ = write!(text, ", {} channels", g.channels.len());
    }
    if g.uploaded {
        text += ", QMDs again";
    }
    if g.conditional {
        text += ", conditional";
    }
    text
}

fn copy(c: &Copy) -> String {
    let fill = c.src.is_none() && c.dst.is_some();
    let mut text = if fill { "fill" } else { "copy" }.to_owned();
    if let Some(d) = c.direction.filter(|_| !fill) {
        let _ = write!(text, " {}", direction(d));
    }
    let engine = match c.engine {
        nvcap_decode::decode::event::CopyEngine::Graphics => "grce",
        nvcap_decode::decode::event::CopyEngine::Copy(_) => "ce",
    };
    let _ = write!(text, " {} B {engine} {}", c.bytes, c.mode);
    if let Some(pattern) = &c.pattern {
        for word in pattern {
            let _ = write!(text, " of {word:#x}");
        }
    }
    if c.lines > 1 {
        let _ = write!(text, " {} lines of {} B", c.lines, c.line_bytes);
        if let Some((from, to)) = c.pitch {
            let _ = write!(text, " pitch {from} -> {to}");
        }
    }
    if let Some(s) = &c.semaphore {
        text += " then release";
        if s.timestamp {
            text += " timestamp";
        }
    }
    text
}

fn inline(i: &Inline) -> String {
    let content = match i.content {
        Some(InlineContent::Data) if i.fill.is_some() => " memset",
        Some(InlineContent::Data) => " data",
        Some(InlineContent::Code) => " code",
        Some(InlineContent::ConstantBank) => " constants",
        Some(InlineContent::Qmd) => " qmd",
        Some(InlineContent::QmdPart) => " part of a qmd",
        Some(InlineContent::Semaphore) => " semaphore",
        Some(InlineContent::TextureHeader) => " texture header",
        None => "",
    };
    let data = i.data.words();
    let mut text = format!(
        "inline {} {} B{content}{data}",
        direction(i.direction),
        i.bytes
    );
    if i.lines > 1 {
        let _ = write!(text, " {} lines of {} B", i.lines, i.line_bytes);
    }
    text
}

fn semaphore(s: &Semaphore) -> String {
    let mut text = "semaphore ".to_owned();
    let _ = match s.action {
        SemaphoreAction::Release => write!(text, "release"),
        SemaphoreAction::AcquireEqual => write!(text, "acquire =="),
        SemaphoreAction::AcquireGreaterEqual => write!(text, "acquire >="),
        SemaphoreAction::AcquireAnd => write!(text, "acquire &"),
        SemaphoreAction::AcquireNor => write!(text, "acquire nor"),
        SemaphoreAction::Reduction => {
            write!(text, "reduction {}", s.reduction.map_or("", |r| r.name()))
        }
        SemaphoreAction::Other(n) => write!(text, "operation {n:#x}"),
    };
    text += match s.unit {
        SemaphoreUnit::Host => " (host)",
        SemaphoreUnit::Engine => " (engine)",
        SemaphoreUnit::Copy => " (copy engine)",
    };
    if s.timestamp {
        text += " timestamp";
    }
    if s.wait_for_idle {
        text += " after idle";
    }
    text
}
