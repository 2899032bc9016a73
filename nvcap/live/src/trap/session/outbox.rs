//! Records on their way out of the session, in the order in which they are passed on.

use super::super::watchpoints;
use nvcap_decode::record::{At, ChannelId, Loss, Lost, Record};
use nvcap_process::error::Error;

/// Records that have not been taken yet.
#[derive(Debug, Default)]
pub(super) struct Outbox(Vec<Record>);

impl Outbox {
    pub(super) fn push(&mut self, record: Record) {
        self.0.push(record);
    }

    /// Reports a loss, as of now.
    pub(super) fn lost(&mut self, pid: u32, channel: Option<ChannelId>, what: Lost) {
        let at = seen_now(pid);
        self.push(Record::Loss(Loss { at, channel, what }));
    }

    /// Reports something that could not be traced, as of now.
    pub(super) fn untraced(&mut self, pid: u32, why: &Error) {
        let why = why.to_string();
        self.lost(pid, None, Lost::Untraced { why });
    }

    /// Appends all to `to`.
    pub(super) fn append_to(&mut self, to: &mut Vec<Record>) {
        to.append(&mut self.0);
    }
}

/// Present time, with a process and no thread of it: for nvcap's own observations.
pub(super) fn seen_now(pid: u32) -> At {
    At {
        time_ns: watchpoints::now(),
        pid,
        tid: 0,
    }
}
