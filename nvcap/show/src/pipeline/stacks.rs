//! The latest stacks, by doorbell, until the submissions of the doorbell come by.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvcap_decode::record::{Calls, Stack, Submission};

/// Number of stacks that are kept: a submission may be held back until it is known whose doorbell found it.
const MOST: usize = 16 * 1024;

/// The latest stacks, until the submissions of their doorbells come by. The key is time and thread, which no two doorbells share.
#[derive(Debug, Default)]
pub(super) struct Stacks(BTreeMap<(u64, u32), Arc<Calls>>);

impl Stacks {
    pub(super) fn put(&mut self, stack: &Stack) {
        let key = (stack.at.time_ns, stack.at.tid);
        self.0.insert(key, Arc::clone(&stack.calls));
        if self.0.len() > MOST {
            self.0.pop_first();
        }
    }

    /// The calls that led to a submission. Entries that a later doorbell fetched have none: the stack is of that doorbell.
    pub(super) fn of(&self, s: &Submission) -> Option<Arc<Calls>> {
        if s.late || s.how.is_after() {
            return None;
        }
        self.0.get(&(s.at.time_ns, s.at.tid)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{At, ChannelId, How};

    #[test]
    fn a_submission_has_the_stack_of_its_own_doorbell() {
        let at = |time_ns, tid| At {
            time_ns,
            pid: 1,
            tid,
        };
        let submission = |at, late, how| Submission {
            absent_ns: None,
            at,
            channel: ChannelId(0),
            token: None,
            position: 0,
            gp_get: None,
            prev_put: 0,
            gp_put: 0,
            ip: None,
            doorbell: None,
            how,
            late,
            thread: None,
            segments: Vec::new(),
        };
        let mut stacks = Stacks::default();
        for tid in [5, 6] {
            let api = Some(format!("cu{tid}").into());
            let calls = Calls {
                api,
                ..Calls::default()
            };
            stacks.put(&Stack {
                at: at(100, tid),
                calls: calls.into(),
            });
        }
        let api = |at, late, how| {
            let found = stacks.of(&submission(at, late, how))?;
            found.api.as_deref().map(str::to_owned)
        };
        let trapped = How::Trapped;
        assert_eq!(api(at(100, 6), false, trapped).as_deref(), Some("cu6"));
        assert_eq!(api(at(100, 5), false, trapped).as_deref(), Some("cu5"));
        assert_eq!(api(at(100, 5), true, trapped), None);
        assert_eq!(api(at(100, 5), false, How::Observed), None);
        assert_eq!(api(at(101, 5), false, trapped), None);
        for n in 0..MOST as u64 {
            stacks.put(&Stack {
                at: at(200 + n, 9),
                calls: Arc::default(),
            });
        }
        assert_eq!(stacks.0.len(), MOST);
        assert!(stacks.of(&submission(at(100, 5), false, trapped)).is_none());
    }
}
