//! The columns of tables with a row an event or a call. Names are those of the JSON objects' members (docs/output.md) where these have one
//! value.

use crate::output::ioctls::device_name;
use crate::output::names::{
    direction, known_engine, known_name, known_pid, launch_how, launch_kind, operation_name,
};
use nvcap_decode::decode::event::{
    Barrier, Copy, Direction, Draw, Evidence, GpuDuration, GpuMoment, GpuTime, Graph, Inline,
    InlineContent, Launch, Memory, Operation, PartOf, Place, Preempted, QmdFrom, QueuedBy,
    Semaphore, SemaphoreAction, SemaphoreUnit, StartBy,
};
use nvcap_decode::driver::{Subject, names as driver_names};
use nvcap_decode::record::Kernel;
use nvcap_decode::wire::GpuVa;

use super::schema::{Column, Event, column_list};

/// Columns that every event has.
pub(super) const EVENT: &[Column] = column_list!(Event(e) {
    time_ns: Int optional "ns" Doorbell, "when it was submitted, CLOCK_MONOTONIC" => e.context.at.time();
    pid: Int optional "" Doorbell, "the process" => known_pid(e.context.at.pid);
    tid: Int optional "" Doorbell, "the thread that rang the doorbell" => known_pid(e.context.at.tid);
    token: Int optional "" Doorbell, "the channel's work-submit token" => e.context.token;
    channel: Int required "" Doorbell, "the channel's number in the trace" => e.context.channel.0;
    gpu: Int optional "" Driver, "N of /dev/nvidiaN" => e.context.gpu;
    engine: Text optional "" Driver, "the engine that the channel feeds: gr, ce2, ...; of a copy the one that runs it" => engine(e);
    serial: Int required "" Doorbell, "number of the submission in the trace, from 0" => e.context.serial;
    thread: Text optional "" Doorbell, "name of the thread, or of the process" => e.context.thread.as_deref().and_then(known_name);
    phase: Text optional "" Phases, "the labelled time range" => e.context.phase.as_deref();
    api: Text optional "" Stack, "the function of CUDA that was called" => e.context.stack.as_ref().and_then(|s| s.api.as_deref());
});

/// Column of one entry of a submission.
pub(super) const ENTRY: &[Column] = column_list!(Event(e) {
    entry: Int required "" Ring, "index of the ring entry in its submission, from 0" => e.entry;
});

/// Submissions.
pub(super) const SUBMISSION: &[Column] = column_list!(Event(e) {
    position: Int optional "entries" Ring, "ring position of the first entry, counted without wrapping" => e.head.map(|h| h.position);
    gp_get: Int optional "" Ring, "GP_GET, where it was read" => e.head.and_then(|h| h.gp_get);
    prev_put: Int optional "" Ring, "GP_PUT before it" => e.head.map(|h| h.prev_put);
    gp_put: Int optional "" Ring, "GP_PUT behind it" => e.head.map(|h| h.gp_put);
    entries: Int optional "entries" Ring, "ring entries" => e.head.map(|h| h.entries);
    bytes: Int optional "bytes" Ring, "pushbuffer bytes, missing ones included" => e.head.map(|h| h.bytes);
    missing: Int optional "bytes" Ring, "pushbuffer bytes that could not be read" => e.head.map(|h| h.missing);
    late: Bool required "" Doorbell, "caught up later than at its own doorbell" => e.context.late;
    how: Text required "" Doorbell, "trapped, precommit, batched, observed or recorded" => e.context.how.name();
    ip: Unsigned optional "address" Doorbell, "address of the instruction behind the doorbell's store" => e.head.and_then(|h| h.ip);
});

