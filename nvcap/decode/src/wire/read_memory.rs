//! Memory that is read at its own addresses: a process's memory, or a slice of bytes.

use std::io;

use super::Hole;

/// Length of a page, which is readable or unreadable as a whole.
const PAGE: u64 = 4096;

/// Memory of a process, read at its own addresses. Channels are found through this trait, so that tests can use made-up
/// memory and count reads.
pub trait ReadMemory {
    /// Reads exactly `to.len()` bytes.
    ///
    /// # Errors
    /// When not all of them can be read: unmapped, or the process is gone.
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()>;

    /// Returns the aligned 8 bytes at `at`.
    ///
    /// # Errors
    /// As [`ReadMemory::read_bytes`].
    fn word(&self, at: u64) -> io::Result<u64> {
        let mut b = [0; 8];
        self.read_bytes(at, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    /// Returns GP_GET and GP_PUT: the aligned 8 bytes at USERD + 0x88.
    ///
    /// # Errors
    /// As [`ReadMemory::read_bytes`].
    fn get_put(&self, at: u64) -> io::Result<(u32, u32)> {
        let both = self.word(at)?;
        Ok((both as u32, (both >> 32) as u32))
    }

    /// Reads `len` bytes. Pages that cannot be read become zero and are listed.
    fn read_bytes_lax(&self, at: u64, len: usize) -> (Vec<u8>, Vec<Hole>) {
        let mut bytes = vec![0; len];
        let holes = self.read_bytes_lax_to(at, &mut bytes);
        (bytes, holes)
    }

    /// Reads into existing memory. Pages that cannot be read become zero and are listed.
    fn read_bytes_lax_to(&self, at: u64, bytes: &mut [u8]) -> Vec<Hole> {
        let len = bytes.len();
        let mut holes = Vec::new();
        if self.read_bytes(at, bytes).is_ok() {
            return holes;
        }
        let mut offset = 0;
        while offset < len {
            let to_page_end = (PAGE - ((at + offset as u64) & (PAGE - 1))) as usize;
            let n = to_page_end.min(len - offset);
            let Some(piece) = bytes.get_mut(offset..offset + n) else {
                break;
            };
            if self.read_bytes(at + offset as u64, piece).is_err() {
                piece.fill(0);
                holes.push(Hole {
                    offset: offset as u32,
                    len: n as u32,
                });
            }
            offset += n;
        }
        holes
    }
}

/// Serves the bytes as memory whose addresses begin at 0.
impl ReadMemory for [u8] {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..));
        match from.and_then(|from| from.get(..to.len())) {
            Some(from) => to.copy_from_slice(from),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_as_memory() {
        let bytes = [1u8, 2, 3, 4];
        let mut to = [0; 2];
        bytes.as_slice().read_bytes(2, &mut to).unwrap();
        assert_eq!(to, [3, 4]);
        assert!(bytes.as_slice().read_bytes(3, &mut to).is_err());
        assert!(bytes.as_slice().read_bytes(u64::MAX, &mut to).is_err());
    }
}
