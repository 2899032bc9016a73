//! The environment in `/proc/PID/environ`, with which a program was started.

use std::io::{self, Read};

use super::{errands, of_process};

/// The most bytes of an environment that are read. A process may declare all of its memory to be its
/// environment (`prctl(PR_SET_MM_MAP)`), which may be gigabytes.
pub const MOST: u64 = 1 << 20;

/// The environment of a process, read once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    bytes: Vec<u8>,
    /// True if the environment is longer than the part that was read.
    pub cut: bool,
}

impl Environment {
    /// Reads the environment of a process.
    ///
    /// # Errors
    /// The errors of reading the file: no such process, or no right to read it.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::read(errands::open(pid, of_process(pid, "environ"))?)
    }

    /// Reads an environment, up to [`MOST`] bytes of it. Each variable ends with a zero byte.
    ///
    /// # Errors
    /// The errors of reading.
    pub fn read(from: impl Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.take(MOST + 1).read_to_end(&mut bytes)?;
        let cut = bytes.len() as u64 > MOST;
        if cut {
            bytes.truncate(MOST as usize);
            // The last variable may be incomplete.
            let whole = bytes.iter().rposition(|b| *b == 0).unwrap_or(0);
            bytes.truncate(whole);
        }
        Ok(Self { bytes, cut })
    }

    /// Returns the value of a variable; `None` if it is not set.
    pub fn value(&self, name: &str) -> Option<String> {
        let mut all = self.bytes.split(|b| *b == 0);
        all.find_map(|one| {
            let value = one.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_the_bound() {
        let mut taken = 0;
        let endless = b"RANK=7\0".chain(io::repeat(b'A')).take(1 << 40);
        let counted = Counted(endless, &mut taken);
        let all = Environment::read(counted).unwrap();
        assert!((MOST..2 * MOST).contains(&taken), "{taken}");
        assert!(all.cut && all.bytes.len() as u64 <= MOST);
        assert_eq!(all.value("RANK").as_deref(), Some("7"));
        assert_eq!(all.value(&"A".repeat(3)), None);
        let whole = Environment::read(&b"A=1\0RANK=x\0"[..]).unwrap();
        assert_eq!(
            (whole.value("RANK").as_deref(), whole.cut),
            (Some("x"), false)
        );
        assert_eq!(whole.value("RAN"), None);
        let own = Environment::of_process(std::process::id()).unwrap();
        assert!(!own.cut && own.value("PATH").is_some());
    }

    /// Reader that counts the bytes that are read.
    struct Counted<'n, R>(R, &'n mut u64);

    impl<R: Read> Read for Counted<'_, R> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(to)?;
            *self.1 += read as u64;
            Ok(read)
        }
    }
}