/// Times of the GPU's work on an entry.
pub(super) const GPU_TIME: &[Column] = column_list!(Event(e) {
    gpu_start_ns: Int optional "ns" Stamps, "when the GPU began the entry, CLOCK_MONOTONIC" => start(e).map(|s| s.host_ns);
    gpu_start_error_ns: Int optional "ns" Stamps, "the most by which that may be wrong" => start(e).map(|s| s.host_error_ns);
    gpu_clock_start_ns: Int optional "ns" Stamps, "the same moment by the GPU's own clock" => start(e).map(|s| s.gpu_ns);
    gpu_clock_error_ns: Int optional "ns" Stamps, "the most by which that may be wrong" => start(e).map(|s| s.gpu_error_ns);
    gpu_start_by: Text optional "" Stamps, "what told when it began: own-stamp, previous-stamp, release or doorbell" => e.times.and_then(|t| t.start_by).map(StartBy::name);
    gpu_ns: Int optional "ns" Stamps, "for how long the GPU worked on it, kernels from their launch on; of a submission: on its first entry" => duration(e).map(|d| d.ns);
    gpu_ns_error: Int optional "ns" Stamps, "the most by which that may be wrong" => duration(e).map(|d| d.error_ns);
    gpu_ns_by: Text optional "" Stamps, "what told it: next-stamp, release or own-stamp" => duration(e).map(|d| d.by.name());
    preempted_ns: Int optional "ns" Stamps, "of a kernel, where who had the GPU was recorded (--shares): the part of its time in which others had it, which gpu_ns and gpu_exec_ns do not have" => times(e).and_then(|t| preempted(&t));
    gpu_launch_ns: Int optional "ns" Stamps, "of kernels: from gpu_start_ns to the first instruction" => times(e).and_then(|t| t.launch());
    gpu_launch_error_ns: Int optional "ns" Stamps, "the most by which that may be wrong" => times(e).and_then(|t| t.exec).map(|x| x.start.gpu_error_ns);
    gpu_exec_ns: Int optional "ns" Stamps, "for how long a kernel's instructions ran" => executed(e).map(|d| d.ns);
    gpu_exec_ns_error: Int optional "ns" Stamps, "the most by which that may be wrong" => executed(e).map(|d| d.error_ns);
    queued_ns: Int optional "ns" Stamps, "how long the entry waited from its doorbell until the GPU began it: the middle of the next two" => queued(e).map(|(least, most)| least.midpoint(most));
    queued_least_ns: Int optional "ns" Stamps, "at least" => queued(e).map(|q| q.0);
    queued_most_ns: Int optional "ns" Stamps, "at most" => queued(e).map(|q| q.1);
    queued_by: Text optional "" Stamps, "what told since when it waited: doorbell, or look where it was found between two looks" => e.times.and_then(|t| t.queued_by).map(QueuedBy::name);
    gpu_works: Int optional "" Stamps, "where the entry has several launches and copies: how many; none of them has a gpu_ns" => together(e).map(|t| t.works);
    gpu_works_ns: Int optional "ns" Stamps, "for how long the GPU worked on all of them together: the same on each" => together(e).and_then(|t| t.worked()).map(|d| d.ns);
    gpu_works_exec_ns: Int optional "ns" Stamps, "for how long instructions of any of them ran: the same on each" => together(e).and_then(|t| t.executed()).map(|d| d.ns);
});

