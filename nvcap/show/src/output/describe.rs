//! One operation with all its details, on one line: the text of `-v`. Knows the words, not the columns before them.

use nvcap_decode::decode::event::Reduction;
use nvcap_decode::decode::event::{
    Barrier, Context, Copy, Draw, Graph, HostOp, Inline, InlineContent, Launch, LaunchHow,
    LaunchKind, Load, Memory, Operation, PartOf, Place, QmdFrom, Semaphore, SemaphoreAction,
    SemaphoreUnit, Video,
};
use nvcap_decode::record::{Kernel, Variable};
use nvcap_decode::wire::GpuVa;

use super::channels::size;
use super::kernels;
use super::method::class_name;
use super::names::direction;
use super::plural::plural;
use super::redact::Redactor;
use super::style::{Formatter, Role};

/// The most variables of a load that a line names.
const MOST_NAMED: usize = 24;

/// Writes one operation as a line, without ending it.
pub(super) fn describe(
    f: &mut Formatter<'_>,
    prefix: &str,
    context: &Context,
    op: &Operation,
    redact: Option<&Redactor>,
) {
    let role = match op {
        Operation::Launch(l) if is_driver(l.kind) => Some(Role::Dim),
        _ => None,
    };
    f.line(prefix, 0, role);
    match op {
        Operation::Launch(l) => launch(f, l, redact),
        Operation::Graph(g) => graph(f, g),
        Operation::Copy(c) => copy(f, c, redact),
        Operation::Inline(i) => inline(f, i, redact),
        Operation::Load(l) => load(f, l, true),
        Operation::Semaphore(s) => semaphore(f, s),
        Operation::Barrier(b) => barrier(f, b),
        Operation::Bind(b) => {
            f.role(Role::Operation, format_args!("bind"));
            f.text(format_args!(
                " subchannel {} class {:#06x}",
                b.subchannel, b.class
            ));
            if let Some(name) = class_name(b.class) {
                f.text(format_args!(" {name}"));
            }
        }
        Operation::Draw(d) => draw(f, d),
        Operation::Video(v) => video(f, v),
        Operation::Host(h) => host(f, h),
    }
    if context.late {
        f.role(Role::Dim, format_args!(" (late)"));
    }
}

/// A context that was made or a module that was loaded.
pub(super) fn load(f: &mut Formatter<'_>, l: &Load, with_names: bool) {
    let data = match l.part_of {
        PartOf::Context => "other memory",
        PartOf::Module => "variables and constants",
    };
    f.role(Role::Operation, format_args!("{}", l.part_of.done()));
    let mut separator = ": ";
    for (bytes, writes, kind) in [
        (l.code_bytes, l.code_writes, "code"),
        (l.data_bytes, l.data_writes, data),
    ] {
        if writes > 0 {
            let (size, times) = (size(bytes), plural(writes, "write"));
            f.text(format_args!("{separator}{size} of {kind} in {times}"));
            separator = ", ";
        }
    }
    if l.part_of == PartOf::Context {
        return;
    }
    let symbols = |constant| {
        let all = l.symbols.iter().filter(move |s| s.constant == constant);
        all.filter(|_| with_names).collect::<Vec<_>>()
    };
    for (count, one, symbols) in [
        (l.variables, "variable", symbols(false)),
        (l.constant_banks, "constant bank", symbols(true)),
        (l.functions, "function", Vec::new()),
    ] {
        // Without a table their names alone tell constants.
        let told = (symbols.len() as u64, "constant");
        let counted = count.map_or(told, |count| (count, one));
        if counted.0 > 0 {
            f.text(format_args!("{separator}{}", plural(counted.0, counted.1)));
            separator = ", ";
        }
        if !symbols.is_empty() {
            f.text(format_args!(" ({})", named(&symbols)));
        }
    }
    if with_names && !l.kernels.is_empty() {
        // Without their number it is not known whether there are others.
        let lead = if l.functions.is_some() {
            ": "
        } else {
            ", with "
        };
        let names = l
            .kernels
            .iter()
            .map(|name| kernels::of_mangled(name).full.clone());
        f.text(format_args!(
            "{lead}{}",
            names.collect::<Vec<_>>().join(", ")
        ));
    }
}

