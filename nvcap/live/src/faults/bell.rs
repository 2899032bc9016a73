//! Wake-ups of the thread that watches for faults: by a request, or by a message of the kernel's log.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};

use crate::polled::{to_poll, wait_for};

/// A counter of the kernel's that one thread waits for and others raise.
#[derive(Clone, Debug)]
pub(super) struct Bell(Arc<File>);

impl Bell {
    /// Makes a bell that has not rung.
    ///
    /// # Errors
    /// Those of `eventfd`.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor, which nobody else has.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was made above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self(Arc::new(File::from(fd))))
    }

    /// Wakes the thread that waits.
    pub(super) fn ring(&self) {
        // It fails only where it has rung already.
        let _ = (&*self.0).write(&1_u64.to_ne_bytes());
    }

    /// Waits until it rings, until the descriptor `other` can be read, or for `most`. Tells whether `other` can be read.
    pub(super) fn wait(&self, other: Option<RawFd>, most: Duration) -> bool {
        let mut polled: Vec<libc::pollfd> = other.map(to_poll).into_iter().collect();
        wait_for(&mut polled, &[self.0.as_raw_fd()], most);
        let _ = (&*self.0).read(&mut [0; 8]);
        other.is_some() && polled[0].revents & libc::POLLIN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn either_ends_the_wait() {
        let bell = Bell::new().unwrap();
        let (log, other) = UnixDatagram::pair().unwrap();
        let other = Some(other.as_raw_fd());
        assert!(!bell.wait(other, Duration::ZERO));
        let ringer = bell.clone();
        let rings = std::thread::spawn(move || ringer.ring());
        // A guard, which ends no test that passes.
        assert!(!bell.wait(other, Duration::from_secs(600)));
        rings.join().unwrap();
        log.send(b"a message").unwrap();
        assert!(bell.wait(other, Duration::from_secs(600)));
        bell.ring();
        bell.ring();
        assert!(bell.wait(other, Duration::from_secs(600)));
        // Rings are not counted.
        assert!(!bell.wait(None, Duration::ZERO));
    }
}