/// Operations.
pub(super) const OPERATION: &[Column] = column_list!(Event(e) {
    op: Text required "" Stream, "launch, graph, copy, inline, load, semaphore, barrier, bind, draw, video or host" => e.operation.map(operation_name);
    kind: Text optional "" Qmd, "of a launch: user, companion, driver_memset, driver_copy, driver_graph, driver or unresolved" => launch(e).map(|l| launch_kind(l.kind));
    kernel: Text optional "" Names, "of a launch: the kernel's name, demangled" => e.name.as_ref().map(|n| n.full.as_str());
    bytes: Int optional "bytes" Stream, "bytes that a copy, fill, inline write, or a memset or copy kernel of the driver writes; pushbuffer bytes of a replay" => bytes(e);
    src: Unsigned optional "address" Stream, "first address read" => copy(e).and_then(|c| c.src).or_else(|| launch(e)?.moves?.src);
    dst: Unsigned optional "address" Stream, "first address written" => dst(e);
    direction: Text optional "" Driver, "h2d, d2h, d2d, h2h or p2p; h2a, a2h, d2a, a2d or a2a with arrays" => way(e).map(direction);
    direction_from: Text optional "" Driver, "what told the direction: mappings, habit or stated" => copy(e).and_then(|c| c.direction_from).map(evidence);
    mode: Text optional "" Stream, "of a copy: linear, pitch, fill, ..." => copy(e).map(|c| c.mode.name());
    content: Text optional "" Stream, "of an inline write: data, code, constant_bank, qmd, qmd_part, semaphore or texture_header" => inline(e).and_then(|i| i.content).map(content);
    part_of: Text optional "" Stream, "of what the driver does on its own account: context that is made, or module that is loaded" => e.context.part_of(e.entry).map(PartOf::name);
    line_bytes: Int optional "bytes" Stream, "of a copy or inline write: bytes of a line" => copy(e).map(|c| c.line_bytes).or_else(|| Some(inline(e)?.line_bytes));
    lines: Int optional "" Stream, "of a copy or inline write: lines" => copy(e).map(|c| c.lines).or_else(|| Some(inline(e)?.lines));
    src_place: Text optional "" Driver, "of a copy: where the source lies: host, device or peer" => copy(e).and_then(|c| place(c.src_memory.as_ref()));
    dst_place: Text optional "" Driver, "of a copy or inline write: where the destination lies" => place(copy(e).and_then(|c| c.dst_memory.as_ref()).or_else(|| inline(e)?.dst_memory.as_ref()));
    pattern: Bytes optional "" Stream, "of a fill: the words that are repeated, little-endian; missing where users' data is hidden" => pattern(e);
    fill: Int optional "" Stream, "of a memset: the word that is repeated; missing where users' data is hidden" => fill(e);
    replay: Int optional "" Stream, "of a graph and its nodes: number of the replay" => graph(e).map(|g| g.replay).or_else(|| launch(e)?.replay);
    place: Int optional "" Stream, "of a node: its place in the replay, from 0" => launch(e).and_then(|l| l.place);
    nodes: Int optional "" Stream, "of a graph: QMDs that run" => graph(e).map(|g| g.nodes);
    kernels: Int optional "" Stream, "of a graph: of these, kernels of the program" => graph(e).map(|g| g.kernels);
    memsets: Int optional "" Stream, "of a graph: of these, memset kernels of the driver" => graph(e).map(|g| g.memsets);
    copies: Int optional "" Stream, "of a graph: of these, copy kernels of the driver" => graph(e).map(|g| g.copies);
    driver: Int optional "" Stream, "of a graph: of these, other kernels of the driver" => graph(e).map(|g| g.driver);
    unresolved: Int optional "" Stream, "of a graph: of these, QMDs that were not seen" => graph(e).map(|g| g.unresolved);
    doorbells: Int optional "" Stream, "of a graph: submissions that the replay was made of" => graph(e).map(|g| g.submissions.len() as u64);
    uploaded: Bool optional "" Stream, "of a graph: its QMDs were uploaded or made ready anew with it" => graph(e).map(|g| g.uploaded);
    conditional: Bool optional "" Stream, "of a graph: it has conditional nodes" => graph(e).map(|g| g.conditional);
    unit: Text optional "" Stream, "of a semaphore: host, engine or copy" => semaphore(e).map(unit);
    action: Text optional "" Stream, "of a semaphore: release, acquire_equal, acquire_greater_equal, acquire_and, acquire_nor, reduction or other" => semaphore(e).map(action);
    address: Unsigned optional "address" Stream, "of a semaphore, barrier, or the semaphore that a copy releases" => address(e);
    payload: Unsigned optional "" Stream, "of a semaphore, or the one that a copy releases" => semaphore(e).map(|s| s.payload).or_else(|| Some(copy(e)?.semaphore.as_ref()?.payload));
    what: Text optional "" Stream, "of a barrier, draw, video or host operation: which" => what(e);
    class: Int optional "" Stream, "of a bind, barrier, draw or video operation: the class number" => class(e);
    subchannel: Int optional "" Stream, "of a bind" => match e.operation { Some(Operation::Bind(b)) => Some(b.subchannel), _ => None };
    method: Int optional "" Stream, "of a barrier or draw: byte address of the method" => barrier(e).map(|b| b.method).or_else(|| Some(draw(e)?.method));
});

