//! Conversion of records to messages.

use super::messages as m;
use nvcap_decode::ledger::Observed;
use nvcap_decode::record::{self as r, Device, Life, Lost, Record};

impl From<r::At> for m::At {
    fn from(at: r::At) -> Self {
        Self {
            time_ns: at.time_ns,
            pid: at.pid,
            tid: at.tid,
        }
    }
}

impl From<&r::Bytes> for m::Bytes {
    fn from(b: &r::Bytes) -> Self {
        Self {
            data: b.data.clone(),
            full_len: b.full_len,
        }
    }
}

impl From<Device> for m::Device {
    fn from(device: Device) -> Self {
        let (file, major, minor) = match device {
            Device::Control => ("control", 0, 0),
            Device::Gpu(minor) => ("gpu", 0, minor),
            Device::Uvm => ("uvm", 0, 0),
            Device::Other(major, minor) => ("other", major, minor),
        };
        Self {
            file: file.to_owned(),
            major,
            minor,
        }
    }
}

impl From<&r::Ioctl> for m::Ioctl {
    fn from(i: &r::Ioctl) -> Self {
        Self {
            at: Some(i.at.into()),
            end_ns: i.end_ns,
            device: Some(i.device.into()),
            fd: i.fd,
            file: i.file,
            named_file: i.named_file,
            request: i.request,
            result: i.result,
            input: Some((&i.input).into()),
            output: Some((&i.output).into()),
            nested: i.nested.as_ref().map(|n| m::Nested {
                address: n.address.0,
                input: Some((&n.input).into()),
                output: Some((&n.output).into()),
            }),
        }
    }
}

impl From<&r::Mapping> for m::Mapping {
    fn from(x: &r::Mapping) -> Self {
        Self {
            at: Some(x.at.into()),
            device: Some(x.device.into()),
            fd: x.fd,
            file: x.file,
            start: x.start.0,
            len: x.len,
            read: x.read,
            write: x.write,
            found: x.found,
        }
    }
}

impl From<&r::Process> for m::Process {
    fn from(p: &r::Process) -> Self {
        let life = match &p.life {
            Life::Present { name } => m::Life::Present(name.clone()),
            Life::Fork { child } => m::Life::Fork(*child),
            Life::Thread { child } => m::Life::Thread(*child),
            Life::Exec { name } => m::Life::Exec(name.clone()),
            Life::Exit { process } => m::Life::Exit(*process),
            Life::Identity(who) => m::Life::Identity(who.as_ref().into()),
        };
        Self {
            at: Some(p.at.into()),
            life: Some(life),
        }
    }
}

impl From<&r::Channel> for m::Channel {
    fn from(c: &r::Channel) -> Self {
        Self {
            at: Some(c.at.into()),
            id: c.id.0,
            gpu: c.gpu,
            token: c.token,
            class: c.class,
            engine: c.engine,
            handle: c
                .handle
                .map(|(client, object)| m::Handle { client, object }),
            ring_gpu: c.ring_gpu.map(|a| a.0),
            ring: c.ring.map(|a| a.0),
            entries: c.entries,
            userd: c.userd.map(|a| a.0),
            origin: c.origin.name().to_owned(),
        }
    }
}

impl From<&r::Submission> for m::Submission {
    fn from(s: &r::Submission) -> Self {
        let segment = |g: &r::Segment| m::Segment {
            entry: g.entry,
            bytes: g.bytes.clone(),
            holes: { g.holes.iter() }
                .map(|h| m::Hole {
                    offset: h.offset,
                    len: h.len,
                })
                .collect(),
        };
        Self {
            at: Some(s.at.into()),
            channel: s.channel.0,
            token: s.token,
            position: s.position,
            gp_get: s.gp_get,
            prev_put: s.prev_put,
            gp_put: s.gp_put,
            ip: s.ip,
            doorbell: s.doorbell.map(|d| d.0),
            how: s.how.name().to_owned(),
            late: s.late,
            thread: s.thread.as_deref().map(str::to_owned),
            segments: s.segments.iter().map(segment).collect(),
            absent_before_ns: s.absent_ns.and_then(|at| s.at.time_ns.checked_sub(at)),
        }
    }
}

impl From<&r::Kernel> for m::Kernel {
    fn from(k: &r::Kernel) -> Self {
        let params = |p: &Vec<r::KernelParam>| m::KernelParams {
            params: { p.iter() }
                .map(|p| m::KernelParam {
                    offset: p.offset,
                    size: p.size,
                })
                .collect(),
        };
        let variable = |v: &r::Variable| m::Variable {
            name: v.name.clone(),
            bytes: v.bytes,
            constant: v.constant,
        };
        Self {
            at: Some(k.at.into()),
            program: k.program.0,
            name: k.name.clone(),
            bytes: k.bytes,
            params: k.params.as_ref().map(params),
            by: k.by.name().to_owned(),
            certain: k.certain,
            driver: k.driver,
            variables: k.variables.iter().map(variable).collect(),
        }
    }
}

