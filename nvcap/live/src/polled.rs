//! Waits for descriptors.

use std::{os::fd::RawFd, time::Duration};

/// Makes the structure that waits until a descriptor can be read.
pub(crate) fn to_poll(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Waits until one of these descriptors is ready or one of `wakes` becomes readable, for `most` at most.
pub(crate) fn wait_for(polled: &mut Vec<libc::pollfd>, wakes: &[RawFd], most: Duration) {
    let most = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: most.subsec_nanos().into(),
    };
    polled.extend(wakes.iter().copied().map(to_poll));
    let count = polled.len() as libc::nfds_t;
    // SAFETY: `count` pollfds, a timespec, no signal mask.
    unsafe { libc::ppoll(polled.as_mut_ptr(), count, &most, std::ptr::null()) };
}