/// Launches.
pub(super) const KERNEL: &[Column] = column_list!(Event(e) {
    kind: Text required "" Qmd, "user, companion, driver_memset, driver_copy, driver_graph, driver or unresolved" => launch(e).map(|l| launch_kind(l.kind));
    how: Text required "" Stream, "what made the QMD run: scheduled, released, dependent, inline_qmd, macro or launch" => launch(e).map(|l| launch_how(l.how));
    kernel: Text optional "" Names, "the kernel's name, demangled" => e.name.as_ref().map(|n| n.full.as_str());
    kernel_short: Text optional "" Names, "the name without template arguments and parameters" => e.name.as_ref().map(|n| n.short.as_str());
    kernel_mangled: Text optional "" Names, "the name as the compiler wrote it" => kernel(e).map(|k| k.name.as_str());
    kernel_from: Text optional "" Names, "what told the name: record, code, record+code or file" => kernel(e).map(|k| k.by.name());
    kernel_certain: Bool optional "" Names, "no other name is possible" => kernel(e).map(|k| k.certain);
    program: Unsigned optional "address" Qmd, "address of its first instruction" => launch(e).and_then(|l| l.program);
    program_bytes: Int optional "bytes" Stream, "bytes of its code, where the upload was seen" => launch(e).and_then(|l| l.program_bytes);
    replay: Int optional "" Stream, "number of the graph replay that it is a node of" => launch(e).and_then(|l| l.replay);
    place: Int optional "" Stream, "its place in that replay, from 0" => launch(e).and_then(|l| l.place);
    grid_x: Int optional "blocks" Qmd, "blocks in x" => launch(e).and_then(|l| l.grid).map(|d| d[0]);
    grid_y: Int optional "blocks" Qmd, "blocks in y" => launch(e).and_then(|l| l.grid).map(|d| d[1]);
    grid_z: Int optional "blocks" Qmd, "blocks in z" => launch(e).and_then(|l| l.grid).map(|d| d[2]);
    block_x: Int optional "threads" Qmd, "threads of a block in x" => launch(e).and_then(|l| l.block).map(|d| d[0]);
    block_y: Int optional "threads" Qmd, "threads of a block in y" => launch(e).and_then(|l| l.block).map(|d| d[1]);
    block_z: Int optional "threads" Qmd, "threads of a block in z" => launch(e).and_then(|l| l.block).map(|d| d[2]);
    cluster_x: Int optional "blocks" Qmd, "blocks of a cluster in x, where the grid is made of such" => launch(e).and_then(|l| l.cluster).map(|d| d[0]);
    cluster_y: Int optional "blocks" Qmd, "blocks of a cluster in y" => launch(e).and_then(|l| l.cluster).map(|d| d[1]);
    cluster_z: Int optional "blocks" Qmd, "blocks of a cluster in z" => launch(e).and_then(|l| l.cluster).map(|d| d[2]);
    cooperative: Bool required "" Qmd, "all blocks run at once" => launch(e).map(|l| l.cooperative);
    registers: Int optional "" Qmd, "registers of a thread" => launch(e).and_then(|l| l.registers);
    shared_bytes: Int optional "bytes" Qmd, "shared memory of a block that the program asked for" => launch(e).and_then(|l| l.shared_bytes);
    shared_reserved_bytes: Int optional "bytes" Qmd, "shared memory of a block that the system reserves" => launch(e).and_then(|l| l.shared_reserved_bytes);
    local_bytes: Int optional "bytes" Qmd, "local memory of a thread" => launch(e).and_then(|l| l.local_bytes);
    barriers: Int optional "" Qmd, "barriers of a block" => launch(e).and_then(|l| l.barriers);
    args: Bytes optional "" Stream, "arguments, as they lie in constant bank 0; missing where users' data is hidden" => args(e).filter(|_| e.redact.is_none());
    args_bytes: Int optional "bytes" Stream, "how many these are" => args(e).map(|a| a.len() as u64);
    args_hash: Text optional "" Stream, "where users' data is hidden: a hash, the same for the same arguments within the trace" => e.redact.and_then(|redact| Some(format!("{:08x}", redact.hide(args(e)?).hash)));
    moves_src: Unsigned optional "address" Qmd, "of a copy kernel of the driver: first address read" => launch(e).and_then(|l| l.moves?.src);
    moves_dst: Unsigned optional "address" Qmd, "of a memset or copy kernel of the driver: first address written" => launch(e).and_then(|l| l.moves?.dst);
    moves_bytes: Int optional "bytes" Qmd, "of such a kernel: bytes written" => launch(e).and_then(|l| l.moves?.bytes);
    qmd: Unsigned optional "address" Stream, "address of the QMD" => launch(e).and_then(|l| l.qmd);
    qmd_version: Text optional "" Qmd, "major and minor version of the QMD's layout" => launch(e).and_then(|l| l.qmd_version).map(|(major, minor)| format!("{major}.{minor}"));
    qmd_from: Text optional "" Qmd, "stream where its write was seen, image where it is known from the process's memory" => launch(e).and_then(|l| l.qmd_from).map(qmd_from);
    dependent: Unsigned optional "address" Qmd, "address of the QMD that it launches next" => launch(e).and_then(|l| l.dependent);
});

