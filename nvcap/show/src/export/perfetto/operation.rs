//! An operation in a viewer's words: a name that all of its kind share, by which a viewer sums up, and the details as values.

use super::packets::{Notes, Value};
use crate::output::kernels;
use crate::output::names::{direction, launch_kind, operation_name};
use crate::output::redact::Redactor;
use crate::output::text::is_wait;
use nvcap_decode::decode::event::{
    Barrier, Bind, Copy, Draw, Graph, HostOp, Inline, InlineContent, Launch, LaunchKind, Operation,
    Semaphore, SemaphoreAction, Video,
};
use nvcap_decode::record::ChannelId;

/// Arguments that are shown at most.
const MOST_ARGUMENTS: usize = 64;

/// A name, a category and values.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub name: String,
    pub category: &'static str,
    pub notes: Notes,
}

/// Describes an operation. `waits_for` is the channel whose release a wait is for, where that is known.
pub(super) fn describe(
    op: &Operation,
    waits_for: Option<ChannelId>,
    redact: Option<&Redactor>,
) -> Described {
    let mut notes = Notes::new();
    let category = match op {
        Operation::Semaphore(s) if is_wait(s.action) => "wait",
        op => operation_name(op),
    };
    let name = match op {
        Operation::Launch(l) => launch(&mut notes, l, redact),
        Operation::Graph(g) => graph(&mut notes, g),
        Operation::Copy(c) => copy(&mut notes, c, redact),
        Operation::Inline(i) => inline(&mut notes, i, redact),
        Operation::Load(l) => {
            number(&mut notes, "code_bytes", Some(l.code_bytes));
            number(&mut notes, "data_bytes", Some(l.data_bytes));
            number(&mut notes, "variables", l.variables);
            number(&mut notes, "constant_banks", l.constant_banks);
            number(&mut notes, "functions", l.functions);
            l.part_of.done().to_owned()
        }
        Operation::Semaphore(s) => semaphore(&mut notes, s, waits_for),
        Operation::Barrier(Barrier { what, data, .. }) => {
            number(&mut notes, "data", Some(u64::from(*data)));
            (*what).to_owned()
        }
        Operation::Bind(Bind { subchannel, class }) => {
            number(&mut notes, "subchannel", Some(u64::from(*subchannel)));
            format!("bind {class:#06x}")
        }
        Operation::Draw(Draw { what, count, .. }) => {
            number(&mut notes, "count", count.map(u64::from));
            (*what).to_owned()
        }
        Operation::Video(Video { what, data, .. }) => {
            number(&mut notes, "data", Some(u64::from(*data)));
            format!("video {what}")
        }
        Operation::Host(HostOp { what, data }) => {
            number(&mut notes, "data", Some(u64::from(*data)));
            (*what).to_owned()
        }
    };
    Described {
        name,
        category,
        notes,
    }
}

fn number(notes: &mut Notes, name: &'static str, value: Option<u64>) {
    notes.extend(value.map(|n| (name, Value::Number(n))));
}

fn address(notes: &mut Notes, name: &'static str, value: Option<nvcap_decode::wire::GpuVa>) {
    notes.extend(value.map(|a| (name, Value::Address(a.0))));
}

/// Adds dimensions, such as `4096x1x1`.
fn dimensions(notes: &mut Notes, name: &'static str, value: Option<[u32; 3]>) {
    notes.extend(value.map(|[x, y, z]| (name, Value::Text(format!("{x}x{y}x{z}")))));
}

fn launch(notes: &mut Notes, l: &Launch, redact: Option<&Redactor>) -> String {
    if let Some(kernel) = &l.kernel {
        notes.push(("kernel", Value::Text(kernels::text(kernel, true))));
    }
    dimensions(notes, "grid", l.grid);
    dimensions(notes, "block", l.block);
    dimensions(notes, "cluster", l.cluster);
    notes.push(("kind", Value::Word(launch_kind(l.kind))));
    address(notes, "program", l.program);
    number(notes, "registers", l.registers.map(u64::from));
    let some = |n: Option<u32>| n.filter(|n| *n > 0).map(u64::from);
    number(notes, "shared_bytes", some(l.shared_bytes));
    number(notes, "local_bytes", some(l.local_bytes));
    if l.cooperative {
        notes.push(("cooperative", Value::Truth(true)));
    }
    number(notes, "replay", l.replay);
    number(notes, "place", l.place.map(u64::from));
    address(notes, "qmd", l.qmd);
    arguments(notes, l, redact);
    if let (LaunchKind::DriverMemset | LaunchKind::DriverCopy, Some(moves)) = (l.kind, &l.moves) {
        number(notes, "bytes", moves.bytes);
        address(notes, "src", moves.src);
        address(notes, "dst", moves.dst);
        let what = if moves.src.is_some() {
            "copy d2d"
        } else {
            "memset"
        };
        return format!("{what} by kernel");
    }
    if l.kind == LaunchKind::Companion {
        return "companion of a launch".to_owned();
    }
    match (&l.kernel, l.program) {
        (Some(kernel), _) => kernels::bare(kernel),
        (None, Some(program)) => format!("prog {program:#x}"),
        (None, None) => "kernel".to_owned(),
    }
}

