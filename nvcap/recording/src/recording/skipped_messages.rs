//! Conversion of skipped entries to their message `Passed`.

use prost::Message;

use super::messages as m;
use nvcap_decode::record as r;

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

impl From<&r::Skipped> for Passed {
    fn from(p: &r::Skipped) -> Self {
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
