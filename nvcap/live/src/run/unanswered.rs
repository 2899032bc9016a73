//! Processes whose memory did not answer, or was not read because other processes' memory did not answer. Their submissions of
//! that time are not known.

use nvcap_decode::record::{At, Loss, Lost, Record};
use nvcap_process::{clock, procfs::mem};

/// Number of these processes that were reported.
#[derive(Debug, Default)]
pub(super) struct Unanswered(usize);

impl Unanswered {
    /// Reports the processes that were added since.
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
