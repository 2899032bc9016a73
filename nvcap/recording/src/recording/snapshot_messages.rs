//! Conversion of a snapshot of a process to its message `Look` and the messages in it.

use prost::Message;

use super::messages as m;
use nvcap_decode::record as r;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Look {
    #[prost(message, optional, tag = "1")]
    pub at: Option<m::At>,
    #[prost(uint64, tag = "2")]
    pub took_ns: u64,
    #[prost(uint64, tag = "3")]
    pub finding_ns: u64,
    #[prost(uint64, tag = "4")]
    pub reading_ns: u64,
    #[prost(uint32, optional, tag = "5")]
    pub rank: Option<u32>,
    #[prost(string, optional, tag = "6")]
    pub python: Option<String>,
    #[prost(uint64, tag = "7")]
    pub unused: u64,
    #[prost(string, repeated, tag = "8")]
    pub notes: Vec<String>,
    #[prost(message, repeated, tag = "9")]
    pub memory: Vec<MemoryRange>,
    #[prost(message, repeated, tag = "10")]
    pub channels: Vec<LookChannel>,
    #[prost(message, repeated, tag = "11")]
    pub threads: Vec<LookThread>,
    #[prost(message, repeated, tag = "12")]
    pub xids: Vec<Xid>,
    #[prost(uint32, optional, tag = "13")]
    pub ranks: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemoryRange {
    #[prost(uint64, tag = "1")]
    pub start: u64,
    #[prost(uint64, tag = "2")]
    pub len: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LookChannel {
    #[prost(uint32, tag = "1")]
    pub channel: u32,
    #[prost(uint32, tag = "2")]
    pub gp_get: u32,
    #[prost(uint32, tag = "3")]
    pub gp_put: u32,
    #[prost(fixed64, tag = "4")]
    pub ring: u64,
    #[prost(fixed64, tag = "5")]
    pub userd: u64,
    #[prost(string, tag = "6")]
    pub place: String,
    #[prost(string, tag = "7")]
    pub size: String,
    #[prost(string, tag = "8")]
    pub target: String,
    #[prost(bool, tag = "9")]
    pub moved: bool,
    #[prost(string, optional, tag = "10")]
    pub token_from: Option<String>,
    #[prost(uint32, optional, tag = "11")]
    pub error: Option<u32>,
    #[prost(uint32, tag = "12")]
    pub overwritten: u32,
    #[prost(uint32, tag = "13")]
    pub recycled: u32,
    #[prost(uint64, tag = "14")]
    pub unreadable: u64,
    #[prost(uint32, tag = "15")]
    pub elsewhere: u32,
    #[prost(bool, tag = "16")]
    pub ring_gone: bool,
    #[prost(message, repeated, tag = "17")]
    pub first: Vec<m::Submission>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LookThread {
    #[prost(uint32, tag = "1")]
    pub tid: u32,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub state: String,
    #[prost(uint64, tag = "4")]
    pub ticks: u64,
    #[prost(string, optional, tag = "5")]
    pub wchan: Option<String>,
    #[prost(uint32, optional, tag = "6")]
    pub syscall: Option<u32>,
    #[prost(uint64, optional, tag = "7")]
    pub argument: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub native: Option<NativeStack>,
    #[prost(message, optional, tag = "9")]
    pub python: Option<PythonStack>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NativeStack {
    #[prost(message, repeated, tag = "1")]
    pub frames: Vec<m::Frame>,
    #[prost(string, tag = "2")]
    pub end: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PythonFrame {
    #[prost(string, tag = "1")]
    pub function: String,
    #[prost(string, tag = "2")]
    pub file: String,
    #[prost(uint32, optional, tag = "3")]
    pub line: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PythonStack {
    #[prost(message, repeated, tag = "1")]
    pub frames: Vec<PythonFrame>,
    #[prost(bool, tag = "2")]
    pub newest_missing: bool,
    #[prost(bool, tag = "3")]
    pub oldest_missing: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Xid {
    #[prost(fixed64, tag = "1")]
    pub time_ns: u64,
    #[prost(string, tag = "2")]
    pub pci: String,
    #[prost(uint32, optional, tag = "3")]
    pub gpu: Option<u32>,
    #[prost(uint32, tag = "4")]
    pub code: u32,
    #[prost(uint32, optional, tag = "5")]
    pub pid: Option<u32>,
    #[prost(string, optional, tag = "6")]
    pub name: Option<String>,
    #[prost(uint32, optional, tag = "7")]
    pub hardware_channel: Option<u32>,
    #[prost(uint32, repeated, tag = "8")]
    pub channels: Vec<u32>,
    #[prost(string, tag = "9")]
    pub text: String,
    #[prost(uint32, optional, tag = "10")]
    pub gpu_instance: Option<u32>,
    #[prost(uint32, optional, tag = "11")]
    pub compute_instance: Option<u32>,
}

impl From<&r::ProcessSnapshot> for Look {
    fn from(snapshot: &r::ProcessSnapshot) -> Self {
        Self {
            at: Some(snapshot.at.into()),
            took_ns: snapshot.took_ns,
            finding_ns: snapshot.finding_ns,
            reading_ns: snapshot.reading_ns,
            rank: snapshot.rank,
            ranks: snapshot.ranks,
            python: snapshot.python.clone(),
            unused: snapshot.unused,
            notes: snapshot.notes.clone(),
            memory: { snapshot.memory.iter() }
                .map(|m| MemoryRange {
                    start: m.start.0,
                    len: m.len,
                })
                .collect(),
            channels: snapshot.channels.iter().map(Into::into).collect(),
            threads: snapshot.threads.iter().map(Into::into).collect(),
            xids: snapshot.xids.iter().map(Into::into).collect(),
        }
    }
}

impl From<&r::SnapshotChannel> for LookChannel {
    fn from(c: &r::SnapshotChannel) -> Self {
        let f = &c.facts;
        Self {
            channel: f.channel.0,
            gp_get: c.gp_get,
            gp_put: c.gp_put,
            ring: f.ring.0,
            userd: f.userd.0,
            place: f.place.name().to_owned(),
            size: f.size.name().to_owned(),
            target: f.target.name().to_owned(),
            moved: f.moved,
            token_from: f.token_from.map(|t| t.name().to_owned()),
            error: f.error,
            overwritten: f.overwritten,
            recycled: f.recycled,
            unreadable: f.unreadable,
            elsewhere: f.elsewhere,
            ring_gone: f.ring_gone,
            first: c.first.iter().map(Into::into).collect(),
        }
    }
}

impl From<&r::Thread> for LookThread {
    fn from(t: &r::Thread) -> Self {
        Self {
            tid: t.tid,
            name: t.name.clone(),
            state: t.state.to_string(),
            ticks: t.ticks,
            wchan: t.wchan.clone(),
            syscall: t.syscall,
            argument: t.argument,
            native: t.native.as_ref().map(|s| NativeStack {
                frames: { s.frames.iter() }
                    .map(|f| m::Frame {
                        module: f.module.clone(),
                        symbol: f.function.clone(),
                        offset: f.offset,
                        address: f.address,
                        file: f.file.clone(),
                        line: f.line,
                        python: false,
                        inlined: false,
                    })
                    .collect(),
                end: s.end.name().to_owned(),
            }),
            python: t.python.as_ref().map(|s| PythonStack {
                frames: { s.frames.iter() }
                    .map(|f| PythonFrame {
                        function: f.function.clone(),
                        file: f.file.clone(),
                        line: f.line,
                    })
                    .collect(),
                newest_missing: s.newest_missing,
                oldest_missing: s.oldest_missing,
            }),
        }
    }
}

impl From<&r::Xid> for Xid {
    fn from(x: &r::Xid) -> Self {
        Self {
            time_ns: x.time_ns,
            pci: x.pci.clone(),
            gpu: x.gpu,
            code: x.code,
            pid: x.pid,
            name: x.name.clone(),
            hardware_channel: x.hardware_channel,
            gpu_instance: x.gpu_instance,
            compute_instance: x.compute_instance,
            channels: x.channels.iter().map(|c| c.0).collect(),
            text: x.text.clone(),
        }
    }
}
