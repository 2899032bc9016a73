//! The short lines that are shown without `-v`: what the program asked for. `describe` has the details that they leave
//! out.

use nvcap_decode::decode::event::{
    Context, Copy, CopyMode, Graph, Inline, InlineContent, Launch, LaunchKind, Operation,
    Semaphore, SemaphoreAction,
};
use nvcap_decode::record::ChannelId;
use nvcap_decode::wire::GpuVa;

use crate::output::channels::size;
use crate::output::describe::{self, describe, kernel};
use crate::output::names::direction;
use crate::output::redact::Redactor;
use crate::output::style::{Formatter, Role};
use crate::output::units::Bytes;

use super::columns::ChannelName;
use super::waits::is_wait;
use crate::output::releases::Releases;

/// The most words of arguments on a short line.
const ARGUMENTS: usize = 6;

/// Fewest columns for a kernel's name, however narrow the terminal is.
const SHORTEST_KERNEL: usize = 24;

/// Tells whether an operation is one of the driver's mechanics, by which the driver does what the program asked for. Such are uploads of QMDs,
/// constants and code, the driver's own launches, barriers, releases, waits for the channel's own releases, and all that makes a context or loads a
/// module. `entry`: the operation's entry in the submission.
pub(crate) fn is_mechanics(c: &Context, entry: u32, op: &Operation, releases: &Releases) -> bool {
    match op {
        Operation::Load(_) => false,
        _ if c.part_of(entry).is_some() => true,
        // The line of the replay sums up its nodes.
        Operation::Launch(l) => l.replay.is_some() || !is_asked_for(l.kind),
        Operation::Copy(copy) => copy.dst.is_none(),
        Operation::Inline(i) => !matches!(i.content, None | Some(InlineContent::Data)),
        Operation::Semaphore(s) => {
            !is_wait(s.action) || releases.channel(c, s.address) == Some(c.channel)
        }
        Operation::Barrier(_) | Operation::Bind(_) | Operation::Host(_) => true,
        Operation::Graph(_) | Operation::Draw(_) | Operation::Video(_) => false,
    }
}

/// Tells whether the program asked for what such a launch does.
fn is_asked_for(kind: LaunchKind) -> bool {
    match kind {
        LaunchKind::User
        | LaunchKind::DriverMemset
        | LaunchKind::DriverCopy
        | LaunchKind::Unresolved => true,
        LaunchKind::Companion | LaunchKind::DriverGraph | LaunchKind::Driver => false,
    }
}

/// Writes one operation as a short line, without ending it. `waits_for` is the channel that last released the semaphore of a
/// wait, if a release was seen; it may be the waiting channel itself.
pub(in crate::output) fn brief(
    f: &mut Formatter<'_>,
    prefix: &str,
    context: &Context,
    op: &Operation,
    waits_for: Option<ChannelId>,
    redact: Option<&Redactor>,
) {
    let line = |f: &mut Formatter<'_>| f.line(prefix, 0, None);
    match op {
        Operation::Launch(l) if is_asked_for(l.kind) => {
            line(f);
            launch(f, l, redact);
        }
        Operation::Copy(c) if c.dst.is_some() => {
            line(f);
            copy(f, c, redact);
        }
        Operation::Inline(i) if matches!(i.content, None | Some(InlineContent::Data)) => {
            line(f);
            inline(f, i, redact);
        }
        Operation::Graph(g) => {
            line(f);
            graph(f, g);
        }
        Operation::Semaphore(s) if is_wait(s.action) && waits_for != Some(context.channel) => {
            line(f);
            wait(f, s, waits_for);
        }
        Operation::Load(l) => {
            line(f);
            describe::load(f, l, false);
        }
        // `describe` adds the mark of late submissions by itself.
        _ => return describe(f, prefix, context, op, redact),
    }
    if context.late {
        f.role(Role::Dim, format_args!(" (late)"));
    }
}

/// Fewest bytes that are rounded.
const ROUNDED: u64 = 10 << 10;

/// Returns a number of bytes as a short line has it: exact where it is whole (`56 MiB`) or small (`2608 B`), else to a tenth of its unit (`8.2 MiB`).
/// `-v` and JSON have it exact.
fn about(bytes: u64) -> String {
    let exact = size(bytes);
    match bytes >= ROUNDED && exact.ends_with(" B") {
        true => Bytes(bytes as f64).to_string(),
        false => exact,
    }
}

/// Dimensions without those behind the last that is not 1: `4096`, `7x5`, `7x5x3`.
struct Dim([u32; 3]);

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [x, y, z] = self.0;
        match (y, z) {
            (1, 1) => write!(f, "{x}"),
            (_, 1) => write!(f, "{x}x{y}"),
            _ => write!(f, "{x}x{y}x{z}"),
        }
    }
}

