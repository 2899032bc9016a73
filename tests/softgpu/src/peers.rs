//! Ranks of one job: programs whose collectives end in none before they have begun in all. They know of each other by a file that all map.
//!
//! A rank that dies is noticed, for it holds a lock of the file as long as it lives: the others say who is gone, and end.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};

/// The most ranks of a job.
pub const MOST: u32 = 64;
/// Words of a rank: collectives that have begun in it, and its state.
const WORDS: usize = 2;
const LEN: usize = MOST as usize * WORDS * size_of::<AtomicU64>();
const JOINED: u64 = 1;
const LEFT: u64 = 2;

/// The job as one of its ranks sees it.
#[derive(Debug)]
pub struct Peers {
    /// Holds the lock, an open file description's own; it is closed with the process.
    file: File,
    words: &'static [AtomicU64],
    rank: u32,
    ranks: u32,
}

impl Peers {
    /// Joins the job of a file, which is made or extended where it is shorter than it must be.
    ///
    /// # Errors
    /// Those of the file, and a rank that another process is already.
    pub fn join(path: &Path, rank: u32, ranks: u32) -> Result<Peers> {
        let say = || format!("--collective {}", path.display());
        if rank >= ranks || ranks > MOST {
            bail!(
                "--rank {rank} of --ranks {ranks}: ranks are 0 to {}, and at most {MOST}",
                ranks.saturating_sub(1)
            );
        }
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).with_context(say)?;
        if file.metadata().with_context(say)?.len() < LEN as u64 {
            file.set_len(LEN as u64).with_context(say)?;
        }
        // SAFETY: a new mapping, which stays: nothing unmaps it.
        let at = unsafe {
            let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(
                std::ptr::null_mut(),
                LEN,
                protection,
                shared,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).with_context(say);
        }
        // SAFETY: the mapping has so many words, is aligned to a page, and stays; every value is one of an atomic's.
        let words = unsafe {
            std::slice::from_raw_parts(at.cast::<AtomicU64>(), LEN / size_of::<AtomicU64>())
        };
        let peers = Peers {
            file,
            words,
            rank,
            ranks,
        };
        let mut lock = lock_of(rank);
        // SAFETY: the structure is filled, and the file is open.
        if unsafe { libc::fcntl(peers.file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } != 0 {
            bail!("{}: rank {rank} is another process", say());
        }
        peers.state(rank).store(JOINED, Ordering::Release);
        Ok(peers)
    }

    fn arrived(&self, rank: u32) -> &AtomicU64 {
        &self.words[WORDS * rank as usize]
    }

    fn state(&self, rank: u32) -> &AtomicU64 {
        &self.words[WORDS * rank as usize + 1]
    }

    /// The collective with this number, from 0, has begun in this rank.
    pub fn arrive(&self, number: u64) {
        self.arrived(self.rank).store(number + 1, Ordering::Release);
    }

    /// Tells whether the collective with this number has begun in all ranks, or in all but this one.
    ///
    /// # Errors
    /// A rank to which it has not come, and which is gone.
    pub fn have_arrived(&self, number: u64, but_this: bool) -> Result<bool> {
        for rank in (0..self.ranks).filter(|r| !(but_this && *r == self.rank)) {
            if self.arrived(rank).load(Ordering::Acquire) > number {
                continue;
            }
            // A rank that is gone may have come before: then the count says so after its end.
            let gone = rank != self.rank && self.is_gone(rank);
            if gone && self.arrived(rank).load(Ordering::Acquire) <= number {
                bail!("rank {rank} is gone, and has not come to collective {number}");
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// Tells whether a rank has joined, and ended or died.
    fn is_gone(&self, rank: u32) -> bool {
        match self.state(rank).load(Ordering::Acquire) {
            LEFT => true,
            JOINED => !self.is_held(rank),
            _ => false,
        }
    }

    fn is_held(&self, rank: u32) -> bool {
        let mut lock = lock_of(rank);
        // SAFETY: as in `join`; the kernel writes who holds it.
        let asked = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        asked != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
    }

    /// All of this rank's collectives have ended.
    pub fn leave(&self) {
        self.state(self.rank).store(LEFT, Ordering::Release);
    }
}

/// The lock that a rank holds: one byte of the file.
fn lock_of(rank: u32) -> libc::flock {
    // SAFETY: a structure of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = rank.into();
    lock.l_len = 1;
    lock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_has_begun_where_all_have_come() {
        let path = std::env::temp_dir().join(format!("softgpu-peers-{}", std::process::id()));
        let [a, b] = [0, 1].map(|rank| Peers::join(&path, rank, 2).expect("a file of its own"));
        let _ = std::fs::remove_file(&path);
        a.arrive(0);
        assert!(!a.have_arrived(0, false).expect("nobody is gone"));
        assert!(!a.have_arrived(0, true).expect("nobody is gone"));
        assert!(b.have_arrived(0, true).expect("nobody is gone"));
        b.arrive(0);
        assert!(a.have_arrived(0, false).expect("nobody is gone"));
        b.leave();
        // What it had come to before stays so.
        assert!(a.have_arrived(0, false).expect("it had come"));
        let gone = a.have_arrived(1, true).expect_err("it is gone");
        assert!(gone.to_string().contains("rank 1 is gone"), "{gone}");
        assert!(Peers::join(Path::new("/dev/null"), 2, 2).is_err());
    }
}
