//! Work that one xtask does while another waits for it: what is fetched into target/ is fetched once, however many need it.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
};

use anyhow::{Context, Result};

use crate::paths;

/// Lock of a name, from `alone` until it is dropped. A process that dies has it no longer.
#[must_use = "it ends where it is dropped"]
pub struct Alone {
    _file: File,
}

/// Waits until nobody else, in this process or another, has `name`.
///
/// Nothing of target/ but what the name stands for is locked.
pub fn alone(name: &str) -> Result<Alone> {
    let folder = paths::target().join("locks");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(name);
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    loop {
        // SAFETY: the descriptor is open, and nothing else is passed.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(Alone { _file: file });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Counts how many are within at once.
    #[test]
    fn one_of_four_threads_has_it_at_a_time() {
        let (within, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let alone = alone("test-of-once").expect("it is locked");
                        most.fetch_max(within.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::yield_now();
                        within.fetch_sub(1, SeqCst);
                        drop(alone);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
    }
}
