//! The auxiliary vector in `/proc/PID/auxv`: values that the kernel passed to a program at its start.

use std::{fs, io};

use super::of_process;
use nvcap_decode::wire::words::u64_at;

/// The type of the entry that holds the address of the program's 16 random bytes.
const AT_RANDOM: u64 = 25;
/// Size of an entry of a 64-bit program: type and value.
const ENTRY: usize = 16;
/// The least size of the vector once the kernel has filled it.
const LEAST: usize = 128;

/// The auxiliary vector of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auxv(Vec<u8>);

impl Auxv {
    /// Reads the vector of a process; empty if the process has no memory.
    ///
    /// # Errors
    /// The errors of reading the file: no such process, or no right to read it.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        match fs::read(format!("/proc/{pid}/auxv")) {
            Ok(bytes) if !bytes.is_empty() => Ok(Self(bytes)),
            // The first thread may have ended: the file is then empty on some kernels, and gives ESRCH on others.
            _ => fs::read(of_process(pid, "auxv")).map(Self),
        }
    }

    /// Returns the bytes in the kernel's form.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Tells whether the process has no vector.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells whether the vector is complete, so that the process is not in the middle of an exec.
    pub fn is_whole(&self) -> bool {
        self.0.len() >= LEAST
    }

    /// Returns the address of the random bytes, in a 64-bit program.
    pub fn random_at(&self) -> Option<u64> {
        let mut entries = (0..self.0.len()).step_by(ENTRY);
        let entry = entries.find(|at| u64_at(&self.0, *at) == Some(AT_RANDOM))?;
        u64_at(&self.0, entry + 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_bytes_are_found_by_their_type() {
        let auxv = |words: &[u64]| Auxv(words.iter().flat_map(|w| w.to_le_bytes()).collect());
        // A value may look like the type.
        assert_eq!(auxv(&[6, 25, 25, 0x7f00, 0, 0]).random_at(), Some(0x7f00));
        assert_eq!(auxv(&[6, 25, 0, 0]).random_at(), None);
        assert_eq!(auxv(&[25]).random_at(), None, "cut short");
        assert!(auxv(&[]).is_empty() && !auxv(&[6; 15]).is_whole() && auxv(&[6; 16]).is_whole());
    }

    #[test]
    fn this_process_has_one() {
        let own = Auxv::of_process(std::process::id()).unwrap();
        // SAFETY: reads the vector that the kernel gave this program.
        let at = unsafe { libc::getauxval(libc::AT_RANDOM) };
        assert_eq!((own.is_whole(), own.random_at()), (true, Some(at)));
        assert!(Auxv::of_process(u32::MAX).is_err());
    }
}