impl m::Calls {
    /// Makes the message of calls. `number` is the number by which stacks refer to them.
    pub(super) fn of(number: u32, calls: &r::Calls) -> Self {
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
        let frame = |f: &r::Frame| m::Frame {
            module: f.module.to_string(),
            symbol: text(&f.symbol),
            offset: f.offset,
            address: f.address,
            file: text(&f.file),
            line: f.line,
            python: f.python,
            inlined: f.inlined,
        };
        Self {
            number,
            frames: calls.frames.iter().map(frame).collect(),
            api: text(&calls.api),
            end: calls.end.name().to_owned(),
        }
    }
}

impl From<&r::Stamps> for m::Stamps {
    fn from(s: &r::Stamps) -> Self {
        let stamp = |s: &r::Stamp| m::Stamp {
            address: s.address.0,
            payload: s.payload,
            gpu_ns: s.gpu_ns,
            before_ns: s.before_ns,
            seen_ns: s.seen_ns,
        };
        Self {
            at: Some(s.at.into()),
            from_ns: s.from_ns,
            reads: s.reads,
            stamps: s.stamps.iter().map(stamp).collect(),
        }
    }
}

impl From<&r::Loss> for m::Loss {
    fn from(l: &r::Loss) -> Self {
        let what = match &l.what {
            Lost::Entries { position, count } => m::Lost::Entries(m::LostEntries {
                position: *position,
                count: *count,
            }),
            Lost::Records { kind, count } => m::Lost::Records(m::LostRecords {
                kind: kind.name().to_owned(),
                count: *count,
            }),
            Lost::UnknownChannel { token, count } => m::Lost::UnknownChannel(m::LostDoorbells {
                token: *token,
                count: *count,
            }),
            Lost::Stacks { count } => m::Lost::Stacks(*count),
            Lost::Notifiers { count } => m::Lost::Notifiers(*count),
            Lost::Untraced { why } => m::Lost::Untraced(why.clone()),
        };
        Self {
            at: Some(l.at.into()),
            channel: l.channel.map(|c| c.0),
            what: Some(what),
        }
    }
}

impl From<&Observed> for m::Observed {
    fn from(o: &Observed) -> Self {
        let margins = o.margins.iter().map(|x| m::Margin {
            channel: x.channel.0,
            looks: x.looks,
            peeks: x.peeks,
            longest_ns: x.longest_ns,
            largest_part: x.largest_part,
        });
        let readers = o.readers.iter().map(|x| m::ReaderCost {
            channels: x.channels,
            cpu_ns: x.cpu_ns,
        });
        Self {
            looks: o.looks,
            peeks: o.peeks,
            longest_ns: o.longest_ns,
            largest_part: o.largest_part,
            latest_ns: o.latest_ns,
            longest_look_ns: o.longest_look_ns,
            longest_search_ns: o.longest_search_ns,
            margins: margins.collect(),
            tail_ns: o.tail_ns,
            wall_ns: o.wall_ns,
            cpu_ns: o.cpu_ns,
            reader_ns: o.reader_ns,
            budget: o.budget,
            throttled_ns: o.throttled_ns,
            laps: o.laps,
            rounds_unseen: o.rounds_unseen,
            overwritten: o.overwritten,
            reused: o.reused,
            unparsable: o.unparsable,
            jumps: o.jumps,
            readers: readers.collect(),
        }
    }
}

/// Makes the body of a record's packet. `calls` writes the calls of a stack first ([`m::Calls`]), and returns their number.
pub(super) fn body(record: &Record, calls: impl FnOnce(&r::Stack) -> u32) -> Vec<u8> {
    use prost::Message as _;

    match record {
        Record::Ioctl(x) => m::Ioctl::from(&**x).encode_to_vec(),
        Record::Mapping(x) => m::Mapping::from(x).encode_to_vec(),
        Record::Unmapping(x) => m::Unmapping {
            at: Some(x.at.into()),
            start: x.start.0,
            len: x.len,
        }
        .encode_to_vec(),
        Record::Process(x) => m::Process::from(x).encode_to_vec(),
        Record::Channel(x) => m::Channel::from(&**x).encode_to_vec(),
        Record::Submission(x) => m::Submission::from(x).encode_to_vec(),
        Record::Gpu(x) => m::Gpu {
            at: Some(x.at.into()),
            minor: x.minor,
            pci_device: x.pci_device.into(),
        }
        .encode_to_vec(),
        Record::QmdCopy(x) => m::Image {
            at: Some(x.at.into()),
            address: x.address.0,
            bytes: x.bytes.clone(),
            found: x.found.0,
        }
        .encode_to_vec(),
        Record::Kernel(x) => m::Kernel::from(&**x).encode_to_vec(),
        Record::Stack(x) => m::Stack {
            at: Some(x.at.into()),
            calls: calls(x),
        }
        .encode_to_vec(),
        Record::Stamps(x) => m::Stamps::from(&**x).encode_to_vec(),
        Record::Loss(x) => m::Loss::from(x).encode_to_vec(),
        Record::Skipped(x) => super::skipped_messages::Passed::from(x).encode_to_vec(),
        Record::Fault(x) => super::fault_messages::Fault::from(&**x).encode_to_vec(),
        Record::Samples(x) => super::sample_messages::Samples::from(&**x).encode_to_vec(),
        Record::Switches(x) => super::switch_messages::Switches::from(&**x).encode_to_vec(),
        Record::Snapshot(x) => super::snapshot_messages::Look::from(&**x).encode_to_vec(),
    }
}
