//! What tells one program image from another. A forked process has its parent's until it executes a program, and keeps it
//! when the parent ends.

use std::{fs, io};

use crate::procfs::{self, mem::Memory};

/// A program image: what the kernel told the program when it began (its auxiliary vector), and the 16 random bytes among
/// that, which no other image has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    auxv: Vec<u8>,
    random: Option<[u8; 16]>,
}

/// The type of the auxiliary vector's entry that says where the random bytes are.
const AT_RANDOM: u64 = 25;
/// Bytes that an auxiliary vector has at least when the kernel is done with it.
const LEAST: usize = 128;

impl Image {
    /// That of a process; empty while the process executes a program, and where it has no memory any more.
    ///
    /// # Errors
    /// Those of reading `/proc/PID/auxv`.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let mut auxv = fs::read(format!("/proc/{pid}/auxv"))?;
        if auxv.is_empty() {
            // Its first thread may have ended.
            auxv = fs::read(procfs::of_process(pid, "auxv"))?;
        }
        if auxv.len() < LEAST {
            return Ok(Self::default());
        }
        let mut image = Self { auxv, random: None };
        if let Some(at) = image.random_at() {
            let mut random = [0; 16];
            match Memory::open(pid).and_then(|m| m.read(at, &mut random)) {
                Ok(()) => image.random = Some(random),
                // It executes another program just now, or has ended.
                Err(_) => return Ok(Self::default()),
            }
        }
        Ok(image)
    }

    /// Nothing is known of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.auxv.is_empty()
    }

    /// The two have the same auxiliary vector. Where addresses are not random, two runs of one program may have the same;
    /// on the other hand a program may write over its random bytes.
    pub(crate) fn looks_like(&self, other: &Self) -> bool {
        self.auxv == other.auxv
    }

    /// Where the random bytes are, in a program of 64 bits.
    fn random_at(&self) -> Option<u64> {
        let word = |b: &[u8]| Some(u64::from_le_bytes(b.try_into().ok()?));
        let mut pairs = self.auxv.chunks_exact(16);
        let pair = pairs.find(|p| p.get(..8).and_then(word) == Some(AT_RANDOM))?;
        pair.get(8..).and_then(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_has_its_parents_image_and_no_other_has() {
        let own = Image::of(std::process::id()).unwrap();
        assert!(!own.is_empty() && own.random.is_some());
        // SAFETY: the child sleeps and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::sleep(20);
                libc::_exit(0);
            }
        }
        let forked = Image::of(child as u32);
        // SAFETY: ends and takes the child that was made above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(forked.unwrap(), own);
        let mut other = std::process::Command::new("sleep")
            .arg("20")
            .spawn()
            .unwrap();
        let image = Image::of(other.id());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_ne!(image.unwrap(), own);
        assert!(Image::of(child as u32).map_or(true, |i| i.is_empty()));
    }
}
