//! Tests in step (`in_step.rs`): tells how far the semaphores of a process were read. Without the feature nothing is told, and times are as
//! usual.

use std::time::Duration;

use super::regions::Regions;
use nvcap_decode::record::Stamp;

/// Returns the time after which changes are handed on: `usual`, or zero where a program waits for them.
pub(super) fn batch(usual: Duration) -> Duration {
    #[cfg(feature = "in-step")]
    if nvcap_process::in_step::is_on() {
        return Duration::ZERO;
    }
    usual
}

/// Returns the time for which stamps are waited for, ns. `usual`: the time out of step.
pub(super) fn patience_ns(usual: u64) -> u64 {
    #[cfg(feature = "in-step")]
    if nvcap_process::in_step::is_on() {
        return nvcap_process::in_step::PATIENCE_NS;
    }
    usual
}

/// Tells of words that were read for the first time, which is no change.
#[cfg_attr(not(feature = "in-step"), expect(unused_variables))]
pub(super) fn tell_first(pid: u32, regions: &mut Regions) {
    #[cfg(feature = "in-step")]
    for (address, word) in regions.first() {
        nvcap_process::in_step::tell(
            pid,
            nvcap_process::in_step::Kind::Word,
            address,
            word.into(),
        );
    }
}

/// Keeps the changes that are about to be handed on, to tell of them afterwards.
#[cfg_attr(not(feature = "in-step"), expect(unused_variables))]
pub(super) fn read(stamps: &[Stamp]) -> Vec<Stamp> {
    #[cfg(feature = "in-step")]
    if nvcap_process::in_step::is_on() {
        return stamps.to_vec();
    }
    Vec::new()
}

/// Tells of changes that were handed on.
#[cfg_attr(not(feature = "in-step"), expect(unused_variables))]
pub(super) fn tell(pid: u32, read: &[Stamp]) {
    #[cfg(feature = "in-step")]
    for stamp in read {
        let kind = match stamp.gpu_ns {
            Some(_) => nvcap_process::in_step::Kind::Stamp,
            None => nvcap_process::in_step::Kind::Word,
        };
        nvcap_process::in_step::tell(pid, kind, stamp.address.0, stamp.payload.into());
    }
}
