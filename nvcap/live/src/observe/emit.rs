//! Records that a follower gives of its channel: submissions, losses, and reports of what is not
//! known.

use super::channel::Follower;
use nvcap_decode::record::{At, How, Loss, Lost, Record, Segment, Submission};

impl Follower {
    pub(super) fn at(&self, now: u64) -> At {
        At {
            time_ns: now,
            pid: self.announced.at.pid,
            tid: 0,
        }
    }

    pub(super) fn submission(
        &self,
        now: u64,
        position: u64,
        get: Option<u32>,
        segment: Segment,
    ) -> Submission {
        Submission {
            at: self.at(now),
            channel: self.announced.id,
            token: self.announced.token,
            position,
            gp_get: get,
            prev_put: self.index(position),
            gp_put: self.index(position + 1),
            ip: None,
            doorbell: None,
            how: How::Observed,
            late: false,
            absent_ns: (position >= self.absent_from).then_some(self.looked),
            thread: None,
            segments: vec![segment],
        }
    }

    pub(super) fn loss(&self, now: u64, what: Lost) -> Record {
        Record::Loss(Loss {
            at: self.at(now),
            channel: Some(self.announced.id),
            what,
        })
    }

    pub(super) fn lose(&self, now: u64, range: Option<(u64, u64)>, to: &mut Vec<Record>) {
        if let Some((position, count)) = range.filter(|r| r.1 > 0) {
            to.push(self.loss(now, Lost::Entries { position, count }));
        }
    }

    /// Reports that the number of the ring's rounds is not known.
    pub(super) fn report_rounds(&self, now: u64, to: &mut Vec<Record>) {
        let why = format!(
            "channel {}: its ring may have gone round more often than was seen: the entries counted as missing are the \
             least that it can be",
            self.announced.id.0
        );
        to.push(self.loss(now, Lost::Untraced { why }));
    }

    pub(super) fn report_jump(&self, now: u64, from: u32, payload: u32, to: &mut Vec<Record>) {
        let why = format!(
            "channel {}: its semaphore went on from {payload:#x} after {from:#x}, and no ring position is missing",
            self.announced.id.0
        );
        to.push(self.loss(now, Lost::Untraced { why }));
    }
}