/// Calls of the driver.
pub(super) const IOCTL: &[Column] = column_list!(Call(c) {
    time_ns: Int optional "ns" Call, "when it was called, CLOCK_MONOTONIC" => c.call.ioctl.at.time();
    pid: Int optional "" Call, "the process" => known_pid(c.call.ioctl.at.pid);
    tid: Int optional "" Call, "the thread" => known_pid(c.call.ioctl.at.tid);
    duration_ns: Int optional "ns" Call, "until it returned" => c.call.ioctl.end_ns.map(|end| end.saturating_sub(c.call.ioctl.at.time_ns));
    device: Text required "" Call, "nvidiactl, nvidiaN, nvidia-uvm, or major:minor" => device_name(c.call.ioctl.device);
    fd: Int optional "" Call, "the file descriptor" => c.call.ioctl.fd;
    request: Int required "" Call, "the request number" => c.call.ioctl.request;
    nr: Int required "" Call, "the number in it" => c.call.nr;
    name: Text required "" Call, "its name" => c.call.name(c.version);
    command: Int optional "" Call, "of a control call: the command" => match c.call.subject { Subject::Control(command) => Some(command), _ => None };
    command_name: Text optional "" Call, "its name" => match c.call.subject { Subject::Control(command) => Some(driver_names::control(command, c.version)), _ => None };
    class: Int optional "" Call, "of an allocation: the class" => match c.call.subject { Subject::Class(class) => Some(class), _ => None };
    class_name: Text optional "" Call, "its name" => match c.call.subject { Subject::Class(class) => Some(driver_names::class(class)), _ => None };
    result: Int optional "" Call, "what the system call returned: negative errno, or 0 and above" => c.call.ioctl.result;
    status: Int optional "" Call, "the driver's status" => c.call.status;
    status_name: Text optional "" Call, "its name" => c.call.status.map(driver_names::status);
    ok: Bool required "" Call, "neither the system call nor the driver failed" => c.call.succeeded();
});

fn engine(e: &Event<'_>) -> Option<String> {
    match copy(e) {
        Some(copy) => Some(copy.engine.to_string()),
        None => known_engine(e.context.engine),
    }
}

/// Times from the stamp of a launch on, whatever is asked to be shown.
fn times(e: &Event<'_>) -> Option<GpuTime> {
    e.times.map(|t| t.by_stamp())
}

fn start(e: &Event<'_>) -> Option<GpuMoment> {
    times(e)?.start
}

/// Returns the duration, of an operation its own: several operations of one entry have none.
fn duration(e: &Event<'_>) -> Option<GpuDuration> {
    match e.operation {
        Some(_) => times(e)?.alone(),
        None => times(e)?.worked(),
    }
}

/// Returns the same of the instructions alone.
fn executed(e: &Event<'_>) -> Option<GpuDuration> {
    match e.operation {
        Some(_) => times(e)?.exec_alone(),
        None => times(e)?.executed(),
    }
}

/// Returns the time in which others had the GPU, where that is known.
fn preempted(time: &GpuTime) -> Option<u64> {
    match time.preempted {
        Preempted::Ns(ns) => Some(ns),
        Preempted::NotRecorded | Preempted::Unknown => None,
    }
}

/// The times of several operations together.
fn together(e: &Event<'_>) -> Option<GpuTime> {
    times(e).filter(|t| t.works > 1)
}

fn queued(e: &Event<'_>) -> Option<(u64, u64)> {
    times(e)?.queued
}

fn launch<'a>(e: &Event<'a>) -> Option<&'a Launch> {
    match e.operation? {
        Operation::Launch(l) => Some(l),
        _ => None,
    }
}

fn kernel<'a>(e: &Event<'a>) -> Option<&'a Kernel> {
    launch(e)?.kernel.as_deref()
}

fn args<'a>(e: &Event<'a>) -> Option<&'a [u8]> {
    launch(e)?.args.as_deref()
}

fn graph<'a>(e: &Event<'a>) -> Option<&'a Graph> {
    match e.operation? {
        Operation::Graph(g) => Some(g),
        _ => None,
    }
}

fn copy<'a>(e: &Event<'a>) -> Option<&'a Copy> {
    match e.operation? {
        Operation::Copy(c) => Some(c),
        _ => None,
    }
}

fn inline<'a>(e: &Event<'a>) -> Option<&'a Inline> {
    match e.operation? {
        Operation::Inline(i) => Some(i),
        _ => None,
    }
}

