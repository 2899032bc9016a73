//! Ids of errands: processes of nvcap's own that share its memory, and that a user never means.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ids of all errands. The lock is held while an errand is made, so that no errand is seen before
/// its id is in the set.
static ALL: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

pub(super) fn all() -> MutexGuard<'static, BTreeSet<u32>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells whether a process is an errand.
pub(in crate::procfs) fn is_errand(pid: u32) -> bool {
    all().contains(&pid)
}