/// Describes variables by their names and sizes: `table 4000 B, scale 4 B`.
fn named(symbols: &[&Variable]) -> String {
    let one = |s: &&Variable| {
        let name = &kernels::of_mangled(&s.name).full;
        format!("{name} {}", size(s.bytes))
    };
    let shown = symbols.iter().take(MOST_NAMED).map(one);
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if symbols.len() > MOST_NAMED {
        text += &format!(" and {} more", symbols.len() - MOST_NAMED);
    }
    text
}

/// The kernel of a launch, as every line shows it; none where it is not known.
pub(super) fn kernel(l: &Launch, full: bool) -> Option<String> {
    kernel_as(l, |kernel| kernels::text(kernel, full))
}

/// The kernel of a launch, its name as `text` makes it.
pub(super) fn kernel_as(l: &Launch, text: impl Fn(&Kernel) -> String) -> Option<String> {
    if l.stand_in.is_some() && l.stand_in == l.program {
        return Some("(profiler's stand-in)".to_owned());
    }
    match &l.kernel {
        Some(kernel) => Some(text(kernel)),
        None => l.program.map(|program| format!("prog {program:#x}")),
    }
}

fn is_driver(kind: LaunchKind) -> bool {
    match kind {
        LaunchKind::Companion
        | LaunchKind::DriverMemset
        | LaunchKind::DriverCopy
        | LaunchKind::DriverGraph
        | LaunchKind::Driver => true,
        LaunchKind::User | LaunchKind::Unresolved => false,
    }
}

/// Dimensions, such as `4096x1x1`.
struct Dim([u32; 3]);

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}x{}", self.0[0], self.0[1], self.0[2])
    }
}

fn launch(f: &mut Formatter<'_>, l: &Launch, redact: Option<&Redactor>) {
    f.role(Role::Operation, format_args!("launch"));
    match l.kind {
        LaunchKind::User => {}
        LaunchKind::Companion => f.text(format_args!(" (driver: companion)")),
        LaunchKind::DriverMemset => f.text(format_args!(" (driver: memset)")),
        LaunchKind::DriverCopy => f.text(format_args!(" (driver: copy)")),
        LaunchKind::DriverGraph => f.text(format_args!(" (driver: graph)")),
        LaunchKind::Driver => f.text(format_args!(" (driver)")),
        LaunchKind::Unresolved => f.text(format_args!(" (QMD not seen)")),
    }
    if let (Some(replay), Some(place)) = (l.replay, l.place) {
        f.text(format_args!(" node {place} of graph replay {replay}"));
    }
    if let Some(m) = &l.moves {
        if let Some(bytes) = m.bytes {
            f.text(format_args!(" {bytes} B"));
        }
        if let Some(src) = m.src {
            f.text(format_args!(" "));
            f.role(Role::Address, format_args!("{src:#x}"));
        }
        if let Some(dst) = m.dst {
            f.text(format_args!(" -> "));
            f.role(Role::Address, format_args!("{dst:#x}"));
        }
    }
    if let Some(grid) = l.grid {
        f.text(format_args!(" grid {}", Dim(grid)));
    }
    if let Some(block) = l.block {
        f.text(format_args!(" block {}", Dim(block)));
    }
    if let Some(cluster) = l.cluster {
        f.text(format_args!(" cluster {}", Dim(cluster)));
    }
    if l.cooperative {
        f.text(format_args!(" cooperative"));
    }
    for (name, value) in [
        ("regs", l.registers),
        ("smem", l.shared_bytes.filter(|n| *n > 0)),
        ("lmem", l.local_bytes.filter(|n| *n > 0)),
        ("barriers", l.barriers.filter(|n| *n > 0)),
    ] {
        if let Some(value) = value {
            f.text(format_args!(" {name} {value}"));
        }
    }
    if let Some(kernel) = kernel(l, f.has_full_names()) {
        f.text(format_args!(" "));
        f.role(Role::Name, format_args!("{kernel}"));
        if let Some(bytes) = l.program_bytes {
            f.text(format_args!(" ({bytes} B)"));
        }
    }
    launch_arguments(f, l, MOST_ARGUMENTS, true, redact);
    if let Some(qmd) = l.qmd {
        f.text(format_args!(" qmd "));
        f.role(Role::Address, format_args!("{qmd:#x}"));
    }
    match l.how {
        LaunchHow::Scheduled => {}
        LaunchHow::Released => f.text(format_args!(" (released)")),
        LaunchHow::Dependent => f.text(format_args!(" (dependent)")),
        LaunchHow::InlineQmd => f.text(format_args!(" (inline QMD)")),
        LaunchHow::Macro => f.text(format_args!(" (QMD by macro)")),
        LaunchHow::Launch => f.text(format_args!(" (LAUNCH)")),
    }
    if l.qmd_from == Some(QmdFrom::Image) {
        f.text(format_args!(" (QMD from memory)"));
    }
    for r in &l.releases {
        f.text(format_args!(
            " then release {:#x} = {}",
            r.address, r.payload
        ));
    }
    if let Some(next) = l.dependent {
        f.text(format_args!(" then qmd {next:#x}"));
    }
}

