//! Time at which nvcap was last alive, in a file by which the next one that starts knows for how long nothing was counted.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use nvcap_show::output::file;

/// Time between two writes of the file, ns.
const EACH: u64 = 10_000_000_000;

/// Number of bytes of the file that are read; one that has as many is not nvcap's own.
const LONGEST: u64 = 64;

/// Words before the time.
const MARK: &str = "nvcap was last alive at ";

/// Least number (seconds since 1970) that is taken for a time without these words: the id of a process is less.
const LEAST_ALONE: u64 = 1_000_000_000;

/// The file.
#[derive(Debug)]
pub struct LastAlive {
    path: PathBuf,
    written: u64,
}

impl LastAlive {
    /// Opens the file. Also returns the time, ns, in which no nvcap was alive since the last entry, or since the machine's start if that
    /// was later; none where the file is new, or tells a time in the future.
    ///
    /// # Errors
    /// When it cannot be written; `AlreadyExists` where it has something that nvcap has not written.
    pub fn open(path: &Path, now: u64, machine_began: u64) -> io::Result<(Self, Option<u64>)> {
        let last = file::plain(path).ok().and_then(|file| told(&read(file)?));
        let last = last.and_then(|s| s.checked_mul(1_000_000_000));
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

    /// Writes that nvcap is still alive, if that is due.
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
        // No link is followed, and what others may have put at its path stays.
        file::replace(
            &self.path,
            format!("{MARK}{}\n", now / 1_000_000_000).as_bytes(),
            0o644,
            &|there| read(there).is_some_and(|text| text.is_empty() || told(&text).is_some()),
        )
    }
}

/// Reads the whole file; none where it is longer than nvcap's own, or no text.
fn read(file: std::fs::File) -> Option<String> {
    let mut text = String::new();
    let read = file.take(LONGEST).read_to_string(&mut text).ok()?;
    (read < LONGEST as usize).then_some(text)
}

/// The time that a file of nvcap's tells, seconds. An earlier nvcap wrote the number alone.
fn told(text: &str) -> Option<u64> {
    let line = text.strip_suffix('\n')?;
    let (number, least) = match line.strip_prefix(MARK) {
        Some(number) => (number, 0),
        None => (line, LEAST_ALONE),
    };
    number.parse().ok().filter(|seconds| *seconds >= least)
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
        // What an earlier nvcap wrote is known by its number.
        std::fs::write(&path, "1764288000\n").unwrap();
        assert_eq!(open(1_764_288_010, 0).1, Some(10 * SECOND));
        let (mut written, _) = open(1_764_288_020, 0);
        // Others' files stay, also those that come later.
        for theirs in [
            "precious",
            "4711\n",
            "nvcap was last alive at home\n",
            &"x".repeat(100),
        ] {
            std::fs::write(&path, theirs).unwrap();
            let refused = LastAlive::open(&path, 1300 * SECOND, 0).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{theirs}");
            assert!(written.still(1_764_288_090 * SECOND).is_err());
            written.written = 0;
            assert_eq!(std::fs::read_to_string(&path).unwrap(), theirs);
        }
        // So do those whose name is like that of the file which takes its place.
        std::fs::remove_file(&path).unwrap();
        let beside = path.with_extension("new");
        std::fs::remove_file(&beside).unwrap();
        std::fs::write(&beside, "precious").unwrap();
        open(1400, 0);
        assert_eq!(std::fs::read_to_string(&beside).unwrap(), "precious");
        assert_eq!(
            std::fs::read_dir(&folder).unwrap().count(),
            3,
            "nothing is left beside it"
        );
        // An empty one, as mktemp makes it, is nobody's.
        std::fs::write(&path, "").unwrap();
        assert_eq!(open(1500, 0).1, None);
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
