//! Conversion of messages to records. A message that lacks a field of its record, or has an unknown word, gives an error.

use std::sync::Arc;

use super::kind::Kind;
use super::{messages as m, skipped_messages as pm, trapped_messages as tm};
use nvcap_decode::ledger::{Duty, Estimate, Margin, Observed, ReaderCost, Trapped};
use nvcap_decode::record::{
    self as r, ChannelId, CpuVa, Device, How, Life, Lost, NamedBy, Origin, Record, RecordKind,
    SkippedWhy, StackEnd,
};
use nvcap_decode::wire::{GpuVa, Hole};
use prost::{DecodeError, Message as _};

/// Reason why a body is not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstood {
    /// The body is no message.
    #[error("it is no message: {0}")]
    NoMessage(#[from] DecodeError),
    /// A necessary field is missing.
    #[error("it lacks {0}")]
    Lacks(&'static str),
    /// The message has an unknown word.
    #[error("its {field} is '{word}', which this nvcap does not know; a newer one may")]
    Word {
        /// Name of the field.
        field: &'static str,
        /// Unknown word.
        word: String,
    },
    /// The message refers to calls that no packet has given.
    #[error("it names calls {0}, which are missing")]
    Calls(u32),
    /// A number is too large.
    #[error("its {0} is too large")]
    Large(&'static str),
}

type Result<T> = std::result::Result<T, NotUnderstood>;

pub(super) fn word<T>(field: &'static str, word: &str, parsed: Option<T>) -> Result<T> {
    parsed.ok_or_else(|| NotUnderstood::Word {
        field,
        word: word.to_owned(),
    })
}

pub(super) fn at(at: Option<m::At>) -> Result<r::At> {
    let at = at.ok_or(NotUnderstood::Lacks("its time"))?;
    Ok(r::At {
        time_ns: at.time_ns,
        pid: at.pid,
        tid: at.tid,
    })
}

fn bytes(bytes: Option<m::Bytes>) -> r::Bytes {
    let bytes = bytes.unwrap_or_default();
    r::Bytes {
        data: bytes.data,
        full_len: bytes.full_len,
    }
}

fn device(device: Option<m::Device>) -> Result<Device> {
    let device = device.ok_or(NotUnderstood::Lacks("its device file"))?;
    let known = match device.file.as_str() {
        "control" => Some(Device::Control),
        "gpu" => Some(Device::Gpu(device.minor)),
        "uvm" => Some(Device::Uvm),
        "other" => Some(Device::Other(device.major, device.minor)),
        _ => None,
    };
    word("device file", &device.file, known)
}

fn ioctl(i: m::Ioctl) -> Result<Record> {
    Ok(Record::Ioctl(Box::new(r::Ioctl {
        at: at(i.at)?,
        end_ns: i.end_ns,
        device: device(i.device)?,
        fd: i.fd,
        file: i.file,
        named_file: i.named_file,
        request: i.request,
        result: i.result,
        input: bytes(i.input),
        output: bytes(i.output),
        nested: i.nested.map(|n| r::Nested {
            address: CpuVa(n.address),
            input: bytes(n.input),
            output: bytes(n.output),
        }),
    })))
}

fn mapping(x: m::Mapping) -> Result<Record> {
    Ok(Record::Mapping(r::Mapping {
        at: at(x.at)?,
        device: device(x.device)?,
        fd: x.fd,
        file: x.file,
        start: CpuVa(x.start),
        len: x.len,
        read: x.read,
        write: x.write,
        found: x.found,
    }))
}

fn process(p: m::Process) -> Result<Record> {
    let life = match p.life.ok_or(NotUnderstood::Lacks("what happened"))? {
        m::Life::Present(name) => Life::Present { name },
        m::Life::Fork(child) => Life::Fork { child },
        m::Life::Thread(child) => Life::Thread { child },
        m::Life::Exec(name) => Life::Exec { name },
        m::Life::Exit(process) => Life::Exit { process },
        m::Life::Identity(who) => Life::Identity(Box::new(who.into())),
    };
    Ok(Record::Process(r::Process {
        at: at(p.at)?,
        life,
    }))
}

fn channel(c: m::Channel) -> Result<Record> {
    Ok(Record::Channel(Box::new(r::Channel {
        at: at(c.at)?,
        id: ChannelId(c.id),
        gpu: c.gpu,
        token: c.token,
        class: c.class,
        engine: c.engine,
        handle: c.handle.map(|h| (h.client, h.object)),
        ring_gpu: c.ring_gpu.map(GpuVa),
        ring: c.ring.map(CpuVa),
        entries: c.entries,
        userd: c.userd.map(CpuVa),
        origin: word("origin", &c.origin, Origin::from_name(&c.origin))?,
    })))
}

pub(super) fn submission(s: m::Submission) -> Result<r::Submission> {
    let segment = |g: m::Segment| r::Segment {
        entry: g.entry,
        bytes: g.bytes,
        holes: { g.holes.iter() }
            .map(|h| Hole {
                offset: h.offset,
                len: h.len,
            })
            .collect(),
    };
    let at = at(s.at)?;
    Ok(r::Submission {
        absent_ns: s.absent_before_ns.and_then(|ns| at.time_ns.checked_sub(ns)),
        at,
        channel: ChannelId(s.channel),
        token: s.token,
        position: s.position,
        gp_get: s.gp_get,
        prev_put: s.prev_put,
        gp_put: s.gp_put,
        ip: s.ip,
        doorbell: s.doorbell.map(CpuVa),
        how: word("way to be seen", &s.how, How::from_name(&s.how))?,
        late: s.late,
        thread: s.thread.map(Arc::from),
        segments: s.segments.into_iter().map(segment).collect(),
    })
}

fn kernel(k: m::Kernel) -> Result<Record> {
    let params = |p: m::KernelParams| {
        { p.params.iter() }
            .map(|p| r::KernelParam {
                offset: p.offset,
                size: p.size,
            })
            .collect()
    };
    let variable = |v: m::Variable| r::Variable {
        name: v.name,
        bytes: v.bytes,
        constant: v.constant,
    };
    Ok(Record::Kernel(Box::new(r::Kernel {
        at: at(k.at)?,
        program: GpuVa(k.program),
        name: k.name,
        bytes: k.bytes,
        params: k.params.map(params),
        by: word("origin of the name", &k.by, NamedBy::from_name(&k.by))?,
        certain: k.certain,
        driver: k.driver,
        variables: k.variables.into_iter().map(variable).collect(),
    })))
}

/// Returns the calls of a message, and the number by which stacks refer to them.
pub(super) fn calls(body: &[u8]) -> Result<(u32, r::Calls)> {
    let calls = m::Calls::decode(body)?;
    let frame = |f: m::Frame| r::Frame {
        module: f.module.into(),
        symbol: f.symbol.map(Arc::from),
        offset: f.offset,
        address: f.address,
        file: f.file.map(Arc::from),
        line: f.line,
        python: f.python,
        inlined: f.inlined,
    };
    let end = word(
        "end of the stack",
        &calls.end,
        StackEnd::from_name(&calls.end),
    )?;
    let known = r::Calls {
        frames: calls.frames.into_iter().map(frame).collect(),
        api: calls.api.map(Arc::from),
        end,
    };
    Ok((calls.number, known))
}

fn stamps(s: m::Stamps) -> Result<Record> {
    let stamp = |s: m::Stamp| r::Stamp {
        address: GpuVa(s.address),
        payload: s.payload,
        gpu_ns: s.gpu_ns,
        before_ns: s.before_ns,
        seen_ns: s.seen_ns,
    };
    Ok(Record::Stamps(Box::new(r::Stamps {
        at: at(s.at)?,
        from_ns: s.from_ns,
        reads: s.reads,
        stamps: s.stamps.into_iter().map(stamp).collect(),
    })))
}

fn loss(l: m::Loss) -> Result<Record> {
    let what = match l.what.ok_or(NotUnderstood::Lacks("what was lost"))? {
        m::Lost::Entries(e) => Lost::Entries {
            position: e.position,
            count: e.count,
        },
        m::Lost::Records(x) => Lost::Records {
            kind: word("kind of records", &x.kind, RecordKind::from_name(&x.kind))?,
            count: x.count,
        },
        m::Lost::UnknownChannel(d) => Lost::UnknownChannel {
            token: d.token,
            count: d.count,
        },
        m::Lost::Stacks(count) => Lost::Stacks { count },
        m::Lost::Notifiers(count) => Lost::Notifiers { count },
        m::Lost::Untraced(why) => Lost::Untraced { why },
    };
    Ok(Record::Loss(r::Loss {
        at: at(l.at)?,
        channel: l.channel.map(ChannelId),
        what,
    }))
}

/// Returns the record with this body; `None` for a packet of another kind. `calls` has the calls to which stacks may refer.
pub(super) fn record(
    kind: Kind,
    body: &[u8],
    calls: impl FnOnce(u32) -> Option<Arc<r::Calls>>,
) -> Result<Option<Record>> {
    Ok(Some(match kind {
        Kind::Ioctl => ioctl(m::Ioctl::decode(body)?)?,
        Kind::Mapping => mapping(m::Mapping::decode(body)?)?,
        Kind::Unmapping => {
            let x = m::Unmapping::decode(body)?;
            Record::Unmapping(r::Unmapping {
                at: at(x.at)?,
                start: CpuVa(x.start),
                len: x.len,
            })
        }
        Kind::Process => process(m::Process::decode(body)?)?,
        Kind::Channel => channel(m::Channel::decode(body)?)?,
        Kind::Submission => Record::Submission(submission(m::Submission::decode(body)?)?),
        Kind::Gpu => {
            let x = m::Gpu::decode(body)?;
            let pci_device = u16::try_from(x.pci_device);
            Record::Gpu(r::Gpu {
                at: at(x.at)?,
                minor: x.minor,
                pci_device: pci_device.map_err(|_| NotUnderstood::Large("PCI device id"))?,
            })
        }
        Kind::QmdCopy => {
            let x = m::Image::decode(body)?;
            Record::QmdCopy(Box::new(r::QmdCopy {
                at: at(x.at)?,
                address: GpuVa(x.address),
                bytes: x.bytes,
                found: CpuVa(x.found),
            }))
        }
        Kind::Kernel => kernel(m::Kernel::decode(body)?)?,
        Kind::Stack => {
            let x = m::Stack::decode(body)?;
            Record::Stack(r::Stack {
                at: at(x.at)?,
                calls: calls(x.calls).ok_or(NotUnderstood::Calls(x.calls))?,
            })
        }
        Kind::Stamps => stamps(m::Stamps::decode(body)?)?,
        Kind::Loss => loss(m::Loss::decode(body)?)?,
        Kind::Skipped => skipped(pm::Passed::decode(body)?)?,
        // Snapshots, faults, samples and switches are read by the modules of their messages.
        Kind::Trace
        | Kind::Calls
        | Kind::Idle
        | Kind::End
        | Kind::Continued
        | Kind::Snapshot
        | Kind::Fault
        | Kind::Samples
        | Kind::Switches => return Ok(None),
    }))
}

fn skipped(p: pm::Passed) -> Result<Record> {
    Ok(Record::Skipped(r::Skipped {
        at: at(p.at)?,
        channel: ChannelId(p.channel),
        position: p.position,
        entries: p.entries,
        doorbells: p.doorbells,
        why: word("reason to pass over", &p.why, SkippedWhy::from_name(&p.why))?,
    }))
}

/// Returns the trap's account of its work.
pub(super) fn trapped(t: tm::Trapped) -> Trapped {
    let estimate = |about, margin| Estimate { about, margin };
    let duty = t.duty.map(|d| Duty {
        windows: d.windows,
        watched_ns: d.watched_ns,
        all_ns: d.all_ns,
        entries: d.entries,
        doubtful: d.doubtful,
        submissions: estimate(d.submissions, d.submissions_margin),
        bytes: estimate(d.bytes, d.bytes_margin),
    });
    Trapped {
        hits: t.hits,
        runs: t.runs,
        before: t.before,
        deferred: t.deferred,
        put_off: t.put_off,
        counted: t.counted,
        stray_traps: t.stray_traps,
        duty,
    }
}

/// Returns the account of observing.
pub(super) fn observed(o: m::Observed) -> Observed {
    let margin = |x: &m::Margin| Margin {
        channel: ChannelId(x.channel),
        looks: x.looks,
        peeks: x.peeks,
        longest_ns: x.longest_ns,
        largest_part: x.largest_part,
    };
    let reader = |x: &m::ReaderCost| ReaderCost {
        channels: x.channels,
        cpu_ns: x.cpu_ns,
    };
    Observed {
        looks: o.looks,
        peeks: o.peeks,
        longest_ns: o.longest_ns,
        largest_part: o.largest_part,
        latest_ns: o.latest_ns,
        longest_look_ns: o.longest_look_ns,
        longest_search_ns: o.longest_search_ns,
        margins: o.margins.iter().map(margin).collect(),
        tail_ns: o.tail_ns,
        wall_ns: o.wall_ns,
        cpu_ns: o.cpu_ns,
        reader_ns: o.reader_ns,
        readers: o.readers.iter().map(reader).collect(),
        budget: o.budget,
        throttled_ns: o.throttled_ns,
        laps: o.laps,
        rounds_unseen: o.rounds_unseen,
        overwritten: o.overwritten,
        reused: o.reused,
        unparsable: o.unparsable,
        jumps: o.jumps,
    }
}
