//! Ids of errands: processes of nvcap's own, which have its memory and are none that anybody means.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// It is locked while an errand is made, so that none is seen before it is in it.
static ALL: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

pub(super) fn all() -> MutexGuard<'static, BTreeSet<u32>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True for an errand.
pub(in crate::procfs) fn is_errand(pid: u32) -> bool {
    all().contains(&pid)
}