/// One replay, with what it ran, and how it was submitted.
fn graph(f: &mut Formatter<'_>, g: &Graph) {
    graph_nodes(f, g);
    if g.submissions.len() > 1 {
        f.text(format_args!(" in {} submissions", g.submissions.len()));
    }
    f.text(format_args!(" by {} B", g.bytes));
    if g.uploaded {
        f.text(format_args!(", uploaded"));
    }
    if g.conditional {
        f.text(format_args!(", the GPU decides what else runs"));
    }
}

/// One replay: its number, what it ran, and on how many channels.
pub(super) fn graph_nodes(f: &mut Formatter<'_>, g: &Graph) {
    f.role(Role::Operation, format_args!("graph"));
    f.text(format_args!(" replay {} of", g.replay));
    let mut first = true;
    for (count, one, many) in [
        (g.kernels, "kernel", "kernels"),
        (g.memsets, "memset", "memsets"),
        (g.copies, "copy", "copies"),
        (g.driver, "driver kernel", "driver kernels"),
        (g.unresolved, "QMD not seen", "QMDs not seen"),
    ] {
        if count > 0 {
            let comma = if first { "" } else { "," };
            let name = if count == 1 { one } else { many };
            f.text(format_args!("{comma} {count} {name}"));
            first = false;
        }
    }
    if first {
        f.text(format_args!(" no kernel"));
    }
    if g.channels.len() > 1 {
        f.text(format_args!(" on {} channels", g.channels.len()));
    }
}

/// The most arguments, or words of 8 bytes of arguments, that a line shows: a structure passed by value can be 4 KiB.
const MOST_ARGUMENTS: usize = 16;

/// Writes arguments as words of 8 bytes, at most `most`; the last word may be shorter. The stream does not tell where one argument ends and the next
/// begins.
pub(super) fn arguments(
    f: &mut Formatter<'_>,
    args: &[u8],
    most: usize,
    redact: Option<&Redactor>,
) {
    if let Some(redact) = redact {
        f.text(format_args!("{}", redact.hide(args)));
        return;
    }
    for (i, word) in args.chunks(8).take(most).enumerate() {
        let mut value = [0; 8];
        value[..word.len()].copy_from_slice(word);
        let comma = if i == 0 { "" } else { "," };
        f.text(format_args!("{comma}{:#x}", u64::from_le_bytes(value)));
    }
    if args.len() > most * 8 {
        f.text(format_args!(",... ({} B)", args.len()));
    }
}

