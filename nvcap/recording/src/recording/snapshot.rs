//! Conversion of a snapshot's message to its record.

use prost::Message as _;

use super::decode::{NotUnderstood, at, submission, word};
use super::snapshot_messages::{Look, LookChannel, LookThread, NativeStack, PythonStack, Xid};
use nvcap_decode::record::{
    self as r, ChannelId, CpuVa, EntryTarget, Record, RingPlace, RingSize, StackEnd, TokenFrom,
};

type Result<T> = std::result::Result<T, NotUnderstood>;

/// Returns the record with this body.
pub(super) fn record(body: &[u8]) -> Result<Record> {
    let snapshot = Look::decode(body)?;
    let channels = snapshot.channels.into_iter().map(channel);
    let threads = snapshot.threads.into_iter().map(thread);
    Ok(Record::Snapshot(Box::new(r::ProcessSnapshot {
        at: at(snapshot.at)?,
        took_ns: snapshot.took_ns,
        finding_ns: snapshot.finding_ns,
        reading_ns: snapshot.reading_ns,
        rank: snapshot.rank,
        ranks: snapshot.ranks,
        python: snapshot.python,
        unused: snapshot.unused,
        notes: snapshot.notes,
        memory: { snapshot.memory.iter() }
            .map(|m| r::MemoryRange {
                start: CpuVa(m.start),
                len: m.len,
            })
            .collect(),
        channels: channels.collect::<Result<_>>()?,
        threads: threads.collect::<Result<_>>()?,
        xids: snapshot.xids.into_iter().map(xid).collect(),
    })))
}

fn channel(c: LookChannel) -> Result<r::SnapshotChannel> {
    let token_from = |text: String| word("origin of the token", &text, TokenFrom::from_name(&text));
    let first = c.first.into_iter().map(submission);
    Ok(r::SnapshotChannel {
        facts: r::ChannelFacts {
            channel: ChannelId(c.channel),
            ring: CpuVa(c.ring),
            userd: CpuVa(c.userd),
            place: word("place", &c.place, RingPlace::from_name(&c.place))?,
            size: word("size", &c.size, RingSize::from_name(&c.size))?,
            target: word("target", &c.target, EntryTarget::from_name(&c.target))?,
            moved: c.moved,
            token_from: c.token_from.map(token_from).transpose()?,
            error: c.error,
            overwritten: c.overwritten,
            recycled: c.recycled,
            unreadable: c.unreadable,
            elsewhere: c.elsewhere,
            ring_gone: c.ring_gone,
        },
        gp_get: c.gp_get,
        gp_put: c.gp_put,
        first: first.collect::<Result<_>>()?,
    })
}

fn thread(t: LookThread) -> Result<r::Thread> {
    let native = |s: NativeStack| -> Result<r::NativeStack> {
        Ok(r::NativeStack {
            frames: { s.frames.into_iter() }
                .map(|f| r::NativeFrame {
                    module: f.module,
                    function: f.symbol,
                    offset: f.offset,
                    address: f.address,
                    file: f.file,
                    line: f.line,
                })
                .collect(),
            end: word("end of the stack", &s.end, StackEnd::from_name(&s.end))?,
        })
    };
    let python = |s: PythonStack| r::PythonStack {
        frames: { s.frames.into_iter() }
            .map(|f| r::PythonFrame::new(f.function, f.file, f.line))
            .collect(),
        newest_missing: s.newest_missing,
        oldest_missing: s.oldest_missing,
    };
    Ok(r::Thread {
        tid: t.tid,
        name: t.name,
        state: t.state.chars().next().unwrap_or('?'),
        ticks: t.ticks,
        wchan: t.wchan,
        syscall: t.syscall,
        call: None,
        argument: t.argument,
        native: t.native.map(native).transpose()?,
        python: t.python.map(python),
    })
}

pub(super) fn xid(x: Xid) -> r::Xid {
    r::Xid {
        time_ns: x.time_ns,
        pci: x.pci,
        gpu: x.gpu,
        code: x.code,
        pid: x.pid,
        name: x.name,
        hardware_channel: x.hardware_channel,
        gpu_instance: x.gpu_instance,
        compute_instance: x.compute_instance,
        channels: x.channels.into_iter().map(ChannelId).collect(),
        text: x.text,
    }
}
