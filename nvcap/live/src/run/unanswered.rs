//! Processes whose memory did not answer, or was not read because that of others did not: what they submit meanwhile is not known.

use nvcap_decode::record::{At, Loss, Lost, Record};
use nvcap_process::{clock, procfs::mem};

/// Number of those that were told.
#[derive(Debug, Default)]
pub(super) struct Unanswered(usize);

impl Unanswered {
    /// Tells of those that came since.
    pub(super) fn take(&mut self, to: &mut Vec<Record>) {
        let new = mem::given_up(self.0);
        self.0 += new.len();
        to.extend(new.into_iter().map(|(pid, why)| {
            Record::Loss(Loss {
                at: At {
                    time_ns: clock::now(),
                    pid,
                    tid: 0,
                },
                channel: None,
                what: Lost::Untraced {
                    why: format!("{why}: what it submits meanwhile is not known"),
                },
            })
        }));
    }
}