fn launch(f: &mut Formatter<'_>, l: &Launch, redact: Option<&Redactor>) {
    if let (LaunchKind::DriverMemset | LaunchKind::DriverCopy, Some(m)) = (l.kind, &l.moves) {
        let is_copy = l.kind == LaunchKind::DriverCopy;
        let word = if is_copy { "copy" } else { "memset" };
        f.role(Role::Operation, format_args!("{word}"));
        if is_copy {
            f.text(format_args!(" {}", direction(l.copy_direction())));
        }
        match m.bytes {
            Some(bytes) => f.text(format_args!(" {}", about(bytes))),
            None => f.text(format_args!(" ? B")),
        }
        if let Some(value) = m.value {
            f.text(format_args!(" of "));
            describe::words(f, &[value], redact);
        }
        addresses(f, m.src, m.dst);
        return node(f, l);
    }
    f.role(Role::Operation, format_args!("launch"));
    let name = kernel(l, f.has_full_names());
    let shape = shape(l);
    if let Some(name) = &name {
        // A long name is cut so that grid and block fit on the line behind it.
        let room = f.room().map(|room| room.saturating_sub(shape.len() + 1));
        let name = shortened(name, room.map(|room| room.max(SHORTEST_KERNEL)));
        f.text(format_args!(" "));
        f.role(Role::Name, format_args!("{name}"));
    }
    if l.kind == LaunchKind::Unresolved {
        f.text(format_args!(" (QMD not seen)"));
        if let Some(qmd) = l.qmd {
            f.text(format_args!(" qmd {qmd:#x}"));
        }
    }
    f.text(format_args!("{shape}"));
    node(f, l);
    describe::launch_arguments(f, l, ARGUMENTS, false, redact);
}

/// The place of a launch in its graph's replay. Nodes are shown if a filter asks for them.
fn node(f: &mut Formatter<'_>, l: &Launch) {
    if let (Some(replay), Some(place)) = (l.replay, l.place) {
        f.text(format_args!(" node {place} of graph replay {replay}"));
    }
}

/// Returns grid, block, and the cluster, shared memory and cooperation that a launch has, with a blank before each.
fn shape(l: &Launch) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push(' ');
            text.push_str(name);
            text.push(' ');
            text.push_str(&value);
        }
    };
    let dim = |d: Option<[u32; 3]>| d.map(|d| Dim(d).to_string());
    add("grid", dim(l.grid));
    add("block", dim(l.block));
    add("cluster", dim(l.cluster));
    let shared = l.shared_bytes.filter(|n| *n > 0);
    add("smem", shared.map(|n| size(n.into())));
    if l.cooperative {
        text.push_str(" cooperative");
    }
    text
}

/// Cuts `text` to `room` columns; where it is longer, dots are at its end.
fn shortened(text: &str, room: Option<usize>) -> String {
    match room {
        Some(room) if text.chars().count() > room => {
            let kept: String = text.chars().take(room.saturating_sub(3)).collect();
            kept + "..."
        }
        _ => text.to_owned(),
    }
}

fn addresses(f: &mut Formatter<'_>, src: Option<GpuVa>, dst: Option<GpuVa>) {
    if let Some(src) = src {
        f.text(format_args!(" "));
        f.role(Role::Address, format_args!("{src:#x}"));
    }
    if let Some(dst) = dst {
        f.text(format_args!(" -> "));
        f.role(Role::Address, format_args!("{dst:#x}"));
    }
}

fn copy(f: &mut Formatter<'_>, c: &Copy, redact: Option<&Redactor>) {
    if c.src.is_none() {
        f.role(Role::Operation, format_args!("fill"));
    } else {
        f.role(Role::Operation, format_args!("copy"));
        if let Some(d) = c.direction {
            f.text(format_args!(" {}", direction(d)));
        }
    }
    f.text(format_args!(" {}", about(c.bytes)));
    if let Some(pattern) = &c.pattern {
        f.text(format_args!(" of "));
        describe::words(f, pattern, redact);
    }
    addresses(f, c.src, c.dst);
    if c.physical.0 || c.physical.1 {
        f.text(format_args!(" physical"));
    }
    if c.lines > 1 {
        f.text(format_args!(
            " {} lines of {}",
            c.lines,
            about(c.line_bytes.into())
        ));
    }
    match c.mode {
        CopyMode::Linear | CopyMode::Pitch | CopyMode::Fill => {}
        mode => f.text(format_args!(" {mode}")),
    }
}

fn inline(f: &mut Formatter<'_>, i: &Inline, redact: Option<&Redactor>) {
    match i.fill {
        Some(value) => {
            f.role(Role::Operation, format_args!("memset"));
            f.text(format_args!(" {} of ", about(i.bytes)));
            describe::words(f, &[value], redact);
            addresses(f, None, Some(i.dst));
        }
        None => {
            let known = i.content == Some(InlineContent::Data);
            let what = if known { "copy" } else { "write" };
            f.role(Role::Operation, format_args!("{what}"));
            f.text(format_args!(
                " {} {} inline",
                direction(i.direction),
                about(i.bytes)
            ));
            describe::data_of(f, i);
            addresses(f, i.src, Some(i.dst));
            describe::first_bytes(f, i, redact);
        }
    }
}

/// One replay, with what it ran.
fn graph(f: &mut Formatter<'_>, g: &Graph) {
    describe::graph_nodes(f, g);
    if g.uploaded {
        f.text(format_args!(", uploaded"));
    }
    if g.conditional {
        f.text(format_args!(", the GPU decides what else runs"));
    }
}

/// A wait for another channel, or for a release that was not seen.
fn wait(f: &mut Formatter<'_>, s: &Semaphore, waits_for: Option<ChannelId>) {
    f.role(Role::Operation, format_args!("wait"));
    if let Some(channel) = waits_for {
        f.text(format_args!(" for {}", ChannelName(channel.0)));
    }
    f.text(format_args!(" until "));
    f.role(Role::Address, format_args!("{:#x}", s.address));
    let sign = match s.action {
        SemaphoreAction::AcquireEqual => "==",
        SemaphoreAction::AcquireAnd => "&",
        SemaphoreAction::AcquireNor => "nor",
        _ => ">=",
    };
    f.text(format_args!(" {sign} {}", s.payload));
}
