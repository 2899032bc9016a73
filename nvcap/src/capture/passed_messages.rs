//! The messages of entries that were passed over, and of the account of the trap, made of what they hold.

use prost::Message;

use super::messages as m;
use crate::{ledger, record as r};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Passed {
    #[prost(message, optional, tag = "1")]
    pub at: Option<m::At>,
    #[prost(uint32, tag = "2")]
    pub channel: u32,
    #[prost(uint64, tag = "3")]
    pub position: u64,
    #[prost(uint64, tag = "4")]
    pub entries: u64,
    #[prost(uint64, optional, tag = "5")]
    pub doorbells: Option<u64>,
    #[prost(string, tag = "6")]
    pub why: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Trapped {
    #[prost(uint64, tag = "1")]
    pub hits: u64,
    #[prost(uint64, tag = "2")]
    pub runs: u64,
    #[prost(uint64, tag = "3")]
    pub before: u64,
    #[prost(uint64, tag = "4")]
    pub deferred: u64,
    #[prost(uint64, tag = "5")]
    pub put_off: u64,
    #[prost(uint64, tag = "6")]
    pub counted: u64,
    #[prost(message, optional, tag = "7")]
    pub duty: Option<Duty>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Duty {
    #[prost(uint64, tag = "1")]
    pub windows: u64,
    #[prost(uint64, tag = "2")]
    pub watched_ns: u64,
    #[prost(uint64, tag = "3")]
    pub all_ns: u64,
    #[prost(double, tag = "4")]
    pub submissions: f64,
    #[prost(double, optional, tag = "5")]
    pub submissions_margin: Option<f64>,
    #[prost(double, tag = "6")]
    pub bytes: f64,
    #[prost(double, optional, tag = "7")]
    pub bytes_margin: Option<f64>,
    #[prost(uint64, tag = "8")]
    pub entries: u64,
    #[prost(uint64, tag = "9")]
    pub doubtful: u64,
}

impl From<&r::Passed> for Passed {
    fn from(p: &r::Passed) -> Self {
        Self {
            at: Some(p.at.into()),
            channel: p.channel.0,
            position: p.position,
            entries: p.entries,
            doorbells: p.doorbells,
            why: p.why.name().to_owned(),
        }
    }
}

impl From<&ledger::Trapped> for Trapped {
    fn from(t: &ledger::Trapped) -> Self {
        let duty = t.duty.map(|d| Duty {
            windows: d.windows,
            watched_ns: d.watched_ns,
            all_ns: d.all_ns,
            submissions: d.submissions.about,
            submissions_margin: d.submissions.margin,
            bytes: d.bytes.about,
            bytes_margin: d.bytes.margin,
            entries: d.entries,
            doubtful: d.doubtful,
        });
        Self {
            hits: t.hits,
            runs: t.runs,
            before: t.before,
            deferred: t.deferred,
            put_off: t.put_off,
            counted: t.counted,
            duty,
        }
    }
}