fn semaphore<'a>(e: &Event<'a>) -> Option<&'a Semaphore> {
    match e.operation? {
        Operation::Semaphore(s) => Some(s),
        _ => None,
    }
}

fn barrier<'a>(e: &Event<'a>) -> Option<&'a Barrier> {
    match e.operation? {
        Operation::Barrier(b) => Some(b),
        _ => None,
    }
}

fn draw<'a>(e: &Event<'a>) -> Option<&'a Draw> {
    match e.operation? {
        Operation::Draw(d) => Some(d),
        _ => None,
    }
}

fn bytes(e: &Event<'_>) -> Option<u64> {
    match e.operation? {
        Operation::Launch(l) => l.moves?.bytes,
        Operation::Graph(g) => Some(g.bytes),
        Operation::Copy(c) => Some(c.bytes),
        Operation::Inline(i) => Some(i.bytes),
        _ => None,
    }
}

fn dst(e: &Event<'_>) -> Option<GpuVa> {
    match e.operation? {
        Operation::Launch(l) => l.moves?.dst,
        Operation::Copy(c) => c.dst,
        Operation::Inline(i) => Some(i.dst),
        _ => None,
    }
}

fn way(e: &Event<'_>) -> Option<Direction> {
    match e.operation? {
        Operation::Copy(c) => c.direction,
        Operation::Inline(i) => Some(i.direction),
        _ => None,
    }
}

const fn evidence(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::Mappings => "mappings",
        Evidence::Habit => "habit",
        Evidence::Stated => "stated",
    }
}

const fn content(content: InlineContent) -> &'static str {
    match content {
        InlineContent::Data => "data",
        InlineContent::Code => "code",
        InlineContent::ConstantBank => "constant_bank",
        InlineContent::Qmd => "qmd",
        InlineContent::QmdPart => "qmd_part",
        InlineContent::Semaphore => "semaphore",
        InlineContent::TextureHeader => "texture_header",
    }
}

fn place(memory: Option<&Memory>) -> Option<&'static str> {
    Some(match memory?.place? {
        Place::Host => "host",
        Place::Device => "device",
        Place::Peer => "peer",
    })
}

fn pattern(e: &Event<'_>) -> Option<Vec<u8>> {
    let words = copy(e)?.pattern.as_ref().filter(|_| e.redact.is_none())?;
    Some(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn fill(e: &Event<'_>) -> Option<u32> {
    let value = inline(e).and_then(|i| i.fill);
    let value = value.or_else(|| launch(e)?.moves?.value);
    value.filter(|_| e.redact.is_none())
}

fn unit(semaphore: &Semaphore) -> &'static str {
    match semaphore.unit {
        SemaphoreUnit::Host => "host",
        SemaphoreUnit::Engine => "engine",
        SemaphoreUnit::Copy => "copy",
    }
}

fn action(semaphore: &Semaphore) -> &'static str {
    match semaphore.action {
        SemaphoreAction::Release => "release",
        SemaphoreAction::AcquireEqual => "acquire_equal",
        SemaphoreAction::AcquireGreaterEqual => "acquire_greater_equal",
        SemaphoreAction::AcquireAnd => "acquire_and",
        SemaphoreAction::AcquireNor => "acquire_nor",
        SemaphoreAction::Reduction => "reduction",
        SemaphoreAction::Other(_) => "other",
    }
}

fn address(e: &Event<'_>) -> Option<GpuVa> {
    match e.operation? {
        Operation::Semaphore(s) => Some(s.address),
        Operation::Barrier(b) => b.address,
        Operation::Copy(c) => Some(c.semaphore.as_ref()?.address),
        _ => None,
    }
}

fn what(e: &Event<'_>) -> Option<&'static str> {
    match e.operation? {
        Operation::Barrier(b) => Some(b.what),
        Operation::Draw(d) => Some(d.what),
        Operation::Video(v) => Some(v.what),
        Operation::Host(h) => Some(h.what),
        _ => None,
    }
}

fn class(e: &Event<'_>) -> Option<u32> {
    match e.operation? {
        Operation::Bind(b) => Some(b.class),
        Operation::Barrier(b) => Some(b.class),
        Operation::Draw(d) => Some(d.class),
        Operation::Video(v) => Some(v.class),
        _ => None,
    }
}

const fn qmd_from(from: QmdFrom) -> &'static str {
    match from {
        QmdFrom::Stream => "stream",
        QmdFrom::Image => "image",
    }
}
