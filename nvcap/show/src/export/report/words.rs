//! An operation in the words of the page: its kind, a name that all of its kind share, and what it is made of. None of it is users' data:
//! no arguments of kernels, no patterns, no bytes.

use crate::output::kernels;
use crate::output::names::direction;
use crate::output::plural::plural;
use crate::output::text::is_wait;
use nvcap_decode::decode::event::{
    Copy, InlineContent, Launch, LaunchKind, Operation, SemaphoreAction,
};

/// Kind of an operation; the page draws each kind in one colour. `kinds` of `app.js` has the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Launch,
    Graph,
    Copy,
    Fill,
    Inline,
    Wait,
    Semaphore,
    Other,
    NotDecoded,
}

/// An operation in the words of the page, without users' data.
#[derive(Debug)]
pub(super) struct Words {
    pub kind: Kind,
    pub name: String,
    /// The kernel's name in full, where that is longer.
    pub full: Option<String>,
    pub detail: String,
}

pub(super) fn of(op: &Operation) -> Words {
    let (mut parts, mut full) = (Vec::new(), None);
    let (kind, name) = match op {
        Operation::Launch(l) => launch(&mut parts, &mut full, l),
        Operation::Graph(g) => {
            for (n, what) in [
                (u64::from(g.nodes), "node"),
                (g.kernels.into(), "kernel"),
                (g.memsets.into(), "memset"),
                (g.copies.into(), "copy kernel"),
                (g.submissions.len() as u64, "submission"),
            ] {
                if n > 0 {
                    parts.push(plural(n, what));
                }
            }
            if g.uploaded {
                parts.push("QMDs written again".to_owned());
            }
            (Kind::Graph, "graph replay".to_owned())
        }
        Operation::Copy(c) => copy(&mut parts, c),
        Operation::Load(l) => (Kind::Inline, l.part_of.done().to_owned()),
        Operation::Inline(i) => {
            let (kind, name) = match i.content {
                Some(InlineContent::Data) if i.fill.is_some() => {
                    (Kind::Fill, "memset by inline data")
                }
                Some(InlineContent::Data) if i.src.is_some() => {
                    (Kind::Copy, "copy by inline data, fetched")
                }
                Some(InlineContent::Data) => (Kind::Copy, "copy h2d by inline data"),
                Some(InlineContent::Code) => (Kind::Inline, "upload of code"),
                Some(InlineContent::ConstantBank) => (Kind::Inline, "upload of constants"),
                Some(InlineContent::Qmd) => (Kind::Inline, "upload of a QMD"),
                Some(InlineContent::QmdPart) => (Kind::Inline, "change of a QMD"),
                Some(InlineContent::Semaphore) => (Kind::Inline, "semaphore's first value"),
                Some(InlineContent::TextureHeader) => (Kind::Inline, "upload of a texture header"),
                None => (Kind::Inline, "upload"),
            };
            (kind, name.to_owned())
        }
        Operation::Semaphore(s) if is_wait(s.action) => (Kind::Wait, "wait".to_owned()),
        Operation::Semaphore(s) => {
            let name = match s.action {
                SemaphoreAction::Release => "release",
                SemaphoreAction::Reduction => "reduction",
                _ => "semaphore",
            };
            (Kind::Semaphore, name.to_owned())
        }
        Operation::Barrier(b) => (Kind::Other, b.what.to_owned()),
        Operation::Bind(b) => (Kind::Other, format!("bind {:#06x}", b.class)),
        Operation::Draw(d) => (Kind::Other, d.what.to_owned()),
        Operation::Video(v) => (Kind::Other, format!("video {}", v.what)),
        Operation::Host(h) => (Kind::Other, h.what.to_owned()),
    };
    Words {
        kind,
        name,
        full,
        detail: parts.join(", "),
    }
}

fn launch(parts: &mut Vec<String>, full: &mut Option<String>, l: &Launch) -> (Kind, String) {
    for (what, value) in [("grid", l.grid), ("block", l.block), ("cluster", l.cluster)] {
        if let Some([x, y, z]) = value {
            parts.push(format!("{what} {x}x{y}x{z}"));
        }
    }
    if let Some(registers) = l.registers {
        parts.push(plural(registers.into(), "register"));
    }
    if let Some(bytes) = l.shared_bytes.filter(|n| *n > 0) {
        parts.push(format!("{bytes} B shared"));
    }
    if l.cooperative {
        parts.push("cooperative".to_owned());
    }
    if let Some(replay) = l.replay {
        parts.push(format!("of graph replay {replay}"));
    }
    match l.kind {
        LaunchKind::DriverMemset => return (Kind::Fill, "memset by kernel".to_owned()),
        LaunchKind::DriverCopy => return (Kind::Copy, "copy d2d by kernel".to_owned()),
        LaunchKind::Companion => return (Kind::Other, "companion of a launch".to_owned()),
        _ => {}
    }
    let name = match (&l.kernel, l.program) {
        (Some(kernel), _) => {
            let short = kernels::text(kernel, false);
            *full = Some(kernels::text(kernel, true)).filter(|full| *full != short);
            short
        }
        (None, Some(program)) => format!("program {program:#x}"),
        (None, None) => "kernel".to_owned(),
    };
    (Kind::Launch, name)
}

fn copy(parts: &mut Vec<String>, c: &Copy) -> (Kind, String) {
    parts.push(format!("mode {}", c.mode.name()));
    parts.push(c.engine.to_string());
    if c.lines > 1 {
        parts.push(format!("{} lines of {} B", c.lines, c.line_bytes));
    }
    match (c.src, c.dst, c.direction) {
        (None, Some(_), _) => (Kind::Fill, "fill".to_owned()),
        (_, None, _) => (Kind::Other, "copy engine without a copy".to_owned()),
        (_, _, Some(d)) => (Kind::Copy, format!("copy {}", direction(d))),
        (_, _, None) => (Kind::Copy, "copy".to_owned()),
    }
}
