//! The memory of a process, read through `/proc/PID/mem`. The file also reads BAR mappings (nvidia.ko's vm_operations
//! have `.access`). Never read a doorbell page through it: those registers are write-only.

use std::{fs::File, io, os::unix::fs::FileExt};

pub use super::errands::given_up;
use super::{errands, served};
use nvcap_decode::wire::Hole;
pub use nvcap_decode::wire::read_memory::ReadMemory;

impl ReadMemory for Memory {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.read(at, to)
    }
}

/// An open `/proc/PID/mem`.
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    file: File,
}

impl Memory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// The errors of opening `/proc/PID/mem`: no such process, or no right to read it (ptrace access).
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            pid,
            file: File::open(super::of_process(pid, "mem"))?,
        })
    }

    /// Reads exactly `to.len()` bytes.
    ///
    /// # Errors
    /// Those of the read. EIO for an unmapped address, and for an address that must not be read ([`served`]). `UnexpectedEof` where the
    /// program is gone that ran when the memory was opened: the process has ended, or executes another one.
    pub fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        if served::is_unreadable(self.pid, std::iter::once((at, to.len()))) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        match errands::read_file(self.pid, &self.file, Some(at), to) {
            None => self.file.read_exact_at(to, at),
            Some(Ok(n)) if n == to.len() => Ok(()),
            Some(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(Ok(_)) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Some(Err(e)) => Err(e),
        }
    }

    /// Reads `len` bytes. Pages that cannot be read become zero, and are listed.
    pub fn read_lax(&self, at: u64, len: usize) -> (Vec<u8>, Vec<Hole>) {
        self.read_bytes_lax(at, len)
    }
}
/// The ordinary memory of a process: the part that is in RAM, read by `process_vm_readv`. The kernel refuses to read a device's registers
/// in this way. Addresses from the process's memory, which may lead anywhere, can therefore be tried.
#[derive(Clone, Copy, Debug)]
pub struct Ordinary {
    pid: libc::pid_t,
}

impl Ordinary {
    /// Opens the memory of a process, after a check that it may be read.
    ///
    /// # Errors
    /// The errors of opening `/proc/PID/mem`: no such process, or no right to read it (ptrace access).
    pub fn open(pid: u32) -> io::Result<Self> {
        Memory::open(pid)?;
        let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
        Ok(Self { pid })
    }

    /// Returns the process whose memory this is.
    #[cfg(feature = "in-step")]
    pub fn pid(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// Reads the ranges one after the other. Returns the number of bytes that were read up to the first one that could
    /// not be read.
    pub fn read(&self, ranges: &[(u64, usize)], to: &mut [u8]) -> io::Result<usize> {
        self.read_ranges(&Ranges::new(ranges.iter().copied()), to)
    }

    /// Reads as [`read`](Self::read) does, from prepared ranges.
    pub fn read_ranges(&self, ranges: &Ranges, to: &mut [u8]) -> io::Result<usize> {
        if served::is_unreadable(self.pid.cast_unsigned(), ranges.each()) {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        let remote = &ranges.remote;
        let count = remote.len() as libc::c_ulong;
        let mut of = |thread: libc::pid_t| {
            let pid = self.pid.cast_unsigned();
            let by_errand = errands::read_ranges(pid, thread.cast_unsigned(), ranges.each(), to);
            if let Some(read) = by_errand {
                return read;
            }
            let local = libc::iovec {
                iov_base: to.as_mut_ptr().cast(),
                iov_len: to.len(),
            };
            // SAFETY: the local vector is `to`; the remote ones are addresses in another process, which the kernel checks.
            let n = unsafe {
                libc::process_vm_readv(thread, &raw const local, 1, remote.as_ptr(), count, 0)
            };
            usize::try_from(n).map_err(|_| io::Error::last_os_error())
        };
        match of(self.pid) {
            // The first thread may have ended, while others still have the memory.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                let other = super::living_thread(self.pid.cast_unsigned()).ok_or(e)?;
                of(other.cast_signed())
            }
            read => read,
        }
    }
}

/// Ranges of a process's memory that are read together and often.
#[derive(Default)]
pub struct Ranges {
    remote: Vec<libc::iovec>,
    len: usize,
}

// SAFETY: the pointers are numbers, addresses in another process; nothing here follows them.
unsafe impl Send for Ranges {}

impl std::fmt::Debug for Ranges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.each()).finish()
    }
}

impl Ranges {
    /// Makes ranges from addresses and lengths.
    pub fn new(of: impl Iterator<Item = (u64, usize)>) -> Self {
        let remote: Vec<libc::iovec> = of
            .map(|(at, iov_len)| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(at as usize),
                iov_len,
            })
            .collect();
        let len = remote.iter().map(|r| r.iov_len).sum();
        Self { remote, len }
    }

    /// Returns the sum of the ranges' bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "nobody asks whether there is none"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the ranges' addresses and lengths.
    pub fn each(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.remote
            .iter()
            .map(|r| (r.iov_base.expose_provenance() as u64, r.iov_len))
    }
}

impl ReadMemory for Ordinary {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        match self.read(&[(at, to.len())], to)? {
            n if n == to.len() => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }
}

/// Returns the remedy if a process's memory may not be read.
pub fn remedy() -> &'static str {
    remedy_for(super::is_root())
}

pub(super) fn remedy_for(root: bool) -> &'static str {
    if root {
        "root may not either here: a container without cap_sys_ptrace, or a security module, forbids it; run nvcap outside of that"
    } else {
        "run nvcap as root (sudo nvcap ...) or as the process's owner with cap_sys_ptrace"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_become_root() {
        assert!(!remedy_for(true).contains("as root"));
        assert!(remedy_for(false).contains("as root"));
    }
}
