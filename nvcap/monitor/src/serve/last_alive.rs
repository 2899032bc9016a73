//! Time at which nvcap was last alive, in a file: the next one that starts knows by it for how long nobody counted.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use nvcap_show::output::file;

/// Time between two writes of the file, ns.
const EACH: u64 = 10_000_000_000;

/// So many bytes of it are read.
const LONGEST: u64 = 64;

/// The file.
#[derive(Debug)]
pub struct LastAlive {
    path: PathBuf,
    written: u64,
}

impl LastAlive {
    /// Opens the file. Also returns the time, ns, in which no nvcap was alive since the last entry, or since the machine's start if that
    /// was later; none where the file tells no time, or one in the future.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(path: &Path, now: u64, machine_began: u64) -> io::Result<(Self, Option<u64>)> {
        let mut text = String::new();
        if let Ok(file) = file::plain(path) {
            // A file that is not nvcap's tells no time.
            let _ = file.take(LONGEST).read_to_string(&mut text);
        }
        let last = text
            .trim()
            .parse::<u64>()
            .ok()
            .and_then(|s| s.checked_mul(1_000_000_000));
        let gap = last
            .filter(|last| *last <= now)
            .map(|last| now - last.max(machine_began).min(now));
        let mut file = Self {
            path: path.to_owned(),
            written: 0,
        };
        file.write(now)?;
        Ok((file, gap))
    }

    /// nvcap is still alive: writes the time, if it is due.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn still(&mut self, now: u64) -> io::Result<()> {
        if now.saturating_sub(self.written) < EACH {
            return Ok(());
        }
        self.write(now)
    }

    fn write(&mut self, now: u64) -> io::Result<()> {
        self.written = now;
        // What others may have put at its path is replaced, and no link is followed.
        file::replace(
            &self.path,
            format!("{}\n", now / 1_000_000_000).as_bytes(),
            0o644,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_time_between_two_is_told() {
        let folder = std::env::temp_dir().join(format!("nvcap-alive-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("alive");
        let open =
            |now: u64, began: u64| LastAlive::open(&path, now * SECOND, began * SECOND).unwrap();
        let (mut first, gap) = open(1000, 0);
        assert_eq!(gap, None, "there was none before");
        first.still(1005 * SECOND).unwrap();
        first.still(1012 * SECOND).unwrap();
        assert_eq!(open(1100, 0).1, Some(88 * SECOND));
        // Before the machine's start there was nothing to count.
        assert_eq!(open(1200, 1190).1, Some(10 * SECOND));
        assert_eq!(open(1100, 0).1, None, "the clock was set back");
        let precious = folder.join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, path.with_extension("new")).unwrap();
        open(1100, 0);
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(open(1300, 0).1, None);
        // Neither read, which would wait for ever, nor replaced.
        for no_file in ["fifo", "folder"] {
            let path = folder.join(no_file);
            let made = match no_file {
                "fifo" => std::process::Command::new("mkfifo").arg(&path).status(),
                _ => std::process::Command::new("mkdir").arg(&path).status(),
            };
            assert!(made.unwrap().success());
            let refused = LastAlive::open(&path, SECOND, 0).unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{refused}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(LastAlive::open(&path, SECOND, 0).is_err());
    }
}
