//! The latest stacks, by doorbell, until the submissions of the doorbell come by.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::record::{Calls, How, Stack, Submission};

/// How many are kept: a submission may be held back until it is known whose doorbell found it.
const MOST: usize = 16 * 1024;

/// See the module. The key is time and thread, which no two doorbells share.
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
        if s.late || s.how == How::Observed {
            return None;
        }
        self.0.get(&(s.at.time_ns, s.at.tid)).cloned()
    }
}
