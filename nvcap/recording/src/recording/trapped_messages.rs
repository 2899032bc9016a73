//! Conversion of the trap's account to its messages.

use prost::Message;

use nvcap_decode::ledger;

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
    #[prost(uint64, tag = "8")]
    pub stray_traps: u64,
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
            stray_traps: t.stray_traps,
        }
    }
}
