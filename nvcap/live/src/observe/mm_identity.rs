//! Identity of program images. A forked process has its parent's image until it executes a program, and keeps the image
//! when the parent ends.

use std::io;

use nvcap_process::procfs::{auxv::Auxv, mem::Memory};

/// A program image: the data that the kernel passed to the program at its start (its auxiliary vector), and the 16 random
/// bytes to which the vector points. No other image has the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MmIdentity {
    auxv: Auxv,
    random: Option<[u8; 16]>,
}

impl MmIdentity {
    /// Reads the identity of a process's program image. It is empty while the process executes a program, and where the
    /// process has no memory any more.
    ///
    /// # Errors
    /// Those of reading `/proc/PID/auxv`.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let auxv = Auxv::of_process(pid)?;
        if !auxv.is_whole() {
            return Ok(Self::default());
        }
        let mut identity = Self { auxv, random: None };
        if let Some(at) = identity.auxv.random_at() {
            let mut random = [0; 16];
            match Memory::open(pid).and_then(|m| m.read(at, &mut random)) {
                Ok(()) => identity.random = Some(random),
                // It executes another program just now, or has ended.
                Err(_) => return Ok(Self::default()),
            }
        }
        Ok(identity)
    }

    /// True if nothing is known of the image.
    pub(crate) fn is_empty(&self) -> bool {
        self.auxv.is_empty()
    }

    /// True if both have the same auxiliary vector. Two runs of one program may have the same vector where addresses are not
    /// random. The random bytes are not compared, because a program may overwrite its own.
    pub(crate) fn looks_like(&self, other: &Self) -> bool {
        self.auxv == other.auxv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_has_its_parents_image_and_no_other_has() {
        let own = MmIdentity::of(std::process::id()).unwrap();
        assert!(!own.is_empty() && own.random.is_some());
        // SAFETY: the child sleeps and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::sleep(3600);
                libc::_exit(0);
            }
        }
        let forked = MmIdentity::of(child as u32);
        // SAFETY: ends and takes the child that was made above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(forked.unwrap(), own);
        let other = nvcap_waiting::Sleeper::start();
        assert_ne!(MmIdentity::of(other.id()).unwrap(), own);
        assert!(MmIdentity::of(child as u32).map_or(true, |i| i.is_empty()));
    }
}