/// Writes the arguments of a launch: one by one where the kernel's parameters are known, else in groups of 8 bytes. With `words` the first words of a
/// structure are shown, and the first groups where there are more than `most`; without it their size: `{360 B}`.
pub(super) fn launch_arguments(
    f: &mut Formatter<'_>,
    l: &Launch,
    most: usize,
    words: bool,
    redact: Option<&Redactor>,
) {
    let Some(args) = l.args.as_deref().filter(|a| !a.is_empty()) else {
        return;
    };
    let known = match redact {
        Some(_) => None,
        None => kernels::arguments(l),
    };
    let Some(known) = known else {
        f.text(format_args!(" args "));
        if !words && redact.is_none() && args.len() > most * 8 {
            return f.text(format_args!("{{{} B}}", args.len()));
        }
        return arguments(f, args, most, redact);
    };
    if known.is_empty() {
        return;
    }
    f.text(format_args!(" args "));
    for (i, a) in known.iter().take(most).enumerate() {
        let comma = if i == 0 { "" } else { "," };
        match a.structure && !words {
            true => f.text(format_args!("{comma}{{{} B}}", a.size)),
            false => f.text(format_args!("{comma}{}", a.value)),
        }
    }
    if known.len() > most {
        f.text(format_args!(",... ({} in all)", known.len()));
    }
}

/// The words that memory is filled with.
pub(super) fn words(f: &mut Formatter<'_>, words: &[u32], redact: Option<&Redactor>) {
    if let Some(redact) = redact {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        f.text(format_args!("{}", redact.hide(&bytes)));
        return;
    }
    for (i, word) in words.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        f.text(format_args!("{comma}{word:#x}"));
    }
}

/// Writes the memory that an address lies in: `(pinned host memory, object 0x5c000019 of 56 MiB)`.
fn memory(f: &mut Formatter<'_>, memory: Option<&Memory>) {
    let Some(m) = memory else { return };
    let what = match m.place {
        Some(Place::Host) => "pinned host memory",
        Some(Place::Device) => "video memory",
        Some(Place::Peer) => "another GPU's memory",
        None => "memory",
    };
    f.text(format_args!(" ({what}, object {:#x}", m.handle));
    if let Some(size) = m.size {
        f.text(format_args!(" of {}", super::channels::size(size)));
    }
    f.text(format_args!(")"));
}

fn copy(f: &mut Formatter<'_>, c: &Copy, redact: Option<&Redactor>) {
    let fill = c.src.is_none() && c.dst.is_some();
    f.role(
        Role::Operation,
        format_args!("{}", if fill { "fill" } else { "copy" }),
    );
    if let Some(d) = c.direction.filter(|_| !fill) {
        f.text(format_args!(" {}", direction(d)));
    }
    f.text(format_args!(" {} B", c.bytes));
    if let Some(pattern) = &c.pattern {
        f.text(format_args!(" of "));
        words(f, pattern, redact);
    }
    let place = |f: &mut Formatter<'_>, address: GpuVa, physical: bool| {
        let physical = if physical { "phys " } else { "" };
        f.role(Role::Address, format_args!("{physical}{address:#x}"));
    };
    if let Some(src) = c.src {
        f.text(format_args!(" "));
        place(f, src, c.physical.0);
        memory(f, c.src_memory.as_ref());
    }
    if let Some(dst) = c.dst {
        f.text(format_args!(" -> "));
        place(f, dst, c.physical.1);
        memory(f, c.dst_memory.as_ref());
    }
    f.text(format_args!(" {} {}", c.engine, c.mode));
    if c.lines > 1 {
        f.text(format_args!(" {} lines of {} B", c.lines, c.line_bytes));
        if let Some((from, to)) = c.pitch {
            f.text(format_args!(" pitch {from} -> {to}"));
        }
    }
    if let Some(s) = &c.semaphore {
        f.text(format_args!(" then release "));
        f.role(Role::Address, format_args!("{:#x}", s.address));
        f.text(format_args!(" = {}", s.payload));
        if s.timestamp {
            f.text(format_args!(" timestamp"));
        }
    }
}

fn inline(f: &mut Formatter<'_>, i: &Inline, redact: Option<&Redactor>) {
    f.role(Role::Operation, format_args!("inline"));
    f.text(format_args!(
        " {} {} B -> ",
        direction(i.direction),
        i.bytes
    ));
    f.role(Role::Address, format_args!("{:#x}", i.dst));
    match i.content {
        Some(InlineContent::Data) if i.fill.is_some() => f.text(format_args!(" memset")),
        Some(InlineContent::Data) => f.text(format_args!(" data")),
        Some(InlineContent::Code) => f.text(format_args!(" code")),
        Some(InlineContent::ConstantBank) => f.text(format_args!(" constants")),
        Some(InlineContent::Qmd) => f.text(format_args!(" qmd")),
        Some(InlineContent::QmdPart) => f.text(format_args!(" part of a qmd")),
        Some(InlineContent::Semaphore) => f.text(format_args!(" semaphore")),
        Some(InlineContent::TextureHeader) => f.text(format_args!(" texture header")),
        None => {}
    }
    data_of(f, i);
    if let Some(src) = i.src {
        f.text(format_args!(" from "));
        f.role(Role::Address, format_args!("{src:#x}"));
    }
    if i.lines > 1 {
        f.text(format_args!(" {} lines of {} B", i.lines, i.line_bytes));
    }
    first_bytes(f, i, redact);
}

