//! The memory of a process through `/proc/PID/mem`, which also reads BAR mappings (nvidia.ko's vm_operations have
//! `.access`). Never point it at a doorbell page: those registers are write-only.

use std::{fs::File, io, os::unix::fs::FileExt};

use crate::wire::Hole;
pub(crate) use crate::wire::peek::Peek;

impl Peek for Memory {
    fn peek(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.read(at, to)
    }
}

/// An open `/proc/PID/mem`.
#[derive(Debug)]
pub struct Memory {
    file: File,
}

impl Memory {
    /// Opens it.
    ///
    /// # Errors
    /// Those of opening `/proc/PID/mem`: no such process, or no right to read it (ptrace access).
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            file: File::open(super::of_process(pid, "mem"))?,
        })
    }

    /// Reads exactly `to.len()` bytes.
    ///
    /// # Errors
    /// Those of the read; an unmapped address gives EIO.
    pub fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(to, at)
    }

    /// GP_GET and GP_PUT: the aligned 8 bytes at USERD + 0x88.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn get_put(&self, at: u64) -> io::Result<(u32, u32)> {
        let both = self.word(at)?;
        Ok((both as u32, (both >> 32) as u32))
    }

    /// Reads `len` bytes; pages that cannot be read become zero and are listed.
    pub fn read_lax(&self, at: u64, len: usize) -> (Vec<u8>, Vec<Hole>) {
        self.peek_lax(at, len)
    }
}
/// What to do where a process's memory may not be read.
pub(crate) fn remedy() -> &'static str {
    remedy_for(super::is_root())
}

fn remedy_for(root: bool) -> &'static str {
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
