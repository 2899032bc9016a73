//! The memory of a process through `/proc/PID/mem`, which also reads BAR mappings (nvidia.ko's vm_operations have
//! `.access`). Never point it at a doorbell page: those registers are write-only.

use std::{fs::File, io, os::unix::fs::FileExt};

use crate::wire::Hole;

/// Memory of a process, read at its own addresses. Channels are found through this trait, so that tests can use made-up
/// memory and count reads.
pub trait Peek {
    /// Reads exactly `to.len()` bytes.
    ///
    /// # Errors
    /// When not all of them can be read: unmapped, or the process is gone.
    fn peek(&self, at: u64, to: &mut [u8]) -> io::Result<()>;

    /// The aligned 8 bytes at `at`.
    ///
    /// # Errors
    /// As [`Peek::peek`].
    fn word(&self, at: u64) -> io::Result<u64> {
        let mut b = [0; 8];
        self.peek(at, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    /// Reads `len` bytes; pages that cannot be read become zero and are listed.
    fn peek_lax(&self, at: u64, len: usize) -> (Vec<u8>, Vec<Hole>) {
        let mut bytes = vec![0; len];
        let mut holes = Vec::new();
        if self.peek(at, &mut bytes).is_ok() {
            return (bytes, holes);
        }
        let mut offset = 0;
        while offset < len {
            let to_page_end = (PAGE - ((at + offset as u64) & (PAGE - 1))) as usize;
            let n = to_page_end.min(len - offset);
            let Some(piece) = bytes.get_mut(offset..offset + n) else {
                break;
            };
            if self.peek(at + offset as u64, piece).is_err() {
                piece.fill(0);
                holes.push(Hole {
                    offset: offset as u32,
                    len: n as u32,
                });
            }
            offset += n;
        }
        (bytes, holes)
    }
}

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

const PAGE: u64 = 4096;

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