/// Says that the data of an inline write is not in the pushbuffer.
pub(super) fn data_of(f: &mut Formatter<'_>, i: &Inline) {
    f.text(format_args!("{}", i.data.words()));
}

/// The first bytes of the program's data.
pub(super) fn first_bytes(f: &mut Formatter<'_>, i: &Inline, redact: Option<&Redactor>) {
    if let Some(redact) = redact {
        f.text(format_args!(" {}", redact.hide(&i.head)));
    } else if matches!(i.content, None | Some(InlineContent::Data)) && !i.head.is_empty() {
        f.text(format_args!(" "));
        for b in i.head.iter().take(16) {
            f.text(format_args!("{b:02x}"));
        }
        if i.bytes > 16 {
            f.text(format_args!(".."));
        }
    }
}

fn semaphore(f: &mut Formatter<'_>, s: &Semaphore) {
    f.role(Role::Operation, format_args!("semaphore"));
    let (verb, sign) = match s.action {
        SemaphoreAction::Release => ("release", "="),
        SemaphoreAction::AcquireEqual => ("acquire", "=="),
        SemaphoreAction::AcquireGreaterEqual => ("acquire", ">="),
        SemaphoreAction::AcquireAnd => ("acquire", "&"),
        SemaphoreAction::AcquireNor => ("acquire", "nor"),
        SemaphoreAction::Reduction => (s.reduction.map_or("reduction", Reduction::name), "with"),
        SemaphoreAction::Other(_) => ("operation", "with"),
    };
    f.text(format_args!(" {verb}"));
    if let SemaphoreAction::Other(n) = s.action {
        f.text(format_args!(" {n:#x}"));
    }
    f.text(format_args!(" "));
    f.role(Role::Address, format_args!("{:#x}", s.address));
    f.text(format_args!(" {sign} {}", s.payload));
    if s.timestamp {
        f.text(format_args!(" timestamp"));
    }
    if s.wait_for_idle {
        f.text(format_args!(" after idle"));
    }
    match s.unit {
        SemaphoreUnit::Host => f.text(format_args!(" (host)")),
        SemaphoreUnit::Engine => f.text(format_args!(" (engine)")),
        SemaphoreUnit::Copy => f.text(format_args!(" (copy engine)")),
    }
}

fn barrier(f: &mut Formatter<'_>, b: &Barrier) {
    f.role(Role::Operation, format_args!("barrier"));
    f.text(format_args!(" {}", b.what));
    if let Some(address) = b.address {
        f.text(format_args!(" "));
        f.role(Role::Address, format_args!("{address:#x}"));
    }
    if b.data != 0 {
        f.text(format_args!(" ({:#x})", b.data));
    }
}

fn draw(f: &mut Formatter<'_>, d: &Draw) {
    f.role(Role::Operation, format_args!("{}", d.what));
    if let Some(n) = d.count {
        f.text(format_args!(" count {n}"));
    }
    f.text(format_args!(
        " class {:#06x} method {:#06x} = {:#x}",
        d.class, d.method, d.data
    ));
}

fn video(f: &mut Formatter<'_>, v: &Video) {
    f.role(Role::Operation, format_args!("video {}", v.what));
    f.text(format_args!(" class {:#06x} = {:#x}", v.class, v.data));
}

fn host(f: &mut Formatter<'_>, h: &HostOp) {
    f.role(Role::Operation, format_args!("host {}", h.what));
    if h.data != 0 {
        f.text(format_args!(" = {:#x}", h.data));
    }
}