fn arguments(notes: &mut Notes, l: &Launch, redact: Option<&Redactor>) {
    let Some(bytes) = l.args.as_deref().filter(|a| !a.is_empty()) else {
        return;
    };
    if let Some(redact) = redact {
        notes.push(("arguments", Value::Once(redact.hide(bytes).to_string())));
        return;
    }
    let known = kernels::arguments(l).map(|all| {
        let all = all.into_iter().take(MOST_ARGUMENTS);
        all.map(|a| a.value).collect::<Vec<_>>()
    });
    // Where one ends and the next begins is not known: in groups of 8 bytes.
    let all = known.unwrap_or_else(|| {
        let words = bytes.chunks(8).take(MOST_ARGUMENTS);
        words
            .map(|word| {
                let mut value = [0; 8];
                value[..word.len()].copy_from_slice(word);
                format!("{:#x}", u64::from_le_bytes(value))
            })
            .collect()
    });
    notes.push(("arguments", Value::List(all)));
}

fn graph(notes: &mut Notes, g: &Graph) -> String {
    for (name, value) in [
        ("replay", g.replay),
        ("nodes", g.nodes.into()),
        ("kernels", g.kernels.into()),
        ("memsets", g.memsets.into()),
        ("copies", g.copies.into()),
        ("driver_kernels", g.driver.into()),
        ("unresolved", g.unresolved.into()),
        ("channels", g.channels.len() as u64),
        ("submissions", g.submissions.len() as u64),
        ("pushbuffer_bytes", g.bytes),
    ] {
        number(notes, name, Some(value));
    }
    notes.push(("uploaded", Value::Truth(g.uploaded)));
    if g.conditional {
        notes.push(("conditional", Value::Truth(true)));
    }
    "graph replay".to_owned()
}

fn copy(notes: &mut Notes, c: &Copy, redact: Option<&Redactor>) -> String {
    number(notes, "bytes", Some(c.bytes));
    address(notes, "src", c.src);
    address(notes, "dst", c.dst);
    notes.push(("engine", Value::Text(c.engine.to_string())));
    notes.push(("mode", Value::Word(c.mode.name())));
    if c.lines > 1 {
        number(notes, "lines", Some(c.lines.into()));
        number(notes, "line_bytes", Some(c.line_bytes.into()));
    }
    if let Some(pattern) = &c.pattern {
        let bytes: Vec<u8> = pattern.iter().flat_map(|w| w.to_le_bytes()).collect();
        let words: Vec<String> = pattern.iter().map(|w| format!("{w:#x}")).collect();
        let shown = redact.map_or_else(|| words.join(","), |r| r.hide(&bytes).to_string());
        notes.push(("pattern", Value::Text(shown)));
    }
    match (c.src, c.dst, c.direction) {
        (None, Some(_), _) => "fill".to_owned(),
        (_, None, _) => "copy engine without a copy".to_owned(),
        (_, _, Some(d)) => format!("copy {}", direction(d)),
        (_, _, None) => "copy".to_owned(),
    }
}

fn inline(notes: &mut Notes, i: &Inline, redact: Option<&Redactor>) -> String {
    number(notes, "bytes", Some(i.bytes));
    address(notes, "src", i.src);
    address(notes, "dst", Some(i.dst));
    if let (Some(fill), None) = (i.fill, redact) {
        notes.push(("pattern", Value::Text(format!("{fill:#x}"))));
    }
    let name = match i.content {
        Some(InlineContent::Data) if i.fill.is_some() => "memset by inline data",
        Some(InlineContent::Data) if i.src.is_some() => "copy by inline data, fetched",
        Some(InlineContent::Data) => "copy h2d by inline data",
        Some(InlineContent::Code) => "upload of code",
        Some(InlineContent::ConstantBank) => "upload of constants",
        Some(InlineContent::Qmd) => "upload of a QMD",
        Some(InlineContent::QmdPart) => "change of a QMD",
        Some(InlineContent::Semaphore) => "semaphore's first value",
        Some(InlineContent::TextureHeader) => "upload of a texture header",
        None => "upload",
    };
    name.to_owned()
}

fn semaphore(notes: &mut Notes, s: &Semaphore, waits_for: Option<ChannelId>) -> String {
    address(notes, "semaphore", Some(s.address));
    number(notes, "payload", Some(s.payload));
    let compare = match s.action {
        SemaphoreAction::AcquireEqual => Some("=="),
        SemaphoreAction::AcquireGreaterEqual => Some(">="),
        SemaphoreAction::AcquireAnd => Some("&"),
        SemaphoreAction::AcquireNor => Some("nor"),
        SemaphoreAction::Release | SemaphoreAction::Reduction | SemaphoreAction::Other(_) => None,
    };
    notes.extend(compare.map(|sign| ("until", Value::Word(sign))));
    match (s.action, waits_for) {
        (SemaphoreAction::Release, _) => "release".to_owned(),
        (SemaphoreAction::Reduction, _) => "reduction".to_owned(),
        (SemaphoreAction::Other(_), _) => "semaphore".to_owned(),
        (_, Some(channel)) => format!("wait for channel {}", channel.0),
        (_, None) => "wait".to_owned(),
    }
}
