//! A log of who rang for which submission and when, in a file that is shared memory: what was written there outlives kill -9 of the
//! program. One file for each program image; children that share the channels' memory share it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};

use crate::clock::monotonic;
use crate::plan::Plan;

/// Words before the records: how many children there are, and two words of each.
const HEAD: usize = 64;
/// Children that have a place.
const CHILDREN: u64 = 31;
/// Words of a record.
const RECORD: usize = 3;

/// A doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rung {
    /// CLOCK_MONOTONIC before its store, when the ring and GP_PUT were written already; 0: not yet.
    pub before: u64,
    /// CLOCK_MONOTONIC after its store; 0: not yet.
    pub after: u64,
    /// The process that rang.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

/// Contents of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logged {
    /// Children of this image, and CLOCK_MONOTONIC before each was forked.
    pub children: Vec<(u32, u64)>,
    /// Doorbells of each channel of the plan, in the order of its submissions.
    pub rung: Vec<Vec<Rung>>,
}

/// The log of a running image.
#[derive(Debug)]
pub struct Log {
    words: &'static [AtomicU64],
    first: Vec<usize>,
}

/// The file of an image.
fn path(folder: &Path, pid: u32, image: u32) -> PathBuf {
    folder.join(format!("{pid}-{image}"))
}

/// The first word of each channel's records, and the number of words in all.
fn places(plan: &Plan) -> (Vec<usize>, usize) {
    let mut next = HEAD;
    let first = (0..plan.channels.len()).map(|i| {
        let first = next;
        next += RECORD * plan.quota(i) as usize;
        first
    });
    let first = first.collect();
    (first, next)
}

impl Log {
    /// Makes the file of this process and image.
    pub fn new(folder: &Path, plan: &Plan) -> Result<Log> {
        let path = path(folder, std::process::id(), plan.shape.image);
        let say = || format!("cannot make {}", path.display());
        let (first, len) = places(plan);
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        let file = options.open(&path).with_context(say)?;
        file.set_len(8 * len as u64).with_context(say)?;
        // SAFETY: a new mapping of the whole file, which is never unmapped and only accessed by atomics.
        let words = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                8 * len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error()).with_context(say);
            }
            std::slice::from_raw_parts(at.cast::<AtomicU64>(), len)
        };
        Ok(Log { words, first })
    }

    /// Rings for a submission of channel number `i` of the plan, and logs it.
    pub fn rung(&self, i: usize, number: u64, ring: impl FnOnce()) {
        let at = self.first[i] + RECORD * number as usize;
        // SAFETY: asks for a number.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
        let who = u64::from(std::process::id()) << 32 | tid;
        self.words[at + 2].store(who, Ordering::Relaxed);
        self.words[at].store(monotonic(), Ordering::Release);
        ring();
        self.words[at + 1].store(monotonic(), Ordering::Release);
    }

    /// A child was forked after this time.
    pub fn forked(&self, child: u32, after: u64) {
        let n = self.words[0].load(Ordering::Relaxed);
        if n < CHILDREN {
            let at = 1 + 2 * n as usize;
            self.words[at].store(u64::from(child), Ordering::Relaxed);
            self.words[at + 1].store(after, Ordering::Relaxed);
            self.words[0].store(n + 1, Ordering::Release);
        }
    }
}

/// Reads the log of an image; none where it did not come to be.
pub fn read(folder: &Path, pid: u32, plan: &Plan) -> Result<Option<Logged>> {
    let path = path(folder, pid, plan.shape.image);
    let bytes = match std::fs::read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.with_context(|| path.display().to_string())?,
    };
    let (first, len) = places(plan);
    if bytes.is_empty() {
        // Its program was ended before it had set the file's length.
        return Ok(None);
    }
    ensure!(
        bytes.len() == 8 * len,
        "{}: not this plan's",
        path.display()
    );
    let word = |at: usize| {
        let bytes = bytes[8 * at..8 * at + 8].iter().rev();
        bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    let record = |at: usize| Rung {
        before: word(at),
        after: word(at + 1),
        pid: (word(at + 2) >> 32) as u32,
        tid: word(at + 2) as u32,
    };
    let children =
        (0..word(0).min(CHILDREN) as usize).map(|n| (word(1 + 2 * n) as u32, word(2 + 2 * n)));
    let rung = first.iter().enumerate().map(|(i, first)| {
        let quota = plan.quota(i) as usize;
        (0..quota).map(|n| record(first + RECORD * n)).collect()
    });
    Ok(Some(Logged {
        children: children.collect(),
        rung: rung.collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Channel;
    use crate::stream::Shape;

    #[test]
    fn what_was_rung_is_read_back() -> Result<()> {
        let plan = Plan {
            shape: Shape {
                seed: 1,
                image: 3,
                burst: 1,
                big_one_in: 0,
                launches_only: false,
                kernels: false,
                module_every: 0,
                rounds: None,
                timed: None,
                code: false,
            },
            channels: Channel::first(2, 1),
            submissions: 5,
        };
        let folder = std::env::temp_dir().join(format!("softgpu-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let pid = std::process::id();
        assert_eq!(read(&folder, pid, &plan)?, None);
        let log = Log::new(&folder, &plan)?;
        log.rung(1, 1, || {});
        log.forked(77, 5);
        let logged = read(&folder, pid, &plan)?.context("no log")?;
        std::fs::remove_dir_all(&folder)?;
        assert_eq!(logged.children, [(77, 5)]);
        let quotas: Vec<usize> = logged.rung.iter().map(Vec::len).collect();
        assert_eq!(quotas, [3, 2]);
        let rung = logged.rung[1][1];
        assert!(rung.pid == pid && 0 < rung.before && rung.before <= rung.after);
        assert_eq!(logged.rung[1][0], Rung::default());
        Ok(())
    }
}
