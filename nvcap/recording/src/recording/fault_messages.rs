//! Conversion between the record of a fault of the GPU and its message `Fault`.

use prost::Message;

use super::decode::{NotUnderstood, at, word};
use super::{messages as m, snapshot, snapshot_messages::Xid};
use nvcap_decode::record::{self as r, ChannelId, FaultSource, Record, SuspectKind};
use nvcap_decode::wire::GpuVa;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Notification {
    #[prost(fixed64, tag = "1")]
    pub time: u64,
    #[prost(uint32, tag = "2")]
    pub info32: u32,
    #[prost(uint32, tag = "3")]
    pub info16: u32,
    #[prost(uint32, tag = "4")]
    pub status: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Suspect {
    #[prost(uint32, tag = "1")]
    pub channel: u32,
    #[prost(uint32, tag = "2")]
    pub index: u32,
    #[prost(string, tag = "3")]
    pub kind: String,
    #[prost(fixed64, optional, tag = "4")]
    pub program: Option<u64>,
    #[prost(uint32, repeated, tag = "5")]
    pub grid: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    pub block: Vec<u32>,
    #[prost(message, optional, tag = "7")]
    pub near: Option<Near>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Near {
    #[prost(uint32, tag = "1")]
    pub offset: u32,
    #[prost(fixed64, tag = "2")]
    pub value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Fault {
    #[prost(message, optional, tag = "1")]
    pub at: Option<m::At>,
    #[prost(string, tag = "2")]
    pub source: String,
    #[prost(uint32, tag = "3")]
    pub code: u32,
    #[prost(uint32, optional, tag = "4")]
    pub channel: Option<u32>,
    #[prost(bool, tag = "5")]
    pub assumed: bool,
    #[prost(uint32, optional, tag = "6")]
    pub token: Option<u32>,
    #[prost(message, optional, tag = "7")]
    pub notification: Option<Notification>,
    #[prost(message, optional, tag = "8")]
    pub message: Option<Xid>,
    #[prost(message, repeated, tag = "9")]
    pub suspects: Vec<Suspect>,
    #[prost(bool, tag = "10")]
    pub only_these: bool,
    #[prost(uint32, repeated, tag = "11")]
    pub group: Vec<u32>,
}

impl From<&r::Fault> for Fault {
    fn from(f: &r::Fault) -> Self {
        let suspect = |s: &r::Suspect| Suspect {
            channel: s.channel.0,
            index: s.index,
            kind: s.kind.name().to_owned(),
            program: s.program.map(|p| p.0),
            grid: s.grid.to_vec(),
            block: s.block.to_vec(),
            near: s.near.map(|n| Near {
                offset: n.offset,
                value: n.value,
            }),
        };
        Self {
            at: Some(f.at.into()),
            source: f.source.name().to_owned(),
            code: f.code,
            channel: f.channel.map(|c| c.0),
            assumed: f.assumed,
            token: f.token,
            notification: f.notification.map(|n| Notification {
                time: n.time,
                info32: n.info32,
                info16: n.info16.into(),
                status: n.status.into(),
            }),
            message: f.message.as_deref().map(Into::into),
            suspects: f.suspects.iter().map(suspect).collect(),
            only_these: f.only_these,
            group: f.group.iter().map(|c| c.0).collect(),
        }
    }
}

/// Returns the record with this body.
pub(super) fn record(body: &[u8]) -> Result<Record, NotUnderstood> {
    let f = Fault::decode(body)?;
    let notification = |n: Notification| {
        let half = |n| u16::try_from(n).map_err(|_| NotUnderstood::Large("word of a notification"));
        Ok::<_, NotUnderstood>(r::Notification {
            time: n.time,
            info32: n.info32,
            info16: half(n.info16)?,
            status: half(n.status)?,
        })
    };
    let suspects = f.suspects.into_iter().map(suspect);
    Ok(Record::Fault(Box::new(r::Fault {
        at: at(f.at)?,
        source: word(
            "source of a fault",
            &f.source,
            FaultSource::from_name(&f.source),
        )?,
        code: f.code,
        channel: f.channel.map(ChannelId),
        group: f.group.into_iter().map(ChannelId).collect(),
        assumed: f.assumed,
        token: f.token,
        notification: f.notification.map(notification).transpose()?,
        message: f.message.map(|x| Box::new(snapshot::xid(x))),
        memory: None,
        suspects: suspects.collect::<Result<_, _>>()?,
        only_these: f.only_these,
    })))
}

fn suspect(s: Suspect) -> Result<r::Suspect, NotUnderstood> {
    let three = |all: &[u32]| {
        <[u32; 3]>::try_from(all).map_err(|_| NotUnderstood::Lacks("a grid or block of three"))
    };
    Ok(r::Suspect {
        channel: ChannelId(s.channel),
        index: s.index,
        kind: word("kind of work", &s.kind, SuspectKind::from_name(&s.kind))?,
        program: s.program.map(GpuVa),
        grid: three(&s.grid)?,
        block: three(&s.block)?,
        near: s.near.map(|n| r::Near {
            offset: n.offset,
            value: n.value,
        }),
        kernel: None,
    })
}
